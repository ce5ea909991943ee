/* cost: interpolation, corrections, and the way through a trace. */
#include <criterion/criterion.h>
#include <math.h>
#include <stddef.h>

#include "src/plan/cost.h"

static stk_cost table(void) {
    stk_cost c;
    stk_cost_default(&c);
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) c.expert_ns_per_byte[i] = 1.0 + i;
    return c;
}

Test(cost, points_and_what_lies_between) {
    stk_cost c = table();
    cr_assert_float_eq(stk_cost_expert_ns(&c, 100, 1), 100, 1e-9);
    cr_assert_float_eq(stk_cost_expert_ns(&c, 100, 2), 200, 1e-9);
    cr_assert_float_eq(stk_cost_expert_ns(&c, 100, 512), 1000, 1e-9);
    double between = stk_cost_expert_ns(&c, 100, 3);
    cr_assert(between > 200 && between < 300);
    cr_assert_float_eq(stk_cost_expert_ns(&c, 100, 1024), 2000, 1e-9, "past the last point, time grows with the tokens");
}

Test(cost, corrections_converge_to_what_is_measured) {
    stk_cost c = table();
    for (int i = 0; i < 200; i++) stk_cost_learn_experts(&c, 4, stk_cost_expert_ns(&c, 1000, 4), 5000.0);
    cr_assert_float_eq(stk_cost_expert_ns(&c, 1000, 4), 5000.0, 1.0);
    cr_assert_float_eq(stk_cost_expert_ns(&c, 1000, 1), 1000.0, 1e-9, "other points stay");
    for (int i = 0; i < 400; i++) stk_cost_learn_dense_layer(&c, 3, 12345.0);
    cr_assert_float_eq(stk_cost_dense_layer_ns(&c, 3), 12345.0, 1.0);
}

Test(cost, senseless_samples_change_nothing) {
    stk_cost c = table(), before = c;
    stk_cost_learn_experts(&c, 4, 0.0, 100.0);
    stk_cost_learn_experts(&c, 4, 100.0, 0.0);
    stk_cost_learn_arrive(&c, 0, 100.0);
    cr_assert_arr_eq(&c, &before, sizeof c);
}

Test(cost, export_and_import) {
    stk_cost c = table(), d;
    double numbers[64];
    uint32_t n = stk_cost_export(&c, numbers, 64);
    cr_assert_leq(n, 64);
    cr_assert_eq(stk_cost_import(&d, numbers, n), 0);
    cr_assert_arr_eq(&c, &d, sizeof c);
    cr_assert_eq(stk_cost_import(&d, numbers, n - 1), STK_EFORMAT);
    numbers[3] = NAN;
    cr_assert_eq(stk_cost_import(&d, numbers, n), STK_EFORMAT);
}

Test(cost, a_gpu_is_part_of_the_table) {
    stk_cost c, d;
    double numbers[64] = {0};
    stk_cost_default(&c);
    cr_assert_not(stk_cost_has_gpu(&c));
    uint32_t n = stk_cost_export(&c, numbers, 64);
    cr_assert_eq(stk_cost_import(&d, numbers, n), 0);
    cr_assert_not(stk_cost_has_gpu(&d));
    for (int i = 0; i < STK_COST_POINTS; i++) c.gpu.expert_ns_per_byte[i] = 0.01 * (1 << i);
    c.gpu.launch_ns = c.gpu.return_ns = c.gpu.link_latency_ns = 1000;
    c.gpu.link_bytes_per_ns = 20;
    c.gpu.link_bytes_per_ns_computing = 10;
    c.gpu.cpu_slowdown = 1.5;
    cr_assert(stk_cost_has_gpu(&c));
    cr_assert_float_eq(stk_cost_gpu_expert_ns(&c, 1000, 2), 20, 1e-9);
    cr_assert_float_eq(stk_cost_copy_ns(&c, 1000, false), 50, 1e-9);
    cr_assert_float_eq(stk_cost_copy_ns(&c, 1000, true), 100, 1e-9);
    stk_cost_export(&c, numbers, 64);
    cr_assert_eq(stk_cost_import(&d, numbers, n), 0);
    cr_assert_float_eq(d.gpu.cpu_slowdown, 1.5, 1e-12);
    numbers[n - 1] = 0; /* a GPU without a part of it */
    cr_assert_eq(stk_cost_import(&d, numbers, n), STK_EFORMAT);
    /* What was measured moves the table an eighth of the way. */
    stk_cost_learn_copy(&c, 1000, false, 2 * (1000 + 50));
    cr_assert_float_eq(c.gpu.link_bytes_per_ns, 20 * (1 - 0.125 / 2), 1e-9);
    stk_cost_learn_gpu_experts(&c, 1, 10, 20);
    cr_assert_float_eq(c.gpu.expert_ns_per_byte[0], 0.01 * 1.125, 1e-12);
}

Test(cost, a_trace_of_before_keeps_what_it_does_not_know) {
    stk_cost c = table(), d, plain;
    double numbers[64] = {0};
    const uint32_t n = stk_cost_export(&c, numbers, 64), last = offsetof(stk_cost, gpu) / sizeof(double);
    for (uint32_t i = last - 4; i < last; i++) numbers[i] = 0;
    stk_cost_default(&plain);
    cr_assert_eq(stk_cost_import(&d, numbers, n), 0, "%s", stk_error_detail());
    cr_assert_eq(d.wake_ns, plain.wake_ns);
    cr_assert_eq(d.read_ns_per_byte, plain.read_ns_per_byte);
    numbers[last - 5] = 0;
    cr_assert_eq(stk_cost_import(&d, numbers, n), STK_EFORMAT, "others cannot be missing");
    (void)stk_cost_export(&c, numbers, 64);
    numbers[offsetof(stk_cost, arrive_ns_per_byte) / sizeof *numbers] = 0;
    cr_assert_eq(stk_cost_import(&d, numbers, n), 0, "packed experts need no bringing into a layout");
    cr_assert_eq(d.arrive_ns_per_byte, 0);
}
