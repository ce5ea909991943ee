/*
 * cache: decisions for one tier. Residency is slot_of (by key) and key_in (by class and slot), always each other's inverse.
 *
 * Experts of the latest event are busy until the next one begins, so that a prefetch issued while they are being computed cannot
 * take their slots. Inside an event, the start of a wave frees those decided before it.
 */
#include "cache/residency.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/order.h"

/* What deciding the misses of one event carries along. */
struct event_pass {
    struct class *class;
    uint32_t to_key; /* from a local key of the layer to its key */
    uint32_t n_done; /* decisions made */
    uint32_t n_miss;
    uint64_t n_pair;
    uint32_t wave_begin; /* the first decision of this wave */
    uint32_t wave;
    uint32_t n_transit; /* transit slots used in this wave */
};

/* ---- Open and close ----------------------------------------------------------------------------------------------------- */

/* The policies that would do here, for a message. */
static int no_policy(const stk_cache_config *config) {
    char all[256] = "";
    for (const char *const *name = stk_policy_names(); *name; name++)
        if (!stk_policy_find(*name)->needs_future)
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", *all ? ", " : "", *name);
    return stk_fail(STK_EINVAL, "no eviction policy \"%s\"; there are: %s, and in a replay belady and belady-bypass",
                    config->policy ? config->policy : "", all);
}

static int check_config(const stk_cache_config *config, const stk_policy_ops *ops) {
    uint64_t n_key = (uint64_t)config->n_layer * config->n_expert;
    if (!config->n_layer || !config->n_expert || config->n_expert >= STK_NO_EXPERT || n_key > INT32_MAX)
        return stk_fail(STK_EINVAL, "cache: %u layers of %u experts are not supported", config->n_layer, config->n_expert);
    if (!config->k || config->k > config->n_expert)
        return stk_fail(STK_EINVAL, "cache: %u experts a token of %u", config->k, config->n_expert);
    if (!ops) return no_policy(config);
    if (ops->needs_future && !config->future)
        return stk_fail(STK_EINVAL, "policy %s needs to know the future: it is for the replay of a trace alone", ops->name);
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        uint32_t i = config->layer_class[layer];
        if (i >= config->n_class) return stk_fail(STK_EINVAL, "cache: layer %u is of class %u of %u", layer, i, config->n_class);
        const stk_cache_class *class = &config->classes[i];
        if (!config->partial) STK_TRY(stk_residency_check(ops, i, class->n_slot, class->n_transit, config->k));
    }
    return 0;
}

/* Local keys: the layers of each class in order. */
static int number_keys(stk_cache *c) {
    for (uint32_t layer = 0; layer < c->n_layer; layer++) {
        struct class *class = &c->classes[c->layer_class[layer]];
        c->local_of[layer] = class->n_local;
        class->n_local += c->n_expert;
    }
    for (uint32_t i = 0; i < c->n_class; i++) {
        struct class *class = &c->classes[i];
        if (!class->n_local) continue;
        class->layers = calloc(class->n_local / c->n_expert, sizeof *class->layers);
        class->key_of = calloc(class->n_local, sizeof *class->key_of);
        class->busy = calloc(stk_bit_words(class->n_local), sizeof *class->busy);
        if (!class->layers || !class->key_of || !class->busy)
            return stk_fail(STK_ENOMEM, "cache: out of memory for %u experts", class->n_local);
    }
    for (uint32_t layer = 0; layer < c->n_layer; layer++) {
        struct class *class = &c->classes[c->layer_class[layer]];
        class->layers[c->local_of[layer] / c->n_expert] = layer;
        for (uint32_t e = 0; e < c->n_expert; e++) class->key_of[c->local_of[layer] + e] = layer * c->n_expert + e;
    }
    return 0;
}

/* The most bytes that saving may take: with as many slots as there may ever be. */
static int measure_state(stk_cache *c, const struct class *class) {
    STK_TRY(c->ops->resized(class->policy, class->n_slot_max));
    int64_t bytes = c->ops->save(class->policy, NULL, 0);
    if (bytes < 0) return (int)bytes;
    c->state_bytes = STK_MAX(c->state_bytes, (size_t)bytes);
    return c->ops->resized(class->policy, STK_MAX(class->n_slot, 1u));
}

