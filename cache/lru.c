/*
 * lru: the expert whose last use is the longest ago leaves first. An intrusive list in arrays indexed by key.
 *
 * The experts of one event are used at the same time. Among them the least useful is the oldest: they rank by token count, then
 * by id, so that the one with the fewest tokens (on a tie the highest id) leaves first. A missed expert takes its place in that
 * rank when it is inserted. Prefetched and warm experts count as used at their insertion.
 *
 * Costs: touch is linear in the event; inserted and evicted are constant, amortised over the event; victim passes over busy
 * experts only, and those are at the young end unless the event is served in waves.
 */
#include "cache/order.h"
#include "cache/policies.h"

#include <stdlib.h>
#include <string.h>

enum { STATE_MAGIC = 0x3155524c }; /* "LRU1" */
#define UNLINKED STK_POLICY_NO_KEY

struct stk_policy {
    uint32_t n_key, n_expert, n_slot, n_resident;
    uint32_t *older, *younger; /* [n_key + 1]; entry n_key is the list's ends: its younger is the oldest; UNLINKED if absent */
    uint32_t n_event;          /* of the running event: */
    uint32_t *event_keys;      /* [n_expert] most useful first */
    uint32_t *event_rank;      /* [n_key] position in event_keys; meaningful where that entry is the key */
    uint32_t *used;            /* [n_expert] its residents, least useful first */
    uint64_t *scratch;         /* [2 * n_expert] for stk_cache_order */
};

static bool is_resident(const stk_policy *p, uint32_t key) { return p->younger[key] != UNLINKED; }

static void unlink_key(stk_policy *p, uint32_t key) {
    p->younger[p->older[key]] = p->younger[key];
    p->older[p->younger[key]] = p->older[key];
    p->younger[key] = UNLINKED;
}

/* Links `key` just older than `than`; than = n_key makes it the youngest. */
static void link_before(stk_policy *p, uint32_t key, uint32_t than) {
    uint32_t older = p->older[than];
    p->older[key] = older;
    p->younger[key] = than;
    p->younger[older] = key;
    p->older[than] = key;
}

static void make_empty(stk_policy *p) {
    memset(p->younger, 0xff, sizeof *p->younger * p->n_key);
    p->older[p->n_key] = p->younger[p->n_key] = p->n_key;
    p->n_resident = p->n_event = 0;
}

static void lru_close(stk_policy *p) {
    if (!p) return;
    free(p->older);
    free(p->younger);
    free(p->event_keys);
    free(p->event_rank);
    free(p->used);
    free(p->scratch);
    free(p);
}

static int lru_open(stk_policy **out, const stk_policy_config *config) {
    STK_TRY(stk_policy_no_params("lru", config->params));
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy lru: out of memory");
    p->n_key = config->n_key;
    p->n_expert = config->n_expert;
    p->n_slot = config->n_slot;
    p->older = malloc(sizeof *p->older * ((size_t)p->n_key + 1));
    p->younger = malloc(sizeof *p->younger * ((size_t)p->n_key + 1));
    p->event_keys = calloc(p->n_expert, sizeof *p->event_keys);
    p->event_rank = calloc(p->n_key, sizeof *p->event_rank);
    p->used = calloc(p->n_expert, sizeof *p->used);
    p->scratch = calloc(p->n_expert, 2 * sizeof *p->scratch);
    if (!p->older || !p->younger || !p->event_keys || !p->event_rank || !p->used || !p->scratch) {
        lru_close(p);
        return stk_fail(STK_ENOMEM, "policy lru: out of memory for %u experts", config->n_key);
    }
    make_empty(p);
    *out = p;
    return 0;
}

