/* plan: the order that the queues are given, and its prediction. */
#include <criterion/criterion.h>

#include "src/plan.h"

static stk_cost cost_of(double expert, double arrive, double bytes_per_ns) {
    stk_cost c;
    stk_cost_default(&c);
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) c.expert_ns_per_byte[i] = expert;
    c.arrive_ns_per_byte = arrive;
    c.nvme_bytes_per_ns = bytes_per_ns;
    c.nvme_latency_ns = 10;
    return c;
}

Test(plan, resident_first_then_heavy_first) {
    stk_cost c = cost_of(1, 0.5, 2);
    stk_plan_queues q = {{0}};
    stk_plan_item items[] = {
        {.index = 0, .n_tok = 1, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_NVME},
        {.index = 1, .n_tok = 5, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_NVME},
        {.index = 2, .n_tok = 1, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_RAM},
        {.index = 3, .n_tok = 2, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_COMING},
        {.index = 4, .n_tok = 9, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_NVME, .wave = 1},
        {.index = 5, .n_tok = 1, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_RAM},
    };
    double done;
    cr_assert_eq(stk_plan_make(&c, &q, items, 6, &done), 0);
    const uint32_t order[] = {2, 5, 3, 1, 0, 4};
    for (int i = 0; i < 6; i++) cr_assert_eq(items[i].index, order[i], "place %d", i);
    for (int i = 0; i < 6; i++) cr_assert_eq(items[i].route, items[i].tier == STK_TIER_RAM ? STK_ROUTE_CPU : STK_ROUTE_NVME_CPU);
}

Test(plan, predicts_when_reads_and_computation_overlap) {
    stk_cost c = cost_of(1, 0.5, 2);
    stk_plan_queues q = {{0, 100}};
    stk_plan_item items[] = {
        {.index = 0, .n_tok = 1, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_RAM},
        {.index = 1, .n_tok = 1, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_NVME},
        {.index = 2, .n_tok = 1, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_NVME},
    };
    double done;
    cr_assert_eq(stk_plan_make(&c, &q, items, 3, &done), 0);
    /* CPU: 0..100; first read ends at 150 + 10, computed by 160 + 150 = 310; second read long there: 310 + 150. */
    cr_assert_float_eq(done, 460, 1e-9);
}

Test(plan, an_unknown_tier_is_an_error) {
    stk_cost c = cost_of(1, 1, 1);
    stk_plan_queues q = {{0}};
    stk_plan_item item = {.tier = (enum stk_tier)9};
    double done;
    cr_assert_eq(stk_plan_make(&c, &q, &item, 1, &done), STK_EINVAL);
}
