/*
 * slru: the segmented LRU of Karedla, Love and Wherry (IEEE Computer 27(3), 1994). An expert comes in on probation (list 0); its
 * next use protects it (list 1). Where the protected exceed their share of the slots, the oldest goes back on probation as its
 * youngest. The oldest on probation leaves first, so that experts used once do not push out those used again.
 */
#include <stdlib.h>

#include "cache/recency.h"

enum { STATE_MAGIC = 0x31524c53, PROBATION = 0, PROTECTED = 1 }; /* "SLR1" */

struct stk_policy {
    stk_recency recency;
    double share;
    uint32_t n_protected; /* at most */
};

static const stk_policy_param params[] = {{"protected", 0, 1, 0.8, "share of the slots for experts that were used again"}, {0}};

static void slru_close(stk_policy *p) {
    if (!p) return;
    stk_recency_close(&p->recency);
    free(p);
}

static int slru_open(stk_policy **out, const stk_policy_config *config) {
    double share;
    STK_TRY(stk_policy_params(&stk_policy_slru, config->params, &share));
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy slru: out of memory");
    p->share = share;
    p->n_protected = (uint32_t)(share * config->n_slot);
    int rc = stk_recency_open(&p->recency, &stk_policy_slru, STATE_MAGIC, config);
    if (rc < 0)
        slru_close(p);
    else
        *out = p;
    return rc;
}

static void demote(stk_policy *p) {
    stk_recency *r = &p->recency;
    while (r->n[PROTECTED] > p->n_protected) stk_recency_move(r, r->younger[r->n_key + PROTECTED], PROBATION);
}

static int slru_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    uint32_t n_used = stk_recency_event(&p->recency, event, keys, n);
    for (uint32_t i = 0; i < n_used; i++) stk_recency_move(&p->recency, p->recency.used[i], PROTECTED);
    demote(p);
    return 0;
}

static int slru_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    return stk_recency_insert(&p->recency, key, PROBATION, why);
}

static int slru_resized(stk_policy *p, uint32_t n_slot) {
    STK_TRY(stk_recency_resized(p, n_slot));
    p->n_protected = (uint32_t)(p->share * n_slot);
    demote(p);
    return 0;
}

static int slru_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    return stk_recency_oldest(&p->recency, PROBATION, busy, key) || stk_recency_oldest(&p->recency, PROTECTED, busy, key);
}

static int64_t slru_save(const stk_policy *p, void *out, size_t cap) { return stk_recency_save(&p->recency, out, cap, 0); }

static int slru_load(stk_policy *p, const void *data, size_t bytes) {
    stk_policy_state got;
    STK_TRY(stk_recency_check(&p->recency, data, bytes, 0, &got));
    stk_recency_fill(&p->recency, data, &got);
    demote(p);
    return 0;
}

const stk_policy_ops stk_policy_slru = {
    .name = "slru",
    .idea = "LRU in two segments: experts used once leave before those used again",
    .params = params,
    .open = slru_open,
    .close = slru_close,
    .touch = slru_touch,
    .inserted = slru_inserted,
    .evicted = stk_recency_evicted,
    .resized = slru_resized,
    .victim = slru_victim,
    .save = slru_save,
    .load = slru_load,
};
