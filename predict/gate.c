/*
 * gate: the routers of the layers ahead, run on today's hidden state by the hub (Eliseev and Mazur, arXiv 2312.17238; Fate,
 * arXiv 2502.12224). The residual stream changes little from one layer
 * to the next, so their order of experts is nearly right; what it is worth is learned here: how often the expert that such a
 * router ranks r-th for a token is one of those that the token then uses, counted by depth, layer and rank. A layer's own counts
 * are smoothed by those of all layers, and these by a guess.
 *
 * Of a step with more than TOKENS_MAX tokens every second, third, ... one is looked at, and stands for its neighbours.
 */
#include "predict/predictors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    STATE_MAGIC = 0x31455447, /* "GTE1" */
    TOKENS_MAX = 64,
    COUNT_MAX = 1 << 14, /* at this many tokens counts are halved, so that they follow a change of text */
    GUESS_WEIGHT = 8,    /* tokens that the guess counts for, against all layers */
    POOL_WEIGHT = 16     /* and all layers against the layer */
};

/* What the routers said of a layer that lies ahead. */
typedef struct outlook {
    uint64_t step;
    uint32_t layer, n_tok, n_seen; /* n_seen of n_tok tokens were looked at; 0: nothing is known */
    uint16_t *ranked;              /* [n_seen, n_rank], STK_NO_EXPERT where the layer has fewer experts */
} outlook;

struct stk_predictor {
    stk_predictor_config config;
    uint32_t n_rank;
    uint64_t step; /* of the latest event */
    uint32_t layer;
    bool begun;
    outlook outlooks[STK_PREDICT_DEPTH_MAX][STK_PREDICT_DEPTH_MAX]; /* [depth - 1][layer % DEPTH_MAX] */
    uint32_t *tallies; /* [DEPTH_MAX, n_layer + 1, 1 + n_rank]: tokens, and how many used their expert of each rank; the last
                        * layer is the sum of all */
    uint16_t *ranked;  /* what all outlooks hold */
    float *scratch;    /* [n_expert] */
    float *best;       /* [n_rank] scores of a ranking under construction */
    uint8_t *used;     /* [n_expert], all 0 between calls */
};

static size_t n_counts(const stk_predictor *p) {
    return (size_t)STK_PREDICT_DEPTH_MAX * (p->config.n_layer + 1) * (1 + p->n_rank);
}

static uint32_t *tally_of(const stk_predictor *p, uint32_t d, uint32_t layer) {
    return p->tallies + ((size_t)d * (p->config.n_layer + 1) + layer) * (1 + p->n_rank);
}

static void gate_close(stk_predictor *p) {
    if (!p) return;
    free(p->tallies);
    free(p->ranked);
    free(p->scratch);
    free(p->best);
    free(p->used);
    free(p);
}

static int gate_alloc(stk_predictor *p) {
    size_t outlook_size = (size_t)TOKENS_MAX * p->n_rank;
    p->tallies = calloc(n_counts(p), sizeof *p->tallies);
    p->ranked = calloc(STK_PREDICT_DEPTH_MAX * STK_PREDICT_DEPTH_MAX * outlook_size, sizeof *p->ranked);
    p->scratch = calloc(p->config.n_expert, sizeof *p->scratch);
    p->best = calloc(p->n_rank, sizeof *p->best);
    p->used = calloc(p->config.n_expert, sizeof *p->used);
    if (!p->tallies || !p->ranked || !p->scratch || !p->best || !p->used)
        return stk_fail(STK_ENOMEM, "predictor gate: out of memory for %u layers of %u experts", p->config.n_layer,
                        p->config.n_expert);
    for (uint32_t i = 0; i < STK_PREDICT_DEPTH_MAX * STK_PREDICT_DEPTH_MAX; i++)
        p->outlooks[i / STK_PREDICT_DEPTH_MAX][i % STK_PREDICT_DEPTH_MAX].ranked = p->ranked + i * outlook_size;
    return 0;
}

