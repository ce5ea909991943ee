/*
 * previous: what the sequence's token before used in the same layer, its better ranked experts first. No memory of its own.
 */
#include <stdlib.h>
#include <string.h>

#include "predict/panel.h"

struct stk_part {
    uint32_t n_layer, k, width;
};

static void previous_close(stk_part *s) { free(s); }

static int previous_open(stk_part **out, const stk_part_config *config) {
    stk_part *s = malloc(sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "predictor previous: out of memory");
    *s = (stk_part){config->model->n_layer, config->model->k, config->width};
    *out = s;
    return 0;
}

static void previous_learn(stk_part *s, const stk_track *track, const stk_event *event) { (void)s, (void)track, (void)event; }

static bool previous_score(const stk_part *s, const stk_track *track, uint32_t depth, uint32_t i, float *row) {
    if (!stk_track_has_before(track, depth, i)) return false;
    const uint16_t *ids = stk_track_before(track, track->tok[i].slot, (track->layer + depth) % s->n_layer);
    if (ids[0] == STK_NO_EXPERT) return false;
    memset(row, 0, s->width * sizeof *row);
    for (uint32_t j = 0; j < s->k; j++)
        if (ids[j] != STK_NO_EXPERT) row[ids[j]] = (float)(s->k - j) / (float)s->k;
    return true;
}

static uint32_t previous_blobs(const stk_part *s, stk_part_blob *blobs) {
    (void)s, (void)blobs;
    return 0;
}

const stk_part_ops stk_part_previous = {.name = "previous",
                                        .open = previous_open,
                                        .close = previous_close,
                                        .learn = previous_learn,
                                        .score = previous_score,
                                        .blobs = previous_blobs};
STK_PANEL_SOLO(previous, 0x31565250, false, "what the token before used in the layer"); /* "PRV1" */
