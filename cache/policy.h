/*
 * policy: the order in which a cache gives up its experts. One instance per tier, size class and (if asked for) layer. Pure: no
 * I/O, no clock, no threads, no allocation after open, so that the engine, the replay and the tests drive the very same code.
 *
 * Who may call it: cache.c, and through it src/. An expert is named by its key = layer index * n_expert + expert, where the layer
 * index counts the layers of the instance's own class. A policy hears of everything and decides two things: whether a missed
 * expert is admitted, and who leaves. Each call returns 0 or a result, negative on error.
 *
 * Time is counted in steps: an event whose layer does not lie behind the instance's last one begins the next step.
 */
#ifndef STK_POLICY_H
#define STK_POLICY_H

#include "src/base.h"
#include "src/event.h"

typedef struct stk_policy stk_policy;

typedef struct stk_policy_config {
    uint32_t n_key;    /* keys are below this */
    uint32_t n_expert; /* of a layer */
    uint32_t n_slot;   /* capacity */
    uint64_t seed;
    const char *params;               /* "name=value,...", NULL for none */
    struct stk_future_cursor *future; /* for policies that need it, NULL otherwise: shared by all instances of a cache */
    const uint32_t *layers;           /* [n_key / n_expert] dense layer number of each of its layers; NULL: 0, 1, ... */
    bool *told;                       /* of the cache, so that a notice is logged once, not by every instance; NULL: no notices */
    void **shared;                    /* of the cache: what its instances have in common, NULL at first; NULL: nothing */
    uint32_t instance;                /* number of the size class */
    uint32_t n_key_all;               /* keys of all size classes; 0: this is the only one */
    bool one_wave;                    /* an event is never cut into waves: a victim cannot wait for the next one */
    void *user;                       /* of a policy that is not built in */
} stk_policy_config;

/* A number that a policy takes: for its reader, `stoker tune` and the documentation. */
typedef struct stk_policy_param {
    const char *name; /* NULL ends a list */
    double min, max, initial;
    const char *what;
} stk_policy_param;

typedef struct stk_policy_ops {
    const char *name;
    const char *idea;               /* one line for a list of policies */
    const stk_policy_param *params; /* NULL: none */
    bool needs_future;              /* for the replay of a trace alone */
    int (*open)(stk_policy **out, const stk_policy_config *config);
    void (*close)(stk_policy *p);
    /* An event of a layer; keys [n] are its distinct experts, resident or not, ascending: keys[i] has event->counts[i] tokens. */
    int (*touch)(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n);
    /* 1: take the missed expert in; 0: compute it from a transit slot and forget it. NULL: always 1. */
    int (*admit)(stk_policy *p, uint32_t key);
    int (*inserted)(stk_policy *p, uint32_t key, enum stk_why why);
    int (*evicted)(stk_policy *p, uint32_t key);
    int (*resized)(stk_policy *p, uint32_t n_slot);
    /* The resident key to give up, among those whose bit in busy [n_key bits] is clear; *key is set and 1 returned, 0 when all
     * are busy, or when a busy one of the running event should leave instead: asked again, the policy gives one up.
     * A prefetch that finds no place is no part of a recorded run: admit, then victim with 0, must leave no trace. */
    int (*victim)(stk_policy *p, const uint64_t *busy, uint32_t *key);
    /* The key that victim would give up, leaving no trace. NULL: admit and victim themselves leave none
     * until evicted is called. */
    int (*would_leave)(stk_policy *p, const uint64_t *busy, uint32_t *key);
    /* victim, evicted of what it says, and inserted of `key` on demand, in one; 0 when all are busy, and nothing was done. NULL:
     * the three are called (so in a policy made of this one with a victim of its own). For what every miss asks, three calls and
     * their checks cost more than the decision. */
    int (*replace)(stk_policy *p, const uint64_t *busy, uint32_t key, uint32_t *victim);
    /* The whole state as bytes. save returns the number needed, which stays the same until resized, and writes all of it or,
     * where cap is less, nothing. load replaces the state, residents included, and trusts nothing: STK_EFORMAT leaves it as it
     * was. */
    int64_t (*save)(const stk_policy *p, void *out, size_t cap);
    int (*load)(stk_policy *p, const void *data, size_t bytes);
} stk_policy_ops;

/* NULL when there is no policy of that name. */
const stk_policy_ops *stk_policy_find(const char *name);
/* Names of all policies, NULL at the end; those that need the future come last. */
const char *const *stk_policy_names(void);

#endif
