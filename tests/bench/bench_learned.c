/*
 * bench_learned: CPU time of cache policy `learned` an event of one token (lookup, decisions and learning), one core, 48 layers
 * of 128 experts. CSV on stdout; the median of 7 runs after one to warm up.
 *
 * Routing as in text: tokens of a vocabulary of 512 come in phrases that recur; each has experts of its own in a layer, and some
 * are replaced at random.
 */
#include "bench.h"
#include "cache/cache.h"

enum { N_LAYER = 48, N_EXPERT = 128, K = 8, N_TOKEN = 1024, N_RUN = 7 };

static uint16_t ids[N_TOKEN][N_LAYER][K], distinct[N_TOKEN][N_LAYER][K];

static uint32_t next_random(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

static void make_token(uint64_t *rng, uint32_t t, uint32_t word) {
    for (uint32_t layer = 0; layer < N_LAYER; layer++) {
        uint64_t own = (uint64_t)word * N_LAYER + layer;
        uint8_t chosen[N_EXPERT] = {0};
        for (uint32_t i = 0, n = 0; i < K;) {
            uint32_t expert = next_random(next_random(rng, 3) ? &own : rng, N_EXPERT);
            if (chosen[expert]) continue;
            chosen[expert] = 1;
            ids[t][layer][i++] = (uint16_t)expert;
            for (n = i - 1; n > 0 && distinct[t][layer][n - 1] > expert; n--) distinct[t][layer][n] = distinct[t][layer][n - 1];
            distinct[t][layer][n] = (uint16_t)expert;
        }
    }
}

static void make_text(void) {
    uint64_t rng = 1;
    for (uint32_t t = 0; t < N_TOKEN;) {
        uint64_t phrase = next_random(&rng, 64);
        for (uint32_t i = 0; i < 8 && t < N_TOKEN; i++) make_token(&rng, t++, next_random(&phrase, 512));
    }
}

static stk_cache *open_cache(uint32_t n_slot, uint32_t n_class) {
    stk_cache_class classes[N_LAYER];
    uint32_t layer_class[N_LAYER];
    for (uint32_t i = 0; i < N_LAYER; i++) {
        classes[i] = (stk_cache_class){n_slot * (N_LAYER / n_class), K};
        layer_class[i] = n_class == 1 ? 0 : i;
    }
    const stk_cache_config config = {.n_layer = N_LAYER,
                                     .n_expert = N_EXPERT,
                                     .k = K,
                                     .n_class = n_class,
                                     .classes = classes,
                                     .layer_class = layer_class,
                                     .policy = "learned"};
    stk_cache *cache;
    if (stk_cache_open(&cache, &config) == 0) return cache;
    fprintf(stderr, "bench_learned: %s\n", stk_error_detail());
    exit(1);
}

static uint64_t run(stk_cache *cache) {
    static const uint32_t counts[K] = {1, 1, 1, 1, 1, 1, 1, 1};
    uint64_t start = bench_cpu_ns();
    for (int32_t t = 0; t < N_TOKEN; t++)
        for (uint32_t layer = 0; layer < N_LAYER; layer++) {
            const stk_event event = {.n_tok = 1,
                                     .k = K,
                                     .n_expert = N_EXPERT,
                                     .n_distinct = K,
                                     .pos = &t,
                                     .ids = ids[t][layer],
                                     .distinct = distinct[t][layer],
                                     .counts = counts};
            const stk_decision *list;
            if (stk_cache_event(cache, layer, &event, &list) < 0) exit(1);
        }
    return bench_cpu_ns() - start;
}

int main(void) {
    static const uint32_t slots[] = {13, 32, 64};
    make_text();
    printf("machine,commit,scope,n_expert,k,slots_a_layer,hit_pct,median_ns_an_event,best_ns_an_event\n");
    for (uint32_t i = 0; i < 2 * STK_ARRAY_LEN(slots); i++) {
        uint32_t n_slot = slots[i / 2], n_class = i % 2 ? 1 : N_LAYER;
        uint64_t ns[N_RUN];
        stk_cache_counters c;
        stk_cache *cache = open_cache(n_slot, n_class);
        (void)run(cache);
        stk_cache_reset_counters(cache);
        for (uint32_t r = 0; r < N_RUN; r++) ns[r] = run(cache);
        stk_cache_get_counters(cache, &c);
        double median = (double)bench_median(ns, N_RUN), best = (double)ns[0]; /* now in order */
        printf("%s,%s,%s,%u,%u,%u,%.1f,%.1f,%.1f\n", bench_machine(), STK_COMMIT, n_class == 1 ? "global" : "layer", N_EXPERT, K,
               n_slot, 100.0 * (double)c.n_hit / (double)c.n_lookup, median / (N_TOKEN * N_LAYER), best / (N_TOKEN * N_LAYER));
        stk_cache_close(&cache);
    }
    return 0;
}
