/*
 * sampler: repetition penalty, top-k, top-p, min-p, temperature, in this order; or the best logit.
 *
 * The same logits and seed give the same token on every machine: logits are ordered as integers (ties go to the lower id), exp is
 * stk_expf, sums are doubles taken in a stated order, and the generator is xoshiro256** (Blackman and Vigna, 2018), its state
 * filled by splitmix64 from the seed. Each call that is not greedy draws one number, whatever the filters leave.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base.h"
#include "src/numeric.h"

enum { WINDOW_MAX = 1 << 24 };

struct stk_sampler {
    stk_sampler_options options;
    uint32_t n_vocab;
    uint64_t state[4]; /* of the generator */
    uint64_t *rank;    /* [n_vocab] candidates: logit as an ordered integer above, inverted id below */
    float *weight;     /* [n_vocab] of the candidates that are left */
    uint32_t *count;   /* [n_vocab] how often a token stands in the window; NULL without penalty */
    int32_t *window;   /* [repeat_last_n] ring of the last tokens; NULL when all count */
    uint64_t n_seen;
};

static const stk_sampler_options defaults = {
    .top_k = 40,
    .temperature = 0.8f,
    .top_p = 0.95f,
    .min_p = 0.05f,
    .repeat_penalty = 1.0f,
    .repeat_last_n = 64,
};

void stk_sampler_options_default(stk_sampler_options *options, size_t struct_bytes) {
    stk_struct_give(options, struct_bytes, &defaults, sizeof defaults);
}

static int check(const stk_sampler_options *o, uint32_t n_vocab) {
    if (n_vocab == 0 || n_vocab > INT32_MAX) return stk_fail(STK_EINVAL, "sampler: a vocabulary of %u tokens", n_vocab);
    if (o->top_k < 0) return stk_fail(STK_EINVAL, "sampler: top_k is %d; 0 turns it off", o->top_k);
    if (!(o->temperature >= 0) || isinf(o->temperature))
        return stk_fail(STK_EINVAL, "sampler: temperature is %g; 0 is greedy", (double)o->temperature);
    if (!(o->top_p >= 0 && o->top_p <= 1)) return stk_fail(STK_EINVAL, "sampler: top_p is %g, not from 0 to 1", (double)o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1)) return stk_fail(STK_EINVAL, "sampler: min_p is %g, not from 0 to 1", (double)o->min_p);
    if (!(o->repeat_penalty > 0) || isinf(o->repeat_penalty))
        return stk_fail(STK_EINVAL, "sampler: repeat_penalty is %g; 1 turns it off", (double)o->repeat_penalty);
    if (o->repeat_last_n < -1 || o->repeat_last_n > WINDOW_MAX)
        return stk_fail(STK_EINVAL, "sampler: repeat_last_n is %d; -1 means the whole text, else at most %d", o->repeat_last_n,
                        WINDOW_MAX);
    return 0;
}

static void seed(uint64_t state[4], uint64_t x) {
    for (int i = 0; i < 4; i++) { /* splitmix64 */
        uint64_t z = x += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        state[i] = z ^ z >> 31;
    }
}

static uint64_t rotl(uint64_t x, int k) { return x << k | x >> (64 - k); }

/* Uniform in [0, 1), a multiple of 2^-53. */
static double draw(uint64_t s[4]) {
    uint64_t result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return (double)(result >> 11) * 0x1p-53;
}

int stk_sampler_open(stk_sampler **out, const stk_sampler_options *options, uint32_t n_vocab) {
    if (!out) return stk_fail(STK_EINVAL, "stk_sampler_open: an argument is NULL");
    *out = NULL;
    stk_sampler_options o = defaults;
    if (options) STK_TRY(stk_struct_take(&o, sizeof o, options, "sampler options"));
    STK_TRY(check(&o, n_vocab));
    stk_sampler *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "no memory for a sampler");
    s->options = o;
    s->n_vocab = n_vocab;
    seed(s->state, o.seed);
    bool penalizes = o.repeat_penalty != 1 && o.repeat_last_n != 0;
    s->rank = malloc(n_vocab * sizeof *s->rank);
    s->weight = malloc(n_vocab * sizeof *s->weight);
    if (penalizes) s->count = calloc(n_vocab, sizeof *s->count);
    if (penalizes && o.repeat_last_n > 0) s->window = malloc((size_t)o.repeat_last_n * sizeof *s->window);
    if (!s->rank || !s->weight || (penalizes && !s->count) || (penalizes && o.repeat_last_n > 0 && !s->window)) {
        stk_sampler_close(&s);
        return stk_fail(STK_ENOMEM, "no memory for a sampler of %u tokens", n_vocab);
    }
    *out = s;
    return 0;
}

void stk_sampler_close(stk_sampler **sampler) {
    if (!sampler || !*sampler) return;
    stk_sampler *s = *sampler;
    free(s->rank);
    free(s->weight);
    free(s->count);
    free(s->window);
    free(s);
    *sampler = NULL;
}

int stk_sampler_accept(stk_sampler *s, int32_t id) {
    if (!s) return stk_fail(STK_EINVAL, "stk_sampler_accept: an argument is NULL");
    if (id < 0 || (uint32_t)id >= s->n_vocab) return stk_fail(STK_EINVAL, "sampler: there is no token %d of %u", id, s->n_vocab);
    if (!s->count) return 0;
    if (s->window) {
        int32_t *place = &s->window[s->n_seen % (uint64_t)s->options.repeat_last_n];
        if (s->n_seen >= (uint64_t)s->options.repeat_last_n) s->count[*place]--;
        *place = id;
    }
    s->n_seen++;
    s->count[id] += s->count[id] < UINT32_MAX;
    return 0;
}

