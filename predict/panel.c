/*
 * panel: what happens at an event, in this order: what was said of it is compared and learned from; the parts learn; then every
 * part scores the experts of the layers ahead for each token of the sample. For several tokens, an expert's probability is that
 * of at least one of them using it.
 */
#include "predict/panel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "predict/odds.h"

enum {
    BUCKETS = 50,        /* 0 for a score of 0, then four for each power of 2 from 2^-12 up */
    COUNT_MAX = 1 << 20, /* counts of a bucket are halved here */
    PRIOR_WEIGHT = 4,    /* experts that the guess of a bucket counts for */
    PENDING = STK_PREDICT_DEPTH_MAX
};
#define RATE       0.0004f /* of the mix's weights */
#define WEIGHT_MAX 100.0f
#define LEAST_P    0x1p-12f /* what is less likely is not suggested */

/* What was said of a token's experts in a layer ahead, until they are known. */
typedef struct saying {
    uint32_t layer, set;
    int32_t seq, pos;
    bool open;
    uint32_t known;   /* bit of each part that knew something */
    float *odds;      /* [n_part, width] of the parts */
    uint8_t *buckets; /* [n_part, width] */
    float *mixed;     /* [width] */
} saying;

struct stk_predictor {
    stk_predictor_config config;
    const stk_panel_plan *plan;
    uint32_t depth, width, n_part;
    stk_track track;
    stk_part *parts[STK_PANEL_PARTS];
    uint32_t (*counts)[2]; /* [n_part, depth, BUCKETS] scores in the bucket, and how many of them were used */
    float *worth;          /* [n_part, depth, BUCKETS] log-odds that follow */
    float *weights;        /* [SETS, depth, n_layer, n_part + 1] */
    float *odds;           /* [depth, TRACK_TOKENS, width] of the latest event */
    bool rated[STK_PREDICT_DEPTH_MAX][STK_TRACK_TOKENS];
    uint32_t turn;
    saying *sayings; /* [depth, PENDING, TRACK_LEARN + 1]; the last of each for tokens that are not learned from */
    float *said;     /* what they hold */
    uint8_t *buckets;
    float *error; /* [width] scratch */
    float *row;   /* [width] scratch */
};

static size_t n_saying(const stk_predictor *p) { return (size_t)p->depth * PENDING * (STK_TRACK_LEARN + 1); }
static size_t n_bucket(const stk_predictor *p) { return (size_t)p->n_part * p->depth * BUCKETS; }
static size_t n_weight(const stk_predictor *p) {
    return p->plan->prior ? (size_t)STK_PANEL_SETS * p->depth * p->config.n_layer * (p->n_part + 1) : 0;
}

static float *weights_of(const stk_predictor *p, uint32_t set, uint32_t d, uint32_t layer) {
    return p->weights + (((size_t)set * p->depth + d) * p->config.n_layer + layer) * (p->n_part + 1);
}

/* ---- Opening ------------------------------------------------------------------------------------------------------------ */

/* Where the value of a named parameter goes; NULL when nobody has it. */
static float *value_of(const stk_panel_plan *plan, float (*values)[STK_PART_PARAMS], const char *name, size_t n,
                       const stk_part_param **param) {
    for (uint32_t i = 0; i < plan->n_seat; i++) {
        const stk_panel_seat *seat = &plan->seats[i];
        for (uint32_t j = 0; j < seat->ops->n_param; j++) {
            *param = &seat->ops->params[j];
            if (strlen((*param)->name) != n || memcmp((*param)->name, name, n) != 0) continue;
            if (!seat->fixed || strcmp(seat->fixed, (*param)->name) != 0) return &values[i][j];
        }
    }
    return NULL;
}

static const stk_part_param of_depth = {"depth", STK_PREDICT_DEPTH_MAX, 1, STK_PREDICT_DEPTH_MAX,
                                        "layers ahead that it looks at"};

