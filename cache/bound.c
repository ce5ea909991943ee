/* bound: a histogram of what each stay costs. */
#include "cache/bound.h"

#include <stdlib.h>
#include <string.h>

/* Costs below 2^EXACT_BITS have a bucket each, above that the highest EXACT_BITS bits of a cost are its bucket. */
enum { EXACT_BITS = 11, HALF = 1 << (EXACT_BITS - 1), N_BUCKET = (64 - EXACT_BITS + 2) * HALF };

struct stk_bound {
    uint32_t n_layer, n_expert;
    uint64_t n_event;
    uint64_t *layer_bytes; /* [n_layer] */
    uint64_t *last_use;    /* [n_layer, n_expert] number of the event from 1; 0: none */
    uint64_t *n_stay;      /* [N_BUCKET] */
};

static uint32_t bucket_of(uint64_t cost) {
    uint32_t shift = 0;
    if (cost >= 2 * HALF) shift = 64 - EXACT_BITS - (uint32_t)__builtin_clzll(cost);
    return shift * HALF + (uint32_t)(cost >> shift);
}

/* The least cost of a bucket. */
static uint64_t cost_of(uint32_t bucket) {
    uint32_t shift = bucket < 2 * HALF ? 0 : bucket / HALF - 1;
    return (uint64_t)(bucket - shift * HALF) << shift;
}

int stk_bound_open(stk_bound **out, uint32_t n_layer, uint32_t n_expert, const uint64_t *layer_bytes) {
    *out = NULL;
    if (!n_layer || !n_expert || n_expert >= STK_NO_EXPERT || (uint64_t)n_layer * n_expert > INT32_MAX)
        return stk_fail(STK_EINVAL, "bound: %u layers of %u experts are not supported", n_layer, n_expert);
    for (uint32_t i = 0; i < n_layer; i++)
        if (!layer_bytes[i]) return stk_fail(STK_EINVAL, "bound: experts of layer %u have no bytes", i);
    stk_bound *b = calloc(1, sizeof *b);
    if (!b) return stk_fail(STK_ENOMEM, "bound: out of memory");
    b->n_layer = n_layer;
    b->n_expert = n_expert;
    b->layer_bytes = calloc(n_layer, sizeof *b->layer_bytes);
    b->last_use = calloc((size_t)n_layer * n_expert, sizeof *b->last_use);
    b->n_stay = calloc(N_BUCKET, sizeof *b->n_stay);
    if (!b->layer_bytes || !b->last_use || !b->n_stay) {
        stk_bound_close(&b);
        return stk_fail(STK_ENOMEM, "bound: out of memory for %u experts", n_layer * n_expert);
    }
    memcpy(b->layer_bytes, layer_bytes, n_layer * sizeof *layer_bytes);
    *out = b;
    return 0;
}

void stk_bound_close(stk_bound **bound) {
    if (!*bound) return;
    free((*bound)->layer_bytes);
    free((*bound)->last_use);
    free((*bound)->n_stay);
    free(*bound);
    *bound = NULL;
}

int stk_bound_add(stk_bound *bound, uint32_t layer, const stk_event *event) {
    stk_bound *b = bound;
    if (layer >= b->n_layer) return stk_fail(STK_EINVAL, "bound: layer %u of %u", layer, b->n_layer);
    for (uint32_t i = 0; i < event->n_distinct; i++)
        if (event->distinct[i] >= b->n_expert)
            return stk_fail(STK_EINVAL, "bound: expert %u, a layer has %u", event->distinct[i], b->n_expert);
    uint64_t now = ++b->n_event, cost;
    for (uint32_t i = 0; i < event->n_distinct; i++) {
        uint64_t *last = &b->last_use[(size_t)layer * b->n_expert + event->distinct[i]];
        /* A cost that does not fit is beyond any budget. */
        if (*last && !stk_mul_overflow(now - *last, b->layer_bytes[layer], &cost)) b->n_stay[bucket_of(cost)]++;
        *last = now;
    }
    return 0;
}

void stk_bound_cut(stk_bound *bound) { memset(bound->last_use, 0, sizeof *bound->last_use * bound->n_layer * bound->n_expert); }

uint64_t stk_bound_hits(const stk_bound *bound, uint64_t bytes) {
    const stk_bound *b = bound;
    unsigned __int128 left = (unsigned __int128)bytes * b->n_event;
    uint64_t n_hit = 0;
    for (uint32_t i = 1; i < N_BUCKET; i++) {
        if (!b->n_stay[i]) continue;
        unsigned __int128 afford = left / cost_of(i);
        if (afford < b->n_stay[i]) return n_hit + (uint64_t)afford;
        n_hit += b->n_stay[i];
        left -= (unsigned __int128)b->n_stay[i] * cost_of(i);
    }
    return n_hit;
}
