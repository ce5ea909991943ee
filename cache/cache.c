/*
 * cache: decisions for one tier. Residency is slot_of (by key) and key_in (by class and slot), always each other's inverse.
 *
 * Experts of the latest event are busy until the next one begins, so that a prefetch issued while they are being computed cannot
 * take their slots. Inside an event, the start of a wave frees those decided before it.
 */
#include "cache/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/order.h"

struct class {
    stk_policy *policy;
    uint32_t n_slot, n_transit;
    uint32_t n_free;
    uint32_t free_from;    /* no word of `free_slots` below this has a bit set */
    uint32_t next_transit; /* round robin, 0 .. n_transit - 1 */
    uint64_t *free_slots;  /* [n_slot bits] */
    uint32_t *key_in;      /* [n_slot] key, or STK_NO_KEY */
};

struct stk_cache {
    const stk_policy_ops *ops;
    uint32_t n_layer, n_expert, n_key, n_class;
    struct class *classes; /* [n_class] */
    uint32_t *layer_class; /* [n_layer] */
    uint8_t *has_layer;    /* [n_layer] for opening a class's policy */
    int32_t *slot_of;      /* [n_key] slot in the key's class, or -1 */
    uint64_t *busy;        /* [n_key bits] */
    uint64_t *coming;      /* [n_key bits] prefetched, and not used by an event since */
    uint32_t n_keys;       /* of the latest event: */
    uint32_t *keys;        /* [n_expert] ascending */
    uint32_t *misses;      /* [n_expert] positions in keys, most useful first */
    uint64_t *scratch;     /* [2 * n_expert] */
    stk_decision *list;    /* [n_expert] */
    unsigned char *state;  /* [state_bytes] for the hash */
    size_t state_bytes;
    stk_cache_counters counters;
};

/* What deciding the misses of one event carries along. */
struct event_pass {
    struct class *class;
    uint32_t n_done; /* decisions made */
    uint32_t n_miss;
    uint64_t n_pair;
    uint32_t wave_begin; /* the first decision of this wave */
    uint32_t wave;
    uint32_t n_transit; /* transit slots used in this wave */
};

static void set_bit(uint64_t *bits, uint32_t i) { bits[i / 64] |= (uint64_t)1 << (i % 64); }
static void clear_bit(uint64_t *bits, uint32_t i) { bits[i / 64] &= ~((uint64_t)1 << (i % 64)); }
static bool has_bit(const uint64_t *bits, uint32_t i) { return bits[i / 64] >> (i % 64) & 1; }
static size_t n_words(uint32_t n_bit) { return ((size_t)n_bit + 63) / 64; }

/* ---- Open and close ----------------------------------------------------------------------------------------------------- */

static int check_config(const stk_cache_config *config, const stk_policy_ops *ops) {
    uint64_t n_key = (uint64_t)config->n_layer * config->n_expert;
    if (!config->n_layer || !config->n_expert || config->n_expert >= STK_NO_EXPERT || n_key > INT32_MAX)
        return stk_fail(STK_EINVAL, "cache: %u layers of %u experts are not supported", config->n_layer, config->n_expert);
    if (!config->k || config->k > config->n_expert)
        return stk_fail(STK_EINVAL, "cache: %u experts a token of %u", config->k, config->n_expert);
    if (!ops) {
        char all[256] = "";
        for (const char *const *name = stk_policy_names(); *name; name++)
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", *all ? ", " : "", *name);
        return stk_fail(STK_EINVAL, "no eviction policy \"%s\"; there are: %s", config->policy ? config->policy : "", all);
    }
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        uint32_t i = config->layer_class[layer];
        if (i >= config->n_class) return stk_fail(STK_EINVAL, "cache: layer %u is of class %u of %u", layer, i, config->n_class);
        const stk_cache_class *class = &config->classes[i];
        if (class->n_slot < config->k)
            return stk_fail(STK_EBUDGET, "expert cache: class %u has room for %u experts; a token needs at least %u", i,
                            class->n_slot, config->k);
        if (ops->admit && !class->n_transit)
            return stk_fail(STK_EBUDGET, "expert cache: policy %s may refuse experts; class %u has no transit slot", ops->name,
                            i);
        if ((uint64_t) class->n_slot + class->n_transit > INT32_MAX)
            return stk_fail(STK_EINVAL, "cache: class %u has %u + %u slots", i, class->n_slot, class->n_transit);
    }
    return 0;
}

