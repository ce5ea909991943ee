/* policy: the registry, and what the policies share. */
#include "cache/policies.h"

#include <string.h>

static const stk_policy_ops *const policies[] = {&stk_policy_lru, &stk_policy_learned, &stk_policy_random};
static const char *const names[STK_ARRAY_LEN(policies) + 1] = {"lru", "learned", "random", NULL};

const stk_policy_ops *stk_policy_find(const char *name) {
    for (size_t i = 0; i < STK_ARRAY_LEN(policies); i++)
        if (strcmp(policies[i]->name, name) == 0) return policies[i];
    return NULL;
}

const char *const *stk_policy_names(void) { return names; }

int stk_policy_no_params(const char *policy, const char *params) {
    if (!params || !*params) return 0;
    return stk_fail(STK_EINVAL, "policy %s has no parameters, found \"%s\"", policy, params);
}

uint32_t stk_policy_state_key(const void *data, size_t i) {
    uint32_t key;
    memcpy(&key, (const unsigned char *)data + sizeof(stk_policy_state) + i * sizeof key, sizeof key);
    return key;
}

int stk_policy_state_check(const char *policy, const stk_policy_state *want, const void *data, size_t bytes, uint32_t *scratch,
                           stk_policy_state *got) {
    if (bytes < sizeof *got) return stk_fail(STK_EFORMAT, "saved state of policy %s: only %zu bytes", policy, bytes);
    memcpy(got, data, sizeof *got);
    if (got->magic != want->magic) return stk_fail(STK_EFORMAT, "saved state of policy %s: made by another policy", policy);
    if (got->n_key != want->n_key)
        return stk_fail(STK_EFORMAT, "saved state of policy %s: of %u experts, this model has %u", policy, got->n_key,
                        want->n_key);
    if (bytes - sizeof *got != (uint64_t)got->n_slot * sizeof(uint32_t) || got->n_resident > got->n_slot)
        return stk_fail(STK_EFORMAT, "saved state of policy %s: %u experts in %u slots do not fill %zu bytes", policy,
                        got->n_resident, got->n_slot, bytes);
    if (got->n_resident > want->n_slot)
        return stk_fail(STK_EFORMAT, "saved state of policy %s: %u experts for %u slots", policy, got->n_resident, want->n_slot);
    for (uint32_t i = 0; i < got->n_resident; i++) {
        uint32_t key = stk_policy_state_key(data, i);
        if (key >= want->n_key)
            return stk_fail(STK_EFORMAT, "saved state of policy %s: expert %u of %u", policy, key, want->n_key);
        scratch[key] = i;
    }
    /* A key named twice has kept its last position only. */
    for (uint32_t i = 0; i < got->n_resident; i++)
        if (scratch[stk_policy_state_key(data, i)] != i)
            return stk_fail(STK_EFORMAT, "saved state of policy %s: expert %u is there twice", policy,
                            stk_policy_state_key(data, i));
    return 0;
}
