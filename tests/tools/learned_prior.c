/*
 * learned_prior: fits the shipped prior of cache policy `learned` on recorded routing and prints cache/learned_prior.c.
 *
 *     learned_prior FILE...
 *
 * A FILE is a .route.csv, a router-trace .json, an .mrt8.xz, or a .trace of `stoker run --trace`. Every model counts alike,
 * whatever the length of its traces: files that follow a "--" belong to one model until the next "--".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/learned_model.h"
#include "routes.h"
#include "traces/trace.h"

enum { MAX_LAYER = 256, N_F = STK_LEARNED_N_FEATURE };

typedef struct learner {
    stk_learned_model model;
    uint32_t n_layer;
    stk_learned_layer layers[MAX_LAYER];
    stk_recall *recall;
    float *scratch;
    uint8_t *votes;
    uint64_t *bits;
    uint16_t *set;
} learner;

static void fail(const char *what, const char *detail) {
    fprintf(stderr, "learned_prior: %s: %s\n", what, detail);
    exit(1);
}

static void open_learner(learner *l, uint32_t n_layer, uint32_t n_expert, uint32_t k) {
    size_t bytes = stk_learned_layer_bytes(n_expert), pad = stk_learned_pad(n_expert);
    unsigned char *blocks = calloc(n_layer, bytes);
    l->scratch = calloc(pad, sizeof *l->scratch);
    l->votes = calloc(pad, STK_LANES_LAGS);
    l->bits = calloc(pad / 64, sizeof *l->bits);
    l->set = calloc(n_expert, sizeof *l->set);
    if (n_layer > MAX_LAYER || !blocks || !l->scratch || !l->votes || !l->bits || !l->set) fail("layers", "too many");
    l->n_layer = n_layer;
    for (uint32_t i = 0; i < n_layer; i++) {
        l->layers[i] = stk_learned_layer_at(n_expert, blocks + i * bytes);
        stk_learned_layer_init(&l->layers[i]);
    }
    if (stk_recall_open(&l->recall, n_layer, n_expert) < 0) fail("layers", stk_error_detail());
    stk_learned_model_init(&l->model, n_expert, n_layer, l->recall, l->scratch, l->votes, l->bits, l->set);
    stk_learned_set_size(&l->model, n_expert, k);
}

static void close_learner(learner *l) {
    stk_recall_close(&l->recall);
    free(l->layers[0].head);
    free(l->scratch);
    free(l->votes);
    free(l->bits);
    free(l->set);
}

static void add(stk_learned_sums *to, const stk_learned_sums *from, double scale) {
    double *x = (double *)to;
    const double *y = (const double *)from;
    for (size_t i = 0; i < sizeof *to / sizeof *x; i++) x[i] += scale * y[i];
}

static void learn_routes(stk_learned_sums *sums, const char *path) {
    routes r;
    learner l = {0};
    if (!routes_read(&r, path)) fail(path, "cannot be read");
    open_learner(&l, r.n_layer, r.n_expert, r.k);
    const uint16_t *ids = r.ids;
    for (uint32_t s = 0; s < r.n_seq; s++)
        for (int32_t t = 0; t < (int32_t)r.n_tok[s]; t++)
            for (uint32_t i = 0; i < r.n_layer; i++, ids += r.k) {
                const stk_event event = {.n_tok = 1, .k = r.k, .n_expert = r.n_expert, .pos = &t, .ids = ids};
                if (*ids != ROUTES_NONE) stk_learned_observe(&l.model, &l.layers[i], i, &event);
            }
    add(sums, &l.model.sums, 1);
    close_learner(&l);
    routes_free(&r);
}

static void learn_trace(stk_learned_sums *sums, const char *path) {
    stk_trace_reader *reader;
    stk_trace_record record;
    learner l = {0};
    if (stk_trace_reader_open(&reader, path) < 0) fail(path, stk_error_detail());
    const stk_trace_header *h = stk_trace_reader_header(reader);
    open_learner(&l, h->n_layer, h->n_expert, h->k);
    int rc;
    while ((rc = stk_trace_read(reader, &record)) > 0)
        if (record.kind == STK_TRACE_EVENT) {
            uint32_t layer = record.event.layer;
            stk_learned_observe(&l.model, &l.layers[layer], layer, &record.event);
        }
    if (rc < 0) fail(path, stk_error_detail());
    add(sums, &l.model.sums, 1);
    close_learner(&l);
    stk_trace_reader_close(&reader);
}

static void print_rows(const char *name, uint32_t n, float (*rows)[N_F]) {
    printf("\nconst float %s = {\n", name);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < N_F; j++) printf("%s%.6ef%s", j ? " " : "    {", (double)rows[i][j], j + 1 < N_F ? "," : "},\n");
    printf("};\n");
}

int main(int argc, char **argv) {
    stk_learned_sums all = {0}, model = {0};
    for (int i = 1; i <= argc; i++) {
        if (i < argc && strcmp(argv[i], "--") != 0) {
            size_t n = strlen(argv[i]);
            fprintf(stderr, "%s\n", argv[i]);
            if (n > 6 && strcmp(argv[i] + n - 6, ".trace") == 0)
                learn_trace(&model, argv[i]);
            else
                learn_routes(&model, argv[i]);
            continue;
        }
        if (model.n > 0) add(&all, &model, 1e6 / model.n);
        model = (stk_learned_sums){0};
    }
    if (!(all.n > 0)) fail("usage", "learned_prior FILE...");
    float xx[N_F][N_F] = {{0}}, w[STK_LEARNED_N_HORIZON][N_F];
    for (uint32_t h = 0; h < STK_LEARNED_N_HORIZON; h++) {
        double weights[N_F];
        if (!stk_learned_regress(&all, h, 0, weights)) fail("regression", "the samples do not determine the weights");
        for (uint32_t i = 0; i < N_F; i++) w[h][i] = (float)weights[i];
    }
    for (uint32_t i = 0; i < N_F; i++)
        for (uint32_t j = 0; j <= i; j++) xx[i][j] = (float)(all.xx[i][j] / all.n);
    printf(
        "/* learned_prior: made by tests/oracle/make_learned_prior.py. Weights of features; nothing in it names an expert. */\n"
        "#include \"cache/learned_model.h\"\n");
    print_rows("stk_learned_prior_xx[STK_LEARNED_N_FEATURE][STK_LEARNED_N_FEATURE]", N_F, xx);
    print_rows("stk_learned_prior_w[STK_LEARNED_N_HORIZON][STK_LEARNED_N_FEATURE]", STK_LEARNED_N_HORIZON, w);
    return 0;
}
