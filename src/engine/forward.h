/*
 * forward: the live stage and the live world: what a layer computes on the CPU, in the order of step.h, and the CPU queue of the
 * executor.
 *
 * A step's tokens are rows of buffers sized for n_batch at open. Each stage of a layer is a phase of a job of the pool; which
 * worker computes a row never changes its bits (cpu/ref.c). The k outputs of a token's experts are kept apart and combined in
 * rank order.
 *
 * Who may call it: engine.c. Threads: one owner, the pool's workers inside.
 */
#ifndef STK_FORWARD_H
#define STK_FORWARD_H

#include "cpu/fast.h"
#include "kv.h"
#include "router.h"
#include "src/ahead/prefetch.h"
#include "src/ahead/routers.h"
#include "src/device/gpu.h"
#include "src/model/dense.h"
#include "stages.h"
#include "step.h"
#include "store.h"

enum {
    STK_TILE = 32,        /* tokens that one product call takes at a time */
    STK_EXPERT_ROWS = 64, /* rows of gate and up that a worker computes at a time: whole activation groups */
    STK_QUERY_TILE = 64,  /* query vectors of one attention task */
};
#define STK_ON_DEVICE UINT32_MAX

/* A set of f32 rows and, beside it, its quantized form; what the products of a layer read. */
typedef struct stk_rows {
    float *f32;
    uint16_t *bf16;                     /* [rows, n] BF16 for stk_fast; NULL without it */
    uint8_t *act;                       /* NULL when no product wants it */
    uint32_t n, f32_stride, act_stride; /* elements, bytes */
} stk_rows;

/* Consecutive tokens of one sequence that attend together. */
typedef struct stk_block {
    uint32_t first, n, seq;
} stk_block;

/* What one worker needs for itself. */
typedef struct stk_worker {
    float *gate, *up;      /* [STK_TILE, STK_EXPERT_ROWS] */
    void *scratch;         /* of packing */
    uint16_t *half;        /* a head */
    float *state, *merged; /* [STK_QUERY_TILE, 2 + value_dim] */
    const void *x[STK_QUERY_TILE];
    float *out[STK_QUERY_TILE];
    const float *q[STK_QUERY_TILE];
    uint32_t n_pos[STK_QUERY_TILE];
    uint8_t *taken; /* [n_expert] */
} stk_worker;

typedef struct stk_forward_config {
    const stk_model *model;
    const stk_cpu_ops *ops;
    stk_pool *pool;
    stk_kv *kv;
    stk_dense *dense;
    const stk_routers *routers; /* all zero where no predictor looks ahead */
    stk_store *store;
    stk_fast *fast; /* NULL: products are exact */
    uint32_t n_batch, n_ctx, n_logits;
} stk_forward_config;

