/* score: what was suggested against what was used. */
#include "predict/score.h"

#include <criterion/criterion.h>

#include "tests/predict_events.h"

enum { N_LAYER = 3, N_EXPERT = 16, K = 2, CAP = 8 };

static pe_input in;
static const stk_predictor_config config = {.n_layer = N_LAYER, .n_expert = N_EXPERT, .k = K};

static stk_score *open_card(void) {
    stk_score *s;
    cr_assert_eq(stk_score_open(&s, &config, CAP), 0, "%s", stk_error_detail());
    return s;
}

static void used(stk_score *s, uint64_t step, uint32_t layer, uint16_t a, uint16_t b) {
    const uint16_t ids[K] = {a, b};
    cr_assert_eq(stk_score_event(s, pe_one(&in, step, layer, K, N_EXPERT, 0, ids)), 0);
}

Test(score, recall_at_k_and_2k_of_one_token) {
    stk_score *s = open_card();
    stk_score_figures f;
    const stk_suggestion list[] = {{3, 0.9f}, {5, 0.6f}, {7, 0.35f}, {9, 0.35f}, {11, 0.1f}};
    cr_assert_eq(stk_score_suggested(s, 1, 1, list, 5), 0);
    used(s, 0, 1, 3, 9);
    stk_score_get(s, 1, &f);
    cr_assert(f.n_event == 1 && f.n_lookup == 2 && f.n_found == 1 && f.n_found2 == 2);
    cr_assert(f.all.n == 5 && f.all.n_used == 2);
    cr_assert_float_eq(f.p_sum, 2.3, 1e-6);
    cr_assert(f.by_rank[0].n_used == 1 && f.by_rank[1].n == 1 && f.by_rank[1].n_used == 0 && f.by_rank[3].n_used == 1);
    cr_assert(f.by_p[18].n_used == 1 && f.by_p[7].n == 2 && f.by_p[7].n_used == 1);
    stk_score_ratio high = stk_score_at(&f, 0.5f), some = stk_score_at(&f, 0.36f), all = stk_score_at(&f, -1.0f);
    cr_assert(high.n == 2 && high.n_used == 1 && some.n == 4 && some.n_used == 2 && all.n == 5);
    cr_assert(stk_score_at(&f, 2.0f).n == 0);
    /* The same layer again: its list was used up. */
    used(s, 1, 1, 3, 9);
    stk_score_get(s, 1, &f);
    cr_assert_eq(f.n_event, 1);
    stk_score_close(&s);
    cr_assert_null(s);
    stk_score_close(&s);
}

Test(score, a_step_of_several_tokens_asks_for_as_many_as_it_uses) {
    stk_score *s = open_card();
    stk_score_figures f;
    const uint16_t ids[3][K] = {{1, 2}, {2, 3}, {3, 4}}; /* 4 distinct */
    const stk_suggestion list[] = {{1, 0.9f}, {2, 0.8f}, {10, 0.7f}, {3, 0.6f}, {11, 0.5f}, {12, 0.4f}, {13, 0.3f}, {4, 0.2f}};
    cr_assert_eq(stk_score_suggested(s, 0, 2, list, 8), 0);
    pe_begin(&in, 0, 0, K, N_EXPERT);
    for (int32_t t = 0; t < 3; t++) pe_token(&in, 0, t, 0, ids[t]);
    cr_assert_eq(stk_score_event(s, pe_end(&in)), 0);
    stk_score_get(s, 2, &f);
    cr_assert(f.n_event == 1 && f.n_lookup == 4 && f.n_found == 3 && f.n_found2 == 4);
    stk_score_close(&s);
}

