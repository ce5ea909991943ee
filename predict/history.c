/*
 * history: how often the sequence used an expert lately: a count that decays by a fixed factor a token. Memory: 4 bytes an expert
 * and sequence. Of a long prompt's events only the last tokens count, which is where the weight is.
 */
#include <stdlib.h>
#include <string.h>

#include "predict/panel.h"

struct stk_part {
    uint32_t n_layer, width;
    float keep;
    float *uses; /* [SEQS, n_layer, width] */
};

static void history_close(stk_part *s) {
    if (!s) return;
    free(s->uses);
    free(s);
}

static int history_open(stk_part **out, const stk_part_config *config) {
    stk_part *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "predictor history: out of memory");
    s->n_layer = config->model->n_layer;
    s->width = config->width;
    s->keep = config->values[0];
    s->uses = calloc((size_t)STK_TRACK_SEQS * s->n_layer * s->width, sizeof *s->uses);
    if (!s->uses) {
        history_close(s);
        return stk_fail(STK_ENOMEM, "predictor history: out of memory for %u layers", config->model->n_layer);
    }
    *out = s;
    return 0;
}

static void add(float *restrict row, uint32_t width, float keep, const uint16_t *ids, uint32_t k) {
    stk_row_scale(row, keep, width);
    for (uint32_t j = 0; j < k; j++)
        if (ids[j] != STK_NO_EXPERT) row[ids[j]] += 1.0f - keep;
}

static void history_learn(stk_part *s, const stk_track *track, const stk_event *event) {
    size_t slot_size = (size_t)s->n_layer * s->width;
    for (uint32_t slot = 0; track->new_step && slot < STK_TRACK_SEQS; slot++)
        if (track->slots[slot].restarted) memset(s->uses + slot * slot_size, 0, slot_size * sizeof *s->uses);
    stk_track_run run;
    for (uint32_t at = 0; stk_track_next_run(track, event, &at, &run);)
        for (uint32_t i = run.begin; i < run.end; i++)
            add(s->uses + run.slot * slot_size + (size_t)event->layer * s->width, s->width, s->keep,
                event->ids + (size_t)i * event->k, event->k);
}

static bool history_score(const stk_part *s, const stk_track *track, uint32_t depth, uint32_t i, float *row) {
    if (track->tok[i].slot >= STK_TRACK_SEQS) return false;
    size_t layer = (size_t)track->tok[i].slot * s->n_layer + (track->layer + depth) % s->n_layer;
    memcpy(row, s->uses + layer * s->width, s->width * sizeof *row);
    return true;
}

static uint32_t history_blobs(const stk_part *s, stk_part_blob *blobs) {
    (void)s, (void)blobs;
    return 0;
}

const stk_part_ops stk_part_history = {.name = "history",
                                       .n_param = 1,
                                       .params = {{"keep", 0.94f, 0.0f, 0.9999f, "what is left of a count after a token"}},
                                       .open = history_open,
                                       .close = history_close,
                                       .learn = history_learn,
                                       .score = history_score,
                                       .blobs = history_blobs};
STK_PANEL_SOLO(history, 0x31534948, false, "what the layer used lately, in counts that fade"); /* "HIS1" */
