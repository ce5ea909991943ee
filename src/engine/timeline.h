/*
 * timeline: what the queues of a run did and when, interval by interval, into memory of a fixed size: stk_timeline of stoker.h.
 * The live engine and the timed replay write the same: step.c the dense part, executor.c experts, packing and waiting, store.c
 * and virtual.c reads. Without a timeline nothing reads a clock for it.
 *
 * Who may call it: src/. Threads: one owner, that of the run. Ownership: the caller's, who opened it; a run borrows it.
 */
#ifndef STK_TIMELINE_H
#define STK_TIMELINE_H

#include "src/base.h"

struct stk_timeline {
    stk_work *work; /* [n_max] */
    uint64_t n, n_max, n_lost;
    uint64_t first_step, n_step; /* that are wanted, counted from the first that is seen; n_step 0: all */
    uint64_t n_seen;
    uint64_t origin_ns; /* when the first wanted step began, on the run's clock */
    uint64_t step;      /* that runs */
    bool on;            /* it is wanted */
};

/* NULL: nobody asked for one. */
static inline bool stk_timeline_on(const stk_timeline *t) { return t && t->on; }

/* A run begins, or goes on: steps are counted from here. What is there stays. */
void stk_timeline_attach(stk_timeline *t);
/* A step begins at that time of the run's clock, which never goes back. */
void stk_timeline_step(stk_timeline *t, uint64_t step, uint64_t now_ns);

/* Takes down what was done, with times of the run's clock; the step is the running one. What took no time is left out. Only
 * while on. */
void stk_timeline_put(stk_timeline *t, stk_work work);

#endif
