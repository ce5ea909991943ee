/*
 * matrices: a sequence is like one that was seen before (MoE-Infinity, Xue et al., arXiv 2401.14361). What a sequence used is a
 * matrix of counts, layers by experts; those of finished sequences make a library; the one nearest by cosine, together with the
 * running sequence's own, says what comes. A full library drops, for a new one, the one most like it, so that it stays diverse.
 * Similarities are kept up to date with every use. Memory: 4 bytes an expert and matrix of the library, and an expert and
 * sequence.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "predict/panel.h"

enum { TOKENS_MIN = 8, OWN_WEIGHT = 16 }; /* a shorter sequence is not kept; the nearest counts for as many tokens */
#define COUNT_MAX 1e6f

struct stk_part {
    uint32_t n_layer, width, n_shelf, n_kept;
    size_t size;    /* of a matrix: n_layer * width */
    float *library; /* [n_shelf, n_layer, width] uses a token */
    float *scale;   /* [n_shelf] 1 / norm */
    float *running; /* [SEQS, n_layer, width] uses */
    float *n_tok;   /* [SEQS, n_layer] tokens of these */
    float *similar; /* [SEQS, n_shelf] dot products */
};

static void matrices_close(stk_part *s) {
    if (!s) return;
    free(s->library);
    free(s->scale);
    free(s->running);
    free(s->n_tok);
    free(s->similar);
    free(s);
}

static int matrices_open(stk_part **out, const stk_part_config *config) {
    stk_part *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "predictor matrices: out of memory");
    s->n_layer = config->model->n_layer;
    s->width = config->width;
    s->n_shelf = (uint32_t)config->values[0];
    s->size = (size_t)s->n_layer * s->width;
    s->library = calloc(s->n_shelf * s->size, sizeof *s->library);
    s->scale = calloc(s->n_shelf, sizeof *s->scale);
    s->running = calloc(STK_TRACK_SEQS * s->size, sizeof *s->running);
    s->n_tok = calloc((size_t)STK_TRACK_SEQS * s->n_layer, sizeof *s->n_tok);
    s->similar = calloc((size_t)STK_TRACK_SEQS * s->n_shelf, sizeof *s->similar);
    if (!s->library || !s->scale || !s->running || !s->n_tok || !s->similar) {
        matrices_close(s);
        return stk_fail(STK_ENOMEM, "predictor matrices: out of memory for %u matrices", (uint32_t)config->values[0]);
    }
    *out = s;
    return 0;
}

/* Which of the library is nearest to a sequence; n_kept must not be 0. */
static uint32_t nearest(const stk_part *s, uint32_t slot) {
    const float *similar = s->similar + (size_t)slot * s->n_shelf;
    uint32_t best = 0;
    for (uint32_t m = 1; m < s->n_kept; m++)
        if (similar[m] * s->scale[m] > similar[best] * s->scale[best]) best = m;
    return best;
}

static void set_scale(stk_part *s, uint32_t shelf) {
    const float *m = s->library + shelf * s->size;
    float square = 0.0f;
    for (uint32_t l = 0; l < s->n_layer; l++) square += stk_row_dot(m + l * s->width, m + l * s->width, s->width);
    s->scale[shelf] = square > 0.0f ? 1.0f / sqrtf(square) : 0.0f;
}

/* A sequence has ended. Those that run are compared with its matrix from their beginning. */
static void keep(stk_part *s, uint32_t slot) {
    const float *from = s->running + slot * s->size, *n_tok = s->n_tok + (size_t)slot * s->n_layer;
    if (n_tok[0] < TOKENS_MIN) return;
    uint32_t shelf = s->n_kept < s->n_shelf ? s->n_kept++ : nearest(s, slot);
    float *to = s->library + shelf * s->size;
    for (uint32_t l = 0; l < s->n_layer; l++) {
        float by = n_tok[l] > 0.0f ? 1.0f / n_tok[l] : 0.0f;
        for (uint32_t e = 0; e < s->width; e++) to[l * s->width + e] = from[l * s->width + e] * by;
    }
    set_scale(s, shelf);
    for (uint32_t other = 0; other < STK_TRACK_SEQS; other++) {
        float dot = 0.0f;
        for (uint32_t l = 0; l < s->n_layer; l++)
            dot += stk_row_dot(s->running + other * s->size + l * s->width, to + l * s->width, s->width);
        s->similar[(size_t)other * s->n_shelf + shelf] = dot;
    }
}

