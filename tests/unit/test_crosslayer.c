/* crosslayer: the experts of a layer follow those of the layers before it. */
#include <criterion/criterion.h>

#include "tests/predict_events.h"

enum { N_LAYER = 5, N_EXPERT = 16, K = 2 };

static const stk_predictor_ops *const ops = &stk_predictor_crosslayer;
static pe_input in;
static stk_suggestion list[N_EXPERT];

static stk_predictor *open_it(const char *params) {
    stk_predictor *p;
    const stk_predictor_config config = {.n_layer = N_LAYER, .n_expert = N_EXPERT, .k = K, .params = params};
    cr_assert_eq(ops->open(&p, &config), 0, "%s", stk_error_detail());
    return p;
}

static void observe(stk_predictor *p, const stk_event *event) {
    cr_assert_eq(pe_observe(ops, p, event), 0, "%s", stk_error_detail());
}

Test(crosslayer, learns_the_map_of_each_layer_and_depth) {
    stk_predictor *p = open_it(NULL);
    uint64_t rng = 1;
    uint16_t ids[N_LAYER + 1][K];
    for (uint64_t step = 0; step < 2000; step++) {
        if (step == 0) pe_random_ids(&rng, ids[0], K, N_EXPERT);
        for (uint32_t l = 0; l < N_LAYER; l++) {
            for (uint32_t j = 0; j < K; j++) ids[l + 1][j] = (uint16_t)((5 * ids[l][j] + l) % N_EXPERT);
            if (l + 1 == N_LAYER) pe_random_ids(&rng, ids[l + 1], K, N_EXPERT); /* the next token is not told by this one */
            observe(p, pe_one(&in, step, l, K, N_EXPERT, 0, ids[l]));
            for (uint32_t d = 1; d <= 3 && step > 1900; d++) {
                int n = ops->suggest(p, d, list, N_EXPERT);
                cr_assert(pe_in_order(list, n, N_EXPERT));
                if (l + d >= N_LAYER) { /* layers of the next step */
                    for (int i = 0; i < n; i++) cr_assert_lt(list[i].p, 0.4f);
                    continue;
                }
                for (uint32_t j = 0; j < K; j++) {
                    uint32_t id = ids[l][j];
                    for (uint32_t i = 0; i < d; i++) id = (5 * id + l + i) % N_EXPERT;
                    cr_assert_gt(pe_p(list, n, id), 0.8f, "layer %u, depth %u", l, d);
                }
                cr_assert_lt(list[2].p, 0.3f);
            }
        }
        memcpy(ids[0], ids[N_LAYER], sizeof ids[0]);
    }
    ops->close(p);
}

Test(crosslayer, the_next_step_follows_from_the_end_of_this_one) {
    stk_predictor *p = open_it("depth=1");
    uint64_t rng = 1;
    uint16_t ids[K], next[K] = {0, 1};
    for (uint64_t step = 0; step < 1000; step++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            if (l == 0)
                memcpy(ids, next, sizeof ids);
            else
                pe_random_ids(&rng, ids, K, N_EXPERT);
            observe(p, pe_one(&in, step, l, K, N_EXPERT, 0, ids));
            for (uint32_t j = 0; j < K; j++) next[j] = (uint16_t)((7 * ids[j] + 3) % N_EXPERT);
            if (l + 1 < N_LAYER || step < 900) continue;
            int n = ops->suggest(p, 1, list, N_EXPERT);
            for (uint32_t j = 0; j < K; j++) cr_assert_gt(pe_p(list, n, next[j]), 0.5f);
            cr_assert_eq(ops->suggest(p, 2, list, N_EXPERT), 0); /* not looked at: depth=1 */
        }
    ops->close(p);
}
