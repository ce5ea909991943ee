/* replay: a recorded run comes out the same decision for decision, whatever happened in it; other budgets and drives give other
 * figures. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/stoker.h"
#include "tests/temp.h"

#define MODEL STK_TEST_DATA "/tiny/qwen3moe-f32.gguf"

typedef struct live {
    stk_model *model;
    stk_engine *engine;
    stk_stats stats; /* at the end */
    uint64_t ram_bytes_min;
    char trace[TEMP_PATH];
} live;

static live start(uint64_t ram_bytes, const char *io) {
    live r = {.stats = {.struct_bytes = sizeof r.stats}};
    temp_file(r.trace, "stoker-replay");
    cr_assert_eq(stk_model_open(&r.model, MODEL), 0, "%s", stk_error_detail());
    stk_engine_options o;
    stk_engine_options_default(&o, sizeof o);
    o.n_ctx = 128;
    o.n_seq_max = 2;
    o.n_threads = 2;
    o.ram_bytes = ram_bytes;
    o.io = io;
    o.trace = r.trace;
    cr_assert_eq(stk_engine_open(&r.engine, r.model, &o), 0, "%s", stk_error_detail());
    stk_memory_info m = {.struct_bytes = sizeof m};
    cr_assert_eq(stk_engine_get_memory(r.engine, &m), 0);
    r.ram_bytes_min = m.ram_bytes_min;
    return r;
}

static int step(live *r, uint32_t n, int32_t seq) {
    int32_t token[32], seqs[32];
    int64_t from = stk_seq_length(r->engine, seq);
    for (uint32_t i = 0; i < n; i++) {
        token[i] = (int32_t)((from + i) * 37 + 11 * seq) % 131;
        seqs[i] = seq;
    }
    return stk_step(r->engine, &(stk_batch){.struct_bytes = sizeof(stk_batch), .n = n, .token = token, .seq = seqs});
}

static void end(live *r) {
    cr_assert_eq(stk_engine_get_stats(r->engine, &r->stats), 0);
    cr_assert_eq(stk_engine_close(&r->engine), 0, "%s", stk_error_detail());
    stk_model_close(&r->model);
}

static stk_replay_result replay(const live *r, stk_replay_options o) {
    stk_replay_result result = {.struct_bytes = sizeof result};
    o.struct_bytes = sizeof o;
    cr_assert_eq(stk_replay(r->trace, &o, &result), 0, "%s", stk_error_detail());
    return result;
}

static void check_verified(const live *r) {
    stk_replay_result v = replay(r, (stk_replay_options){.verify = 1});
    cr_assert_eq(v.complete, 1);
    cr_assert_eq(v.stats.n_hit, r->stats.n_hit);
    cr_assert_eq(v.stats.n_miss, r->stats.n_miss);
    cr_assert_eq(v.stats.n_evict, r->stats.n_evict);
    cr_assert_eq(v.stats.n_wave, r->stats.n_wave);
    cr_assert_eq(v.stats.bytes, r->stats.bytes);
    cr_assert_eq(v.stats.read_bytes, r->stats.read_bytes);
    cr_assert_eq(v.stats.n_token, r->stats.n_token);
}

static uint64_t least(void) {
    live r = start(0, NULL);
    end(&r);
    unlink(r.trace);
    return r.ram_bytes_min;
}

Test(replay, verifies_a_run_of_several_sequences) {
    live r = start(least(), NULL);
    for (int i = 0; i < 6; i++) cr_assert_eq(step(&r, i % 2 ? 1 : 9, i % 2), 0, "%s", stk_error_detail());
    end(&r);
    cr_assert_gt(r.stats.n_evict, 0);
    check_verified(&r);
    unlink(r.trace);
}

Test(replay, verifies_a_run_with_failed_reads) {
    uint64_t ram = least();
    int failed = 0;
    for (int at = 60; at < 200; at += 20) {
        char io[64];
        snprintf(io, sizeof io, "emu:4G,10us,reorder,eio=%d", at);
        live r = start(ram, io);
        for (int i = 0; i < 8; i++) failed += step(&r, 3, 0) == STK_EIO;
        end(&r);
        check_verified(&r);
        unlink(r.trace);
    }
    cr_assert_gt(failed, 0);
}

Test(replay, verifies_a_run_with_a_cancelled_step_and_a_cold_start) {
    live r = start(least() * 2, NULL);
    cr_assert_eq(step(&r, 5, 0), 0);
    stk_cancel(r.engine);
    cr_assert_eq(step(&r, 5, 0), STK_ECANCELED);
    cr_assert_eq(step(&r, 5, 0), 0);
    cr_assert_eq(stk_engine_drop_experts(r.engine), 0);
    cr_assert_eq(step(&r, 5, 0), 0);
    end(&r);
    check_verified(&r);
    unlink(r.trace);
}

/* Single tokens, so that the next layer's experts are read ahead, on a drive that is slow enough for them to be on their way when
 * a step is cancelled, a read fails, or everything is dropped. */
