/* lru: the expert whose last use is the longest ago leaves first; recency.h says what that means inside an event. */
#include <stdlib.h>

#include "cache/recency.h"

enum { STATE_MAGIC = 0x3155524c }; /* "LRU1" */

struct stk_policy {
    stk_recency recency;
};

static void lru_close(stk_policy *p) {
    if (!p) return;
    stk_recency_close(&p->recency);
    free(p);
}

static int lru_open(stk_policy **out, const stk_policy_config *config) {
    STK_TRY(stk_policy_params(&stk_policy_lru, config->params, NULL));
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy lru: out of memory");
    int rc = stk_recency_open(&p->recency, &stk_policy_lru, STATE_MAGIC, config);
    if (rc < 0)
        lru_close(p);
    else
        *out = p;
    return rc;
}

static int lru_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    stk_recency *r = &p->recency;
    uint32_t n_used = stk_recency_event(r, event, keys, n);
    for (uint32_t i = 0; i < n_used; i++) {
        stk_recency_unlink(r, r->used[i]);
        stk_recency_link(r, r->used[i], r->n_key);
    }
    return 0;
}

/* What was only predicted takes the place of the one that left for it, at the cold end, until an event uses it. */
static int lru_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    stk_recency *r = &p->recency;
    STK_TRY(stk_recency_insert(r, key, 0, why));
    if (why != STK_WHY_PREFETCH) return 0;
    stk_recency_unlink(r, key);
    stk_recency_link(r, key, r->younger[r->n_key]);
    return 0;
}

static int lru_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    return stk_recency_oldest(&p->recency, 0, busy, key);
}

static int lru_replace(stk_policy *p, const uint64_t *busy, uint32_t key, uint32_t *victim) {
    return stk_recency_replace(&p->recency, busy, key, victim);
}

static int64_t lru_save(const stk_policy *p, void *out, size_t cap) { return stk_recency_save(&p->recency, out, cap, 0); }

static int lru_load(stk_policy *p, const void *data, size_t bytes) {
    stk_policy_state got;
    STK_TRY(stk_recency_check(&p->recency, data, bytes, 0, &got));
    if (got.extra) return stk_fail(STK_EFORMAT, "saved state of policy lru: it has one list, not two");
    stk_recency_fill(&p->recency, data, &got);
    return 0;
}

const stk_policy_ops stk_policy_lru = {
    .name = "lru",
    .idea = "the least recently used leaves",
    .open = lru_open,
    .close = lru_close,
    .touch = lru_touch,
    .inserted = lru_inserted,
    .evicted = stk_recency_evicted,
    .resized = stk_recency_resized,
    .victim = lru_victim,
    .replace = lru_replace,
    .save = lru_save,
    .load = lru_load,
};
