#include "tests/gates/probe.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void probe_die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("probe: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

int64_t probe_must(int64_t rc, const char *what) {
    if (rc < 0) probe_die("%s: %s: %s", what, stk_strerror((int)rc), stk_error_detail());
    return rc;
}

void *probe_alloc(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) probe_die("out of memory");
    return p;
}

void probe_open(probe *p) {
    probe_must(stk_model_open(&p->model, p->path), "model");
    p->info.struct_bytes = sizeof p->info;
    probe_must(stk_model_get_info(p->model, &p->info), "info");
    probe_must(stk_engine_open(&p->engine, p->model, &p->options), "engine");
    probe_must(stk_force_placement(p->engine, p->place), "placement");
    if (p->tokens || !p->n_tokens) return;
    p->tokens = probe_alloc(p->n_tokens * sizeof *p->tokens);
    probe_draw_tokens(p, 0, p->n_tokens, p->tokens);
}

void probe_close(probe *p) {
    probe_must(stk_engine_close(&p->engine), "close");
    stk_model_close(&p->model);
}

void probe_draw_tokens(const probe *p, uint32_t stream, uint32_t n, int32_t *out) {
    uint64_t x = UINT64_C(88172645463325252) + stream * UINT64_C(0x9e3779b97f4a7c15);
    for (uint32_t i = 0; i < n; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        out[i] = (int32_t)(x % p->info.n_vocab);
    }
}

int32_t probe_argmax(const float *logits, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}

int probe_step(probe *p, const int32_t *tokens, uint32_t n) {
    stk_batch batch = {.struct_bytes = sizeof batch, .n = n, .token = tokens};
    p->last = n - 1;
    return stk_step(p->engine, &batch);
}

void probe_prefill(probe *p) {
    if (!p->n_tokens) probe_die("no tokens");
    for (uint32_t i = 0, n; i < p->n_tokens; i += n) {
        n = p->n_tokens - i < p->options.n_batch ? p->n_tokens - i : p->options.n_batch;
        probe_must(probe_step(p, p->tokens + i, n), "prefill");
    }
}

const float *probe_logits(const probe *p) {
    const float *logits = stk_get_logits(p->engine, p->last);
    if (!logits) probe_die("no logits of the last entry");
    return logits;
}

stk_stats probe_get_stats(const probe *p) {
    stk_stats s = {.struct_bytes = sizeof s};
    probe_must(stk_engine_get_stats(p->engine, &s), "stats");
    return s;
}

void probe_print(const probe *p) {
    stk_memory_info m = {.struct_bytes = sizeof m};
    stk_stats s = probe_get_stats(p);
    probe_must(stk_engine_get_memory(p->engine, &m), "memory");
    const struct {
        const char *name;
        uint64_t value;
    } lines[] = {
        {"n_step", s.n_step},
        {"n_token", s.n_token},
        {"n_event", s.n_event},
        {"n_lookup", s.n_lookup},
        {"n_pair", s.n_pair},
        {"n_hit", s.n_hit},
        {"n_miss", s.n_miss},
        {"n_evict", s.n_evict},
        {"n_prefetch", s.n_prefetch},
        {"n_prefetch_used", s.n_prefetch_used},
        {"n_wave", s.n_wave},
        {"bytes", s.bytes},
        {"read_bytes", s.read_bytes},
        {"step_ns", s.step_ns},
        {"dense_ns", s.dense_ns},
        {"expert_ns", s.expert_ns},
        {"arrive_ns", s.arrive_ns},
        {"wait_ns", s.wait_ns},
        {"io_ns", s.io_ns},
        {"n_vram_hit", s.n_vram_hit},
        {"n_fetch", s.n_fetch},
        {"n_fetch_failed", s.n_fetch_failed},
        {"n_return", s.n_return},
        {"n_host", s.n_host},
        {"n_vram_slot", m.n_vram_slot},
        {"vram_bytes", m.vram_bytes},
        {"n_slot", m.n_slot},
        {"n_expert", m.n_expert},
        {"dense_bytes", m.dense_bytes},
        {"kv_bytes", m.kv_bytes},
        {"ram_bytes", m.ram_bytes},
        {"ram_bytes_min", m.ram_bytes_min},
        {"buffer_bytes", m.buffer_bytes},
        {"huge_bytes", m.huge_bytes},
        {"n_threads", m.n_threads},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) printf("%s %" PRIu64 "\n", lines[i].name, lines[i].value);
    printf("io %s\ncpu %s\n", m.io, m.cpu);
}

