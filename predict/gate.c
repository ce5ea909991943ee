/*
 * gate: the routers of the layers ahead, run on today's hidden state by the hub (Eliseev and Mazur, arXiv 2312.17238; Fate,
 * arXiv 2502.12224). The residual stream changes little from one layer to the next, so their order of experts is nearly right;
 * what it is worth is learned here: how often the expert that such a router ranks r-th for a token is one of those that the token
 * then uses, counted by depth, layer and rank. A layer's own counts are smoothed by those of all layers, and these by a guess.
 * Memory: 4 * (4k + 1) bytes a layer and depth.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "predict/odds.h"
#include "predict/panel.h"

enum {
    COUNT_MAX = 1 << 14, /* at this many tokens counts are halved, so that they follow a change of text */
    GUESS_WEIGHT = 8,    /* tokens that the guess counts for, against all layers */
    POOL_WEIGHT = 16     /* and all layers against the layer */
};

/* What the router of a layer that lies ahead said of a token. */
typedef struct outlook {
    uint32_t layer, n_expert;
    int32_t seq, pos;
    bool open;        /* the layer's event has not come */
    uint16_t *ranked; /* [n_rank], STK_NO_EXPERT where the layer has fewer experts */
} outlook;

struct stk_part {
    uint32_t n_layer, n_expert, k, n_rank, width, depth;
    outlook *outlooks; /* [DEPTH_MAX, layer % DEPTH_MAX, TRACK_TOKENS] */
    uint32_t *tallies; /* [DEPTH_MAX, n_layer + 1, 1 + n_rank]: tokens, and how many used their expert of each rank; the last
                        * layer is the sum of all */
    uint16_t *ranked;  /* what all outlooks hold */
    float *best;       /* [n_rank] scores of a ranking under construction */
    float *odds;       /* [DEPTH_MAX, n_rank + 1] by rank, of the layers ahead of the latest event; the last for all others */
    uint8_t *used;     /* [n_expert], all 0 between calls */
};

static size_t n_count(const stk_part *s) { return (size_t)STK_PREDICT_DEPTH_MAX * (s->n_layer + 1) * (1 + s->n_rank); }

static uint32_t *tally_of(const stk_part *s, uint32_t d, uint32_t layer) {
    return s->tallies + ((size_t)d * (s->n_layer + 1) + layer) * (1 + s->n_rank);
}

static outlook *outlook_of(const stk_part *s, uint32_t d, uint32_t layer, uint32_t i) {
    return &s->outlooks[((size_t)d * STK_PREDICT_DEPTH_MAX + layer % STK_PREDICT_DEPTH_MAX) * STK_TRACK_TOKENS + i];
}

static void gate_close(stk_part *s) {
    if (!s) return;
    free(s->outlooks);
    free(s->tallies);
    free(s->ranked);
    free(s->best);
    free(s->odds);
    free(s->used);
    free(s);
}

static int gate_open(stk_part **out, const stk_part_config *config) {
    stk_part *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "predictor gate: out of memory");
    s->n_layer = config->model->n_layer;
    s->n_expert = config->model->n_expert;
    s->k = config->model->k;
    s->n_rank = STK_MIN(4 * s->k, s->n_expert);
    s->width = config->width;
    s->depth = config->depth;
    size_t n_outlook = (size_t)STK_PREDICT_DEPTH_MAX * STK_PREDICT_DEPTH_MAX * STK_TRACK_TOKENS;
    s->outlooks = calloc(n_outlook, sizeof *s->outlooks);
    s->tallies = calloc(n_count(s), sizeof *s->tallies);
    s->ranked = calloc(n_outlook * s->n_rank, sizeof *s->ranked);
    s->best = calloc(s->n_rank, sizeof *s->best);
    s->odds = calloc((size_t)STK_PREDICT_DEPTH_MAX * (s->n_rank + 1), sizeof *s->odds);
    s->used = calloc(s->n_expert, sizeof *s->used);
    if (!s->outlooks || !s->tallies || !s->ranked || !s->best || !s->odds || !s->used) {
        gate_close(s);
        return stk_fail(STK_ENOMEM, "predictor gate: out of memory for %u layers", config->model->n_layer);
    }
    for (size_t i = 0; i < n_outlook; i++) s->outlooks[i].ranked = s->ranked + i * s->n_rank;
    *out = s;
    return 0;
}

static void count(uint32_t *tally, uint32_t n_rank, const uint16_t *ranked, const uint8_t *used) {
    tally[0]++;
    for (uint32_t r = 0; r < n_rank && ranked[r] != STK_NO_EXPERT; r++) tally[1 + r] += used[ranked[r]];
    if (tally[0] < COUNT_MAX) return;
    for (uint32_t r = 0; r <= n_rank; r++) tally[r] /= 2;
}

static void gate_learn(stk_part *s, const stk_track *track, const stk_event *event) {
    for (uint32_t d = 0; d < s->depth; d++)
        for (uint32_t i = 0; i < track->n_tok; i++) {
            const stk_track_token *tok = &track->tok[i];
            outlook *o = outlook_of(s, d, event->layer, i);
            if (!o->open || o->layer != event->layer || tok->at == STK_TRACK_ABSENT || o->seq != tok->seq || o->pos != tok->pos)
                continue;
            const uint16_t *ids = event->ids + (size_t)tok->at * event->k;
            for (uint32_t j = 0; j < event->k; j++)
                if (ids[j] != STK_NO_EXPERT) s->used[ids[j]] = 1;
            count(tally_of(s, d, s->n_layer), s->n_rank, o->ranked, s->used);
            count(tally_of(s, d, event->layer), s->n_rank, o->ranked, s->used);
            for (uint32_t j = 0; j < event->k; j++)
                if (ids[j] != STK_NO_EXPERT) s->used[ids[j]] = 0;
            o->open = false;
        }
}

