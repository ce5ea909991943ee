/*
 * predict_events: events for the tests of predictors: a token's experts are given, distinct and counts follow.
 */
#ifndef STK_TEST_PREDICT_EVENTS_H
#define STK_TEST_PREDICT_EVENTS_H

#include <math.h>
#include <string.h>

#include "predict/predictors.h"

enum { PE_TOK = 600, PE_K = 8, PE_EXPERT = 256, PE_TOP = 16 };

typedef struct pe_input {
    stk_event event;
    int32_t seq[PE_TOK], pos[PE_TOK], token[PE_TOK];
    uint16_t ids[PE_TOK * PE_K], distinct[PE_EXPERT];
    uint32_t counts[PE_EXPERT];
} pe_input;

static const stk_lookahead pe_no_scores;

/* Begins an event; its tokens are added next. */
static inline void pe_begin(pe_input *in, uint64_t step, uint32_t layer, uint32_t k, uint32_t n_expert) {
    memset(&in->event, 0, sizeof in->event);
    in->event = (stk_event){.step = step, .layer = layer, .k = k, .n_expert = n_expert};
    in->event.seq = in->seq, in->event.pos = in->pos, in->event.token = in->token;
    in->event.ids = in->ids, in->event.distinct = in->distinct, in->event.counts = in->counts;
}

static inline void pe_token(pe_input *in, int32_t seq, int32_t pos, int32_t token, const uint16_t *ids) {
    uint32_t i = in->event.n_tok++;
    in->seq[i] = seq, in->pos[i] = pos, in->token[i] = token;
    memcpy(in->ids + i * in->event.k, ids, in->event.k * sizeof *ids);
}

static inline const stk_event *pe_end(pe_input *in) {
    uint32_t n[PE_EXPERT] = {0};
    for (uint32_t i = 0; i < in->event.n_tok * in->event.k; i++)
        if (in->ids[i] < PE_EXPERT) n[in->ids[i]]++;
    in->event.n_distinct = 0;
    for (uint32_t e = 0; e < PE_EXPERT; e++) {
        if (!n[e]) continue;
        in->counts[in->event.n_distinct] = n[e];
        in->distinct[in->event.n_distinct++] = (uint16_t)e;
    }
    return &in->event;
}

/* One token of sequence 0 at position `step`. */
static inline const stk_event *pe_one(pe_input *in, uint64_t step, uint32_t layer, uint32_t k, uint32_t n_expert, int32_t token,
                                      const uint16_t *ids) {
    pe_begin(in, step, layer, k, n_expert);
    pe_token(in, 0, (int32_t)step, token, ids);
    return pe_end(in);
}

static inline int pe_observe(const stk_predictor_ops *ops, stk_predictor *p, const stk_event *event) {
    return ops->observe(p, event, &pe_no_scores);
}

static inline uint32_t pe_random(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

/* k different experts below n_expert. */
static inline void pe_random_ids(uint64_t *rng, uint16_t *ids, uint32_t k, uint32_t n_expert) {
    for (uint32_t n = 0; n < k;) {
        uint32_t i = 0;
        ids[n] = (uint16_t)pe_random(rng, n_expert);
        while (ids[i] != ids[n]) i++;
        n += i == n;
    }
}

/* Probability that the list gives to an expert; 0 where it is not in it. */
static inline float pe_p(const stk_suggestion *list, int n, uint32_t expert) {
    for (int i = 0; i < n; i++)
        if (list[i].expert == expert) return list[i].p;
    return 0.0f;
}

/* Best first, ties to the lower id, probabilities within (0, 1], nobody twice. */
static inline bool pe_in_order(const stk_suggestion *list, int n, uint32_t n_expert) {
    for (int i = 0; i < n; i++) {
        if (!(list[i].p > 0.0f && list[i].p <= 1.0f) || list[i].expert >= n_expert) return false;
        if (i > 0 && !(list[i].p < list[i - 1].p || (list[i].p == list[i - 1].p && list[i].expert > list[i - 1].expert)))
            return false;
        for (int j = 0; j < i; j++)
            if (list[j].expert == list[i].expert) return false;
    }
    return true;
}

#endif
