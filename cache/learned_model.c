/* learned_model: features, recall and regression of policy `learned`. */
#include "cache/learned_model.h"

#include <math.h>
#include <string.h>

#include "src/numeric.h"

enum {
    LANES = 16,
    N_WORD = STK_LEARNED_WINDOW / 64,
    N_PLANE = 4, /* bits of a count of at most MAX_SET */
    N_F = STK_LEARNED_N_FEATURE,
    SET_STRIDE = STK_LEARNED_MAX_SET + 1,
    MAX_LIKENESS = 6 * STK_LEARNED_MAX_SET,
    MAX_MATCH = 16,
    MAX_CANDIDATE = 96,
    MAX_AHEAD = 8
};
#define PRIOR_SAMPLES 4096.0 /* what the shipped prior counts for */
#define MOST_SAMPLES  0x1p21 /* the sums are halved there: old samples fade, and no sum grows without end */
#define RIDGE         0.1    /* so that a feature that is always zero keeps its weight */
#define RECALL_DAMP   0.5f   /* matches of a weight below this say little */

/* Half-lives of 4, 16, 64 and 512 tokens. */
static const float decay_of[STK_LEARNED_N_DECAY] = {0.840896415f, 0.957603281f, 0.989228013f, 0.998647136f};
static const float near_decay = 0.707106781f;

/* Slots of a layer per expert of a token, for which each horizon is made; an expert that is not used again stays about 2.6 times
 * as many tokens. */
static const double horizon_slots[STK_LEARNED_N_HORIZON] = {1, 1.5, 2.5, 4, 7, 12};

static double horizon_g(uint32_t horizon) { return 1 - 1 / (2.6 * horizon_slots[horizon]); }

/* The tokens ahead of a match that each recall feature sums. */
static const uint32_t lag_begin[STK_LEARNED_N_LAG + 1] = {1, 2, 3, 5, MAX_AHEAD + 1};

/* ---- Memory ------------------------------------------------------------------------------------------------------------- */

uint32_t stk_learned_pad(uint32_t n_expert) { return (uint32_t)stk_align_up(n_expert, LANES); }

void stk_learned_layer_bytes(uint32_t n_expert, size_t *saved, size_t *derived) {
    size_t row = sizeof(float) * stk_learned_pad(n_expert);
    *saved = 64 + (STK_LEARNED_N_DECAY + N_F + 5) * row + sizeof(uint64_t) * 2 * N_PLANE * N_WORD +
             sizeof(uint16_t) * STK_LEARNED_WINDOW * SET_STRIDE;
    *derived = sizeof(uint64_t) * N_WORD * n_expert;
}

stk_learned_layer stk_learned_layer_at(uint32_t n_expert, void *saved, void *derived) {
    size_t pad = stk_learned_pad(n_expert);
    stk_learned_layer layer = {.head = saved, .used = derived};
    layer.decay = (float *)(void *)((unsigned char *)saved + 64);
    layer.popular = layer.decay + STK_LEARNED_N_DECAY * pad;
    layer.near = layer.popular + pad;
    layer.recall = layer.near + pad;
    layer.score = layer.recall + pad;
    layer.sample = layer.score + pad;
    layer.due = (uint32_t *)(void *)(layer.sample + N_F * pad);
    layer.counts = (uint64_t *)(void *)(layer.due + pad);
    layer.sets = (uint16_t *)(void *)(layer.counts + (size_t)2 * N_PLANE * N_WORD);
    return layer;
}

static bool all_within(const float *x, size_t n, float low, float high) {
    for (size_t i = 0; i < n; i++)
        if (!(x[i] >= low && x[i] <= high)) return false;
    return true;
}

