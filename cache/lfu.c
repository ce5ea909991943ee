/*
 * lfu: the experts used most often stay. The least often used leaves first, of equals the longest ago used; an expert that was
 * not used more often than the one that would leave is refused (lrfu with decay=1 takes it in). Uses are counted for good, of
 * experts that left too, so that it suits routing that stays the same, and nothing else. A use is a lookup, whatever its tokens.
 *
 * A rank holds the count (up to 2^24 - 1) above the number of the last use (modulo 2^40). A prefetched or warm expert stands
 * where a use at its insertion would put it, without counting as used.
 */
#include <stdlib.h>

#include "cache/order.h"
#include "cache/ranked.h"

enum { STATE_MAGIC = 0x3155464c, TIME_BITS = 40, MAX_COUNT = (1 << 24) - 1 }; /* "LFU1" */
enum { RANK, COUNT, N_WORD };

struct stk_policy {
    stk_ranked ranked;
};

static void lfu_close(stk_policy *p) {
    if (!p) return;
    stk_ranked_close(&p->ranked);
    free(p);
}

static int lfu_open(stk_policy **out, const stk_policy_config *config) {
    STK_TRY(stk_policy_params(&stk_policy_lfu, config->params, NULL));
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy lfu: out of memory");
    int rc = stk_ranked_open(&p->ranked, &stk_policy_lfu, STATE_MAGIC, N_WORD, config);
    if (rc < 0)
        lfu_close(p);
    else
        *out = p;
    return rc;
}

static uint64_t rank_of(uint64_t count, uint64_t now) { return count << TIME_BITS | (now & (((uint64_t)1 << TIME_BITS) - 1)); }

static int lfu_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    stk_ranked *r = &p->ranked;
    const uint64_t *order = stk_order_of(event, n, r->order);
    for (uint32_t i = n; i-- > 0;) {
        uint32_t key = keys[order[i]];
        uint64_t *w = stk_ranked_words(r, key);
        w[COUNT] += w[COUNT] < MAX_COUNT;
        stk_ranked_set(r, key, rank_of(w[COUNT], ++r->now));
    }
    return 0;
}

static int lfu_admit(stk_policy *p, uint32_t key) {
    const stk_ranked *r = &p->ranked;
    if (key >= r->n_key) return stk_fail(STK_ESTATE, "policy lfu: asked for expert %u of %u", key, r->n_key);
    if (r->heap.n < r->n_slot) return 1;
    return stk_ranked_words(r, key)[COUNT] > r->heap.entries[0].rank >> TIME_BITS;
}

static int lfu_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    stk_ranked *r = &p->ranked;
    if (why == STK_WHY_DEMAND || key >= r->n_key) return stk_ranked_inserted(p, key, why);
    uint64_t count = stk_ranked_words(r, key)[COUNT];
    return stk_ranked_insert(r, key, rank_of(count + (count < MAX_COUNT), ++r->now));
}

static bool is_sane(const uint64_t *words, const stk_ranked_totals *totals) {
    (void)totals;
    return words[COUNT] <= MAX_COUNT;
}

static int lfu_load(stk_policy *p, const void *data, size_t bytes) { return stk_ranked_load(&p->ranked, data, bytes, is_sane); }

const stk_policy_ops stk_policy_lfu = {
    .name = "lfu",
    .idea = "the most often used stay, counted for good; may refuse",
    .open = lfu_open,
    .close = lfu_close,
    .touch = lfu_touch,
    .admit = lfu_admit,
    .inserted = lfu_inserted,
    .evicted = stk_ranked_evicted,
    .resized = stk_ranked_resized,
    .victim = stk_ranked_victim,
    .save = stk_ranked_save,
    .load = lfu_load,
};
