/* plan_replay: events from a source, plans, the clock. */
#include "plan_replay.h"

#include <stdlib.h>
#include <string.h>

#include "src/device/promote.h"
#include "tally.h"

typedef struct run {
    const stk_plan_replay_config *c;
    stk_tiers tiers;
    stk_promote promote;  /* of modes that look ahead */
    stk_plan_item *items; /* [n_expert] */
    uint32_t *order;      /* [n_expert] of items, to be promoted */
    stk_replay_tiers counts[2];
    stk_replay_tiers *phase; /* of the running step */
    double now_ns, step_ns;  /* the clock; when the step began */
    double free_ns[STK_N_QUEUE];
    uint32_t n_tok; /* of the running step; 0: none */
    uint64_t n_step;
} run;

static void end_step(run *r) {
    if (r->n_tok == 0) return;
    double dense = stk_cost_dense_step_ns(r->c->cost, r->n_tok);
    r->now_ns += dense;
    r->phase->dense_ns += (uint64_t)dense;
    r->phase->n_token += r->n_tok;
    r->phase->step_ns += (uint64_t)(r->now_ns - r->step_ns);
    r->n_tok = 0;
}

static int begin_step(run *r, const stk_trace_step *step) {
    uint64_t done, total;
    end_step(r);
    r->phase = &r->counts[stk_tally_phase(step)];
    r->n_tok = step->n_tok;
    r->step_ns = r->now_ns;
    if (r->n_step++ % 256 || !r->c->progress) return STK_OK;
    stk_source_progress(r->c->source, &done, &total);
    return r->c->progress(r->c->progress_user, "replay", done, total) ? stk_fail(STK_ECANCELED, "the replay was cancelled")
                                                                      : STK_OK;
}

/* Counts an event that was planned. */
static void count(run *r, const stk_event *event, const stk_plan_times *t) {
    stk_replay_tiers *p = r->phase;
    p->n_event++;
    p->n_lookup += event->n_distinct;
    p->event_ns += (uint64_t)t->done_ns;
    p->cpu_ns += (uint64_t)t->busy_ns[STK_QUEUE_CPU];
    p->nvme_ns += (uint64_t)t->busy_ns[STK_QUEUE_NVME];
    p->link_ns += (uint64_t)t->busy_ns[STK_QUEUE_LINK];
    p->gpu_ns += (uint64_t)t->busy_ns[STK_QUEUE_GPU];
    for (uint32_t i = 0; i < event->n_distinct; i++) {
        const stk_plan_item *it = &r->items[i];
        p->n_vram += it->tier >= STK_TIER_COMING_VRAM;
        p->n_ram += it->tier == STK_TIER_RAM;
        p->n_gpu += it->route == STK_ROUTE_GPU;
        p->n_cpu += !stk_route_on_gpu(it->route);
        p->n_fetch += it->route == STK_ROUTE_FETCH || it->route == STK_ROUTE_NVME_GPU;
        p->n_bypass += it->route == STK_ROUTE_BYPASS;
        if (stk_route_by_link(it->route)) p->link_bytes += it->payload_bytes;
        if (it->tier == STK_TIER_NVME) p->read_bytes += it->read_bytes;
    }
}

static uint32_t key_of(const run *r, const stk_event *event, const stk_plan_item *it) {
    return event->layer * r->c->tiers.header->n_expert + event->distinct[it->index];
}

/* Experts whose copy is under way: to be waited for where that is quicker than the CPU, else as if they were in RAM, where their
 * bytes still are. What is waited for goes first over the link. */
