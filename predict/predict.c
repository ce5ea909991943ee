/* predict: the registry, and what the predictors share. */
#include "predict/predictors.h"

#include <stdio.h>
#include <string.h>

static const stk_predictor_ops *const predictors[] = {
    &stk_predictor_gate,       &stk_predictor_popularity, &stk_predictor_previous, &stk_predictor_history,
    &stk_predictor_transition, &stk_predictor_crosslayer, &stk_predictor_tokenid,  &stk_predictor_matrices,
    &stk_predictor_path,       &stk_predictor_mix};
static const char *const names[STK_ARRAY_LEN(predictors) + 1] = {
    "gate", "popularity", "previous", "history", "transition", "crosslayer", "tokenid", "matrices", "path", "mix", NULL};

const stk_predictor_ops *stk_predictor_find(const char *name) {
    for (size_t i = 0; i < STK_ARRAY_LEN(predictors); i++)
        if (strcmp(predictors[i]->name, name) == 0) return predictors[i];
    return NULL;
}

int stk_predictor_unknown(const char *name) {
    char all[256] = "none";
    for (const char *const *known = names; *known; known++) snprintf(all + strlen(all), sizeof all - strlen(all), ", %s", *known);
    return stk_fail(STK_EINVAL, "there is no predictor \"%s\"; there are: %s", name, all);
}

const char *const *stk_predictor_names(void) { return names; }

int stk_predictor_config_check(const char *name, const stk_predictor_config *config) {
    if (config->n_layer == 0 || config->n_expert == 0 || config->n_expert >= STK_NO_EXPERT || config->k == 0 ||
        config->k > config->n_expert || config->n_layer > STK_PREDICT_KEYS_MAX / config->n_expert)
        return stk_fail(STK_EINVAL, "predictor %s: %u layers of %u experts, %u a token, are not within its limits", name,
                        config->n_layer, config->n_expert, config->k);
    return 0;
}

int stk_predictor_no_params(const char *name, const char *params) {
    if (!params || !*params) return 0;
    return stk_fail(STK_EINVAL, "predictor %s has no parameters, found \"%s\"", name, params);
}

int stk_predictor_event_check(const char *name, const stk_predictor_config *config, const stk_event *event) {
    if (event->layer >= config->n_layer || event->k > config->k || event->n_expert > config->n_expert)
        return stk_fail(STK_EINVAL, "predictor %s: event of layer %u, %u of %u experts, where %u layers, %u of %u were expected",
                        name, event->layer, event->k, event->n_expert, config->n_layer, config->k, config->n_expert);
    for (size_t i = 0; i < (size_t)event->n_tok * event->k; i++)
        if (event->ids[i] >= config->n_expert && event->ids[i] != STK_NO_EXPERT)
            return stk_fail(STK_EINVAL, "predictor %s: event names expert %u of %u", name, event->ids[i], config->n_expert);
    for (uint32_t i = 0; i < event->n_distinct; i++)
        if (event->distinct[i] >= config->n_expert)
            return stk_fail(STK_EINVAL, "predictor %s: event names expert %u of %u", name, event->distinct[i], config->n_expert);
    return 0;
}

int stk_predictor_ahead_check(const char *name, const stk_predictor_config *config, const stk_event *event,
                              const stk_lookahead *ahead) {
    if (ahead->depth == 0) return 0;
    if (ahead->depth > STK_PREDICT_DEPTH_MAX || ahead->n_tok != event->n_tok || ahead->n_expert > config->n_expert ||
        !ahead->scores)
        return stk_fail(STK_EINVAL, "predictor %s: scores of %u layers, %u tokens, %u experts do not fit %u tokens, %u experts",
                        name, ahead->depth, ahead->n_tok, ahead->n_expert, event->n_tok, config->n_expert);
    return 0;
}

int stk_predictor_best(const float *p, uint32_t n, stk_suggestion *out, uint32_t cap) {
    uint32_t n_out = 0;
    for (uint32_t e = 0; e < n; e++) {
        if (!(p[e] > 0.0f) || cap == 0 || (n_out == cap && !(p[e] > out[cap - 1].p))) continue;
        uint32_t low = 0, high = n_out;
        while (low < high) {
            uint32_t middle = (low + high) / 2;
            if (out[middle].p >= p[e])
                low = middle + 1;
            else
                high = middle;
        }
        if (n_out < cap) n_out++;
        memmove(out + low + 1, out + low, sizeof *out * (n_out - 1 - low));
        out[low] = (stk_suggestion){(uint16_t)e, p[e]};
    }
    return (int)n_out;
}

int stk_predictor_state_check(const char *name, const stk_predictor_state *want, const void *data, size_t bytes) {
    stk_predictor_state got;
    if (bytes < sizeof got) return stk_fail(STK_EFORMAT, "saved state of predictor %s: only %zu bytes", name, bytes);
    memcpy(&got, data, sizeof got);
    if (got.magic != want->magic) return stk_fail(STK_EFORMAT, "saved state of predictor %s: made by another predictor", name);
    if (got.n_layer != want->n_layer || got.n_expert != want->n_expert || got.k != want->k)
        return stk_fail(STK_EFORMAT, "saved state of predictor %s: of %u layers, %u of %u experts; this model has %u, %u of %u",
                        name, got.n_layer, got.k, got.n_expert, want->n_layer, want->k, want->n_expert);
    if (got.bytes != want->bytes || bytes != want->bytes)
        return stk_fail(STK_EFORMAT, "saved state of predictor %s: %zu bytes, %llu expected", name, bytes,
                        (unsigned long long)want->bytes);
    return 0;
}
