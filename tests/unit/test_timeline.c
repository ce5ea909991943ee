/* timeline: what is kept, and that it adds up to the counters of the run, live and in a replay. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/engine/timeline.h"
#include "tests/temp.h"

#define MODEL STK_TEST_DATA "/tiny/qwen3moe-f32.gguf"

enum { N_STEP = 12, ROOM = 1 << 16 };

static stk_timeline *opened(uint64_t n_max, uint64_t first_step, uint64_t n_step) {
    stk_timeline *t;
    cr_assert_eq(stk_timeline_open(&t, n_max, first_step, n_step), 0, "%s", stk_error_detail());
    return t;
}

Test(timeline, keeps_the_steps_that_are_wanted_and_counts_what_has_no_room) {
    stk_timeline *t = opened(3, 1, 2);
    const stk_work *work;
    uint64_t n_lost;
    stk_timeline_attach(t);
    for (uint64_t step = 0; step < 4; step++) {
        stk_timeline_step(t, 10 + step, 1000 * step);
        for (uint64_t i = 0; i < 2 && stk_timeline_on(t); i++)
            stk_timeline_put(t, (stk_work){.begin_ns = 1000 * step - 500 + 100 * i, .end_ns = 1000 * step + 50});
    }
    cr_assert_eq(stk_timeline_get(t, &work, &n_lost), 3);
    cr_assert_eq(n_lost, 1);
    cr_assert_eq(work[0].begin_ns, 0, "it began before the first step that is wanted");
    cr_assert_eq(work[0].end_ns, 50);
    cr_assert_eq(work[0].step, 11);
    cr_assert_eq(work[2].begin_ns, 500);
    cr_assert_eq(work[2].end_ns, 1050);
    cr_assert_eq(work[2].step, 12);
    stk_timeline_close(&t);
    cr_assert_null(t);
    stk_timeline_close(&t);
}

Test(timeline, leaves_out_what_took_no_time) {
    stk_timeline *t = opened(1, 0, 0);
    const stk_work *work;
    stk_timeline_step(t, 0, 100);
    stk_timeline_put(t, (stk_work){.begin_ns = 50, .end_ns = 100});
    stk_timeline_put(t, (stk_work){.begin_ns = 150, .end_ns = 150});
    cr_assert_eq(stk_timeline_get(t, &work, NULL), 0);
    stk_timeline_close(&t);
}

Test(timeline, kinds_have_names_and_queues) {
    for (uint32_t kind = 0; kind < STK_N_WORK; kind++) {
        cr_assert_neq(stk_work_name(kind)[0], 0);
        bool reads = kind == STK_WORK_READ || kind == STK_WORK_READ_AHEAD;
        cr_assert_str_eq(stk_work_queue(kind), reads ? "nvme" : "cpu");
    }
    cr_assert_null(stk_work_name(STK_N_WORK));
    cr_assert_null(stk_work_queue(STK_N_WORK));
}

Test(timeline, arguments_are_checked) {
    stk_timeline *t;
    const stk_work *work;
    cr_assert_eq(stk_timeline_open(&t, 0, 0, 0), STK_EINVAL);
    cr_assert_eq(stk_timeline_open(&t, UINT64_MAX, 0, 0), STK_EINVAL);
    cr_assert_null(t);
    cr_assert_eq(stk_timeline_get(NULL, &work, NULL), STK_EINVAL);
    cr_assert_eq(stk_engine_set_timeline(NULL, NULL), STK_EINVAL);
}

/* ---- Runs ---------------------------------------------------------------------------------------------------------------- */

/* Time of each kind, and the bytes of all reads. */
typedef struct sums {
    uint64_t ns[STK_N_WORK], read_bytes;
} sums;

static sums add_up(const stk_timeline *t) {
    const stk_work *work;
    uint64_t n_lost, cpu_end = 0;
    int64_t n = stk_timeline_get(t, &work, &n_lost);
    sums s = {0};
    cr_assert_gt(n, 0);
    cr_assert_eq(n_lost, 0);
    for (int64_t i = 0; i < n; i++) {
        const stk_work *w = &work[i];
        bool reads = strcmp(stk_work_queue(w->kind), "nvme") == 0;
        cr_assert_lt(w->begin_ns, w->end_ns);
        cr_assert_eq(w->bytes > 0, reads);
        cr_assert_eq(w->expert != UINT32_MAX, reads);
        cr_assert(w->layer != STK_NO_LAYER || w->kind == STK_WORK_DENSE);
        if (!reads) cr_assert_geq(w->begin_ns, cpu_end, "the CPU does one thing at a time");
        if (!reads) cpu_end = w->end_ns;
        s.ns[w->kind] += w->end_ns - w->begin_ns;
        s.read_bytes += w->bytes;
    }
    return s;
}

