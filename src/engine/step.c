/* step: the loop over layers. */
#include "step.h"

#include <stdio.h>

/* A trace that cannot be written ends the step: a run that was to be recorded is worth nothing without its record. */
static int record(stk_stepper *s, const stk_trace_record *r) {
    if (!s->trace) return STK_OK;
    uint64_t start = s->ops->now_ns(s->stage);
    int rc = stk_trace_write(s->trace, r);
    s->trace_ns += s->ops->now_ns(s->stage) - start;
    return rc;
}

/* Lost experts leave the cache at this event, on record. */
static int drop_lost(stk_stepper *s, const uint32_t *lost, uint32_t n_lost) {
    int rc = STK_OK;
    for (uint32_t i = 0; i < n_lost; i++) {
        int failed = stk_cache_drop(s->cache, lost[i]);
        if (failed >= 0) failed = record(s, &(stk_trace_record){.kind = STK_TRACE_DROP, .drop_key = lost[i]});
        if (failed < 0 && rc >= 0) rc = failed;
    }
    return rc;
}

/* 1: the cache has taken the expert in; 0: it has not. */
static int read_one_ahead(stk_stepper *s, uint32_t i, uint32_t key, int *rc) {
    stk_decision d;
    uint32_t victim;
    int taken = stk_cache_would_leave(s->cache, key, &victim);
    if (taken > 0) taken = s->ops->may_evict(s->stage, i, victim);
    if (taken > 0) taken = stk_cache_prefetch(s->cache, key, &d);
    if (taken <= 0) {
        *rc = taken;
        return 0;
    }
    if (s->tally) stk_tally_prefetch(s->tally, &d);
    *rc = stk_executor_prefetch(s->executor, &d);
    return 1;
}

/* Reads ahead of later events, while the drive is on this one's misses. What the cache has taken in is on record also where the
 * rest fails. */
static int read_ahead(stk_stepper *s, const stk_event *event) {
    stk_ahead *list;
    stk_gain_now now;
    stk_executor_get_now(s->executor, &now);
    int rc = STK_OK, n = s->ops->ahead(s->stage, event, &now, &list);
    if (n <= 0) return n;
    for (int i = 0; i < n; i++)
        if (list[i].issue)
            list[i].issue = rc >= 0 && !stk_vram_has(s->vram, list[i].key) && read_one_ahead(s, (uint32_t)i, list[i].key, &rc);
    STK_TRY(record(s, &(stk_trace_record){.kind = STK_TRACE_AHEAD, .ahead = {(uint32_t)n, list}}));
    return rc;
}

/* An event on its way through the tiers. */
typedef struct passage {
    const stk_event *event;
    stk_event rest;           /* without what is in VRAM */
    const stk_decision *list; /* [n] of the rest, without what is fetched */
    uint32_t n;
    const stk_placed *placed; /* [n_placed] */
    uint32_t n_placed;
    bool before_reads; /* reads go into slots that fetches come from */
} passage;

static int decide(stk_stepper *s, passage *p) {
    int n = stk_cache_event(s->cache, p->rest.layer, &p->rest, &p->list);
    if (n < 0) return n;
    if (s->tally) stk_tally_event(s->tally, p->rest.layer, p->list, (uint32_t)n);
    p->n = s->vram ? stk_vram_split(s->vram, p->list, (uint32_t)n, &p->list, &p->before_reads) : (uint32_t)n;
    return STK_OK;
}

/* What is to be read begins first, then the device, then what is read ahead. */
static int begin(stk_stepper *s, const passage *p) {
    uint32_t layer = p->event->layer;
    if (p->before_reads) STK_TRY(stk_vram_launch(s->vram, layer, p->event, true));
    STK_TRY(stk_executor_begin(s->executor, layer, p->event, p->list, p->n));
    return s->vram && !p->before_reads ? stk_vram_launch(s->vram, layer, p->event, false) : STK_OK;
}

/* The event is on record whatever becomes of its reads, since the cache has decided it. */
static int carry_out(stk_stepper *s, const passage *p) {
    int rc = begin(s, p);
    STK_TRY(record(s, &(stk_trace_record){.kind = STK_TRACE_EVENT, .event = *p->event}));
    if (p->n_placed) STK_TRY(record(s, &(stk_trace_record){.kind = STK_TRACE_PLACE, .place = {p->n_placed, p->placed}}));
    STK_TRY(rc);
    STK_TRY(read_ahead(s, p->event));
    return stk_executor_finish(s->executor, s->cancel);
}

/* rc, or the first failure of ending the device's part. */
static int end_tier(stk_stepper *s, int rc) {
    const uint8_t *moved;
    uint32_t n_moved;
    char why[512] = "";
    if (rc < 0) snprintf(why, sizeof why, "%s", stk_error_detail());
    int ended = stk_vram_end(s->vram, &moved, &n_moved);
    if (ended >= 0 && n_moved) ended = record(s, &(stk_trace_record){.kind = STK_TRACE_MOVED, .moved = {n_moved, moved}});
    return rc < 0 ? stk_fail(rc, "%s", why) : ended;
}

static int give_up(stk_stepper *s, int rc) {
    char why[512];
    snprintf(why, sizeof why, "%s", stk_error_detail());
    const uint32_t *lost;
    uint32_t n_lost;
    stk_executor_give_up(s->executor, &lost, &n_lost);
    int failed = drop_lost(s, lost, n_lost);
    return failed < 0 ? failed : stk_fail(rc, "%s", why);
}

