/*
 * trace_count: the distinct experts of an event and how many tokens use each, worked out of its ids.
 *
 * Who may call it: traces/. Ownership: what it sets in an event lives until its next call.
 */
#ifndef STK_TRACE_COUNT_H
#define STK_TRACE_COUNT_H

#include "src/base.h"
#include "src/event.h"

typedef struct trace_count {
    uint16_t *distinct; /* [n_expert] */
    uint32_t *counts;   /* [n_expert] */
    uint32_t *ones;     /* [n_expert] the counts of one token */
    uint32_t *scratch;  /* [n_expert] all 0 */
} trace_count;

int stk_trace_count_open(trace_count *c, uint32_t n_expert) STK_CHECKED;
void stk_trace_count_close(trace_count *c);
/* Fills distinct, counts and n_distinct of an event whose ids, each below n_expert or STK_NO_EXPERT, are set. */
void stk_trace_count(trace_count *c, stk_event *event);

#endif
