/*
 * calibrate_experts: computing and packing experts without a model, for every format: the work of forward_experts.c on matrices
 * whose every byte is the same. Speed does not depend on what weights say, as long as no number is subnormal.
 */
#include "calibrate.h"

#include <stdlib.h>
#include <string.h>

enum {
    N_EMBD = 2048, /* the shape of a Qwen3-30B-A3B expert */
    N_FF = 768,
    N_TASK = 8,
    MOST_TOK = 1 << (STK_COST_POINTS - 1),
    TILE = 32,
    ROWS = 64, /* rows of gate and up that are computed at a time */
    DOWN_STRIPES = 8,
    FILL = 0x3c, /* 1.06 as f16, 0.0115 as bf16 and f32: nothing computed from it is subnormal */
};
enum { PHASE_UP, PHASE_DOWN };

typedef struct worker {
    float *gate, *up; /* [TILE, ROWS] */
    void *scratch;
    const void *x[TILE];
    float *out[TILE];
} worker;

struct stk_calibrate_experts {
    stk_pool *pool;
    const stk_cpu_ops *ops;
    stk_map weights, buffers;
    uint64_t at;             /* of the next expert in weights */
    float *x, *hidden, *out; /* [MOST_TOK, N_EMBD], [N_TASK * MOST_TOK, N_FF], [N_TASK * MOST_TOK, N_EMBD] */
    uint8_t *x_act, *hidden_act;
    worker *workers;

    /* The event. */
    enum stk_type type;
    stk_matmul_fn product;
    const uint8_t *expert[N_TASK];
    uint32_t n_tok;
    void (*poll)(void *);
    void *user;
};

static uint64_t up_bytes(enum stk_type t) { return stk_matrix_bytes(t, N_FF, N_EMBD); }
static uint64_t expert_bytes(enum stk_type t) { return 2 * up_bytes(t) + stk_matrix_bytes(t, N_EMBD, N_FF); }

/* Rows as they lie in a file. */
static uint64_t payload_of(enum stk_type t) {
    const stk_type_info *info = stk_type_info_get(t);
    return UINT64_C(3) * N_EMBD * N_FF / info->block * info->block_bytes;
}

static uint64_t place(stk_calibrate_experts *b, uint8_t *base, uint32_t n_worker) {
    uint64_t bytes = 0;
    struct part {
        void **at;
        uint64_t bytes;
    } parts[] = {
        {(void **)&b->x, (uint64_t)MOST_TOK * N_EMBD * 4},
        {(void **)&b->hidden, (uint64_t)N_TASK * MOST_TOK * N_FF * 4},
        {(void **)&b->out, (uint64_t)N_TASK * MOST_TOK * N_EMBD * 4},
        {(void **)&b->x_act, (uint64_t)MOST_TOK * stk_act_layout_of(N_EMBD).bytes},
        {(void **)&b->hidden_act, (uint64_t)N_TASK * MOST_TOK * stk_act_layout_of(N_FF).bytes},
    };
    for (size_t i = 0; i < STK_ARRAY_LEN(parts); i++) {
        if (base) *parts[i].at = base + bytes;
        bytes += stk_align_up(parts[i].bytes, 64);
    }
    uint64_t scratch = stk_align_up(stk_layout_scratch_bytes(STK_TYPE_F32, N_EMBD), 64), tile = TILE * ROWS * sizeof(float);
    for (uint32_t i = 0; i < n_worker; i++) {
        if (base)
            b->workers[i] = (worker){(float *)(base + bytes), (float *)(base + bytes + tile), base + bytes + 2 * tile, {0}, {0}};
        bytes += 2 * tile + scratch;
    }
    return bytes;
}

