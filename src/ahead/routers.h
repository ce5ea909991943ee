/*
 * routers: copies of the layers' routers in int8, for looking ahead: what a later layer would choose is asked of today's hidden
 * state a token and layer ahead, so it must cost next to nothing, and it decides nothing but what is read ahead of its use.
 *
 * The norm that a layer applies before its router is folded into the copy: W'[e][i] = W[e][i] * norm[i]. All copies then read the
 * same row, x / rms(x), which is made and quantized once for every depth. A group of 32 weights of a row has a scale of its own
 * (Q8_0), so that the products are those of experts of this format; a row that is no multiple of 32 long stays in float.
 *
 * Who may call it: src/. Threads: immutable after open. Ownership: borrows nothing after open.
 */
#ifndef STK_ROUTERS_H
#define STK_ROUTERS_H

#include "src/model/dense.h"

typedef struct stk_routers {
    stk_map map;
    stk_matrix *layers; /* [n_layer] of W' */
    float *ones;        /* [n_embd] the norm of x / rms(x) */
} stk_routers;

/* The format of the copies. */
enum stk_type stk_routers_type(const stk_hparams *hp);
/* Bytes of all copies. */
uint64_t stk_routers_bytes(const stk_model *model);
/* Makes them of the weights that `dense` has loaded. Errors: STK_ENOMEM. */
int stk_routers_open(stk_routers *routers, const stk_model *model, const stk_dense *dense, const stk_cpu_ops *ops, stk_pool *pool,
                     bool lock) STK_CHECKED;
/* All zero, it has nothing to free. */
void stk_routers_close(stk_routers *routers);

#endif
