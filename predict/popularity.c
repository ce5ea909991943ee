/*
 * popularity: what a layer used most, over all text so far. Memory: 4 bytes an expert.
 */
#include <stdlib.h>
#include <string.h>

#include "predict/panel.h"

enum { COUNT_MAX = 1 << 24 };

struct stk_part {
    uint32_t n_layer, n_expert, width;
    uint32_t *n_tok; /* [n_layer] */
    uint32_t *uses;  /* [n_layer, n_expert] tokens */
};

static void popularity_close(stk_part *s) {
    if (!s) return;
    free(s->n_tok);
    free(s->uses);
    free(s);
}

static int popularity_open(stk_part **out, const stk_part_config *config) {
    stk_part *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "predictor popularity: out of memory");
    s->n_layer = config->model->n_layer;
    s->n_expert = config->model->n_expert;
    s->width = config->width;
    s->n_tok = calloc(s->n_layer, sizeof *s->n_tok);
    s->uses = calloc((size_t)s->n_layer * s->n_expert, sizeof *s->uses);
    if (!s->n_tok || !s->uses) {
        popularity_close(s);
        return stk_fail(STK_ENOMEM, "predictor popularity: out of memory for %u layers", config->model->n_layer);
    }
    *out = s;
    return 0;
}

static void popularity_learn(stk_part *s, const stk_track *track, const stk_event *event) {
    (void)track;
    uint32_t *n_tok = &s->n_tok[event->layer], *uses = s->uses + (size_t)event->layer * s->n_expert;
    if (event->n_tok > COUNT_MAX - *n_tok) {
        *n_tok /= 2;
        for (uint32_t e = 0; e < s->n_expert; e++) uses[e] /= 2;
    }
    *n_tok += STK_MIN(event->n_tok, COUNT_MAX / 2);
    for (uint32_t i = 0; i < event->n_distinct; i++)
        uses[event->distinct[i]] += STK_MIN(event->counts[i], STK_MIN(event->n_tok, COUNT_MAX / 2));
}

static bool popularity_score(const stk_part *s, const stk_track *track, uint32_t depth, uint32_t i, float *row) {
    (void)i;
    uint32_t layer = (track->layer + depth) % s->n_layer;
    if (s->n_tok[layer] == 0) return false;
    const uint32_t *uses = s->uses + (size_t)layer * s->n_expert;
    float by = 1.0f / (float)(s->n_tok[layer] + 1);
    for (uint32_t e = 0; e < s->width; e++) row[e] = e < s->n_expert ? (float)uses[e] * by : 0.0f;
    return true;
}

static uint32_t popularity_blobs(const stk_part *s, stk_part_blob *blobs) {
    blobs[0] = (stk_part_blob){s->n_tok, s->n_layer, STK_BLOB_U32, COUNT_MAX};
    blobs[1] = (stk_part_blob){s->uses, (size_t)s->n_layer * s->n_expert, STK_BLOB_U32, COUNT_MAX};
    return 2;
}

const stk_part_ops stk_part_popularity = {.name = "popularity",
                                          .open = popularity_open,
                                          .close = popularity_close,
                                          .learn = popularity_learn,
                                          .score = popularity_score,
                                          .blobs = popularity_blobs};
STK_PANEL_SOLO(popularity, 0x31504f50, false, "what the layer used most, ever"); /* "POP1" */
