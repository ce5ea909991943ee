/*
 * cuda: the GPU's kernels, memory, copies and streams behind one table of C functions. Two tables can be in a build: "cuda", made
 * by nvcc, for real devices, and "emu", the same sources made by the host's compiler over cuda/emu/, for machines without one.
 *
 * Kernels return the bits of cpu/ref.c for any number of rows, tokens and experts in a call; weights lie as experts/layout.h
 * says, the KV cache as src/engine/kv.h does, quantized activations as stk_act_layout does. Attention is the same arithmetic,
 * too.
 *
 * Who may call it: src/. Threads: any, one at a time for a stream; a thread calls `bind` before anything else. Pointers in the
 * arguments of kernels are device memory, and so is everything they point to; the structs themselves are copied by the call.
 * Calls that take a stream queue work and return; none allocates, waits or uses the default stream. Work that fails shows at a
 * later call, STK_EIO; after that `lost` tells whether the device can still be used.
 */
#ifndef STK_CUDA_H
#define STK_CUDA_H

#include "experts/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct stk_cuda_stream stk_cuda_stream;
typedef struct stk_cuda_event stk_cuda_event;

/* Rows of f32 and, beside them, their quantized form; either may be NULL where a kernel says so. */
typedef struct stk_cuda_rows {
    float *f32;
    uint8_t *act;        /* rows of stk_act_layout, 64-byte aligned */
    uint32_t f32_stride; /* elements */
    uint32_t act_stride; /* bytes, a multiple of 64 */
} stk_cuda_rows;

/* x += bias + y (each if not NULL, in this order), then out = rmsnorm(x). out.f32, out.act or both. */
typedef struct stk_cuda_norm {
    float *x;          /* [n_row, n], changed only where something is added */
    const float *y;    /* [n_row, n] or NULL */
    const float *bias; /* [n] or NULL: y += bias first */
    const float *w;    /* [n] */
    stk_cuda_rows out; /* [n_row, n] */
    uint32_t n_row, n;
    float eps;
} stk_cuda_norm;

/* out = silu(gate) * up; out.f32, out.act or both. */
typedef struct stk_cuda_silu {
    const float *gate, *up; /* [n_row, n] */
    stk_cuda_rows out;      /* [n_row, n] */
    uint32_t n_row, n;
} stk_cuda_silu;

/* Quantizes rows.f32 into rows.act. n is a multiple of 32. */
typedef struct stk_cuda_quantize {
    stk_cuda_rows rows; /* [n_row, n] */
    uint32_t n_row, n;
} stk_cuda_quantize;

/* out [t, n_in] = row token[t] of a packed matrix, dequantized. */
typedef struct stk_cuda_embed {
    enum stk_type type;
    const void *weights;
    uint32_t n_in, n_tok;
    const int32_t *token; /* [n_tok] */
    float *out;
} stk_cuda_embed;

/*
 * The experts of a launch and the tokens of each: those of expert i are pairs[first[i]] .. pairs[first[i + 1] - 1], each token *
 * k
 * + rank. max_tok is at least the greatest count, and chooses the kernel, not the bits.
 */
typedef struct stk_cuda_group {
    const void *const *slot; /* [n_expert] */
    const uint32_t *first;   /* [n_expert + 1] */
    const uint32_t *pairs;
    uint32_t n_expert, max_tok, k;
} stk_cuda_group;

/*
 * out[t] = W x[t]: of one matrix for n_tok rows, or, where group.n_expert is not 0, of each expert's matrix at slot + slot_offset
 * for its pairs: x row pair / x_per (the token, or the pair itself where x_per is 1), out row pair. Float types read x.f32, the
 * others x.act.
 */
typedef struct stk_cuda_product {
    enum stk_type type;
    const void *weights;
    uint64_t slot_offset;
    uint32_t n_in, n_rows, n_tok;
    uint32_t x_per;
    stk_cuda_rows x;
    float *out;
    uint32_t out_stride; /* elements */
    stk_cuda_group group;
} stk_cuda_product;

/* hidden[pair] = silu(gate x) * up x for each expert's pairs, x row pair / k: one launch, for few tokens an expert (more are
 * quicker as two products and silu_mul). hidden.f32, hidden.act or both. STK_EUNSUPPORTED where gate and up differ in type. */
typedef struct stk_cuda_gate_up {
    enum stk_type gate_type, up_type;
    uint64_t gate_offset, up_offset; /* in the slot */
    uint32_t n_in, n_ff;
    stk_cuda_rows x, hidden;
    stk_cuda_group group;
} stk_cuda_gate_up;

/* The KV cache on the device: pages as in src/engine/kv.h. */
typedef struct stk_cuda_kv {
    uint8_t *pages;
    uint64_t page_bytes;
    uint64_t layer_offset;             /* of the layer's first head in a page */
    uint64_t k_tile_bytes, head_bytes; /* V lies behind K of the same head; K and V of one head */
    const uint32_t *table;             /* [n_seq, table_stride] page numbers */
    uint32_t table_stride;
    uint32_t n_head_kv, head_dim;
    bool k_f16, v_f16;
} stk_cuda_kv;

/* Bias, norm and rotation of the heads of q and k in place; then k and v go into the cache at (seq, pos). */
typedef struct stk_cuda_rotate {
    float *q, *k, *v;             /* [n_tok, heads * head_dim] */
    const float *q_bias, *k_bias, /* NULL: none */
        *v_bias;
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    const float *table;           /* [n_ctx, n_rot] pairs of cos and sin */
    const uint32_t *seq, *pos;    /* [n_tok] */
    uint32_t n_tok, n_head, n_rot;
    float eps;
    bool neox;
    stk_cuda_kv kv;
} stk_cuda_rotate;

