/*
 * bench_cache: decisions a second of CPU time, one core. CSV on stdout; the median of 7 runs after one to warm up.
 *
 * Decode events of one token choose k experts, half of them from those of the token before, so that hits are as frequent as
 * in real routing; a prefill event of 512 tokens uses every expert.
 */
#include "bench.h"
#include "cache/cache.h"

enum { N_LAYER = 48, MAX_EXPERT = 256, N_EVENT = 48 * 256, N_PASS = 16, N_RUN = 7 };

typedef struct shape {
    const char *policy;
    uint32_t n_tok, n_expert, k, n_slot; /* slots of a layer */
} shape;

/* The events, packed so that reading them costs next to nothing. */
static uint16_t distinct[N_EVENT * MAX_EXPERT / 4];
static uint32_t counts[N_EVENT * MAX_EXPERT / 4], begin_of[N_EVENT + 1];

static uint32_t next_random(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

static void make_decode(const shape *s, uint32_t n_event) {
    uint64_t rng = 1;
    for (uint32_t i = 0, at = 0; i < n_event; i++) {
        unsigned char chosen[MAX_EXPERT] = {0};
        for (uint32_t n = 0; n < s->k;) {
            bool again = i >= N_LAYER && next_random(&rng, 2);
            uint32_t expert = again ? distinct[at - N_LAYER * s->k + next_random(&rng, s->k)] : next_random(&rng, s->n_expert);
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

static stk_cache *open_cache(const shape *s) {
    static uint32_t layer_class[N_LAYER];
    const stk_cache_class class = {.n_slot = s->n_slot * N_LAYER};
    const stk_cache_config config = {.n_layer = N_LAYER,
                                     .n_expert = s->n_expert,
                                     .k = s->k,
                                     .n_class = 1,
                                     .classes = &class,
                                     .layer_class = layer_class,
                                     .policy = s->policy};
    stk_cache *cache;
    if (stk_cache_open(&cache, &config) == 0) return cache;
    fprintf(stderr, "bench_cache: %s\n", stk_error_detail());
    exit(1);
}

static uint64_t run(stk_cache *cache, uint32_t n_event) {
    uint64_t start = bench_cpu_ns();
    for (uint32_t pass = 0; pass < N_PASS; pass++)
        for (uint32_t i = 0; i < n_event; i++) {
            uint32_t at = begin_of[i];
            const stk_event event = {.n_distinct = begin_of[i + 1] - at, .distinct = distinct + at, .counts = counts + at};
            const stk_decision *list;
            if (stk_cache_event(cache, i % N_LAYER, &event, &list) < 0) exit(1);
        }
    return bench_cpu_ns() - start;
}

int main(void) {
    static const shape shapes[] = {{"lru", 1, 128, 8, 32},  {"lru", 1, 128, 8, 64},    {"lru", 1, 128, 8, 128},
                                   {"lru", 1, 64, 6, 16},   {"lru", 1, 256, 8, 64},    {"lru", 512, 128, 8, 64},
                                   {"lru", 512, 128, 8, 1}, {"random", 1, 128, 8, 32}, {"random", 1, 128, 8, 64}};
    printf("machine,commit,policy,n_tok,n_expert,k,slots_a_layer,hit_pct,waves_an_event,median_ns_an_event,million_events_a_s\n");
    for (size_t i = 0; i < STK_ARRAY_LEN(shapes); i++) {
        const shape *s = &shapes[i];
        uint32_t n_event = s->n_tok == 1 ? N_EVENT : N_EVENT / 16;
        uint64_t ns[N_RUN];
        stk_cache_counters c;
        if (s->n_tok == 1)
            make_decode(s, n_event);
        else
            make_prefill(s, n_event);
        stk_cache *cache = open_cache(s);
        (void)run(cache, n_event);
        stk_cache_reset_counters(cache);
        for (uint32_t r = 0; r < N_RUN; r++) ns[r] = run(cache, n_event);
        stk_cache_get_counters(cache, &c);
        double median = (double)bench_median(ns, N_RUN) / (n_event * N_PASS);
        printf("%s,%s,%s,%u,%u,%u,%u,%.1f,%.2f,%.1f,%.2f\n", bench_machine(), STK_COMMIT, s->policy, s->n_tok, s->n_expert, s->k,
               s->n_slot, 100.0 * (double)c.n_hit / (double)c.n_lookup, (double)c.n_wave / (double)c.n_event, median,
               1e3 / median);
        stk_cache_close(&cache);
    }
    return 0;
}
