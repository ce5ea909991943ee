/* tiers: VRAM over RAM over the drive, as residency. */
#include "tiers.h"

#include <stdlib.h>
#include <string.h>

#include "budget.h"

/* ---- Open ---------------------------------------------------------------------------------------------------------------- */

static uint64_t slot_bytes(const stk_trace_header *h, uint32_t layer) { return h->classes[h->layer_class[layer]].slot_bytes; }

uint64_t stk_tiers_read_bytes(const stk_trace_header *h, uint32_t layer, uint32_t expert) {
    const stk_trace_extent *x = h->extents + ((size_t)layer * h->n_expert + expert) * h->n_part;
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < h->n_part; p++) bytes += x[p].bytes;
    return bytes;
}

/* As many slots for each class as experts of its layers have been placed. */
static void size_by_placement(const stk_tiers *t, stk_budget *b) {
    const stk_trace_header *h = t->c.header;
    for (uint32_t c = 0; c < b->n_class; c++) b->classes[c].n_slot = 0;
    for (uint32_t key = 0; key < h->n_layer * h->n_expert; key++)
        b->classes[b->layer_class[key / h->n_expert]].n_slot += t->placed[key];
}

/* A cache of `bytes`. In VRAM nothing is in transit: what may not stay goes through staging, which is not part of the budget; and
 * layers that have used more of their experts get more slots, where that is known. */
static int open_cache(stk_tiers *t, uint64_t bytes, const char *policy, bool by_layer, bool vram, stk_cache **out) {
    const stk_trace_header *h = t->c.header;
    const stk_policy_ops *ops = stk_policy_find(policy);
    if (!ops) return stk_fail(STK_EINVAL, "there is no policy '%s'", policy);
    if (ops->needs_future) return stk_fail(STK_EINVAL, "policy '%s' needs the future, which tiers do not foresee", policy);
    stk_replay_options o = {.ram_bytes = bytes, .policy = policy, .scope = by_layer ? STK_SCOPE_LAYER : STK_SCOPE_GLOBAL};
    stk_budget b;
    int rc = stk_budget_open(&b, h, &o, !vram && ops->admit);
    if (rc < 0) return stk_fail_in(rc, "%s", vram ? "VRAM" : "RAM");
    *(vram ? &t->vram_slot_bytes : &t->ram_slot_bytes) = b.ram_bytes;
    if (vram && by_layer && t->c.uses) size_by_placement(t, &b);
    rc = stk_cache_open(out, &(stk_cache_config){.n_layer = h->n_layer,
                                                 .n_expert = h->n_expert,
                                                 .k = h->k,
                                                 .n_class = b.n_class,
                                                 .classes = b.classes,
                                                 .layer_class = b.layer_class,
                                                 .policy = policy,
                                                 .params = policy == t->c.policy ? t->c.params : NULL,
                                                 .seed = t->c.seed,
                                                 .partial = vram});
    stk_budget_close(&b);
    return rc;
}

/* Puts an expert into VRAM before the first event, if there is room. */
static int place(stk_tiers *t, uint32_t key, uint64_t *left) {
    uint64_t bytes = slot_bytes(t->c.header, key / t->c.header->n_expert);
    if (bytes > *left || t->placed[key]) return STK_OK;
    t->placed[key] = 1;
    *left -= bytes;
    return STK_OK;
}

/* An expert of every layer in turn, so that each has as many. */
static int place_evenly(stk_tiers *t, uint64_t *left) {
    const stk_trace_header *h = t->c.header;
    for (uint32_t e = 0; e < h->n_expert; e++)
        for (uint32_t l = 0; l < h->n_layer; l++) STK_TRY(place(t, l * h->n_expert + e, left));
    return STK_OK;
}

/* From the last layer down, whole layers. */
static int place_layers(stk_tiers *t, uint64_t *left) {
    const stk_trace_header *h = t->c.header;
    for (uint32_t l = h->n_layer; l-- > 0 && slot_bytes(h, l) * h->n_expert <= *left;)
        for (uint32_t e = 0; e < h->n_expert; e++) STK_TRY(place(t, l * h->n_expert + e, left));
    return STK_OK;
}

typedef struct used {
    uint64_t uses;
    uint32_t key;
} used;

