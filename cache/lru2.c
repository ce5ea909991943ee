/*
 * lru2: LRU-K of O'Neil, O'Neil and Weikum (SIGMOD 1993) with K = 2: the expert whose use before the last one is the longest ago
 * leaves first; those used once only leave before all others, by their last use. Uses are remembered of experts that left, too.
 * Uses within `correlated` steps of the last one move that one, and do not count as another.
 *
 * Uses are numbered in the order of events, inside an event the least useful first (order.h). A prefetched or warm expert stands
 * where a use at its insertion would put it, without counting as used.
 */
#include <stdlib.h>

#include "cache/order.h"
#include "cache/ranked.h"

enum { STATE_MAGIC = 0x3232524c }; /* "LR22" */
enum { RANK, LAST, BEFORE, LAST_STEP, N_WORD };
#define TWICE ((uint64_t)1 << 63) /* in ranks: used twice at least */

struct stk_policy {
    stk_ranked ranked;
    uint64_t correlated;
};

static const stk_policy_param params[] = {{"correlated", 0, 1e6, 0, "steps within which further uses count as the same one"},
                                          {0}};

static void lru2_close(stk_policy *p) {
    if (!p) return;
    stk_ranked_close(&p->ranked);
    free(p);
}

static int lru2_open(stk_policy **out, const stk_policy_config *config) {
    double correlated;
    STK_TRY(stk_policy_params(&stk_policy_lru2, config->params, &correlated));
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy lru2: out of memory");
    p->correlated = (uint64_t)correlated;
    int rc = stk_ranked_open(&p->ranked, &stk_policy_lru2, STATE_MAGIC, N_WORD, config);
    if (rc < 0)
        lru2_close(p);
    else
        *out = p;
    return rc;
}

/* Whether a use at this step is another one than the last. */
static bool is_another(const stk_policy *p, const uint64_t *w) {
    return w[LAST] && p->ranked.step - w[LAST_STEP] > p->correlated;
}

static int lru2_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    stk_ranked *r = &p->ranked;
    if (n == 0) return 0;
    const uint64_t *order = stk_order_of(event, n, r->order);
    stk_ranked_step(r, keys[0]);
    for (uint32_t i = n; i-- > 0;) {
        uint32_t key = keys[order[i]];
        uint64_t *w = stk_ranked_words(r, key);
        if (is_another(p, w)) w[BEFORE] = w[LAST];
        w[LAST] = ++r->now;
        w[LAST_STEP] = r->step;
        stk_ranked_set(r, key, w[BEFORE] ? TWICE | w[BEFORE] : w[LAST]);
    }
    return 0;
}

static int lru2_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    stk_ranked *r = &p->ranked;
    if (why == STK_WHY_DEMAND || key >= r->n_key) return stk_ranked_inserted(p, key, why);
    const uint64_t *w = stk_ranked_words(r, key);
    uint64_t before = is_another(p, w) ? w[LAST] : w[BEFORE];
    return stk_ranked_insert(r, key, before ? TWICE | before : ++r->now);
}

static bool is_sane(const uint64_t *words, const stk_ranked_totals *totals) {
    return words[LAST] <= totals->now && words[BEFORE] <= words[LAST] && words[LAST_STEP] <= totals->step;
}

static int lru2_load(stk_policy *p, const void *data, size_t bytes) { return stk_ranked_load(&p->ranked, data, bytes, is_sane); }

const stk_policy_ops stk_policy_lru2 = {
    .name = "lru2",
    .idea = "the longest ago used the time before the last leaves (LRU-2)",
    .params = params,
    .open = lru2_open,
    .close = lru2_close,
    .touch = lru2_touch,
    .inserted = lru2_inserted,
    .evicted = stk_ranked_evicted,
    .resized = stk_ranked_resized,
    .victim = stk_ranked_victim,
    .save = stk_ranked_save,
    .load = lru2_load,
};
