/* gate: what the routers of the layers ahead say is worth what it turned out to be worth. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "tests/predict_events.h"

enum { N_LAYER = 5, N_EXPERT = 16, K = 2, N_RANK = 8 };

static const stk_predictor_ops *const ops = &stk_predictor_gate;
static pe_input in;
static float scores[STK_PREDICT_DEPTH_MAX][PE_TOK][N_EXPERT];
static stk_suggestion list[N_EXPERT];

static stk_predictor *open_gate(void) {
    stk_predictor *p;
    const stk_predictor_config config = {.n_layer = N_LAYER, .n_expert = N_EXPERT, .k = K};
    cr_assert_eq(ops->open(&p, &config), 0, "%s", stk_error_detail());
    return p;
}

/* Scores of one token for the layer d + 1 ahead: expert first + r (mod N_EXPERT) is r-th. */
static void rank_from(uint32_t d, uint32_t n_tok, uint32_t tok, uint32_t first) {
    float *row = &scores[0][0][0] + ((size_t)d * n_tok + tok) * N_EXPERT;
    for (uint32_t r = 0; r < N_EXPERT; r++) row[(first + r) % N_EXPERT] = 1.0f / (float)(r + 2);
}

static void observe(stk_predictor *p, const stk_event *event, uint32_t depth) {
    const stk_lookahead ahead = {depth, event->n_tok, N_EXPERT, &scores[0][0][0]};
    cr_assert_eq(ops->observe(p, event, &ahead), 0, "%s", stk_error_detail());
}

/* Steps of one token whose layer l uses ranks a and b of what was said of it; layer l's best expert is 3 * step + l. */
static void run(stk_predictor *p, uint64_t begin, uint64_t end, uint32_t a, uint32_t b, uint32_t depth) {
    for (uint64_t s = begin; s < end; s++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            uint32_t first = (uint32_t)(3 * s + l);
            const uint16_t ids[K] = {(uint16_t)((first + a) % N_EXPERT), (uint16_t)((first + b) % N_EXPERT)};
            for (uint32_t d = 0; d < depth; d++) rank_from(d, 1, 0, first + d + 1);
            observe(p, pe_one(&in, s, l, K, N_EXPERT, 0, ids), depth);
        }
}

Test(gate, takes_the_routers_order_where_it_knows_nothing_else) {
    stk_predictor *p = open_gate();
    const uint16_t ids[K] = {0, 1};
    cr_assert_eq(ops->suggest(p, 1, list, N_EXPERT), 0);
    rank_from(0, 1, 0, 7);
    observe(p, pe_one(&in, 0, 0, K, N_EXPERT, 0, ids), 1);
    cr_assert_eq(ops->suggest(p, 1, list, N_EXPERT), N_EXPERT);
    cr_assert(pe_in_order(list, N_EXPERT, N_EXPERT));
    cr_assert(list[0].expert == 7 && list[1].expert == 8 && list[0].p == list[1].p && list[0].p > 0.5f && list[2].p < 0.3f);
    cr_assert_lt(list[N_RANK].p, list[N_RANK - 1].p); /* ranks beyond 4k are one */
    cr_assert_eq(list[N_RANK].p, list[N_EXPERT - 1].p);
    ops->close(p);
    ops->close(NULL);
}

Test(gate, learns_what_each_rank_is_worth) {
    stk_predictor *p = open_gate();
    run(p, 0, 400, 1, 5, 1);
    for (uint32_t l = 0; l + 1 < N_LAYER; l++) {
        const uint16_t ids[K] = {0, 1};
        rank_from(0, 1, 0, 3);
        observe(p, pe_one(&in, 400 + l, l, K, N_EXPERT, 0, ids), 1);
        int n = ops->suggest(p, 1, list, N_EXPERT);
        cr_assert(pe_in_order(list, n, N_EXPERT));
        cr_assert(list[0].expert == 4 && list[0].p > 0.99f);
        cr_assert(list[1].expert == 8 && list[1].p > 0.98f);
        for (int i = 2; i < n; i++) cr_assert_lt(list[i].p, 0.01f);
    }
    ops->close(p);
}

