/*
 * decay: scores that fade, for lrfu and mrs. At each step every score shrinks by the same factor; instead, what is added grows by
 * its inverse, which leaves the order alone and spares all but the experts of the event. When that weight has grown large, all is
 * scaled back by a power of two.
 *
 * Only sums, products and quotients of doubles in a fixed order: the same bits on every machine.
 *
 * Who may call it: lrfu and mrs, whose keys have the two words below and whose `own` is the weight.
 */
#ifndef STK_DECAY_H
#define STK_DECAY_H

#include "cache/ranked.h"

enum { STK_DECAY_RANK, STK_DECAY_SCORE, STK_DECAY_N_WORD };

static inline double stk_decay_weight(const stk_ranked *r) { return stk_ranked_double(r->own); }
static inline double stk_decay_score(const stk_ranked *r, uint32_t key) {
    return stk_ranked_double(stk_ranked_words(r, key)[STK_DECAY_SCORE]);
}

void stk_decay_open(stk_ranked *r);
/* A step has passed: all scores become `factor` of what they were, 0.001 to 1. */
void stk_decay_step(stk_ranked *r, double factor);
/* Adds x, 0 to 1, as of this step. */
void stk_decay_add(stk_ranked *r, uint32_t key, double x);
/* Takes in an absent key where x more would put it, without adding it. */
int stk_decay_insert(stk_ranked *r, uint32_t key, double x) STK_CHECKED;
int stk_decay_load(stk_ranked *r, const void *data, size_t bytes) STK_CHECKED;

#endif
