/* policy: the registry, and what the policies share. */
#include "cache/policies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const stk_policy_ops *const policies[] = {
    &stk_policy_lru, &stk_policy_lru2,   &stk_policy_slru,    &stk_policy_lfu,    &stk_policy_lrfu,   &stk_policy_s3fifo,
    &stk_policy_mrs, &stk_policy_pinned, &stk_policy_learned, &stk_policy_random, &stk_policy_belady, &stk_policy_belady_bypass};
static const char *const names[] = {"lru",    "lru2",    "slru",   "lfu",    "lrfu",          "s3fifo", "mrs",
                                    "pinned", "learned", "random", "belady", "belady-bypass", NULL};
_Static_assert(STK_ARRAY_LEN(names) == STK_ARRAY_LEN(policies) + 1, "a policy has no name, or a name no policy");

const stk_policy_ops *stk_policy_find(const char *name) {
    for (size_t i = 0; i < STK_ARRAY_LEN(policies); i++)
        if (strcmp(policies[i]->name, name) == 0) return policies[i];
    return NULL;
}

const char *const *stk_policy_names(void) { return names; }

/* ---- Parameters --------------------------------------------------------------------------------------------------------- */

/* The names of a policy's parameters, for a message. */
static const char *list_params(const stk_policy_ops *ops, char *out, size_t cap) {
    size_t n = 0;
    for (const stk_policy_param *param = ops->params; param && param->name && n < cap; param++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", param->name);
    return n ? out : "none";
}

/* One "name=value" of `len` characters. */
static int read_param(const stk_policy_ops *ops, const char *text, size_t len, double *values, uint64_t *seen) {
    const char *equals = memchr(text, '=', len);
    size_t name_len = equals ? (size_t)(equals - text) : len, value_len = equals ? len - name_len - 1 : 0;
    for (size_t i = 0; ops->params && ops->params[i].name; i++) {
        const stk_policy_param *param = &ops->params[i];
        if (strlen(param->name) != name_len || memcmp(param->name, text, name_len) != 0) continue;
        if (*seen >> i & 1) return stk_fail(STK_EINVAL, "policy %s: parameter %s is there twice", ops->name, param->name);
        *seen |= (uint64_t)1 << i;
        char number[40], *end = number;
        if (value_len < sizeof number) {
            memcpy(number, text + name_len + 1, value_len);
            number[value_len] = 0;
            values[i] = strtod(number, &end);
        }
        if (end == number || *end || !(values[i] >= param->min && values[i] <= param->max))
            return stk_fail(STK_EINVAL, "policy %s: \"%.*s\": %s is a number from %g to %g", ops->name, (int)STK_MIN(len, 80u),
                            text, param->name, param->min, param->max);
        return 0;
    }
    char all[160];
    return stk_fail(STK_EINVAL, "policy %s has no parameter \"%.*s\"; there are: %s", ops->name, (int)STK_MIN(len, 80u), text,
                    list_params(ops, all, sizeof all));
}

int stk_policy_params(const stk_policy_ops *ops, const char *text, double *values) {
    for (size_t i = 0; ops->params && ops->params[i].name; i++) values[i] = ops->params[i].initial;
    uint64_t seen = 0;
    while (text && *text) {
        size_t len = strcspn(text, ",");
        STK_TRY(read_param(ops, text, len, values, &seen));
        text += len + (text[len] == ',');
    }
    return 0;
}

/* ---- Calls that contradict the state ------------------------------------------------------------------------------------- */

int stk_policy_twice(const char *policy, uint32_t key) {
    return stk_fail(STK_ESTATE, "policy %s: expert %u inserted twice", policy, key);
}

int stk_policy_too_many(const char *policy, uint32_t key, uint32_t n_slot) {
    return stk_fail(STK_ESTATE, "policy %s: expert %u inserted beyond %u slots", policy, key, n_slot);
}

int stk_policy_may_resize(const char *policy, uint32_t n_slot, uint32_t n_resident) {
    return n_slot >= n_resident ? 0 : stk_fail(STK_ESTATE, "policy %s: %u slots for %u experts", policy, n_slot, n_resident);
}

int stk_policy_not_there(const char *policy, uint32_t key) {
    return stk_fail(STK_ESTATE, "policy %s: expert %u left without being there", policy, key);
}

/* ---- Saved states ------------------------------------------------------------------------------------------------------- */

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