int stk_calibrate_experts_open(stk_calibrate_experts **out, stk_pool *pool, const stk_cpu_ops *ops) {
    int rc;
    uint32_t n_worker = stk_pool_n_worker(pool);
    *out = NULL;
    stk_calibrate_experts *b = calloc(1, sizeof *b);
    if (!b) return stk_fail(STK_ENOMEM, "out of memory");
    b->pool = pool;
    b->ops = ops;
    b->workers = calloc(n_worker, sizeof *b->workers);
    if (!b->workers) {
        rc = stk_fail(STK_ENOMEM, "out of memory");
        goto out;
    }
    uint64_t buffers = place(b, NULL, n_worker), least = 2 * N_TASK * expert_bytes(STK_TYPE_F32);
    uint64_t free_bytes = stk_mem_available() / 2, want = UINT64_C(1) << 30;
    STK_TRYGOTO(stk_map_open(&b->weights, STK_MAX(STK_MIN(want, free_bytes), least), false, "experts to measure with"), rc, out);
    STK_TRYGOTO(stk_map_open(&b->buffers, buffers, false, "buffers to measure with"), rc, out);
    place(b, b->buffers.base, n_worker);
    memset(b->weights.base, FILL, b->weights.bytes);
    for (uint32_t i = 0; i < MOST_TOK * N_EMBD; i++) b->x[i] = (float)(i % 61) * 0.03f - 0.9f;
    for (uint32_t t = 0; t < MOST_TOK; t++)
        ops->quantize(b->x + (size_t)t * N_EMBD, N_EMBD, b->x_act + (size_t)t * stk_act_layout_of(N_EMBD).bytes);
out:
    if (rc < 0) stk_calibrate_experts_close(&b);
    *out = b;
    return rc;
}

void stk_calibrate_experts_close(stk_calibrate_experts **b) {
    if (!*b) return;
    stk_map_close(&(*b)->weights);
    stk_map_close(&(*b)->buffers);
    free((*b)->workers);
    free(*b);
    *b = NULL;
}

/* The next eight experts in memory, from the start again behind the last. */
static void choose(stk_calibrate_experts *b, enum stk_type type) {
    b->type = type;
    b->product = stk_cpu_matmul(b->ops, type);
    for (uint32_t i = 0; i < N_TASK; i++) {
        if (b->at + expert_bytes(type) > b->weights.bytes) b->at = 0;
        b->expert[i] = (const uint8_t *)b->weights.base + b->at;
        b->at += stk_align_up(expert_bytes(type), 4096);
    }
}

static void poll(stk_calibrate_experts *b, uint32_t w) {
    if (w == 0 && b->poll) b->poll(b->user);
}

static void rows_product(stk_calibrate_experts *b, const uint8_t *matrix, uint32_t row0, uint32_t t0, uint32_t n, float *out,
                         worker *w) {
    bool quantized = stk_type_is_quantized(b->type);
    for (uint32_t i = 0; i < n; i++) {
        w->x[i] = quantized ? (const void *)(b->x_act + (size_t)(t0 + i) * stk_act_layout_of(N_EMBD).bytes)
                            : b->x + (size_t)(t0 + i) * N_EMBD;
        w->out[i] = out + (size_t)i * ROWS;
    }
    b->product(&(stk_matmul){.weights = matrix + row0 / STK_STRIPE * stk_stripe_bytes(b->type, N_EMBD),
                             .n_in = N_EMBD,
                             .n_rows = ROWS,
                             .stripe_end = ROWS / STK_STRIPE,
                             .n_tok = n,
                             .x = w->x,
                             .out = w->out});
}

static void gate_up(stk_calibrate_experts *b, uint32_t task, uint32_t row0, worker *w) {
    uint32_t act_bytes = stk_act_layout_of(N_FF).bytes;
    for (uint32_t t0 = 0; t0 < b->n_tok; t0 += TILE) {
        uint32_t n = STK_MIN(b->n_tok - t0, (uint32_t)TILE);
        rows_product(b, b->expert[task], row0, t0, n, w->gate, w);
        rows_product(b, b->expert[task] + up_bytes(b->type), row0, t0, n, w->up, w);
        for (uint32_t i = 0; i < n; i++) {
            size_t row = (size_t)task * MOST_TOK + t0 + i;
            float *hidden = b->hidden + row * N_FF;
            b->ops->silu_mul(w->gate + (size_t)i * ROWS, w->up + (size_t)i * ROWS, ROWS, hidden + row0);
            if (stk_type_is_quantized(b->type))
                b->ops->quantize_groups(hidden, N_FF, row0 / STK_GROUP, (row0 + ROWS) / STK_GROUP,
                                        b->hidden_act + row * act_bytes);
        }
    }
}