static void free_all_slots(struct class *class) {
    memset(class->free_slots, 0, n_words(class->n_slot) * sizeof(uint64_t));
    for (uint32_t slot = 0; slot < class->n_slot; slot++) set_bit(class->free_slots, slot);
    memset(class->key_in, 0xff, sizeof *class->key_in * class->n_slot);
    class->n_free = class->n_slot;
    class->free_from = class->next_transit = 0;
}

static int open_class(stk_cache *c, struct class *class, const stk_cache_config *config, uint32_t i) {
    class->n_slot = config->classes[i].n_slot;
    class->n_transit = config->classes[i].n_transit;
    class->free_slots = calloc(n_words(class->n_slot) + 1, sizeof(uint64_t));
    class->key_in = calloc((size_t) class->n_slot + 1, sizeof *class->key_in);
    if (!class->free_slots || !class->key_in) return stk_fail(STK_ENOMEM, "cache: out of memory for %u slots", class->n_slot);
    free_all_slots(class);
    for (uint32_t layer = 0; layer < c->n_layer; layer++) c->has_layer[layer] = config->layer_class[layer] == i;
    const stk_policy_config policy = {.n_key = c->n_key,
                                      .n_expert = c->n_expert,
                                      .n_slot = class->n_slot,
                                      .seed = config->seed + i,
                                      .has_layer = c->has_layer,
                                      .params = config->params};
    STK_TRY(c->ops->open(&class->policy, &policy));
    int64_t bytes = c->ops->save(class->policy, NULL, 0);
    if (bytes < 0) return (int)bytes;
    c->state_bytes = STK_MAX(c->state_bytes, (size_t)bytes);
    return 0;
}

static int open_all(stk_cache *c, const stk_cache_config *config) {
    c->classes = calloc(c->n_class, sizeof *c->classes);
    c->layer_class = calloc(c->n_layer, sizeof *c->layer_class);
    c->has_layer = calloc(c->n_layer, sizeof *c->has_layer);
    c->slot_of = malloc(sizeof *c->slot_of * c->n_key);
    c->busy = calloc(n_words(c->n_key), sizeof *c->busy);
    c->coming = calloc(n_words(c->n_key), sizeof *c->coming);
    c->keys = calloc(c->n_expert, sizeof *c->keys);
    c->misses = calloc(c->n_expert, sizeof *c->misses);
    c->scratch = calloc(c->n_expert, 2 * sizeof *c->scratch);
    c->list = calloc(c->n_expert, sizeof *c->list);
    if (!c->classes || !c->layer_class || !c->has_layer || !c->slot_of || !c->busy || !c->coming || !c->keys || !c->misses ||
        !c->scratch || !c->list)
        return stk_fail(STK_ENOMEM, "cache: out of memory for %u experts", c->n_key);
    memcpy(c->layer_class, config->layer_class, sizeof *c->layer_class * c->n_layer);
    memset(c->slot_of, 0xff, sizeof *c->slot_of * c->n_key);
    for (uint32_t i = 0; i < c->n_class; i++) STK_TRY(open_class(c, &c->classes[i], config, i));
    c->state = calloc(1, c->state_bytes + 1);
    return c->state ? 0 : stk_fail(STK_ENOMEM, "cache: out of memory for %zu bytes of state", c->state_bytes);
}

int stk_cache_open(stk_cache **out, const stk_cache_config *config) {
    *out = NULL;
    const stk_policy_ops *ops = config->ops ? config->ops : config->policy ? stk_policy_find(config->policy) : NULL;
    STK_TRY(check_config(config, ops));
    stk_cache *c = calloc(1, sizeof *c);
    if (!c) return stk_fail(STK_ENOMEM, "cache: out of memory");
    c->ops = ops;
    c->n_layer = config->n_layer;
    c->n_expert = config->n_expert;
    c->n_key = config->n_layer * config->n_expert;
    c->n_class = config->n_class;
    int rc = open_all(c, config);
    if (rc < 0)
        stk_cache_close(&c);
    else
        *out = c;
    return rc;
}

