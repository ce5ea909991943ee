/* sampler: against exact probabilities with fixed seeds, and at the edges of every option. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base.h"
#include "tests/alloc_count.h"

enum { N = 10, DRAWS = 100000 };

/* Unsorted, with a tie (3 and 6). */
static const float logits[N] = {0.5f, -1, 2, 1.25f, -3, 0, 1.25f, -0.25f, 1.75f, -2};

static stk_sampler_options plain(void) { /* temperature 1 and nothing else */
    stk_sampler_options o;
    stk_sampler_options_default(&o, sizeof o);
    o.top_k = 0;
    o.temperature = o.top_p = o.repeat_penalty = 1;
    o.min_p = 0;
    o.seed = 42;
    return o;
}

static stk_sampler *open_sampler(const stk_sampler_options *o, uint32_t n_vocab) {
    stk_sampler *s;
    cr_assert_eq(stk_sampler_open(&s, o, n_vocab), 0, "%s", stk_error_detail());
    return s;
}

/* Draws and compares with probabilities [N] that need not be normalized; tokens of probability 0 must never come. */
static void expect_distribution(const stk_sampler_options *o, const float *from, const double *weight, const char *what) {
    stk_sampler *s = open_sampler(o, N);
    unsigned count[N] = {0};
    for (int i = 0; i < DRAWS; i++) {
        int32_t id = stk_sampler_sample(s, from);
        cr_assert(id >= 0 && id < N);
        count[id]++;
    }
    double total = 0;
    for (int i = 0; i < N; i++) total += weight[i];
    for (int i = 0; i < N; i++) {
        double p = weight[i] / total, mean = p * DRAWS, sigma = sqrt(mean * (1 - p));
        cr_assert(fabs(count[i] - mean) <= 4.5 * sigma, "%s: token %d came %u times, not %.0f", what, i, count[i], mean);
    }
    stk_sampler_close(&s);
}

/* exp(logit / temperature) for the tokens of `mask`. */
static void weights_of(const float *from, double temperature, unsigned mask, double *weight) {
    for (int i = 0; i < N; i++) weight[i] = mask >> i & 1 ? exp((double)from[i] / temperature) : 0;
}

Test(sampler, draws_follow_the_probabilities) {
    double w[N];
    stk_sampler_options o = plain();
    weights_of(logits, 1, 0x3ff, w);
    expect_distribution(&o, logits, w, "plain");
    o.temperature = 0.5f;
    weights_of(logits, 0.5, 0x3ff, w);
    expect_distribution(&o, logits, w, "temperature 0.5");
    o.temperature = 1e30f;
    weights_of(logits, 1e30, 0x3ff, w);
    expect_distribution(&o, logits, w, "huge temperature");
}

Test(sampler, top_k) {
    double w[N];
    stk_sampler_options o = plain();
    static const struct {
        int32_t k;
        unsigned mask;
    } cases[] = {
        {1, 1 << 2}, {3, 1 << 2 | 1 << 8 | 1 << 3}, {4, 1 << 2 | 1 << 8 | 1 << 3 | 1 << 6}, {N, 0x3ff}, {INT32_MAX, 0x3ff}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        o.top_k = cases[i].k;
        weights_of(logits, 1, cases[i].mask, w);
        expect_distribution(&o, logits, w, "top-k");
    }
}

