/*
 * lrfu: the combined recency and frequency of Lee et al. (IEEE Transactions on Computers 50(12), 2001): each use adds 1 to an
 * expert's score, and all scores shrink by a factor every step; the least score leaves first. A factor of 1 is lfu, one of 0.5 or
 * less is lru. Scores of experts that left go on fading. A use is a lookup, whatever its token count.
 *
 * A prefetched or warm expert stands where a use at its insertion would put it, without counting as used.
 */
#include <stdlib.h>

#include "cache/decay.h"

enum { STATE_MAGIC = 0x3146524c }; /* "LRF1" */

struct stk_policy {
    stk_ranked ranked;
    double decay;
};

static const stk_policy_param params[] = {{"decay", 0.001, 1, 0.96, "what is left of a score after a step"}, {0}};

static void lrfu_close(stk_policy *p) {
    if (!p) return;
    stk_ranked_close(&p->ranked);
    free(p);
}

static int lrfu_open(stk_policy **out, const stk_policy_config *config) {
    double decay;
    STK_TRY(stk_policy_params(&stk_policy_lrfu, config->params, &decay));
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy lrfu: out of memory");
    p->decay = decay;
    int rc = stk_ranked_open(&p->ranked, &stk_policy_lrfu, STATE_MAGIC, STK_DECAY_N_WORD, config);
    stk_decay_open(&p->ranked);
    if (rc < 0)
        lrfu_close(p);
    else
        *out = p;
    return rc;
}

static int lrfu_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    (void)event;
    if (n && stk_ranked_step(&p->ranked, keys[0])) stk_decay_step(&p->ranked, p->decay);
    for (uint32_t i = 0; i < n; i++) stk_decay_add(&p->ranked, keys[i], 1);
    return 0;
}

static int lrfu_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    return stk_decay_insert(&p->ranked, key, why == STK_WHY_DEMAND ? 0 : 1);
}

static int lrfu_load(stk_policy *p, const void *data, size_t bytes) { return stk_decay_load(&p->ranked, data, bytes); }

const stk_policy_ops stk_policy_lrfu = {
    .name = "lrfu",
    .idea = "the least score leaves, where uses count and fade",
    .params = params,
    .open = lrfu_open,
    .close = lrfu_close,
    .touch = lrfu_touch,
    .inserted = lrfu_inserted,
    .evicted = stk_ranked_evicted,
    .resized = stk_ranked_resized,
    .victim = stk_ranked_victim,
    .save = stk_ranked_save,
    .load = lrfu_load,
};
