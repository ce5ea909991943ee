/* mix: takes from each part what it is good for. */
#include <criterion/criterion.h>

#include "predict/panel.h"
#include "tests/predict_events.h"

enum { N_LAYER = 4, N_EXPERT = 32, K = 2, N_TOKEN = 100 };

static const stk_predictor_ops *const ops = &stk_predictor_mix;
static pe_input in;
static stk_suggestion list[N_EXPERT];
static float scores[3][N_EXPERT];

typedef enum kind { BY_TOKEN, BY_LAYER, BY_ROUTER, BY_NOTHING } kind;

/* Share of uses that were foretold with p >= 1/2, one layer ahead, in the last 200 of n_step steps. */
static double run(kind what, uint32_t n_step) {
    stk_predictor *p;
    const stk_predictor_config config = {.n_layer = N_LAYER, .n_expert = N_EXPERT, .k = K};
    uint64_t rng = 1;
    uint16_t ids[N_LAYER][K];
    uint32_t n_use = 0, n_found = 0;
    cr_assert_eq(ops->open(&p, &config), 0, "%s", stk_error_detail());
    for (uint64_t step = 0; step < n_step; step++) {
        uint32_t token = pe_random(&rng, N_TOKEN);
        for (uint32_t l = 0; l < N_LAYER; l++) {
            pe_random_ids(&rng, ids[l], K, N_EXPERT);
            for (uint32_t j = 0; j < K && what == BY_TOKEN; j++) ids[l][j] = (uint16_t)((token * 7 + l * 5 + j * 11) % N_EXPERT);
            for (uint32_t j = 0; j < K && what == BY_LAYER && l; j++) ids[l][j] = (uint16_t)((5 * ids[l - 1][j] + l) % N_EXPERT);
        }
        for (uint32_t l = 0; l < N_LAYER; l++) {
            for (uint32_t e = 0; e < N_EXPERT; e++) scores[0][e] = (float)pe_random(&rng, 1000) * 1e-3f;
            for (uint32_t j = 0; j < K && l + 1 < N_LAYER; j++) scores[0][ids[l + 1][j]] += 1.0f;
            const stk_lookahead ahead = {what == BY_ROUTER && l + 1 < N_LAYER, 1, N_EXPERT, scores[0]};
            const stk_event *event = pe_one(&in, step, l, K, N_EXPERT, (int32_t)token, ids[l]);
            cr_assert_eq(ops->observe(p, event, &ahead), 0, "%s", stk_error_detail());
            if (l + 1 == N_LAYER || step + 200 < n_step) continue;
            int n = ops->suggest(p, 1, list, N_EXPERT);
            cr_assert(pe_in_order(list, n, N_EXPERT));
            for (uint32_t j = 0; j < K; j++) n_found += pe_p(list, n, ids[l + 1][j]) >= 0.5f;
            n_use += K;
        }
    }
    ops->close(p);
    return (double)n_found / n_use;
}

Test(mix, the_token_tells) { cr_assert_gt(run(BY_TOKEN, 1500), 0.98); }
Test(mix, the_layer_before_tells) { cr_assert_gt(run(BY_LAYER, 1500), 0.98); }
Test(mix, the_routers_tell) { cr_assert_gt(run(BY_ROUTER, 300), 0.98); }
Test(mix, nothing_tells) { cr_assert_lt(run(BY_NOTHING, 1500), 0.02); }

Test(mix, begins_with_its_prior_and_leaves_it) {
    stk_predictor *p;
    const stk_predictor_config config = {.n_layer = 1, .n_expert = 8, .k = 1, .params = "depth=1"};
    uint32_t depth, n;
    cr_assert_eq(ops->open(&p, &config), 0);
    const float *w = stk_panel_weights(p, &depth, &n);
    cr_assert(depth == 1 && n == stk_mix_plan.n_seat + 1);
    for (uint32_t set = 0; set < STK_PANEL_SETS; set++)
        cr_assert_arr_eq(w + (size_t)set * n, stk_mix_plan.prior + (size_t)set * STK_PREDICT_DEPTH_MAX * n, n * sizeof *w);
    const uint16_t id[1] = {3};
    for (uint64_t step = 0; step < 50; step++) cr_assert_eq(pe_observe(ops, p, pe_one(&in, step, 0, 1, 8, 0, id)), 0);
    cr_assert_arr_neq(w, stk_mix_plan.prior, n * sizeof *w);
    ops->close(p);
}