int stk_learned_layer_check(const stk_learned_layer *layer, uint32_t n_expert) {
    size_t pad = stk_learned_pad(n_expert);
    const stk_learned_layer_head *head = layer->head;
    if (!all_within(layer->decay, (STK_LEARNED_N_DECAY + 2) * pad, 0, 1) || !all_within(layer->recall, 2 * pad, -1e6f, 1e6f) ||
        !all_within(layer->sample, N_F * pad, 0, MAX_AHEAD))
        return stk_fail(STK_EFORMAT, "saved state of policy learned: a feature is out of range");
    if (head->n_token > head->n_seen || head->n_seen > INT64_MAX || head->n_sample > head->n_token ||
        (head->n_sample && head->n_token - head->n_sample >= STK_LEARNED_PERIOD))
        return stk_fail(STK_EFORMAT, "saved state of policy learned: impossible token counts");
    for (size_t e = 0; e < pad; e++)
        if (layer->due[e] > STK_LEARNED_PERIOD) return stk_fail(STK_EFORMAT, "saved state of policy learned: impossible label");
    memset(layer->used, 0, sizeof(uint64_t) * N_WORD * n_expert);
    for (uint32_t at = 0; at < STK_LEARNED_WINDOW; at++) {
        const uint16_t *set = layer->sets + (size_t)at * SET_STRIDE;
        uint32_t n = set[STK_LEARNED_MAX_SET];
        if (n > STK_LEARNED_MAX_SET || (n && at >= head->n_token))
            return stk_fail(STK_EFORMAT, "saved state of policy learned: impossible past token");
        for (uint32_t i = 0; i < n; i++) {
            if (set[i] >= n_expert)
                return stk_fail(STK_EFORMAT, "saved state of policy learned: expert %u of %u", set[i], n_expert);
            layer->used[(size_t)set[i] * N_WORD + at / 64] |= (uint64_t)1 << (at % 64);
        }
    }
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
        if (!(fabs(w[i]) <= 1e3)) return false;
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
    bool is_good = stk_learned_regress(&m->sums, m->horizon, PRIOR_SAMPLES, w);
    for (uint32_t i = 0; i < N_F; i++) m->weights[i] = is_good ? (float)w[i] : stk_learned_prior_w[m->horizon][i];
}

static double dot(const float *a, const float *b, size_t n_pad) {
    float lanes[LANES] = {0};
    double sum = 0;
    for (size_t e = 0; e < n_pad; e += LANES)
        for (size_t i = 0; i < LANES; i++) lanes[i] += a[e + i] * b[e + i];
    for (uint32_t i = 0; i < LANES; i++) sum += (double)lanes[i];
    return sum;
}

/* The sample put aside has its labels: an expert that was not used has waited longer than the horizons reach. */
static void take_sample(stk_learned_model *m, stk_learned_layer *layer) {
    stk_learned_sums *sums = &m->sums;
    uint32_t pad = m->n_pad;
    for (uint32_t h = 0; h < STK_LEARNED_N_HORIZON; h++) {
        for (uint32_t e = 0; e < pad; e++) m->scratch[e] = m->label[h][layer->due[e]];
        for (uint32_t i = 0; i < N_F; i++) sums->xy[h][i] += dot(m->scratch, layer->sample + (size_t)i * pad, pad);
    }
    for (uint32_t i = 0; i < N_F; i++)
        for (uint32_t j = 0; j <= i; j++)
            sums->xx[i][j] += dot(layer->sample + (size_t)i * pad, layer->sample + (size_t)j * pad, pad);
    sums->n += m->n_expert;
    if (sums->n > MOST_SAMPLES) {
        double *all = (double *)sums;
        for (size_t i = 0; i < sizeof *sums / sizeof *all; i++) all[i] *= 0.5;
    }
    layer->head->n_sample = 0;
    stk_learned_solve(m);
}

/* ---- Recall ------------------------------------------------------------------------------------------------------------- */

typedef struct match {
    uint32_t at; /* place in the window */
    uint32_t likeness;
} match;

/* Adds up, for every past token, how many experts of `set` it used: carry-save over bit planes. */
static void count_shared(const stk_learned_layer *layer, const uint16_t *set, uint32_t n, uint64_t planes[N_PLANE * N_WORD]) {
    memset(planes, 0, sizeof(uint64_t) * N_PLANE * N_WORD);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t *used = layer->used + (size_t)set[i] * N_WORD;
        for (uint32_t w = 0; w < N_WORD; w++) {
            uint64_t carry = used[w];
            for (uint32_t b = 0; b < N_PLANE; b++) {
                uint64_t *plane = &planes[b * N_WORD + w], both = *plane & carry;
                *plane ^= carry;
                carry = both;
            }
        }
    }
}

/* Of 64 past tokens, those that share at least `least`. */
static uint64_t at_least(const uint64_t planes[N_PLANE * N_WORD], uint32_t word, uint32_t least) {
    uint64_t more = 0, same = ~(uint64_t)0;
    for (uint32_t b = N_PLANE; b-- > 0;) {
        uint64_t plane = planes[b * N_WORD + word];
        if (least >> b & 1)
            same &= plane;
        else {
            more |= same & plane;
            same &= ~plane;
        }
    }
    return more | same;
}

