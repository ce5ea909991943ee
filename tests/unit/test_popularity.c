/* popularity: what a layer used most comes first. */
#include <criterion/criterion.h>

#include "tests/predict_events.h"

enum { N_LAYER = 2, N_EXPERT = 16, K = 2 };

static const stk_predictor_ops *const ops = &stk_predictor_popularity;
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

Test(popularity, each_layer_by_its_own_use) {
    stk_predictor *p = open_it(NULL);
    uint64_t rng = 1;
    for (uint64_t step = 0; step < 2000; step++) {
        const uint16_t low[K] = {3, (uint16_t)(pe_random(&rng, 4) ? 5 : 6)}, high[K] = {12, (uint16_t)pe_random(&rng, 8)};
        observe(p, pe_one(&in, step, 0, K, N_EXPERT, 0, low));
        int n = ops->suggest(p, 1, list, N_EXPERT);
        if (step > 50) cr_assert(n > 0 && list[0].expert == 12 && list[0].p > 0.9f);
        observe(p, pe_one(&in, step, 1, K, N_EXPERT, 0, high));
    }
    int n = ops->suggest(p, 1, list, N_EXPERT); /* layer 0 of the next step */
    cr_assert(list[0].expert == 3 && list[1].expert == 5 && list[2].expert == 6);
    cr_assert_float_eq(pe_p(list, n, 5), 0.75f, 0.05f);
    cr_assert_float_eq(pe_p(list, n, 6), 0.25f, 0.05f);
    ops->close(p);
}