Test(sampler, top_p_and_min_p) {
    double w[N];
    static const float halves[N] = {0,         -INFINITY, 0,         -0.6931472f, -1.3862944f,
                                    -INFINITY, -INFINITY, -INFINITY, -INFINITY,   -INFINITY};
    /* probabilities 4 0 4 2 1 of 11 */
    static const struct {
        float top_p, min_p;
        unsigned mask;
    } cases[] = {{0, 0, 1},        {0.3f, 0, 1},    {0.4f, 0, 5},      {0.72f, 0, 5},        {0.74f, 0, 13},
                 {0.95f, 0, 29},   {1, 0.24f, 29},  {1, 0.26f, 13},    {1, 0.51f, 5},        {1, 1, 5},
                 {0.74f, 0.6f, 5}, {0.3f, 0.1f, 1}, {0.95f, 0.3f, 13}, {0.99999f, 1e-9f, 29}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        stk_sampler_options o = plain();
        o.top_p = cases[i].top_p;
        o.min_p = cases[i].min_p;
        weights_of(halves, 1, cases[i].mask, w);
        expect_distribution(&o, halves, w, "top-p, min-p");
        o.top_k = 4; /* holds them all: nothing changes */
        expect_distribution(&o, halves, w, "top-k, top-p, min-p");
    }
    /* filters look at probabilities before the temperature */
    stk_sampler_options o = plain();
    o.top_p = 0.74f;
    o.temperature = 100;
    weights_of(halves, 100, 13, w);
    expect_distribution(&o, halves, w, "top-p, then temperature");
    /* top-p is a share of what top-k left: 4 and 4 of 8 */
    o = plain();
    o.top_k = 2;
    o.top_p = 0.49f;
    weights_of(halves, 1, 1, w);
    expect_distribution(&o, halves, w, "top-k, then top-p");
}

Test(sampler, repetition_penalty) {
    stk_sampler_options o = plain();
    o.repeat_penalty = 2;
    o.repeat_last_n = 3;
    stk_sampler *s = open_sampler(&o, N);
    static const int32_t text[] = {0, 2, 2, 9, 2}; /* the last three: 2, 9, 2 */
    for (size_t i = 0; i < STK_ARRAY_LEN(text); i++) cr_assert_eq(stk_sampler_accept(s, text[i]), 0);
    cr_assert_eq(stk_sampler_accept(s, N), STK_EINVAL);
    cr_assert_eq(stk_sampler_accept(s, -1), STK_EINVAL);
    double w[N];
    weights_of(logits, 1, 0x3ff, w);
    w[2] = exp(2.0 / 2); /* once, however often it stands there */
    w[9] = exp(-2.0 * 2);
    unsigned count[N] = {0};
    double total = 0;
    for (int i = 0; i < N; i++) total += w[i];
    for (int i = 0; i < DRAWS; i++) count[stk_sampler_sample(s, logits)]++;
    for (int i = 0; i < N; i++)
        cr_assert(fabs(count[i] - DRAWS * w[i] / total) < 4.5 * sqrt(DRAWS * w[i] / total), "token %d", i);
    stk_sampler_close(&s);
}

static int32_t greedy_after(int32_t last_n, float penalty, const int32_t *text, size_t n) {
    stk_sampler_options o = plain();
    o.temperature = 0;
    o.repeat_penalty = penalty;
    o.repeat_last_n = last_n;
    stk_sampler *s = open_sampler(&o, N);
    for (size_t i = 0; i < n; i++) cr_assert_eq(stk_sampler_accept(s, text[i]), 0);
    int32_t id = stk_sampler_sample(s, logits);
    stk_sampler_close(&s);
    return id;
}

Test(sampler, penalty_windows) {
    static const int32_t text[] = {2, 8, 0, 0, 0};
    cr_assert_eq(greedy_after(64, 1, text, 5), 2);
    cr_assert_eq(greedy_after(0, 10, text, 5), 2);
    cr_assert_eq(greedy_after(3, 10, text, 5), 2);
    cr_assert_eq(greedy_after(4, 10, text, 5), 2);
    cr_assert_eq(greedy_after(5, 10, text, 5), 3);
    cr_assert_eq(greedy_after(-1, 10, text, 5), 3);
    cr_assert_eq(greedy_after(1, 10, text, 1), 8);
}

static int32_t greedy(const float *from, uint32_t n) {
    stk_sampler_options o = plain();
    o.temperature = 0;
    stk_sampler *s = open_sampler(&o, n);
    int32_t id = stk_sampler_sample(s, from);
    stk_sampler_close(&s);
    return id;
}

