/*
 * bench_trace: what recording costs: ns of CPU time and bytes an event to write, ns to read back. CSV on stdout; the median of 7
 * runs after one to warm up, on a file in the folder given, else in $TMPDIR. The scores are softmax probabilities of random
 * logits, so that their low bits are as incompressible as a model's.
 */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "tests/temp.h"
#include "traces/trace.h"

enum { N_LAYER = 48, MAX_EXPERT = 256, MAX_TOK = 512, K = 8, N_TOP = 16, N_RUN = 7 };

typedef struct shape {
    uint32_t n_tok, n_expert, n_step;
    bool renormalise;
} shape;

static uint16_t ids[N_LAYER][MAX_TOK * K], top_ids[N_LAYER][MAX_TOK * N_TOP];
static float weights[N_LAYER][MAX_TOK * K], top_scores[N_LAYER][MAX_TOK * N_TOP];
static int32_t seq[MAX_TOK], pos[MAX_TOK], token[MAX_TOK];
static uint8_t logits[MAX_TOK];
static uint32_t layer_class[N_LAYER];
static uint64_t rng = 1;

static float uniform(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (float)(rng >> 40) * 0x1p-24f;
}

/* One token's router: the best N_TOP of a softmax, and the weights of the first K. */
static void route(const shape *s, uint16_t *id, float *weight, uint16_t *top_id, float *top_score) {
    float p[MAX_EXPERT], all = 0.0f, sum = 0.0f;
    for (uint32_t e = 0; e < s->n_expert; e++) all += p[e] = expf(3.0f * (uniform() + uniform() + uniform() - 1.5f));
    for (uint32_t i = 0; i < N_TOP; i++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < s->n_expert; e++)
            if (p[e] > p[best]) best = e;
        top_id[i] = (uint16_t)best;
        top_score[i] = p[best] / all;
        p[best] = -1.0f;
    }
    for (uint32_t i = 0; i < K; i++) sum += top_score[i];
    for (uint32_t i = 0; i < K; i++) {
        id[i] = top_id[i];
        weight[i] = s->renormalise ? top_score[i] / sum : top_score[i] * 1.7f;
    }
}

static void make_layers(const shape *s) {
    for (uint32_t l = 0; l < N_LAYER; l++)
        for (uint32_t t = 0; t < s->n_tok; t++)
            route(s, ids[l] + t * K, weights[l] + t * K, top_ids[l] + t * N_TOP, top_scores[l] + t * N_TOP);
}

static void must(int rc) {
    if (rc >= 0) return;
    fprintf(stderr, "bench_trace: %s\n", stk_error_detail());
    exit(1);
}

/* The time of writing alone: between steps the scores change, off the clock. */
static uint64_t write_run(const shape *s, const char *path) {
    const stk_trace_class class = {.slot_bytes = 3 << 20, .n_slot = 1000};
    const stk_trace_header header = {.n_layer = N_LAYER,
                                     .n_expert = s->n_expert,
                                     .k = K,
                                     .n_class = 1,
                                     .n_batch = MAX_TOK,
                                     .classes = &class,
                                     .layer_class = layer_class,
                                     .model_layer = layer_class,
                                     .model = "",
                                     .policy = "lru",
                                     .params = "",
                                     .io = ""};
    stk_trace_writer *w;
    uint64_t ns = 0;
    must(stk_trace_writer_open(&w, path, &header));
    for (uint32_t i = 0; i < s->n_step; i++) {
        for (uint32_t t = 0; t < s->n_tok; t++) {
            pos[t] = (int32_t)(i * s->n_tok + t);
            token[t] = (int32_t)(uniform() * 150000.0f);
        }
        make_layers(s);
        uint64_t start = bench_cpu_ns();
        stk_trace_record r = {.kind = STK_TRACE_STEP,
                              .step = {.step = i, .n_tok = s->n_tok, .seq = seq, .pos = pos, .token = token, .logits = logits}};
        must(stk_trace_write(w, &r));
        for (uint32_t l = 0; l < N_LAYER; l++) {
            r = (stk_trace_record){.kind = STK_TRACE_EVENT,
                                   .event = {.step = i,
                                             .layer = l,
                                             .n_tok = s->n_tok,
                                             .k = K,
                                             .n_top = N_TOP,
                                             .n_expert = s->n_expert,
                                             .ids = ids[l],
                                             .weights = weights[l],
                                             .top_ids = top_ids[l],
                                             .top_scores = top_scores[l]}};
            must(stk_trace_write(w, &r));
        }
        ns += bench_cpu_ns() - start;
    }
    must(stk_trace_writer_close(&w));
    return ns;
}

static uint64_t read_run(const char *path) {
    uint64_t start = bench_cpu_ns();
    stk_trace_reader *r;
    stk_trace_record record;
    int rc;
    must(stk_trace_reader_open(&r, path));
    while ((rc = stk_trace_read(r, &record)) == 1) {
    }
    must(rc);
    stk_trace_reader_close(&r);
    return bench_cpu_ns() - start;
}

int main(int argc, char **argv) {
    static const shape shapes[] = {{1, 128, 200, true}, {1, 128, 200, false}, {1, 256, 200, true}, {512, 128, 2, true}};
    char path[256];
    snprintf(path, sizeof path, "%s/stk_bench_trace.%d", argc > 1 ? argv[1] : temp_dir(), (int)getpid());
    puts("machine,commit,n_tok,n_expert,k,n_top,weights,write_ns_an_event,read_ns_an_event,bytes_an_event");
    for (size_t i = 0; i < STK_ARRAY_LEN(shapes); i++) {
        const shape *s = &shapes[i];
        uint64_t write_ns[N_RUN], read_ns[N_RUN];
        struct stat st;
        (void)write_run(s, path);
        for (uint32_t run = 0; run < N_RUN; run++) {
            write_ns[run] = write_run(s, path);
            read_ns[run] = read_run(path);
        }
        must(stat(path, &st));
        double n_event = (double)s->n_step * N_LAYER;
        printf("%s,%s,%u,%u,%d,%d,%s,%.0f,%.0f,%.1f\n", bench_machine(), STK_COMMIT, s->n_tok, s->n_expert, K, N_TOP,
               s->renormalise ? "normed" : "stored", (double)bench_median(write_ns, N_RUN) / n_event,
               (double)bench_median(read_ns, N_RUN) / n_event, (double)st.st_size / n_event);
    }
    unlink(path);
    return 0;
}
