/* router: top-k as a total order, weights, grouping. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/engine/router.h"

Test(router, best_first_ties_to_the_lower_id_nan_last) {
    stk_router r = {6, 2, true, 1.0f};
    const float p[6] = {0.1f, NAN, 0.3f, 0.3f, 0.2f, 0.3f};
    uint16_t ids[2], top[6];
    float weights[2], scores[6];
    uint8_t taken[6];
    stk_router_choose(&r, p, 6, ids, weights, top, scores, taken);
    const uint16_t order[6] = {2, 3, 5, 4, 0, 1};
    cr_assert_arr_eq(top, order, sizeof order);
    cr_assert_arr_eq(ids, order, sizeof ids);
    cr_assert_eq(weights[0], 0.3f / (0.3f + 0.3f));
    cr_assert_eq(weights[1], 0.5f);
}

Test(router, all_nan_still_chooses) {
    stk_router r = {3, 2, false, 1.0f};
    const float p[3] = {NAN, NAN, NAN};
    uint16_t ids[2], top[2];
    float weights[2], scores[2];
    uint8_t taken[3];
    stk_router_choose(&r, p, 2, ids, weights, top, scores, taken);
    cr_assert_eq(ids[0], 0);
    cr_assert_eq(ids[1], 1);
}

Test(router, raw_weights_and_scale) {
    stk_router r = {3, 2, false, 2.0f};
    const float p[3] = {0.25f, 0.5f, 0.125f};
    uint16_t ids[2], top[2];
    float weights[2], scores[2];
    uint8_t taken[3];
    stk_router_choose(&r, p, 2, ids, weights, top, scores, taken);
    cr_assert_eq(weights[0], 1.0f);
    cr_assert_eq(weights[1], 0.5f);
}

Test(router, groups_by_expert_and_keeps_every_pair_once) {
    enum { TOK = 37, K = 3, E = 11 };
    stk_routing r;
    cr_assert_eq(stk_routing_open(&r, TOK, K, K, E), 0);
    srand(5);
    for (int t = 0; t < TOK; t++)
        for (int i = 0; i < K; i++) r.ids[t * K + i] = (uint16_t)((rand() % 3 + 3 * i + (i == 2)) % E);
    r.ids[7] = STK_NO_EXPERT;
    stk_event e = {0};
    uint32_t n = stk_routing_group(&r, TOK, &e), pairs = 0, seen[TOK * K] = {0};
    cr_assert_eq(n, e.n_distinct);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t x = e.distinct[i];
        cr_assert(i == 0 || e.distinct[i - 1] < x);
        cr_assert_eq(r.first[x + 1] - r.first[x], e.counts[i]);
        for (uint32_t p = r.first[x]; p < r.first[x + 1]; p++) {
            cr_assert_eq(r.ids[r.pairs[p]], x);
            cr_assert(p == r.first[x] || r.pairs[p - 1] < r.pairs[p]);
            seen[r.pairs[p]]++;
            pairs++;
        }
    }
    cr_assert_eq(pairs, TOK * K - 1);
    for (int i = 0; i < TOK * K; i++) cr_assert_eq(seen[i], i != 7);
    stk_routing_close(&r);
}
