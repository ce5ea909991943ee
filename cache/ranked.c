/* ranked: a heap of residents over a table of all keys. */
#include "cache/ranked.h"

#include <stdlib.h>

int stk_ranked_open(stk_ranked *r, const stk_policy_ops *ops, uint32_t magic, uint32_t n_word, const stk_policy_config *config) {
    *r = (stk_ranked){.name = ops->name,
                      .magic = magic,
                      .n_key = config->n_key,
                      .n_expert = config->n_expert,
                      .n_slot = config->n_slot,
                      .n_word = n_word};
    int rc = stk_heap_open(&r->heap, r->n_key);
    r->words = calloc(r->n_key, n_word * sizeof *r->words);
    r->scratch = calloc(r->n_key, sizeof *r->scratch);
    r->order = calloc(r->n_expert, 2 * sizeof *r->order);
    if (rc < 0 || !r->words || !r->scratch || !r->order)
        return stk_fail(STK_ENOMEM, "policy %s: out of memory for %u experts", r->name, r->n_key);
    return 0;
}

void stk_ranked_close(stk_ranked *r) {
    stk_heap_close(&r->heap);
    free(r->words);
    free(r->scratch);
    free(r->order);
}

int stk_ranked_insert(stk_ranked *r, uint32_t key, uint64_t rank) {
    STK_TRY(stk_policy_may_insert(r->name, key, key < r->n_key && !stk_heap_has(&r->heap, key), r->heap.n, r->n_slot));
    *stk_ranked_words(r, key) = rank;
    stk_heap_insert(&r->heap, key, rank);
    return 0;
}

int stk_ranked_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    stk_ranked *r = (stk_ranked *)p; /* what the policy's struct begins with */
    (void)why;
    return stk_ranked_insert(r, key, key < r->n_key ? *stk_ranked_words(r, key) : 0);
}

int stk_ranked_evicted(stk_policy *p, uint32_t key) {
    stk_ranked *r = (stk_ranked *)p;
    if (key >= r->n_key || !stk_heap_has(&r->heap, key)) return stk_policy_not_there(r->name, key);
    stk_heap_remove(&r->heap, key);
    return 0;
}

int stk_ranked_resized(stk_policy *p, uint32_t n_slot) {
    stk_ranked *r = (stk_ranked *)p;
    STK_TRY(stk_policy_may_resize(r->name, n_slot, r->heap.n));
    r->n_slot = n_slot;
    return 0;
}

int stk_ranked_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    return stk_heap_least(&((stk_ranked *)p)->heap, busy, key);
}

/* ---- Saved states ------------------------------------------------------------------------------------------------------- */

static size_t words_bytes(const stk_ranked *r) { return sizeof *r->words * r->n_key * r->n_word; }

int64_t stk_ranked_save(const stk_policy *p, void *out, size_t cap) {
    const stk_ranked *r = (const stk_ranked *)p;
    const stk_policy_state head = {r->magic, r->n_key, r->n_slot, r->heap.n, 0};
    const stk_ranked_totals totals = {r->now, r->step, r->last_layer, r->own};
    size_t keys_bytes = sizeof(uint32_t) * r->n_slot, bytes = sizeof head + keys_bytes + sizeof totals + words_bytes(r);
    if (cap < bytes) return (int64_t)bytes;
    unsigned char *to = out;
    memcpy(to, &head, sizeof head);
    to += sizeof head;
    memset(to, 0xff, keys_bytes);
    for (uint32_t i = 0; i < r->heap.n; i++) memcpy(to + i * sizeof(uint32_t), &r->heap.entries[i].key, sizeof(uint32_t));
    to += keys_bytes;
    memcpy(to, &totals, sizeof totals);
    memcpy(to + sizeof totals, r->words, words_bytes(r));
    return (int64_t)bytes;
}

int stk_ranked_load(stk_ranked *r, const void *data, size_t bytes,
                    bool (*is_sane)(const uint64_t *words, const stk_ranked_totals *totals)) {
    const stk_policy_state want = {r->magic, r->n_key, r->n_slot, 0, 0};
    stk_policy_state got;
    stk_ranked_totals totals;
    size_t tail = sizeof totals + words_bytes(r);
    STK_TRY(stk_policy_state_check(r->name, &want, data, bytes - STK_MIN(bytes, tail), r->scratch, &got));
    const unsigned char *at = (const unsigned char *)data + bytes - tail;
    memcpy(&totals, at, sizeof totals);
    at += sizeof totals;
    bool sane = totals.now < UINT64_MAX / 4 && totals.step < UINT64_MAX / 4 && got.extra == 0;
    for (uint32_t key = 0; sane && key < r->n_key; key++) {
        uint64_t words[8];
        memcpy(words, at + (size_t)key * r->n_word * sizeof *words, r->n_word * sizeof *words);
        sane = is_sane(words, &totals);
    }
    if (!sane) return stk_fail(STK_EFORMAT, "saved state of policy %s: it holds numbers that cannot be", r->name);
    memcpy(r->words, at, words_bytes(r));
    r->now = totals.now;
    r->step = totals.step;
    r->last_layer = totals.last_layer;
    r->own = totals.own;
    stk_heap_clear(&r->heap);
    for (uint32_t i = 0; i < got.n_resident; i++) {
        uint32_t key = stk_policy_state_key(data, i);
        stk_heap_append(&r->heap, key, *stk_ranked_words(r, key));
    }
    stk_heap_order(&r->heap);
    return 0;
}