static int lru_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    const uint64_t *order;
    stk_cache_order(event->counts, n, p->scratch, &order);
    p->n_event = n;
    uint32_t n_used = 0;
    for (uint32_t i = n; i-- > 0;) { /* whether one is resident cannot be foreseen, hence no branch on it */
        uint32_t key = keys[order[i]];
        p->event_keys[i] = key;
        p->event_rank[key] = i;
        p->used[n_used] = key;
        n_used += is_resident(p, key);
    }
    for (uint32_t i = 0; i < n_used; i++) {
        unlink_key(p, p->used[i]);
        link_before(p, p->used[i], p->n_key);
    }
    return 0;
}

/* The resident expert of the running event that `key` is just less useful than, or n_key. */
static uint32_t next_better(const stk_policy *p, uint32_t key) {
    uint32_t rank = p->event_rank[key];
    if (rank >= p->n_event || p->event_keys[rank] != key) return p->n_key;
    while (rank-- > 0)
        if (is_resident(p, p->event_keys[rank])) return p->event_keys[rank];
    return p->n_key;
}

static int lru_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    if (key >= p->n_key || is_resident(p, key)) return stk_fail(STK_ESTATE, "policy lru: expert %u inserted twice", key);
    if (p->n_resident == p->n_slot) return stk_fail(STK_ESTATE, "policy lru: expert %u inserted beyond %u slots", key, p->n_slot);
    /* What was only predicted takes the place of the one that left for it, at the cold end, until an event uses it. */
    link_before(p, key, why == STK_WHY_DEMAND ? next_better(p, key) : why == STK_WHY_PREFETCH ? p->younger[p->n_key] : p->n_key);
    p->n_resident++;
    return 0;
}

static int lru_evicted(stk_policy *p, uint32_t key) {
    if (key >= p->n_key || !is_resident(p, key))
        return stk_fail(STK_ESTATE, "policy lru: expert %u left without being there", key);
    unlink_key(p, key);
    p->n_resident--;
    return 0;
}

static int lru_resized(stk_policy *p, uint32_t n_slot) {
    if (n_slot < p->n_resident) return stk_fail(STK_ESTATE, "policy lru: %u slots for %u experts", n_slot, p->n_resident);
    p->n_slot = n_slot;
    return 0;
}

static int lru_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    for (uint32_t i = p->younger[p->n_key]; i != p->n_key; i = p->younger[i]) {
        if (stk_policy_is_busy(busy, i)) continue;
        *key = i;
        return 1;
    }
    return 0;
}

static int64_t lru_save(const stk_policy *p, void *out, size_t cap) {
    const stk_policy_state head = {STATE_MAGIC, p->n_key, p->n_slot, p->n_resident, 0};
    size_t bytes = sizeof head + sizeof(uint32_t) * p->n_slot;
    if (cap < bytes) return (int64_t)bytes;
    unsigned char *to = out;
    memcpy(to, &head, sizeof head);
    memset(to + sizeof head, 0xff, bytes - sizeof head);
    to += sizeof head;
    for (uint32_t key = p->younger[p->n_key]; key != p->n_key; key = p->younger[key], to += sizeof key)
        memcpy(to, &key, sizeof key);
    return (int64_t)bytes;
}

static int lru_load(stk_policy *p, const void *data, size_t bytes) {
    const stk_policy_state want = {STATE_MAGIC, p->n_key, p->n_slot, 0, 0};
    stk_policy_state got;
    p->n_event = 0; /* event_rank is the check's scratch */
    STK_TRY(stk_policy_state_check("lru", &want, data, bytes, p->event_rank, &got));
    make_empty(p);
    p->n_resident = got.n_resident;
    for (uint32_t i = 0; i < got.n_resident; i++) link_before(p, stk_policy_state_key(data, i), p->n_key);
    return 0;
}

const stk_policy_ops stk_policy_lru = {
    .name = "lru",
    .open = lru_open,
    .close = lru_close,
    .touch = lru_touch,
    .inserted = lru_inserted,
    .evicted = lru_evicted,
    .resized = lru_resized,
    .victim = lru_victim,
    .save = lru_save,
    .load = lru_load,
};