/* In the order of the seats; what several of them take is one parameter. */
int stk_panel_param(const stk_panel_plan *plan, uint32_t i, stk_param_info *out) {
    float values[STK_PANEL_PARTS][STK_PART_PARAMS];
    const stk_part_param *p = i == 0 ? &of_depth : NULL, *found;
    uint32_t n = 1;
    for (uint32_t s = 0; !p && s < plan->n_seat; s++)
        for (uint32_t j = 0; !p && j < plan->seats[s].ops->n_param; j++) {
            const stk_part_param *own = &plan->seats[s].ops->params[j];
            if (value_of(plan, values, own->name, strlen(own->name), &found) != &values[s][j]) continue;
            if (n++ == i) p = own;
        }
    if (!p) return 0;
    *out = (stk_param_info){
        .name = p->name, .what = p->what, .least = (double)p->least, .most = (double)p->most, .initial = (double)p->value};
    return 1;
}

static int no_param(const stk_panel_plan *plan, const char *name, size_t n) {
    char all[256] = "";
    stk_param_info info;
    for (uint32_t i = 0; stk_panel_param(plan, i, &info); i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", *all ? ", " : "", info.name);
    return stk_fail(STK_EINVAL, "predictor %s has no parameter \"%.*s\"; there are: %s", plan->name, (int)STK_MIN(n, 80u), name,
                    all);
}

static int parse(const stk_panel_plan *plan, const char *text, float *depth, float (*values)[STK_PART_PARAMS]) {
    while (text && *text) {
        size_t n = strcspn(text, "=,");
        const stk_part_param *param = &of_depth;
        float *to = n == 5 && memcmp(text, "depth", 5) == 0 ? depth : value_of(plan, values, text, n, &param);
        char *end = NULL;
        float x = text[n] == '=' ? strtof(text + n + 1, &end) : 0.0f;
        if (!to) return no_param(plan, text, n);
        if (!end || end == text + n + 1 || (*end && *end != ',') || !(x >= param->least && x <= param->most))
            return stk_fail(STK_EINVAL, "predictor %s: %s takes a number from %g to %g, found \"%s\"", plan->name, param->name,
                            (double)param->least, (double)param->most, text);
        *to = x;
        text = *end ? end + 1 : end;
    }
    return 0;
}

static int open_parts(stk_predictor *p, float (*values)[STK_PART_PARAMS]) {
    for (; p->n_part < p->plan->n_seat; p->n_part++) {
        const stk_part_config config = {.model = &p->config, .depth = p->depth, .width = p->width, .values = values[p->n_part]};
        STK_TRY(p->plan->seats[p->n_part].ops->open(&p->parts[p->n_part], &config));
    }
    return 0;
}

static int alloc(stk_predictor *p) {
    size_t n = n_saying(p), width = p->width;
    p->counts = calloc(n_bucket(p), sizeof *p->counts);
    p->worth = calloc(n_bucket(p), sizeof *p->worth);
    p->weights = calloc(n_weight(p) + 1, sizeof *p->weights);
    p->odds = calloc((size_t)p->depth * STK_TRACK_TOKENS * width, sizeof *p->odds);
    p->sayings = calloc(n, sizeof *p->sayings);
    p->said = calloc(n * (p->n_part + 1) * width, sizeof *p->said);
    p->buckets = calloc(n * p->n_part * width, 1);
    p->error = calloc(width, sizeof *p->error);
    p->row = calloc(width, sizeof *p->row);
    if (!p->counts || !p->worth || !p->weights || !p->odds || !p->sayings || !p->said || !p->buckets || !p->error || !p->row)
        return stk_fail(STK_ENOMEM, "predictor %s: out of memory for %u layers of %u experts", p->plan->name, p->config.n_layer,
                        p->config.n_expert);
    for (size_t i = 0; i < n; i++) {
        p->sayings[i].odds = p->said + i * (p->n_part + 1) * width;
        p->sayings[i].mixed = p->sayings[i].odds + p->n_part * width;
        p->sayings[i].buckets = p->buckets + i * p->n_part * width;
    }
    return 0;
}

/* The log-odds of every bucket. Where little was seen: a score is a probability, pulled towards the layer's mean. */
static void set_worth(stk_predictor *p) {
    float mean = (float)p->config.k / (float)p->config.n_expert;
    for (size_t i = 0; i < n_bucket(p); i++) {
        uint32_t b = i % BUCKETS, bits = 0x39800000u + (b - 1) * 0x200000u; /* 2^-12 and up */
        float score;
        memcpy(&score, &bits, sizeof score);
        float guess = b == 0 ? 0.25f * mean : 0.5f * (score + mean);
        p->worth[i] = stk_odds_of(((float)p->counts[i][1] + PRIOR_WEIGHT * guess) / (float)(p->counts[i][0] + PRIOR_WEIGHT));
    }
}

static void set_prior(stk_predictor *p) {
    uint32_t n = p->n_part + 1;
    for (uint32_t set = 0; p->plan->prior && set < STK_PANEL_SETS; set++)
        for (uint32_t d = 0; d < p->depth; d++)
            for (uint32_t l = 0; l < p->config.n_layer; l++)
                memcpy(weights_of(p, set, d, l), p->plan->prior + ((size_t)set * STK_PREDICT_DEPTH_MAX + d) * n,
                       n * sizeof(float));
}

void stk_panel_close(stk_predictor *p) {
    if (!p) return;
    for (uint32_t i = 0; i < p->n_part; i++) p->plan->seats[i].ops->close(p->parts[i]);
    stk_track_fini(&p->track);
    free(p->counts);
    free(p->worth);
    free(p->weights);
    free(p->odds);
    free(p->sayings);
    free(p->said);
    free(p->buckets);
    free(p->error);
    free(p->row);
    free(p);
}

int stk_panel_open(stk_predictor **out, const stk_predictor_config *config, const stk_panel_plan *plan) {
    float values[STK_PANEL_PARTS][STK_PART_PARAMS] = {{0}}, depth = STK_PREDICT_DEPTH_MAX;
    STK_TRY(stk_predictor_config_check(plan->name, config));
    for (uint32_t i = 0; i < plan->n_seat; i++)
        for (uint32_t j = 0; j < plan->seats[i].ops->n_param; j++) {
            const stk_panel_seat *seat = &plan->seats[i];
            bool fixed = seat->fixed && strcmp(seat->fixed, seat->ops->params[j].name) == 0;
            values[i][j] = fixed ? seat->value : seat->ops->params[j].value;
        }
    STK_TRY(parse(plan, config->params, &depth, values));
    stk_predictor *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "predictor %s: out of memory", plan->name);
    int rc;
    p->config = *config;
    p->config.params = NULL;
    p->plan = plan;
    p->depth = (uint32_t)depth;
    p->width = (uint32_t)stk_align_up(config->n_expert, 16);
    STK_TRYGOTO(stk_track_init(&p->track, config), rc, out);
    STK_TRYGOTO(open_parts(p, values), rc, out);
    STK_TRYGOTO(alloc(p), rc, out);
    set_worth(p);
    set_prior(p);
    *out = p;
    return 0;
out:
    stk_panel_close(p);
    return rc;
}