static int open_class(stk_cache *c, struct class *class, const stk_cache_config *config, uint32_t i) {
    if (!class->n_local) return 0; /* no layer has experts of this size: no slots, no policy */
    class->n_slot = config->classes[i].n_slot;
    class->n_transit = config->classes[i].n_transit;
    class->n_slot_max = STK_MAX(class->n_slot, class->n_local);
    class->free_slots = calloc(stk_bit_words(class->n_slot_max) + 1, sizeof(uint64_t));
    class->key_in = calloc(class->n_slot_max, sizeof *class->key_in);
    if (!class->free_slots || !class->key_in) return stk_fail(STK_ENOMEM, "cache: out of memory for %u slots", class->n_slot);
    stk_residency_empty(class);
    const stk_policy_config policy = {.n_key = class->n_local,
                                      .n_expert = c->n_expert,
                                      .n_slot = STK_MAX(class->n_slot, 1u), /* of a class without slots nothing is asked */
                                      .seed = config->seed + i,
                                      .params = config->params,
                                      .future = c->future,
                                      .layers = class->layers,
                                      .told = &c->told,
                                      .shared = &c->shared,
                                      .instance = i,
                                      .n_key_all = c->n_key,
                                      .user = config->ops_user,
                                      .one_wave = config->partial};
    STK_TRY(c->ops->open(&class->policy, &policy));
    return measure_state(c, class);
}

static int open_all(stk_cache *c, const stk_cache_config *config) {
    c->classes = calloc(c->n_class, sizeof *c->classes);
    c->layer_class = calloc(c->n_layer, sizeof *c->layer_class);
    c->local_of = calloc(c->n_layer, sizeof *c->local_of);
    c->slot_of = malloc(sizeof *c->slot_of * c->n_key);
    c->coming = calloc(stk_bit_words(c->n_key), sizeof *c->coming);
    c->held = calloc(c->n_key, sizeof *c->held);
    c->keys = calloc(c->n_expert, sizeof *c->keys);
    c->misses = calloc(c->n_expert, sizeof *c->misses);
    c->scratch = calloc(c->n_expert, 2 * sizeof *c->scratch);
    c->list = calloc(c->n_expert, sizeof *c->list);
    if (!c->classes || !c->layer_class || !c->local_of || !c->slot_of || !c->coming || !c->held || !c->keys || !c->misses ||
        !c->scratch || !c->list)
        return stk_fail(STK_ENOMEM, "cache: out of memory for %u experts", c->n_key);
    memcpy(c->layer_class, config->layer_class, sizeof *c->layer_class * c->n_layer);
    memset(c->slot_of, 0xff, sizeof *c->slot_of * c->n_key);
    if (config->future) STK_TRY(stk_future_cursor_open(&c->future, config->future));
    STK_TRY(number_keys(c));
    uint32_t n_slot_max = 1;
    for (uint32_t i = 0; i < c->n_class; i++) {
        STK_TRY(open_class(c, &c->classes[i], config, i));
        n_slot_max = STK_MAX(n_slot_max, c->classes[i].n_slot_max);
    }
    c->latest = c->classes;
    c->moves = calloc(n_slot_max, sizeof *c->moves);
    c->state = calloc(1, c->state_bytes + 1);
    return c->moves && c->state ? 0 : stk_fail(STK_ENOMEM, "cache: out of memory for %zu bytes of state", c->state_bytes);
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
    c->k = config->k;
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
        struct class *class = &c->classes[i];
        if (class->policy) c->ops->close(class->policy);
        free(class->free_slots);
        free(class->key_in);
        free(class->layers);
        free(class->key_of);
        free(class->busy);
    }
    stk_future_cursor_close(&c->future);
    free(c->classes);
    free(c->layer_class);
    free(c->local_of);
    free(c->slot_of);
    free(c->coming);
    free(c->held);
    free(c->keys);
    free(c->misses);
    free(c->scratch);
    free(c->list);
    free(c->moves);
    free(c->state);
    free(c);
    *cache = NULL;
}

/* ---- Slots -------------------------------------------------------------------------------------------------------------- */