/* The dense part of a layer, or what is outside of layers. */
static void note_dense(stk_stepper *s, uint32_t layer, uint64_t begin_ns, uint64_t end_ns) {
    if (!stk_timeline_on(s->timeline)) return;
    stk_timeline_put(s->timeline, (stk_work){begin_ns, end_ns, .kind = STK_WORK_DENSE, .layer = layer, .expert = UINT32_MAX});
}

static int run_event(stk_stepper *s, const stk_event *event) {
    passage p = {.event = event, .rest = *event};
    if (s->vram) STK_TRY(stk_vram_begin(s->vram, event->layer, event, &p.rest, &p.placed, &p.n_placed));
    int rc = decide(s, &p);
    bool decided = rc >= 0;
    if (decided) rc = carry_out(s, &p);
    if (s->vram) rc = end_tier(s, rc);
    return rc < 0 && decided ? give_up(s, rc) : rc;
}

static int run_layer(stk_stepper *s, const stk_trace_step *step, uint32_t layer) {
    if (atomic_load_explicit(s->cancel, memory_order_relaxed)) return stk_fail(STK_ECANCELED, "the step was cancelled");
    uint64_t start = s->ops->now_ns(s->stage);
    stk_event event = {.step = step->step, .seq = step->seq, .pos = step->pos, .token = step->token};
    int moe = s->ops->route(s->stage, layer, &event);
    if (moe < 0) return moe;
    uint64_t dense = s->ops->now_ns(s->stage) - start;
    note_dense(s, moe ? event.layer : STK_NO_LAYER, start, start + dense);
    if (moe) {
        STK_TRY(run_event(s, &event));
        start = s->ops->now_ns(s->stage);
        STK_TRY(s->ops->combine(s->stage, layer));
        uint64_t combined = s->ops->now_ns(s->stage) - start;
        note_dense(s, event.layer, start, start + combined);
        dense += combined;
    }
    s->dense_ns += dense;
    if (s->cost) stk_cost_learn_dense_layer(s->cost, step->n_tok, (double)dense);
    return STK_OK;
}

static int run_layers(stk_stepper *s, const stk_trace_step *step) {
    uint64_t start = s->ops->now_ns(s->stage);
    STK_TRY(s->ops->begin(s->stage, step));
    uint64_t dense = s->ops->now_ns(s->stage) - start;
    note_dense(s, STK_NO_LAYER, start, start + dense);
    for (uint32_t layer = 0; layer < s->n_layer; layer++) STK_TRY(run_layer(s, step, layer));
    start = s->ops->now_ns(s->stage);
    STK_TRY(s->ops->finish(s->stage));
    uint64_t finished = s->ops->now_ns(s->stage) - start;
    note_dense(s, STK_NO_LAYER, start, start + finished);
    dense += finished;
    s->dense_ns += dense;
    if (s->cost) stk_cost_learn_dense_step(s->cost, step->n_tok, (double)dense);
    return STK_OK;
}

int stk_stepper_run(stk_stepper *s, const stk_trace_step *step) {
    uint64_t start = s->ops->now_ns(s->stage);
    s->n_step++;
    if (s->timeline) stk_timeline_step(s->timeline, step->step, start);
    STK_TRY(record(s, &(stk_trace_record){.kind = STK_TRACE_STEP, .step = *step}));
    int rc = run_layers(s, step);
    s->step_ns += s->ops->now_ns(s->stage) - start;
    if (rc >= 0) {
        s->n_token += step->n_tok;
        return rc;
    }
    int failed = record(s, &(stk_trace_record){.kind = STK_TRACE_ABORT, .abort_step = step->step});
    return failed < 0 ? failed : rc;
}

/* A lookup that finds its expert in VRAM is a hit; RAM's cache never hears of it. */
static void count_tier(const stk_stepper *s, stk_stats *out) {
    stk_vram_counters t;
    stk_vram_get_counters(s->vram, &t);
    out->n_lookup += t.n_hit;
    out->n_hit += t.n_hit;
    out->n_pair += t.n_pair;
    out->n_vram_hit = t.n_hit;
    out->n_fetch = t.n_fetch;
    out->n_fetch_failed = t.n_fetch_failed;
    out->n_return = t.n_return;
    out->n_host = t.n_host;
}

void stk_stepper_count(const stk_stepper *s, stk_stats *out) {
    stk_cache_counters c;
    stk_executor_stats x;
    stk_cache_get_counters(s->cache, &c);
    stk_executor_get_stats(s->executor, &x);
    *out = (stk_stats){.struct_bytes = sizeof *out,
                       .n_step = s->n_step,
                       .n_token = s->n_token,
                       .n_event = c.n_event,
                       .n_lookup = c.n_lookup,
                       .n_pair = c.n_pair,
                       .n_hit = c.n_hit,
                       .n_miss = c.n_miss,
                       .n_evict = c.n_evict,
                       .n_wave = c.n_wave,
                       .n_prefetch = c.n_prefetch,
                       .n_prefetch_used = c.n_prefetch_used,
                       .bytes = x.bytes,
                       .read_bytes = x.read_bytes,
                       .step_ns = s->step_ns,
                       .dense_ns = s->dense_ns,
                       .expert_ns = x.expert_ns,
                       .arrive_ns = x.arrive_ns,
                       .wait_ns = x.wait_ns,
                       .trace_ns = s->trace_ns};
    if (s->vram) count_tier(s, out);
}
