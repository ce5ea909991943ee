/*
 * fit: what a model needs beside its experts, and what is left for them: one arithmetic for the engine and for `stoker plan`.
 *
 * Who may call it: src/. Threads: any.
 */
#ifndef STK_FIT_H
#define STK_FIT_H

#include "src/engine/forward.h"

/* Limits of a session that decide what it reserves, filled in. */
typedef struct stk_fit_limits {
    uint32_t n_ctx, n_batch, n_seq_max, n_logits, n_worker;
    bool k_f16, v_f16;
    bool looks_ahead; /* the predictor asks the routers of layers ahead, of which there are copies then */
    stk_fast *fast;   /* NULL: float products are exact */
} stk_fit_limits;

typedef struct stk_fit_bytes {
    uint64_t dense, kv, buffers;
} stk_fit_bytes;

stk_kv_config stk_fit_kv(const stk_hparams *hp, const stk_fit_limits *limits);
stk_fit_bytes stk_fit_fixed(const stk_model *model, const stk_fit_limits *limits);
static inline uint64_t stk_fit_sum(const stk_fit_bytes *b) { return b->dense + b->kv + b->buffers; }

/* What a default leaves free of `free_bytes`. */
uint64_t stk_fit_margin(uint64_t free_bytes);
/* Bytes of slots by default: what free_bytes leave beside `fixed` and the margin, at least `least`, at most `all`. */
uint64_t stk_fit_slots(uint64_t free_bytes, uint64_t fixed, uint64_t least, uint64_t all);

#endif
