/* residency: slots, and what happens to them between steps: resizing, saving and loading. */
#include "cache/residency.h"

#include <string.h>

/* ---- Shared with cache.c ------------------------------------------------------------------------------------------------ */

void stk_residency_empty(struct class *class) {
    memset(class->free_slots, 0, stk_bit_words(class->n_slot_max) * sizeof(uint64_t));
    for (uint32_t slot = 0; slot < class->n_slot; slot++) stk_bit_set(class->free_slots, slot);
    memset(class->key_in, 0xff, sizeof *class->key_in * class->n_slot_max);
    class->n_free = class->n_slot;
    class->free_from = class->next_transit = 0;
}

int stk_residency_check(const stk_policy_ops *ops, uint32_t class_idx, uint32_t n_slot, uint32_t n_transit, uint32_t k) {
    if (n_slot < k)
        return stk_fail(STK_EBUDGET, "expert cache: class %u has room for %u experts; a token needs at least %u", class_idx,
                        n_slot, k);
    if (ops->admit && !n_transit)
        return stk_fail(STK_EBUDGET, "expert cache: policy %s may refuse experts; class %u has no transit slot", ops->name,
                        class_idx);
    if ((uint64_t)n_slot + n_transit > INT32_MAX)
        return stk_fail(STK_EINVAL, "cache: class %u has %u + %u slots", class_idx, n_slot, n_transit);
    return 0;
}

void stk_residency_idle(stk_cache *c) {
    for (uint32_t i = 0; i < c->n_keys; i++) stk_bit_clear(c->latest->busy, c->keys[i]);
    c->n_keys = 0;
}

static void let_go(stk_cache *c, uint32_t key) { stk_bit_clear(stk_residency_class(c, key)->busy, stk_residency_local(c, key)); }

void stk_residency_release(stk_cache *c, uint32_t layer) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->n_held; i++) {
        uint32_t key = c->held[i];
        if (layer == STK_NO_KEY || key / c->n_expert == layer)
            let_go(c, key);
        else
            c->held[kept++] = key;
    }
    c->n_held = kept;
}

void stk_residency_release_key(stk_cache *c, uint32_t key) {
    for (uint32_t i = 0; i < c->n_held; i++) {
        if (c->held[i] != key) continue;
        c->held[i] = c->held[--c->n_held];
        let_go(c, key);
        return;
    }
}

/* ---- Resizing ----------------------------------------------------------------------------------------------------------- */

/* The policy's victims leave until no more than n_slot are there. Returns how many left. */
static int shed(stk_cache *c, struct class *class, uint32_t n_slot) {
    int n = 0;
    for (uint32_t n_resident = class->n_slot - class->n_free; n_resident > n_slot; n_resident--) {
        uint32_t local, key = STK_NO_KEY;
        int rc = stk_residency_victim(c, class, &local, &key);
        if (rc == 0) rc = stk_fail(STK_ESTATE, "policy %s gives up no expert though all are free to go", c->ops->name);
        if (rc < 0) return rc;
        uint32_t slot = (uint32_t)c->slot_of[key];
        c->moves[n++] = (stk_cache_move){key, slot, STK_NO_SLOT};
        stk_residency_free_slot(class, slot);
        STK_TRY(stk_residency_evict(c, class, key, local));
    }
    return n;
}

/* Residents of slots from n_slot on move to free ones below, of which there are enough. Returns n and how many moved. */
static int settle(stk_cache *c, struct class *class, uint32_t n_slot, int n) {
    uint32_t to = 0;
    for (uint32_t from = n_slot; from < class->n_slot; from++) {
        uint32_t key = class->key_in[from];
        if (key == STK_NO_KEY) continue;
        while (class->key_in[to] != STK_NO_KEY) to++;
        class->key_in[to] = key;
        class->key_in[from] = STK_NO_KEY;
        c->slot_of[key] = (int32_t)to;
        c->moves[n++] = (stk_cache_move){key, from, to};
    }
    return n;
}