static int gate_open(stk_predictor **out, const stk_predictor_config *config) {
    STK_TRY(stk_predictor_config_check("gate", config));
    STK_TRY(stk_predictor_no_params("gate", config->params));
    stk_predictor *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "predictor gate: out of memory");
    p->config = *config;
    p->config.params = NULL;
    p->n_rank = STK_MIN(4 * config->k, config->n_expert);
    int rc = gate_alloc(p);
    if (rc < 0) {
        gate_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

static void count(uint32_t *tally, uint32_t n_rank, const uint16_t *ranked, const uint8_t *used) {
    tally[0]++;
    for (uint32_t r = 0; r < n_rank && ranked[r] != STK_NO_EXPERT; r++) tally[1 + r] += used[ranked[r]];
    if (tally[0] < COUNT_MAX) return;
    for (uint32_t r = 0; r <= n_rank; r++) tally[r] /= 2;
}

static uint32_t stride_of(uint32_t n_tok) { return (n_tok + TOKENS_MAX - 1) / TOKENS_MAX; }

static void learn(stk_predictor *p, uint32_t d, const outlook *o, const stk_event *event) {
    if (o->n_seen == 0 || o->step != event->step || o->layer != event->layer || o->n_tok != event->n_tok) return;
    for (uint32_t i = 0; i < o->n_seen; i++) {
        const uint16_t *ids = event->ids + (size_t)i * stride_of(o->n_tok) * event->k,
                       *ranked = o->ranked + (size_t)i * p->n_rank;
        for (uint32_t j = 0; j < event->k; j++)
            if (ids[j] != STK_NO_EXPERT) p->used[ids[j]] = 1;
        count(tally_of(p, d, p->config.n_layer), p->n_rank, ranked, p->used);
        count(tally_of(p, d, event->layer), p->n_rank, ranked, p->used);
        for (uint32_t j = 0; j < event->k; j++)
            if (ids[j] != STK_NO_EXPERT) p->used[ids[j]] = 0;
    }
}

/* The n_rank best of a token's scores; ties to the lower id, NaN last. */
static void rank(const stk_predictor *p, const float *scores, uint32_t n_expert, uint16_t *ranked) {
    uint32_t n = 0;
    for (uint32_t e = 0; e < n_expert; e++) {
        float s = scores[e] == scores[e] ? scores[e] : -INFINITY;
        if (n == p->n_rank && !(s > p->best[n - 1])) continue;
        uint32_t i = n < p->n_rank ? n++ : n - 1;
        for (; i > 0 && s > p->best[i - 1]; i--) {
            p->best[i] = p->best[i - 1];
            ranked[i] = ranked[i - 1];
        }
        p->best[i] = s;
        ranked[i] = (uint16_t)e;
    }
    for (; n < p->n_rank; n++) ranked[n] = STK_NO_EXPERT;
}

static void look(stk_predictor *p, uint32_t d, const stk_event *event, const stk_lookahead *ahead) {
    uint32_t layer = event->layer + d + 1, stride = stride_of(event->n_tok);
    outlook *o = &p->outlooks[d][layer % STK_PREDICT_DEPTH_MAX];
    o->n_seen = 0;
    if (d >= ahead->depth || layer >= p->config.n_layer) return;
    o->step = event->step;
    o->layer = layer;
    o->n_tok = event->n_tok;
    const float *scores = ahead->scores + (size_t)d * ahead->n_tok * ahead->n_expert;
    for (uint32_t i = 0; i < event->n_tok; i += stride)
        rank(p, scores + (size_t)i * ahead->n_expert, ahead->n_expert, o->ranked + (size_t)o->n_seen++ * p->n_rank);
}

static int gate_observe(stk_predictor *p, const stk_event *event, const stk_lookahead *ahead) {
    STK_TRY(stk_predictor_event_check("gate", &p->config, event));
    STK_TRY(stk_predictor_ahead_check("gate", &p->config, event, ahead));
    for (uint32_t d = 0; d < STK_PREDICT_DEPTH_MAX; d++)
        learn(p, d, &p->outlooks[d][event->layer % STK_PREDICT_DEPTH_MAX], event);
    for (uint32_t d = 0; d < STK_PREDICT_DEPTH_MAX; d++) look(p, d, event, ahead);
    p->step = event->step;
    p->layer = event->layer;
    p->begun = true;
    return 0;
}

/* That a token uses the expert which the router of its layer ranks r-th, seen from d + 1 layers before. */
static float chance(const stk_predictor *p, uint32_t d, uint32_t layer, uint32_t r) {
    const uint32_t *pool = tally_of(p, d, p->config.n_layer), *own = tally_of(p, d, layer);
    float guess = r < p->config.k ? 0.7f : r < 2 * p->config.k ? 0.15f : 0.03f;
    float pooled = ((float)pool[1 + r] + GUESS_WEIGHT * guess) / (float)(pool[0] + GUESS_WEIGHT);
    return ((float)own[1 + r] + POOL_WEIGHT * pooled) / (float)(own[0] + POOL_WEIGHT);
}

static int gate_suggest(const stk_predictor *p, uint32_t depth, stk_suggestion *out, uint32_t cap) {
    if (depth == 0 || depth > STK_PREDICT_DEPTH_MAX || !p->begun) return 0;
    const outlook *o = &p->outlooks[depth - 1][(p->layer + depth) % STK_PREDICT_DEPTH_MAX];
    if (o->n_seen == 0 || o->step != p->step || o->layer != p->layer + depth) return 0;
    float *none = p->scratch;
    for (uint32_t e = 0; e < p->config.n_expert; e++) none[e] = 1.0f;
    for (uint32_t r = 0; r < p->n_rank; r++) {
        float miss = stk_predictor_none(chance(p, depth - 1, o->layer, r), stride_of(o->n_tok));
        for (uint32_t i = 0; i < o->n_seen; i++) {
            uint16_t e = o->ranked[(size_t)i * p->n_rank + r];
            if (e != STK_NO_EXPERT) none[e] *= miss;
        }
    }
    for (uint32_t e = 0; e < p->config.n_expert; e++) none[e] = 1.0f - none[e];
    return stk_predictor_best(none, p->config.n_expert, out, cap);
}

static stk_predictor_state head_of(const stk_predictor *p) {
    return (stk_predictor_state){STATE_MAGIC, p->config.n_layer, p->config.n_expert, p->config.k,
                                 sizeof(stk_predictor_state) + n_counts(p) * sizeof *p->tallies};
}

static int64_t gate_save(const stk_predictor *p, void *out, size_t cap) {
    const stk_predictor_state head = head_of(p);
    if (cap < head.bytes) return (int64_t)head.bytes;
    memcpy(out, &head, sizeof head);
    memcpy((unsigned char *)out + sizeof head, p->tallies, n_counts(p) * sizeof *p->tallies);
    return (int64_t)head.bytes;
}

static int gate_load(stk_predictor *p, const void *data, size_t bytes) {
    const stk_predictor_state want = head_of(p);
    STK_TRY(stk_predictor_state_check("gate", &want, data, bytes));
    const unsigned char *from = (const unsigned char *)data + sizeof want;
    uint32_t n = 0;
    for (size_t i = 0; i < n_counts(p); i++) {
        uint32_t x;
        memcpy(&x, from + i * sizeof x, sizeof x);
        if (i % (1 + p->n_rank) == 0) n = x;
        if (x > n || n >= COUNT_MAX) return stk_fail(STK_EFORMAT, "saved state of predictor gate: %u uses by %u tokens", x, n);
    }
    memcpy(p->tallies, from, n_counts(p) * sizeof *p->tallies);
    return 0;
}

const stk_predictor_ops stk_predictor_gate = {
    .name = "gate",
    .wants_lookahead = true,
    .open = gate_open,
    .close = gate_close,
    .observe = gate_observe,
    .suggest = gate_suggest,
    .save = gate_save,
    .load = gate_load,
};
