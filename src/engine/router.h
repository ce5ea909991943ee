/*
 * router: from router scores to an event: softmax, top-k as a total order, renormalised weights, the distinct experts and their
 * tokens.
 *
 * Who may call it: src/. Pure over memory that stk_routing_open takes once.
 */
#ifndef STK_ROUTER_H
#define STK_ROUTER_H

#include "src/base.h"
#include "src/event.h"

/* What a layer's router does with its logits. */
typedef struct stk_router {
    uint32_t n_expert, k;
    bool renormalise; /* weights of the chosen k sum to 1 */
    float scale;      /* multiplies the weights; 1 for none */
} stk_router;

/*
 * Chooses among p [n_expert] (probabilities): the n_top best go to top_ids and top_scores, best first; ties go to the lower id,
 * NaN ranks lowest. ids and weights [k] are the first k, weighted as the router says. n_top >= k. `taken` is scratch [n_expert].
 */
void stk_router_choose(const stk_router *r, const float *p, uint32_t n_top, uint16_t *ids, float *weights, uint16_t *top_ids,
                       float *top_scores, uint8_t *taken);

/* One layer's routing of a step, grouped by expert. Arrays are sized for the greatest step. */
typedef struct stk_routing {
    uint32_t n_tok_max, k, n_top, n_expert;
    uint16_t *ids;      /* [n_tok, k] */
    float *weights;     /* [n_tok, k] */
    uint16_t *top_ids;  /* [n_tok, n_top] */
    float *top_scores;  /* [n_tok, n_top] */
    uint16_t *distinct; /* [n_expert] */
    uint32_t *counts;   /* [n_expert] of distinct[i] */
    uint32_t *first;    /* [n_expert + 1] of expert e: its pairs are pairs[first[e]] .. pairs[first[e + 1] - 1] */
    uint32_t *pairs;    /* [n_tok * k] token * k + rank, grouped by expert, ascending */
} stk_routing;
int stk_routing_open(stk_routing *r, uint32_t n_tok_max, uint32_t k, uint32_t n_top, uint32_t n_expert) STK_CHECKED;
void stk_routing_close(stk_routing *r);
uint64_t stk_routing_bytes(uint32_t n_tok_max, uint32_t k, uint32_t n_top, uint32_t n_expert);

/* Fills distinct, counts, first and pairs from ids, and the event's pointers and sizes; returns the number of distinct experts.
 */
uint32_t stk_routing_group(stk_routing *r, uint32_t n_tok, stk_event *event);

#endif
