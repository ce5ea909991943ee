/* router: top-k and grouping. */
#include "router.h"

#include <stdlib.h>
#include <string.h>

/* Whether a ranks before b: NaN last. Equal scores keep the order of ids because callers scan ids upward. */
static bool better(float a, float b) { return a > b || (b != b && a == a); }

void stk_router_choose(const stk_router *r, const float *p, uint32_t n_top, uint16_t *ids, float *weights, uint16_t *top_ids,
                       float *top_scores, uint8_t *taken) {
    memset(taken, 0, r->n_expert);
    for (uint32_t i = 0; i < n_top; i++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t e = 0; e < r->n_expert; e++)
            if (!taken[e] && (best == UINT32_MAX || better(p[e], p[best]))) best = e;
        taken[best] = 1;
        top_ids[i] = (uint16_t)best;
        top_scores[i] = p[best];
    }
    float sum = 0.0f;
    for (uint32_t i = 0; i < r->k; i++) sum += top_scores[i];
    for (uint32_t i = 0; i < r->k; i++) {
        ids[i] = top_ids[i];
        weights[i] = (r->renormalise ? top_scores[i] / sum : top_scores[i]) * r->scale;
    }
}

uint64_t stk_routing_bytes(uint32_t n_tok_max, uint32_t k, uint32_t n_top, uint32_t n_expert) {
    return (uint64_t)n_tok_max * (k * 10 + n_top * 6) + (uint64_t)n_expert * 10 + 4;
}

int stk_routing_open(stk_routing *r, uint32_t n_tok_max, uint32_t k, uint32_t n_top, uint32_t n_expert) {
    memset(r, 0, sizeof *r);
    r->n_tok_max = n_tok_max;
    r->k = k;
    r->n_top = n_top;
    r->n_expert = n_expert;
    r->ids = calloc((size_t)n_tok_max * k, sizeof *r->ids);
    r->weights = calloc((size_t)n_tok_max * k, sizeof *r->weights);
    r->top_ids = calloc((size_t)n_tok_max * n_top, sizeof *r->top_ids);
    r->top_scores = calloc((size_t)n_tok_max * n_top, sizeof *r->top_scores);
    r->distinct = calloc(n_expert, sizeof *r->distinct);
    r->counts = calloc(n_expert, sizeof *r->counts);
    r->first = calloc((size_t)n_expert + 1, sizeof *r->first);
    r->pairs = calloc((size_t)n_tok_max * k, sizeof *r->pairs);
    if (r->ids && r->weights && r->top_ids && r->top_scores && r->distinct && r->counts && r->first && r->pairs) return STK_OK;
    stk_routing_close(r);
    return stk_fail(STK_ENOMEM, "out of memory for the routing of %u tokens", n_tok_max);
}

void stk_routing_close(stk_routing *r) {
    free(r->ids);
    free(r->weights);
    free(r->top_ids);
    free(r->top_scores);
    free(r->distinct);
    free(r->counts);
    free(r->first);
    free(r->pairs);
    memset(r, 0, sizeof *r);
}

uint32_t stk_routing_group(stk_routing *r, uint32_t n_tok, stk_event *event) {
    uint32_t n_pair = n_tok * r->k, n = 0;
    memset(r->first, 0, ((size_t)r->n_expert + 1) * sizeof *r->first);
    for (uint32_t i = 0; i < n_pair; i++)
        if (r->ids[i] != STK_NO_EXPERT) r->first[r->ids[i] + 1]++;
    for (uint32_t e = 0; e < r->n_expert; e++) {
        if (r->first[e + 1]) {
            r->distinct[n] = (uint16_t)e;
            r->counts[n++] = r->first[e + 1];
        }
        r->first[e + 1] += r->first[e];
    }
    /* Place pairs by moving each expert's start forward, then move the starts back. */
    for (uint32_t i = 0; i < n_pair; i++)
        if (r->ids[i] != STK_NO_EXPERT) r->pairs[r->first[r->ids[i]]++] = i;
    memmove(r->first + 1, r->first, r->n_expert * sizeof *r->first);
    r->first[0] = 0;

    event->n_tok = n_tok;
    event->k = r->k;
    event->n_top = r->n_top;
    event->n_expert = r->n_expert;
    event->ids = r->ids;
    event->weights = r->weights;
    event->top_ids = r->top_ids;
    event->top_scores = r->top_scores;
    event->n_distinct = n;
    event->distinct = r->distinct;
    event->counts = r->counts;
    return n;
}
