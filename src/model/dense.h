/*
 * dense: the weights that every token uses: attention, norms, routers, embedding and output; loaded once into one arena, packed.
 *
 * Who may call it: src/. Threads: immutable after load. Ownership: borrows the model during load alone.
 */
#ifndef STK_DENSE_H
#define STK_DENSE_H

#include "cpu/cpu.h"
#include "cpu/pool.h"
#include "io/io.h"
#include "model.h"
#include "src/mem.h"

/* A packed matrix with its product. */
typedef struct stk_matrix {
    enum stk_type type;
    uint32_t n_rows, n_in; /* n_rows 0: absent */
    bool quantized;        /* its product reads quantized activations */
    const void *packed;
    stk_matmul_fn product;
} stk_matrix;

typedef struct stk_dense_layer {
    stk_matrix q, k, v, o, router;
    const float *attn_norm, *ffn_norm;              /* [n_embd] */
    const float *q_norm, *k_norm;                   /* [head_dim] or NULL */
    const float *q_bias, *k_bias, *v_bias, *o_bias; /* or NULL */
} stk_dense_layer;

typedef struct stk_dense {
    stk_map map;
    stk_matrix token_embd, output;
    const float *output_norm; /* [n_embd] */
    const float *rope_freqs;  /* [rope_dim / 2] or NULL */
    stk_dense_layer *layers;  /* [n_layer] */
} stk_dense;

/* Bytes of the arena. */
uint64_t stk_dense_bytes(const stk_model *model);

/* Reads and packs everything. `io` has the model's files. Errors: STK_ENOMEM, STK_EIO, STK_ECANCELED (progress),
 * STK_EUNSUPPORTED. */
int stk_dense_load(stk_dense *dense, const stk_model *model, const stk_cpu_ops *ops, stk_pool *pool, stk_io *io, bool lock,
                   stk_progress_fn progress, void *progress_user) STK_CHECKED;
void stk_dense_close(stk_dense *dense);

#endif
