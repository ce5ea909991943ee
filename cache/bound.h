/*
 * bound: how often any cache of so many bytes can hit at most, whatever the sizes of its experts, its policy and its classes: an
 * upper bound by relaxation. For experts of one size belady-bypass is the exact figure; with several classes it is a heuristic
 * (best within each class, whose shares are given), and this bound says how far from the best it may be.
 *
 * A lookup can hit only where its expert stayed since its last use, which takes its bytes through all events in between. The
 * relaxation: the budget has to hold in the mean over all events, not at each. So the cheapest stays are granted first, until
 * bytes times events are spent (PFOO-L of Berger, Beckmann and Harchol-Balter, SIGMETRICS 2018). Experts that are fetched ahead
 * of their use are not counted with.
 *
 * Who may call it: src/ (replay, tune), one thread. Pure; memory is fixed: stays are counted by cost, rounded down by less than
 * 1 in 1,000, which keeps it an upper bound.
 */
#ifndef STK_BOUND_H
#define STK_BOUND_H

#include "src/base.h"
#include "src/event.h"

typedef struct stk_bound stk_bound;

/* layer_bytes [n_layer]: of an expert of the layer, above 0; copied. STK_EINVAL, STK_ENOMEM. */
int stk_bound_open(stk_bound **out, uint32_t n_layer, uint32_t n_expert, const uint64_t *layer_bytes) STK_CHECKED;
void stk_bound_close(stk_bound **bound);

/* The next event, of dense layer `layer`. STK_EINVAL: out of range. */
int stk_bound_add(stk_bound *bound, uint32_t layer, const stk_event *event) STK_CHECKED;
/* All leave the cache here. */
void stk_bound_cut(stk_bound *bound);

/* Of the events so far, with a cache of `bytes`. */
uint64_t stk_bound_hits(const stk_bound *bound, uint64_t bytes);

#endif
