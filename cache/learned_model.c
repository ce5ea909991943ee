/* learned_model: features, recall and regression of policy `learned`. */
#include "cache/learned_model.h"

#include <math.h>
#include <string.h>

#include "src/numeric.h"

/* After LEARN_OFTEN samples of each layer one changes little: from then on one in LEARN_EVERY periods is put aside, and weights
 * are worked out after SOLVE_EVERY of them. */
enum { LEARN_OFTEN = 64, LEARN_EVERY = 2, SOLVE_EVERY = 4 };
enum { N_F = STK_LEARNED_N_FEATURE, RENEW_TOKENS = 32 };
/* What the shipped prior counts for, for each layer of the instance: samples of the same token in other layers tell little new.
 */
#define PRIOR_SAMPLES 1024.0
#define MOST_SAMPLES  0x1p21 /* the sums are halved there: old samples fade, and no sum grows without end */
#define RIDGE         0.1    /* so that a feature that is always zero keeps its weight */
#define LIKENESS_EVEN 8.0f   /* at this a match weighs 1 */
#define VOTE          (1.0f / STK_LANES_VOTES)
#define RECALL_DAMP   0.5f /* matches of a weight below this say little */

/* Half-lives of 4, 16, 64 and 512 tokens. */
static const float decay_of[STK_LEARNED_N_DECAY] = {0.840896415f, 0.957603281f, 0.989228013f, 0.998647136f};
static const float near_decay = 0.707106781f;

/* Slots of a layer per expert of a token, for which each horizon is made; an expert that is not used again stays about 2.6 times
 * as many tokens. */
static const double horizon_slots[STK_LEARNED_N_HORIZON] = {1, 1.5, 2.25, 3.25, 4.75, 7};

static double horizon_g(uint32_t horizon) { return 1 - 1 / (2.6 * horizon_slots[horizon]); }

/* ---- Memory ------------------------------------------------------------------------------------------------------------- */

uint32_t stk_learned_pad(uint32_t n_expert) { return (uint32_t)stk_align_up(n_expert, STK_LANES_PAD); }

size_t stk_learned_layer_bytes(uint32_t n_expert) {
    return 64 + (STK_LEARNED_N_FADING + N_F + 2) * sizeof(float) * stk_learned_pad(n_expert);
}

stk_learned_layer stk_learned_layer_at(uint32_t n_expert, void *block) {
    size_t pad = stk_learned_pad(n_expert);
    stk_learned_layer layer = {.head = block};
    layer.fading = (float *)(void *)((unsigned char *)block + 64);
    layer.score = layer.fading + STK_LEARNED_N_FADING * pad;
    layer.sample = layer.score + pad;
    layer.due = (uint32_t *)(void *)(layer.sample + N_F * pad);
    return layer;
}

void stk_learned_layer_init(const stk_learned_layer *layer) {
    for (uint32_t i = 0; i < STK_LEARNED_N_FADING; i++) layer->head->scale[i] = 1;
}

static bool all_within(const float *x, size_t n, float low, float high) {
    for (size_t i = 0; i < n; i++)
        if (!(x[i] >= low && x[i] <= high)) return false;
    return true;
}

int stk_learned_layer_check(const stk_learned_layer *layer, uint32_t n_expert) {
    size_t pad = stk_learned_pad(n_expert);
    const stk_learned_layer_head *head = layer->head;
    if (!all_within(layer->fading, STK_LEARNED_N_FADING * pad, 0, 1e6f) ||
        !all_within(head->scale, STK_LEARNED_N_FADING, 1e-6f, 1) || !all_within(layer->score, pad, -1e6f, 1e6f) ||
        !all_within(layer->sample, N_F * pad, 0, STK_LEARNED_MOST))
        return stk_fail(STK_EFORMAT, "saved state of policy learned: a feature is out of range");
    if (head->n_token > head->n_seen || head->n_seen > INT64_MAX || head->n_sample > head->n_token ||
        (head->n_sample && head->n_token - head->n_sample >= STK_LEARNED_PERIOD))
        return stk_fail(STK_EFORMAT, "saved state of policy learned: impossible token counts");
    for (size_t e = 0; e < pad; e++)
        if (layer->due[e] > STK_LEARNED_PERIOD) return stk_fail(STK_EFORMAT, "saved state of policy learned: impossible label");
    return 0;
}

/* ---- Regression --------------------------------------------------------------------------------------------------------- */