void stk_cache_close(stk_cache **cache) {
    stk_cache *c = *cache;
    if (!c) return;
    for (uint32_t i = 0; c->classes && i < c->n_class; i++) {
        if (c->classes[i].policy) c->ops->close(c->classes[i].policy);
        free(c->classes[i].free_slots);
        free(c->classes[i].key_in);
    }
    free(c->classes);
    free(c->layer_class);
    free(c->has_layer);
    free(c->slot_of);
    free(c->busy);
    free(c->coming);
    free(c->keys);
    free(c->misses);
    free(c->scratch);
    free(c->list);
    free(c->state);
    free(c);
    *cache = NULL;
}

/* ---- Residency ---------------------------------------------------------------------------------------------------------- */

static uint32_t take_free(struct class *class) {
    while (!class->free_slots[class->free_from]) class->free_from++;
    uint32_t slot = class->free_from * 64 + (uint32_t)__builtin_ctzll(class->free_slots[class->free_from]);
    clear_bit(class->free_slots, slot);
    class->n_free--;
    return slot;
}

/* Takes a resident expert out of the cache; its slot is the caller's, who gives it to another expert or to free_slot. */
static int evict(stk_cache *c, struct class *class, uint32_t key) {
    class->key_in[c->slot_of[key]] = STK_NO_KEY;
    c->slot_of[key] = -1;
    clear_bit(c->coming, key);
    return c->ops->evicted(class->policy, key);
}

static void free_slot(struct class *class, uint32_t slot) {
    set_bit(class->free_slots, slot);
    class->n_free++;
    class->free_from = STK_MIN(class->free_from, slot / 64);
}

/* 1: *slot is the lowest free one, or that of *victim, which has left; 0: all are busy. */
static int take_slot(stk_cache *c, struct class *class, uint32_t *slot, uint32_t *victim) {
    *victim = STK_NO_KEY;
    if (class->n_free) {
        *slot = take_free(class);
        return 1;
    }
    uint32_t key = STK_NO_KEY;
    int rc = c->ops->victim(class->policy, c->busy, &key);
    if (rc <= 0) return rc;
    if (key >= c->n_key || c->slot_of[key] < 0 || (uint32_t)c->slot_of[key] >= class->n_slot ||
        class->key_in[c->slot_of[key]] != key || has_bit(c->busy, key))
        return stk_fail(STK_ESTATE, "policy %s gave up expert %u, which is in use or not there", c->ops->name, key);
    *slot = (uint32_t)c->slot_of[key];
    *victim = key;
    rc = evict(c, class, key);
    if (rc < 0) {
        free_slot(class, *slot);
        return rc;
    }
    c->counters.n_evict++;
    return 1;
}

static int insert(stk_cache *c, struct class *class, uint32_t key, uint32_t slot, enum stk_why why) {
    int rc = c->ops->inserted(class->policy, key, why);
    if (rc < 0) {
        free_slot(class, slot);
        return rc;
    }
    c->slot_of[key] = (int32_t)slot;
    class->key_in[slot] = key;
    return 0;
}

/* ---- Events ------------------------------------------------------------------------------------------------------------- */

/* The latest event is over; the experts of this one, checked, become the busy ones. */
static int begin_event(stk_cache *c, uint32_t layer, const stk_event *event) {
    for (uint32_t i = 0; i < c->n_keys; i++) clear_bit(c->busy, c->keys[i]);
    c->n_keys = 0;
    if (layer >= c->n_layer) return stk_fail(STK_EINVAL, "cache: layer %u of %u", layer, c->n_layer);
    if (event->n_distinct > c->n_expert)
        return stk_fail(STK_EINVAL, "cache: an event of %u experts, a layer has %u", event->n_distinct, c->n_expert);
    uint32_t least = 0;
    for (uint32_t i = 0; i < event->n_distinct; i++) {
        uint32_t expert = event->distinct[i];
        if (expert < least || expert >= c->n_expert)
            return stk_fail(STK_EINVAL, "cache: expert %u of an event is out of order or not below %u", expert, c->n_expert);
        least = expert + 1;
        c->keys[i] = layer * c->n_expert + expert;
    }
    c->n_keys = event->n_distinct;
    for (uint32_t i = 0; i < c->n_keys; i++) set_bit(c->busy, c->keys[i]);
    return 0;
}

