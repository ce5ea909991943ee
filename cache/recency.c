/* recency: intrusive lists in arrays indexed by key. */
#include "cache/recency.h"

#include <stdlib.h>
#include <string.h>

#include "cache/order.h"

static void make_empty(stk_recency *r) {
    memset(r->list_of, STK_RECENCY_ABSENT, r->n_key);
    for (uint32_t list = 0; list < 2; list++) {
        r->n[list] = 0;
        r->younger[r->n_key + list] = r->older[r->n_key + list] = r->n_key + list;
    }
    r->n_event = 0;
}

int stk_recency_open(stk_recency *r, const stk_policy_ops *ops, uint32_t magic, const stk_policy_config *config) {
    *r = (stk_recency){
        .name = ops->name, .magic = magic, .n_key = config->n_key, .n_expert = config->n_expert, .n_slot = config->n_slot};
    r->older = calloc((size_t)r->n_key + 2, sizeof *r->older);
    r->younger = calloc((size_t)r->n_key + 2, sizeof *r->younger);
    r->list_of = malloc(r->n_key);
    r->event_keys = calloc(r->n_expert, sizeof *r->event_keys);
    r->event_rank = calloc(r->n_key, sizeof *r->event_rank);
    r->used = calloc(r->n_expert, sizeof *r->used);
    r->scratch = calloc(r->n_expert, 2 * sizeof *r->scratch);
    if (!r->older || !r->younger || !r->list_of || !r->event_keys || !r->event_rank || !r->used || !r->scratch)
        return stk_fail(STK_ENOMEM, "policy %s: out of memory for %u experts", ops->name, config->n_key);
    make_empty(r);
    return 0;
}

void stk_recency_close(stk_recency *r) {
    free(r->older);
    free(r->younger);
    free(r->list_of);
    free(r->event_keys);
    free(r->event_rank);
    free(r->used);
    free(r->scratch);
}

uint32_t stk_recency_event(stk_recency *r, const stk_event *event, const uint32_t *keys, uint32_t n) {
    const uint64_t *order = stk_order_of(event, n, r->scratch);
    r->n_event = n;
    uint32_t n_used = 0;
    for (uint32_t i = n; i-- > 0;) { /* whether one is resident cannot be foreseen, hence no branch on it */
        uint32_t key = keys[order[i]];
        r->event_keys[i] = key;
        r->event_rank[key] = i;
        r->used[n_used] = key;
        n_used += r->list_of[key] != STK_RECENCY_ABSENT;
    }
    return n_used;
}

/* The expert of the running event and of `list` that `key` is just less useful than, or the list's end. */
static uint32_t next_better(const stk_recency *r, uint32_t key, uint32_t list) {
    uint32_t rank = r->event_rank[key];
    if (rank >= r->n_event || r->event_keys[rank] != key) return r->n_key + list;
    while (rank-- > 0)
        if (r->list_of[r->event_keys[rank]] == list) return r->event_keys[rank];
    return r->n_key + list;
}

int stk_recency_insert(stk_recency *r, uint32_t key, uint32_t list, enum stk_why why) {
    STK_TRY(stk_policy_may_insert(r->name, key, key < r->n_key && r->list_of[key] == STK_RECENCY_ABSENT, r->n[0] + r->n[1],
                                  r->n_slot));
    stk_recency_link(r, key, why == STK_WHY_DEMAND ? next_better(r, key, list) : r->n_key + list);
    r->list_of[key] = (uint8_t)list;
    r->n[list]++;
    return 0;
}

bool stk_recency_oldest(const stk_recency *r, uint32_t list, const uint64_t *busy, uint32_t *key) {
    for (uint32_t i = r->younger[r->n_key + list]; i != r->n_key + list; i = r->younger[i]) {
        if (stk_policy_is_busy(busy, i)) continue;
        *key = i;
        return true;
    }
    return false;
}

int stk_recency_replace(stk_recency *r, const uint64_t *busy, uint32_t key, uint32_t *victim) {
    if (!stk_recency_oldest(r, 0, busy, victim)) return 0;
    if (key >= r->n_key || r->list_of[key] != STK_RECENCY_ABSENT) return stk_policy_twice(r->name, key);
    stk_recency_unlink(r, *victim);
    r->list_of[*victim] = STK_RECENCY_ABSENT;
    stk_recency_link(r, key, next_better(r, key, 0));
    r->list_of[key] = 0;
    return 1;
}

int stk_recency_evicted(stk_policy *p, uint32_t key) {
    stk_recency *r = (stk_recency *)p; /* what the policy's struct begins with */
    if (key >= r->n_key || r->list_of[key] == STK_RECENCY_ABSENT) return stk_policy_not_there(r->name, key);
    stk_recency_unlink(r, key);
    r->n[r->list_of[key]]--;
    r->list_of[key] = STK_RECENCY_ABSENT;
    return 0;
}

int stk_recency_resized(stk_policy *p, uint32_t n_slot) {
    stk_recency *r = (stk_recency *)p;
    STK_TRY(stk_policy_may_resize(r->name, n_slot, r->n[0] + r->n[1]));
    r->n_slot = n_slot;
    return 0;
}

int64_t stk_recency_save(const stk_recency *r, void *out, size_t cap, size_t tail_bytes) {
    const stk_policy_state head = {r->magic, r->n_key, r->n_slot, r->n[0] + r->n[1], r->n[1]};
    size_t bytes = sizeof head + sizeof(uint32_t) * r->n_slot;
    if (cap < bytes + tail_bytes) return (int64_t)(bytes + tail_bytes);
    unsigned char *to = out;
    memcpy(to, &head, sizeof head);
    memset(to + sizeof head, 0xff, bytes - sizeof head);
    to += sizeof head;
    for (uint32_t end = r->n_key; end < r->n_key + 2; end++)
        for (uint32_t key = r->younger[end]; key != end; key = r->younger[key], to += sizeof key) memcpy(to, &key, sizeof key);
    return (int64_t)(bytes + tail_bytes);
}

int stk_recency_check(stk_recency *r, const void *data, size_t bytes, size_t tail_bytes, stk_policy_state *got) {
    const stk_policy_state want = {r->magic, r->n_key, r->n_slot, 0, 0};
    r->n_event = 0; /* event_rank is the check's scratch */
    STK_TRY(stk_policy_state_check(r->name, &want, data, bytes - STK_MIN(bytes, tail_bytes), r->event_rank, got));
    if (got->extra > got->n_resident)
        return stk_fail(STK_EFORMAT, "saved state of policy %s: %llu of %u experts are in the second list", r->name,
                        (unsigned long long)got->extra, got->n_resident);
    return 0;
}

void stk_recency_fill(stk_recency *r, const void *data, const stk_policy_state *got) {
    make_empty(r);
    r->n[1] = (uint32_t)got->extra;
    r->n[0] = got->n_resident - r->n[1];
    for (uint32_t i = 0; i < got->n_resident; i++) {
        uint32_t key = stk_policy_state_key(data, i), list = i >= r->n[0];
        r->list_of[key] = (uint8_t)list;
        stk_recency_link(r, key, r->n_key + list);
    }
}