static uint32_t count_at(const uint64_t planes[N_PLANE * N_WORD], uint32_t at) {
    uint32_t count = 0;
    for (uint32_t b = 0; b < N_PLANE; b++) count |= (uint32_t)(planes[b * N_WORD + at / 64] >> (at % 64) & 1) << b;
    return count;
}

/*
 * The past tokens that share at least half of the present one's experts, latest first. Likeness counts what they share four
 * times, what the tokens before both share twice. `from` is the place of the latest past token.
 */
static uint32_t find_candidates(uint32_t n, uint32_t from, const uint64_t *now, const uint64_t *before, match *list) {
    uint32_t n_found = 0, least = (n + 1) / 2;
    for (uint32_t i = 0; i <= N_WORD; i++) {
        uint32_t word = (from / 64 + N_WORD - i) % N_WORD;
        uint64_t found = at_least(now, word, least), up_to = ~(uint64_t)0 >> (63 - from % 64);
        if (i == 0) found &= up_to;
        if (i == N_WORD) found &= ~up_to;
        for (; found;) {
            uint32_t bit = 63 - (uint32_t)__builtin_clzll(found), at = word * 64 + bit;
            found ^= (uint64_t)1 << bit;
            uint32_t likeness = 4 * count_at(now, at) + 2 * count_at(before, (at + STK_LEARNED_WINDOW - 1) % STK_LEARNED_WINDOW);
            list[n_found++] = (match){at, likeness};
            if (n_found == MAX_CANDIDATE) return n_found;
        }
    }
    return n_found;
}

/* Keeps the MAX_MATCH likest, of equal ones the latest. */
static uint32_t keep_likest(match *list, uint32_t n) {
    if (n <= MAX_MATCH) return n;
    uint8_t n_of[MAX_LIKENESS + 1] = {0};
    uint32_t n_above = 0, n_kept = 0, likeness = MAX_LIKENESS;
    for (uint32_t i = 0; i < n; i++) n_of[list[i].likeness]++;
    while (n_above + n_of[likeness] < MAX_MATCH) n_above += n_of[likeness--];
    uint32_t n_equal = MAX_MATCH - n_above;
    for (uint32_t i = 0; i < n; i++) {
        bool is_equal = list[i].likeness == likeness;
        if (list[i].likeness < likeness || (is_equal && !n_equal)) continue;
        n_equal -= is_equal;
        list[n_kept++] = list[i];
    }
    return n_kept;
}

/* Adds to out[e] what followed the matches, lag group g times weights[g]; *total is the matches' weight. */
static void follow(const stk_learned_model *m, const stk_learned_layer *layer, const match *list, uint32_t n, uint32_t now_at,
                   const float weights[STK_LEARNED_N_LAG], float *out) {
    float total = RECALL_DAMP;
    for (uint32_t i = 0; i < n; i++) total += m->match_weight[list[i].likeness];
    for (uint32_t i = 0; i < n; i++) {
        float share = m->match_weight[list[i].likeness] / total;
        uint32_t n_ahead = (now_at - list[i].at) % STK_LEARNED_WINDOW;
        for (uint32_t g = 0; g < STK_LEARNED_N_LAG; g++) {
            float add = share * weights[g];
            for (uint32_t ahead = lag_begin[g]; ahead < lag_begin[g + 1] && ahead <= n_ahead; ahead++) {
                const uint16_t *set = layer->sets + (size_t)((list[i].at + ahead) % STK_LEARNED_WINDOW) * SET_STRIDE;
                for (uint32_t j = 0; j < set[STK_LEARNED_MAX_SET]; j++) out[set[j]] += add;
            }
        }
    }
}

/* ---- Tokens ------------------------------------------------------------------------------------------------------------- */

static void begin_sequence(stk_learned_model *m, stk_learned_layer *layer) {
    for (uint32_t i = 0; i < STK_LEARNED_N_DECAY; i++)
        memcpy(layer->decay + (size_t)i * m->n_pad, layer->popular, sizeof(float) * m->n_pad);
    memset(layer->near, 0, sizeof(float) * m->n_pad);
    memset(layer->counts, 0, sizeof(uint64_t) * 2 * N_PLANE * N_WORD);
    memset(layer->sets, 0, sizeof(uint16_t) * STK_LEARNED_WINDOW * SET_STRIDE);
    memset(layer->used, 0, sizeof(uint64_t) * N_WORD * m->n_expert);
    layer->head->n_token = layer->head->n_sample = 0;
}