static uint32_t take_free(struct class *class) {
    while (!class->free_slots[class->free_from]) class->free_from++;
    uint32_t slot = class->free_from * 64 + (uint32_t)__builtin_ctzll(class->free_slots[class->free_from]);
    stk_bit_clear(class->free_slots, slot);
    class->n_free--;
    return slot;
}

/* 1: *slot is the lowest free one, or that of *victim, which has left; 0: all are busy. */
static int take_slot(stk_cache *c, struct class *class, uint32_t *slot, uint32_t *victim) {
    *victim = STK_NO_KEY;
    if (class->n_free) {
        *slot = take_free(class);
        return 1;
    }
    uint32_t local, key;
    int rc = stk_residency_victim(c, class, &local, &key);
    if (rc <= 0) return rc;
    *slot = (uint32_t)c->slot_of[key];
    *victim = key;
    rc = stk_residency_evict(c, class, key, local);
    if (rc < 0) {
        stk_residency_free_slot(class, *slot);
        return rc;
    }
    c->counters.n_evict++;
    return 1;
}

static int insert(stk_cache *c, struct class *class, uint32_t key, uint32_t local, uint32_t slot, enum stk_why why) {
    int rc = c->ops->inserted(class->policy, local, why);
    if (rc < 0) {
        stk_residency_free_slot(class, slot);
        return rc;
    }
    c->slot_of[key] = (int32_t)slot;
    class->key_in[slot] = key;
    return 0;
}

/* take_slot and insert for what an event misses. */
static inline int take_in(stk_cache *c, struct class *class, uint32_t key, uint32_t local, uint32_t *slot, uint32_t *victim) {
    int rc;
    if (class->n_free || !c->ops->replace) {
        rc = take_slot(c, class, slot, victim);
        if (rc <= 0) return rc;
        rc = insert(c, class, key, local, *slot, STK_WHY_DEMAND);
        return rc < 0 ? rc : 1;
    }
    uint32_t leaves = STK_NO_KEY;
    rc = c->ops->replace(class->policy, class->busy, local, &leaves);
    if (rc <= 0) return rc;
    uint32_t old = leaves < class->n_local ? class->key_of[leaves] : STK_NO_KEY;
    if (old == STK_NO_KEY || c->slot_of[old] < 0)
        return stk_fail(STK_ESTATE, "policy %s gave up expert %u, which is not there", c->ops->name, leaves);
    *victim = old;
    *slot = (uint32_t)c->slot_of[old];
    c->slot_of[old] = -1;
    if (c->reads_ahead) stk_residency_forget_ahead(c, old);
    c->slot_of[key] = (int32_t)*slot;
    class->key_in[*slot] = key;
    c->counters.n_evict++;
    return 1;
}

/* ---- Events ------------------------------------------------------------------------------------------------------------- */

/* The latest event is over; the experts of this one, checked, become the busy ones. */
static int begin_event(stk_cache *c, uint32_t layer, const stk_event *event) {
    stk_residency_idle(c);
    if (layer >= c->n_layer) return stk_fail(STK_EINVAL, "cache: layer %u of %u", layer, c->n_layer);
    if (event->n_distinct > c->n_expert)
        return stk_fail(STK_EINVAL, "cache: an event of %u experts, a layer has %u", event->n_distinct, c->n_expert);
    c->latest = &c->classes[c->layer_class[layer]];
    uint32_t least = 0, n_expert = c->n_expert, base = c->local_of[layer], *keys = c->keys;
    for (uint32_t i = 0; i < event->n_distinct; i++) {
        uint32_t expert = event->distinct[i];
        if (expert < least || expert >= n_expert)
            return stk_fail(STK_EINVAL, "cache: expert %u of an event is out of order or not below %u", expert, n_expert);
        least = expert + 1;
        keys[i] = base + expert;
    }
    c->n_keys = event->n_distinct;
    if (c->n_held) stk_residency_release(c, layer);
    uint64_t *busy = c->latest->busy;
    for (uint32_t i = 0; i < c->n_keys; i++) stk_bit_set(busy, keys[i]);
    return 0;
}

/* Decides the hits and lists the misses. Whether a lookup hits cannot be foreseen, hence no branch on it; what it reads through
 * `c` is held in locals, as each store could change it for all the compiler knows. */