/* Solves xx w = xy by Cholesky's method; false when xx is not positive definite or a weight is not a sensible number. */
static bool solve(double xx[N_F][N_F], const double xy[N_F], double w[N_F]) {
    double y[N_F];
    for (uint32_t i = 0; i < N_F; i++) {
        double s = xy[i];
        for (uint32_t j = 0; j <= i; j++) {
            double t = xx[i][j];
            for (uint32_t q = 0; q < j; q++) t -= xx[i][q] * xx[j][q];
            if (j < i) {
                xx[i][j] = t / xx[j][j];
                s -= xx[i][j] * y[j];
            } else if (t > 0)
                xx[i][i] = sqrt(t);
            else
                return false;
        }
        y[i] = s / xx[i][i];
    }
    for (uint32_t i = N_F; i-- > 0;) {
        double s = y[i];
        for (uint32_t q = i + 1; q < N_F; q++) s -= xx[q][i] * w[q];
        w[i] = s / xx[i][i];
        if (!(fabs(w[i]) <= STK_LEARNED_MOST_WEIGHT)) return false;
    }
    return true;
}

bool stk_learned_regress(const stk_learned_sums *sums, uint32_t horizon, double prior_n, double w[N_F]) {
    double xx[N_F][N_F], xy[N_F];
    for (uint32_t i = 0; i < N_F; i++) {
        xy[i] = sums->xy[horizon][i];
        for (uint32_t j = 0; j < N_F; j++) {
            double weight = prior_n * (double)stk_learned_prior_xx[STK_MAX(i, j)][STK_MIN(i, j)];
            if (i == j) weight += RIDGE;
            xy[i] += weight * (prior_n > 0 ? (double)stk_learned_prior_w[horizon][j] : 0);
            xx[i][j] = sums->xx[i][j] + weight; /* the lower triangle counts */
        }
    }
    return solve(xx, xy, w);
}

void stk_learned_solve(stk_learned_model *m) {
    double w[N_F];
    bool is_good = stk_learned_regress(&m->sums, m->horizon, PRIOR_SAMPLES * m->n_layer, w);
    for (uint32_t i = 0; i < N_F; i++) m->weights[i] = is_good ? (float)w[i] : stk_learned_prior_w[m->horizon][i];
}

static uint64_t n_sample(const stk_learned_model *m) { return (uint64_t)m->sums.n / m->n_expert; }

/* The sample put aside has its labels: an expert that was not used has waited longer than the horizons reach. */
static void take_sample(stk_learned_model *m, const stk_learned_layer *layer) {
    stk_learned_sums *sums = &m->sums;
    uint32_t pad = m->n_pad;
    for (uint32_t h = 0; h < STK_LEARNED_N_HORIZON; h++) {
        for (uint32_t e = 0; e < pad; e++) m->scratch[e] = m->label[h][layer->due[e]];
        for (uint32_t i = 0; i < N_F; i++)
            sums->xy[h][i] += (double)m->lanes->dot(m->scratch, layer->sample + (size_t)i * pad, pad);
    }
    for (uint32_t i = 0; i < N_F; i++)
        for (uint32_t j = 0; j <= i; j++)
            sums->xx[i][j] += (double)m->lanes->dot(layer->sample + (size_t)i * pad, layer->sample + (size_t)j * pad, pad);
    sums->n += m->n_expert;
    if (sums->n > MOST_SAMPLES) {
        double *all = (double *)sums;
        for (size_t i = 0; i < sizeof *sums / sizeof *all; i++) all[i] *= 0.5;
    }
    layer->head->n_sample = 0;
    if (n_sample(m) < m->often || n_sample(m) % SOLVE_EVERY == 0) stk_learned_solve(m);
}

/* ---- Tokens ------------------------------------------------------------------------------------------------------------- */

static float *row_of(const stk_learned_model *m, const stk_learned_layer *layer, uint32_t feature) {
    return layer->fading + (size_t)(feature - STK_LEARNED_DECAY) * m->n_pad;
}

/* Rows hold their values over `scale`, so that fading touches one number; here the values themselves are put in. */
static void renew(const stk_learned_model *m, const stk_learned_layer *layer) {
    for (uint32_t i = 0; i < STK_LEARNED_N_FADING; i++) {
        float *restrict x = layer->fading + (size_t)i * m->n_pad, scale = layer->head->scale[i];
        for (size_t e = 0; e < m->n_pad; e++) x[e] *= scale;
        layer->head->scale[i] = 1;
    }
}

static void begin_sequence(const stk_learned_model *m, const stk_learned_layer *layer) {
    renew(m, layer);
    for (uint32_t i = 0; i < STK_LEARNED_N_DECAY; i++)
        memcpy(row_of(m, layer, STK_LEARNED_DECAY + i), row_of(m, layer, STK_LEARNED_POPULAR), sizeof(float) * m->n_pad);
    memset(row_of(m, layer, STK_LEARNED_NEAR), 0, sizeof(float) * m->n_pad);
    layer->head->n_token = layer->head->n_sample = 0;
}

