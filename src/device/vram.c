/*
 * vram: routes and residency of the experts in VRAM.
 *
 * The rule: an expert that RAM has is fetched if the tier's policy takes it in. A policy that takes in
 * everything is asked only of an expert's second use since it was last fetched, or where a slot is free; and a prompt, which uses
 * nearly every expert once, only fills free slots, so that it does not drive out what decoding needs.
 */
#include "vram.h"

#include <stdlib.h>
#include <string.h>

enum { PROMPT_TOKENS = 8, USES_BEFORE_FETCH = 2 };

struct stk_vram {
    stk_vram_config c;
    stk_cache *cache;
    bool admits_all;      /* its policy refuses nobody */
    uint32_t force;       /* STK_PLACE_... */
    uint64_t random;      /* of forced routes */
    uint8_t *stays;       /* [n_layer * n_expert] of the mode, or NULL */
    uint8_t *uses;        /* [n_layer * n_expert] in RAM, since it was last fetched */
    stk_vram_item *items; /* [n_expert] of the event: n_resident in VRAM, then the fetches */
    stk_placed *placed;   /* [n_expert] */
    uint8_t *moved;       /* [n_expert] */
    stk_decision *list;   /* [n_expert] */
    uint16_t *distinct;   /* [n_expert] of the rest */
    uint32_t *counts;     /* [n_expert] */
    uint32_t n_item, n_resident, n_placed;
    stk_vram_counters counters;
};

/* ---- Open and close ----------------------------------------------------------------------------------------------------- */

static int open_cache(stk_vram *t, const stk_vram_config *c) {
    const stk_policy_ops *ops = stk_policy_find(c->policy);
    stk_cache_class *classes = calloc(c->n_class, sizeof *classes);
    if (!classes) return stk_fail(STK_ENOMEM, "VRAM tier: out of memory");
    for (uint32_t i = 0; i < c->n_class; i++) classes[i].n_slot = c->n_slot[i];
    int rc = stk_cache_open(&t->cache, &(stk_cache_config){.n_layer = c->n_layer,
                                                           .n_expert = c->n_expert,
                                                           .k = c->k,
                                                           .n_class = c->n_class,
                                                           .classes = classes,
                                                           .layer_class = c->layer_class,
                                                           .policy = c->policy,
                                                           .seed = c->seed,
                                                           .partial = true});
    free(classes);
    t->admits_all = ops && !ops->admit;
    return rc < 0 ? stk_fail_in(rc, "VRAM tier") : rc;
}

int stk_vram_open(stk_vram **out, const stk_vram_config *config) {
    *out = NULL;
    stk_vram *t = calloc(1, sizeof *t);
    if (!t) return stk_fail(STK_ENOMEM, "VRAM tier: out of memory");
    t->c = *config;
    t->random = config->seed + 1;
    uint32_t n = config->n_expert;
    t->uses = calloc((size_t)config->n_layer * n, 1);
    t->items = calloc(n, sizeof *t->items);
    t->placed = calloc(n, sizeof *t->placed);
    t->moved = calloc(n, 1);
    t->list = calloc(n, sizeof *t->list);
    t->distinct = calloc(n, sizeof *t->distinct);
    t->counts = calloc(n, sizeof *t->counts);
    bool all = t->uses && t->items && t->placed && t->moved && t->list && t->distinct && t->counts;
    if (all && config->placed) {
        t->stays = malloc((size_t)config->n_layer * n);
        all = t->stays != NULL;
        if (all) memcpy(t->stays, config->placed, (size_t)config->n_layer * n);
    }
    int rc = all ? open_cache(t, config) : stk_fail(STK_ENOMEM, "VRAM tier: out of memory for %u experts", n);
    t->c.n_slot = t->c.layer_class = NULL; /* the caller's */
    t->c.placed = NULL;
    if (rc < 0) stk_vram_close(&t);
    *out = t;
    return rc;
}

void stk_vram_close(stk_vram **tier) {
    stk_vram *t = *tier;
    if (!t) return;
    stk_cache_close(&t->cache);
    free(t->stays);
    free(t->uses);
    free(t->items);
    free(t->placed);
    free(t->moved);
    free(t->list);
    free(t->distinct);
    free(t->counts);
    free(t);
    *tier = NULL;
}

/* ---- Routes ------------------------------------------------------------------------------------------------------------- */

static uint32_t draw(stk_vram *t, uint32_t below) {
    t->random = t->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((t->random >> 33) % below);
}

/* Whether RAM has the bytes of an expert. */
static bool in_ram(const stk_vram *t, uint32_t key) {
    return stk_cache_slot(t->c.ram, key) >= 0 && !stk_cache_is_coming(t->c.ram, key);
}