/* ---- Looking ahead ------------------------------------------------------------------------------------------------------ */

/* Positive floats are in the order of their bits. */
static void put_in_buckets(uint8_t *restrict buckets, const float *restrict scores, uint32_t width) {
    const int32_t least = 0x39800000; /* 2^-12 */
    for (size_t e = 0; e < width; e++) {
        int32_t bits;
        memcpy(&bits, &scores[e], sizeof bits);
        int32_t over = bits > least ? bits - least : 0, b = 1 + (over >> 21);
        b = b < BUCKETS - 1 ? b : BUCKETS - 1;
        buckets[e] = (uint8_t)(scores[e] > 0.0f ? b : 0);
    }
}

/* Lets every part score; returns which weights apply. */
static void ask(stk_predictor *p, uint32_t d, uint32_t i, saying *say) {
    say->known = say->set = 0;
    for (uint32_t f = 0; f < p->n_part; f++) {
        const stk_part_ops *ops = p->plan->seats[f].ops;
        float *odds = say->odds + (size_t)f * p->width;
        if (!ops->score(p->parts[f], &p->track, d + 1, i, odds)) continue;
        say->known |= 1u << f;
        if (ops == &stk_part_gate) say->set |= 1;
        if (ops == &stk_part_tokenid) say->set |= 2;
        if (ops->gives_odds) continue;
        uint8_t *buckets = say->buckets + (size_t)f * p->width;
        const float *worth = p->worth + ((size_t)f * p->depth + d) * BUCKETS;
        put_in_buckets(buckets, odds, p->width);
        for (uint32_t e = 0; e < p->width; e++) odds[e] = worth[buckets[e]];
    }
}