static void expect_equal(const char *name, uint64_t live, uint64_t replayed) {
    if (live != replayed) probe_die("replay: %s is %" PRIu64 ", the live run had %" PRIu64, name, replayed, live);
}

void probe_verify_trace(const probe *p, const stk_stats *live) {
    stk_replay_options o;
    stk_replay_result r = {.struct_bytes = sizeof r};
    stk_replay_options_default(&o, sizeof o);
    o.verify = 1;
    probe_must(stk_replay(p->options.trace, &o, &r), "verifying replay");
    if (!r.complete) probe_die("replay: the trace is cut off");
    expect_equal("n_event", live->n_event, r.stats.n_event);
    expect_equal("n_lookup", live->n_lookup, r.stats.n_lookup);
    expect_equal("n_pair", live->n_pair, r.stats.n_pair);
    expect_equal("n_hit", live->n_hit, r.stats.n_hit);
    expect_equal("n_miss", live->n_miss, r.stats.n_miss);
    expect_equal("n_evict", live->n_evict, r.stats.n_evict);
    expect_equal("n_wave", live->n_wave, r.stats.n_wave);
    expect_equal("bytes", live->bytes, r.stats.bytes);
    expect_equal("read_bytes", live->read_bytes, r.stats.read_bytes);
    expect_equal("n_vram_hit", live->n_vram_hit, r.stats.n_vram_hit);
    expect_equal("n_fetch", live->n_fetch, r.stats.n_fetch);
    expect_equal("n_return", live->n_return, r.stats.n_return);
}

/* ---- The verbs without a file of their own ---- */

int probe_greedy(probe *p) {
    probe_open(p);
    probe_prefill(p);
    for (uint32_t i = 0; i < p->n; i++) {
        int32_t id = probe_argmax(probe_logits(p), p->info.n_vocab);
        printf("%s%d", i ? "," : "", id);
        if (i + 1 < p->n) probe_must(probe_step(p, &id, 1), "step");
    }
    puts("");
    probe_close(p);
    return 0;
}

/* FNV-1a over the bits of every token's logits. */
int probe_bits(probe *p) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    p->options.n_logits = p->options.n_batch;
    probe_open(p);
    uint8_t *all = probe_alloc(p->options.n_batch);
    memset(all, 1, p->options.n_batch);
    for (uint32_t at = 0, n; at < p->n_tokens; at += n) {
        n = p->n_tokens - at < p->options.n_batch ? p->n_tokens - at : p->options.n_batch;
        stk_batch batch = {.struct_bytes = sizeof batch, .n = n, .token = p->tokens + at, .logits = all};
        probe_must(stk_step(p->engine, &batch), "step");
        for (uint32_t i = 0; i < n; i++) {
            const uint8_t *bytes = (const uint8_t *)stk_get_logits(p->engine, i);
            for (size_t b = 0; b < p->info.n_vocab * sizeof(float); b++) hash = (hash ^ bytes[b]) * UINT64_C(0x100000001b3);
        }
    }
    printf("hash %016" PRIx64 "\n", hash);
    probe_print(p);
    stk_stats live = probe_get_stats(p);
    free(all);
    probe_close(p);
    if (p->options.trace) probe_verify_trace(p, &live);
    return 0;
}

int probe_stats(probe *p) {
    probe_open(p);
    probe_prefill(p);
    for (uint32_t i = 0; i < p->n; i++) {
        int32_t id = probe_argmax(probe_logits(p), p->info.n_vocab);
        probe_must(probe_step(p, &id, 1), "step");
    }
    probe_print(p);
    stk_stats live = probe_get_stats(p);
    probe_close(p);
    if (p->options.trace) probe_verify_trace(p, &live);
    return 0;
}