/* The n_rank best of a token's scores; ties to the lower id, NaN last. */
static void rank(const stk_part *s, const float *scores, uint32_t n_expert, uint16_t *ranked) {
    uint32_t n = 0;
    for (uint32_t e = 0; e < n_expert; e++) {
        float x = scores[e] == scores[e] ? scores[e] : -INFINITY;
        if (n == s->n_rank && !(x > s->best[n - 1])) continue;
        uint32_t low = 0, high = n; /* the first that is less */
        while (low < high) {
            uint32_t middle = (low + high) / 2;
            bool is_less = s->best[middle] < x;
            high = is_less ? middle : high;
            low = is_less ? low : middle + 1;
        }
        n += n < s->n_rank;
        memmove(s->best + low + 1, s->best + low, (n - 1 - low) * sizeof *s->best);
        memmove(ranked + low + 1, ranked + low, (n - 1 - low) * sizeof *ranked);
        s->best[low] = x;
        ranked[low] = (uint16_t)e;
    }
    for (; n < s->n_rank; n++) ranked[n] = STK_NO_EXPERT;
}

/* That a token uses the expert which the router of its layer ranks r-th, seen from d + 1 layers before. */
static float chance(const stk_part *s, uint32_t d, uint32_t layer, uint32_t r) {
    const uint32_t *pool = tally_of(s, d, s->n_layer), *own = tally_of(s, d, layer);
    float guess = r < s->k ? 0.7f : r < 2 * s->k ? 0.15f : 0.03f;
    float pooled = ((float)pool[1 + r] + GUESS_WEIGHT * guess) / (float)(pool[0] + GUESS_WEIGHT);
    return ((float)own[1 + r] + POOL_WEIGHT * pooled) / (float)(own[0] + POOL_WEIGHT);
}

static void gate_look(stk_part *s, const stk_track *track, const stk_event *event, const stk_lookahead *ahead) {
    for (uint32_t d = 0; d < s->depth; d++) {
        uint32_t layer = event->layer + d + 1;
        for (uint32_t i = 0; i < STK_TRACK_TOKENS; i++) outlook_of(s, d, layer, i)->open = false;
        if (d >= ahead->depth || layer >= s->n_layer) continue;
        for (uint32_t i = 0; i < track->n_tok; i++) {
            const stk_track_token *tok = &track->tok[i];
            outlook *o = outlook_of(s, d, layer, i);
            if (tok->at == STK_TRACK_ABSENT) continue;
            size_t row = (size_t)d * ahead->n_tok + (size_t)tok->at;
            rank(s, ahead->scores + row * ahead->n_expert, ahead->n_expert, o->ranked);
            o->layer = layer;
            o->n_expert = ahead->n_expert;
            o->seq = tok->seq;
            o->pos = tok->pos;
            o->open = true;
        }
        float *odds = s->odds + (size_t)d * (s->n_rank + 1);
        for (uint32_t r = 0; r < s->n_rank; r++) odds[r] = stk_odds_of(chance(s, d, layer, r));
        odds[s->n_rank] = stk_odds_of(0.25f * chance(s, d, layer, s->n_rank - 1));
    }
}

static bool gate_score(const stk_part *s, const stk_track *track, uint32_t depth, uint32_t i, float *row) {
    const outlook *o = outlook_of(s, depth - 1, track->layer + depth, i);
    if (!o->open || o->layer != track->layer + depth) return false;
    const float *odds = s->odds + (size_t)(depth - 1) * (s->n_rank + 1);
    for (uint32_t e = 0; e < s->width; e++) row[e] = e < o->n_expert ? odds[s->n_rank] : -STK_ODDS_MAX;
    for (uint32_t r = 0; r < s->n_rank && o->ranked[r] != STK_NO_EXPERT; r++) row[o->ranked[r]] = odds[r];
    return true;
}

static uint32_t gate_blobs(const stk_part *s, stk_part_blob *blobs) {
    blobs[0] = (stk_part_blob){s->tallies, n_count(s), STK_BLOB_U32, COUNT_MAX};
    return 1;
}

static void gate_loaded(stk_part *s) {
    for (size_t i = 0; i < (size_t)STK_PREDICT_DEPTH_MAX * STK_PREDICT_DEPTH_MAX * STK_TRACK_TOKENS; i++)
        s->outlooks[i].open = false;
}

const stk_part_ops stk_part_gate = {.name = "gate",
                                    .gives_odds = true,
                                    .open = gate_open,
                                    .close = gate_close,
                                    .learn = gate_learn,
                                    .look = gate_look,
                                    .score = gate_score,
                                    .blobs = gate_blobs,
                                    .loaded = gate_loaded};
STK_PANEL_SOLO(gate, 0x31455447, true, "the routers of the layers ahead on today's hidden state"); /* "GTE1" */