Test(replay, verifies_a_run_that_reads_ahead) {
    uint64_t ram = least(), n_prefetch = 0;
    for (int at = 0; at < 400; at += 50) {
        char io[64];
        snprintf(io, sizeof io, "emu:20M,100us,reorder,eio=%d", at ? 60 + at : 0);
        live r = start(ram * 2, at ? io : "emu:20M,100us");
        for (int i = 0; i < 30; i++) {
            int rc = step(&r, 1, 0);
            cr_assert(rc == 0 || (at && rc == STK_EIO), "%s", stk_error_detail());
            if (i % 10 == 4) stk_cancel(r.engine);
            if (i % 10 == 4) cr_assert_eq(step(&r, 1, 0), STK_ECANCELED);
            if (i == 12) cr_assert_eq(stk_engine_drop_experts(r.engine), 0);
        }
        end(&r);
        check_verified(&r);
        stk_replay_result plain = replay(&r, (stk_replay_options){0}),
                          timed = replay(&r, (stk_replay_options){.io = "emu:20M,100us"});
        cr_assert(plain.stats.bytes == timed.stats.bytes && plain.stats.n_prefetch == timed.stats.n_prefetch);
        cr_assert(plain.stats.n_miss == timed.stats.n_miss && plain.stats.n_evict == timed.stats.n_evict);
        n_prefetch += r.stats.n_prefetch;
        unlink(r.trace);
    }
    cr_assert_gt(n_prefetch, 50);
}

Test(replay, counters_that_were_reset_do_not_matter) {
    live r = start(least(), NULL);
    cr_assert_eq(step(&r, 5, 0), 0);
    cr_assert_eq(stk_engine_reset_stats(r.engine), 0);
    cr_assert_eq(step(&r, 5, 0), 0);
    end(&r);
    stk_replay_result v = replay(&r, (stk_replay_options){.verify = 1});
    cr_assert_gt(v.stats.n_lookup, r.stats.n_lookup);
    unlink(r.trace);
}

Test(replay, more_memory_misses_less_and_a_faster_drive_takes_less_time) {
    live r = start(least(), NULL);
    for (int i = 0; i < 10; i++) cr_assert_eq(step(&r, 4, 0), 0);
    end(&r);
    stk_replay_result own = replay(&r, (stk_replay_options){0}), all = replay(&r, (stk_replay_options){.ram_bytes = 1u << 30});
    cr_assert_eq(own.stats.n_miss, r.stats.n_miss);
    cr_assert_eq(own.virtual_ns, 0);
    cr_assert_lt(all.stats.n_miss, own.stats.n_miss);
    cr_assert_eq(all.stats.n_evict, 0);
    stk_replay_result slow = replay(&r, (stk_replay_options){.io = "emu:50M,1ms"}),
                      fast = replay(&r, (stk_replay_options){.io = "emu:5G,10us"});
    cr_assert_gt(slow.virtual_ns, fast.virtual_ns);
    cr_assert_geq(slow.virtual_ns, (uint64_t)((double)slow.stats.read_bytes / 0.05),
                  "no less than the drive needs for the bytes");
    cr_assert_eq(slow.stats.n_miss, own.stats.n_miss, "decisions do not depend on time");
    cr_assert_gt(slow.stats.wait_ns, 0);
    unlink(r.trace);
}

Test(replay, a_cut_trace_is_replayed_up_to_the_cut_and_cannot_be_verified) {
    live r = start(least(), NULL);
    for (int i = 0; i < 10; i++) cr_assert_eq(step(&r, 4, 0), 0);
    end(&r);
    FILE *f = fopen(r.trace, "r+");
    fseek(f, 0, SEEK_END);
    cr_assert_eq(ftruncate(fileno(f), ftell(f) - 10), 0);
    fclose(f);
    stk_replay_result result = {.struct_bytes = sizeof result};
    cr_assert_eq(stk_replay(r.trace, NULL, &result), 0, "%s", stk_error_detail());
    cr_assert_eq(result.complete, 0);
    stk_replay_options o;
    stk_replay_options_default(&o, sizeof o);
    o.verify = 1;
    cr_assert_eq(stk_replay(r.trace, &o, &result), STK_ESTATE);
    unlink(r.trace);
}

Test(replay, options_are_checked) {
    live r = start(0, NULL);
    cr_assert_eq(step(&r, 4, 0), 0);
    end(&r);
    stk_replay_result result = {.struct_bytes = sizeof result};
    stk_replay_options o;
    stk_replay_options_default(&o, sizeof o);
    o.verify = 1;
    o.ram_bytes = 1 << 20;
    cr_assert_eq(stk_replay(r.trace, &o, &result), STK_EINVAL);
    stk_replay_options_default(&o, sizeof o);
    o.io = "uring";
    cr_assert_eq(stk_replay(r.trace, &o, &result), STK_EINVAL);
    o.io = NULL;
    o.policy = "oracle";
    cr_assert_eq(stk_replay(r.trace, &o, &result), STK_EINVAL);
    o.policy = NULL;
    o.ram_bytes = 1;
    cr_assert_eq(stk_replay(r.trace, &o, &result), STK_EBUDGET);
    cr_assert_eq(stk_replay("/nonexistent/trace", NULL, &result), STK_EIO);
    unlink(r.trace);
}
