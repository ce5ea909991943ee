/* gates: a kept event is the event; what was recorded of layers ahead is what a predictor hears, as far as it looks. */
#include <criterion/criterion.h>
#include <string.h>

#include "src/ahead/gates.h"

enum { N_EXPERT = 8, K = 2, DEPTH = 2, LAYER = 3 };

static stk_event event_of(uint32_t n_tok, int32_t *where, uint16_t *ids, float *weights, uint32_t *counts) {
    return (stk_event){.layer = LAYER,
                       .n_tok = n_tok,
                       .k = K,
                       .n_top = K,
                       .n_expert = N_EXPERT,
                       .n_distinct = K,
                       .seq = where,
                       .pos = where,
                       .token = where,
                       .ids = ids,
                       .weights = weights,
                       .top_ids = ids,
                       .top_scores = weights,
                       .distinct = ids,
                       .counts = counts};
}

Test(gates, a_kept_event_outlives_its_arrays) {
    stk_gates g;
    int32_t where[] = {41};
    uint16_t ids[] = {5, 2};
    float weights[] = {0.75f, 0.25f};
    uint32_t counts[] = {1, 1};
    cr_assert_eq(stk_gates_open(&g, N_EXPERT, K, DEPTH), 0);
    stk_event e = event_of(1, where, ids, weights, counts);
    const stk_event *kept = stk_gates_keep(&g, &e);
    cr_assert_not_null(kept);
    where[0] = -1;
    memset(ids, 0xff, sizeof ids);
    memset(weights, 0, sizeof weights);
    memset(counts, 0, sizeof counts);
    cr_assert(kept->seq[0] == 41 && kept->pos[0] == 41 && kept->token[0] == 41 && kept->layer == LAYER);
    cr_assert(kept->ids[0] == 5 && kept->ids[1] == 2 && kept->distinct[1] == 2 && kept->top_ids[0] == 5);
    cr_assert(kept->weights[0] == 0.75f && kept->top_scores[1] == 0.25f && kept->counts[1] == 1);
    e.weights = NULL;
    e.n_top = 0;
    e.top_ids = NULL;
    e.top_scores = NULL;
    kept = stk_gates_keep(&g, &e);
    cr_assert(!kept->weights && !kept->top_ids && !kept->top_scores, "what a trace lacks is lacking");
    stk_gates_close(&g);
}

Test(gates, several_tokens_are_not_told_apart) {
    stk_gates g;
    int32_t where[] = {0, 1};
    uint16_t ids[] = {0, 1, 2, 3};
    float weights[4] = {0};
    uint32_t counts[] = {1, 1, 1, 1};
    cr_assert_eq(stk_gates_open(&g, N_EXPERT, K, DEPTH), 0);
    stk_event e = event_of(2, where, ids, weights, counts);
    cr_assert_null(stk_gates_keep(&g, &e));
    stk_gates_close(&g);
}

Test(gates, what_was_recorded_is_heard_as_far_as_it_is_looked) {
    stk_gates g;
    int32_t where[] = {0};
    uint16_t ids[] = {5, 2};
    float weights[] = {0.75f, 0.25f};
    uint32_t counts[] = {1, 1};
    const stk_ahead list[] = {{.key = (LAYER + 1) * N_EXPERT + 7, .p = 0.9f},
                              {.key = (LAYER + 1) * N_EXPERT + 0, .p = 0.5f},
                              {.key = (LAYER + 2) * N_EXPERT + 3, .p = 0.6f},
                              {.key = (LAYER + 3) * N_EXPERT + 1, .p = 0.8f}};
    const stk_trace_ahead all = {STK_ARRAY_LEN(list), list}, first = {2, list};
    cr_assert_eq(stk_gates_open(&g, N_EXPERT, K, DEPTH), 0);
    stk_event e = event_of(1, where, ids, weights, counts);
    cr_assert_not_null(stk_gates_keep(&g, &e));
    stk_lookahead look = stk_gates_look(&g, &all);
    cr_assert(look.depth == 2 && look.n_tok == 1 && look.n_expert == N_EXPERT);
    for (uint32_t x = 0; x < N_EXPERT; x++) {
        cr_expect_eq(look.scores[x], x == 7 ? 0.9f : x == 0 ? 0.5f : 0.0f, "%u", x);
        cr_expect_eq(look.scores[N_EXPERT + x], x == 3 ? 0.6f : 0.0f, "%u", x);
    }
    look = stk_gates_look(&g, &first);
    cr_assert(look.depth == 1 && look.scores[N_EXPERT + 3] == 0.0f, "nothing is left of what was said before");
    cr_assert_eq(stk_gates_look(&g, NULL).depth, 0);
    stk_gates_close(&g);
}
