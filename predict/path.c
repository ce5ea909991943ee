/*
 * path: a token's experts in the layers behind it tell those ahead better than any table of pairs can add up: a logistic
 * regression for each layer, learned online. Inputs are the experts that the token chose in the last `back` layers (running on
 * into the token before, at the first layers) and those that the token before chose in the layer foretold, one weight for each
 * input and expert foretold: log-odds = constant + sum of the rows of the active inputs. A step of gradient descent changes the
 * same rows by rate * (used - p).
 *
 * Memory: 4 * layers * experts * (1 + experts * (back + 1)) bytes for one layer ahead; two and three layers ahead look back less.
 * What does not fit into `mib` MiB is given up in this order: back, the layers further ahead, all.
 */
#include <stdlib.h>
#include <string.h>

#include "predict/odds.h"
#include "predict/panel.h"

enum { BACK_MAX = 16, BACK_FURTHER = 2, PENDING = STK_PREDICT_DEPTH_MAX };
#define WEIGHT_MAX 1000.0f

/* What was said of a token's experts in a layer ahead, until they are known. */
typedef struct saying {
    uint32_t layer;
    int32_t seq, pos;
    uint32_t n_in; /* 0: nothing */
    uint32_t *in;  /* rows of the weights */
    float *odds;   /* [width] */
} saying;

struct stk_part {
    uint32_t n_layer, n_expert, k, width, depth, back[STK_PREDICT_DEPTH_MAX];
    float rate;
    float *weights[STK_PREDICT_DEPTH_MAX]; /* [n_layer, 1 + (back + 1) * n_expert, width] */
    size_t n_weight;
    float *odds;   /* [depth, TRACK_TOKENS, width] of the latest event */
    float *error;  /* [width] */
    uint32_t *ins; /* what all sayings hold */
    float *said;
    uint32_t turn[STK_PREDICT_DEPTH_MAX];
    saying sayings[STK_PREDICT_DEPTH_MAX * PENDING * STK_TRACK_LEARN]; /* [depth, PENDING, TRACK_LEARN] */
};

static void path_close(stk_part *s) {
    if (!s) return;
    free(s->weights[0]);
    free(s->odds);
    free(s->error);
    free(s->ins);
    free(s->said);
    free(s);
}

static uint64_t n_row(const stk_part *s, uint32_t d) { return 1 + (uint64_t)(s->back[d] + 1) * s->n_expert; }

static uint64_t n_weight(const stk_part *s) {
    uint64_t n = 0;
    for (uint32_t d = 0; d < s->depth; d++) n += n_row(s, d) * s->n_layer * s->width;
    return n;
}

/* Sets depth and back so that the weights fit; depth 0 where not even the least does. */
static void fit(stk_part *s, uint32_t depth, uint32_t back, uint64_t bytes) {
    for (s->depth = depth; s->depth; s->depth--)
        for (uint32_t b = back; b; b--) {
            for (uint32_t d = 0; d < s->depth; d++) s->back[d] = d ? STK_MIN(b, BACK_FURTHER) : b;
            if (n_weight(s) * sizeof(float) <= bytes) return;
        }
}

static int path_alloc(stk_part *s) {
    size_t n_saying = STK_ARRAY_LEN(s->sayings), n_in = 1 + (size_t)(BACK_MAX + 1) * s->k;
    s->n_weight = n_weight(s);
    s->weights[0] = calloc(s->n_weight + 1, sizeof **s->weights);
    s->odds = calloc((size_t)STK_PREDICT_DEPTH_MAX * STK_TRACK_TOKENS * s->width, sizeof *s->odds);
    s->error = calloc(s->width, sizeof *s->error);
    s->ins = calloc(n_saying * n_in, sizeof *s->ins);
    s->said = calloc(n_saying * s->width, sizeof *s->said);
    if (!s->weights[0] || !s->odds || !s->error || !s->ins || !s->said)
        return stk_fail(STK_ENOMEM, "predictor path: out of memory for %zu weights", s->n_weight);
    for (uint32_t d = 1; d < s->depth; d++) s->weights[d] = s->weights[d - 1] + n_row(s, d - 1) * s->n_layer * s->width;
    for (size_t i = 0; i < n_saying; i++) {
        s->sayings[i].in = s->ins + i * n_in;
        s->sayings[i].odds = s->said + i * s->width;
    }
    return 0;
}

static int path_open(stk_part **out, const stk_part_config *config) {
    stk_part *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "predictor path: out of memory");
    s->n_layer = config->model->n_layer;
    s->n_expert = config->model->n_expert;
    s->k = config->model->k;
    s->width = config->width;
    s->rate = config->values[2];
    fit(s, config->depth, (uint32_t)config->values[0], (uint64_t)config->values[1] << 20);
    int rc = path_alloc(s);
    if (rc < 0) {
        path_close(s);
        return rc;
    }
    /* Constants: a layer's experts share its k evenly. */
    float even = stk_odds_of((float)s->k / (float)s->n_expert);
    for (uint32_t d = 0; d < s->depth; d++)
        for (uint32_t l = 0; l < s->n_layer; l++)
            for (uint32_t e = 0; e < s->n_expert; e++) s->weights[d][n_row(s, d) * l * s->width + e] = even;
    *out = s;
    return 0;
}

static uint32_t add_rows(const stk_part *s, const uint16_t *ids, uint32_t first, uint32_t *in) {
    uint32_t n = 0;
    for (uint32_t j = 0; j < s->k; j++)
        if (ids[j] != STK_NO_EXPERT) in[n++] = first + ids[j];
    return n;
}

