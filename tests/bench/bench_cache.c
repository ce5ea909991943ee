/*
 * bench_cache: decisions a second of CPU time, one core. CSV on stdout; the median of 7 runs after one to warm up.
 *
 * Decode events of one token choose k experts, half of them from those of the token before, so that hits are as frequent as
 * in real routing; a prefill event of 512 tokens uses every expert.
 */
#include <string.h>

#include "bench.h"
#include "cache/cache.h"

enum { N_LAYER = 48, MAX_EXPERT = 256, N_STEP = 256, N_EVENT = N_LAYER * N_STEP, N_PASS = 16, N_RUN = 7, N_TOP = 64, MAX_K = 8 };

typedef struct shape {
    const char *policy;
    bool per_layer;                               /* a cache a layer */
    uint32_t n_tok, n_layer, n_expert, k, n_slot; /* slots of a layer */
} shape;

/* The events, packed so that reading them costs next to nothing. */
static uint16_t distinct[N_EVENT * MAX_EXPERT / 4];
static uint32_t counts[N_EVENT * MAX_EXPERT / 4], begin_of[N_EVENT + 1];
/* Scored experts, for policies that look at them; which they are does not matter here. */
static uint16_t top_ids[N_TOP][2 * MAX_K];
static float top_scores[2 * MAX_K];

