/*
 * score: the score card of a predictor: what it suggested against what was then used. Pure; all memory is taken at open.
 *
 * An event of n distinct experts is compared with a list in order: recall@k counts those of them among its first n entries,
 * recall@2k among its first 2n (n is k for a single token). A list that was never met by its layer's event does not count.
 *
 * Who may call it: src/, one thread at a time.
 */
#ifndef STK_SCORE_H
#define STK_SCORE_H

#include "predict/predict.h"

typedef struct stk_score stk_score;

enum { STK_SCORE_BUCKETS = 20, STK_SCORE_RANKS = 32 };

/* Of n suggestions, how many were used. */
typedef struct stk_score_ratio {
    uint64_t n, n_used;
} stk_score_ratio;

typedef struct stk_score_figures {
    uint64_t n_event;           /* that had a list */
    uint64_t n_lookup;          /* distinct experts of these events */
    uint64_t n_found, n_found2; /* of these, in the list's first n and first 2n: over n_lookup they are recall@k and @2k */
    uint64_t n_call, ns;        /* cost, as told by stk_score_cost */
    double p_sum;               /* of all suggestions: with `all`, whether probabilities are too high or too low */
    stk_score_ratio all;        /* suggestions */
    stk_score_ratio by_rank[STK_SCORE_RANKS]; /* by place in the list, from 0; the last takes all further ones */
    stk_score_ratio by_p[STK_SCORE_BUCKETS];  /* by probability: i / BUCKETS <= p < (i + 1) / BUCKETS */
} stk_score_figures;

/* For lists of at most `cap` suggestions. Errors: STK_EINVAL (sizes), STK_ENOMEM. */
int stk_score_open(stk_score **out, const stk_predictor_config *config, uint32_t cap) STK_CHECKED;
void stk_score_close(stk_score **score);
/* What was suggested for `layer`, `depth` layers ahead of it; copied. It replaces an earlier list of that depth and layer that
 * no event has met. STK_EINVAL: layer, depth (from 1 to STK_PREDICT_DEPTH_MAX), n or an expert out of range; nothing changed. */
int stk_score_suggested(stk_score *score, uint32_t layer, uint32_t depth, const stk_suggestion *list, uint32_t n) STK_CHECKED;
/* The event of a layer: its lists of all depths are compared and forgotten. STK_EINVAL as above. */
int stk_score_event(stk_score *score, const stk_event *event) STK_CHECKED;
/* Time spent in one call of the predictor for this depth; 0 for observing, whose time counts for every depth. */
void stk_score_cost(stk_score *score, uint32_t depth, uint64_t ns);
void stk_score_get(const stk_score *score, uint32_t depth, stk_score_figures *figures);
/* Begins anew; lists that wait for their event stay. */
void stk_score_reset(stk_score *score);

/* Used ones and all among the suggestions with a probability of at least p, rounded down to a bucket. */
stk_score_ratio stk_score_at(const stk_score_figures *figures, float p);

#endif
