/*
 * stages: where the time of a step goes. A clock that worker 0 reads at the end of each stage: what passed since the last mark
 * belongs to the stage that ends, of the layer that the step is on. So the stages of a step add up to the step.
 *
 * Who may call it: src/forward*.c mark; engine.c turns it on and reads it. Threads: worker 0, and the owner between steps; the
 * other workers only pass by. Off, a mark is a test of a flag and reads no clock. Ownership: memory is the caller's, placed once.
 *
 * Stages, names and spans are those of the public API (stoker.h).
 */
#ifndef STK_STAGES_H
#define STK_STAGES_H

#include "src/base.h"

typedef struct stk_stages {
    bool on;
    uint32_t n_layer;
    uint32_t row;                 /* layer that the step is on; n_layer: none */
    uint64_t begin_ns, last_ns;   /* of the step; of the last mark */
    uint64_t *ns;                 /* [n_layer + 1, STK_N_STAGE]; row n_layer: outside of layers */
    stk_span *spans;              /* [n_span_max] of the last step */
    uint32_t n_span, n_span_max;  /* what does not fit is counted in ns alone */
    uint64_t n_step, n_token;     /* since it was turned on */
    uint64_t bytes;               /* weights and KV that products and attention went over */
    uint64_t int8_ops, float_ops; /* multiplications and additions of products with quantized weights; of all others */
} stk_stages;

/* Memory for a model of n_layer, and taking it. */
uint64_t stk_stages_bytes(uint32_t n_layer);
void stk_stages_place(stk_stages *s, uint32_t n_layer, void *memory);

/* Forgets everything and turns the clock on or off. Not inside a step. */
void stk_stages_reset(stk_stages *s, bool on);

/* A step of n_tok begins. */
void stk_stages_begin(stk_stages *s, uint32_t n_tok);
/* A stage ends; only while on, by worker 0. */
void stk_stages_end(stk_stages *s, uint32_t stage);

/* The step goes on with this layer; n_layer: what follows is outside of layers. */
static inline void stk_stages_layer(stk_stages *s, uint32_t layer) { s->row = layer; }

static inline void stk_stages_mark(stk_stages *s, uint32_t worker, uint32_t stage) {
    if (worker == 0 && s->on) stk_stages_end(s, stage);
}

#endif
