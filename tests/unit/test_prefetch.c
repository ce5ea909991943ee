/* prefetch: asks the predictor layer by layer, as deep as it may, and lists what it says with what is worth reading. */
#include <criterion/criterion.h>
#include <string.h>

#include "src/ahead/prefetch.h"
#include "tests/predict_events.h"

enum { N_LAYER = 4, N_EXPERT = 8, K = 2 };

static pe_input in;
static stk_cache *cache;
static float scores[STK_PREDICT_DEPTH_MAX][N_EXPERT];

static stk_prefetch *begin(const char *predictor, uint32_t depth) {
    static const stk_cache_class class = {4, 0};
    static const uint32_t layer_class[N_LAYER] = {0};
    stk_prefetch *p;
    cr_assert_eq(stk_cache_open(&cache, &(stk_cache_config){.n_layer = N_LAYER,
                                                            .n_expert = N_EXPERT,
                                                            .k = K,
                                                            .n_class = 1,
                                                            .classes = &class,
                                                            .layer_class = layer_class,
                                                            .policy = "lru"}),
                 0, "%s", stk_error_detail());
    cr_assert_eq(
        stk_prefetch_open(
            &p,
            &(stk_prefetch_config){
                .predictor = predictor, .depth = depth, .n_layer = N_LAYER, .n_expert = N_EXPERT, .k = K, .cache = cache}),
        0, "%s", stk_error_detail());
    return p;
}

static void end(stk_prefetch *p) {
    stk_prefetch_close(&p);
    cr_assert_null(p);
    stk_prefetch_close(&p);
    stk_cache_close(&cache);
}

/* Step s at a layer: the routers of the layers ahead say that expert d + 1 is best d layers from here, then d + 2. */
static int choose(stk_prefetch *p, uint64_t s, uint32_t layer, stk_ahead **list) {
    const uint16_t ids[K] = {(uint16_t)1, (uint16_t)2};
    memset(scores, 0, sizeof scores);
    for (uint32_t d = 0; d < STK_PREDICT_DEPTH_MAX; d++)
        for (uint32_t e = 0; e < N_EXPERT; e++) scores[d][e] = e == d + 2 ? 0.6f : e == d + 3 ? 0.3f : 0.1f / (N_EXPERT - 2);
    const stk_lookahead look = {stk_prefetch_lookahead(p, layer, 1), 1, N_EXPERT, &scores[0][0]};
    return stk_prefetch_choose(p, pe_one(&in, s, layer, K, N_EXPERT, 0, ids), &look, NULL, list);
}

Test(prefetch, hears_as_many_routers_as_there_are_layers) {
    for (uint32_t depth = 1; depth <= STK_PREDICT_DEPTH_MAX; depth++) {
        stk_prefetch *p = begin("gate", depth);
        for (uint32_t layer = 0; layer < N_LAYER; layer++)
            cr_assert_eq(stk_prefetch_lookahead(p, layer, 1), STK_MIN(depth, N_LAYER - 1 - layer));
        cr_assert_eq(stk_prefetch_lookahead(p, 0, STK_LOOKAHEAD_TOKENS), depth);
        cr_assert_eq(stk_prefetch_lookahead(p, 0, STK_LOOKAHEAD_TOKENS + 1), 0, "a prompt");
        end(p);
    }
    stk_prefetch *p = begin("popularity", 2);
    cr_assert_eq(stk_prefetch_lookahead(p, 0, 1), 0);
    end(p);
}

Test(prefetch, lists_the_nearest_layer_first_and_none_behind_the_last) {
    for (uint32_t depth = 1; depth <= STK_PREDICT_DEPTH_MAX; depth++) {
        stk_prefetch *p = begin("gate", depth);
        for (uint64_t step = 0; step < 3; step++)
            for (uint32_t layer = 0; layer < N_LAYER; layer++) {
                stk_ahead *list;
                int n = choose(p, step, layer, &list);
                uint32_t reach = STK_MIN(depth, N_LAYER - 1 - layer), at = 0;
                cr_assert_eq(n, (int)(reach * 2 * K), "%d from layer %u", n, layer);
                for (uint32_t d = 1; d <= reach; d++)
                    for (uint32_t i = 0; i < 2 * K; i++, at++) {
                        cr_assert_eq(list[at].key / N_EXPERT, layer + d);
                        cr_assert(list[at].p >= 0 && list[at].p <= 1);
                        cr_assert(i == 0 || list[at].p <= list[at - 1].p);
                        if (i == 0 && step == 0 && layer == 0) cr_assert_eq(list[at].key % N_EXPERT, d + 1);
                    }
            }
        end(p);
    }
}

Test(prefetch, reads_what_is_likely_and_absent_alone) {
    stk_prefetch *p = begin("gate", 1);
    stk_ahead *list;
    stk_decision d;
    cr_assert_gt(choose(p, 0, 0, &list), 0);
    cr_assert(list[0].issue && list[0].key == N_EXPERT + 2);
    cr_assert_eq(stk_cache_prefetch(cache, list[0].key, &d), 1);
    for (uint32_t layer = 1; layer < N_LAYER; layer++) cr_assert_geq(choose(p, 0, layer, &list), 0);
    cr_assert_gt(choose(p, 1, 0, &list), 0);
    cr_assert(list[0].key == N_EXPERT + 2 && !list[0].issue, "it is there");
    end(p);
}

Test(prefetch, wrong_configurations_are_refused) {
    stk_prefetch *p;
    cr_assert_eq(
        stk_prefetch_open(
            &p, &(stk_prefetch_config){.predictor = "oracle", .depth = 1, .n_layer = N_LAYER, .n_expert = N_EXPERT, .k = K}),
        STK_EINVAL);
    cr_assert(p == NULL && strstr(stk_error_detail(), "oracle"));
}
