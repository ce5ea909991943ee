/* synth_route: the rows, the trace's routing by token, and the routers that read it out. */
#include "synth_route.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "synth_blocks.h"
#include "traces/trace.h"

/* ---- Rows --------------------------------------------------------------------------------------------------------------- */

static bool is_prime(uint32_t n) {
    for (uint32_t d = 2; d * d <= n; d++)
        if (n % d == 0) return false;
    return n > 1;
}

int stk_synth_signs_open(stk_synth_signs *s, uint32_t order) {
    *s = (stk_synth_signs){.order = order, .m = order};
    while (s->m > 1 && !((s->m & 3) == 0 && is_prime(s->m - 1))) {
        if (s->m % 2) return stk_fail(STK_EUNSUPPORTED, "no orthogonal rows of +1 and -1 are known for %" PRIu32, order);
        s->m /= 2;
    }
    if (s->m <= 1) return order ? STK_OK : stk_fail(STK_EUNSUPPORTED, "rows of length 0");
    uint32_t p = s->m - 1;
    s->squares = calloc(p, 1);
    if (!s->squares) return stk_fail(STK_ENOMEM, "out of memory for %" PRIu32 " squares", p);
    for (uint64_t i = 1; i < p; i++) s->squares[i * i % p] = 1;
    return STK_OK;
}

void stk_synth_signs_close(stk_synth_signs *s) {
    free(s->squares);
    *s = (stk_synth_signs){0};
}

/* Paley's first construction: the skew matrix of quadratic characters with a border, plus the identity. */
static int paley(const stk_synth_signs *s, uint32_t row, uint32_t col) {
    uint32_t p = s->m - 1;
    if (s->m == 1 || row == 0 || row == col) return 1;
    if (col == 0) return -1;
    return s->squares[(row + p - col) % p] ? 1 : -1;
}

void stk_synth_signs_row(const stk_synth_signs *s, uint32_t row, int8_t *out) {
    for (uint32_t i = 0; i < s->order; i++) {
        int sylvester = __builtin_parity(row / s->m & i / s->m) ? -1 : 1;
        out[i] = (int8_t)(sylvester * paley(s, row % s->m, i % s->m));
    }
}

/* ---- Routing ------------------------------------------------------------------------------------------------------------ */

struct stk_synth_route {
    uint32_t n_layer, n_expert, k, n_token, n_max;
    uint64_t n_more;    /* tokens of the trace beyond n_max */
    uint64_t n_drawn;   /* experts that the trace does not tell */
    uint32_t step_base; /* the first token of the step being read, and how many of its tokens are kept */
    uint32_t step_kept;
    uint64_t step, step_more; /* its number, and how many of its tokens were not kept */
    uint16_t *ids;            /* [n_max, n_layer, k] */
    float *scores;            /* [n_max, n_layer, k] */
};

enum { LAST_SCORE = 4, MAX_STEP_DOWN = 12 };
static const float MIN_GAP = 1.0f / 64.0f, PLAIN_GAP = 1.0f / 8.0f;

static size_t at(const stk_synth_route *r, uint32_t layer, uint32_t token) { return ((size_t)token * r->n_layer + layer) * r->k; }

/* Scores [k] whose softmax is w [k], the last one LAST_SCORE; where weights are absent or say nothing, even steps. */
static void score(const stk_synth_route *r, const float *w, float *out) {
    out[r->k - 1] = LAST_SCORE;
    for (uint32_t i = r->k - 1; i > 0; i--) {
        float gap = w ? logf(w[i - 1] / w[i]) : PLAIN_GAP;
        if (!isfinite(gap)) gap = PLAIN_GAP;
        out[i - 1] = out[i] + STK_MAX(MIN_GAP, STK_MIN(gap, (float)MAX_STEP_DOWN));
    }
}

static void take_step(stk_synth_route *r, const stk_trace_step *step) {
    r->step = step->step;
    r->step_base = r->n_token;
    r->step_kept = STK_MIN(step->n_tok, r->n_max - r->n_token);
    r->step_more = step->n_tok - r->step_kept;
    r->n_token += r->step_kept;
    r->n_more += r->step_more;
    /* What no event of the step fills in stays STK_NO_EXPERT. */
    memset(r->ids + at(r, 0, r->step_base), 0xff, at(r, 0, r->step_kept) * sizeof *r->ids);
    for (size_t i = 0; i < (size_t)r->step_kept * r->n_layer; i++) score(r, NULL, r->scores + at(r, 0, r->step_base) + i * r->k);
}

static int take_event(stk_synth_route *r, const stk_event *e) {
    if (e->layer >= r->n_layer || e->k != r->k || e->n_tok < r->step_kept)
        return stk_fail(STK_EFORMAT, "an event of layer %" PRIu32 " with %" PRIu32 " experts does not fit the trace's header",
                        e->layer, e->k);
    for (uint32_t t = 0; t < r->step_kept; t++) {
        size_t i = at(r, e->layer, r->step_base + t), from = (size_t)t * r->k;
        memcpy(r->ids + i, e->ids + from, r->k * sizeof *r->ids);
        score(r, e->weights ? e->weights + from : NULL, r->scores + i);
    }
    return STK_OK;
}

static void drop_step(stk_synth_route *r, uint64_t step) {
    if (step != r->step) return;
    r->n_token -= r->step_kept;
    r->n_more -= r->step_more;
    r->step_kept = 0;
    r->step_more = 0;
}