static void down(stk_calibrate_experts *b, uint32_t task, uint32_t s0, worker *w) {
    uint32_t act_bytes = stk_act_layout_of(N_FF).bytes;
    for (uint32_t t0 = 0; t0 < b->n_tok; t0 += TILE) {
        uint32_t n = STK_MIN(b->n_tok - t0, (uint32_t)TILE);
        for (uint32_t i = 0; i < n; i++) {
            size_t row = (size_t)task * MOST_TOK + t0 + i;
            w->x[i] = stk_type_is_quantized(b->type) ? (const void *)(b->hidden_act + row * act_bytes) : b->hidden + row * N_FF;
            w->out[i] = b->out + row * N_EMBD;
        }
        b->product(&(stk_matmul){.weights = b->expert[task] + 2 * up_bytes(b->type),
                                 .n_in = N_FF,
                                 .n_rows = N_EMBD,
                                 .stripe_begin = s0,
                                 .stripe_end = s0 + DOWN_STRIPES,
                                 .n_tok = n,
                                 .x = w->x,
                                 .out = w->out});
    }
}

static void compute_job(void *ctx, uint32_t idx) {
    enum { UP_UNITS = N_FF / ROWS, DOWN_UNITS = N_EMBD / STK_STRIPE / DOWN_STRIPES };
    stk_calibrate_experts *b = ctx;
    worker *w = &b->workers[idx];
    for (uint32_t u; (u = stk_pool_take(b->pool, PHASE_UP, idx, N_TASK * UP_UNITS)) < N_TASK * UP_UNITS; poll(b, idx))
        gate_up(b, u % N_TASK, u / N_TASK * ROWS, w);
    stk_pool_finish(b->pool, PHASE_UP, idx, N_TASK * UP_UNITS);
    for (uint32_t u; (u = stk_pool_take(b->pool, PHASE_DOWN, idx, N_TASK * DOWN_UNITS)) < N_TASK * DOWN_UNITS; poll(b, idx))
        down(b, u % N_TASK, u / N_TASK * DOWN_STRIPES, w);
}

double stk_calibrate_experts_run(stk_calibrate_experts *b, enum stk_type type, uint32_t n_tok, void (*poll_fn)(void *),
                                 void *user, uint64_t *bytes) {
    choose(b, type);
    b->n_tok = STK_MIN(n_tok, (uint32_t)MOST_TOK);
    b->poll = poll_fn;
    b->user = user;
    *bytes = N_TASK * payload_of(type);
    uint64_t start = stk_now_ns();
    stk_pool_share(b->pool, compute_job, b, UINT32_MAX);
    return (double)(stk_now_ns() - start);
}

/* From one expert's memory into that of the one behind it: as much is read and written as in place. */
static void pack_job(void *ctx, uint32_t idx) {
    stk_calibrate_experts *b = ctx;
    for (uint32_t u; (u = stk_pool_take(b->pool, 0, idx, N_TASK / 2 * 3)) < N_TASK / 2 * 3;) {
        const uint8_t *from = b->expert[2 * (u / 3)];
        uint8_t *to = (uint8_t *)b->weights.base + (b->expert[2 * (u / 3) + 1] - (const uint8_t *)b->weights.base);
        uint64_t at = u % 3 * up_bytes(b->type);
        uint32_t n_in = u % 3 == 2 ? N_FF : N_EMBD;
        stk_layout_pack(b->type, N_EMBD * N_FF / n_in, n_in, from + at, to + at, b->workers[idx].scratch);
    }
}

double stk_calibrate_experts_pack(stk_calibrate_experts *b, enum stk_type type, uint64_t *bytes) {
    choose(b, type);
    *bytes = N_TASK / 2 * payload_of(type);
    uint64_t start = stk_now_ns();
    stk_pool_share(b->pool, pack_job, b, UINT32_MAX);
    return (double)(stk_now_ns() - start);
}
