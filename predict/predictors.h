/*
 * predictors: what the predictors and their registry share. A predictor is one file that defines struct stk_predictor for itself
 * and one table named here; predict.c lists the tables.
 *
 * Who may call it: predict/.
 */
#ifndef STK_PREDICTORS_H
#define STK_PREDICTORS_H

#include "predict/predict.h"

extern const stk_predictor_ops stk_predictor_popularity, stk_predictor_previous, stk_predictor_history, stk_predictor_transition,
    stk_predictor_crosslayer, stk_predictor_tokenid, stk_predictor_matrices, stk_predictor_path, stk_predictor_gate,
    stk_predictor_mix;

/* Sizes that every predictor accepts: at least one layer, 1 to 65,534 experts, k of them at most, and at most
 * STK_PREDICT_KEYS_MAX experts in all layers together. STK_EINVAL. */
enum { STK_PREDICT_KEYS_MAX = 1 << 20 };
int stk_predictor_config_check(const char *name, const stk_predictor_config *config) STK_CHECKED;

/* STK_EINVAL when `params` names anything: for predictors that have nothing to set. */
int stk_predictor_no_params(const char *name, const char *params) STK_CHECKED;

/* Whether layer, k and every expert of the event are within what was opened. STK_EINVAL. */
int stk_predictor_event_check(const char *name, const stk_predictor_config *config, const stk_event *event) STK_CHECKED;

/* The same for the scores that come with the event. */
int stk_predictor_ahead_check(const char *name, const stk_predictor_config *config, const stk_event *event,
                              const stk_lookahead *ahead) STK_CHECKED;

/* The best of p [n] as suggestions: above 0, best first, ties to the lower id; at most cap. Returns how many. */
int stk_predictor_best(const float *p, uint32_t n, stk_suggestion *out, uint32_t cap);

/* (1 - p)^n: that none of n tokens does what each does with probability p. */
static inline float stk_predictor_none(float p, uint32_t n) {
    float base = 1.0f - p, out = 1.0f;
    for (; n; n >>= 1, base *= base)
        if (n & 1) out *= base;
    return out;
}

/* Every saved state begins so; what follows is the predictor's. */
typedef struct stk_predictor_state {
    uint32_t magic, n_layer, n_expert, k;
    uint64_t bytes; /* of the whole */
} stk_predictor_state;

/* Checks the head of a saved state, which anybody may have written, and that it has `want->bytes` bytes. STK_EFORMAT. */
int stk_predictor_state_check(const char *name, const stk_predictor_state *want, const void *data, size_t bytes) STK_CHECKED;

#endif