/* The router's best of those that were not chosen, against the least of the chosen ones. */
static void observe_near(const stk_learned_model *m, const stk_learned_layer *layer, const stk_event *event, uint32_t token) {
    const uint16_t *ids = event->top_ids + (size_t)token * event->n_top;
    const float *scores = event->top_scores + (size_t)token * event->n_top;
    float *near = row_of(m, layer, STK_LEARNED_NEAR), *scale = &layer->head->scale[STK_LEARNED_NEAR - STK_LEARNED_DECAY];
    *scale *= near_decay;
    if (event->k == 0 || event->k > event->n_top || !(scores[event->k - 1] > 0)) return;
    float add = (1 - near_decay) / *scale;
    for (uint32_t i = event->k; i < event->n_top; i++) {
        float share = scores[i] / scores[event->k - 1];
        if (ids[i] < m->n_expert && share > 0 && share <= 1) near[ids[i]] += add * share;
    }
}

/* x *= keep; x += 1 - keep for the experts of the set. */
static void fade(const stk_learned_model *m, const stk_learned_layer *layer, const uint16_t *set, uint32_t n) {
    float add[STK_LANES_FADING] = {0};
    for (uint32_t i = 0; i < STK_LEARNED_N_DECAY + 1; i++) {
        float keep = i < STK_LEARNED_N_DECAY ? decay_of[i] : 1 - 1 / (float)(STK_MIN(layer->head->n_seen, (uint64_t)8192) + 9);
        layer->head->scale[i] *= keep;
        add[i] = (1 - keep) / layer->head->scale[i];
    }
    for (uint32_t i = 0; i < n; i++) m->bits[set[i] / 64] |= (uint64_t)1 << (set[i] % 64);
    m->lanes->fade(layer->fading, m->bits, add, m->n_pad);
    for (uint32_t i = 0; i < n; i++) m->bits[set[i] / 64] = 0;
}

/* Features of all experts: what is put aside and learned from. */
static void put_aside(const stk_learned_model *m, const stk_learned_layer *layer, const uint16_t *set, uint32_t n) {
    size_t pad = m->n_pad;
    float *restrict x = layer->sample;
    renew(m, layer);
    for (uint32_t e = 0; e < m->n_expert; e++) x[STK_LEARNED_ONE * pad + e] = 1;
    memcpy(x + STK_LEARNED_DECAY * pad, layer->fading, sizeof(float) * STK_LEARNED_N_FADING * pad);
    memset(x + STK_LEARNED_NOW * pad, 0, sizeof(float) * pad);
    for (uint32_t i = 0; i < n; i++) x[STK_LEARNED_NOW * pad + set[i]] = 1;
    const uint8_t *restrict votes = m->votes;
    for (size_t e = 0; e < STK_LANES_LAGS * pad; e++) x[STK_LEARNED_RECALL * pad + e] = (float)votes[e] * VOTE;
    memset(layer->due, 0, sizeof *layer->due * pad);
    layer->head->n_sample = layer->head->n_token;
}

static void score_all(const stk_learned_model *m, const stk_learned_layer *layer, const uint16_t *set, uint32_t n) {
    float w[STK_LANES_FADING + STK_LANES_LAGS];
    for (uint32_t i = 0; i < STK_LANES_FADING; i++) w[i] = m->weights[STK_LEARNED_DECAY + i] * layer->head->scale[i];
    for (uint32_t i = 0; i < STK_LANES_LAGS; i++) w[STK_LANES_FADING + i] = m->weights[STK_LEARNED_RECALL + i] * VOTE;
    m->lanes->weigh(layer->score, layer->fading, m->votes, w, m->n_pad);
    for (uint32_t i = 0; i < n; i++) layer->score[set[i]] += m->weights[STK_LEARNED_NOW];
}

/* Each match's share in all their weight, as votes. */
static void share_out(const stk_learned_model *m, const uint16_t *likeness, uint32_t n, uint8_t *of) {
    float total = RECALL_DAMP, weight[STK_RECALL_MATCHES];
    for (uint32_t i = 0; i < n; i++) {
        weight[i] = m->match_weight[likeness[i]];
        total += weight[i];
    }
    float by = STK_LANES_VOTES / total;
    uint32_t left = STK_LANES_VOTES;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t share = STK_MIN((uint32_t)(weight[i] * by + 0.5f), left);
        of[i] = (uint8_t)share;
        left -= share;
    }
}

