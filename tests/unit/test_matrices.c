/* matrices: a sequence goes on like the kept one it resembles. */
#include <criterion/criterion.h>

#include "tests/predict_events.h"

enum { N_LAYER = 4, N_EXPERT = 32, K = 2 };

static const stk_predictor_ops *const ops = &stk_predictor_matrices;
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

/* A token of a sequence of kind 0 .. 3, which uses 8 experts of its own in each layer, now and then another. */
static void token_of(stk_predictor *p, uint64_t *step, int32_t pos, uint32_t kind, uint32_t n_layer, uint64_t *rng) {
    for (uint32_t l = 0; l < n_layer; l++) {
        uint16_t ids[K];
        pe_random_ids(rng, ids, K, 8);
        for (uint32_t j = 0; j < K; j++) ids[j] = (uint16_t)(ids[j] + 8 * ((kind + l) % 4));
        if (pe_random(rng, 10) == 0) ids[1] = (uint16_t)((ids[1] + 8) % N_EXPERT);
        pe_begin(&in, *step, l, K, N_EXPERT);
        pe_token(&in, 0, pos, 0, ids);
        observe(p, pe_end(&in));
    }
    ++*step;
}

static void check(const char *params, uint32_t n_kind) {
    stk_predictor *p = open_it(params);
    uint64_t rng = 1, step = 0;
    for (uint32_t s = 0; s < 24; s++)
        for (int32_t pos = 0; pos < 60; pos++) token_of(p, &step, pos, s % n_kind, N_LAYER, &rng);
    for (uint32_t kind = 0; kind < n_kind; kind++) {
        token_of(p, &step, 0, kind, N_LAYER - 1, &rng); /* its first token, before the last layer */
        int n = ops->suggest(p, 1, list, N_EXPERT);
        cr_assert(pe_in_order(list, n, N_EXPERT) && n >= 8);
        for (int i = 0; i < 8; i++) cr_assert_eq(list[i].expert / 8u, (kind + N_LAYER - 1) % 4, "kind %u", kind);
    }
    ops->close(p);
}

Test(matrices, the_first_token_tells_the_kind) { check(NULL, 4); }
Test(matrices, a_full_library_stays_diverse) { check("matrices=4", 4); }
