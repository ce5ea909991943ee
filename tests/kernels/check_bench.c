/* check_bench: times of the operations as CSV: the median of samples after a warm-up, one thread, weights in memory order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { N_SAMPLE = 15, MAX_TOK = 32, N_IN = 2048, HEAD_DIM = 128, N_POS = 1024 };
static const uint64_t MATRIX_BYTES = 64u << 20; /* more than a core's caches hold, so that one token streams from memory */
static const uint64_t SAMPLE_NS = 2000 * 1000;

typedef struct bench {
    const stk_cpu_ops *ops;
    void *weights;
    float *x[MAX_TOK], *out[MAX_TOK];
    void *act[MAX_TOK];
    stk_matmul matmul;
    stk_matmul_fn product;
    stk_attend attend;
    bool in_cache;
} bench;

static void *aligned(uint64_t bytes) {
    void *p = aligned_alloc(64, stk_align_up(bytes, 64));
    if (!p) {
        fprintf(stderr, "checkkernels: no memory for the benchmark\n");
        exit(2);
    }
    memset(p, 0, bytes);
    return p;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median ns of a call. */
static double time_call(bench *b, void (*call)(bench *)) {
    double ns[N_SAMPLE];
    for (int s = -2; s < N_SAMPLE; s++) {
        uint64_t begin = stk_now_ns(), end;
        uint32_t n = 0;
        do {
            call(b);
            n++;
            end = stk_now_ns();
        } while (end - begin < SAMPLE_NS);
        if (s >= 0) ns[s] = (double)(end - begin) / n;
    }
    qsort(ns, N_SAMPLE, sizeof *ns, compare);
    return ns[N_SAMPLE / 2];
}

static void print_row(const bench *b, const char *op, const char *shape, uint32_t n_tok, double bytes, double n_op, double ns) {
    printf("%s,%s,%s,%u,%d,%.0f,%.2f,%.2f\n", b->ops->name, op, shape, n_tok, N_SAMPLE, ns, bytes / ns, n_op / ns);
}

/* A stretch of rows that fits a cache, or the whole matrix. */
static void call_matmul(bench *b) { b->product(&b->matmul); }

static void bench_matmul(bench *b, enum stk_type type, const char *op) {
    static const uint32_t n_toks[] = {1, 2, 4, 8, 32};
    const void *xs[MAX_TOK];
    bool quantized = stk_type_is_quantized(type);
    for (uint32_t t = 0; t < MAX_TOK; t++) {
        check_fill_activations(0, b->x[t], N_IN);
        if (quantized) stk_cpu_ops_ref.quantize(b->x[t], N_IN, b->act[t]);
        xs[t] = quantized ? b->act[t] : b->x[t];
    }
    uint64_t stripe_bytes = stk_stripe_bytes(type, N_IN), row_bytes = 0;
    if (stk_type_row_bytes(type, N_IN, &row_bytes) < 0) exit(2);
    uint8_t *rows = aligned(STK_STRIPE * row_bytes), *scratch = aligned(stk_layout_scratch_bytes(type, N_IN));
    check_fill_rows(type, 0, STK_STRIPE, N_IN, rows);
    uint32_t n_stripe = (uint32_t)(MATRIX_BYTES / stripe_bytes);
    for (uint32_t s = 0; s < n_stripe; s++)
        stk_layout_pack(type, STK_STRIPE, N_IN, rows, (uint8_t *)b->weights + s * stripe_bytes, scratch);
    b->product = stk_cpu_matmul(b->ops, type);
    for (uint32_t i = 0; i < 2 * STK_ARRAY_LEN(n_toks); i++) {
        bool small = i % 2;
        uint32_t n_tok = n_toks[i / 2],
                 n = small ? STK_MAX(1u, (uint32_t)((256u << 10) / stripe_bytes)) : n_stripe / (n_tok > 4 ? 16 : 1);
        b->matmul = (stk_matmul){b->weights, N_IN, n * STK_STRIPE, 0, n, n_tok, xs, b->out, NULL};
        double ns = time_call(b, call_matmul);
        print_row(b, op, small ? "in cache" : "in memory", n_tok, (double)(n * STK_STRIPE * row_bytes),
                  2.0 * N_IN * n * STK_STRIPE * n_tok, ns);
    }
    free(scratch);
    free(rows);
}

static void call_quantize(bench *b) { b->ops->quantize(b->x[0], N_IN, b->act[0]); }
static void call_rmsnorm(bench *b) { b->ops->rmsnorm(b->x[0], b->x[1], N_IN, 1e-6f, b->x[2]); }
static void call_silu_mul(bench *b) { b->ops->silu_mul(b->x[0], b->x[1], N_IN, b->x[2]); }
static void call_add(bench *b) { b->ops->add(b->x[3], b->x[1], N_IN); }
static void call_axpy(bench *b) { b->ops->axpy(b->x[3], 0.5f, b->x[1], N_IN); }
static void call_rope(bench *b) { b->ops->rope(b->x[0], HEAD_DIM, b->x[1], true); }
static void call_softmax(bench *b) { b->ops->softmax(b->x[0], 128, b->x[2]); }
static void call_f32_to_f16(bench *b) { b->ops->f32_to_f16(b->x[0], N_IN, (uint16_t *)b->x[2]); }
static void call_attend(bench *b) { b->ops->attend(&b->attend); }

static void bench_vectors(bench *b) {
    static const struct {
        const char *op;
        void (*call)(bench *);
        uint32_t n, bytes; /* elements, bytes read and written for each */
    } cases[] = {{"quantize", call_quantize, N_IN, 5},  {"rmsnorm", call_rmsnorm, N_IN, 12},
                 {"silu_mul", call_silu_mul, N_IN, 12}, {"add", call_add, N_IN, 12},
                 {"axpy", call_axpy, N_IN, 12},         {"rope", call_rope, HEAD_DIM, 12},
                 {"softmax", call_softmax, 128, 8},     {"f32_to_f16", call_f32_to_f16, N_IN, 6}};
    for (uint32_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        for (uint32_t t = 0; t < 4; t++) check_fill_activations(0, b->x[t], N_IN);
        double ns = time_call(b, cases[i].call);
        char shape[32];
        snprintf(shape, sizeof shape, "n %u", cases[i].n);
        print_row(b, cases[i].op, shape, 1, (double)cases[i].n * cases[i].bytes, cases[i].n, ns);
    }
}

static void bench_attend(bench *b) {
    static const uint32_t n_qs[] = {1, 4, 8};
    const void *k[N_POS / 64], *v[N_POS / 64];
    const float *q[8];
    float *state[8];
    uint32_t n_pos[8];
    for (uint32_t kind = 0; kind < 2; kind++) {
        uint32_t tile_bytes = HEAD_DIM * 64 * (kind ? 2 : 4);
        memset(b->weights, 0, 2 * N_POS / 64 * tile_bytes); /* zeros: the time does not depend on the values */
        for (uint32_t page = 0; page < N_POS / 64; page++) {
            k[page] = (uint8_t *)b->weights + 2 * page * tile_bytes;
            v[page] = (uint8_t *)b->weights + (2 * page + 1) * tile_bytes;
        }
        for (uint32_t i = 0; i < 8; i++) q[i] = b->x[i], state[i] = b->out[i], n_pos[i] = N_POS;
        for (uint32_t i = 0; i < STK_ARRAY_LEN(n_qs); i++) {
            b->attend = (stk_attend){n_qs[i], HEAD_DIM, q, n_pos, kind, kind, k, v, 0.1f, state};
            double ns = time_call(b, call_attend);
            print_row(b, "attend", kind ? "f16 1024x128" : "f32 1024x128", n_qs[i], 2.0 * N_POS / 64 * tile_bytes,
                      4.0 * N_POS * HEAD_DIM * n_qs[i], ns);
        }
    }
}

int check_bench(const char *table) {
    static const struct {
        enum stk_type type;
        const char *op;
    } products[] = {{STK_TYPE_F32, "matmul_f32"},   {STK_TYPE_F16, "matmul_f16"},   {STK_TYPE_BF16, "matmul_bf16"},
                    {STK_TYPE_Q8_0, "matmul_q8_0"}, {STK_TYPE_Q4_0, "matmul_q4_0"}, {STK_TYPE_Q4_K, "matmul_q4_k"},
                    {STK_TYPE_Q5_K, "matmul_q5_k"}, {STK_TYPE_Q6_K, "matmul_q6_k"}};
    const char *names[8];
    uint32_t n = stk_cpu_ops_list(names);
    bench b = {.weights = aligned(MATRIX_BYTES)};
    for (uint32_t t = 0; t < MAX_TOK; t++) {
        b.x[t] = aligned(N_IN * 4);
        b.act[t] = aligned(stk_act_layout_of(N_IN).bytes);
        b.out[t] = aligned(MATRIX_BYTES / N_IN * 8);
    }
    puts("table,op,shape,tokens,samples,median_ns,GB/s,GOP/s");
    for (uint32_t i = 0; i < n; i++) {
        if (table ? strcmp(table, names[i]) != 0 : n > 1 && strcmp("ref", names[i]) == 0) continue;
        b.ops = stk_cpu_ops_get(names[i]);
        for (uint32_t p = 0; p < STK_ARRAY_LEN(products); p++) bench_matmul(&b, products[p].type, products[p].op);
        bench_vectors(&b);
        bench_attend(&b);
    }
    for (uint32_t t = 0; t < MAX_TOK; t++) free(b.x[t]), free(b.act[t]), free(b.out[t]);
    free(b.weights);
    return 0;
}
