/* live: what changes while a run goes on, or from run to run: resizes, what is turned off, a warm start. None of it changes a bit
 * of the output, and a verifying replay repeats all of it. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/policy.h"
#include "src/engine/engine.h"
#include "tests/temp.h"

#define MODEL STK_TEST_DATA "/ember-q4_k_m.gguf"
#define OTHER STK_TEST_DATA "/tiny/qwen3moe-f32.gguf"

enum { N = 40 };

static char trace[TEMP_PATH], warm[TEMP_PATH];

static void set_up(void) {
    temp_file(trace, "stoker-live");
    unlink(temp_file(warm, "stoker-warm"));
}
static void tear_down(void) {
    unlink(trace);
    unlink(warm);
}

static stk_model *open_model(const char *path) {
    stk_model *m;
    cr_assert_eq(stk_model_open(&m, path), 0, "%s", stk_error_detail());
    return m;
}

static stk_engine_options with(const char *policy, uint64_t ram_bytes) {
    return (stk_engine_options){
        .struct_bytes = sizeof(stk_engine_options), .n_ctx = 128, .n_threads = 2, .policy = policy, .ram_bytes = ram_bytes};
}

static stk_engine *open_engine(const stk_model *model, stk_engine_options o) {
    stk_engine *e;
    cr_assert_eq(stk_engine_open(&e, model, &o), 0, "%s", stk_error_detail());
    return e;
}

static void close_engine(stk_engine *e) { cr_assert_eq(stk_engine_close(&e), 0, "%s", stk_error_detail()); }

/* Token i of the text; its logits are left in the engine. */
static void step(stk_engine *e, int i) {
    int32_t token = (i / 4 * 37 + 11) % 131 + 5;
    int rc = stk_step(e, &(stk_batch){.struct_bytes = sizeof(stk_batch), .n = 1, .token = &token});
    cr_assert_eq(rc, 0, "%s", stk_error_detail());
}

static uint64_t hash_logits(const stk_engine *e) {
    const uint32_t *bits = (const uint32_t *)(const void *)stk_get_logits(e, 0);
    uint64_t h = 0;
    for (uint32_t i = 0; i < e->model->hp.n_vocab; i++) h = (h ^ bits[i]) * 0x9e3779b97f4a7c15u;
    return h;
}

/* Hashes of all logits of a run without anything of this file. */
static const uint64_t *reference(const stk_model *model) {
    static uint64_t h[N];
    stk_engine *e = open_engine(model, with("lru", 0));
    for (int i = 0; i < N; i++) {
        step(e, i);
        h[i] = hash_logits(e);
    }
    close_engine(e);
    return h;
}

static uint64_t least_bytes(const stk_model *model, const char *policy) {
    stk_engine *e = open_engine(model, with(policy, 0));
    uint64_t least = e->memory.ram_bytes_min;
    close_engine(e);
    return least;
}

static stk_replay_result replay(int verify, const char *policy) {
    stk_replay_options o;
    stk_replay_result r = {.struct_bytes = sizeof r};
    stk_replay_options_default(&o, sizeof o);
    o.verify = (uint32_t)verify;
    o.policy = policy;
    cr_assert_eq(stk_replay(trace, &o, &r), 0, "%s", stk_error_detail());
    return r;
}

/* ---- Resizing ----------------------------------------------------------------------------------------------------------- */

