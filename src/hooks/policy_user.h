/*
 * policy_user: an eviction policy of the user's, through the hooks of stoker.h, as one of the cache's. An LRU keeps pace with it:
 * where a hook fails, that LRU decides for the rest of the event, so that a run never ends because of an experiment.
 *
 * Who may call it: engine_open.c and replay.c. Threads: those of the cache. Ownership: the caller's struct holds the copied hooks
 * and outlives the cache.
 */
#ifndef STK_POLICY_USER_H
#define STK_POLICY_USER_H

#include "cache/policy.h"

typedef struct stk_policy_user {
    stk_policy_hooks hooks; /* of whatever size the caller knew; the rest is 0 */
    stk_policy_ops ops;     /* for stk_cache_config.ops, with this struct as stk_cache_config.ops_user */
    uint64_t n_scored;      /* entries of hooks.scores that were used */
} stk_policy_user;

/* Checks and copies. Errors: STK_EINVAL (a hook is missing, or two exclude one another). */
int stk_policy_user_init(stk_policy_user *user, const stk_policy_hooks *hooks) STK_CHECKED;

#endif