static stk_stats run_live(stk_timeline *t, const char *trace) {
    stk_model *model;
    stk_engine *engine;
    stk_engine_options o;
    stk_stats stats = {.struct_bytes = sizeof stats};
    cr_assert_eq(stk_model_open(&model, MODEL), 0, "%s", stk_error_detail());
    stk_model_info info = {.struct_bytes = sizeof info};
    cr_assert_eq(stk_model_get_info(model, &info), 0);
    stk_engine_options_default(&o, sizeof o);
    o.n_ctx = 64;
    o.n_threads = 1;
    o.ram_bytes = 2 * info.ram_bytes_min;
    o.io = "emu:100M,20us";
    o.predictor = "none"; /* whose reads may go on after the last step */
    o.trace = trace;
    cr_assert_eq(stk_engine_open(&engine, model, &o), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_engine_reset_stats(engine), 0);
    cr_assert_eq(stk_engine_set_timeline(engine, t), 0);
    for (int32_t i = 0; i < N_STEP; i++) {
        const int32_t token = i * 37 % 131;
        cr_assert_eq(stk_step(engine, &(stk_batch){.struct_bytes = sizeof(stk_batch), .n = 1, .token = &token}), 0);
    }
    cr_assert_eq(stk_engine_get_stats(engine, &stats), 0);
    cr_assert_eq(stk_engine_set_timeline(engine, NULL), 0);
    cr_assert_eq(stk_step(engine, &(stk_batch){.struct_bytes = sizeof(stk_batch), .n = 1, .token = (const int32_t[]){1}}), 0);
    cr_assert_eq(stk_engine_close(&engine), 0, "%s", stk_error_detail());
    stk_model_close(&model);
    return stats;
}

static void check_close(uint64_t a, uint64_t b, uint64_t most) {
    cr_assert_leq(STK_MAX(a, b) - STK_MIN(a, b), most, "%llu and %llu", (unsigned long long)a, (unsigned long long)b);
}

Test(timeline, adds_up_to_the_counters_of_a_run_and_of_its_replay) {
    char trace[TEMP_PATH];
    temp_file(trace, "timeline");
    stk_timeline *live = opened(ROOM, 0, 0), *modelled = opened(ROOM, 0, 0);
    stk_stats stats = run_live(live, trace);
    sums s = add_up(live);
    cr_assert_eq(s.read_bytes, stats.read_bytes);
    cr_assert_gt(s.read_bytes, 0);
    cr_assert_eq(s.ns[STK_WORK_DENSE], stats.dense_ns);
    cr_assert_eq(s.ns[STK_WORK_EXPERTS], stats.expert_ns);
    cr_assert_leq(s.ns[STK_WORK_PACK], stats.arrive_ns);
    cr_assert_geq(s.ns[STK_WORK_READ], stats.read_bytes * 10, "the drive's bandwidth alone takes that long");

    stk_replay_options o;
    stk_replay_options_default(&o, sizeof o);
    stk_replay_result r = {.struct_bytes = sizeof r};
    o.timeline = modelled;
    cr_assert_eq(stk_replay(trace, &o, &r), STK_EINVAL, "no times were asked for");
    o.io = "emu:100M,20us";
    cr_assert_eq(stk_replay(trace, &o, &r), 0, "%s", stk_error_detail());
    s = add_up(modelled);
    cr_assert_eq(s.read_bytes, r.stats.read_bytes);
    cr_assert_eq(s.ns[STK_WORK_EXPERTS], r.stats.expert_ns);
    cr_assert_eq(s.ns[STK_WORK_DENSE], r.stats.dense_ns);
    /* These are sums of fractions of a ns, of which each interval may have lost or won one. */
    check_close(s.ns[STK_WORK_WAIT], r.stats.wait_ns, 4 * r.stats.n_lookup);
    check_close(s.ns[STK_WORK_PACK], r.stats.arrive_ns, 4 * r.stats.n_lookup);
    stk_timeline_close(&live);
    stk_timeline_close(&modelled);
    unlink(trace);
}