static void run_resized(const stk_model *model, const char *policy, const uint64_t *want) {
    uint64_t least = least_bytes(model, policy), all = stk_slots_all_bytes(model->experts);
    const uint64_t sizes[] = {3 * least, least, all, 2 * least, least, 4 * least};
    stk_engine_options o = with(policy, 5 * least);
    o.trace = trace;
    stk_engine *e = open_engine(model, o);
    for (int i = 0; i < N; i++) {
        if (i % 6 == 3) {
            uint64_t bytes = sizes[i / 6 % STK_ARRAY_LEN(sizes)];
            cr_assert_eq(stk_engine_resize(e, bytes), 0, "%s: %s", policy, stk_error_detail());
            stk_memory_info m = {.struct_bytes = sizeof m};
            cr_assert_eq(stk_engine_get_memory(e, &m), 0);
            cr_assert_leq(m.ram_bytes, bytes, "%s", policy);
            cr_assert_gt(m.ram_bytes, bytes - 2 * stk_catalogue_class(model->experts, 0)->slot_bytes, "%s", policy);
        }
        step(e, i);
        cr_assert_eq(hash_logits(e), want[i], "%s: token %d", policy, i);
    }
    stk_stats s = {.struct_bytes = sizeof s};
    cr_assert_eq(stk_engine_get_stats(e, &s), 0);
    close_engine(e);
    stk_replay_result v = replay(1, NULL), d = replay(0, NULL);
    cr_assert_eq(v.stats.n_miss, s.n_miss, "%s", policy);
    cr_assert_eq(v.stats.read_bytes, s.read_bytes, "%s", policy);
    if (strcmp(policy, "lru") == 0) { /* decisions alone, with another policy */
        cr_assert_eq(d.stats.n_lookup, s.n_lookup);
        cr_assert_neq(replay(0, "random").stats.n_miss, 0);
    }
}

Test(live, resizes_change_no_bits_and_are_repeated, .init = set_up, .fini = tear_down) {
    static const char *const policies[] = {"lru", "lfu", "slru:protected=0.5", "s3fifo", "learned", "mrs", "random"};
    stk_model *model = open_model(MODEL);
    const uint64_t *want = reference(model);
    for (size_t i = 0; i < STK_ARRAY_LEN(policies); i++) run_resized(model, policies[i], want);
    stk_model_close(&model);
}

Test(live, experts_that_stay_are_not_read_again) {
    stk_model *model = open_model(MODEL);
    stk_engine_options o = with("lru", 0);
    o.predictor = "none";
    stk_engine *e = open_engine(model, o);
    for (int i = 0; i < 8; i++) step(e, i);
    stk_stats before = {.struct_bytes = sizeof before}, after = before;
    cr_assert_eq(stk_engine_get_stats(e, &before), 0);
    uint64_t some = e->memory.ram_bytes * 3 / 4;
    cr_assert_eq(stk_engine_resize(e, some), 0, "%s", stk_error_detail());
    step(e, 7); /* the token before, at another position: its experts in the first layer are the latest used */
    cr_assert_eq(stk_engine_get_stats(e, &after), 0);
    cr_assert_lt(after.n_miss - before.n_miss, (after.n_lookup - before.n_lookup) / 2);
    close_engine(e);
    stk_model_close(&model);
}

Test(live, too_little_is_refused_by_name_and_changes_nothing) {
    stk_model *model = open_model(MODEL);
    uint64_t least = least_bytes(model, "lru");
    stk_engine *e = open_engine(model, with("lru", 2 * least));
    step(e, 0);
    uint64_t hash = stk_cache_hash(e->cache);
    char text[32];
    snprintf(text, sizeof text, "%llu bytes", (unsigned long long)least);
    cr_assert_eq(stk_engine_resize(e, least - 1), STK_EBUDGET);
    cr_assert(strstr(stk_error_detail(), text), "%s", stk_error_detail());
    cr_assert_eq(stk_cache_hash(e->cache), hash);
    cr_assert_leq(e->memory.ram_bytes, 2 * least);
    cr_assert_eq(stk_engine_resize(NULL, least), STK_EINVAL);
    step(e, 1);
    close_engine(e);
    stk_model_close(&model);
}

static void count_resized(void *user, int level, const char *line) {
    *(int *)user += level == STK_LOG_WARN && strstr(line, "resized 2 times; this replay keeps its own budget") != NULL;
}

