/*
 * crosslayer: which experts of a layer follow which of an earlier layer, for the same token; a table for each depth. A layer of
 * the next step is foretold from the end of this one. Memory: 2 bytes a pair of experts, layer and depth.
 */
#include <stdlib.h>

#include "predict/pairs.h"
#include "predict/panel.h"

struct stk_part {
    uint32_t n_layer, n_expert, k, depth;
    stk_pairs pairs; /* row: ((depth - 1) * n_layer + layer foretold) * n_expert + expert of layer - depth */
};

static void crosslayer_close(stk_part *s) {
    if (!s) return;
    stk_pairs_fini(&s->pairs);
    free(s);
}

static int crosslayer_open(stk_part **out, const stk_part_config *config) {
    stk_part *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "predictor crosslayer: out of memory");
    s->n_layer = config->model->n_layer;
    s->n_expert = config->model->n_expert;
    s->k = config->model->k;
    s->depth = config->depth;
    int rc = stk_pairs_init(&s->pairs, (uint64_t)s->depth * s->n_layer * s->n_expert, config->width, "crosslayer");
    if (rc < 0) {
        crosslayer_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

static size_t first_row(const stk_part *s, uint32_t depth, uint32_t layer) {
    return ((size_t)(depth - 1) * s->n_layer + layer) * s->n_expert;
}

static void crosslayer_learn(stk_part *s, const stk_track *track, const stk_event *event) {
    for (uint32_t i = 0; i < track->n_tok; i++) {
        const stk_track_token *tok = &track->tok[i];
        if (tok->at == STK_TRACK_ABSENT) continue;
        for (uint32_t d = 1; d <= s->depth; d++) {
            const uint16_t *from = NULL;
            if (event->layer >= d)
                from = stk_track_path(track, i, event->layer - d);
            else if (tok->follows && event->layer + s->n_layer >= d)
                from = stk_track_before(track, tok->slot, event->layer + s->n_layer - d);
            if (from)
                stk_pairs_add(&s->pairs, first_row(s, d, event->layer), from, s->k, event->ids + (size_t)tok->at * event->k,
                              event->k);
        }
    }
}

static bool crosslayer_score(const stk_part *s, const stk_track *track, uint32_t depth, uint32_t i, float *row) {
    uint32_t layer = (track->layer + depth) % s->n_layer;
    return stk_pairs_score(&s->pairs, first_row(s, depth, layer), stk_track_path(track, i, track->layer), s->k, row);
}

static uint32_t crosslayer_blobs(const stk_part *s, stk_part_blob *blobs) { return stk_pairs_blobs(&s->pairs, blobs); }

const stk_part_ops stk_part_crosslayer = {.name = "crosslayer",
                                          .open = crosslayer_open,
                                          .close = crosslayer_close,
                                          .learn = crosslayer_learn,
                                          .score = crosslayer_score,
                                          .blobs = crosslayer_blobs};
STK_PANEL_SOLO(crosslayer, 0x3153524c, false, "pairs: a layer and one ahead, same token"); /* "LRS1" */
