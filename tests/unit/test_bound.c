/* bound: against its definition on a sorted list of stays; and that belady-bypass keeps below it. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "cache/bound.h"
#include "tests/cache_model.h"

enum { N_LAYER = 3, N_EXPERT = 12, N_EVENT = 1500, MAX_STAY = N_EVENT * N_EXPERT };

static int by_cost(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool is_cut(uint32_t i) { return i % 400 == 399; }

static stk_bound *build(uint64_t seed, const uint64_t *layer_bytes, uint64_t *costs, uint32_t *n_cost) {
    static model_input in;
    uint64_t last[N_LAYER * N_EXPERT] = {0}, rng = seed;
    stk_bound *b;
    *n_cost = 0;
    cr_assert_eq(stk_bound_open(&b, N_LAYER, N_EXPERT, layer_bytes), 0);
    for (uint32_t i = 0; i < N_EVENT; i++) {
        uint32_t layer = i % N_LAYER;
        model_random_event(&in, &rng, N_EXPERT, 2, 1);
        if (is_cut(i)) {
            stk_bound_cut(b);
            memset(last, 0, sizeof last);
        }
        cr_assert_eq(stk_bound_add(b, layer, &in.event), 0);
        for (uint32_t j = 0; j < in.event.n_distinct; j++) {
            uint64_t *l = &last[layer * N_EXPERT + in.distinct[j]];
            if (*l) costs[(*n_cost)++] = (i + 1 - *l) * layer_bytes[layer];
            *l = i + 1;
        }
    }
    qsort(costs, *n_cost, sizeof *costs, by_cost);
    return b;
}

Test(bound, the_cheapest_stays_that_the_budget_pays_for) {
    static uint64_t costs[MAX_STAY];
    static const uint64_t sizes[][N_LAYER] = {{1, 1, 1}, {3, 5, 4}, {2000001, 3000017, 2500000}};
    for (size_t s = 0; s < STK_ARRAY_LEN(sizes); s++)
        for (uint32_t n_mean = 1; n_mean < 40; n_mean += 3) {
            uint32_t n_cost, want = 0, generous = 0;
            stk_bound *b = build(5, sizes[s], costs, &n_cost);
            uint64_t budget = n_mean * sizes[s][0], left = budget * N_EVENT, more = left + left / 1000;
            for (; want < n_cost && costs[want] <= left; want++) left -= costs[want];
            for (; generous < n_cost && costs[generous] <= more; generous++) more -= costs[generous];
            uint64_t hits = stk_bound_hits(b, budget);
            cr_assert(hits >= want && hits <= generous, "%lu hits, %u to %u", (unsigned long)hits, want, generous);
            if (s < 2) cr_assert_eq(hits, want, "small costs are exact");
            cr_assert_eq(stk_bound_hits(b, 0), 0);
            cr_assert_eq(stk_bound_hits(b, UINT64_MAX), n_cost);
            stk_bound_close(&b);
        }
}

Test(bound, belady_bypass_keeps_below_it) {
    static uint64_t costs[MAX_STAY];
    static const uint64_t sizes[N_LAYER] = {7, 7, 7};
    static const uint32_t layer_class[N_LAYER];
    static model_input in;
    for (uint32_t n_slot = 2; n_slot < 36; n_slot += 4) {
        uint32_t n_cost;
        uint64_t rng = 5;
        stk_bound *b = build(5, sizes, costs, &n_cost);
        stk_future *f;
        stk_cache *cache;
        stk_cache_counters c;
        cr_assert_eq(stk_future_open(&f, N_LAYER, N_EXPERT, NULL), 0);
        for (uint32_t i = 0; i < N_EVENT; i++) {
            model_random_event(&in, &rng, N_EXPERT, 2, 1);
            if (is_cut(i)) stk_future_cut(f);
            cr_assert_eq(stk_future_add(f, i % N_LAYER, &in.event), 0);
        }
        cr_assert_eq(stk_future_end(f), 0);
        const stk_cache_class class = {.n_slot = n_slot, .n_transit = 2};
        const stk_cache_config config = {.n_layer = N_LAYER,
                                         .n_expert = N_EXPERT,
                                         .k = 2,
                                         .n_class = 1,
                                         .classes = &class,
                                         .layer_class = layer_class,
                                         .policy = "belady-bypass",
                                         .future = f};
        cr_assert_eq(stk_cache_open(&cache, &config), 0);
        rng = 5;
        for (uint32_t i = 0; i < N_EVENT; i++) {
            const stk_decision *list;
            model_random_event(&in, &rng, N_EXPERT, 2, 1);
            if (is_cut(i)) cr_assert_eq(stk_cache_clear(cache), 0);
            cr_assert_geq(stk_cache_event(cache, i % N_LAYER, &in.event, &list), 0, "%s", stk_error_detail());
        }
        stk_cache_get_counters(cache, &c);
        uint64_t most = stk_bound_hits(b, 7 * n_slot);
        cr_assert_leq(c.n_hit, most);
        cr_assert_gt(c.n_hit * 10, most * 6, "and not far below: %lu of %lu", (unsigned long)c.n_hit, (unsigned long)most);
        stk_cache_close(&cache);
        stk_future_close(&f);
        stk_bound_close(&b);
    }
}

Test(bound, what_does_not_fit_is_refused) {
    static const uint64_t none[1] = {0}, huge[1] = {UINT64_MAX};
    const uint16_t id = 3, bad = 4;
    const stk_event event = {.n_distinct = 1, .distinct = &id}, wrong = {.n_distinct = 1, .distinct = &bad};
    stk_bound *b;
    cr_assert_eq(stk_bound_open(&b, 1, 4, none), STK_EINVAL);
    cr_assert_eq(stk_bound_open(&b, 0, 4, none), STK_EINVAL);
    cr_assert_eq(stk_bound_open(&b, 1, 4, huge), 0);
    cr_assert_eq(stk_bound_add(b, 1, &event), STK_EINVAL);
    cr_assert_eq(stk_bound_add(b, 0, &wrong), STK_EINVAL);
    for (uint32_t i = 0; i < 3; i++) cr_assert_eq(stk_bound_add(b, 0, i == 1 ? &(stk_event){0} : &event), 0);
    cr_assert_eq(stk_bound_hits(b, UINT64_MAX), 0, "a cost beyond 64 bits is not granted");
    stk_bound_close(&b);
}
