/*
 * decide: a replay of decisions alone: the cache is driven with the events themselves, without executor, queues or clock. It
 * decides what the timed path (virtual.h) decides, and counts the same.
 *
 * Who may call it: replay.c, benchmarks and tests. Threads: one owner. Memory does not depend on the trace's length.
 */
#ifndef STK_DECIDE_H
#define STK_DECIDE_H

#include "src/ahead/chooser.h"
#include "src/ahead/gates.h"
#include "src/ahead/prefetch.h"
#include "tally.h"
#include "traces/source.h"

typedef struct stk_decide {
    stk_source *source;
    stk_cache *cache;
    stk_tally *tally;
    stk_chooser *chooser;   /* of what is read ahead; borrowed */
    stk_ahead *ahead;       /* [STK_TRACE_AHEAD_MAX * n_expert] scratch; borrowed */
    stk_prefetch *prefetch; /* predicts in place of what was recorded; NULL: as recorded; borrowed */
    stk_gates *gates;       /* what it hears of routers ahead; NULL: nothing; borrowed */
    uint32_t depth;         /* layers ahead of recorded predictions that count; 0: none */
    bool reset;             /* the cache is emptied at each sequence */
    void (*stepped)(void *user, uint64_t i, enum stk_phase phase, const stk_stats *total); /* as in replay.h; or NULL */
    void *stepped_user;
    const stk_cache_class
        *resizable; /* [n_class of the trace] the cache, which takes part in recorded resizes; NULL: it does not */
    stk_progress_fn progress;
    void *progress_user;
    uint64_t n_step, n_token;   /* begun; of steps that were not aborted */
    uint64_t n_resize_left_out; /* recorded resizes, where the cache takes no part in them */
} stk_decide;

/* Between steps a recorded run gave the classes other slots: the same to a cache, with the transit slots `own` [n_class] or,
 * NULL, those of the record. Errors: the cache's. */
int stk_decide_resize(stk_cache *cache, uint32_t n_class, const stk_cache_class *own, const stk_trace_resize *resize) STK_CHECKED;

/* All of the source. Errors: its own, the cache's; STK_EFORMAT: an event out of place; STK_ECANCELED by `progress`. */
int stk_decide_run(stk_decide *d) STK_CHECKED;
/* All counters so far; times are 0. */
void stk_decide_count(const stk_decide *d, stk_stats *out);

#endif