static inline void decide(stk_cache *c, struct event_pass *pass, const stk_event *event, const uint64_t *order,
                          uint64_t *coming) {
    const uint32_t *counts = event->counts, *keys = c->keys, n_keys = c->n_keys, to_key = pass->to_key;
    const uint16_t *distinct = event->distinct;
    const int32_t *slot_of = c->slot_of;
    uint64_t n_pair = 0, n_used = 0;
    uint32_t *misses = c->misses, n_done = 0, n_miss = 0;
    stk_decision *list = c->list;
    for (uint32_t j = 0; j < n_keys; j++) {
        uint32_t i = (uint32_t)order[j], key = keys[i] + to_key, n_tok = counts[i];
        int32_t slot = slot_of[key];
        bool hit = slot >= 0, comes = coming && stk_bit_has(coming, key);
        list[n_done] = (stk_decision){.key = key,
                                      .expert = distinct[i],
                                      .kind = STK_HIT,
                                      .coming = comes,
                                      .n_tok = n_tok,
                                      .slot = (uint32_t)slot,
                                      .victim = STK_NO_KEY};
        if (comes) stk_bit_clear(coming, key);
        n_used += comes;
        misses[n_miss] = i;
        n_done += hit;
        n_miss += !hit;
        n_pair += n_tok;
    }
    c->counters.n_prefetch_used += n_used;
    pass->n_done = n_done;
    pass->n_miss = n_miss;
    pass->n_pair = n_pair;
}

/* A loop of its own for caches that nothing was ever read ahead for: their experts have no `coming` to look up. */
static void decide_hits(stk_cache *c, struct event_pass *pass, const stk_event *event) {
    const uint64_t *order = stk_order_of(event, c->n_keys, c->scratch);
    if (c->reads_ahead)
        decide(c, pass, event, order, c->coming);
    else
        decide(c, pass, event, order, NULL);
}

/* All experts decided so far count as computed: they may leave, and their transit slots are free. */
static void next_wave(stk_cache *c, struct event_pass *pass) {
    for (uint32_t i = pass->wave_begin; i < pass->n_done; i++) stk_bit_clear(pass->class->busy, c->list[i].key - pass->to_key);
    pass->wave_begin = pass->n_done;
    pass->wave++;
    pass->n_transit = 0;
}

static int decide_miss(stk_cache *c, struct event_pass *pass, const stk_event *event, uint32_t i) {
    struct class *class = pass->class;
    uint32_t local = c->keys[i], key = local + pass->to_key, slot, victim = STK_NO_KEY;
    int admit = c->ops->admit ? c->ops->admit(class->policy, local) : 1;
    if (admit < 0) return admit;
    if (admit) {
        int rc = take_in(c, class, key, local, &slot, &victim);
        if (rc == 0 && c->n_held) { /* predictions yield to what is needed */
            stk_residency_release(c, STK_NO_KEY);
            rc = take_in(c, class, key, local, &slot, &victim);
        }
        if (rc == 0) {
            next_wave(c, pass);
            rc = take_in(c, class, key, local, &slot, &victim);
        }
        if (rc == 0) return stk_fail(STK_ESTATE, "policy %s gives up no expert though some are free to go", c->ops->name);
        if (rc < 0) return rc;
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
        (void)stk_residency_evict(c, pass->class, d->key, d->key - pass->to_key); /* the first error is the one to report */
        stk_residency_free_slot(pass->class, d->slot);
    }
}

int stk_cache_event(stk_cache *cache, uint32_t layer, const stk_event *event, const stk_decision **list) {
    stk_cache *c = cache;
    STK_TRY(begin_event(c, layer, event));
    struct event_pass pass = {.class = c->latest, .to_key = layer * c->n_expert - c->local_of[layer]};
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
    for (uint32_t i = 0; pass.wave > 0 && i < pass.wave_begin; i++) stk_bit_set(pass.class->busy, c->list[i].key - pass.to_key);
    c->counters.n_event++;
    c->counters.n_lookup += c->n_keys;
    c->counters.n_pair += pass.n_pair;
    c->counters.n_hit += n_hit;
    c->counters.n_miss += pass.n_miss;
    c->counters.n_wave += pass.wave + 1;
    *list = c->list;
    return (int)c->n_keys;
}