Test(gate, follows_a_change) {
    stk_predictor *p = open_gate();
    run(p, 0, 20000, 0, 1, 1);
    run(p, 20000, 60000, 2, 3, 1);
    const uint16_t ids[K] = {0, 1};
    rank_from(0, 1, 0, 0);
    observe(p, pe_one(&in, 60000, 0, K, N_EXPERT, 0, ids), 1);
    (void)ops->suggest(p, 1, list, N_EXPERT);
    cr_assert(list[0].expert == 2 && list[1].expert == 3 && list[1].p > 0.8f);
    ops->close(p);
}

Test(gate, each_depth_and_layer_is_calibrated_by_itself) {
    stk_predictor *p = open_gate();
    /* Layer 3 is right at depth 1, off by two ranks at depth 2, by four at depth 3. */
    for (uint64_t s = 0; s < 500; s++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            uint32_t first = (uint32_t)(5 * s + 3 * l);
            const uint16_t ids[K] = {(uint16_t)(first % N_EXPERT), (uint16_t)((first + 1) % N_EXPERT)};
            for (uint32_t d = 0; d < 3; d++) rank_from(d, 1, 0, first + 3 * (d + 1) + N_EXPERT - 2 * d);
            observe(p, pe_one(&in, s, l, K, N_EXPERT, 0, ids), 3);
            if (s < 499 || l >= 2) continue;
            for (uint32_t d = 0; d < 3; d++) {
                uint32_t best = first + 3 * (d + 1);
                int n = ops->suggest(p, d + 1, list, N_EXPERT);
                cr_assert_gt(pe_p(list, n, best % N_EXPERT), 0.98f);
                cr_assert_gt(pe_p(list, n, (best + 1) % N_EXPERT), 0.98f);
                cr_assert_lt(list[2].p, 0.02f);
            }
        }
    ops->close(p);
}

Test(gate, one_of_several_tokens_is_enough) {
    stk_predictor *p = open_gate();
    const uint16_t ids[K] = {0, 1};
    pe_begin(&in, 0, 0, K, N_EXPERT);
    for (int32_t t = 0; t < 3; t++) {
        pe_token(&in, t, 0, 0, ids);
        rank_from(0, 3, (uint32_t)t, t < 2 ? 4 : 12); /* two want 4 and 5, one 12 and 13 */
    }
    observe(p, pe_end(&in), 1);
    int n = ops->suggest(p, 1, list, N_EXPERT);
    cr_assert(pe_in_order(list, n, N_EXPERT));
    float one = 1.0f - 0.7f, low = 1.0f - 0.03f, none = 1.0f - 0.03f / 4; /* ranks below k, from 2k on, and beyond */
    cr_assert_float_eq(pe_p(list, n, 4), 1.0f - one * one * none, 1e-5f);
    cr_assert_float_eq(pe_p(list, n, 12), 1.0f - one * none * none, 1e-5f);
    cr_assert_float_eq(pe_p(list, n, 10), 1.0f - low * low * none, 1e-5f);
    ops->close(p);
}

Test(gate, a_long_prompt_is_sampled) {
    stk_predictor *p = open_gate();
    uint64_t rng = 1;
    for (uint64_t s = 0; s < 20; s++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            pe_begin(&in, s, l, K, N_EXPERT);
            for (int32_t t = 0; t < PE_TOK; t++) {
                uint16_t ids[K];
                pe_random_ids(&rng, ids, K, N_EXPERT - 1);
                pe_token(&in, 0, t, 0, ids);
                rank_from(0, PE_TOK, (uint32_t)t, t == 0 ? 15 : pe_random(&rng, 7)); /* 15 is wanted by the first alone */
            }
            observe(p, pe_end(&in), 1);
            int n = ops->suggest(p, 1, list, N_EXPERT);
            cr_assert(pe_in_order(list, n, N_EXPERT));
            cr_assert_eq(n, l + 1 < N_LAYER ? N_EXPERT : 0);
            if (n) cr_assert_gt(pe_p(list, n, 7), 0.9f);
        }
    ops->close(p);
}

