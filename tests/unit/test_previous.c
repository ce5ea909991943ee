/* previous: the experts of the token before, each sequence by itself. */
#include <criterion/criterion.h>

#include "tests/predict_events.h"

enum { N_LAYER = 2, N_EXPERT = 16, K = 2 };

static const stk_predictor_ops *const ops = &stk_predictor_previous;
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

Test(previous, learns_how_often_experts_stay) {
    stk_predictor *p = open_it(NULL);
    uint64_t rng = 1;
    uint16_t ids[K] = {0, 1};
    for (uint64_t step = 0; step < 1000; step++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            /* The best stays for ten tokens, the second never does. */
            if (step % 10 == 0 && l == 0) ids[0] = (uint16_t)(step / 10 % 8);
            ids[1] = (uint16_t)(8 + (step + pe_random(&rng, 7) + 1) % 8);
            observe(p, pe_one(&in, step, l, K, N_EXPERT, 0, ids));
        }
    int n = ops->suggest(p, 1, list, N_EXPERT);
    cr_assert_eq(list[0].expert, ids[0]);
    cr_assert_float_eq(list[0].p, 0.9f, 0.05f);
    cr_assert(pe_in_order(list, n, N_EXPERT) && list[1].p < 0.3f);
    ops->close(p);
}

Test(previous, sequences_of_one_step_are_told_apart) {
    stk_predictor *p = open_it(NULL);
    for (uint64_t step = 0; step < 200; step++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            const uint16_t a[K] = {1, 2}, b[K] = {9, 10};
            pe_begin(&in, step, l, K, N_EXPERT);
            pe_token(&in, 7, (int32_t)step, 0, a);
            if (step < 100) pe_token(&in, 3, (int32_t)step, 0, b); /* then it pauses */
            observe(p, pe_end(&in));
            int n = ops->suggest(p, 1, list, N_EXPERT);
            if (step > 10) cr_assert(pe_p(list, n, 1) > 0.9f && pe_p(list, n, 2) > 0.9f);
            if (step > 10) cr_assert_eq(pe_p(list, n, 9) > 0.9f, step < 100);
        }
    ops->close(p);
}

Test(previous, a_new_sequence_has_no_past) {
    stk_predictor *p = open_it(NULL);
    const uint16_t ids[K] = {1, 2};
    for (uint64_t step = 0; step < 20; step++) {
        observe(p, pe_one(&in, step, 0, K, N_EXPERT, 0, ids));
        cr_assert_eq(ops->suggest(p, 1, list, N_EXPERT) > 0, step > 0);
        observe(p, pe_one(&in, step, 1, K, N_EXPERT, 0, ids));
    }
    pe_begin(&in, 20, 0, K, N_EXPERT);
    pe_token(&in, 0, 0, 0, ids); /* position 0 again */
    observe(p, pe_end(&in));
    cr_assert_eq(ops->suggest(p, 1, list, N_EXPERT), 0);
    ops->close(p);
}