/* A part alone needs no weights. */
static void mix(const stk_predictor *p, uint32_t d, const saying *say, float *out) {
    if (!p->plan->prior) {
        memcpy(out, say->odds, p->width * sizeof *out);
        return;
    }
    const float *w = weights_of(p, say->set, d, say->layer);
    for (uint32_t e = 0; e < p->width; e++) out[e] = w[p->n_part];
    for (uint32_t f = 0; f < p->n_part; f++)
        if (say->known >> f & 1) stk_row_add(out, say->odds + (size_t)f * p->width, w[f], p->width);
}

static void look(stk_predictor *p, uint32_t d) {
    const stk_track *t = &p->track;
    uint32_t layer = (t->layer + d + 1) % p->config.n_layer;
    bool next_step = t->layer + d + 1 >= p->config.n_layer;
    saying *says = p->sayings + ((size_t)d * PENDING + p->turn) * (STK_TRACK_LEARN + 1);
    for (uint32_t j = 0; j <= STK_TRACK_LEARN; j++) says[j].open = false;
    for (uint32_t i = 0; i < STK_TRACK_TOKENS; i++) {
        p->rated[d][i] = false;
        if (i >= t->n_tok || t->tok[i].at == STK_TRACK_ABSENT || (next_step && !t->tok[i].last)) continue;
        uint32_t from_end = t->n_tok - 1 - i;
        saying *say = &says[STK_MIN(from_end, STK_TRACK_LEARN)];
        say->layer = layer;
        ask(p, d, i, say);
        if (!say->known) continue;
        mix(p, d, say, say->mixed);
        memcpy(p->odds + ((size_t)d * STK_TRACK_TOKENS + i) * p->width, say->mixed, p->width * sizeof *p->odds);
        p->rated[d][i] = true;
        say->seq = t->tok[i].seq;
        say->pos = stk_part_pos(t, t->tok[i].pos, d + 1);
        say->open = from_end < STK_TRACK_LEARN;
    }
}

/* ---- Learning ----------------------------------------------------------------------------------------------------------- */

/* Most scores share a few buckets: four tallies in turn, so that an addition need not wait for the one before. */
static void count(uint32_t (*counts)[2], const uint8_t *buckets, uint32_t n, const stk_event *event, size_t at) {
    uint32_t tallies[4][BUCKETS] = {{0}};
    uint32_t e = 0;
    for (; e + 4 <= n; e += 4)
        for (uint32_t i = 0; i < 4; i++) tallies[i][buckets[e + i]]++;
    for (; e < n; e++) tallies[0][buckets[e]]++;
    for (uint32_t b = 0; b < BUCKETS; b++) counts[b][0] += tallies[0][b] + tallies[1][b] + tallies[2][b] + tallies[3][b];
    for (uint32_t j = 0; j < event->k; j++) {
        uint16_t id = event->ids[at * event->k + j];
        if (id < n) counts[buckets[id]][1]++;
    }
    for (uint32_t b = 0; b < BUCKETS; b++) {
        if (counts[b][0] < COUNT_MAX) continue;
        counts[b][0] /= 2;
        counts[b][1] /= 2;
    }
}

