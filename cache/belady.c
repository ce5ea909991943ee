/*
 * belady: the farthest next use leaves first (Belady 1966), for replays: no policy that takes every expert in misses less often,
 * where all experts have one size and an event's experts fit in the slots. belady-bypass may refuse an expert whose next use is
 * farther than that of all that would have to leave: no policy at all misses less often.
 *
 * belady-bypass decides when it hears of the event: of the residents and the event's experts together, those with the nearest
 * next uses stay, as many as there are slots. Should a resident that has to leave be needed by the same event, victim says that
 * all are busy, and the cache begins a wave, at whose start it has been computed.
 *
 * Prefetches are foreign to both: they are admitted where the next use is known to be near enough, which it is of experts that
 * the trace has used since its last cut.
 *
 * A rank is the complement of the next use; next uses come from the replay's cursor, event by event.
 */
#include <stdlib.h>

#include "cache/future.h"
#include "cache/ranked.h"

enum { STATE_MAGIC = 0x314c4542 }; /* "BEL1" */
enum verdict { NOT_ASKED, REFUSED, ADMITTED };

struct stk_policy {
    stk_ranked ranked;
    stk_future_cursor *future;
    /* Of belady-bypass: */
    uint64_t limit;          /* residents of a higher rank stay */
    uint8_t *verdicts;       /* [n_key] enum verdict on the event's misses */
    uint32_t n_miss;         /* of the latest event: */
    uint32_t *misses;        /* [n_expert] nearest next use first */
    stk_heap_entry *leaving; /* [n_expert] */
};

static void belady_close(stk_policy *p) {
    if (!p) return;
    stk_ranked_close(&p->ranked);
    free(p->verdicts);
    free(p->misses);
    free(p->leaving);
    free(p);
}

static int open_as(stk_policy **out, const stk_policy_ops *ops, const stk_policy_config *config) {
    STK_TRY(stk_policy_params(ops, config->params, NULL));
    if (!config->future)
        return stk_fail(STK_EINVAL, "policy %s needs to know the future: it is for the replay of a trace alone", ops->name);
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy %s: out of memory", ops->name);
    p->future = config->future;
    int rc = stk_ranked_open(&p->ranked, ops, STATE_MAGIC, 1, config);
    p->verdicts = calloc(config->n_key, sizeof *p->verdicts);
    p->misses = calloc(config->n_expert, sizeof *p->misses);
    p->leaving = calloc(config->n_expert, sizeof *p->leaving);
    if (rc == 0 && (!p->verdicts || !p->misses || !p->leaving)) rc = stk_fail(STK_ENOMEM, "policy %s: out of memory", ops->name);
    if (rc < 0)
        belady_close(p);
    else
        *out = p;
    return rc;
}

static int belady_open(stk_policy **out, const stk_policy_config *config) { return open_as(out, &stk_policy_belady, config); }

static int bypass_open(stk_policy **out, const stk_policy_config *config) {
    return open_as(out, &stk_policy_belady_bypass, config);
}

static int belady_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    const uint32_t *next;
    (void)event;
    STK_TRY(stk_future_next(p->future, n, &next));
    for (uint32_t i = 0; i < n; i++) stk_ranked_set(&p->ranked, keys[i], STK_FUTURE_NEVER - next[i]);
    return 0;
}

/* ---- Bypass ------------------------------------------------------------------------------------------------------------- */

static uint64_t rank_of(const stk_policy *p, uint32_t key) { return *stk_ranked_words(&p->ranked, key); }

static void forget_verdicts(stk_policy *p) {
    for (uint32_t i = 0; i < p->n_miss; i++) p->verdicts[p->misses[i]] = NOT_ASKED;
    p->n_miss = 0;
}

/* Puts a miss in its place among those found so far: nearest first, of equals the first. */
static void add_miss(stk_policy *p, uint32_t key) {
    uint32_t i = p->n_miss++;
    for (; i > 0 && rank_of(p, p->misses[i - 1]) < rank_of(p, key); i--) p->misses[i] = p->misses[i - 1];
    p->misses[i] = key;
}

/* The nearest misses take the free slots, then those of the farthest residents, as long as they are nearer than these. */
static void decide(stk_policy *p) {
    stk_heap *h = &p->ranked.heap;
    uint32_t n_free = p->ranked.n_slot - h->n, n_leaving = 0;
    p->limit = 0;
    for (uint32_t i = 0; i < p->n_miss; i++) {
        uint32_t key = p->misses[i];
        bool admit = i < n_free || (h->n > 0 && rank_of(p, key) > h->entries[0].rank);
        p->verdicts[key] = admit ? ADMITTED : REFUSED;
        if (!admit || i < n_free) continue;
        p->leaving[n_leaving++] = h->entries[0];
        p->limit = h->entries[0].rank;
        stk_heap_remove(h, h->entries[0].key);
    }
    for (uint32_t i = 0; i < n_leaving; i++) stk_heap_insert(h, p->leaving[i].key, p->leaving[i].rank);
}

static int bypass_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    forget_verdicts(p);
    STK_TRY(belady_touch(p, event, keys, n));
    for (uint32_t i = 0; i < n; i++)
        if (!stk_heap_has(&p->ranked.heap, keys[i])) add_miss(p, keys[i]);
    decide(p);
    return 0;
}

static int bypass_admit(stk_policy *p, uint32_t key) {
    const stk_heap *h = &p->ranked.heap;
    if (key >= p->ranked.n_key) return stk_fail(STK_ESTATE, "policy belady-bypass: asked for expert %u", key);
    if (p->verdicts[key] != NOT_ASKED) return p->verdicts[key] == ADMITTED;
    if (h->n < p->ranked.n_slot) return 1;
    if (rank_of(p, key) <= h->entries[0].rank) return 0;
    p->limit = rank_of(p, key) - 1;
    return 1;
}

/* The farthest of all may always go (a resize asks for it); others only where an admission counted on it. */
static int bypass_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    const stk_heap *h = &p->ranked.heap;
    return stk_heap_least(h, busy, key) && (*key == h->entries[0].key || rank_of(p, *key) <= p->limit);
}

/* ---- Both --------------------------------------------------------------------------------------------------------------- */

static bool is_sane(const uint64_t *words, const stk_ranked_totals *totals) {
    (void)totals;
    return words[0] <= STK_FUTURE_NEVER;
}

static int belady_load(stk_policy *p, const void *data, size_t bytes) {
    STK_TRY(stk_ranked_load(&p->ranked, data, bytes, is_sane));
    forget_verdicts(p);
    return 0;
}

const stk_policy_ops stk_policy_belady = {
    .name = "belady",
    .idea = "the farthest next use leaves: the bound of policies that take every expert in",
    .needs_future = true,
    .open = belady_open,
    .close = belady_close,
    .touch = belady_touch,
    .inserted = stk_ranked_inserted,
    .evicted = stk_ranked_evicted,
    .resized = stk_ranked_resized,
    .victim = stk_ranked_victim,
    .save = stk_ranked_save,
    .load = belady_load,
};

const stk_policy_ops stk_policy_belady_bypass = {
    .name = "belady-bypass",
    .idea = "belady that may refuse an expert: the bound of all policies",
    .needs_future = true,
    .open = bypass_open,
    .close = belady_close,
    .touch = bypass_touch,
    .admit = bypass_admit,
    .inserted = stk_ranked_inserted,
    .evicted = stk_ranked_evicted,
    .resized = stk_ranked_resized,
    .victim = bypass_victim,
    .save = stk_ranked_save,
    .load = belady_load,
};