/* Draws an expert for each place of a token that is empty, out of range or names one twice. `taken` is scratch [n_expert]. */
static void complete(stk_synth_route *r, uint16_t *ids, uint8_t *taken, stk_synth_rng *rng) {
    memset(taken, 0, r->n_expert);
    for (uint32_t i = 0; i < r->k; i++) {
        if (ids[i] >= r->n_expert || taken[ids[i]])
            ids[i] = STK_NO_EXPERT;
        else
            taken[ids[i]] = 1;
    }
    for (uint32_t i = 0; i < r->k; i++) {
        if (ids[i] != STK_NO_EXPERT) continue;
        uint32_t e = stk_synth_below(rng, r->n_expert);
        while (taken[e]) e = (e + 1) % r->n_expert; /* k is at most n_expert: one is free */
        taken[e] = 1;
        ids[i] = (uint16_t)e;
        r->n_drawn++;
    }
}

static int complete_all(stk_synth_route *r, uint64_t seed) {
    stk_synth_rng rng;
    uint8_t *taken = malloc(r->n_expert);
    if (!taken) return stk_fail(STK_ENOMEM, "out of memory for the routing of a trace");
    stk_synth_seed(&rng, stk_synth_seed_of(seed, "missing routing"));
    for (uint32_t t = 0; t < r->n_token; t++)
        for (uint32_t l = 0; l < r->n_layer; l++) complete(r, r->ids + at(r, l, t), taken, &rng);
    free(taken);
    return STK_OK;
}

static int read_records(stk_synth_route *r, stk_trace_reader *reader) {
    stk_trace_record record;
    int rc;
    while ((rc = stk_trace_read(reader, &record)) == 1) {
        switch (record.kind) {
        case STK_TRACE_STEP: take_step(r, &record.step); break;
        case STK_TRACE_EVENT: STK_TRY(take_event(r, &record.event)); break;
        case STK_TRACE_ABORT: drop_step(r, record.abort_step); break;
        default: break; /* what the cache did does not matter here */
        }
    }
    return rc;
}

static int read_trace(stk_synth_route *r, stk_trace_reader *reader, const char *trace, uint64_t seed) {
    const stk_trace_header *h = stk_trace_reader_header(reader);
    uint64_t n;
    r->n_layer = h->n_layer;
    r->n_expert = h->n_expert;
    r->k = h->k;
    if (!r->n_layer || !r->n_expert || !r->k) return stk_fail(STK_EFORMAT, "%s: a trace without experts", trace);
    if (stk_mul_overflow((uint64_t)r->n_max * r->n_layer, r->k, &n) || n > SIZE_MAX / sizeof(float) ||
        !(r->ids = malloc(n * sizeof *r->ids)) || !(r->scores = malloc(n * sizeof *r->scores)))
        return stk_fail(STK_ENOMEM, "%s: out of memory for its routing", trace);
    STK_TRY(read_records(r, reader));
    if (stk_trace_reader_cut(reader)) stk_log(STK_LOG_WARN, "%s: the trace is cut off; it is taken up to the cut", trace);
    if (!r->n_token) return stk_fail(STK_EFORMAT, "%s: a trace without tokens", trace);
    STK_TRY(complete_all(r, seed));
    if (r->n_drawn)
        stk_log(STK_LOG_WARN, "%s: does not tell %" PRIu64 " of %" PRIu64 " experts: those are drawn", trace, r->n_drawn,
                (uint64_t)r->n_token * r->n_layer * r->k);
    if (r->n_more)
        stk_log(STK_LOG_INFO,
                "%s: the first %" PRIu32 " of %" PRIu64 " tokens fit, one for each dimension of the embedding; after them "
                "the model starts over",
                trace, r->n_token, r->n_token + r->n_more);
    return STK_OK;
}

int stk_synth_route_open(stk_synth_route **out, const char *trace, uint32_t n_max, uint64_t seed) {
    stk_trace_reader *reader;
    *out = NULL;
    STK_TRY(stk_trace_reader_open(&reader, trace));
    stk_synth_route *r = calloc(1, sizeof *r);
    int rc = r ? STK_OK : stk_fail(STK_ENOMEM, "%s: out of memory", trace);
    if (r) {
        r->n_max = n_max;
        rc = read_trace(r, reader, trace, seed);
    }
    stk_trace_reader_close(&reader);
    if (rc < 0)
        stk_synth_route_close(&r);
    else
        *out = r;
    return rc;
}

void stk_synth_route_close(stk_synth_route **route) {
    if (!*route) return;
    free((*route)->ids);
    free((*route)->scores);
    free(*route);
    *route = NULL;
}

uint32_t stk_synth_route_n_token(const stk_synth_route *r) { return r->n_token; }
uint32_t stk_synth_route_n_layer(const stk_synth_route *r) { return r->n_layer; }
uint32_t stk_synth_route_n_expert(const stk_synth_route *r) { return r->n_expert; }
uint32_t stk_synth_route_k(const stk_synth_route *r) { return r->k; }

const uint16_t *stk_synth_route_ids(const stk_synth_route *r, uint32_t layer, uint32_t token) {
    return r->ids + at(r, layer, token);
}

void stk_synth_route_router(const stk_synth_route *r, uint32_t layer, const int8_t *rows, uint32_t n_embd, float *out) {
    memset(out, 0, (size_t)r->n_expert * n_embd * sizeof *out);
    for (uint32_t t = 0; t < r->n_token; t++) {
        const int8_t *row = rows + (size_t)t * n_embd;
        size_t i = at(r, layer, t);
        for (uint32_t j = 0; j < r->k; j++) {
            float *w = out + (size_t)r->ids[i + j] * n_embd, s = r->scores[i + j] / (float)n_embd;
            for (uint32_t c = 0; c < n_embd; c++) w[c] += s * (float)row[c];
        }
    }
}
