/*
 * random: any expert that is not busy leaves, each with the same chance. The floor that other policies are measured against.
 * Residents lie in an array in no order; a draw that hits a busy one moves it behind the part that is drawn from.
 */
#include "cache/policies.h"

#include <stdlib.h>
#include <string.h>

enum { STATE_MAGIC = 0x314d4452 }; /* "RDM1" */
#define ABSENT STK_POLICY_NO_KEY

struct stk_policy {
    uint32_t n_key, n_slot, n_resident;
    uint64_t rng;
    uint32_t *keys;    /* [n_key], n_resident used */
    uint32_t *index;   /* [n_key] position in keys, or ABSENT */
    uint32_t *scratch; /* [n_key] for load */
};

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void random_close(stk_policy *p) {
    if (!p) return;
    free(p->keys);
    free(p->index);
    free(p->scratch);
    free(p);
}

static int random_open(stk_policy **out, const stk_policy_config *config) {
    STK_TRY(stk_policy_params(&stk_policy_random, config->params, NULL));
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy random: out of memory");
    p->n_key = config->n_key;
    p->n_slot = config->n_slot;
    p->rng = config->seed;
    p->keys = calloc(p->n_key, sizeof *p->keys);
    p->index = malloc(sizeof *p->index * p->n_key);
    p->scratch = calloc(p->n_key, sizeof *p->scratch);
    if (!p->keys || !p->index || !p->scratch) {
        random_close(p);
        return stk_fail(STK_ENOMEM, "policy random: out of memory for %u experts", config->n_key);
    }
    memset(p->index, 0xff, sizeof *p->index * p->n_key);
    *out = p;
    return 0;
}

static int random_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    (void)p, (void)event, (void)keys, (void)n;
    return 0;
}

static int random_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    (void)why;
    STK_TRY(stk_policy_may_insert("random", key, key < p->n_key && p->index[key] == ABSENT, p->n_resident, p->n_slot));
    p->index[key] = p->n_resident;
    p->keys[p->n_resident++] = key;
    return 0;
}

static void swap(stk_policy *p, uint32_t a, uint32_t b) {
    uint32_t key = p->keys[a];
    p->keys[a] = p->keys[b];
    p->keys[b] = key;
    p->index[p->keys[a]] = a;
    p->index[p->keys[b]] = b;
}

static int random_evicted(stk_policy *p, uint32_t key) {
    if (key >= p->n_key || p->index[key] == ABSENT) return stk_policy_not_there("random", key);
    swap(p, p->index[key], p->n_resident - 1);
    p->n_resident--;
    p->index[key] = ABSENT;
    return 0;
}

static int random_resized(stk_policy *p, uint32_t n_slot) {
    STK_TRY(stk_policy_may_resize("random", n_slot, p->n_resident));
    p->n_slot = n_slot;
    return 0;
}

static int random_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    uint32_t first = 0; /* who may leave: a call that finds nobody draws no number */
    while (first < p->n_resident && stk_policy_is_busy(busy, p->keys[first])) first++;
    if (first == p->n_resident) return 0;
    for (uint32_t n = p->n_resident; n > 0; n--) {
        uint32_t i = (uint32_t)((next_random(&p->rng) >> 32) * n >> 32);
        *key = p->keys[i];
        if (!stk_policy_is_busy(busy, *key)) return 1;
        swap(p, i, n - 1);
    }
    return 0;
}

/* The same draws; then everybody goes back in reverse. A draw is kept in place of what load would use the memory for. */
static int random_would_leave(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    uint64_t rng = p->rng;
    uint32_t n_drawn = 0;
    int found = 0;
    for (uint32_t n = p->n_resident; n > 0 && !found; n--) {
        uint32_t i = (uint32_t)((next_random(&rng) >> 32) * n >> 32);
        *key = p->keys[i];
        found = !stk_policy_is_busy(busy, *key);
        p->scratch[n_drawn++] = i;
        if (!found) swap(p, i, n - 1);
    }
    for (uint32_t j = n_drawn - (uint32_t)found; j > 0; j--) swap(p, p->scratch[j - 1], p->n_resident - j);
    return found;
}

static int64_t random_save(const stk_policy *p, void *out, size_t cap) {
    const stk_policy_state head = {STATE_MAGIC, p->n_key, p->n_slot, p->n_resident, p->rng};
    size_t bytes = sizeof head + sizeof(uint32_t) * p->n_slot;
    if (cap < bytes) return (int64_t)bytes;
    unsigned char *to = out;
    memcpy(to, &head, sizeof head);
    memset(to + sizeof head, 0xff, bytes - sizeof head);
    memcpy(to + sizeof head, p->keys, sizeof *p->keys * p->n_resident);
    return (int64_t)bytes;
}

static int random_load(stk_policy *p, const void *data, size_t bytes) {
    const stk_policy_state want = {STATE_MAGIC, p->n_key, p->n_slot, 0, 0};
    stk_policy_state got;
    STK_TRY(stk_policy_state_check("random", &want, data, bytes, p->scratch, &got));
    memset(p->index, 0xff, sizeof *p->index * p->n_key);
    p->rng = got.extra;
    p->n_resident = got.n_resident;
    for (uint32_t i = 0; i < got.n_resident; i++) {
        p->keys[i] = stk_policy_state_key(data, i);
        p->index[p->keys[i]] = i;
    }
    return 0;
}

const stk_policy_ops stk_policy_random = {
    .name = "random",
    .idea = "any expert leaves, by the seed",
    .open = random_open,
    .close = random_close,
    .touch = random_touch,
    .inserted = random_inserted,
    .evicted = random_evicted,
    .resized = random_resized,
    .victim = random_victim,
    .would_leave = random_would_leave,
    .save = random_save,
    .load = random_load,
};
