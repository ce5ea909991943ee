/*
 * cpu: the kernels. One table of functions, chosen once by the CPU's flags; every table returns the same bits as `ref`, which is
 * the specification (ref.c), for every number of tokens in a call.
 *
 * Who may call it: src/, from any thread. Pure functions over borrowed memory; nothing allocates, blocks or keeps state. The
 * caller runs with the MXCSR of stk_mxcsr_set. Sizes are in elements unless a name says bytes. Weights and quantized activations
 * start 64-byte aligned; other vectors have the alignment of their elements alone. Nothing beyond the stated sizes is read or
 * written.
 */
#ifndef STK_CPU_H
#define STK_CPU_H

#include "experts/layout.h"

/* out[t][row] = W[row] . x[t] for the rows of stripes [stripe_begin, stripe_end), row < n_rows. */
typedef struct stk_matmul {
    const void *weights; /* packed matrix (layout.h), type of the kernel */
    uint32_t n_in, n_rows;
    uint32_t stripe_begin, stripe_end;
    uint32_t n_tok;
    const void *const *x; /* [n_tok] activation rows, f32 or quantized as the type asks */
    float *const *out;    /* [n_tok] rows of at least n_rows f32 */
    const void *next;     /* NULL, or memory that will be read next: the kernel may prefetch its head */
} stk_matmul;

/*
 * Attention of n_q query vectors, all of one KV head, over one span of at most 1,024 positions; each sees the first n_pos[i] of
 * them. The result of a query does not depend on the others. The arithmetic is in ref.c. What lies in a tile beyond the visible
 * positions has no influence. Tiles start 64-byte aligned.
 */
typedef struct stk_attend {
    uint32_t n_q, head_dim; /* head_dim is a multiple of 8, at most 512 */
    const float *const *q;  /* [n_q] -> [head_dim] */
    const uint32_t *n_pos;  /* [n_q] visible positions of this span, 1..1024 */
    bool k_f16, v_f16;      /* else f32 */
    const void *const *k;   /* [pages] K tiles [head_dim][64]: the position is the lane */
    const void *const *v;   /* [pages] V tiles [64][head_dim] */
    float scale;
    float *const *state; /* out, [n_q] -> [2 + head_dim]: max, sum, unnormalised output */
} stk_attend;

typedef struct stk_cpu_ops {
    const char *name; /* "ref", "avx2", "avxvnni", "avx512", "amx" */

    /* x [n] f32 -> the quantized form above. n is a multiple of 32. */
    void (*quantize)(const float *x, uint32_t n, void *act);
    /* As quantize for groups [g0, g1) of a row of n alone, so that the threads that made a row can quantize their own part. */
    void (*quantize_groups)(const float *x, uint32_t n, uint32_t g0, uint32_t g1, void *act);

    void (*matmul_f32)(const stk_matmul *m);
    void (*matmul_f16)(const stk_matmul *m);
    void (*matmul_bf16)(const stk_matmul *m);
    void (*matmul_q8_0)(const stk_matmul *m);
    void (*matmul_q4_0)(const stk_matmul *m);
    void (*matmul_q4_k)(const stk_matmul *m);
    void (*matmul_q5_k)(const stk_matmul *m);
    void (*matmul_q6_k)(const stk_matmul *m);

    /* out = w * x / sqrt(mean(x^2) + eps), all [n]. out may be x. */
    void (*rmsnorm)(const float *x, const float *w, uint32_t n, float eps, float *out);
    /* out[i] = silu(gate[i]) * up[i]. out may be gate. */
    void (*silu_mul)(const float *gate, const float *up, uint32_t n, float *out);
    /* x[i] += y[i]. */
    void (*add)(float *x, const float *y, uint32_t n);
    /* acc[i] = fma(w, y[i], acc[i]). */
    void (*axpy)(float *acc, float w, const float *y, uint32_t n);
    /* In place on one head of `head_dim`; rotates the first n_rot; table [n_rot/2][cos, sin]. neox: pairs (i, i + n_rot/2), else
     * (2i, 2i+1). */
    void (*rope)(float *x, uint32_t n_rot, const float *table, bool neox);
    /* p[i] = exp(x[i] - max x) / sum; the order of the sum is in ref.c. n <= 4,096. */
    void (*softmax)(const float *x, uint32_t n, float *p);
    /* Half to even, saturated at +-65504, NaN stays NaN. */
    void (*f32_to_f16)(const float *x, uint32_t n, uint16_t *out);
    void (*attend)(const stk_attend *a);
} stk_cpu_ops;

/* The table for a name, or NULL when there is none or this CPU lacks it. NULL or "": the best of this CPU. */
const stk_cpu_ops *stk_cpu_ops_get(const char *name);
/* The best table of this CPU that is no better than the one of that name; NULL when no table has the name. */
const stk_cpu_ops *stk_cpu_ops_at_most(const char *name);
/* Names from plainest to best that this CPU runs; returns their number. */
uint32_t stk_cpu_ops_list(const char *names[8]);

/* The product of a weight type; NULL for a type without a kernel. */
typedef void (*stk_matmul_fn)(const stk_matmul *m);
stk_matmul_fn stk_cpu_matmul(const stk_cpu_ops *ops, enum stk_type type);

#endif