/* 1: it is taken in, and an item. */
static int fetch(stk_vram *t, uint32_t key, uint32_t n_tok, bool ask) {
    stk_decision d;
    if (t->n_item - t->n_resident >= t->c.n_fetch) return 0;
    int rc = stk_cache_admit(t->cache, key, ask, &d);
    if (rc <= 0) return rc;
    t->items[t->n_item++] = (stk_vram_item){.key = key, .n_tok = n_tok, .slot = d.slot, .victim = d.victim, .fetch = true};
    t->placed[t->n_placed++] = (stk_placed){key, STK_PLACED_FETCH};
    return 1;
}

static void compute_on_host(stk_vram *t, stk_vram_item *item) {
    item->host = true;
    t->placed[t->n_placed++] = (stk_placed){item->key, STK_PLACED_HOST};
}

static stk_vram_item *resident(stk_vram *t, uint32_t key) {
    for (uint32_t i = 0; i < t->n_resident; i++)
        if (t->items[i].key == key) return &t->items[i];
    return NULL;
}

/* What a recorded run did. */
static int repeat(stk_vram *t, const stk_decision *list, uint32_t n, const stk_placed *placed, uint32_t n_placed) {
    for (uint32_t i = 0; i < n_placed; i++) {
        uint32_t key = placed[i].key, at = 0;
        stk_vram_item *item = resident(t, key);
        if (placed[i].where == STK_PLACED_HOST) {
            if (!item) return stk_fail(STK_ESTATE, "the replay differs from the recorded run: expert %u is not in VRAM", key);
            compute_on_host(t, item);
            continue;
        }
        while (at < n && list[at].key != key) at++;
        int rc = at < n && in_ram(t, key) ? fetch(t, key, list[at].n_tok, false) : 0;
        if (rc < 0) return rc;
        if (rc == 0) return stk_fail(STK_ESTATE, "the replay differs from the recorded run: expert %u cannot be fetched", key);
    }
    return STK_OK;
}

/* For tests: everything on the CPU, everything on the device, or as drawn. */
static int forced(stk_vram *t, const stk_decision *list, uint32_t n) {
    bool random = t->force == STK_PLACE_RANDOM;
    for (uint32_t i = 0; i < t->n_resident; i++)
        if (t->force == STK_PLACE_CPU || (random && draw(t, 4) == 0)) compute_on_host(t, &t->items[i]);
    for (uint32_t i = t->n_resident; i < n && t->force != STK_PLACE_CPU; i++)
        if (in_ram(t, list[i].key) && !(random && draw(t, 2))) {
            int rc = fetch(t, list[i].key, list[i].n_tok, false);
            if (rc < 0) return rc;
        }
    return STK_OK;
}

static int by_rule(stk_vram *t, const stk_event *event, const stk_decision *list, uint32_t n) {
    for (uint32_t i = t->n_resident; i < n; i++) {
        uint32_t key = list[i].key;
        if (!in_ram(t, key)) continue;
        if (t->uses[key] < USES_BEFORE_FETCH) t->uses[key]++;
        bool room = stk_cache_n_free(t->cache, key) > 0;
        if (!room && (event->n_tok > PROMPT_TOKENS || (t->admits_all && t->uses[key] < USES_BEFORE_FETCH))) continue;
        int rc = fetch(t, key, list[i].n_tok, true);
        if (rc < 0) return rc;
        if (rc) t->uses[key] = 0;
    }
    return STK_OK;
}

/* As a mode has it: everything, or what is to stay there. The place of what is placed is kept for it. */
static int by_mode(stk_vram *t, const stk_decision *list, uint32_t n) {
    for (uint32_t i = t->n_resident; i < n; i++) {
        uint32_t key = list[i].key;
        if (!in_ram(t, key) || (t->stays && !t->stays[key])) continue;
        int rc = fetch(t, key, list[i].n_tok, false);
        if (rc < 0) return rc;
    }
    return STK_OK;
}

static int choose(stk_vram *t, const stk_event *event, const stk_decision *list, uint32_t n) {
    if (t->force != STK_PLACE_AUTO) return forced(t, list, n);
    if (t->c.upload || t->stays) return by_mode(t, list, n);
    return by_rule(t, event, list, n);
}

/* ---- An event ----------------------------------------------------------------------------------------------------------- */

static void list_rest(stk_vram *t, const stk_event *event, stk_event *rest) {
    *rest = *event;
    rest->n_distinct = 0;
    rest->distinct = t->distinct;
    rest->counts = t->counts;
    uint64_t base = (uint64_t)event->layer * t->c.n_expert;
    for (uint32_t i = 0; i < event->n_distinct; i++) {
        if (resident(t, (uint32_t)base + event->distinct[i])) continue;
        t->distinct[rest->n_distinct] = event->distinct[i];
        t->counts[rest->n_distinct++] = event->counts[i];
    }
}