Test(live, a_replay_with_its_own_budget_says_that_it_leaves_resizes_out, .init = set_up, .fini = tear_down) {
    stk_model *model = open_model(MODEL);
    uint64_t least = least_bytes(model, "lru");
    stk_engine_options o = with("lru", 4 * least);
    o.trace = trace;
    stk_engine *e = open_engine(model, o);
    for (int i = 0; i < 4; i++) {
        if (i % 2) cr_assert_eq(stk_engine_resize(e, (uint64_t)i * least), 0, "%s", stk_error_detail());
        step(e, i);
    }
    close_engine(e);
    stk_model_close(&model);
    for (int own = 0; own < 2; own++)
        for (int timed = 0; timed < 2; timed++) {
            int n = 0;
            stk_log_set(count_resized, &n);
            stk_replay_options r = {
                .struct_bytes = sizeof r, .ram_bytes = own ? 2 * least : 0, .io = timed ? "emu:1G,80us" : NULL};
            cr_assert_eq(stk_replay(trace, &r, &(stk_replay_result){.struct_bytes = sizeof(stk_replay_result)}), 0, "%s",
                         stk_error_detail());
            stk_log_set(NULL, NULL);
            cr_assert_eq(n, own, "own budget %d, timed %d: said %d times", own, timed, n);
        }
}

/* ---- What is turned off -------------------------------------------------------------------------------------------------- */

Test(live, turning_reading_ahead_off_and_on_is_recorded, .init = set_up, .fini = tear_down) {
    stk_model *model = open_model(MODEL);
    const uint64_t *want = reference(model);
    stk_engine_options o = with("lru", 3 * least_bytes(model, "lru"));
    o.trace = trace;
    stk_engine *e = open_engine(model, o);
    uint64_t n_prefetch = 0;
    for (int i = 0; i < N; i++) {
        if (i % 10 == 5) cr_assert_eq(stk_engine_switch_prefetch(e, i % 20 != 5), 0);
        step(e, i);
        cr_assert_eq(hash_logits(e), want[i]);
        stk_stats s = {.struct_bytes = sizeof s};
        cr_assert_eq(stk_engine_get_stats(e, &s), 0);
        bool off = i % 20 >= 5 && i % 20 < 15;
        cr_assert(off ? s.n_prefetch == n_prefetch : s.n_prefetch >= n_prefetch, "token %d", i);
        n_prefetch = s.n_prefetch;
        cr_assert_eq(s.n_switch, (uint64_t)(i + 5) / 10);
    }
    cr_assert_gt(n_prefetch, 0);
    close_engine(e);
    (void)replay(1, NULL);
    stk_model_close(&model);
}

/* ---- Warm starts -------------------------------------------------------------------------------------------------------- */

static uint32_t residents(const stk_engine *e, uint8_t *flags) {
    uint32_t n = 0, n_expert = e->model->hp.n_expert;
    for (uint32_t l = 0; l < e->model->hp.n_layer; l++) {
        cr_assert_eq(stk_get_residency(e, l, flags + l * n_expert, n_expert), n_expert);
        for (uint32_t x = 0; x < n_expert; x++) n += flags[l * n_expert + x];
    }
    return n;
}

/* A run that leaves its file; *flags is what was in the cache. */
static uint32_t leave(const stk_model *model, stk_engine_options o, int n, uint8_t *flags) {
    stk_engine *e = open_engine(model, o);
    for (int i = 0; i < n; i++) step(e, i);
    uint32_t found = residents(e, flags);
    close_engine(e);
    return found;
}