static uint32_t next_random(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

static void make_scores(void) {
    uint64_t rng = 2;
    for (uint32_t i = 0; i < 2 * MAX_K; i++) top_scores[i] = 0.2F / (float)(1 + i);
    for (uint32_t i = 0; i < N_TOP; i++)
        for (uint32_t j = 0; j < 2 * MAX_K; j++) top_ids[i][j] = (uint16_t)(4 * j + next_random(&rng, 4));
}

static void make_decode(const shape *s, uint32_t n_event) {
    uint64_t rng = 1;
    for (uint32_t i = 0, at = 0; i < n_event; i++) {
        unsigned char chosen[MAX_EXPERT] = {0};
        for (uint32_t n = 0; n < s->k;) {
            bool again = i >= s->n_layer && next_random(&rng, 2);
            uint32_t expert = again ? distinct[at - s->n_layer * s->k + next_random(&rng, s->k)] : next_random(&rng, s->n_expert);
            if (chosen[expert]) continue;
            chosen[expert] = 1;
            n++;
        }
        for (uint32_t e = 0; e < s->n_expert; e++) {
            if (!chosen[e]) continue;
            counts[at] = 1;
            distinct[at++] = (uint16_t)e;
        }
        begin_of[i + 1] = at;
    }
}

static void make_prefill(const shape *s, uint32_t n_event) {
    uint64_t rng = 1;
    for (uint32_t i = 0, at = 0; i < n_event; i++) {
        for (uint32_t e = 0; e < s->n_expert; e++) {
            counts[at] = 1 + next_random(&rng, 2 * s->n_tok * s->k / s->n_expert);
            distinct[at++] = (uint16_t)e;
        }
        begin_of[i + 1] = at;
    }
}

/* One cache for all layers, or one for each. */
static stk_cache *open_cache(const shape *s, const stk_future *future) {
    uint32_t layer_class[N_LAYER];
    stk_cache_class classes[N_LAYER];
    for (uint32_t i = 0; i < N_LAYER; i++) {
        layer_class[i] = s->per_layer ? i % s->n_layer : 0;
        classes[i] = (stk_cache_class){.n_slot = s->n_slot * (s->per_layer ? 1 : s->n_layer), .n_transit = s->k};
    }
    const stk_cache_config config = {.n_layer = s->n_layer,
                                     .n_expert = s->n_expert,
                                     .k = s->k,
                                     .n_class = s->per_layer ? s->n_layer : 1,
                                     .classes = classes,
                                     .layer_class = layer_class,
                                     .policy = s->policy,
                                     .future = future};
    stk_cache *cache;
    if (stk_cache_open(&cache, &config) == 0) return cache;
    fprintf(stderr, "bench_cache: %s\n", stk_error_detail());
    exit(1);
}

static stk_event event_of(const shape *s, uint32_t i) {
    uint32_t at = begin_of[i];
    return (stk_event){.n_tok = s->n_tok,
                       .k = s->k,
                       .n_top = s->n_tok == 1 ? 2 * s->k : 0,
                       .n_distinct = begin_of[i + 1] - at,
                       .distinct = distinct + at,
                       .counts = counts + at,
                       .top_ids = top_ids[i % N_TOP],
                       .top_scores = top_scores};
}

/* The first pass over all runs of a policy that needs to know them. */
static stk_future *find_future(const shape *s, uint32_t n_event) {
    stk_future *future;
    bool failed = stk_future_open(&future, s->n_layer, s->n_expert, NULL) < 0;
    for (uint64_t i = 0; !failed && i < (uint64_t)n_event * N_PASS * (N_RUN + 1); i++) {
        uint32_t at = (uint32_t)(i % n_event);
        const stk_event event = event_of(s, at);
        failed = stk_future_add(future, at % s->n_layer, &event) < 0;
    }
    if (failed || stk_future_end(future) < 0) exit(1);
    return future;
}

static uint64_t run(stk_cache *cache, const shape *s, uint32_t n_event) {
    uint64_t start = bench_cpu_ns();
    for (uint32_t pass = 0; pass < N_PASS; pass++)
        for (uint32_t i = 0; i < n_event; i++) {
            const stk_event event = event_of(s, i);
            const stk_decision *list;
            if (stk_cache_event(cache, i % s->n_layer, &event, &list) < 0) exit(1);
        }
    return bench_cpu_ns() - start;
}

static void measure(const shape *s) {
    uint32_t n_event = s->n_layer * (s->n_tok == 1 ? N_STEP : N_STEP / 16);
    uint64_t ns[N_RUN];
    stk_cache_counters c;
    if (s->n_tok == 1)
        make_decode(s, n_event);
    else
        make_prefill(s, n_event);
    stk_future *future = strncmp(s->policy, "belady", 6) == 0 ? find_future(s, n_event) : NULL;
    stk_cache *cache = open_cache(s, future);
    (void)run(cache, s, n_event);
    stk_cache_reset_counters(cache);
    for (uint32_t r = 0; r < N_RUN; r++) ns[r] = run(cache, s, n_event);
    stk_cache_get_counters(cache, &c);
    double median = (double)bench_median(ns, N_RUN) / (n_event * N_PASS);
    printf("%s,%s,%s,%s,%u,%u,%u,%u,%u,%.1f,%.2f,%.1f,%.2f\n", bench_machine(), STK_COMMIT, s->policy,
           s->per_layer ? "layer" : "global", s->n_tok, s->n_layer, s->n_expert, s->k, s->n_slot,
           100.0 * (double)c.n_hit / (double)c.n_lookup, (double)c.n_wave / (double)c.n_event, median, 1e3 / median);
    stk_cache_close(&cache);
    stk_future_close(&future);
}

int main(void) {
    static const shape lru_shapes[] = {{"lru", false, 1, 48, 128, 8, 32},   {"lru", false, 1, 48, 128, 8, 64},
                                       {"lru", false, 1, 48, 128, 8, 128},  {"lru", false, 1, 48, 256, 8, 64},
                                       {"lru", false, 512, 48, 128, 8, 64}, {"lru", false, 512, 48, 128, 8, 1}};
    make_scores();
    printf("machine,commit,policy,scope,n_tok,n_layer,n_expert,k,slots_a_layer,hit_pct,waves_an_event,median_ns_an_event,"
           "million_events_a_s\n");
    for (size_t i = 0; i < STK_ARRAY_LEN(lru_shapes); i++) measure(&lru_shapes[i]);
    for (const char *const *name = stk_policy_names(); *name; name++)
        for (int per_layer = 0; per_layer < 2; per_layer++) measure(&(shape){*name, per_layer, 1, 26, 64, 6, 16});
    return 0;
}