int stk_vram_begin(stk_vram *t, uint32_t layer, const stk_event *event, stk_event *rest, const stk_placed **placed,
                   uint32_t *n_placed) {
    const stk_decision *list;
    const stk_placed *record = NULL;
    t->n_item = t->n_resident = t->n_placed = 0;
    int n = stk_cache_lookup(t->cache, layer, event, &list), n_record = 0;
    if (n < 0) return n;
    for (int i = 0; i < n && list[i].kind == STK_HIT; i++) {
        t->items[t->n_item++] =
            (stk_vram_item){.key = list[i].key, .n_tok = list[i].n_tok, .slot = list[i].slot, .victim = STK_NO_KEY};
        t->counters.n_pair += list[i].n_tok;
    }
    t->n_resident = t->n_item;
    t->counters.n_hit += t->n_resident;
    list_rest(t, event, rest);
    if (t->c.ops->recorded && (n_record = t->c.ops->recorded(t->c.world, &record)) < 0) return n_record;
    STK_TRY(t->c.ops->recorded ? repeat(t, list, (uint32_t)n, record, (uint32_t)n_record) : choose(t, event, list, (uint32_t)n));
    *placed = t->placed;
    *n_placed = t->n_placed;
    return STK_OK;
}

static stk_vram_item *fetched(stk_vram *t, uint32_t key) {
    for (uint32_t i = t->n_resident; i < t->n_item; i++)
        if (t->items[i].key == key) return &t->items[i];
    return NULL;
}

uint32_t stk_vram_split(stk_vram *t, const stk_decision *list, uint32_t n, const stk_decision **cpu, bool *before_reads) {
    uint32_t left = 0;
    *before_reads = false;
    for (uint32_t i = 0; i < n; i++) {
        stk_vram_item *item = fetched(t, list[i].key);
        if (list[i].victim != STK_NO_KEY && fetched(t, list[i].victim)) *before_reads = true;
        if (item)
            item->ram_slot = list[i].slot;
        else
            t->list[left++] = list[i];
    }
    *cpu = t->list;
    return left;
}

int stk_vram_launch(stk_vram *t, uint32_t layer, const stk_event *event, bool before_reads) {
    return t->n_item ? t->c.ops->launch(t->c.world, layer, event, t->items, t->n_item, before_reads) : STK_OK;
}

/* What left VRAM for a fetch goes back to RAM, if it is at hand and RAM's policy wants it. */
static int give_back(stk_vram *t, uint32_t i) {
    const stk_vram_item *item = &t->items[i];
    stk_decision d;
    if (item->victim == STK_NO_KEY) return STK_OK;
    int rc = item->moved & STK_MOVED_BACK ? stk_cache_admit(t->c.ram, item->victim, true, &d) : 0;
    if (rc > 0) {
        t->counters.n_return++;
        return t->c.ops->restore(t->c.world, t->items, i, &d);
    }
    t->counters.n_drop++;
    return rc;
}

static int settle(stk_vram *t, uint32_t i) {
    const stk_vram_item *item = &t->items[i];
    t->counters.n_fetch++;
    if (item->moved & STK_MOVED_IN) {
        STK_TRY(stk_cache_drop(t->c.ram, item->key));
    } else {
        t->counters.n_fetch_failed++;
        STK_TRY(stk_cache_drop(t->cache, item->key));
    }
    return give_back(t, i);
}

int stk_vram_end(stk_vram *t, const uint8_t **moved, uint32_t *n_moved) {
    uint32_t n = t->n_item;
    *n_moved = n - t->n_resident;
    *moved = t->moved;
    for (uint32_t i = 0; i < t->n_resident; i++) t->counters.n_host += t->items[i].host;
    int rc = n ? t->c.ops->finish(t->c.world, t->items, n) : STK_OK;
    for (uint32_t i = t->n_resident; i < n; i++) {
        t->moved[i - t->n_resident] = t->items[i].moved;
        int settled = settle(t, i);
        if (rc >= 0) rc = settled;
    }
    t->n_item = t->n_resident = 0;
    return rc;
}

/* ---- The rest ----------------------------------------------------------------------------------------------------------- */

void stk_vram_force(stk_vram *t, uint32_t place) { t->force = place; }

bool stk_vram_has(const stk_vram *t, uint32_t key) { return t && stk_cache_slot(t->cache, key) >= 0; }

int stk_vram_clear(stk_vram *t) {
    memset(t->uses, 0, (size_t)t->c.n_layer * t->c.n_expert);
    return stk_cache_clear(t->cache);
}

void stk_vram_get_counters(const stk_vram *t, stk_vram_counters *counters) { *counters = t->counters; }

uint64_t stk_vram_hash(const stk_vram *t) { return stk_cache_hash(t->cache); }