static int by_uses(const void *a, const void *b) {
    const used *x = a, *y = b;
    if (x->uses != y->uses) return x->uses > y->uses ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

static int place_used(stk_tiers *t, uint64_t *left) {
    uint32_t n_key = t->c.header->n_layer * t->c.header->n_expert;
    used *order = calloc(n_key, sizeof *order);
    if (!order) return stk_fail(STK_ENOMEM, "out of memory for the tiers");
    for (uint32_t key = 0; key < n_key; key++) order[key] = (used){t->c.uses[key], key};
    qsort(order, n_key, sizeof *order, by_uses);
    int rc = STK_OK;
    for (uint32_t i = 0; rc >= 0 && i < n_key; i++) rc = place(t, order[i].key, left);
    free(order);
    return rc;
}

/* A cache begins with what would have been placed: memory that is there is filled while the model is read. The best go in last,
 * as those a policy keeps longest. */
static int warm(stk_tiers *t) {
    const stk_trace_header *h = t->c.header;
    stk_decision d;
    for (uint32_t key = 0; key < h->n_layer * h->n_expert; key++) {
        if (!t->placed[key]) continue;
        int rc = stk_cache_admit(t->vram, key, false, &d);
        if (rc < 0) return rc;
        t->placed[key] = 0;
    }
    return STK_OK;
}

static bool has_cache(const stk_mode *mode) { return mode->placement <= STK_PLACE_LAYER; }

static int open_vram(stk_tiers *t) {
    uint64_t left = t->c.vram_bytes;
    bool by_layer = t->c.mode->placement == STK_PLACE_LAYER;
    const char *policy = t->c.mode->policy ? t->c.mode->policy : t->c.policy ? t->c.policy : "learned";
    if (t->c.mode->placement == STK_PLACE_PROFILE && !t->c.uses)
        return stk_fail(STK_EINVAL, "mode %s places experts by what other sequences used: name a trace of those (--uses-from)",
                        t->c.mode->name);
    if (t->c.vram_bytes == 0) return STK_OK;
    if (has_cache(t->c.mode) && by_layer && t->c.uses) {
        STK_TRY(place_used(t, &left));
        STK_TRY(open_cache(t, t->c.vram_bytes, policy, true, true, &t->vram));
        return warm(t);
    }
    if (has_cache(t->c.mode)) {
        STK_TRY(open_cache(t, t->c.vram_bytes, policy, by_layer, true, &t->vram));
        left = t->vram_slot_bytes;
    }
    if (t->c.mode->placement == STK_PLACE_LAYERS)
        STK_TRY(place_layers(t, &left));
    else
        STK_TRY(t->c.uses && t->c.mode->placement != STK_PLACE_UNIFORM ? place_used(t, &left) : place_evenly(t, &left));
    if (t->vram) return warm(t);
    t->vram_slot_bytes = t->c.vram_bytes - left;
    return STK_OK;
}

static uint64_t all_bytes(const stk_trace_header *h) {
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < h->n_layer; l++) bytes += slot_bytes(h, l) * h->n_expert;
    return bytes;
}

static int open_ram(stk_tiers *t) {
    uint64_t all = all_bytes(t->c.header);
    t->ram_slot_bytes = all;
    if (t->c.ram_bytes == 0 || t->c.ram_bytes >= all) return STK_OK;
    return open_cache(t, t->c.ram_bytes, t->c.policy ? t->c.policy : "lru", false, false, &t->ram);
}

int stk_tiers_open(stk_tiers *t, const stk_tiers_config *config) {
    uint32_t n_expert = config->header->n_expert;
    *t = (stk_tiers){.c = *config};
    t->placed = calloc((size_t)config->header->n_layer * n_expert, 1);
    t->distinct = calloc(n_expert, sizeof *t->distinct);
    t->counts = calloc(n_expert, sizeof *t->counts);
    t->at = calloc(n_expert, sizeof *t->at);
    t->wave = calloc(n_expert, sizeof *t->wave);
    t->taken = calloc(n_expert, sizeof *t->taken);
    int rc = STK_OK;
    if (!t->placed || !t->distinct || !t->counts || !t->at || !t->wave || !t->taken)
        rc = stk_fail(STK_ENOMEM, "out of memory for the tiers");
    if (rc >= 0) rc = open_vram(t);
    if (rc >= 0) rc = open_ram(t);
    if (rc < 0) stk_tiers_close(t);
    return rc;
}

void stk_tiers_close(stk_tiers *t) {
    stk_cache_close(&t->vram);
    stk_cache_close(&t->ram);
    free(t->placed);
    free(t->distinct);
    free(t->counts);
    free(t->at);
    free(t->wave);
    free(t->taken);
    *t = (stk_tiers){0};
}

/* ---- Events -------------------------------------------------------------------------------------------------------------- */

bool stk_tiers_in_vram(const stk_tiers *t, uint32_t key) {
    return t->vram ? stk_cache_slot(t->vram, key) >= 0 : t->placed[key] != 0;
}

