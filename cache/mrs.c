/*
 * mrs: the score of HybriMoE (Zhong et al., DAC 2025): S = a s + (1 - a) S for the 2k experts that the
 * router scored best, S = (1 - a) S for the others; the least S leaves first. So experts that were nearly chosen stay.
 *
 * Differences: all layers fade together when a step begins, where HybriMoE fades each at its event (it has a cache a layer: there
 * the two agree); of several tokens the mean score counts, where HybriMoE takes the first.
 *
 * Without scores (a trace that has none) it works in a degraded form and says so: s is the router weight of the chosen experts
 * or, without weights, the share of the tokens that chose the expert.
 *
 * A prefetched or warm expert stands where a score of 1 at its insertion would put it, without being scored.
 */
#include <stdlib.h>

#include "cache/decay.h"

enum { STATE_MAGIC = 0x3153524d }; /* "MRS1" */

struct stk_policy {
    stk_ranked ranked;
    double a;
    bool *told;
    uint32_t n_scored;
    uint16_t *scored; /* [n_expert + 1] ids of the event that have a sum */
    double *sums;     /* [n_expert] over its tokens */
    uint8_t *is_scored;
};

static const stk_policy_param params[] = {{"a", 0.001, 0.999, 0.5, "weight of the newest router score"}, {0}};

static void mrs_close(stk_policy *p) {
    if (!p) return;
    stk_ranked_close(&p->ranked);
    free(p->scored);
    free(p->sums);
    free(p->is_scored);
    free(p);
}

static int mrs_open(stk_policy **out, const stk_policy_config *config) {
    double a;
    STK_TRY(stk_policy_params(&stk_policy_mrs, config->params, &a));
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy mrs: out of memory");
    p->a = a;
    p->told = config->told;
    int rc = stk_ranked_open(&p->ranked, &stk_policy_mrs, STATE_MAGIC, STK_DECAY_N_WORD, config);
    stk_decay_open(&p->ranked);
    p->scored = calloc((size_t)config->n_expert + 1, sizeof *p->scored);
    p->sums = calloc(config->n_expert, sizeof *p->sums);
    p->is_scored = calloc(config->n_expert, sizeof *p->is_scored);
    if (rc == 0 && (!p->scored || !p->sums || !p->is_scored)) rc = stk_fail(STK_ENOMEM, "policy mrs: out of memory");
    if (rc < 0)
        mrs_close(p);
    else
        *out = p;
    return rc;
}

static void score(stk_policy *p, uint32_t expert, double s) {
    if (expert >= p->ranked.n_expert) return;
    p->scored[p->n_scored] = (uint16_t)expert;
    p->n_scored += !p->is_scored[expert];
    p->is_scored[expert] = 1;
    p->sums[expert] += s;
}

/* Scores come from a router or from any file: what is not a number above 0 counts nothing, and nothing counts more than 1. */
static void score_tokens(stk_policy *p, const stk_event *event, const uint16_t *ids, const float *scores, uint32_t stride,
                         uint32_t n) {
    for (size_t t = 0; t < event->n_tok; t++)
        for (size_t i = t * stride; i < t * stride + n; i++)
            if (scores[i] > 0) score(p, ids[i], STK_MIN((double)scores[i], 1));
}

/* Which of the three forms this event allows. */
static void score_event(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    if (event->n_top && event->top_ids && event->top_scores) {
        uint32_t best = (uint32_t)STK_MIN(2 * (uint64_t)event->k, event->n_top);
        score_tokens(p, event, event->top_ids, event->top_scores, event->n_top, best);
        return;
    }
    bool weighted = event->ids && event->weights;
    if (weighted)
        score_tokens(p, event, event->ids, event->weights, event->k, event->k);
    else
        for (uint32_t i = 0; i < n; i++) score(p, keys[i] % p->ranked.n_expert, event->counts[i]);
    if (!p->told || *p->told) return;
    *p->told = true;
    stk_log(STK_LOG_WARN, "policy mrs: no router scores here; it ranks by %s (degraded)",
            weighted ? "the weights of the chosen experts" : "how many tokens chose an expert");
}

static int mrs_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    stk_ranked *r = &p->ranked;
    if (n == 0) return 0;
    if (stk_ranked_step(r, keys[0])) stk_decay_step(r, 1 - p->a);
    score_event(p, event, keys, n);
    uint32_t base = keys[0] - keys[0] % r->n_expert;
    double each = p->a / STK_MAX(event->n_tok, 1u);
    for (uint32_t i = 0; i < p->n_scored; i++) {
        uint32_t expert = p->scored[i];
        stk_decay_add(r, base + expert, STK_MIN(p->sums[expert] * each, 1));
        p->sums[expert] = 0;
        p->is_scored[expert] = 0;
    }
    p->n_scored = 0;
    return 0;
}

static int mrs_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    return stk_decay_insert(&p->ranked, key, why == STK_WHY_DEMAND ? 0 : p->a);
}

static int mrs_load(stk_policy *p, const void *data, size_t bytes) { return stk_decay_load(&p->ranked, data, bytes); }

const stk_policy_ops stk_policy_mrs = {
    .name = "mrs",
    .idea = "the least average of router scores leaves, near misses included (HybriMoE)",
    .params = params,
    .open = mrs_open,
    .close = mrs_close,
    .touch = mrs_touch,
    .inserted = mrs_inserted,
    .evicted = stk_ranked_evicted,
    .resized = stk_ranked_resized,
    .victim = stk_ranked_victim,
    .save = stk_ranked_save,
    .load = mrs_load,
};