/* ---- A tier in front of another ----------------------------------------------------------------------------------------- */

int stk_cache_lookup(stk_cache *cache, uint32_t layer, const stk_event *event, const stk_decision **list) {
    stk_cache *c = cache;
    STK_TRY(begin_event(c, layer, event));
    struct event_pass pass = {.class = c->latest, .to_key = layer * c->n_expert - c->local_of[layer]};
    STK_TRY(c->ops->touch(pass.class->policy, event, c->keys, c->n_keys));
    decide_hits(c, &pass, event);
    c->counters.n_hit += pass.n_done;
    for (uint32_t j = 0; j < pass.n_miss; j++) {
        uint32_t i = c->misses[j];
        c->list[pass.n_done++] = (stk_decision){.key = c->keys[i] + pass.to_key,
                                                .expert = event->distinct[i],
                                                .kind = STK_AWAY,
                                                .n_tok = event->counts[i],
                                                .victim = STK_NO_KEY};
    }
    c->counters.n_event++;
    c->counters.n_wave++;
    c->counters.n_lookup += c->n_keys;
    c->counters.n_pair += pass.n_pair;
    c->counters.n_miss += pass.n_miss;
    *list = c->list;
    return (int)c->n_keys;
}

int stk_cache_admit(stk_cache *cache, uint32_t key, bool ask, stk_decision *decision) {
    stk_cache *c = cache;
    if (key >= c->n_key) return stk_fail(STK_EINVAL, "cache: expert %u of %u cannot be taken in", key, c->n_key);
    struct class *class = stk_residency_class(c, key);
    uint32_t local = stk_residency_local(c, key), slot, victim;
    if (c->slot_of[key] >= 0 || class->n_slot == 0) return 0;
    int rc = ask && c->ops->admit ? c->ops->admit(class->policy, local) : 1;
    if (rc <= 0) return rc;
    rc = take_slot(c, class, &slot, &victim);
    if (rc <= 0) return rc;
    STK_TRY(insert(c, class, key, local, slot, STK_WHY_DEMAND));
    *decision =
        (stk_decision){.key = key, .expert = (uint16_t)(key % c->n_expert), .kind = STK_ADMIT, .slot = slot, .victim = victim};
    return 1;
}

bool stk_cache_is_coming(const stk_cache *cache, uint32_t key) { return key < cache->n_key && stk_bit_has(cache->coming, key); }

uint32_t stk_cache_n_free(const stk_cache *cache, uint32_t key) {
    return key < cache->n_key ? stk_residency_class(cache, key)->n_free : 0;
}

int stk_cache_prefetch(stk_cache *cache, uint32_t key, stk_decision *decision) {
    stk_cache *c = cache;
    if (key >= c->n_key) return stk_fail(STK_EINVAL, "cache: prefetch of expert %u of %u", key, c->n_key);
    if (c->slot_of[key] >= 0) return 0;
    struct class *class = stk_residency_class(c, key);
    uint32_t local = stk_residency_local(c, key);
    int rc = c->ops->admit ? c->ops->admit(class->policy, local) : 1;
    if (rc <= 0) return rc;
    uint32_t slot, victim;
    rc = take_slot(c, class, &slot, &victim);
    if (rc <= 0) return rc;
    STK_TRY(insert(c, class, key, local, slot, STK_WHY_PREFETCH));
    stk_bit_set(c->coming, key);
    c->reads_ahead = true;
    stk_bit_set(class->busy, local);
    c->held[c->n_held++] = key;
    c->counters.n_prefetch++;
    *decision =
        (stk_decision){.key = key, .expert = (uint16_t)(key % c->n_expert), .kind = STK_ADMIT, .slot = slot, .victim = victim};
    return 1;
}

int32_t stk_cache_slot(const stk_cache *cache, uint32_t key) { return key < cache->n_key ? cache->slot_of[key] : -1; }

void stk_cache_get_counters(const stk_cache *cache, stk_cache_counters *counters) { *counters = cache->counters; }

void stk_cache_reset_counters(stk_cache *cache) { cache->counters = (stk_cache_counters){0}; }
