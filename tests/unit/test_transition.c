/* transition: experts follow those of the token before in the same layer. */
#include <criterion/criterion.h>

#include "tests/predict_events.h"

enum { N_LAYER = 2, N_EXPERT = 17, K = 1 };

static const stk_predictor_ops *const ops = &stk_predictor_transition;
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

Test(transition, learns_a_chain) {
    stk_predictor *p = open_it(NULL);
    uint16_t id[N_LAYER][K] = {{1}, {2}};
    for (uint64_t step = 0; step < 1500; step++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            int n = step ? ops->suggest(p, 1, list, N_EXPERT) : 0;
            id[l][0] = (uint16_t)((3 * id[l][0] + 1 + l) % N_EXPERT); /* a cycle of 16 */
            if (step > 1400) cr_assert(n > 0 && list[0].expert == id[l][0] && list[0].p > 0.9f);
            observe(p, pe_one(&in, step, l, K, N_EXPERT, 0, id[l]));
        }
    ops->close(p);
}

/* Inside a prompt the token before is in the same event. */
Test(transition, learns_from_a_prompt) {
    stk_predictor *p = open_it(NULL);
    uint16_t id[K] = {1};
    for (uint64_t step = 0; step < 40; step++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            pe_begin(&in, step, l, K, N_EXPERT);
            for (int32_t i = 0; i < 32; i++) {
                id[0] = (uint16_t)((3 * id[0] + 1) % N_EXPERT);
                pe_token(&in, 0, 32 * (int32_t)step + i, 0, id);
            }
            observe(p, pe_end(&in));
        }
    /* About layer 0 of the next step, from the last token that layer 0 had: 32 links before the last of layer 1. */
    uint16_t last = 1;
    for (uint32_t i = 0; i < 79 * 32; i++) last = (uint16_t)((3 * last + 1) % N_EXPERT);
    (void)ops->suggest(p, 1, list, N_EXPERT);
    cr_assert_eq(list[0].expert, (3 * last + 1) % N_EXPERT);
    cr_assert_gt(list[0].p, 0.5f);
    ops->close(p);
}