static void learn(stk_predictor *p, uint32_t d, saying *say, const stk_event *event) {
    int64_t at = say->open && say->layer == event->layer ? stk_part_find(event, say->seq, say->pos) : STK_TRACK_ABSENT;
    if (at == STK_TRACK_ABSENT) return;
    uint32_t n_expert = p->track.layer_n_expert[event->layer];
    say->open = false;
    for (uint32_t f = 0; f < p->n_part; f++)
        if ((say->known >> f & 1) && !p->plan->seats[f].ops->gives_odds)
            count(p->counts + ((size_t)f * p->depth + d) * BUCKETS, say->buckets + (size_t)f * p->width, n_expert, event,
                  (size_t)at);
    if (!p->plan->prior) return;
    stk_odds_row(p->error, say->mixed, p->width);
    stk_row_scale(p->error, -1.0f, p->width);
    for (uint32_t e = n_expert; e < p->width; e++) p->error[e] = 0.0f;
    for (uint32_t j = 0; j < event->k; j++) {
        uint16_t id = event->ids[(size_t)at * event->k + j];
        if (id < n_expert) p->error[id] += 1.0f;
    }
    float *w = weights_of(p, say->set, d, event->layer), all = 0.0f;
    for (uint32_t f = 0; f < p->n_part; f++) {
        if (!(say->known >> f & 1)) continue;
        w[f] += RATE * stk_row_dot(p->error, say->odds + (size_t)f * p->width, p->width);
        w[f] = STK_MAX(STK_MIN(w[f], WEIGHT_MAX), -WEIGHT_MAX);
    }
    for (uint32_t e = 0; e < p->width; e++) all += p->error[e];
    w[p->n_part] = STK_MAX(STK_MIN(w[p->n_part] + RATE * all, WEIGHT_MAX), -WEIGHT_MAX);
}

int stk_panel_observe(stk_predictor *p, const stk_event *event, const stk_lookahead *ahead) {
    STK_TRY(stk_predictor_event_check(p->plan->name, &p->config, event));
    STK_TRY(stk_predictor_ahead_check(p->plan->name, &p->config, event, ahead));
    stk_track_begin(&p->track, event);
    for (uint32_t d = 0; d < p->depth; d++)
        for (uint32_t i = 0; i < PENDING * (STK_TRACK_LEARN + 1); i++)
            learn(p, d, &p->sayings[(size_t)d * PENDING * (STK_TRACK_LEARN + 1) + i], event);
    for (uint32_t f = 0; f < p->n_part; f++) p->plan->seats[f].ops->learn(p->parts[f], &p->track, event);
    stk_track_commit(&p->track, event);
    if (p->track.new_step) set_worth(p);
    for (uint32_t f = 0; f < p->n_part; f++)
        if (p->plan->seats[f].ops->look) p->plan->seats[f].ops->look(p->parts[f], &p->track, event, ahead);
    for (uint32_t d = 0; d < p->depth; d++) look(p, d);
    p->turn = (p->turn + 1) % PENDING;
    return 0;
}

int stk_panel_suggest(const stk_predictor *p, uint32_t depth, stk_suggestion *out, uint32_t cap) {
    if (depth == 0 || depth > p->depth || !p->track.begun) return 0;
    const stk_track *t = &p->track;
    uint32_t n_expert = t->layer_n_expert[(t->layer + depth) % p->config.n_layer], n = 0;
    bool next_step = t->layer + depth >= p->config.n_layer;
    float *none = p->row;
    for (uint32_t e = 0; e < p->width; e++) none[e] = 1.0f;
    for (uint32_t i = 0; i < t->n_tok; i++) {
        if (!p->rated[depth - 1][i]) continue;
        const float *odds = p->odds + ((size_t)(depth - 1) * STK_TRACK_TOKENS + i) * p->width;
        uint32_t n_like = next_step ? 1 : t->tok[i].n;
        stk_odds_row(p->error, odds, p->width);
        for (uint32_t e = 0; e < p->width; e++) none[e] *= stk_predictor_none(p->error[e], n_like);
        n++;
    }
    if (n == 0) return 0;
    for (uint32_t e = 0; e < n_expert; e++) none[e] = none[e] <= 1.0f - LEAST_P ? 1.0f - none[e] : 0.0f;
    return stk_predictor_best(none, n_expert, out, cap);
}