/* ---- Candidates --------------------------------------------------------------------------------------------------------- */

/* Greater logits first, of equal ones (zeros of both signs are) the lower id first: the greater integer is the better candidate.
 */
static uint64_t rank_of(float logit, uint32_t id) {
    uint32_t bits = stk_f32_bits(logit + 0.0f);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}

static uint32_t id_of(uint64_t rank) { return ~(uint32_t)rank; }

static float logit_of(uint64_t rank) {
    uint32_t bits = (uint32_t)(rank >> 32);
    return stk_bits_f32(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

/* exp((logit - max) / temperature), and 1 at the maximum, be it infinite. */
static float weigh(float logit, float max, float temperature) {
    return logit == max ? 1.0f : stk_expf((logit - max) / temperature);
}

static float penalized(const stk_sampler *s, const float *logits, uint32_t id) {
    float x = logits[id];
    if (!s->count || s->count[id] == 0) return x;
    return x > 0 ? x / s->options.repeat_penalty : x * s->options.repeat_penalty;
}

/* Puts `x` at place i of the heap heap[0, n), whose parents are smaller (`least`) or greater than their children, and sifts it
 * down. */
static void sift(uint64_t *heap, size_t n, size_t i, uint64_t x, bool least) {
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && (heap[child + 1] < heap[child]) == least) child++;
        if ((x < heap[child]) == least) break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

static void heapify(uint64_t *heap, size_t n, bool least) {
    for (size_t i = n / 2; i-- > 0;) sift(heap, n, i, heap[i], least);
}

/* Fills s->rank with the k best candidates, NaN left out, all of them by ascending id, fewer in no particular order; returns
 * their number. */
static size_t collect(stk_sampler *s, const float *logits, size_t k) {
    size_t n = 0;
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        float x = penalized(s, logits, id);
        if (x != x) continue;
        uint64_t rank = rank_of(x, id);
        if (n < k) {
            s->rank[n++] = rank;
            if (n == k && k < s->n_vocab) heapify(s->rank, n, true);
        } else if (rank > s->rank[0]) {
            sift(s->rank, n, 0, rank, true);
        }
    }
    return n;
}

static int32_t greedy(const stk_sampler *s, const float *logits) {
    uint64_t best = 0; /* below every rank */
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        float x = penalized(s, logits, id);
        uint64_t rank = x != x ? 0 : rank_of(x, id);
        best = STK_MAX(best, rank);
    }
    if (best == 0) return stk_fail(STK_EINVAL, "sampler: every logit is NaN");
    return (int32_t)id_of(best);
}

/* Moves the candidates that top-p and min-p leave to the end of s->rank[0, n), the best last; returns their number. */
static size_t filter(stk_sampler *s, size_t n) {
    const stk_sampler_options *o = &s->options;
    heapify(s->rank, n, false);
    float max = logit_of(s->rank[0]);
    double total = 0, sum = 0;
    if (o->top_p < 1)
        for (size_t i = 0; i < n; i++) total += (double)weigh(logit_of(s->rank[i]), max, 1);
    size_t rest = n;
    while (rest > 0) {
        uint64_t best = s->rank[0];
        float w = weigh(logit_of(best), max, 1);
        if (rest < n && (w < o->min_p || (o->top_p < 1 && sum >= (double)o->top_p * total))) break;
        sum += (double)w;
        rest--;
        sift(s->rank, rest, 0, s->rank[rest], false);
        s->rank[rest] = best;
    }
    return n - rest;
}

/* Draws one of rank[0, n) with probability proportional to its weight, taking them from the last to the first. */
static int32_t choose(stk_sampler *s, const uint64_t *rank, size_t n) {
    uint64_t best = 0;
    for (size_t i = 0; i < n; i++) best = STK_MAX(best, rank[i]);
    float max = logit_of(best);
    double total = 0;
    for (size_t i = n; i-- > 0;) {
        s->weight[i] = weigh(logit_of(rank[i]), max, s->options.temperature);
        total += (double)s->weight[i];
    }
    double rest = draw(s->state) * total;
    uint64_t chosen = best;
    for (size_t i = n; i-- > 0;) {
        if (!(s->weight[i] > 0)) continue;
        chosen = rank[i]; /* stays at the last possible one where rounding leaves a rest */
        rest -= (double)s->weight[i];
        if (rest < 0) break;
    }
    return (int32_t)id_of(chosen);
}

int32_t stk_sampler_sample(stk_sampler *s, const float *logits) {
    if (!s || !logits) return stk_fail(STK_EINVAL, "stk_sampler_sample: an argument is NULL");
    const stk_sampler_options *o = &s->options;
    if (o->temperature == 0) return greedy(s, logits);
    size_t k = o->top_k == 0 ? s->n_vocab : STK_MIN((size_t)o->top_k, s->n_vocab);
    size_t n = collect(s, logits, k);
    if (n == 0) return stk_fail(STK_EINVAL, "sampler: every logit is NaN");
    bool all = k == s->n_vocab && o->top_p >= 1 && o->min_p <= 0; /* sorting a whole vocabulary would be for nothing */
    size_t kept = all ? n : filter(s, n);
    return choose(s, s->rank + n - kept, kept);
}