/* The active inputs of what is said about layer track->layer + d + 1 for token i. */
static uint32_t gather(const stk_part *s, const stk_track *track, uint32_t d, uint32_t i, uint32_t *in) {
    const stk_track_token *tok = &track->tok[i];
    bool next_step = track->layer + d + 1 >= s->n_layer, has_before = stk_track_has_before(track, d + 1, i);
    uint32_t layer = (track->layer + d + 1) % s->n_layer, n = 0;
    in[n++] = 0;
    for (uint32_t b = 0; b < s->back[d]; b++) {
        uint32_t behind = d + 1 + b, first = 1 + b * s->n_expert;
        if (!next_step && behind <= layer)
            n += add_rows(s, stk_track_path(track, i, layer - behind), first, in + n);
        else if (has_before && behind <= layer + s->n_layer)
            n += add_rows(s, stk_track_before(track, tok->slot, (layer + s->n_layer - behind) % s->n_layer), first, in + n);
    }
    if (has_before) n += add_rows(s, stk_track_before(track, tok->slot, layer), 1 + s->back[d] * s->n_expert, in + n);
    return n;
}

static void path_look(stk_part *s, const stk_track *track, const stk_event *event, const stk_lookahead *ahead) {
    (void)event, (void)ahead;
    for (uint32_t d = 0; d < s->depth; d++) {
        uint32_t layer = (track->layer + d + 1) % s->n_layer;
        bool next_step = track->layer + d + 1 >= s->n_layer;
        const float *rows = s->weights[d] + n_row(s, d) * layer * s->width;
        saying *say = s->sayings + (size_t)(d * PENDING + s->turn[d]) * STK_TRACK_LEARN;
        s->turn[d] = (s->turn[d] + 1) % PENDING;
        for (uint32_t j = 0; j < STK_TRACK_LEARN; j++) say[j].n_in = 0;
        for (uint32_t i = 0; i < track->n_tok; i++) {
            const stk_track_token *tok = &track->tok[i];
            if (tok->at == STK_TRACK_ABSENT || (next_step && !tok->last)) continue;
            float *odds = s->odds + ((size_t)d * STK_TRACK_TOKENS + i) * s->width;
            /* The last ones are learned from; the others share the place of the first of these, which is then overwritten. */
            saying *to = &say[track->n_tok - 1 - i < STK_TRACK_LEARN ? track->n_tok - 1 - i : STK_TRACK_LEARN - 1];
            to->n_in = gather(s, track, d, i, to->in);
            for (uint32_t j = 0; j < to->n_in; j++) stk_row_prefetch(rows + (size_t)to->in[j] * s->width, s->width);
            stk_row_sum(odds, rows, to->in, to->n_in, s->width);
            memcpy(to->odds, odds, s->width * sizeof *odds);
            to->layer = layer;
            to->seq = tok->seq;
            to->pos = stk_part_pos(track, tok->pos, d + 1);
        }
    }
}

static void learn(stk_part *s, uint32_t d, saying *say, const stk_event *event) {
    int64_t at = say->n_in && say->layer == event->layer ? stk_part_find(event, say->seq, say->pos) : STK_TRACK_ABSENT;
    if (at == STK_TRACK_ABSENT) return;
    stk_odds_row(s->error, say->odds, s->width);
    stk_row_scale(s->error, -s->rate, s->width);
    for (uint32_t j = 0; j < event->k; j++) {
        uint16_t id = event->ids[(size_t)at * event->k + j];
        if (id != STK_NO_EXPERT) s->error[id] += s->rate;
    }
    for (uint32_t e = s->n_expert; e < s->width; e++) s->error[e] = 0.0f;
    float *rows = s->weights[d] + n_row(s, d) * say->layer * s->width;
    for (uint32_t j = 0; j < say->n_in; j++) stk_row_plus(rows + (size_t)say->in[j] * s->width, s->error, s->width);
    say->n_in = 0;
}

static void path_learn(stk_part *s, const stk_track *track, const stk_event *event) {
    (void)track;
    for (uint32_t d = 0; d < s->depth; d++)
        for (uint32_t i = 0; i < PENDING * STK_TRACK_LEARN; i++)
            learn(s, d, &s->sayings[d * PENDING * STK_TRACK_LEARN + i], event);
}

static bool path_score(const stk_part *s, const stk_track *track, uint32_t depth, uint32_t i, float *row) {
    (void)track;
    if (depth > s->depth) return false;
    memcpy(row, s->odds + ((size_t)(depth - 1) * STK_TRACK_TOKENS + i) * s->width, s->width * sizeof *row);
    return true;
}

static uint32_t path_blobs(const stk_part *s, stk_part_blob *blobs) {
    blobs[0] = (stk_part_blob){s->weights[0], s->n_weight, STK_BLOB_F32, (uint32_t)WEIGHT_MAX};
    return 1;
}

static void path_loaded(stk_part *s) {
    for (size_t i = 0; i < STK_ARRAY_LEN(s->sayings); i++) s->sayings[i].n_in = 0;
}

const stk_part_ops stk_part_path = {.name = "path",
                                    .gives_odds = true,
                                    .n_param = 3,
                                    .params = {{"back", 4.0f, 1.0f, BACK_MAX, "layers of the token that are looked at"},
                                               {"mib", 128.0f, 0.0f, 65536.0f, "memory for weights at most, in MiB"},
                                               {"rate", 0.02f, 0.0f, 1.0f, "how fast weights are learned"}},
                                    .open = path_open,
                                    .close = path_close,
                                    .learn = path_learn,
                                    .look = path_look,
                                    .score = path_score,
                                    .blobs = path_blobs,
                                    .loaded = path_loaded};
STK_PANEL_SOLO(path, 0x31485450, false,
               "regression on the token's last layers and the token before, learned while running"); /* "PTH1" */