/* out[t] = attention of every head of token t over the positions 0 .. pos[t] of its sequence. */
typedef struct stk_cuda_attend {
    const float *q;    /* [n_tok, n_head * head_dim] */
    stk_cuda_rows out; /* [n_tok, n_head * head_dim]: f32; act, too, if not NULL */
    const uint32_t *seq, *pos;
    uint32_t n_tok, n_head;
    uint32_t max_pos; /* at least the greatest pos */
    float scale;
    float *state; /* scratch, stk_cuda_attend_bytes() */
    stk_cuda_kv kv;
} stk_cuda_attend;
static inline uint64_t stk_cuda_attend_bytes(uint32_t n_tok, uint32_t n_head, uint32_t head_dim, uint32_t max_pos) {
    return (uint64_t)n_tok * n_head * (max_pos / 1024u + 1u) * (2u + head_dim) * sizeof(float);
}

/* Softmax and top-k of the router's scores, as stk_router_choose does it. */
typedef struct stk_cuda_route {
    const float *scores; /* [n_tok, n_expert] */
    uint32_t n_tok, n_expert, k, n_top;
    bool renormalise;
    float scale;
    uint16_t *ids, *top_ids; /* [n_tok, k], [n_tok, n_top] */
    float *weights, *top_scores;
} stk_cuda_route;

/* x[t] += sum over ranks of weights[t, r] * out[row[t * k + r]], ranks ascending. */
typedef struct stk_cuda_combine {
    float *x;             /* [n_tok, n] */
    const float *out;     /* [rows, n] */
    const float *weights; /* [n_tok, k] */
    uint32_t n_tok, n, k;
    const uint32_t *row; /* [n_tok * k] of out; NULL: row i is i */
} stk_cuda_combine;

typedef struct stk_cuda_info {
    char name[128];
    uint32_t major, minor, n_sm;
    uint64_t total_bytes;
} stk_cuda_info;

typedef struct stk_cuda_ops {
    const char *name; /* "cuda", "emu" */

    /* Devices that can be used; 0 without a driver or a device, which is no error. */
    int (*count)(uint32_t *n);
    int (*info)(uint32_t device, stk_cuda_info *info);
    /* Makes `device` the calling thread's. */
    int (*bind)(uint32_t device);
    int (*mem_info)(uint64_t *free_bytes, uint64_t *total_bytes);
    /* Whether an error has made the device unusable for this process. */
    bool (*lost)(void);

    /* Device and pinned memory, 256-byte aligned; STK_ENOMEM names the bytes. free waits for all work and takes NULL. */
    int (*malloc)(void **out, uint64_t bytes, const char *what);
    void (*free)(void *p);
    int (*host_malloc)(void **out, uint64_t bytes, const char *what);
    void (*host_free)(void *p);
    /* Pins memory that is there. */
    int (*host_register)(void *p, uint64_t bytes);
    void (*host_unregister)(void *p);

    int (*stream_open)(stk_cuda_stream **out, bool urgent);
    void (*stream_close)(stk_cuda_stream *stream);
    int (*stream_sync)(stk_cuda_stream *stream);
    int (*stream_query)(stk_cuda_stream *stream); /* 1: done, 0: not yet */
    int (*stream_wait)(stk_cuda_stream *stream, stk_cuda_event *event);
    int (*event_open)(stk_cuda_event **out);
    void (*event_close)(stk_cuda_event *event);
    int (*event_record)(stk_cuda_event *event, stk_cuda_stream *stream);
    int (*event_sync)(stk_cuda_event *event);
    int (*event_query)(stk_cuda_event *event); /* 1: done, 0: not yet */
    /* fn(ctx) on a thread of the driver, when the stream gets there; it may call nothing of this table. */
    int (*host_call)(stk_cuda_stream *stream, void (*fn)(void *ctx), void *ctx);

    /* Host memory that is not pinned: to_device has read it when it returns, to_host has written it. */
    int (*to_device)(void *dst, const void *src, uint64_t bytes, stk_cuda_stream *stream);
    int (*to_host)(void *dst, const void *src, uint64_t bytes, stk_cuda_stream *stream);
    int (*on_device)(void *dst, const void *src, uint64_t bytes, stk_cuda_stream *stream);
    int (*fill)(void *dst, uint8_t byte, uint64_t bytes, stk_cuda_stream *stream);

    int (*rmsnorm)(const stk_cuda_norm *a, stk_cuda_stream *stream);
    int (*silu_mul)(const stk_cuda_silu *a, stk_cuda_stream *stream);
    int (*quantize)(const stk_cuda_quantize *a, stk_cuda_stream *stream);
    int (*embed)(const stk_cuda_embed *a, stk_cuda_stream *stream);
    int (*product)(const stk_cuda_product *a, stk_cuda_stream *stream);
    int (*gate_up)(const stk_cuda_gate_up *a, stk_cuda_stream *stream);
    int (*rotate)(const stk_cuda_rotate *a, stk_cuda_stream *stream);
    int (*attend)(const stk_cuda_attend *a, stk_cuda_stream *stream);
    int (*route)(const stk_cuda_route *a, stk_cuda_stream *stream);
    int (*combine)(const stk_cuda_combine *a, stk_cuda_stream *stream);
} stk_cuda_ops;

/* The table of that name, NULL where this build has none. NULL for the name: "cuda". */
const stk_cuda_ops *stk_cuda_ops_get(const char *name);

#ifdef __cplusplus
}
#endif
#endif