/* x *= keep; x += 1 - keep for the experts of the set. */
static void fade(float *x, size_t n_pad, float keep, const uint16_t *set, uint32_t n) {
    for (size_t e = 0; e < n_pad; e += LANES)
        for (size_t i = e; i < e + LANES; i++) x[i] *= keep;
    for (uint32_t i = 0; i < n; i++) x[set[i]] += 1 - keep;
}

static void remember_set(const stk_learned_layer *layer, const uint16_t *set, uint32_t n, uint32_t at) {
    uint16_t *to = layer->sets + (size_t)at * SET_STRIDE;
    uint64_t bit = (uint64_t)1 << (at % 64);
    for (uint32_t i = 0; i < to[STK_LEARNED_MAX_SET]; i++) layer->used[(size_t)to[i] * N_WORD + at / 64] &= ~bit;
    for (uint32_t i = 0; i < n; i++) layer->used[(size_t)set[i] * N_WORD + at / 64] |= bit;
    memcpy(to, set, sizeof *set * n);
    to[STK_LEARNED_MAX_SET] = (uint16_t)n;
}

/* The router's best of those that were not chosen, against the least of the chosen ones. */
static void observe_near(const stk_learned_model *m, stk_learned_layer *layer, const stk_event *event, uint32_t token) {
    const uint16_t *ids = event->top_ids + (size_t)token * event->n_top;
    const float *scores = event->top_scores + (size_t)token * event->n_top;
    fade(layer->near, m->n_pad, near_decay, NULL, 0);
    if (event->k == 0 || event->k > event->n_top || !(scores[event->k - 1] > 0)) return;
    for (uint32_t i = event->k; i < event->n_top; i++) {
        float share = scores[i] / scores[event->k - 1];
        if (ids[i] < m->n_expert && share > 0 && share <= 1) layer->near[ids[i]] += (1 - near_decay) * share;
    }
}

/* Features of all experts, recall by lag group: what is put aside and learned from. */
static void put_aside(const stk_learned_model *m, stk_learned_layer *layer, const uint16_t *set, uint32_t n, const match *list,
                      uint32_t n_match, uint32_t now_at) {
    uint32_t pad = m->n_pad;
    float *x = layer->sample;
    memset(x, 0, sizeof(float) * N_F * pad);
    for (uint32_t e = 0; e < m->n_expert; e++) x[STK_LEARNED_ONE * pad + e] = 1;
    memcpy(x + STK_LEARNED_DECAY * pad, layer->decay, sizeof(float) * STK_LEARNED_N_DECAY * pad);
    for (uint32_t i = 0; i < n; i++) x[STK_LEARNED_NOW * pad + set[i]] = 1;
    memcpy(x + STK_LEARNED_POPULAR * pad, layer->popular, sizeof(float) * pad);
    memcpy(x + STK_LEARNED_NEAR * pad, layer->near, sizeof(float) * pad);
    for (uint32_t g = 0; g < STK_LEARNED_N_LAG; g++) {
        float one[STK_LEARNED_N_LAG] = {0};
        one[g] = 1;
        follow(m, layer, list, n_match, now_at, one, x + (STK_LEARNED_RECALL + g) * pad);
    }
    memset(layer->due, 0, sizeof *layer->due * pad);
    layer->head->n_sample = layer->head->n_token;
}

static void score_all(const stk_learned_model *m, stk_learned_layer *layer, const uint16_t *set, uint32_t n) {
    size_t pad = m->n_pad;
    const float *restrict fast = layer->decay, *restrict mid = fast + pad, *restrict slow = mid + pad,
                          *restrict long_run = slow + pad;
    const float *restrict popular = layer->popular, *restrict near = layer->near, *restrict recall = layer->recall;
    float *restrict score = layer->score, w[N_F];
    memcpy(w, m->weights, sizeof w);
    for (size_t e = 0; e < pad; e += LANES)
        for (size_t i = e; i < e + LANES; i++) {
            float s = recall[i] + w[STK_LEARNED_DECAY] * fast[i] + w[STK_LEARNED_DECAY + 1] * mid[i];
            s = s + w[STK_LEARNED_DECAY + 2] * slow[i] + w[STK_LEARNED_DECAY + 3] * long_run[i];
            score[i] = s + w[STK_LEARNED_POPULAR] * popular[i] + w[STK_LEARNED_NEAR] * near[i];
        }
    for (uint32_t i = 0; i < n; i++) score[set[i]] += w[STK_LEARNED_NOW];
}