Test(live, a_warm_start_goes_on_where_the_last_run_ended, .init = set_up, .fini = tear_down) {
    stk_model *model = open_model(MODEL);
    const uint64_t *want = reference(model);
    static uint8_t before[4096], after[4096];
    for (const char *const *name = stk_policy_names(); *name; name++) {
        if (stk_policy_find(*name)->needs_future) continue;
        stk_engine_options o = with(*name, 3 * least_bytes(model, *name));
        o.warm = warm;
        o.predictor = "mix:mib=1";
        unlink(warm);
        uint32_t n = leave(model, o, N / 2, before);
        o.trace = trace;
        stk_engine *e = open_engine(model, o);
        cr_assert_eq(e->memory.n_warm, n, "%s", *name);
        cr_assert_eq(residents(e, after), n, "%s", *name);
        cr_assert_arr_eq(before, after, sizeof before, "%s", *name);
        for (int i = 0; i < N; i++) {
            step(e, i);
            cr_assert_eq(hash_logits(e), want[i], "%s: token %d", *name, i);
        }
        close_engine(e);
        (void)replay(1, NULL);
    }
    stk_model_close(&model);
}

Test(live, another_budget_or_policy_takes_what_it_can, .init = set_up, .fini = tear_down) {
    stk_model *model = open_model(MODEL);
    static uint8_t flags[4096];
    uint64_t least = least_bytes(model, "lru");
    stk_engine_options o = with("lru", 6 * least);
    o.warm = warm;
    uint32_t n = leave(model, o, N, flags);
    o.ram_bytes = 2 * least;
    stk_engine *e = open_engine(model, o);
    cr_assert(e->memory.n_warm > 0 && e->memory.n_warm < n, "%u of %u", e->memory.n_warm, n);
    close_engine(e);
    o.policy = "learned";
    o.ram_bytes = 6 * least;
    e = open_engine(model, o);
    cr_assert_gt(e->memory.n_warm, 0);
    step(e, 0);
    close_engine(e);
    stk_model_close(&model);
}

static void change_byte(const char *path, off_t at) {
    uint8_t byte = 0;
    int fd = open(path, O_RDWR);
    cr_assert(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

Test(live, a_damaged_file_is_a_cold_start_and_is_written_anew, .init = set_up, .fini = tear_down) {
    stk_model *model = open_model(MODEL);
    static uint8_t flags[4096];
    stk_engine_options o = with("lru", 0);
    o.warm = warm;
    (void)leave(model, o, 4, flags);
    change_byte(warm, 300);
    stk_engine *e = open_engine(model, o);
    cr_assert_eq(e->memory.n_warm, 0);
    step(e, 0);
    close_engine(e);
    e = open_engine(model, o);
    cr_assert_gt(e->memory.n_warm, 0);
    close_engine(e);
    stk_model_close(&model);
}

Test(live, files_of_others_are_refused_and_left_alone, .init = set_up, .fini = tear_down) {
    stk_model *model = open_model(MODEL), *other = open_model(OTHER);
    static uint8_t flags[4096];
    stk_engine *e;
    stk_engine_options o = with("lru", 0);
    o.warm = warm;
    (void)leave(model, o, 4, flags);
    cr_assert_eq(stk_engine_open(&e, other, &o), STK_EINVAL);
    cr_assert(strstr(stk_error_detail(), "another model"), "%s", stk_error_detail());
    e = open_engine(model, o);
    cr_assert_gt(e->memory.n_warm, 0, "it was not written over");
    cr_assert_eq(stk_engine_save_residency(e, MODEL), STK_EINVAL);
    cr_assert_eq(stk_engine_save_residency(e, "/nonexistent/x"), STK_EIO, "%s", stk_error_detail());
    cr_assert_eq(stk_engine_save_residency(e, NULL), STK_EINVAL);
    cr_assert_eq(stk_engine_save_residency(e, trace), 0, "%s", stk_error_detail());
    close_engine(e);
    o.warm = MODEL;
    cr_assert_eq(stk_engine_open(&e, model, &o), STK_EINVAL);
    o.warm = trace; /* now a file that warms */
    e = open_engine(model, o);
    cr_assert_gt(e->memory.n_warm, 0);
    close_engine(e);
    stk_model_close(&model);
    stk_model_close(&other);
}