Test(gate, ties_go_to_the_lower_id_and_nan_comes_last) {
    stk_predictor *p = open_gate();
    const uint16_t ids[K] = {0, 1};
    for (uint32_t e = 0; e < N_EXPERT; e++) scores[0][0][e] = e < 10 ? NAN : 0.0f;
    scores[0][0][14] = INFINITY;
    observe(p, pe_one(&in, 0, 0, K, N_EXPERT, 0, ids), 1);
    cr_assert_eq(ops->suggest(p, 1, list, N_EXPERT), N_EXPERT);
    cr_assert(list[0].expert == 10 && list[1].expert == 14); /* ranks 1 and 0: as good */
    cr_assert(list[2].expert == 11 && list[3].expert == 12);
    cr_assert(list[4].expert == 0 || list[4].expert == 12);
    cr_assert_eq(ops->suggest(p, 1, list, 1), 1);
    cr_assert_eq(list[0].expert, 10);
    cr_assert_eq(ops->suggest(p, 1, list, 0), 0);
    ops->close(p);
}

Test(gate, says_nothing_without_scores_of_this_very_layer) {
    stk_predictor *p = open_gate();
    const uint16_t ids[K] = {0, 1};
    rank_from(0, 1, 0, 3);
    rank_from(1, 1, 0, 3);
    observe(p, pe_one(&in, 0, 2, K, N_EXPERT, 0, ids), 2);
    cr_assert_eq(ops->suggest(p, 0, list, N_EXPERT), 0);
    cr_assert_eq(ops->suggest(p, 2, list, N_EXPERT), N_EXPERT);
    cr_assert_eq(ops->suggest(p, 3, list, N_EXPERT), 0);
    cr_assert_eq(ops->suggest(p, 4, list, N_EXPERT), 0);
    observe(p, pe_one(&in, 0, 3, K, N_EXPERT, 0, ids), 0); /* a layer whose scores nobody computed */
    cr_assert_eq(ops->suggest(p, 1, list, N_EXPERT), 0);
    observe(p, pe_one(&in, 0, 4, K, N_EXPERT, 0, ids), 0);
    cr_assert_eq(ops->suggest(p, 1, list, N_EXPERT), 0); /* it does not see past the last layer */
    observe(p, pe_one(&in, 1, 3, K, N_EXPERT, 0, ids), 0);
    cr_assert_eq(ops->suggest(p, 1, list, N_EXPERT), 0);
    ops->close(p);
}

Test(gate, what_does_not_fit_is_refused) {
    stk_predictor *p = open_gate();
    uint16_t ids[K] = {0, 1};
    stk_lookahead ahead = {1, 1, N_EXPERT, &scores[0][0][0]};
    cr_assert_eq(ops->observe(p, pe_one(&in, 0, N_LAYER, K, N_EXPERT, 0, ids), &ahead), STK_EINVAL);
    cr_assert_eq(ops->observe(p, pe_one(&in, 0, 0, K, N_EXPERT + 1, 0, ids), &ahead), STK_EINVAL);
    const stk_event *event = pe_one(&in, 0, 0, K, N_EXPERT, 0, ids);
    ahead.n_tok = 2;
    cr_assert_eq(ops->observe(p, event, &ahead), STK_EINVAL);
    ahead.n_tok = 1, ahead.depth = STK_PREDICT_DEPTH_MAX + 1;
    cr_assert_eq(ops->observe(p, event, &ahead), STK_EINVAL);
    ahead.depth = 1, ahead.n_expert = N_EXPERT + 1;
    cr_assert_eq(ops->observe(p, event, &ahead), STK_EINVAL);
    ahead.n_expert = N_EXPERT, ahead.scores = NULL;
    cr_assert_eq(ops->observe(p, event, &ahead), STK_EINVAL);
    ids[1] = N_EXPERT;
    cr_assert_eq(ops->observe(p, pe_one(&in, 0, 0, K, N_EXPERT, 0, ids), &pe_no_scores), STK_EINVAL);
    cr_assert_not_null(strstr(stk_error_detail(), "expert 16 of 16"));
    ids[1] = STK_NO_EXPERT;
    cr_assert_eq(ops->observe(p, pe_one(&in, 0, 0, K, N_EXPERT, 0, ids), &pe_no_scores), 0);
    cr_assert_eq(ops->suggest(p, 1, list, N_EXPERT), 0);
    ops->close(p);
}