static void restart(stk_part *s, uint32_t slot) {
    keep(s, slot);
    memset(s->running + slot * s->size, 0, s->size * sizeof *s->running);
    memset(s->n_tok + (size_t)slot * s->n_layer, 0, s->n_layer * sizeof *s->n_tok);
    memset(s->similar + (size_t)slot * s->n_shelf, 0, s->n_shelf * sizeof *s->similar);
}

static void matrices_learn(stk_part *s, const stk_track *track, const stk_event *event) {
    for (uint32_t slot = 0; track->new_step && slot < STK_TRACK_SEQS; slot++)
        if (track->slots[slot].restarted) restart(s, slot);
    stk_track_run run;
    size_t layer = (size_t)event->layer * s->width;
    for (uint32_t at = 0; stk_track_next_run(track, event, &at, &run);) {
        float *own = s->running + run.slot * s->size + layer, *similar = s->similar + (size_t)run.slot * s->n_shelf;
        float *n_tok = &s->n_tok[(size_t)run.slot * s->n_layer + event->layer];
        if (*n_tok > COUNT_MAX) continue; /* it has long said what it has to say */
        *n_tok += (float)(run.end - run.begin);
        for (size_t i = (size_t)run.begin * event->k; i < (size_t)run.end * event->k; i++) {
            if (event->ids[i] == STK_NO_EXPERT) continue;
            own[event->ids[i]] += 1.0f;
            for (uint32_t m = 0; m < s->n_kept; m++) similar[m] += s->library[m * s->size + layer + event->ids[i]];
        }
    }
}

static bool matrices_score(const stk_part *s, const stk_track *track, uint32_t depth, uint32_t i, float *row) {
    uint32_t slot = track->tok[i].slot, layer = (track->layer + depth) % s->n_layer;
    if (slot >= STK_TRACK_SEQS) return false;
    float n = s->n_tok[(size_t)slot * s->n_layer + layer], by = 1.0f / (n + OWN_WEIGHT);
    if (s->n_kept == 0 && n == 0.0f) return false;
    memset(row, 0, s->width * sizeof *row);
    stk_row_add(row, s->running + slot * s->size + layer * s->width, by, s->width);
    if (s->n_kept) stk_row_add(row, s->library + nearest(s, slot) * s->size + layer * s->width, OWN_WEIGHT * by, s->width);
    return true;
}

static uint32_t matrices_blobs(const stk_part *s, stk_part_blob *blobs) {
    blobs[0] = (stk_part_blob){s->library, s->n_shelf * s->size, STK_BLOB_F32, 1};
    return 1;
}

/* A shelf is full where its matrix is not all zero. */
static void matrices_loaded(stk_part *s) {
    s->n_kept = 0;
    for (uint32_t m = 0; m < s->n_shelf; m++) {
        set_scale(s, m);
        if (s->scale[m] == 0.0f) break;
        s->n_kept++;
    }
    memset(s->running, 0, STK_TRACK_SEQS * s->size * sizeof *s->running);
    memset(s->n_tok, 0, (size_t)STK_TRACK_SEQS * s->n_layer * sizeof *s->n_tok);
    memset(s->similar, 0, (size_t)STK_TRACK_SEQS * s->n_shelf * sizeof *s->similar);
}

const stk_part_ops stk_part_matrices = {.name = "matrices",
                                        .n_param = 1,
                                        .params = {{"matrices", 24.0f, 1.0f, 1024.0f, "sequences that are kept"}},
                                        .open = matrices_open,
                                        .close = matrices_close,
                                        .learn = matrices_learn,
                                        .score = matrices_score,
                                        .blobs = matrices_blobs,
                                        .loaded = matrices_loaded};
STK_PANEL_SOLO(matrices, 0x3154414d, false, "the kept sequence most like this one (MoE-Infinity)"); /* "MAT1" */