/* Decides the hits and lists the misses. Whether a lookup hits cannot be foreseen, hence no branch on it. */
static void decide_hits(stk_cache *c, struct event_pass *pass, const stk_event *event) {
    const uint64_t *order;
    stk_cache_order(event->counts, c->n_keys, c->scratch, &order);
    for (uint32_t j = 0; j < c->n_keys; j++) {
        uint32_t i = (uint32_t)order[j], key = c->keys[i];
        int32_t slot = c->slot_of[key];
        bool hit = slot >= 0;
        c->list[pass->n_done] = (stk_decision){.key = key,
                                               .expert = event->distinct[i],
                                               .kind = STK_HIT,
                                               .coming = has_bit(c->coming, key),
                                               .n_tok = event->counts[i],
                                               .slot = (uint32_t)slot,
                                               .victim = STK_NO_KEY};
        clear_bit(c->coming, key);
        c->misses[pass->n_miss] = i;
        pass->n_done += hit;
        pass->n_miss += !hit;
        pass->n_pair += event->counts[i];
    }
}

/* All experts decided so far count as computed: they may leave, and their transit slots are free. */
static void next_wave(stk_cache *c, struct event_pass *pass) {
    for (uint32_t i = pass->wave_begin; i < pass->n_done; i++) clear_bit(c->busy, c->list[i].key);
    pass->wave_begin = pass->n_done;
    pass->wave++;
    pass->n_transit = 0;
}

static int decide_miss(stk_cache *c, struct event_pass *pass, const stk_event *event, uint32_t i) {
    struct class *class = pass->class;
    uint32_t key = c->keys[i], slot, victim = STK_NO_KEY;
    int admit = c->ops->admit ? c->ops->admit(class->policy, key) : 1;
    if (admit < 0) return admit;
    if (admit) {
        int rc = take_slot(c, class, &slot, &victim);
        if (rc == 0) {
            next_wave(c, pass);
            rc = take_slot(c, class, &slot, &victim);
        }
        if (rc == 0) return stk_fail(STK_ESTATE, "policy %s gives up no expert though some are free to go", c->ops->name);
        if (rc < 0) return rc;
        STK_TRY(insert(c, class, key, slot, STK_WHY_DEMAND));
    } else {
        if (pass->n_transit == class->n_transit) next_wave(c, pass);
        pass->n_transit++;
        slot = class->n_slot + class->next_transit;
        class->next_transit = (class->next_transit + 1) % class->n_transit;
    }
    c->list[pass->n_done++] = (stk_decision){.key = key,
                                             .expert = event->distinct[i],
                                             .kind = admit ? STK_ADMIT : STK_TRANSIT,
                                             .n_tok = event->counts[i],
                                             .slot = slot,
                                             .victim = victim,
                                             .wave = pass->wave};
    return 0;
}

/* A policy failed within the event: what was admitted and will never be read must not stay. */
static void undo_admissions(stk_cache *c, const struct event_pass *pass) {
    for (uint32_t i = 0; i < pass->n_done; i++) {
        const stk_decision *d = &c->list[i];
        if (d->kind != STK_ADMIT || c->slot_of[d->key] < 0) continue;
        (void)evict(c, pass->class, d->key); /* the first error is the one to report */
        free_slot(pass->class, d->slot);
    }
}