/* A token and its distinct experts. */
static void observe_token(stk_learned_model *m, const stk_learned_layer *layer, const uint16_t *set, uint32_t n) {
    stk_learned_layer_head *head = layer->head;
    if (head->n_sample)
        for (uint32_t i = 0; i < n; i++)
            if (!layer->due[set[i]]) layer->due[set[i]] = (uint32_t)(head->n_token + 1 - head->n_sample);
    if (head->n_seen == 0) {
        for (uint32_t e = 0; e < m->n_expert; e++) row_of(m, layer, STK_LEARNED_POPULAR)[e] = (float)n / (float)m->n_expert;
        begin_sequence(m, layer);
    }
    fade(m, layer, set, n);
    head->n_token++;
    head->n_seen++;
    if (head->n_token % RENEW_TOKENS == 0) renew(m, layer);
    if (head->n_sample && head->n_token - head->n_sample == STK_LEARNED_PERIOD) take_sample(m, layer);
}

/* The scores after the latest token. */
static void score_token(const stk_learned_model *m, const stk_learned_layer *layer, uint32_t number, const uint16_t *set,
                        uint32_t n) {
    uint16_t likeness[STK_RECALL_MATCHES];
    uint8_t of[STK_RECALL_MATCHES];
    share_out(m, likeness, stk_recall_matches(m->recall, number, likeness), of);
    stk_recall_vote(m->recall, of, m->votes);
    score_all(m, layer, set, n);
    bool is_due = n_sample(m) < m->often || layer->head->n_token / STK_LEARNED_PERIOD % LEARN_EVERY == 0;
    if (!layer->head->n_sample && is_due) put_aside(m, layer, set, n);
}

void stk_learned_observe(stk_learned_model *m, const stk_learned_layer *layer, uint32_t number, const stk_event *event) {
    uint32_t n_tok = event->ids ? event->n_tok : 0, n = 0;
    const uint16_t *set = m->set;
    stk_recall_observe(m->recall, number, event);
    if (event->pos && event->n_tok && event->pos[0] == 0 && (!event->seq || event->seq[0] == event->seq[event->n_tok - 1]))
        begin_sequence(m, layer);
    for (uint32_t t = 0; t < n_tok; t++) {
        const uint16_t *ids = event->ids + (size_t)t * event->k;
        n = 0;
        for (uint32_t i = 0; i < event->k; i++)
            if (ids[i] < m->n_expert) m->set[n++] = ids[i];
        if (event->n_top) observe_near(m, layer, event, t);
        observe_token(m, layer, m->set, n);
    }
    if (!n_tok && event->n_distinct) {
        set = event->distinct;
        n = event->n_distinct;
        observe_token(m, layer, set, n);
    }
    if (layer->head->n_seen) score_token(m, layer, number, set, n);
}

/* ---- Opening ------------------------------------------------------------------------------------------------------------ */

void stk_learned_model_init(stk_learned_model *m, uint32_t n_expert, uint32_t n_layer, stk_recall *recall, float *scratch,
                            uint8_t *votes, uint64_t *bits, uint16_t *set) {
    *m = (stk_learned_model){.n_expert = n_expert,
                             .n_layer = n_layer,
                             .often = LEARN_OFTEN * n_layer,
                             .n_pad = stk_learned_pad(n_expert),
                             .lanes = stk_lanes_best(),
                             .recall = recall,
                             .scratch = scratch,
                             .votes = votes,
                             .bits = bits,
                             .set = set};
    for (uint32_t h = 0; h < STK_LEARNED_N_HORIZON; h++) {
        double label = 1;
        for (uint32_t due = 1; due <= STK_LEARNED_PERIOD; due++, label *= horizon_g(h)) m->label[h][due] = (float)label;
    }
    stk_learned_set_size(m, n_expert, 0);
}

void stk_learned_set_size(stk_learned_model *m, double slots, uint32_t k) {
    double per_expert = slots / STK_MAX(k, 1u);
    m->k = k;
    m->horizon = 0;
    /* The bounds are the geometric means of neighbours, compared as squares. */
    while (m->horizon + 1 < STK_LEARNED_N_HORIZON &&
           per_expert * per_expert > horizon_slots[m->horizon] * horizon_slots[m->horizon + 1])
        m->horizon++;
    for (uint32_t i = 0; i < STK_RECALL_LIKENESS; i++)
        m->match_weight[i] = stk_expf(STK_MIN((float)i / (float)(2 * STK_MAX(k, 1u)), 16.0f) - LIKENESS_EVEN);
    stk_learned_solve(m);
}
