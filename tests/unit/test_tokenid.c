/* tokenid: a token uses what it used before, as long as its id is remembered. */
#include <criterion/criterion.h>

#include "tests/predict_events.h"

enum { N_LAYER = 3, N_EXPERT = 64, K = 2 };

static const stk_predictor_ops *const ops = &stk_predictor_tokenid;
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

/* What a token uses: two of its own and in one case of five another. */
static void choose(int32_t token, uint32_t layer, uint64_t *rng, uint16_t *ids) {
    ids[0] = (uint16_t)((uint32_t)(token * 11 + (int32_t)layer * 3) % 32);
    ids[1] = (uint16_t)(32 + (uint32_t)(token * 5 + (int32_t)layer) % 32);
    if (pe_random(rng, 5) == 0) ids[1] = (uint16_t)(32 + pe_random(rng, 32));
}

static void run(stk_predictor *p, uint64_t *step, uint32_t n, uint32_t n_token) {
    uint64_t rng = *step;
    for (uint64_t end = *step + n; *step < end; ++*step) {
        int32_t token = (int32_t)pe_random(&rng, n_token);
        for (uint32_t l = 0; l < N_LAYER; l++) {
            uint16_t ids[K];
            choose(token, l, &rng, ids);
            observe(p, pe_one(&in, *step, l, K, N_EXPERT, token, ids));
        }
    }
}

static int ask(stk_predictor *p, uint64_t *step, int32_t token) {
    uint64_t rng = 1;
    uint16_t ids[K];
    choose(token, 0, &rng, ids);
    observe(p, pe_one(&in, ++*step, 0, K, N_EXPERT, token, ids));
    return ops->suggest(p, 2, list, N_EXPERT);
}

Test(tokenid, remembers_what_each_id_used) {
    stk_predictor *p = open_it(NULL);
    uint64_t step = 0;
    run(p, &step, 3000, 50);
    for (int32_t token = 0; token < 50; token++) {
        int n = ask(p, &step, token);
        cr_assert(pe_in_order(list, n, N_EXPERT));
        cr_assert_gt(pe_p(list, n, (uint32_t)(token * 11 + 6) % 32), 0.9f);
        cr_assert_gt(pe_p(list, n, 32 + (uint32_t)(token * 5 + 2) % 32), 0.6f);
    }
    cr_assert_eq(ask(p, &step, 50), 0); /* never seen */
    cr_assert_eq(ask(p, &step, -1), 0); /* a trace without ids */
    ops->close(p);
}

Test(tokenid, a_full_table_forgets_who_was_longest_not_seen) {
    stk_predictor *p = open_it("entries=64");
    uint64_t step = 0;
    uint32_t n_old = 0, n_lately = 0;
    run(p, &step, 2000, 1000);
    for (int32_t token = 2000; token < 2016; token++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            const uint16_t ids[K] = {1, 40};
            observe(p, pe_one(&in, ++step, l, K, N_EXPERT, token, ids));
        }
    for (int32_t token = 2015; token >= 2000; token--) n_lately += ask(p, &step, token) > 0;
    for (int32_t token = 0; token < 1000; token += 10) n_old += ask(p, &step, token) > 0;
    cr_assert_geq(n_lately, 12);
    cr_assert_lt(n_old, 20);
    ops->close(p);
}
