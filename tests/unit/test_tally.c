/* tally: phases, sequences, and sums of decisions. */
#include <criterion/criterion.h>
#include <string.h>

#include "src/replay/tally.h"

static const stk_trace_class class = {4096, 4000, 0, 0};
static const uint32_t zeros[2];
static const stk_trace_extent extents[8] = {{0, 0, 10}, {0, 0, 20}, {0, 0, 30}, {0, 0, 40},
                                            {0, 0, 1},  {0, 0, 2},  {0, 0, 3},  {0, 0, 4}};
static const stk_trace_header header = {.n_layer = 2,
                                        .n_expert = 2,
                                        .k = 1,
                                        .n_part = 2,
                                        .n_class = 1,
                                        .classes = &class,
                                        .layer_class = zeros,
                                        .model_layer = zeros,
                                        .extents = extents};

static stk_trace_step step(uint32_t n, const int32_t *seq, const int32_t *pos, const uint8_t *logits) {
    return (stk_trace_step){.n_tok = n, .seq = seq, .pos = pos, .logits = logits};
}

Test(tally, a_step_is_decode_if_every_token_asks_for_logits) {
    const int32_t same[2] = {0, 0}, two[2] = {0, 1}, pos[2] = {4, 5};
    const uint8_t all[2] = {1, 1}, last[2] = {0, 1};
    const struct {
        stk_trace_step s;
        enum stk_phase want;
    } cases[] = {{step(1, same, pos, all), STK_DECODE},
                 {step(1, same, pos, last), STK_PREFILL},
                 {step(2, same, pos, last), STK_PREFILL},
                 {step(2, same, pos, all), STK_PREFILL},
                 {step(2, two, pos, all), STK_DECODE}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) cr_expect_eq(stk_tally_phase(&cases[i].s), cases[i].want, "case %zu", i);
}

Test(tally, a_sequence_begins_at_its_first_position_or_when_it_is_new) {
    static const struct {
        int32_t seq, pos;
        bool begins;
    } steps[] = {{0, 3, true}, {0, 4, false}, {0, 0, true}, {2, 7, true}, {1, 7, false}, {1, 0, true}};
    stk_tally t;
    const uint8_t logits = 1;
    cr_assert_eq(stk_tally_open(&t, &header), 0);
    for (size_t i = 0; i < STK_ARRAY_LEN(steps); i++) {
        const stk_trace_step s = step(1, &steps[i].seq, &steps[i].pos, &logits);
        cr_expect_eq(stk_tally_step(&t, &s), steps[i].begins, "step %zu", i);
    }
    cr_assert_eq(t.n_sequence, 4);
    stk_tally_close(&t);
}

Test(tally, decisions_add_up_by_layer_and_phase) {
    stk_tally t;
    stk_replay_count prefill, decode;
    const stk_decision hit = {.key = 3, .kind = STK_HIT, .victim = STK_NO_KEY},
                       list[2] = {{.key = 2, .kind = STK_HIT, .victim = STK_NO_KEY}, {.key = 3, .kind = STK_ADMIT, .victim = 1}},
                       refused = {.key = 0, .kind = STK_TRANSIT, .victim = STK_NO_KEY};
    cr_assert_eq(stk_tally_open(&t, &header), 0);
    t.phase = STK_PREFILL;
    stk_tally_event(&t, 1, list, 2);
    stk_tally_event(&t, 1, &hit, 1);
    t.phase = STK_DECODE;
    stk_tally_event(&t, 0, &refused, 1);
    stk_tally_sum(&t, &prefill, &decode);
    cr_assert(prefill.n_event == 2 && prefill.n_lookup == 3 && prefill.n_hit == 2 && prefill.n_miss == 1 && prefill.n_evict == 1);
    cr_assert(prefill.bytes == 4000 && prefill.read_bytes == 7);
    cr_assert(decode.n_event == 1 && decode.n_miss == 1 && decode.n_evict == 0 && decode.bytes == 4000 &&
              decode.read_bytes == 30);
    cr_assert_eq(t.layers[1][STK_PREFILL].n_lookup, 3);
    cr_assert(stk_tally_drop(&t, 0));
    stk_tally_sum(&t, &prefill, &decode);
    cr_assert(decode.bytes == 0 && decode.read_bytes == 0 && decode.n_miss == 1);
    cr_assert(!stk_tally_drop(&t, 0) && !stk_tally_drop(&t, 2), "what was not read is not taken off");
    stk_tally_prefetch(&t, &(stk_decision){.key = 2, .kind = STK_ADMIT, .victim = 3});
    stk_tally_sum(&t, &prefill, &decode);
    cr_assert(decode.bytes == 4000 && decode.n_evict == 1 && decode.n_miss == 1 && decode.n_lookup == 1);
    t.phase = STK_PREFILL;
    cr_assert(stk_tally_drop(&t, 2), "taken off the phase in which it was read");
    stk_tally_sum(&t, &prefill, &decode);
    cr_assert(decode.bytes == 0 && decode.read_bytes == 0 && prefill.bytes == 4000);
    stk_tally_close(&t);
}
