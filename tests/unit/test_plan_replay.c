/*
 * plan_replay, tiers: the sample traces on the shipped machines, through the public API: what lies where, that every lookup is
 * accounted for, that budgets and modes act, and that hybrid is near the optimum of its own events.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "src/plan/cost_file.h"
#include "src/replay/plan_replay.h"
#include "tests/plan_optimum.h"

static const char *const trace = STK_SAMPLES "/qwen.route.csv.zst";

static stk_replay_options options(const char *mode, uint64_t vram, uint64_t ram) {
    stk_replay_options o;
    o.struct_bytes = sizeof o;
    stk_replay_options_default(&o, sizeof o);
    o.cost = "4090";
    o.mode = mode;
    o.vram_bytes = vram;
    o.ram_bytes = ram;
    return o;
}

static stk_replay_detail run(stk_replay_options o) {
    stk_replay_detail d = {.struct_bytes = sizeof d};
    stk_replay_result r = {.struct_bytes = sizeof r};
    o.detail = &d;
    cr_assert_eq(stk_replay(trace, &o, &r), 0, "%s", stk_error_detail());
    cr_assert_eq(r.stats.n_token, d.tiers_prefill.n_token + d.tiers_decode.n_token);
    cr_assert_eq(r.complete, 1);
    return d;
}

static double speed(const stk_replay_tiers *t) { return (double)t->n_token * 1e9 / (double)t->step_ns; }

static const uint64_t GiB = (uint64_t)1 << 30;

Test(plan_replay, every_lookup_is_somewhere_and_computed_once) {
    for (uint32_t i = 0; stk_mode_names()[i]; i++) {
        stk_replay_options o = options(stk_mode_names()[i], 4 * GiB, 6 * GiB);
        o.uses_from = trace;
        stk_replay_detail d = run(o);
        const stk_replay_tiers *phases[] = {&d.tiers_prefill, &d.tiers_decode};
        for (int p = 0; p < 2; p++) {
            const stk_replay_tiers *t = phases[p];
            cr_assert_eq(t->n_gpu + t->n_fetch + t->n_bypass + t->n_cpu, t->n_lookup, "%s", stk_mode_names()[i]);
            cr_assert_leq(t->n_vram + t->n_ram, t->n_lookup);
            cr_assert_eq(t->dense_ns + t->event_ns > t->step_ns * 0.999, true);
            cr_assert_eq(t->read_bytes > 0, t->n_vram + t->n_ram < t->n_lookup);
        }
        cr_assert_leq(d.vram_bytes, 4 * GiB);
        cr_assert_geq(d.vram_bytes, 3 * GiB);
        cr_assert_eq(d.tiers_decode.n_token, 128);
    }
}

Test(plan_replay, memory_helps_and_hybrid_leads) {
    stk_replay_detail little = run(options("hybrid", 4 * GiB, 0)), much = run(options("hybrid", 12 * GiB, 0)),
                      all = run(options("hybrid", 32 * GiB, 0)), short_ = run(options("hybrid", 4 * GiB, 4 * GiB));
    cr_assert_gt(speed(&much.tiers_decode), speed(&little.tiers_decode));
    cr_assert_lt(speed(&short_.tiers_decode), speed(&little.tiers_decode), "what is read takes time");
    cr_assert_eq(little.tiers_decode.read_bytes, 0);
    cr_assert_eq(all.tiers_decode.n_vram, all.tiers_decode.n_lookup);
    cr_assert_eq(all.tiers_decode.n_cpu, 0, "the GPU is quicker");
    const char *others[] = {"static", "lru-upload", "kt", "hybrimoe"};
    for (size_t i = 0; i < STK_ARRAY_LEN(others); i++) {
        stk_replay_detail d = run(options(others[i], 4 * GiB, 0));
        cr_assert_geq(speed(&little.tiers_decode), 0.98 * speed(&d.tiers_decode), "%s", others[i]);
        cr_assert_geq(speed(&little.tiers_prefill), 0.98 * speed(&d.tiers_prefill), "%s", others[i]);
    }
}

Test(plan_replay, the_same_again) {
    stk_replay_detail a = run(options("hybrid", 4 * GiB, 8 * GiB)), b = run(options("hybrid", 4 * GiB, 8 * GiB));
    cr_assert_eq(memcmp(&a.tiers_decode, &b.tiers_decode, sizeof a.tiers_decode), 0);
}

Test(plan_replay, what_makes_no_sense_is_refused) {
    stk_replay_result r = {.struct_bytes = sizeof r};
    stk_replay_options o = options("best", GiB, 0);
    cr_assert_eq(stk_replay(trace, &o, &r), STK_EINVAL);
    o = options("kt-profiled", GiB, 0);
    cr_assert_eq(stk_replay(trace, &o, &r), STK_EINVAL);
    cr_assert_not_null(strstr(stk_error_detail(), "--uses-from"));
    o = options("hybrid", GiB, 0);
    o.cost = "ddr5";
    cr_assert_eq(stk_replay(trace, &o, &r), STK_EINVAL);
    cr_assert_not_null(strstr(stk_error_detail(), "no GPU"));
    o.cost = NULL;
    cr_assert_eq(stk_replay(trace, &o, &r), STK_EINVAL);
    o = options("hybrid", GiB, 0);
    o.uses_from = STK_SAMPLES "/gptoss.route.csv.zst";
    cr_assert_eq(stk_replay(trace, &o, &r), STK_EINVAL);
    o = options("hybrid", 1 << 20, 0);
    cr_assert_eq(stk_replay(trace, &o, &r), STK_EBUDGET);
    o = options("hybrid", GiB, 1 << 20);
    cr_assert_eq(stk_replay(trace, &o, &r), STK_EBUDGET);
}

typedef struct ratios {
    const stk_cost *cost;
    double sum, most;
    uint32_t n;
} ratios;

static int on_event(void *user, const stk_event *event, const stk_plan_queues *queues, const stk_plan_item *items,
                    const stk_plan_times *times) {
    ratios *r = user;
    bool exact;
    double best = po_optimum(r->cost, queues, items, event->n_distinct, &exact);
    if (best <= 0) return STK_OK;
    r->sum += times->done_ns / best;
    r->n++;
    if (exact) r->most = STK_MAX(r->most, times->done_ns / best);
    return STK_OK;
}

/* Recorded events on both machines, over a drive too. */
Test(plan_replay, hybrid_is_near_the_optimum_of_its_events) {
    static stk_cost_file file;
    const char *tables[] = {"4090", "3060"};
    for (int i = 0; i < 4; i++) {
        stk_cost cost;
        stk_source *source;
        stk_plan_replay_result got;
        cr_assert_eq(stk_cost_file_load(tables[i % 2], &file), 0);
        cr_assert_eq(stk_cost_file_table_gpu(&file, NULL, &cost), 0);
        cr_assert_eq(stk_source_open(&source, &trace, 1, NULL), 0);
        ratios r = {.cost = &cost};
        stk_plan_replay_config c = {
            .source = source,
            .cost = &cost,
            .tiers = {.header = stk_source_header(source), .mode = stk_mode_find("hybrid"), .vram_bytes = 4 * GiB},
            .on_event = on_event,
            .user = &r};
        if (i > 1) c.tiers.ram_bytes = 6 * GiB;
        cr_assert_eq(stk_plan_replay(&c, &got), 0, "%s", stk_error_detail());
        cr_assert_geq(r.n, 6000u);
        cr_assert_leq(r.sum / r.n, 1.03, "%s: mean %.4f", tables[i % 2], r.sum / r.n);
        cr_assert_leq(r.most, 1.15, "%s: at most %.4f", tables[i % 2], r.most);
        stk_source_close(&source);
    }
}
