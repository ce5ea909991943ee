/* Failures of a device under an engine: on the emulation, which fails on demand. */
#include <criterion/criterion.h>
#include <string.h>

#include "cuda/emu/emu.h"
#include "src/cli/options.h"
#include "src/stoker.h"

enum { N_TOKEN = 12, VOCAB_MAX = 4096 };

/* Those of the program are in its main.c. */
const cli_verb cli_verbs[] = {{.bit = CLI_RUN, .name = "run", .run = cli_run}};
const size_t cli_n_verb = 1;

static const int32_t tokens[N_TOKEN] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static stk_model *model;
static stk_model_info info;

static void open_model(void) {
    stk_emu_config config = stk_emu_config_default();
    config.vram_bytes = 64 << 20;
    stk_emu_reset(&config);
    info.struct_bytes = sizeof info;
    cr_assert_eq(stk_model_open(&model, STK_TEST_DATA "/tiny/qwen3moe-f32.gguf"), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_model_get_info(model, &info), 0);
    cr_assert_leq(info.n_vocab, (uint32_t)VOCAB_MAX);
}

static void close_model(void) {
    stk_model_close(&model);
    stk_emu_stats stats;
    stk_emu_stats_get(&stats);
    cr_expect_eq(stats.n_alloc + stats.n_host_alloc + stats.n_stream + stats.n_event, 0u, "the engine leaves something open");
}

TestSuite(emu_gpu, .init = open_model, .fini = close_model);

static stk_engine *open_engine(const char *device, uint64_t vram_bytes) {
    stk_engine_options o;
    stk_engine_options_default(&o, sizeof o);
    o.n_threads = 1;
    o.n_ctx = 64;
    o.n_batch = 16;
    o.device = device;
    o.vram_bytes = vram_bytes;
    stk_engine *e = NULL;
    cr_assert_eq(stk_engine_open(&e, model, &o), 0, "%s", stk_error_detail());
    return e;
}

static int step(stk_engine *e, uint32_t at, uint32_t n) {
    return stk_step(e, &(stk_batch){.struct_bytes = sizeof(stk_batch), .n = n, .token = tokens + at});
}

static void expected(float *logits) {
    stk_engine *e = open_engine("none", 0);
    cr_assert_eq(step(e, 0, N_TOKEN), 0);
    memcpy(logits, stk_get_logits(e, N_TOKEN - 1), info.n_vocab * sizeof *logits);
    cr_assert_eq(stk_engine_close(&e), 0);
}

static stk_stats stats_of(const stk_engine *e) {
    stk_stats s = {.struct_bytes = sizeof s};
    cr_assert_eq(stk_engine_get_stats(e, &s), 0);
    return s;
}

/* Token by token, with `kind` failing `count` times in a row from the after-th call of every step on. */
static void expect_same(enum stk_emu_fail kind, uint32_t count, int error) {
    float want[VOCAB_MAX];
    expected(want);
    for (uint32_t after = 0; after < 40; after += 3) {
        stk_engine *e = open_engine("emu", 1 << 20);
        for (uint32_t t = 0; t < N_TOKEN; t++) {
            stk_emu_fail_next(kind, after, count, error);
            cr_assert_eq(step(e, t, 1), 0, "token %u, after %u: %s", t, after, stk_error_detail());
            stk_emu_fail_next(kind, 0, 0, 0);
        }
        cr_expect_eq(memcmp(stk_get_logits(e, 0), want, info.n_vocab * sizeof *want), 0, "after %u", after);
        cr_assert_eq(stk_engine_close(&e), 0);
    }
}

Test(emu_gpu, a_copy_that_fails_once_is_repeated) { expect_same(STK_EMU_FAIL_COPY, 1, STK_EMU_INVALID_VALUE); }

/* A step that fails takes nothing with it: it may be repeated, until it succeeds with the same output. */
static void expect_repeatable(enum stk_emu_fail kind, uint32_t count, int error, bool fetches) {
    float want[VOCAB_MAX];
    uint64_t n_failed = 0;
    expected(want);
    for (uint32_t after = 0; after < 60; after += 4) {
        stk_engine *e = open_engine("emu", 1 << 20);
        for (uint32_t t = 0; t < N_TOKEN; t++) {
            stk_emu_fail_next(kind, after, count, error);
            int rc = step(e, t, 1);
            stk_emu_fail_next(kind, 0, 0, 0);
            if (rc < 0) cr_assert_eq(step(e, t, 1), 0, "token %u, after %u: %s", t, after, stk_error_detail());
        }
        n_failed += stats_of(e).n_fetch_failed;
        cr_expect_eq(memcmp(stk_get_logits(e, 0), want, info.n_vocab * sizeof *want), 0, "after %u", after);
        cr_assert_eq(stk_engine_close(&e), 0);
    }
    if (fetches) cr_expect_gt(n_failed, 0u, "no fetch was hit");
}