Test(sampler, greedy_takes_the_lowest_of_equals_and_never_nan) {
    cr_assert_eq(greedy(logits, N), 2);
    cr_assert_eq(greedy((float[]){NAN, 1, -NAN, 1, 0}, 5), 1);
    cr_assert_eq(greedy((float[]){-0.0f, 0.0f}, 2), 0);
    cr_assert_eq(greedy((float[]){NAN, -INFINITY, NAN}, 3), 1);
    cr_assert_eq(greedy((float[]){1e38f, INFINITY, INFINITY}, 3), 1);
    cr_assert_eq(greedy((float[]){-1, -2}, 2), 0);
    cr_assert_eq(greedy((float[]){NAN, NAN}, 2), STK_EINVAL);
}

Test(sampler, odd_logits_when_drawing) {
    static const float some_nan[N] = {NAN, 1, NAN, -NAN, 1, -INFINITY, NAN, NAN, NAN, NAN};
    static const float infinite[N] = {1, INFINITY, 3e38f, -3e38f, INFINITY, -INFINITY, NAN, 0, 0, 0};
    static const float none[N] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    static const double ones[N] = {0, 1, 0, 0, 1, 0, 0, 0, 0, 0};
    for (int filters = 0; filters < 4; filters++) {
        stk_sampler_options o = plain();
        if (filters & 1) o.top_k = 3;
        if (filters & 2) o.top_p = 0.9f;
        expect_distribution(&o, some_nan, ones, "NaN");
        expect_distribution(&o, infinite, ones, "infinity");
        stk_sampler *s = open_sampler(&o, N);
        cr_assert_eq(stk_sampler_sample(s, none), STK_EINVAL);
        stk_sampler_close(&s);
    }
    stk_sampler_options o = plain();
    static const double first[N] = {[2] = 1};
    o.temperature = 1e-38f;
    expect_distribution(&o, logits, first, "tiny temperature");
    o.temperature = 1e-45f;
    expect_distribution(&o, logits, first, "subnormal temperature");
}

/* Values that any machine must reproduce: xoshiro256** seeded by splitmix64, stk_expf and double sums in order. */
Test(sampler, the_same_seed_gives_the_same_tokens) {
    stk_sampler_options o = plain();
    o.seed = 0;
    stk_sampler *a = open_sampler(&o, N), *b = open_sampler(&o, N);
    o.seed = 1;
    stk_sampler *c = open_sampler(&o, N);
    char text[41] = "", other[41] = "";
    for (int i = 0; i < 40; i++) {
        int32_t id = stk_sampler_sample(a, logits);
        cr_assert_eq(stk_sampler_sample(b, logits), id);
        text[i] = (char)('0' + id);
        other[i] = (char)('0' + stk_sampler_sample(c, logits));
    }
    cr_assert_str_eq(text, "3286205321888236283863620622028628002886");
    cr_assert_str_neq(text, other);
    stk_sampler_close(&a);
    stk_sampler_close(&b);
    stk_sampler_close(&c);
}

static const float *by_logit;
static int better(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return by_logit[x] != by_logit[y] ? (by_logit[x] < by_logit[y] ? 1 : -1) : x - y;
}

