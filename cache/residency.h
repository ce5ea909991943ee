/*
 * residency: what a cache consists of, shared by its decisions (cache.c) and by what changes or keeps it between steps
 * (residency.c). Residency is slot_of (by key) and key_in (by class and slot), always each other's inverse.
 *
 * Outside, an expert's key counts all layers; a policy is told local keys, which count the layers of its class alone, so that its
 * memory is in proportion to them. Within a layer the two differ by a constant.
 *
 * Who may call it: cache.c and residency.c.
 */
#ifndef STK_RESIDENCY_H
#define STK_RESIDENCY_H

#include "cache/cache.h"

struct class {
    stk_policy *policy;
    uint32_t n_slot, n_transit;
    uint32_t n_slot_max; /* what memory was taken for */
    uint32_t n_free;
    uint32_t free_from;    /* no word of `free_slots` below this has a bit set */
    uint32_t next_transit; /* round robin, 0 .. n_transit - 1 */
    uint64_t *free_slots;  /* [n_slot_max bits] */
    uint32_t *key_in;      /* [n_slot_max] key, or STK_NO_KEY */
    uint32_t n_local;
    uint32_t *layers; /* [n_local / n_expert] its layers */
    uint32_t *key_of; /* [n_local] key of a local key */
    uint64_t *busy;   /* [n_local bits] */
};

struct stk_cache {
    const stk_policy_ops *ops;
    uint32_t n_layer, n_expert, n_key, n_class;
    struct class *classes; /* [n_class] */
    uint32_t *layer_class; /* [n_layer] */
    uint32_t *local_of;    /* [n_layer] local key of its expert 0 */
    int32_t *slot_of;      /* [n_key] slot in the key's class, or -1 */
    uint64_t *coming;      /* [n_key bits] prefetched, and not used by an event since */
    bool reads_ahead;      /* a bit of it was set once */
    uint32_t *held;        /* [n_key] prefetched for a layer whose event has not come yet; busy */
    uint32_t n_held;
    stk_future_cursor *future;
    bool told;             /* a policy logged its notice */
    void *shared;          /* what the policy's instances have in common */
    struct class *latest;  /* class of the latest event: */
    uint32_t n_keys;       /* its experts */
    uint32_t *keys;        /* [n_expert] local, ascending */
    uint32_t *misses;      /* [n_expert] positions in keys, most useful first */
    uint64_t *scratch;     /* [2 * n_expert] */
    stk_decision *list;    /* [n_expert] */
    stk_cache_move *moves; /* [most slots of a class] */
    uint32_t k;
    unsigned char *state; /* [state_bytes] for the hash */
    size_t state_bytes;
    stk_cache_counters counters;
};

static inline void stk_bit_set(uint64_t *bits, uint32_t i) { bits[i / 64] |= (uint64_t)1 << (i % 64); }
static inline void stk_bit_clear(uint64_t *bits, uint32_t i) { bits[i / 64] &= ~((uint64_t)1 << (i % 64)); }
static inline bool stk_bit_has(const uint64_t *bits, uint32_t i) { return bits[i / 64] >> (i % 64) & 1; }
static inline size_t stk_bit_words(uint32_t n_bit) { return ((size_t)n_bit + 63) / 64; }

static inline struct class *stk_residency_class(const stk_cache *c, uint32_t key) {
    return &c->classes[c->layer_class[key / c->n_expert]];
}
static inline uint32_t stk_residency_local(const stk_cache *c, uint32_t key) {
    return c->local_of[key / c->n_expert] + key % c->n_expert;
}

/* All slots of the class are free. */
void stk_residency_empty(struct class *class);
/* What a class needs at least. STK_EBUDGET. */
int stk_residency_check(const stk_policy_ops *ops, uint32_t class_idx, uint32_t n_slot, uint32_t n_transit,
                        uint32_t k) STK_CHECKED;
/* No expert is busy: the latest event is over. */
void stk_residency_idle(stk_cache *c);

static inline void stk_residency_free_slot(struct class *class, uint32_t slot) {
    stk_bit_set(class->free_slots, slot);
    class->n_free++;
    class->free_from = STK_MIN(class->free_from, slot / 64);
}

/* Prefetched experts of `layer`, or of every layer at STK_NO_KEY, may leave again; or the one. */
void stk_residency_release(stk_cache *c, uint32_t layer);
void stk_residency_release_key(stk_cache *c, uint32_t key);

/* What leaves is not on its way any more. */
static inline void stk_residency_forget_ahead(stk_cache *c, uint32_t key) {
    if (stk_bit_has(c->coming, key)) stk_residency_release_key(c, key);
    stk_bit_clear(c->coming, key);
}

/* Takes a resident expert out of the cache; its slot is the caller's, who gives it to another expert or to free_slot. */
static inline int stk_residency_evict(stk_cache *c, struct class *class, uint32_t key, uint32_t local) {
    class->key_in[c->slot_of[key]] = STK_NO_KEY;
    c->slot_of[key] = -1;
    if (c->reads_ahead) stk_residency_forget_ahead(c, key);
    return c->ops->evicted(class->policy, local);
}

/* 1: *local may leave and is *key; 0: all are busy. Errors of the policy, STK_ESTATE where its choice cannot be. */
static inline int stk_residency_victim(stk_cache *c, struct class *class, uint32_t *local, uint32_t *key) {
    *local = *key = STK_NO_KEY;
    int rc = c->ops->victim(class->policy, class->busy, local);
    if (rc <= 0) return rc;
    if (*local < class->n_local && !stk_bit_has(class->busy, *local)) {
        *key = class->key_of[*local];
        if (c->slot_of[*key] >= 0) return 1;
    }
    return stk_fail(STK_ESTATE, "policy %s gave up expert %u, which is in use or not there", c->ops->name, *local);
}

#endif