static void count_free(struct class *class, uint32_t n_slot) {
    class->n_slot = n_slot;
    class->n_free = class->free_from = 0;
    memset(class->free_slots, 0, stk_bit_words(class->n_slot_max) * sizeof(uint64_t));
    for (uint32_t slot = 0; slot < n_slot; slot++) {
        if (class->key_in[slot] != STK_NO_KEY) continue;
        stk_bit_set(class->free_slots, slot);
        class->n_free++;
    }
}

static int resize(stk_cache *c, struct class *class, uint32_t n_slot) {
    int n = shed(c, class, n_slot);
    if (n < 0) return n;
    STK_TRY(c->ops->resized(class->policy, n_slot));
    n = settle(c, class, n_slot, n);
    count_free(class, n_slot);
    return n;
}

int stk_cache_resize(stk_cache *cache, uint32_t class_idx, uint32_t n_slot, uint32_t n_transit, const stk_cache_move **moves) {
    stk_cache *c = cache;
    *moves = c->moves;
    if (class_idx >= c->n_class || n_slot > c->classes[class_idx].n_slot_max)
        return stk_fail(STK_EINVAL, "cache: %u slots for class %u of %u, which can use %u", n_slot, class_idx, c->n_class,
                        class_idx < c->n_class ? c->classes[class_idx].n_slot_max : 0);
    STK_TRY(stk_residency_check(c->ops, class_idx, n_slot, n_transit, c->k));
    struct class *class = &c->classes[class_idx];
    stk_residency_idle(c);
    stk_residency_release(c, STK_NO_KEY);
    int n = resize(c, class, n_slot);
    if (n < 0) return n;
    class->n_transit = n_transit;
    class->next_transit = 0;
    return n;
}

/* ---- Leaving ------------------------------------------------------------------------------------------------------------ */

int stk_cache_would_leave(const stk_cache *cache, uint32_t key, uint32_t *victim) {
    const stk_cache *c = cache;
    *victim = STK_NO_KEY;
    if (key >= c->n_key) return stk_fail(STK_EINVAL, "cache: prefetch of expert %u of %u", key, c->n_key);
    if (c->slot_of[key] >= 0) return 0;
    const struct class *class = stk_residency_class(c, key);
    if (class->n_free) return 1;
    uint32_t local; /* as a prefetch asks */
    int rc = c->ops->admit && !c->ops->would_leave ? c->ops->admit(class->policy, stk_residency_local(c, key)) : 1;
    if (rc <= 0) return rc;
    rc = (c->ops->would_leave ? c->ops->would_leave : c->ops->victim)(class->policy, class->busy, &local);
    if (rc > 0 && local >= class->n_local)
        return stk_fail(STK_EINVAL, "policy %s gives up expert %u of %u", c->ops->name, local, class->n_local);
    if (rc > 0) *victim = class->key_of[local];
    return rc;
}

int stk_cache_drop(stk_cache *cache, uint32_t key) {
    stk_cache *c = cache;
    if (key >= c->n_key) return stk_fail(STK_EINVAL, "cache: drop of expert %u of %u", key, c->n_key);
    if (c->slot_of[key] < 0) return 0;
    struct class *class = stk_residency_class(c, key);
    stk_residency_free_slot(class, (uint32_t)c->slot_of[key]);
    return stk_residency_evict(c, class, key, stk_residency_local(c, key));
}