static void want_promoted(run *r, const stk_event *event, stk_plan_queues *queues) {
    const stk_cost *cost = r->c->cost;
    stk_promote_event(&r->promote, event->layer);
    for (uint32_t i = 0; i < event->n_distinct; i++) {
        stk_plan_item *it = &r->items[i];
        uint32_t key = key_of(r, event, it);
        double elsewhere = stk_cost_expert_ns(cost, it->payload_bytes, it->n_tok);
        stk_promote_used(&r->promote, key, (double)it->n_tok / event->n_tok, it->tier == STK_TIER_VRAM, elsewhere);
        double left = stk_promote_left(&r->promote, key);
        if (left == 0) continue;
        double until = queues->free_at_ns[STK_QUEUE_LINK] + stk_cost_copy_ns(cost, (uint64_t)left, true);
        it->tier = until < elsewhere ? STK_TIER_COMING_VRAM : STK_TIER_RAM;
        it->ram_copy = false;
        it->may_stay = true;
        if (it->tier == STK_TIER_RAM) continue;
        queues->free_at_ns[STK_QUEUE_LINK] = until;
        it->arrive_ns = until + cost->gpu.link_latency_ns;
        stk_promote_end(&r->promote, key);
    }
}

/* Copies go on where the link has nothing else to do in the event; the CPU then takes longer. */
static void promote_beside(run *r, stk_plan_times *t) {
    const stk_cost *cost = r->c->cost;
    double from = t->free_at_ns[STK_QUEUE_LINK], cpu = t->free_at_ns[STK_QUEUE_CPU], beside = STK_MIN(cpu, t->done_ns) - from;
    if (t->busy_ns[STK_QUEUE_CPU] > 0 && beside > 0) {
        double ran = stk_promote_run(&r->promote, cost->gpu.link_bytes_per_ns_computing, beside);
        double lost = ran * (1 - 1 / cost->gpu.cpu_slowdown);
        t->free_at_ns[STK_QUEUE_CPU] += lost;
        t->busy_ns[STK_QUEUE_CPU] += lost;
        t->busy_ns[STK_QUEUE_LINK] += ran;
        double done = t->free_at_ns[STK_QUEUE_CPU] + cost->gpu.return_ns;
        if (done > t->done_ns) stk_promote_spent(&r->promote, done - t->done_ns);
        t->done_ns = STK_MAX(t->done_ns, done);
        from = STK_MAX(from, cpu);
    }
    if (t->done_ns > from)
        t->busy_ns[STK_QUEUE_LINK] += stk_promote_run(&r->promote, cost->gpu.link_bytes_per_ns, t->done_ns - from);
}

/* Lists what the CPU has computed, by how often it was used lately; forgets the copies of what was fetched meanwhile. */
static uint32_t list_computed(run *r, const stk_event *event) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < event->n_distinct; i++) {
        const stk_plan_item *it = &r->items[i];
        uint32_t key = key_of(r, event, it), at = n;
        if (it->route == STK_ROUTE_FETCH) stk_promote_end(&r->promote, key);
        if (it->route != STK_ROUTE_CPU || !it->may_stay || it->tier != STK_TIER_RAM) continue;
        double rate = stk_promote_rate(&r->promote, key);
        for (; at > 0 && stk_promote_rate(&r->promote, key_of(r, event, &r->items[r->order[at - 1]])) < rate; at--)
            r->order[at] = r->order[at - 1];
        r->order[at] = i;
        n++;
    }
    return n;
}

static int promote_more(run *r, const stk_event *event, double done_ns) {
    const uint32_t n = list_computed(r, event);
    for (uint32_t i = 0; i < n; i++) {
        const stk_plan_item *it = &r->items[r->order[i]];
        uint32_t key = key_of(r, event, it), victim = STK_NO_KEY;
        if (!stk_promote_wanted(&r->promote)) continue;
        int rc = stk_tiers_promote(&r->tiers, r->c->cost, key, r->now_ns, done_ns, &victim);
        if (rc < 0) return rc;
        if (rc) stk_promote_begin(&r->promote, key, victim, it->payload_bytes);
    }
    return STK_OK;
}

/* The dense part of a layer, in which the CPU is idle and the link carries promotions. */
static void pass_dense(run *r) {
    double ns = stk_cost_dense_layer_ns(r->c->cost, r->n_tok);
    r->now_ns += ns;
    r->phase->dense_ns += (uint64_t)ns;
    if (r->c->tiers.mode->ahead) (void)stk_promote_run(&r->promote, r->c->cost->gpu.link_bytes_per_ns, ns);
}