typedef struct stk_forward {
    stk_forward_config c;
    stk_map map; /* all buffers */
    uint32_t n_top;
    uint32_t queries; /* query heads of a KV head */

    /* The step. */
    const stk_trace_step *step;
    stk_block *blocks; /* [n_batch] */
    uint32_t n_block;
    uint32_t *logit_row; /* [n_batch] row of logits, or UINT32_MAX */
    uint32_t n_logit_row;

    float *x;            /* [n_batch, n_embd] residual stream */
    stk_rows norm;       /* [n_batch, n_embd] */
    float *q, *k, *v;    /* [n_batch, rows of each] */
    stk_rows attn;       /* [n_batch, n_head * value_dim] */
    float *proj;         /* [n_batch, n_embd] */
    float *scores;       /* [n_batch, n_expert] */
    stk_rows ahead;      /* [n_tok, n_embd] x / rms(x), for the routers of all layers ahead */
    float *ahead_scores; /* [n_ahead, n_tok, n_expert] */
    stk_rows hidden;     /* [n_batch * k, n_ff_expert] */
    float *expert_out;   /* [n_batch * k, n_embd] */
    uint32_t *out_row;   /* [n_batch * k] row of expert_out of each pair, or STK_ON_DEVICE: not here */
    uint32_t n_out_row;  /* rows of expert_out that are used */
    float *logits;       /* [n_logits, n_vocab] */
    float *final_hidden; /* [n_logits, n_embd] */
    float *rope;         /* [n_ctx, rope_dim / 2, 2] */
    float *split_state;  /* [split tasks, spans, queries, 2 + value_dim] */
    uint32_t n_split_task, n_span;
    stk_worker *workers; /* [n_worker] */
    stk_routing routing;
    uint16_t *all_ids; /* [n_layer, n_batch, k] of the last step */
    float *all_weights;

    /* The layer and batch of experts that the workers are on. */
    uint32_t layer;
    const stk_task *tasks;
    uint32_t n_task;
    uint32_t n_share; /* shares of the packing of what has landed */
    uint32_t n_ahead; /* layers ahead whose routers are asked */
    int poll_rc;      /* first failure of a poll inside a job */

    const uint16_t *forced;       /* [n_layer, k] or NULL: routes that replace the router's */
    const uint8_t *forced_layers; /* [n_layer] */

    stk_prefetch *prefetch; /* NULL: nothing is read ahead */
    stk_gpu *gpu;           /* NULL: the CPU computes everything */
    uint64_t arrive_ns;     /* packing */
    stk_stages stages;
    stk_cost *cost; /* learns what experts take; may be NULL */
} stk_forward;

/* Whether the kernels can compute a model of these sizes (limits in cpu/cpu.h): STK_EUNSUPPORTED names what they cannot. */
int stk_forward_check(const stk_hparams *hp) STK_CHECKED;
/* Bytes of all buffers for this model and these limits. */
uint64_t stk_forward_bytes(const stk_forward_config *config, uint32_t n_worker);
int stk_forward_open(stk_forward **out, const stk_forward_config *config, bool lock) STK_CHECKED;
void stk_forward_close(stk_forward **f);

extern const stk_stage_ops stk_forward_stage; /* stage: stk_forward */
extern const stk_world_ops stk_forward_world; /* world: stk_forward */

/* Parts of the stage, one file each. */
void stk_forward_attention(stk_forward *f);             /* forward_attention.c: norm .. router scores of f->layer */
int stk_forward_experts(stk_forward *f);                /* forward_experts.c: f->tasks of f->layer */
void stk_forward_force(stk_forward *f, uint32_t token); /* the forced route of f->layer, if there is one */
void stk_forward_arrive(stk_forward *f, bool idle);     /* forward_experts.c: packs what has landed (stk_store_pick) */

/* out[t][r] for stripes [s0, s1) of m and rows [0, n) of x; out row t at out + t * out_stride floats. Routers have no `bf16`. */
void stk_forward_product(const stk_forward *f, const stk_matrix *m, uint32_t s0, uint32_t s1, uint32_t n, const stk_rows *x,
                         float *out, uint32_t out_stride, stk_worker *w);
/* Whether the product of n rows of x with m is one of f->c.fast. */
bool stk_forward_is_fast(const stk_forward *f, const stk_matrix *m, uint32_t n, const stk_rows *x);
/* Row i of x as that product, or the exact one, reads it. */
const void *stk_forward_row(const stk_matrix *m, bool fast, const stk_rows *x, uint32_t i);
void stk_forward_multiply(const stk_forward *f, const stk_matrix *m, bool fast, const stk_matmul *product, const stk_worker *w);
/* Ends a phase of a job (stk_pool_finish), which is a stage or part of one. */
void stk_forward_finish(stk_forward *f, uint32_t phase, uint32_t worker, uint32_t n, uint32_t stage);
/* While stages are timed, what the step's dense part, the lookahead of one layer, or the batch of experts of one class, goes over
 * and computes (forward_count.c). */
void stk_forward_count_dense(stk_forward *f);
void stk_forward_count_ahead(stk_forward *f);
void stk_forward_count_experts(stk_forward *f, const stk_class *cls);

/* Quantizes row i of rows, and rounds it, if anything wants that. */
void stk_forward_quantize(const stk_forward *f, stk_rows *rows, uint32_t i);

#endif
