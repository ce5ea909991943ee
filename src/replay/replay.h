/*
 * replay: what the library's own callers ask of a replay beside what stoker.h offers.
 *
 * Who may call it: src/tune*.c. Threads: replays share nothing, so that many may run at the same time.
 */
#ifndef STK_REPLAY_H
#define STK_REPLAY_H

#include "tally.h"

typedef struct stk_replay_inside {
    const uint32_t *layer_slots; /* [n_layer] slots of each layer, transit included, for STK_SCOPE_LAYER; NULL: equal shares */
    /* A step is over: number i among those that began, of all traces, with all counters so far. */
    void (*stepped)(void *user, uint64_t i, enum stk_phase phase, const stk_stats *total);
    void *user;
} stk_replay_inside;

/* As stk_replay_many. */
int stk_replay_run(const char *const *traces, uint32_t n, const stk_replay_options *options, const stk_replay_inside *inside,
                   stk_replay_result *result) STK_CHECKED;

#endif
