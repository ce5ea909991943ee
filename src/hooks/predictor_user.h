/*
 * predictor_user: a predictor of the user's, through the hooks of stoker.h, as one of predict/'s. What it suggests is checked and
 * put in order; where a hook fails it suggests nothing for the rest of that event, so that a run never ends because of an
 * experiment.
 *
 * Who may call it: engine_open.c and replay.c. Threads: one owner. Ownership: the caller's struct holds the copied hooks and
 * outlives the predictor, of which there is one at a time.
 */
#ifndef STK_PREDICTOR_USER_H
#define STK_PREDICTOR_USER_H

#include "predict/predict.h"
#include "src/stoker.h"

typedef struct stk_predictor_user {
    stk_predictor_hooks hooks; /* of whatever size the caller knew; the rest is 0 */
    stk_predictor_ops ops;     /* for stk_prefetch_config.ops, with this struct as stk_prefetch_config.ops_user */
    uint32_t depth;            /* layers ahead that it will be asked for */
    uint64_t n_observed;       /* events, of those that hooks.first speaks of */
    bool faulted;              /* nothing is suggested until the next event */
} stk_predictor_user;

/* Checks and copies. Errors: STK_EINVAL (a hook is missing, or two exclude one another). */
int stk_predictor_user_init(stk_predictor_user *user, const stk_predictor_hooks *hooks, uint32_t depth) STK_CHECKED;

#endif
