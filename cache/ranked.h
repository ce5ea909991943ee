/*
 * ranked: residents by a number of each, the least of which leaves first, for the policies that reckon a score (lru2, lfu, lrfu,
 * mrs, belady), and what those have in common. Such a policy's struct begins with a stk_ranked, so that the operations below
 * serve it as they are.
 *
 * Each key, resident or not, has n_word numbers, of which the first is its rank; what the others mean is the policy's business.
 * Equal ranks: the higher key leaves first. A policy that reckons in doubles (0 or more) uses their bits: they order alike.
 *
 * Costs: moving a resident is logarithmic in the slots; the victim is the heap's first key that is not busy.
 *
 * Who may call it: the policies of cache/. Pure; all memory is taken at open.
 */
#ifndef STK_RANKED_H
#define STK_RANKED_H

#include <string.h>

#include "cache/heap.h"
#include "cache/policies.h"

typedef struct stk_ranked {
    const char *name; /* of the policy */
    uint32_t magic;   /* of its saved state */
    uint32_t n_key, n_expert, n_slot, n_word;
    stk_heap heap;     /* the residents */
    uint64_t *words;   /* [n_key, n_word] */
    uint32_t *scratch; /* [n_key] */
    uint64_t *order;   /* [2 * n_expert] for stk_cache_order */
    uint64_t now;      /* lookups so far */
    uint64_t step;     /* steps so far */
    uint64_t last_layer;
    uint64_t own; /* whatever the policy wants saved */
} stk_ranked;

int stk_ranked_open(stk_ranked *r, const stk_policy_ops *ops, uint32_t magic, uint32_t n_word,
                    const stk_policy_config *config) STK_CHECKED;
void stk_ranked_close(stk_ranked *r);

static inline uint64_t *stk_ranked_words(const stk_ranked *r, uint32_t key) { return r->words + (size_t)key * r->n_word; }

/* Counts steps by the layers of events, of which keys[0] is the first; true when this event begins a step. */
static inline bool stk_ranked_step(stk_ranked *r, uint32_t first_key) {
    uint64_t layer = first_key / r->n_expert;
    bool begins = r->step == 0 || layer <= r->last_layer;
    r->step += begins;
    r->last_layer = layer;
    return begins;
}

static inline void stk_ranked_set(stk_ranked *r, uint32_t key, uint64_t rank) {
    *stk_ranked_words(r, key) = rank;
    if (stk_heap_has(&r->heap, key)) stk_heap_update(&r->heap, key, rank);
}

/* As `inserted` of stk_policy_ops, at the rank that the key has; and at a rank that the key takes over. */
int stk_ranked_inserted(stk_policy *p, uint32_t key, enum stk_why why);
int stk_ranked_insert(stk_ranked *r, uint32_t key, uint64_t rank) STK_CHECKED;

int stk_ranked_evicted(stk_policy *p, uint32_t key);
int stk_ranked_resized(stk_policy *p, uint32_t n_slot);
int stk_ranked_victim(stk_policy *p, const uint64_t *busy, uint32_t *key);
int64_t stk_ranked_save(const stk_policy *p, void *out, size_t cap);

/* `is_sane` says whether words of a key may stand in a saved state; `own`, `now` and `step` are those of the state. */
typedef struct stk_ranked_totals {
    uint64_t now, step, last_layer, own;
} stk_ranked_totals;
int stk_ranked_load(stk_ranked *r, const void *data, size_t bytes,
                    bool (*is_sane)(const uint64_t *words, const stk_ranked_totals *totals)) STK_CHECKED;

static inline double stk_ranked_double(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline uint64_t stk_ranked_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

#endif
