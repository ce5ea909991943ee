/*
 * fit_mix: fits predict/mix_prior.h, the weights that the mix begins with. usage: fit_mix [TRACE...] > predict/mix_prior.h
 *
 * TRACE: *.route.csv, switch_base8's JSON, or traces of one model recorded with `stoker run --batch-size 1 --trace`, which count
 * as one. Each is run from a cold start, with the prior so far; the mean of the weights that came out, over layers and traces, is
 * the next prior; and so on. Weights for steps with the routers' scores, which no trace holds, are not fitted but set.
 */
#include "predict/panel.h"
#include "tests/predict_traces.h"

enum { N_TRACE = 16, N_ROUND = 24, N_WEIGHT = STK_PANEL_PARTS + 1, N_SIZE = STK_PANEL_SETS * STK_PREDICT_DEPTH_MAX };

static pt_trace traces[N_TRACE];
static uint32_t n_trace;
static float prior[N_SIZE * N_WEIGHT];

static bool has_tokens(const pt_trace *t) { return t->tokens[0][0] >= 0; }

static void read_traces(int argc, char **argv) {
    pt_trace own = {0};
    for (int i = 1; i < argc; i++) {
        bool route = strstr(argv[i], ".route.csv") != NULL, json = strstr(argv[i], ".json") != NULL;
        bool good = route  ? pt_route(&traces[n_trace], argv[i])
                    : json ? pt_switch(&traces[n_trace], argv[i])
                           : pt_stoker(&own, argv[i]);
        if (!good || n_trace == N_TRACE - 1) {
            fprintf(stderr, "fit_mix: cannot use %s: %s\n", argv[i], stk_error_detail());
            exit(1);
        }
        n_trace += route || json;
    }
    if (own.n_seq) traces[n_trace++] = own;
}

/* Adds the weights, each a mean over layers, that the mix has after the whole trace. */
static void add_weights(const pt_trace *t, const stk_panel_plan *plan, double *sum) {
    const stk_predictor_config config = {.n_layer = t->n_layer, .n_expert = t->n_expert, .k = t->k};
    stk_predictor *p;
    uint64_t step = 0;
    uint32_t depth, n;
    if (stk_panel_open(&p, &config, plan) < 0) abort();
    for (uint32_t s = 0; s < t->n_seq; s++)
        if (!pt_run(&stk_predictor_mix, p, t, s, &step, NULL, 0, NULL, NULL)) abort();
    const float *w = stk_panel_weights(p, &depth, &n);
    for (uint32_t size = 0; size < N_SIZE; size++)
        for (uint32_t l = 0; l < t->n_layer; l++)
            for (uint32_t f = 0; f < n; f++) sum[size * n + f] += (double)w[((size_t)size * t->n_layer + l) * n + f] / t->n_layer;
    stk_panel_close(p);
}

/* Set 2 is for known tokens, which only our own traces have; sets 1 and 3 begin as 0 and 2 with the routers in front. */
static void one_round(stk_panel_plan *plan) {
    uint32_t n = plan->n_seat + 1, n_set = STK_PREDICT_DEPTH_MAX * n;
    double all[N_SIZE * N_WEIGHT] = {0}, own[N_SIZE * N_WEIGHT] = {0};
    for (uint32_t i = 0; i < n_trace; i++) {
        add_weights(&traces[i], plan, all);
        if (has_tokens(&traces[i])) add_weights(&traces[i], plan, own);
    }
    for (uint32_t i = 0; i < n_set; i++) {
        uint32_t part = i % n;
        prior[i] = (float)(all[i] / n_trace);
        if (has_tokens(&traces[n_trace - 1])) prior[2 * n_set + i] = (float)own[2 * n_set + i];
        for (uint32_t set = 1; set < STK_PANEL_SETS; set += 2)
            prior[set * n_set + i] = part == 0 ? 0.85f : 0.3f * prior[(set - 1) * n_set + i];
    }
}

int main(int argc, char **argv) {
    read_traces(argc, argv);
    stk_panel_plan plan = stk_mix_plan;
    uint32_t n = plan.n_seat + 1;
    memcpy(prior, stk_mix_plan.prior, (size_t)N_SIZE * n * sizeof *prior);
    plan.prior = prior;
    for (uint32_t round = 0; round < N_ROUND && n_trace; round++) one_round(&plan);
    printf("/*\n * mix_prior: weights that the mix begins with: by what is known (1: the routers' scores, 2: the token id, "
           "added), by depth;"
           "\n * of the parts in the order of mix.c, then the constant. Fitted by tests/tools/fit_mix.c on traces of the bundled "
           "model, of"
           "\n * Qwen3-30B-A3B, gemma-4-26B-A4B, gpt-oss-120b and switch-base-8; the sets with routers' scores are set, not "
           "fitted.\n */\n"
           "#ifndef STK_MIX_PRIOR_H\n#define STK_MIX_PRIOR_H\n\n#include \"predict/panel.h\"\n\n"
           "static const float stk_mix_prior[STK_PANEL_SETS][STK_PREDICT_DEPTH_MAX][%u] = {\n",
           n);
    for (uint32_t size = 0; size < N_SIZE; size++) {
        printf(size % STK_PREDICT_DEPTH_MAX ? "     {" : "    {{");
        for (uint32_t f = 0; f < n; f++) printf("%s%.3ff", f ? ", " : "", (double)prior[size * n + f]);
        printf("}%s\n", size % STK_PREDICT_DEPTH_MAX == STK_PREDICT_DEPTH_MAX - 1 ? "}," : ",");
    }
    printf("};\n\n#endif\n");
    for (uint32_t i = 0; i < n_trace; i++) pt_free(&traces[i]);
    return 0;
}
