/*
 * gates: what the routers of the layers ahead said, as a trace has recorded it, for a predictor that is asked anew. A trace keeps
 * the likeliest experts of each layer ahead, not every router's scores; the order of these is what predictors learn from, and
 * experts that are not among them have no score. Steps of one token alone: what was said is told of a step as a whole.
 *
 * Who may call it: replay.c, virtual.c, decide.c and tests. Pure; all memory is taken at open.
 */
#ifndef STK_GATES_H
#define STK_GATES_H

#include "predict/predict.h"
#include "traces/trace.h"

typedef struct stk_gates {
    uint32_t n_expert, k, depth; /* depth: layers ahead that count, at most */
    float *scores;               /* [depth, n_expert] */
    uint16_t *ids;               /* [k], [n_expert], [k]: of the kept event, and so are: */
    float *reals;                /* [k], [n_expert] */
    uint32_t *counts;            /* [k] */
    int32_t where[3];
    stk_event event;
} stk_gates;

int stk_gates_open(stk_gates *g, uint32_t n_expert, uint32_t k, uint32_t depth) STK_CHECKED;
void stk_gates_close(stk_gates *g);

/* A copy of an event, which outlives the record that it came in; NULL: what was said at it is not known, its tokens are several.
 */
const stk_event *stk_gates_keep(stk_gates *g, const stk_event *event);
/* What the record says of the layers ahead of the kept event, until the next one is kept; `ahead` NULL: nothing. */
stk_lookahead stk_gates_look(stk_gates *g, const stk_trace_ahead *ahead);

#endif