/* Layers may have fewer experts than the largest. */
Test(gate, a_layer_of_few_experts) {
    stk_predictor *p = open_gate();
    const uint16_t ids[K] = {0, 1};
    const float few[4] = {0.1f, 0.4f, 0.3f, 0.2f};
    const stk_lookahead ahead = {1, 1, 4, few};
    for (uint64_t s = 0; s < 100; s++) {
        cr_assert_eq(ops->observe(p, pe_one(&in, s, 0, K, N_EXPERT, 0, ids), &ahead), 0);
        cr_assert_eq(ops->suggest(p, 1, list, N_EXPERT), 4);
        cr_assert_eq(ops->observe(p, pe_one(&in, s, 1, K, 4, 0, ids), &pe_no_scores), 0);
    }
    cr_assert_eq(ops->observe(p, pe_one(&in, 100, 0, K, N_EXPERT, 0, ids), &ahead), 0);
    cr_assert_eq(ops->suggest(p, 1, list, N_EXPERT), 4);
    cr_assert(list[0].expert == 1 && list[0].p > 0.9f);
    cr_assert(list[1].expert == 0 && list[1].p > 0.9f); /* ranked last, used always */
    ops->close(p);
}

Test(gate, a_saved_state_says_the_same) {
    stk_predictor *a = open_gate(), *b = open_gate();
    static unsigned char state[8192], again[8192];
    run(a, 0, 50, 1, 4, 3);
    int64_t bytes = ops->save(a, NULL, 0);
    cr_assert(bytes > 0 && bytes < (int64_t)sizeof state);
    memset(state, 0xaa, sizeof state);
    cr_assert_eq(ops->save(a, state, (size_t)bytes - 1), bytes);
    cr_assert(state[0] == 0xaa);
    cr_assert_eq(ops->save(a, state, sizeof state), bytes);
    cr_assert_eq(ops->load(b, state, (size_t)bytes), 0, "%s", stk_error_detail());
    cr_assert_eq(ops->save(b, again, sizeof again), bytes);
    cr_assert_arr_eq(state, again, (size_t)bytes);
    run(a, 50, 51, 1, 4, 3);
    run(b, 50, 51, 1, 4, 3);
    const uint16_t ids[K] = {0, 1};
    stk_suggestion other[N_EXPERT];
    for (uint32_t d = 0; d < 3; d++) rank_from(d, 1, 0, d);
    observe(a, pe_one(&in, 51, 0, K, N_EXPERT, 0, ids), 3);
    observe(b, pe_one(&in, 51, 0, K, N_EXPERT, 0, ids), 3);
    for (uint32_t d = 1; d <= 3; d++) {
        int n = ops->suggest(a, d, list, N_EXPERT);
        cr_assert_geq(n, N_RANK);
        cr_assert_eq(ops->suggest(b, d, other, N_EXPERT), n);
        for (int i = 0; i < n; i++) cr_assert(list[i].expert == other[i].expert && list[i].p == other[i].p);
    }
    ops->close(a);
    ops->close(b);
}

Test(gate, a_damaged_state_changes_nothing) {
    stk_predictor *p = open_gate();
    static unsigned char good[8192], bad[8192], after[8192];
    run(p, 0, 50, 0, 1, 1);
    size_t bytes = (size_t)ops->save(p, good, sizeof good);
    for (size_t n = 0; n < bytes; n += n < 40 ? 1 : 97) cr_assert_eq(ops->load(p, good, n), STK_EFORMAT);
    cr_assert_eq(ops->load(p, good, bytes + 1), STK_EFORMAT);
    for (size_t i = 0; i < sizeof(stk_predictor_state); i++) {
        memcpy(bad, good, bytes);
        bad[i] ^= 0x10;
        cr_assert_eq(ops->load(p, bad, bytes), STK_EFORMAT, "byte %zu", i);
    }
    memset(bad + sizeof(stk_predictor_state), 0xff, bytes - sizeof(stk_predictor_state));
    cr_assert_eq(ops->load(p, bad, bytes), STK_EFORMAT);
    memcpy(bad, good, bytes);
    bad[sizeof(stk_predictor_state) + 7] = 1; /* more uses of rank 0 than tokens */
    cr_assert_eq(ops->load(p, bad, bytes), STK_EFORMAT);
    cr_assert_eq(ops->save(p, after, sizeof after), (int64_t)bytes);
    cr_assert_arr_eq(after, good, bytes);
    ops->close(p);
}