Test(score, depths_and_layers_wait_side_by_side) {
    stk_score *s = open_card();
    stk_score_figures f;
    const stk_suggestion right = {6, 1.0f}, wrong = {1, 0.0f};
    cr_assert_eq(stk_score_suggested(s, 1, 1, &right, 1), 0);
    cr_assert_eq(stk_score_suggested(s, 1, 2, &wrong, 1), 0);
    cr_assert_eq(stk_score_suggested(s, 2, 2, &wrong, 1), 0);
    cr_assert_eq(stk_score_suggested(s, 2, 2, &right, 1), 0); /* replaces the list before */
    cr_assert_eq(stk_score_suggested(s, 2, 3, NULL, 0), 0);   /* nothing suggested is an answer */
    used(s, 0, 0, 6, 7);
    used(s, 0, 1, 6, 7);
    used(s, 0, 2, 6, 7);
    stk_score_get(s, 1, &f);
    cr_assert(f.n_event == 1 && f.n_found == 1 && f.by_p[19].n_used == 1);
    stk_score_get(s, 2, &f);
    cr_assert(f.n_event == 2 && f.n_lookup == 4 && f.n_found == 1 && f.by_p[0].n == 1 && f.by_p[0].n_used == 0);
    stk_score_get(s, 3, &f);
    cr_assert(f.n_event == 1 && f.n_lookup == 2 && f.n_found2 == 0 && f.all.n == 0);
    stk_score_get(s, 0, &f);
    cr_assert_eq(f.n_event, 0);
    stk_score_get(s, 4, &f);
    cr_assert_eq(f.n_event, 0);
    stk_score_close(&s);
}

Test(score, cost_counts_for_its_depth_or_for_all) {
    stk_score *s = open_card();
    stk_score_figures f;
    stk_score_cost(s, 0, 100);
    stk_score_cost(s, 2, 7);
    stk_score_get(s, 1, &f);
    cr_assert(f.n_call == 1 && f.ns == 100);
    stk_score_get(s, 2, &f);
    cr_assert(f.n_call == 2 && f.ns == 107);
    const stk_suggestion one = {6, 0.5f};
    cr_assert_eq(stk_score_suggested(s, 0, 2, &one, 1), 0);
    stk_score_reset(s);
    used(s, 0, 0, 6, 7);
    stk_score_get(s, 2, &f);
    cr_assert(f.n_call == 0 && f.ns == 0 && f.n_event == 1 && f.n_found == 1);
    stk_score_close(&s);
}

Test(score, what_does_not_fit_is_refused) {
    stk_score *s;
    cr_assert_eq(stk_score_open(&s, &config, 0), STK_EINVAL);
    cr_assert_eq(stk_score_open(&s, &config, N_EXPERT + 1), STK_EINVAL);
    stk_predictor_config none = config;
    none.k = 0;
    cr_assert_eq(stk_score_open(&s, &none, 1), STK_EINVAL);
    s = open_card();
    const stk_suggestion good = {6, 0.5f}, far = {N_EXPERT, 0.5f}, high = {6, 1.5f}, nan = {6, NAN};
    cr_assert_eq(stk_score_suggested(s, N_LAYER, 1, &good, 1), STK_EINVAL);
    cr_assert_eq(stk_score_suggested(s, 0, 0, &good, 1), STK_EINVAL);
    cr_assert_eq(stk_score_suggested(s, 0, STK_PREDICT_DEPTH_MAX + 1, &good, 1), STK_EINVAL);
    cr_assert_eq(stk_score_suggested(s, 0, 1, &good, CAP + 1), STK_EINVAL);
    cr_assert_eq(stk_score_suggested(s, 0, 1, &far, 1), STK_EINVAL);
    cr_assert_eq(stk_score_suggested(s, 0, 1, &high, 1), STK_EINVAL);
    cr_assert_eq(stk_score_suggested(s, 0, 1, &nan, 1), STK_EINVAL);
    const uint16_t ids[K] = {0, 1};
    cr_assert_eq(stk_score_event(s, pe_one(&in, 0, N_LAYER, K, N_EXPERT, 0, ids)), STK_EINVAL);
    stk_score_figures f;
    used(s, 0, 0, 6, 7);
    stk_score_get(s, 1, &f);
    cr_assert_eq(f.n_event, 0);
    stk_score_close(&s);
}
