/* path: a regression sees what tables of neighbouring layers cannot. */
#include <criterion/criterion.h>

#include "tests/predict_events.h"

enum { N_LAYER = 4, N_EXPERT = 16, K = 1 };

static const stk_predictor_ops *const ops = &stk_predictor_path;
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

/* Layers 0 and 1 are any; layer 2 follows layer 0, layer 3 what it chose for the token before. */
static double run(const char *params, uint32_t layer) {
    enum { N_STEP = 6000, N_LAST = 200 };
    stk_predictor *p = open_it(params);
    uint64_t rng = 1;
    uint16_t id[N_LAYER][K] = {{0}};
    uint32_t n_right = 0;
    for (uint64_t step = 0; step < N_STEP; step++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            int n = step ? ops->suggest(p, 1, list, N_EXPERT) : 0;
            uint32_t next = l == 2 ? 5 * id[0][0] + 2u : l == 3 ? 5 * id[3][0] + 1u : pe_random(&rng, N_EXPERT);
            id[l][0] = (uint16_t)(next % N_EXPERT);
            if (l == layer && step >= N_STEP - N_LAST) n_right += n > 0 && list[0].expert == id[l][0] && list[0].p > 0.5f;
            observe(p, pe_one(&in, step, l, K, N_EXPERT, 0, id[l]));
        }
    ops->close(p);
    return (double)n_right / N_LAST;
}

Test(path, sees_two_layers_back) {
    cr_assert_gt(run("depth=1", 2), 0.99);
    cr_assert_lt(run("depth=1,back=1", 2), 0.3); /* the layer before says nothing */
}

Test(path, sees_the_token_before) { cr_assert_gt(run(NULL, 3), 0.99); }

Test(path, what_is_any_stays_unlikely) { cr_assert_lt(run(NULL, 1), 0.05); }

Test(path, memory_is_bounded) {
    stk_predictor *p;
    const stk_predictor_config config = {.n_layer = 48, .n_expert = 128, .k = 8, .params = "mib=8"};
    cr_assert_eq(ops->open(&p, &config), 0);
    int64_t bytes = ops->save(p, NULL, 0);
    cr_assert(bytes > 2 << 20 && bytes <= 9 << 20);
    ops->close(p);
    p = open_it("mib=0"); /* nothing fits, and nothing is said */
    const uint16_t id[K] = {1};
    observe(p, pe_one(&in, 0, 0, K, N_EXPERT, 0, id));
    for (uint32_t d = 1; d <= 3; d++) cr_assert_eq(ops->suggest(p, d, list, N_EXPERT), 0);
    ops->close(p);
}
