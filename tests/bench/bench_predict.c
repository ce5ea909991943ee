/*
 * bench_predict: what a predictor costs: nanoseconds of CPU time an event, one core, observing and one call of suggest together.
 * CSV on stdout; the median of 7 runs after one to warm up. Tokens choose experts that half follow from the layer before; between
 * events a buffer as large as the second-level cache is read, as the kernels of a layer would.
 */
#include "bench.h"
#include "tests/predict_events.h"

enum { N_LAYER = 48, N_STEP = 40, N_RUN = 7, COLD_BYTES = 2 << 20 };

typedef struct shape {
    const char *predictor, *params;
    uint32_t n_tok, n_expert, k;
} shape;

static pe_input in;
static stk_suggestion list[PE_EXPERT];
static float scores[STK_PREDICT_DEPTH_MAX * PE_TOK * PE_EXPERT];
static unsigned char cold[COLD_BYTES];

static uint64_t run(const stk_predictor_ops *ops, stk_predictor *p, const shape *s, uint64_t *step, uint64_t *rng) {
    uint64_t ns = 0;
    volatile unsigned char sink = 0;
    static uint16_t last[PE_TOK][PE_K];
    for (uint64_t end = *step + N_STEP; *step < end; ++*step)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            pe_begin(&in, *step, l, s->k, s->n_expert);
            for (uint32_t i = 0; i < s->n_tok; i++) {
                uint16_t ids[PE_K];
                pe_random_ids(rng, ids, s->k, s->n_expert);
                if (l && pe_random(rng, 2)) /* the same step of every expert keeps them different */
                    for (uint32_t j = 0; j < s->k; j++) ids[j] = (uint16_t)((last[i][j] + l) % s->n_expert);
                memcpy(last[i], ids, sizeof ids);
                pe_token(&in, 0, (int32_t)(*step * s->n_tok + i), (int32_t)pe_random(rng, 3000), ids);
            }
            const stk_event *event = pe_end(&in);
            for (size_t i = 0; i < COLD_BYTES; i += 64) sink ^= cold[i];
            const stk_lookahead ahead = {ops->wants_lookahead ? 1 : 0, s->n_tok, s->n_expert, scores};
            uint64_t start = bench_cpu_ns();
            if (ops->observe(p, event, &ahead) < 0 || ops->suggest(p, 1, list, 2 * s->k) < 0) exit(1);
            ns += bench_cpu_ns() - start;
        }
    (void)sink;
    return ns;
}

int main(void) {
    static const shape shapes[] = {
        {"gate", "depth=1", 1, 128, 8},        {"popularity", "depth=1", 1, 128, 8}, {"previous", "depth=1", 1, 128, 8},
        {"history", "depth=1", 1, 128, 8},     {"transition", "depth=1", 1, 128, 8}, {"crosslayer", "depth=1", 1, 128, 8},
        {"tokenid", "depth=1", 1, 128, 8},     {"matrices", "depth=1", 1, 128, 8},   {"path", "depth=1", 1, 128, 8},
        {"path", "depth=1,back=2", 1, 128, 8}, {"mix", "depth=1", 1, 128, 8},        {"mix", "depth=3", 1, 128, 8},
        {"mix", "depth=1", 1, 64, 6},          {"gate", "depth=1", 512, 128, 8},     {"mix", "depth=1", 512, 128, 8}};
    uint64_t rng = 1;
    for (size_t i = 0; i < STK_ARRAY_LEN(scores); i++) scores[i] = (float)pe_random(&rng, 1 << 20);
    printf("machine,commit,predictor,params,n_tok,n_expert,k,state_bytes,median_ns_an_event\n");
    for (size_t i = 0; i < STK_ARRAY_LEN(shapes); i++) {
        const shape *s = &shapes[i];
        const stk_predictor_ops *ops = stk_predictor_find(s->predictor);
        const stk_predictor_config config = {.n_layer = N_LAYER, .n_expert = s->n_expert, .k = s->k, .params = s->params};
        stk_predictor *p;
        uint64_t ns[N_RUN], step = 0;
        if (ops->open(&p, &config) < 0) {
            fprintf(stderr, "bench_predict: %s\n", stk_error_detail());
            return 1;
        }
        (void)run(ops, p, s, &step, &rng);
        for (uint32_t r = 0; r < N_RUN; r++) ns[r] = run(ops, p, s, &step, &rng);
        printf("%s,%s,%s,\"%s\",%u,%u,%u,%lld,%.0f\n", bench_machine(), STK_COMMIT, s->predictor, s->params, s->n_tok,
               s->n_expert, s->k, (long long)ops->save(p, NULL, 0), (double)bench_median(ns, N_RUN) / (N_STEP * N_LAYER));
        ops->close(p);
    }
    return 0;
}