/* A token and its distinct experts. Scores follow for the last token of an event only. */
static void observe_token(stk_learned_model *m, stk_learned_layer *layer, const uint16_t *set, uint32_t n, bool is_last) {
    stk_learned_layer_head *head = layer->head;
    uint32_t pad = m->n_pad, n_kept = n <= STK_LEARNED_MAX_SET ? n : 0, at = (uint32_t)(head->n_token % STK_LEARNED_WINDOW);
    if (head->n_sample)
        for (uint32_t i = 0; i < n; i++)
            if (!layer->due[set[i]]) layer->due[set[i]] = (uint32_t)(head->n_token + 1 - head->n_sample);
    if (head->n_seen == 0) {
        for (uint32_t e = 0; e < m->n_expert; e++) layer->popular[e] = (float)n / (float)m->n_expert;
        begin_sequence(m, layer);
    }
    for (uint32_t i = 0; i < STK_LEARNED_N_DECAY; i++) fade(layer->decay + (size_t)i * pad, pad, decay_of[i], set, n);
    fade(layer->popular, pad, 1 - 1 / (float)(STK_MIN(head->n_seen, (uint64_t)8192) + 9), set, n);

    uint64_t *now = layer->counts + (head->n_token & 1) * N_PLANE * N_WORD;
    const uint64_t *before = layer->counts + (~head->n_token & 1) * N_PLANE * N_WORD;
    count_shared(layer, set, n_kept, now);
    remember_set(layer, set, n_kept, at);
    head->n_token++;
    head->n_seen++;
    bool is_due = head->n_sample && head->n_token - head->n_sample == STK_LEARNED_PERIOD;
    if (is_due) take_sample(m, layer);
    if (!is_last) return;
    match list[MAX_CANDIDATE];
    uint32_t n_match = 0;
    if (n_kept) n_match = find_candidates(n_kept, (at + STK_LEARNED_WINDOW - 1) % STK_LEARNED_WINDOW, now, before, list);
    n_match = keep_likest(list, n_match);
    memset(layer->recall, 0, sizeof(float) * pad);
    follow(m, layer, list, n_match, at, m->weights + STK_LEARNED_RECALL, layer->recall);
    score_all(m, layer, set, n);
    if (!head->n_sample) put_aside(m, layer, set, n, list, n_match, at);
}

void stk_learned_observe(stk_learned_model *m, stk_learned_layer *layer, const stk_event *event) {
    uint32_t n_tok = event->ids ? event->n_tok : 0;
    if (event->pos && event->n_tok && event->pos[0] == 0 && (!event->seq || event->seq[0] == event->seq[event->n_tok - 1]))
        begin_sequence(m, layer);
    for (uint32_t t = 0; t < n_tok; t++) {
        const uint16_t *ids = event->ids + (size_t)t * event->k;
        uint32_t n = 0;
        for (uint32_t i = 0; i < event->k; i++)
            if (ids[i] < m->n_expert) m->set[n++] = ids[i];
        if (event->n_top) observe_near(m, layer, event, t);
        observe_token(m, layer, m->set, n, t + 1 == n_tok);
    }
    if (!n_tok && event->n_distinct) observe_token(m, layer, event->distinct, event->n_distinct, true);
}

/* ---- Opening ------------------------------------------------------------------------------------------------------------ */

void stk_learned_model_init(stk_learned_model *m, uint32_t n_expert, float *scratch, uint16_t *set) {
    *m = (stk_learned_model){.n_expert = n_expert, .n_pad = stk_learned_pad(n_expert), .scratch = scratch, .set = set};
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
    /* Likeness in experts of a token of six, at which the kernel was chosen. */
    for (uint32_t i = 0; i <= MAX_LIKENESS; i++) m->match_weight[i] = stk_expf((float)i * 1.5f / (float)STK_MAX(k, 1u) - 6);
    stk_learned_solve(m);
}
