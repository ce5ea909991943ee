/*
 * policies: what the policies and their registry share. A policy is one file that defines struct stk_policy for itself and one
 * table named here; policy.c lists the tables.
 *
 * Who may call it: cache/.
 */
#ifndef STK_POLICIES_H
#define STK_POLICIES_H

#include "cache/policy.h"

extern const stk_policy_ops stk_policy_lru;
extern const stk_policy_ops stk_policy_learned;
extern const stk_policy_ops stk_policy_random;

/* STK_EINVAL when `params` names anything: for policies that have nothing to set. */
int stk_policy_no_params(const char *policy, const char *params) STK_CHECKED;

/*
 * What lru and random save: this head, then n_slot keys as u32 in the policy's own order, filled up with STK_POLICY_NO_KEY. The
 * length depends on n_slot alone.
 */
typedef struct stk_policy_state {
    uint32_t magic, n_key, n_slot, n_resident;
    uint64_t extra; /* of the policy */
} stk_policy_state;
#define STK_POLICY_NO_KEY 0xffffffffu

/*
 * Reads and checks a saved state that anybody may have written. *want has this instance's magic, n_key and n_slot; on success
 * *got is the saved head, n_resident <= want->n_slot, and the keys (stk_policy_state_key) are below n_key and differ. `scratch`
 * [n_key] is overwritten. Errors: STK_EFORMAT.
 */
int stk_policy_state_check(const char *policy, const stk_policy_state *want, const void *data, size_t bytes, uint32_t *scratch,
                           stk_policy_state *got) STK_CHECKED;
uint32_t stk_policy_state_key(const void *data, size_t i);

static inline bool stk_policy_is_busy(const uint64_t *busy, uint32_t key) { return busy[key / 64] >> (key % 64) & 1; }

#endif