const float *stk_panel_weights(const stk_predictor *p, uint32_t *depth, uint32_t *n) {
    *depth = p->depth;
    *n = p->n_part + 1;
    return p->weights;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------------- */

static const size_t type_bytes[] = {[STK_BLOB_U8] = 1, [STK_BLOB_U16] = 2, [STK_BLOB_U32] = 4, [STK_BLOB_F32] = 4};

/* Everything that is saved, in order. */
static uint32_t all_blobs(const stk_predictor *p, stk_part_blob *blobs) {
    uint32_t n = 0;
    blobs[n++] = (stk_part_blob){p->counts, 2 * n_bucket(p), STK_BLOB_U32, COUNT_MAX};
    blobs[n++] = (stk_part_blob){p->weights, n_weight(p), STK_BLOB_F32, (uint32_t)WEIGHT_MAX};
    for (uint32_t f = 0; f < p->n_part; f++) n += p->plan->seats[f].ops->blobs(p->parts[f], blobs + n);
    return n;
}

enum { BLOBS_MAX = 2 + STK_PANEL_PARTS * STK_PART_BLOBS };

static stk_predictor_state head_of(const stk_predictor *p, const stk_part_blob *blobs, uint32_t n) {
    stk_predictor_state head = {p->plan->magic, p->config.n_layer, p->config.n_expert, p->config.k, sizeof head};
    for (uint32_t i = 0; i < n; i++) head.bytes += blobs[i].n * type_bytes[blobs[i].type];
    return head;
}

int64_t stk_panel_save(const stk_predictor *p, void *out, size_t cap) {
    stk_part_blob blobs[BLOBS_MAX];
    uint32_t n = all_blobs(p, blobs);
    const stk_predictor_state head = head_of(p, blobs, n);
    if (cap < head.bytes) return (int64_t)head.bytes;
    unsigned char *to = out;
    memcpy(to, &head, sizeof head);
    to += sizeof head;
    for (uint32_t i = 0; i < n; i++) {
        size_t bytes = blobs[i].n * type_bytes[blobs[i].type];
        memcpy(to, blobs[i].data, bytes);
        to += bytes;
    }
    return (int64_t)head.bytes;
}

static bool in_range(const stk_part_blob *blob, const unsigned char *from) {
    for (size_t i = 0; i < blob->n; i++, from += type_bytes[blob->type]) {
        uint16_t u16;
        uint32_t u32 = *from;
        float f32;
        memcpy(&u16, from, STK_MIN(sizeof u16, type_bytes[blob->type]));
        if (blob->type == STK_BLOB_U16) u32 = u16;
        if (type_bytes[blob->type] == 4) memcpy(&u32, from, sizeof u32);
        memcpy(&f32, &u32, sizeof f32);
        if (blob->type == STK_BLOB_F32 ? !(f32 >= -(float)blob->most && f32 <= (float)blob->most) : u32 > blob->most)
            return false;
    }
    return true;
}

int stk_panel_load(stk_predictor *p, const void *data, size_t bytes) {
    stk_part_blob blobs[BLOBS_MAX];
    uint32_t n = all_blobs(p, blobs);
    const stk_predictor_state want = head_of(p, blobs, n);
    STK_TRY(stk_predictor_state_check(p->plan->name, &want, data, bytes));
    const unsigned char *from = (const unsigned char *)data + sizeof want;
    for (uint32_t i = 0; i < n; from += blobs[i].n * type_bytes[blobs[i].type], i++)
        if (!in_range(&blobs[i], from))
            return stk_fail(STK_EFORMAT, "saved state of predictor %s: a number in block %u is out of range", p->plan->name, i);
    from = (const unsigned char *)data + sizeof want;
    for (uint32_t i = 0; i < n; from += blobs[i].n * type_bytes[blobs[i].type], i++)
        memcpy(blobs[i].data, from, blobs[i].n * type_bytes[blobs[i].type]);
    stk_track_reset(&p->track);
    for (size_t i = 0; i < n_saying(p); i++) p->sayings[i].open = false;
    for (uint32_t f = 0; f < p->n_part; f++)
        if (p->plan->seats[f].ops->loaded) p->plan->seats[f].ops->loaded(p->parts[f]);
    set_worth(p);
    return 0;
}
