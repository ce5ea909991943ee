/*
 * bench_replay: routing events a second of CPU time that a replay of decisions takes, one core, file included: bench_replay
 * [TRACE]. CSV on stdout; the median of 7 runs after one to warm up.
 *
 * Without a trace, one of DeepSeek-V2-Lite's shape is made (26 layers of 64 experts, 6 a token, half of them those of the token
 * before), as mrt8 and, converted, in Stoker's own format.
 */
#include <unistd.h>

#include "bench.h"
#include "src/base.h"
#include "src/stoker.h"
#include "tests/temp.h"

enum { N_LAYER = 26, N_EXPERT = 64, K = 6, N_TOKEN = 20000, N_RUN = 7, N_POLICY = 2 };

static const char *const policies[N_POLICY] = {"lru", "learned"};

static uint32_t next_random(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

static void must(int rc) {
    if (rc >= 0) return;
    fprintf(stderr, "bench_replay: %s\n", stk_error_detail());
    exit(1);
}

static void choose(uint8_t *ids, const uint8_t *before, uint64_t *rng) {
    uint64_t taken = 0;
    for (uint32_t n = 0; n < K;) {
        uint32_t id = before && next_random(rng, 2) ? before[next_random(rng, K)] : next_random(rng, N_EXPERT);
        if (taken >> id & 1) continue;
        taken |= (uint64_t)1 << id;
        ids[n++] = (uint8_t)id;
    }
}

static void make_mrt8(const char *path) {
    static uint8_t rows[2][N_LAYER][K];
    const uint32_t head[] = {N_LAYER, N_EXPERT, K, 1, N_TOKEN, 0};
    uint64_t rng = 1;
    FILE *f = fopen(path, "wb");
    if (!f) exit(1);
    fwrite("MRT8", 4, 1, f);
    fwrite(head, sizeof head, 1, f);
    for (uint32_t t = 0; t < N_TOKEN; t++) {
        for (uint32_t layer = 0; layer < N_LAYER; layer++) choose(rows[t % 2][layer], t ? rows[(t + 1) % 2][layer] : NULL, &rng);
        fwrite(rows[t % 2], sizeof rows[0], 1, f);
    }
    if (fclose(f)) exit(1);
}

static void bench(const char *name, const char *path, uint32_t scope, const char *policy) {
    stk_replay_options o;
    stk_replay_result r = {.struct_bytes = sizeof r};
    uint64_t ns[N_RUN];
    stk_replay_options_default(&o, sizeof o);
    o.policy = policy;
    o.fraction = 0.25;
    o.scope = scope;
    must(stk_replay(path, &o, &r));
    for (uint32_t i = 0; i < N_RUN; i++) {
        uint64_t start = bench_cpu_ns();
        must(stk_replay(path, &o, &r));
        ns[i] = bench_cpu_ns() - start;
    }
    double n_event = (double)r.stats.n_event, median = (double)bench_median(ns, N_RUN) / n_event;
    printf("%s,%s,%s,%s,%s,%.0f,%.1f,%.1f,%.2f,%.2f\n", bench_machine(), STK_COMMIT, name, policy, scope ? "layer" : "global",
           n_event, 100.0 * (double)r.stats.n_hit / (double)r.stats.n_lookup, median, 1e3 / median,
           1e3 * n_event / (double)ns[0]);
}

int main(int argc, char **argv) {
    printf("machine,commit,trace,policy,scope,events,hit_pct,median_ns_an_event,million_events_a_s,best_million_events_a_s\n");
    if (argc > 1) {
        for (uint32_t i = 0; i < 2 * N_POLICY; i++) bench(argv[1], argv[1], i % 2, policies[i / 2]);
        return 0;
    }
    char mrt8[TEMP_PATH], own[TEMP_PATH];
    make_mrt8(temp_file(mrt8, "stoker-bench-replay"));
    temp_file(own, "stoker-bench-replay");
    const char *from = mrt8;
    must(stk_trace_convert(&from, 1, own, NULL));
    for (uint32_t i = 0; i < 2 * N_POLICY; i++) {
        bench("mrt8", mrt8, i % 2, policies[i / 2]);
        bench("stoker", own, i % 2, policies[i / 2]);
    }
    unlink(mrt8);
    unlink(own);
    return 0;
}
