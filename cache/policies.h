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
extern const stk_policy_ops stk_policy_lru2;
extern const stk_policy_ops stk_policy_slru;
extern const stk_policy_ops stk_policy_lfu;
extern const stk_policy_ops stk_policy_lrfu;
extern const stk_policy_ops stk_policy_s3fifo;
extern const stk_policy_ops stk_policy_mrs;
extern const stk_policy_ops stk_policy_pinned;
extern const stk_policy_ops stk_policy_learned;
extern const stk_policy_ops stk_policy_random;
extern const stk_policy_ops stk_policy_belady;
extern const stk_policy_ops stk_policy_belady_bypass;

/*
 * Reads "name=value,..." into values [as many as ops->params lists], which begin as their initial values. STK_EINVAL names the
 * parameter: unknown, given twice, not a number, out of range.
 */
int stk_policy_params(const stk_policy_ops *ops, const char *text, double *values) STK_CHECKED;

/* What inserted, evicted and resized refuse: calls that contradict what the policy holds. All return STK_ESTATE. */
int stk_policy_twice(const char *policy, uint32_t key) STK_CHECKED;
int stk_policy_too_many(const char *policy, uint32_t key, uint32_t n_slot) STK_CHECKED;
int stk_policy_not_there(const char *policy, uint32_t key) STK_CHECKED;
int stk_policy_may_resize(const char *policy, uint32_t n_slot, uint32_t n_resident) STK_CHECKED;

static inline int stk_policy_may_insert(const char *policy, uint32_t key, bool is_absent, uint32_t n_resident, uint32_t n_slot) {
    if (!is_absent) return stk_policy_twice(policy, key);
    return n_resident < n_slot ? 0 : stk_policy_too_many(policy, key, n_slot);
}

/*
 * What policies save: this head, then n_slot keys as u32 in the policy's own order, filled up with STK_POLICY_NO_KEY, then a tail
 * of the policy's own, whose length depends on n_key alone.
 */
typedef struct stk_policy_state {
    uint32_t magic, n_key, n_slot, n_resident;
    uint64_t extra; /* of the policy */
} stk_policy_state;
#define STK_POLICY_NO_KEY 0xffffffffu

/*
 * Reads and checks head and keys (`bytes` without the tail) of a saved state that anybody may have written. *want has this
 * instance's magic, n_key and n_slot; on success *got is the saved head, n_resident <= want->n_slot, and the keys
 * (stk_policy_state_key) are below n_key and differ. `scratch` [n_key] is overwritten. Errors: STK_EFORMAT.
 */
int stk_policy_state_check(const char *policy, const stk_policy_state *want, const void *data, size_t bytes, uint32_t *scratch,
                           stk_policy_state *got) STK_CHECKED;
uint32_t stk_policy_state_key(const void *data, size_t i);

static inline bool stk_policy_is_busy(const uint64_t *busy, uint32_t key) { return busy[key / 64] >> (key % 64) & 1; }

#endif
