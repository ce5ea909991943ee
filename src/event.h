/*
 * event: one layer of one step as the cache, the predictors, the plan and the trace see it. Plain data, filled by the router or
 * by a trace reader; everything it points to is borrowed until the event is finished.
 */
#ifndef STK_EVENT_H
#define STK_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STK_NO_EXPERT 0xffffu

typedef struct stk_event {
    uint64_t step;            /* number of the step, from 0 */
    uint32_t layer;           /* model layer */
    uint32_t n_tok;           /* tokens of the step */
    uint32_t k;               /* experts a token uses */
    uint32_t n_top;           /* scored experts a token, 2k or all; 0 when the source has no scores */
    uint32_t n_expert;        /* experts of the layer */
    uint32_t n_distinct;      /* lookups */
    const int32_t *seq;       /* [n_tok] */
    const int32_t *pos;       /* [n_tok] */
    const int32_t *token;     /* [n_tok] */
    const uint16_t *ids;      /* [n_tok, k] in rank order; STK_NO_EXPERT for none */
    const float *weights;     /* [n_tok, k] */
    const uint16_t *top_ids;  /* [n_tok, n_top] best first */
    const float *top_scores;  /* [n_tok, n_top] router probabilities */
    const uint16_t *distinct; /* [n_distinct] ascending */
    const uint32_t *counts;   /* [n_distinct] tokens of each */
} stk_event;

/* Field by field: for a whole struct the compiler takes an instruction that costs more than reading the event does. */
static inline void stk_event_clear(stk_event *e) {
    e->step = 0;
    e->layer = e->n_tok = e->k = e->n_top = e->n_expert = e->n_distinct = 0;
    e->seq = e->pos = e->token = NULL;
    e->ids = e->top_ids = e->distinct = NULL;
    e->weights = e->top_scores = NULL;
    e->counts = NULL;
}

/* Where an expert of an event was computed otherwise than by the rule: it was fetched into VRAM first, or it lies there and was
 * computed by the CPU. */
enum stk_placed_where { STK_PLACED_FETCH, STK_PLACED_HOST };
typedef struct stk_placed {
    uint32_t key;
    uint8_t where; /* enum stk_placed_where */
} stk_placed;

/* What became of a fetch: it arrived; and what left VRAM for it is at hand, to go back to RAM. */
enum stk_moved { STK_MOVED_IN = 1, STK_MOVED_BACK = 2 };

/* An expert that a later event may want. */
typedef struct stk_ahead {
    uint32_t key; /* layer * n_expert + expert, layer a MoE layer */
    float p;      /* that the layer's next event uses it, 0 to 1 */
    bool issue;   /* to be read ahead; once that was tried: the cache has taken it in */
} stk_ahead;

#endif