int stk_cache_clear(stk_cache *cache) {
    stk_cache *c = cache;
    int rc = 0;
    for (uint32_t key = 0; key < c->n_key; key++) {
        int dropped = stk_cache_drop(c, key);
        if (rc == 0) rc = dropped;
    }
    for (uint32_t i = 0; i < c->n_class; i++) c->classes[i].next_transit = 0;
    stk_residency_idle(c);
    return rc;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------------- */

/*
 * The bytes: this head; layer_class [n_layer] u32; for each class a stk_class_head, its keys [n_slot] u32 by slot (STK_NO_KEY for
 * an empty one), the policy's state; the hash of all before it, u64. Little-endian, without padding.
 */
enum { STATE_VERSION = 1 };
typedef struct state_head {
    char magic[8];
    uint32_t version, n_layer, n_expert, n_class;
    char policy[32];
} state_head;
typedef struct class_head {
    uint32_t n_slot, next_transit;
    uint64_t policy_bytes;
} class_head;
static const char magic[8] = "stkcache";

uint64_t stk_cache_hash(const stk_cache *cache) {
    const stk_cache *c = cache;
    uint64_t h = stk_hash(c->n_key, c->slot_of, sizeof *c->slot_of * c->n_key);
    h = stk_hash(h, c->coming, sizeof *c->coming * stk_bit_words(c->n_key));
    for (uint32_t i = 0; i < c->n_class; i++) {
        const struct class *class = &c->classes[i];
        if (!class->policy) continue;
        h = stk_hash(h, &class->next_transit, sizeof class->next_transit);
        int64_t bytes = c->ops->save(class->policy, c->state, c->state_bytes);
        if (bytes > 0) h = stk_hash(h, c->state, STK_MIN((size_t)bytes, c->state_bytes));
    }
    return h;
}

static state_head head_of(const stk_cache *c) {
    state_head head = {.version = STATE_VERSION, .n_layer = c->n_layer, .n_expert = c->n_expert, .n_class = c->n_class};
    memcpy(head.magic, magic, sizeof magic);
    memcpy(head.policy, c->ops->name, STK_MIN(strlen(c->ops->name), sizeof head.policy - 1));
    return head;
}

static void put(unsigned char **to, const void *from, size_t bytes) {
    memcpy(*to, from, bytes);
    *to += bytes;
}

int64_t stk_cache_save(const stk_cache *cache, void *out, size_t cap) {
    const stk_cache *c = cache;
    uint64_t bytes = sizeof(state_head) + sizeof *c->layer_class * c->n_layer + sizeof(uint64_t);
    for (uint32_t i = 0; i < c->n_class; i++) {
        const struct class *class = &c->classes[i];
        int64_t policy_bytes = class->policy ? c->ops->save(class->policy, NULL, 0) : 0;
        if (policy_bytes < 0) return policy_bytes;
        bytes += sizeof(class_head) + sizeof *class->key_in * class->n_slot + (uint64_t)policy_bytes;
    }
    if (cap < bytes) return (int64_t)bytes;
    unsigned char *to = out, *end = to + bytes - sizeof(uint64_t);
    state_head head = head_of(c);
    put(&to, &head, sizeof head);
    put(&to, c->layer_class, sizeof *c->layer_class * c->n_layer);
    for (uint32_t i = 0; i < c->n_class; i++) {
        const struct class *class = &c->classes[i];
        unsigned char *at = to;
        to += sizeof(class_head);
        put(&to, class->key_in, sizeof *class->key_in * class->n_slot);
        int64_t policy_bytes = class->policy ? c->ops->save(class->policy, to, (size_t)(end - to)) : 0;
        if (policy_bytes < 0) return policy_bytes;
        to += policy_bytes;
        class_head ch = {class->n_slot, class->next_transit, (uint64_t)policy_bytes};
        memcpy(at, &ch, sizeof ch);
    }
    uint64_t hash = stk_hash(bytes, out, bytes - sizeof hash);
    memcpy(end, &hash, sizeof hash);
    return (int64_t)bytes;
}

void stk_cache_arrived(stk_cache *cache) { memset(cache->coming, 0, sizeof *cache->coming * stk_bit_words(cache->n_key)); }

/* ---- Loading ------------------------------------------------------------------------------------------------------------ */

/* What a state says of one class; nothing is copied. */
typedef struct saved_class {
    class_head head;
    const unsigned char *keys, *policy;
} saved_class;

static uint32_t saved_key(const saved_class *saved, uint32_t slot) {
    uint32_t key;
    memcpy(&key, saved->keys + slot * sizeof key, sizeof key);
    return key;
}

/* Splits the next class off; *left counts down the bytes. */
static int take_class(const stk_cache *c, uint32_t i, const unsigned char **at, size_t *left, saved_class *saved) {
    const struct class *class = &c->classes[i];
    if (*left < sizeof saved->head) return stk_fail(STK_EFORMAT, "saved cache: it ends within class %u", i);
    memcpy(&saved->head, *at, sizeof saved->head);
    *left -= sizeof saved->head;
    uint64_t keys_bytes = sizeof(uint32_t) * (uint64_t)saved->head.n_slot;
    if (*left < keys_bytes || *left - keys_bytes < saved->head.policy_bytes)
        return stk_fail(STK_EFORMAT, "saved cache: it ends within class %u", i);
    if (saved->head.n_slot > class->n_slot_max || (class->n_local && !saved->head.n_slot))
        return stk_fail(STK_EFORMAT, "saved cache: class %u has %u slots for %u experts", i, saved->head.n_slot, class->n_local);
    saved->keys = *at + sizeof saved->head;
    saved->policy = saved->keys + keys_bytes;
    *at = saved->policy + saved->head.policy_bytes;
    *left -= (size_t)(keys_bytes + saved->head.policy_bytes);
    return 0;
}

static int check_head(const stk_cache *c, const unsigned char *data, size_t bytes, bool *same_policy) {
    state_head want = head_of(c), got;
    uint64_t hash;
    size_t least = sizeof got + sizeof *c->layer_class * c->n_layer + sizeof hash;
    if (bytes < sizeof got || memcmp(data, magic, sizeof magic) != 0)
        return stk_fail(STK_EFORMAT, "saved cache: these %zu bytes are none", bytes);
    memcpy(&got, data, sizeof got);
    if (got.version != want.version)
        return stk_fail(STK_EFORMAT, "saved cache: of version %u, this is %u", got.version, want.version);
    if (got.n_layer != c->n_layer || got.n_expert != c->n_expert || got.n_class != c->n_class)
        return stk_fail(STK_EFORMAT, "saved cache: %u layers of %u experts in %u sizes; this model has %u, %u, %u", got.n_layer,
                        got.n_expert, got.n_class, c->n_layer, c->n_expert, c->n_class);
    if (bytes < least) return stk_fail(STK_EFORMAT, "saved cache: only %zu bytes", bytes);
    memcpy(&hash, data + bytes - sizeof hash, sizeof hash);
    if (hash != stk_hash(bytes, data, bytes - sizeof hash)) return stk_fail(STK_EFORMAT, "saved cache: it is damaged");
    if (memcmp(data + sizeof got, c->layer_class, sizeof *c->layer_class * c->n_layer) != 0)
        return stk_fail(STK_EFORMAT, "saved cache: its layers have other sizes than those of this model");
    *same_policy = memcmp(got.policy, want.policy, sizeof got.policy) == 0;
    return 0;
}

/* Gives the saved keys their slots in an empty class of as many. */
static int place(stk_cache *c, uint32_t i, const saved_class *saved) {
    struct class *class = &c->classes[i];
    for (uint32_t slot = 0; slot < saved->head.n_slot; slot++) {
        uint32_t key = saved_key(saved, slot);
        if (key == STK_NO_KEY) continue;
        if (key >= c->n_key || stk_residency_class(c, key) != class || c->slot_of[key] >= 0)
            return stk_fail(STK_EFORMAT, "saved cache: slot %u of class %u holds expert %u, which is elsewhere", slot, i, key);
        class->key_in[slot] = key;
        c->slot_of[key] = (int32_t)slot;
        stk_bit_set(c->coming, key);
        c->reads_ahead = true;
    }
    count_free(class, saved->head.n_slot);
    return 0;
}

/*
 * Loads the policy's state and makes sure that its residents are those of the slots: each of them leaves once, then there is no
 * victim. After that the state is loaded again.
 */
static int load_policy(stk_cache *c, struct class *class, const saved_class *saved) {
    STK_TRY(c->ops->load(class->policy, saved->policy, (size_t)saved->head.policy_bytes));
    int rc = 0;
    for (uint32_t slot = 0; rc == 0 && slot < class->n_slot; slot++)
        if (class->key_in[slot] != STK_NO_KEY) rc = c->ops->evicted(class->policy, stk_residency_local(c, class->key_in[slot]));
    uint32_t local;
    if (rc == 0) rc = c->ops->victim(class->policy, class->busy, &local);
    if (rc != 0) return stk_fail(STK_EFORMAT, "saved cache: policy %s holds other experts than the slots do", c->ops->name);
    return c->ops->load(class->policy, saved->policy, (size_t)saved->head.policy_bytes);
}

static int try_load_class(stk_cache *c, uint32_t i, const saved_class *saved, bool same_policy) {
    struct class *class = &c->classes[i];
    uint32_t n_slot = class->n_slot;
    STK_TRY(c->ops->resized(class->policy, saved->head.n_slot));
    class->n_slot = saved->head.n_slot;
    STK_TRY(place(c, i, saved));
    if (same_policy)
        STK_TRY(load_policy(c, class, saved));
    else
        for (uint32_t slot = 0; slot < class->n_slot; slot++)
            if (class->key_in[slot] != STK_NO_KEY)
                STK_TRY(c->ops->inserted(class->policy, stk_residency_local(c, class->key_in[slot]), STK_WHY_WARM));
    STK_TRY(resize(c, class, n_slot));
    if (saved->head.next_transit < STK_MAX(class->n_transit, 1u)) class->next_transit = saved->head.next_transit;
    return 0;
}

/* The class is empty, and is so again after an error. */
static int load_class(stk_cache *c, uint32_t i, const saved_class *saved, bool same_policy) {
    struct class *class = &c->classes[i];
    uint32_t n_slot = class->n_slot;
    if (!class->policy) return 0;
    int64_t empty_bytes = c->ops->save(class->policy, c->state, c->state_bytes);
    if (empty_bytes < 0) return (int)empty_bytes;
    int rc = try_load_class(c, i, saved, same_policy);
    if (rc >= 0) return 0;
    for (uint32_t local = 0; local < class->n_local; local++) {
        c->slot_of[class->key_of[local]] = -1;
        stk_bit_clear(c->coming, class->key_of[local]);
    }
    class->n_slot = n_slot;
    stk_residency_empty(class);
    (void)c->ops->load(class->policy, c->state, (size_t)empty_bytes); /* which it has saved itself */
    (void)c->ops->resized(class->policy, n_slot);
    return rc;
}

static int load_all(stk_cache *c, const unsigned char *data, size_t bytes) {
    bool same_policy = false;
    STK_TRY(check_head(c, data, bytes, &same_policy));
    const unsigned char *at = data + sizeof(state_head) + sizeof *c->layer_class * c->n_layer;
    size_t left = (size_t)(data + bytes - at) - sizeof(uint64_t);
    for (uint32_t i = 0; i < c->n_class; i++) {
        saved_class saved = {0};
        STK_TRY(take_class(c, i, &at, &left, &saved));
        STK_TRY(load_class(c, i, &saved, same_policy));
    }
    return left ? stk_fail(STK_EFORMAT, "saved cache: %zu bytes too many", left) : 0;
}

int stk_cache_load(stk_cache *cache, const void *data, size_t bytes) {
    STK_TRY(stk_cache_clear(cache));
    int rc = load_all(cache, data, bytes);
    if (rc < 0) STK_TRY(stk_cache_clear(cache)); /* the classes before the bad one */
    return rc;
}