/* A vocabulary of the real size, with many ties: the tokens drawn are those that sorting everything would leave. */
Test(sampler, selects_from_a_large_vocabulary_as_sorting_would) {
    enum { BIG = 151936 };
    static float big[BIG];
    static int order[BIG], place[BIG];
    srand(2);
    for (int i = 0; i < BIG; i++) big[i] = (float)(rand() % 4000) / 100 - 20;
    for (int i = 0; i < BIG; i++) order[i] = i;
    by_logit = big;
    qsort(order, BIG, sizeof *order, better);
    for (int i = 0; i < BIG; i++) place[order[i]] = i;
    static const int32_t ks[] = {1, 40, 1000, 20000, 0};
    for (size_t k = 0; k < STK_ARRAY_LEN(ks); k++) {
        stk_sampler_options o = plain();
        o.top_k = ks[k];
        o.top_p = ks[k] ? 1 : 0.001f;
        o.temperature = 1000; /* spreads the draws over all that is left */
        double total = 0, sum = 0;
        for (int i = 0; i < BIG; i++) total += exp((double)big[i]);
        int left = ks[k];
        while (!ks[k] && sum < 0.001 * total) sum += exp((double)big[order[left++]]);
        stk_sampler *s = open_sampler(&o, BIG);
        int worst = 0;
        for (int i = 0; i < 100; i++) {
            int32_t id = stk_sampler_sample(s, big);
            worst = STK_MAX(worst, place[id]);
        }
        cr_assert_lt(worst, left);
        cr_assert_geq(worst, left * 9 / 10 - 1, "top-k %d: %d of %d", ks[k], worst, left);
        stk_sampler_close(&s);
    }
}

Test(sampler, allocates_at_open_alone) {
    if (!ALLOC_COUNTED) cr_skip_test("allocations are not counted under a sanitizer");
    stk_sampler_options o;
    stk_sampler_options_default(&o, sizeof o);
    o.repeat_penalty = 1.1f;
    stk_sampler *s = open_sampler(&o, N);
    uint64_t before = atomic_load(&alloc_count);
    cr_assert_gt(before, 0);
    for (int i = 0; i < 200; i++) cr_assert_eq(stk_sampler_accept(s, stk_sampler_sample(s, logits)), 0);
    cr_assert_eq(atomic_load(&alloc_count), before);
    stk_sampler_close(&s);
}

Test(sampler, options) {
    stk_sampler_options o;
    stk_sampler *s = open_sampler(NULL, N);
    stk_sampler_close(&s);
    stk_sampler_close(&s);
    stk_sampler_close(NULL);
#define REFUSED(field, value)                                                                                                    \
    stk_sampler_options_default(&o, sizeof o);                                                                                   \
    o.field = value;                                                                                                             \
    cr_assert_eq(stk_sampler_open(&s, &o, N), STK_EINVAL, #field " " #value);                                                    \
    cr_assert_null(s)
    REFUSED(top_k, -1);
    REFUSED(temperature, -0.5f);
    REFUSED(temperature, NAN);
    REFUSED(temperature, INFINITY);
    REFUSED(top_p, 1.5f);
    REFUSED(top_p, -0.1f);
    REFUSED(min_p, NAN);
    REFUSED(min_p, 2);
    REFUSED(repeat_penalty, 0);
    REFUSED(repeat_penalty, INFINITY);
    REFUSED(repeat_last_n, -2);
    REFUSED(repeat_last_n, INT32_MAX);
    REFUSED(struct_bytes, 0);
    stk_sampler_options_default(&o, sizeof o);
    cr_assert_eq(stk_sampler_open(&s, &o, 0), STK_EINVAL);
    cr_assert_eq(stk_sampler_open(NULL, &o, N), STK_EINVAL);
    /* an older caller, whose struct ends behind top_k, and a newer one */
    o.top_k = -1;
    o.struct_bytes = 8;
    cr_assert_eq(stk_sampler_open(&s, &o, N), STK_EINVAL);
    o.top_k = 1;
    o.temperature = -1;
    cr_assert_eq(stk_sampler_open(&s, &o, N), 0);
    stk_sampler_close(&s);
    struct {
        stk_sampler_options known;
        uint64_t later;
    } newer = {plain(), 7};
    newer.known.struct_bytes = sizeof newer;
    cr_assert_eq(stk_sampler_open(&s, &newer.known, N), STK_EINVAL, "what it asks for may be unknown here");
    s = open_sampler(NULL, N);
    cr_assert_eq(stk_sampler_sample(s, NULL), STK_EINVAL);
    cr_assert_eq(stk_sampler_sample(NULL, logits), STK_EINVAL);
    cr_assert_eq(stk_sampler_accept(NULL, 0), STK_EINVAL);
    stk_sampler_close(&s);
}
