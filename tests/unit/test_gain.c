/* gain: what an event takes, and what one absent expert less saves. */
#include <criterion/criterion.h>

#include "src/ahead/gain.h"

/* 100 to compute, 10 to pack, 1000 to read, 50 to wait for the first byte. */
static const stk_gain_times times = {.compute_ns = 100, .pack_ns = 10, .read_ns = 1000, .latency_ns = 50};

Test(gain, an_event_is_the_longer_of_drive_and_cpu) {
    stk_gain_times t = times;
    cr_assert_float_eq(stk_gain_event_ns(&t, 8, 0, 0), 800, 1e-6);
    cr_assert_float_eq(stk_gain_event_ns(&t, 8, 0, 2), 820, 1e-6, "two are packed first");
    cr_assert_float_eq(stk_gain_event_ns(&t, 8, 2, 0), 50 + 2000 + 110.0 / 3, 1e-6, "the drive, and the rest of the last");
    t.read_ns = 30;
    cr_assert_float_eq(stk_gain_event_ns(&t, 8, 2, 0), 600 + 2 * 110, 1e-6, "reads hide behind the six that are there");
    cr_assert_float_eq(stk_gain_event_ns(&t, 2, 2, 0), 60 + 2 * 110, 1e-6, "nothing to do until the first part has come");
    cr_assert_float_eq(stk_gain_event_ns(&t, 8, 0.5, 0), (800 + 700 + 110) / 2.0, 1e-6, "half of an expert: half of the way");
}

Test(gain, grows_with_what_is_absent) {
    for (double n = 0; n < 8; n += 0.25)
        cr_assert_leq(stk_gain_event_ns(&times, 8, n, 0), stk_gain_event_ns(&times, 8, n + 0.25, 0));
}

Test(gain, saves_a_read_where_the_drive_is_what_is_waited_for) {
    stk_gain_times t = times;
    cr_assert_float_eq(stk_gain_saved_ns(&t, 8, 3, 0), 1000, 1e-6);
    cr_assert_float_eq(stk_gain_saved_ns(&t, 8, 0, 0), 50 + 1000 + 110.0 / 3 - 810, 1e-6, "the last one: its latency too");
    t.read_ns = 1;
    t.latency_ns = 1;
    cr_assert_leq(stk_gain_saved_ns(&t, 8, 3, 0), 1e-6, "nothing where the CPU is");
}

Test(gain, times_are_those_of_the_table) {
    stk_cost cost;
    stk_gain_times t;
    stk_cost_default(&cost);
    stk_gain_times_of(&cost, &(stk_gain_size){1000000, 1004096}, 1, &t);
    cr_assert_float_eq(t.compute_ns, stk_cost_expert_ns(&cost, 1000000, 1), 1e-6);
    cr_assert_float_eq(t.read_ns, stk_cost_read_ns(&cost, 1004096), 1e-6);
    cr_assert_float_eq(t.dense_ns, stk_cost_dense_layer_ns(&cost, 1) + cost.event_ns, 1e-6);
    cr_assert(t.held_ns > 0 && t.held_ns <= t.read_ns && t.held_ns <= 2.1e5, "two pieces");
}