static int take_event(run *r, const stk_event *event) {
    const stk_cost *cost = r->c->cost;
    const bool ahead = r->c->tiers.mode->ahead;
    stk_plan_queues queues;
    stk_plan_times times;
    double done;
    if (r->n_tok == 0) return stk_fail(STK_EFORMAT, "trace: an event outside of a step");
    pass_dense(r);
    STK_TRY(stk_tiers_look(&r->tiers, event, r->items));
    for (int q = 0; q < STK_N_QUEUE; q++) queues.free_at_ns[q] = STK_MAX(0.0, r->free_ns[q] - r->now_ns);
    if (ahead) want_promoted(r, event, &queues);
    STK_TRY(r->c->tiers.mode->make(cost, &queues, event->n_tok, r->items, event->n_distinct, &done));
    stk_plan_price(cost, &queues, r->items, event->n_distinct, &times);
    if (r->c->on_event) STK_TRY(r->c->on_event(r->c->user, event, &queues, r->items, &times));
    if (ahead) promote_beside(r, &times);
    STK_TRY(stk_tiers_settle(&r->tiers, cost, event, r->items, r->now_ns, times.done_ns));
    if (ahead) STK_TRY(promote_more(r, event, times.done_ns));
    count(r, event, &times);
    for (int q = 0; q < STK_N_QUEUE; q++) r->free_ns[q] = r->now_ns + times.free_at_ns[q];
    r->now_ns += times.done_ns;
    return STK_OK;
}

static int run_all(run *r) {
    stk_trace_record record;
    int rc;
    while ((rc = stk_source_read(r->c->source, &record)) == 1) {
        if (record.kind == STK_TRACE_STEP) rc = begin_step(r, &record.step);
        if (record.kind == STK_TRACE_EVENT) rc = take_event(r, &record.event);
        if (record.kind == STK_TRACE_ABORT) r->n_tok = 0;
        if (rc < 0) return rc;
    }
    end_step(r);
    return rc;
}

int stk_plan_replay(const stk_plan_replay_config *config, stk_plan_replay_result *result) {
    run r = {.c = config, .phase = r.counts};
    if (!stk_cost_has_gpu(config->cost)) return stk_fail(STK_EINVAL, "the cost table has no GPU: name one that has (--cost)");
    const stk_trace_header *h = config->tiers.header;
    STK_TRY(stk_tiers_open(&r.tiers, &config->tiers));
    int rc = stk_promote_open(&r.promote, h->n_layer, h->n_expert);
    r.items = calloc(h->n_expert, sizeof *r.items);
    r.order = calloc(h->n_expert, sizeof *r.order);
    for (uint32_t key = 0; rc >= 0 && key < h->n_layer * h->n_expert; key++)
        if (stk_tiers_in_vram(&r.tiers, key)) stk_promote_first(&r.promote, key);
    if (rc >= 0) rc = r.items && r.order ? run_all(&r) : stk_fail(STK_ENOMEM, "out of memory for the replay");
    for (int i = 0; i < 2; i++) r.counts[i].struct_bytes = sizeof r.counts[i];
    *result = (stk_plan_replay_result){.prefill = r.counts[STK_PREFILL],
                                       .decode = r.counts[STK_DECODE],
                                       .n_step = r.n_step,
                                       .virtual_ns = (uint64_t)r.now_ns,
                                       .vram_bytes = r.tiers.vram_slot_bytes,
                                       .ram_bytes = r.tiers.ram_slot_bytes};
    free(r.items);
    free(r.order);
    stk_promote_close(&r.promote);
    stk_tiers_close(&r.tiers);
    return rc;
}

int stk_plan_profile(stk_source *source, uint64_t *uses) {
    const uint32_t n_expert = stk_source_header(source)->n_expert;
    stk_trace_record record;
    int rc;
    while ((rc = stk_source_read(source, &record)) == 1) {
        const stk_event *e = &record.event;
        for (uint32_t i = 0; record.kind == STK_TRACE_EVENT && i < e->n_distinct; i++)
            uses[(size_t)e->layer * n_expert + e->distinct[i]] += e->counts[i];
    }
    return rc;
}
