/* history: what was used lately is likelier than what was used long ago. */
#include <criterion/criterion.h>

#include "tests/predict_events.h"

enum { N_LAYER = 1, N_EXPERT = 16, K = 1 };

static const stk_predictor_ops *const ops = &stk_predictor_history;
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

/* Each expert for 30 tokens, one token in five goes elsewhere. */
static void run(stk_predictor *p, uint64_t begin, uint64_t end) {
    uint64_t rng = 1;
    for (uint64_t step = begin; step < end; step++) {
        bool other = pe_random(&rng, 5) == 0;
        const uint16_t id[K] = {(uint16_t)(other ? pe_random(&rng, N_EXPERT) : step / 30 % N_EXPERT)};
        observe(p, pe_one(&in, step, 0, K, N_EXPERT, 0, id));
    }
}

Test(history, forgets_step_by_step) {
    stk_predictor *p = open_it("keep=0.8");
    run(p, 0, 3029);
    int n = ops->suggest(p, 1, list, N_EXPERT);
    uint32_t lately = 3028 / 30 % N_EXPERT, before = (lately + N_EXPERT - 1) % N_EXPERT;
    cr_assert(pe_in_order(list, n, N_EXPERT));
    cr_assert_eq(list[0].expert, lately);
    cr_assert_gt(list[0].p, 0.6f);
    cr_assert_lt(pe_p(list, n, before), 0.1f);
    ops->close(p);
}

Test(history, begins_anew_with_a_sequence) {
    stk_predictor *p = open_it(NULL);
    run(p, 0, 200);
    (void)ops->suggest(p, 1, list, N_EXPERT);
    cr_assert_gt(list[0].p, 2.0f * list[2].p);
    const uint16_t id[K] = {11};
    pe_begin(&in, 200, 0, K, N_EXPERT);
    pe_token(&in, 0, 0, 0, id);
    observe(p, pe_end(&in));
    int n = ops->suggest(p, 1, list, N_EXPERT);
    cr_assert_eq(list[0].expert, 11);
    for (int i = 2; i < n; i++) cr_assert_eq(list[i].p, list[1].p); /* of the others nothing is known */
    ops->close(p);
}