Test(emu_gpu, a_fetch_that_fails_is_computed_by_the_cpu) { expect_repeatable(STK_EMU_FAIL_COPY, 2, STK_EMU_INVALID_VALUE, true); }
Test(emu_gpu, launches_that_fail_leave_the_engine_usable) {
    expect_repeatable(STK_EMU_FAIL_LAUNCH, 1, STK_EMU_INVALID_CONFIGURATION, false);
    expect_repeatable(STK_EMU_FAIL_LAUNCH, 4, STK_EMU_INVALID_CONFIGURATION, false);
}

/* Dense weights, KV, buffers: no engine. Expert slots: fewer of them. Nothing stays behind. */
Test(emu_gpu, memory_that_is_refused) {
    for (uint32_t after = 0; after < 4; after++) {
        stk_engine_options o;
        stk_engine_options_default(&o, sizeof o);
        o.n_threads = 1;
        o.n_ctx = 64;
        o.n_batch = 16;
        o.device = "emu";
        o.vram_bytes = 1 << 20;
        stk_engine *e = NULL;
        stk_emu_fail_next(STK_EMU_FAIL_MALLOC, after, 1, STK_EMU_MEMORY_ALLOCATION);
        int rc = stk_engine_open(&e, model, &o);
        stk_emu_fail_next(STK_EMU_FAIL_MALLOC, 0, 0, 0);
        cr_expect_eq(rc, after < 3 ? STK_ENOMEM : STK_OK, "allocation %u: %d, %s", after, rc, stk_error_detail());
        if (rc == STK_OK) cr_expect_eq(step(e, 0, N_TOKEN), 0);
        cr_assert_eq(stk_engine_close(&e), 0);
    }
}

Test(emu_gpu, without_pinned_memory_the_output_is_the_same) {
    float want[VOCAB_MAX];
    expected(want);
    stk_emu_fail_next(STK_EMU_FAIL_HOST_ALLOC, 0, 1000, STK_EMU_MEMORY_ALLOCATION);
    stk_engine *e = open_engine("emu", 1 << 20);
    for (uint32_t t = 0; t < N_TOKEN; t++) cr_assert_eq(step(e, t, 1), 0, "%s", stk_error_detail());
    cr_expect_eq(memcmp(stk_get_logits(e, 0), want, info.n_vocab * sizeof *want), 0);
    cr_expect_gt(stats_of(e).n_fetch, 0u);
    cr_assert_eq(stk_engine_close(&e), 0);
    stk_emu_fail_next(STK_EMU_FAIL_HOST_ALLOC, 0, 0, 0);
}

/* A lost device ends the step with a code of its own, and the engine can be closed. */
Test(emu_gpu, a_lost_device_is_told) {
    for (uint32_t after = 0; after < 60; after += 7) {
        stk_engine *e = open_engine("emu", 1 << 20);
        int rc = STK_OK;
        stk_emu_fail_next(STK_EMU_FAIL_LOST, after, 1, STK_EMU_LAUNCH_FAILURE);
        for (uint32_t t = 0; t < N_TOKEN && rc >= 0; t++) rc = step(e, t, 1);
        cr_expect_eq(rc, STK_ELOST, "after %u: %d, %s", after, rc, stk_error_detail());
        cr_expect(strstr(stk_error_detail(), "lost"), "%s", stk_error_detail());
        (void)stk_engine_close(&e);
        stk_emu_config config = stk_emu_config_default();
        config.vram_bytes = 64 << 20;
        stk_emu_reset(&config);
    }
}

/* The program: with --device-fallback it goes on, without it ends after one message. */
static int run_and_lose(bool fallback) {
    char *argv[] = {"run",
                    "-m",
                    STK_TEST_DATA "/ember-q4_k_m.gguf",
                    "--tokens",
                    "1,2,3",
                    "-n",
                    "2",
                    "--temp",
                    "0",
                    "-c",
                    "32",
                    "-t",
                    "1",
                    "--seed",
                    "1",
                    "--device",
                    "emu",
                    "--vram",
                    "1M",
                    "--ram",
                    "4M",
                    "-q",
                    "--device-fallback",
                    NULL};
    int argc = (int)(sizeof argv / sizeof *argv) - (fallback ? 1 : 2);
    cli_settings settings;
    cr_assert_eq(cli_settings_parse(&settings, cli_verb_find("run"), argc, argv), CLI_OK);
    stk_emu_fail_next(STK_EMU_FAIL_LOST, 300, 1, STK_EMU_LAUNCH_FAILURE);
    int rc = cli_run(&settings);
    cr_expect(stk_emu_lost(), "it was not lost in time");
    cli_settings_fini(&settings);
    stk_emu_config config = stk_emu_config_default();
    stk_emu_reset(&config);
    return rc;
}
Test(emu_gpu, the_program_goes_on_without_a_lost_device) { cr_expect_eq(run_and_lose(true), CLI_OK); }
Test(emu_gpu, the_program_ends_with_a_lost_device) { cr_expect_eq(run_and_lose(false), CLI_FAILED); }