int stk_cache_event(stk_cache *cache, uint32_t layer, const stk_event *event, const stk_decision **list) {
    stk_cache *c = cache;
    STK_TRY(begin_event(c, layer, event));
    struct event_pass pass = {.class = &c->classes[c->layer_class[layer]]};
    STK_TRY(c->ops->touch(pass.class->policy, event, c->keys, c->n_keys));
    decide_hits(c, &pass, event);
    uint32_t n_hit = pass.n_done;
    for (uint32_t j = 0; j < pass.n_miss; j++) {
        int rc = decide_miss(c, &pass, event, c->misses[j]);
        if (rc < 0) {
            undo_admissions(c, &pass);
            return rc;
        }
    }
    for (uint32_t i = 0; pass.wave > 0 && i < pass.wave_begin; i++) set_bit(c->busy, c->list[i].key);
    c->counters.n_event++;
    c->counters.n_lookup += c->n_keys;
    c->counters.n_pair += pass.n_pair;
    c->counters.n_hit += n_hit;
    c->counters.n_miss += pass.n_miss;
    c->counters.n_wave += pass.wave + 1;
    *list = c->list;
    return (int)c->n_keys;
}

int stk_cache_prefetch(stk_cache *cache, uint32_t key, stk_decision *decision) {
    stk_cache *c = cache;
    if (key >= c->n_key) return stk_fail(STK_EINVAL, "cache: prefetch of expert %u of %u", key, c->n_key);
    if (c->slot_of[key] >= 0) return 0;
    struct class *class = &c->classes[c->layer_class[key / c->n_expert]];
    int rc = c->ops->admit ? c->ops->admit(class->policy, key) : 1;
    if (rc <= 0) return rc;
    uint32_t slot, victim;
    rc = take_slot(c, class, &slot, &victim);
    if (rc <= 0) return rc;
    STK_TRY(insert(c, class, key, slot, STK_WHY_PREFETCH));
    set_bit(c->coming, key);
    *decision =
        (stk_decision){.key = key, .expert = (uint16_t)(key % c->n_expert), .kind = STK_ADMIT, .slot = slot, .victim = victim};
    return 1;
}

int stk_cache_drop(stk_cache *cache, uint32_t key) {
    stk_cache *c = cache;
    if (key >= c->n_key) return stk_fail(STK_EINVAL, "cache: drop of expert %u of %u", key, c->n_key);
    if (c->slot_of[key] < 0) return 0;
    struct class *class = &c->classes[c->layer_class[key / c->n_expert]];
    free_slot(class, (uint32_t)c->slot_of[key]);
    return evict(c, class, key);
}

int stk_cache_clear(stk_cache *cache) {
    stk_cache *c = cache;
    int rc = 0;
    for (uint32_t key = 0; key < c->n_key; key++) {
        int dropped = stk_cache_drop(c, key);
        if (rc == 0) rc = dropped;
    }
    for (uint32_t i = 0; i < c->n_class; i++) c->classes[i].next_transit = 0;
    for (uint32_t i = 0; i < c->n_keys; i++) clear_bit(c->busy, c->keys[i]);
    c->n_keys = 0;
    return rc;
}

/* ---- Looking at it ------------------------------------------------------------------------------------------------------ */

int32_t stk_cache_slot(const stk_cache *cache, uint32_t key) { return key < cache->n_key ? cache->slot_of[key] : -1; }

void stk_cache_get_counters(const stk_cache *cache, stk_cache_counters *counters) { *counters = cache->counters; }

void stk_cache_reset_counters(stk_cache *cache) { cache->counters = (stk_cache_counters){0}; }

static uint64_t hash_bytes(uint64_t h, const void *data, size_t bytes) {
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, p + i, STK_MIN(bytes - i, (size_t)8));
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

uint64_t stk_cache_hash(const stk_cache *cache) {
    const stk_cache *c = cache;
    uint64_t h = hash_bytes(c->n_key, c->slot_of, sizeof *c->slot_of * c->n_key);
    h = hash_bytes(h, c->coming, sizeof *c->coming * n_words(c->n_key));
    for (uint32_t i = 0; i < c->n_class; i++) {
        h = hash_bytes(h, &c->classes[i].next_transit, sizeof c->classes[i].next_transit);
        int64_t bytes = c->ops->save(c->classes[i].policy, c->state, c->state_bytes);
        if (bytes > 0) h = hash_bytes(h, c->state, STK_MIN((size_t)bytes, c->state_bytes));
    }
    return h;
}
