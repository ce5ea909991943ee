/* chooser: what is worth reading ahead. */
#include "chooser.h"

#include <stdlib.h>

enum {
    BUCKETS = 16,    /* of probability */
    PRIOR = 8,       /* settled experts that the predictor's own word counts for */
    COUNT_MAX = 512, /* at this many counts are halved, so that they follow a change of text */
};

/*
 * The least probability at which an absent expert is read ahead. A right guess saves up to a whole read that the CPU would wait
 * for; a wrong one costs a place at the cache's cold end and bytes on a drive that is often idle, but whose piece in flight
 * demand may have to wait for.
 */
static const float least_p = 0.5f;

typedef struct expected {
    uint32_t key;
    uint8_t depth, bucket;
} expected;

struct stk_chooser {
    const stk_cache *cache;
    uint32_t n_expert, n_max;
    expected *expected; /* [n_max] absent experts whose layer has not come yet */
    uint32_t n_expected;
    uint64_t step; /* of the latest event, and its layer */
    uint32_t layer;
    uint32_t n[STK_PREDICT_DEPTH_MAX][BUCKETS], n_used[STK_PREDICT_DEPTH_MAX][BUCKETS];
};

int stk_chooser_open(stk_chooser **out, const stk_cache *cache, uint32_t n_expert, uint32_t cap) {
    *out = NULL;
    stk_chooser *c = calloc(1, sizeof *c);
    if (!c) return stk_fail(STK_ENOMEM, "out of memory for reading ahead");
    c->cache = cache;
    c->n_expert = n_expert;
    c->n_max = cap * STK_PREDICT_DEPTH_MAX;
    c->expected = calloc(c->n_max, sizeof *c->expected);
    if (!c->expected) {
        stk_chooser_close(&c);
        return stk_fail(STK_ENOMEM, "out of memory for reading ahead");
    }
    *out = c;
    return STK_OK;
}

void stk_chooser_close(stk_chooser **chooser) {
    if (!*chooser) return;
    free((*chooser)->expected);
    free(*chooser);
    *chooser = NULL;
}

static bool event_has(const stk_event *event, uint32_t expert) {
    uint32_t low = 0, high = event->n_distinct;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (event->distinct[mid] < expert)
            low = mid + 1;
        else
            high = mid;
    }
    return low < event->n_distinct && event->distinct[low] == expert;
}

void stk_chooser_settle(stk_chooser *c, const stk_event *event) {
    uint32_t kept = 0;
    if (event->step != c->step || event->layer <= c->layer) c->n_expected = 0;
    c->step = event->step;
    c->layer = event->layer;
    for (uint32_t i = 0; i < c->n_expected; i++) {
        expected e = c->expected[i];
        uint32_t layer = e.key / c->n_expert;
        if (layer > event->layer) c->expected[kept++] = e;
        if (layer != event->layer) continue;
        uint32_t *n = &c->n[e.depth][e.bucket], *n_used = &c->n_used[e.depth][e.bucket];
        *n_used += event_has(event, e.key % c->n_expert);
        if (++*n < COUNT_MAX) continue;
        *n /= 2;
        *n_used /= 2;
    }
    c->n_expected = kept;
}

uint32_t stk_chooser_near(const stk_chooser *c, uint32_t layer, uint32_t depth, const stk_ahead *list, uint32_t n,
                          stk_ahead *out) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (list[i].key / c->n_expert - layer <= depth) out[kept++] = list[i];
    return kept;
}

void stk_chooser_choose(stk_chooser *c, uint32_t layer, stk_ahead *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        stk_ahead *a = &list[i];
        uint32_t depth = a->key / c->n_expert - layer - 1, bucket = STK_MIN((uint32_t)(a->p * BUCKETS), BUCKETS - 1u);
        a->issue = false;
        if (depth >= STK_PREDICT_DEPTH_MAX || stk_cache_slot(c->cache, a->key) >= 0) continue;
        float p = ((float)c->n_used[depth][bucket] + PRIOR * a->p) / (float)(c->n[depth][bucket] + PRIOR);
        a->issue = p >= least_p;
        if (c->n_expected < c->n_max) c->expected[c->n_expected++] = (expected){a->key, (uint8_t)depth, (uint8_t)bucket};
    }
}