/* Asks RAM for what is not in VRAM. */
static int look_in_ram(stk_tiers *t, const stk_event *event) {
    stk_event rest = *event;
    const stk_decision *list;
    rest.n_distinct = 0;
    rest.distinct = t->distinct;
    rest.counts = t->counts;
    for (uint32_t i = 0; i < event->n_distinct; i++) {
        if (t->at[event->distinct[i]] == STK_TIER_VRAM) continue;
        t->distinct[rest.n_distinct] = event->distinct[i];
        t->counts[rest.n_distinct++] = event->counts[i];
    }
    int n = stk_cache_event(t->ram, event->layer, &rest, &list);
    for (int i = 0; i < n; i++) {
        t->at[list[i].expert] = list[i].kind == STK_HIT ? STK_TIER_RAM : STK_TIER_NVME;
        t->wave[list[i].expert] = list[i].wave;
        t->taken[list[i].expert] = list[i].kind == STK_ADMIT;
    }
    return n < 0 ? n : STK_OK;
}

int stk_tiers_look(stk_tiers *t, const stk_event *event, stk_plan_item *items) {
    const stk_trace_header *h = t->c.header;
    const stk_decision *list;
    uint64_t payload = h->classes[h->layer_class[event->layer]].payload_bytes;
    if (t->vram) {
        int rc = stk_cache_lookup(t->vram, event->layer, event, &list);
        if (rc < 0) return rc;
    }
    for (uint32_t i = 0; i < event->n_distinct; i++) {
        uint32_t expert = event->distinct[i];
        t->at[expert] = stk_tiers_in_vram(t, event->layer * h->n_expert + expert) ? STK_TIER_VRAM : STK_TIER_RAM;
        t->wave[expert] = 0;
    }
    if (t->ram) STK_TRY(look_in_ram(t, event));
    for (uint32_t i = 0; i < event->n_distinct; i++) {
        uint32_t expert = event->distinct[i], key = event->layer * h->n_expert + expert;
        bool vram = t->at[expert] == STK_TIER_VRAM;
        items[i] = (stk_plan_item){.index = i,
                                   .n_tok = event->counts[i],
                                   .payload_bytes = payload,
                                   .read_bytes = stk_tiers_read_bytes(h, event->layer, expert),
                                   .wave = t->wave[expert],
                                   .tier = t->at[expert],
                                   .ram_copy = vram && (t->ram ? stk_cache_slot(t->ram, key) >= 0 : true),
                                   .may_stay = t->vram != NULL};
    }
    return STK_OK;
}

/* The victim of a fetch: back to RAM, if it is not there, the link has the time, and RAM's policy takes it. */
static int give_back(stk_tiers *t, const stk_cost *cost, uint32_t key, double now_ns, double done_ns) {
    stk_decision d;
    if (!t->ram || stk_cache_slot(t->ram, key) >= 0) return STK_OK;
    const stk_trace_header *h = t->c.header;
    uint64_t bytes = h->classes[h->layer_class[key / h->n_expert]].payload_bytes;
    double until = STK_MAX(t->back_free_ns, now_ns) + stk_cost_copy_ns(cost, bytes, true);
    int rc = until <= now_ns + done_ns ? stk_cache_prefetch(t->ram, key, &d) : 0;
    if (rc <= 0) {
        t->n_dropped++;
        return rc;
    }
    t->back_free_ns = until;
    t->back_bytes += bytes;
    return STK_OK;
}

int stk_tiers_promote(stk_tiers *t, const stk_cost *cost, uint32_t key, double now_ns, double done_ns, uint32_t *victim) {
    stk_decision d;
    if (!t->vram) return 0;
    int rc = stk_cache_admit(t->vram, key, true, &d);
    if (rc <= 0) return rc;
    *victim = d.victim;
    if (t->ram && !t->c.mode->keeps_ram) STK_TRY(stk_cache_drop(t->ram, key));
    if (d.victim != STK_NO_KEY) STK_TRY(give_back(t, cost, d.victim, now_ns, done_ns));
    return 1;
}

int stk_tiers_settle(stk_tiers *t, const stk_cost *cost, const stk_event *event, const stk_plan_item *items, double now_ns,
                     double done_ns) {
    for (uint32_t i = 0; t->vram && i < event->n_distinct; i++) {
        const stk_plan_item *it = &items[i];
        uint32_t key = event->layer * t->c.header->n_expert + event->distinct[it->index], victim;
        if (!it->may_stay || !stk_route_by_link(it->route) || it->route == STK_ROUTE_BYPASS) continue;
        int rc = stk_tiers_promote(t, cost, key, now_ns, done_ns, &victim);
        if (rc < 0) return rc;
    }
    return STK_OK;
}
