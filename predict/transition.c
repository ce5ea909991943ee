/*
 * transition: which experts of a layer follow which of the token before, in the same layer. Memory: 2 bytes a pair of experts and
 * layer.
 */
#include <stdlib.h>

#include "predict/pairs.h"
#include "predict/panel.h"

struct stk_part {
    uint32_t n_layer, n_expert, k;
    stk_pairs pairs; /* row: layer * n_expert + expert of the token before */
};

static void transition_close(stk_part *s) {
    if (!s) return;
    stk_pairs_fini(&s->pairs);
    free(s);
}

static int transition_open(stk_part **out, const stk_part_config *config) {
    stk_part *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "predictor transition: out of memory");
    s->n_layer = config->model->n_layer;
    s->n_expert = config->model->n_expert;
    s->k = config->model->k;
    int rc = stk_pairs_init(&s->pairs, (uint64_t)s->n_layer * s->n_expert, config->width, "transition");
    if (rc < 0) {
        transition_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

static void transition_learn(stk_part *s, const stk_track *track, const stk_event *event) {
    for (uint32_t i = 0; i < track->n_tok; i++) {
        uint32_t k;
        if (track->tok[i].at == STK_TRACK_ABSENT) continue;
        const uint16_t *from = stk_track_predecessor(track, event, i, &k);
        if (from)
            stk_pairs_add(&s->pairs, (size_t)event->layer * s->n_expert, from, k,
                          event->ids + (size_t)track->tok[i].at * event->k, event->k);
    }
}

static bool transition_score(const stk_part *s, const stk_track *track, uint32_t depth, uint32_t i, float *row) {
    if (!stk_track_has_before(track, depth, i)) return false;
    uint32_t layer = (track->layer + depth) % s->n_layer;
    return stk_pairs_score(&s->pairs, (size_t)layer * s->n_expert, stk_track_before(track, track->tok[i].slot, layer), s->k, row);
}

static uint32_t transition_blobs(const stk_part *s, stk_part_blob *blobs) { return stk_pairs_blobs(&s->pairs, blobs); }

const stk_part_ops stk_part_transition = {.name = "transition",
                                          .open = transition_open,
                                          .close = transition_close,
                                          .learn = transition_learn,
                                          .score = transition_score,
                                          .blobs = transition_blobs};
STK_PANEL_SOLO(transition, 0x31415254, false, "pairs: the token before and this one, same layer"); /* "TRA1" */
