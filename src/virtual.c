/* virtual: modelled queues, the virtual clock, events from a trace. */
#include "virtual.h"

#include <stdlib.h>
#include <string.h>

#include "experts/catalogue.h"

/* Gate, up and down, as stk_part numbers them. */
enum { N_PHASED_PART = STK_N_PART, UP_PARTS = 1 << STK_GATE | 1 << STK_UP };

int stk_virtual_open(stk_virtual *v, stk_source *source, stk_cache *cache, stk_tally *tally) {
    memset(v, 0, sizeof *v);
    v->source = source;
    v->header = stk_source_header(source);
    v->cache = cache;
    v->tally = tally;
    stk_cost_default(&v->cost);
    size_t n_key = (size_t)v->header->n_layer * v->header->n_expert;
    v->reads = calloc(n_key * v->header->n_part, sizeof *v->reads);
    v->flights = calloc(n_key, sizeof *v->flights);
    v->arrivals = calloc(v->header->n_expert, 2 * sizeof *v->arrivals);
    v->ahead = calloc((size_t)STK_TRACE_AHEAD_MAX * v->header->n_expert, sizeof *v->ahead);
    if (v->reads && v->flights && v->arrivals && v->ahead) return STK_OK;
    return stk_fail(STK_ENOMEM, "out of memory for the replay");
}

void stk_virtual_close(stk_virtual *v) {
    free(v->reads);
    free(v->flights);
    free(v->arrivals);
    free(v->ahead);
    v->reads = NULL;
    v->flights = NULL;
    v->arrivals = NULL;
    v->ahead = NULL;
}

static bool is_tiers(const stk_trace_record *r) { return r->kind == STK_TRACE_PLACE || r->kind == STK_TRACE_MOVED; }

int stk_virtual_peek(stk_virtual *v, const stk_trace_record **record) {
    while (!v->ended && (!v->have || (is_tiers(&v->record) && !v->tiered))) {
        int rc = stk_source_read(v->source, &v->record);
        if (rc < 0) return rc;
        v->have = rc == 1;
        v->ended = rc == 0;
    }
    *record = &v->record;
    return v->have;
}

void stk_virtual_take(stk_virtual *v) { v->have = false; }

/* ---- World ---- */

static uint64_t now_ns(void *world) { return (uint64_t)((stk_virtual *)world)->now_ns; }

static const stk_trace_extent *extents_of(const stk_virtual *v, uint32_t layer, uint32_t expert) {
    const stk_trace_header *h = v->header;
    return h->extents + ((size_t)layer * h->n_expert + expert) * h->n_part;
}

static void sizes(void *world, uint32_t layer, uint32_t expert, uint64_t *payload_bytes, uint64_t *read_bytes) {
    const stk_virtual *v = world;
    const stk_trace_extent *x = extents_of(v, layer, expert);
    *payload_bytes = v->header->classes[v->header->layer_class[layer]].payload_bytes;
    *read_bytes = 0;
    for (uint32_t p = 0; p < v->header->n_part; p++) *read_bytes += x[p].bytes;
}

/* Lets the drive begin the prefetches that it reaches before `until`: one is never stopped once begun, and waits for all demand
 * before. */
static void begin_waiting(stk_virtual *v, uint64_t until) {
    for (uint32_t i = 0; i < v->n_read && v->drive.free_at_ns <= until; i++) {
        stk_virtual_read *r = &v->reads[i];
        if (!r->waiting) continue;
        uint64_t from = STK_MAX(r->done_ns, v->drive.free_at_ns); /* until it begins, done_ns is when it was asked for */
        r->done_ns = stk_drive_submit(&v->drive, from, r->bytes);
        r->waiting = false;
    }
}

void stk_virtual_forget(stk_virtual *v, uint32_t key) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < v->n_read; i++)
        if (v->reads[i].key != key) v->reads[kept++] = v->reads[i];
    v->n_read = kept;
    v->flights[key].n_missing = 0;
}

static void submit(stk_virtual *v, uint32_t layer, const stk_decision *d, uint32_t index, bool demand) {
    const stk_trace_extent *x = extents_of(v, layer, d->expert);
    uint64_t now = (uint64_t)v->now_ns;
    if (d->victim != STK_NO_KEY && v->flights[d->victim].n_missing) stk_virtual_forget(v, d->victim);
    begin_waiting(v, now);
    v->flights[d->key] = (stk_virtual_flight){.n_missing = v->header->n_part, .up_missing = UP_PARTS, .index = index};
    for (uint32_t p = 0; p < v->header->n_part; p++) {
        stk_virtual_read r = {now, v->n_submitted++, x[p].bytes, d->key, p, v->timed && !demand};
        if (v->timed && demand) r.done_ns = stk_drive_submit(&v->drive, now, x[p].bytes);
        v->reads[v->n_read++] = r;
    }
}

static int start_read(void *world, uint32_t layer, const stk_decision *d, uint32_t index) {
    submit(world, layer, d, index, true);
    return STK_OK;
}

static int prefetch(void *world, uint32_t layer, const stk_decision *d) {
    submit(world, layer, d, UINT32_MAX, false);
    return STK_OK;
}

/* Whether gate and up are there; a trace of another number of parts has no halves. */
static bool has_up(const stk_virtual *v, const stk_virtual_flight *f) {
    return v->header->n_part == N_PHASED_PART && !f->up_missing;
}

static void arrive(stk_virtual *v, stk_virtual_flight *f) {
    uint8_t phases = f->n_missing == 0 ? STK_PHASE_ALL : has_up(v, f) ? STK_PHASE_UP : 0;
    if (phases == f->told) return;
    f->told = phases;
    v->arrivals[v->n_arrival++] = (stk_arrival){f->index, STK_OK, phases};
}

static int want(void *world, const stk_decision *d, uint32_t index) {
    stk_virtual *v = world;
    stk_virtual_flight *f = &v->flights[d->key];
    if (f->n_missing == 0) return 1;
    f->index = index;
    arrive(v, f);
    uint64_t now = (uint64_t)v->now_ns;
    begin_waiting(v, now);
    for (uint32_t i = 0; i < v->n_read; i++) {
        stk_virtual_read *r = &v->reads[i];
        if (r->key != d->key || !r->waiting) continue;
        r->done_ns = stk_drive_submit(&v->drive, now, r->bytes);
        r->waiting = false;
    }
    return 0;
}

/* The read that ends first, of those that an event waits for or of all, or NULL. */
static stk_virtual_read *first_done(stk_virtual *v, bool wanted) {
    stk_virtual_read *first = NULL;
    for (uint32_t i = 0; i < v->n_read; i++) {
        stk_virtual_read *r = &v->reads[i];
        if (r->waiting || (wanted && v->flights[r->key].index == UINT32_MAX)) continue;
        if (!first || r->done_ns < first->done_ns || (r->done_ns == first->done_ns && r->order < first->order)) first = r;
    }
    return first;
}

/* A part that has landed is packed. */
static void pack(stk_virtual *v, stk_virtual_read *r) {
    uint32_t key = r->key, layer = key / v->header->n_expert, part = r->part;
    stk_virtual_flight *f = &v->flights[key];
    uint32_t at = (uint32_t)(r - v->reads);
    memmove(r, r + 1, (--v->n_read - at) * sizeof *r); /* in order of submission still, in which the drive takes them */
    if (v->timed) {
        double ns = stk_cost_arrive_ns(&v->cost, v->header->classes[v->header->layer_class[layer]].payload_bytes);
        v->now_ns += ns / v->header->n_part;
        v->arrive_ns += ns / v->header->n_part;
    }
    f->n_missing--;
    if (part <= STK_UP) f->up_missing &= (uint8_t) ~(1u << part);
    if (f->index != UINT32_MAX) arrive(v, f);
}

/* Packs the parts that are wanted and have landed; returns whether there were any. */
static bool pack_wanted(stk_virtual *v) {
    stk_virtual_read *r;
    bool any = false;
    for (; (r = first_done(v, true)) && r->done_ns <= (uint64_t)v->now_ns; any = true) pack(v, r);
    return any;
}

/* As the store does it: what was read ahead and is not wanted yet is packed where there is nothing better to do. */
static int reap(void *world, stk_arrival *out, uint32_t max, bool wait) {
    stk_virtual *v = world;
    begin_waiting(v, (uint64_t)v->now_ns);
    bool packed = pack_wanted(v);
    stk_virtual_read *r = first_done(v, false);
    if (wait && !packed && v->n_arrival == 0 && r) {
        if (r->done_ns > (uint64_t)v->now_ns) {
            begin_waiting(v, r->done_ns);
            v->now_ns = (double)r->done_ns;
        }
        if (!pack_wanted(v)) pack(v, r);
    }
    uint32_t n = STK_MIN(max, v->n_arrival);
    memcpy(out, v->arrivals, n * sizeof *out);
    v->n_arrival -= n;
    memmove(v->arrivals, v->arrivals + n, v->n_arrival * sizeof *out);
    return (int)n;
}

/* Of an expert's computation, what a phase takes: as its bytes do where the three matrices are of one type. */
static double phase_share(uint8_t phases) {
    return (phases & STK_PHASE_UP ? 2.0 / 3 : 0) + (phases & STK_PHASE_DOWN ? 1.0 / 3 : 0);
}

static int compute(void *world, uint32_t layer, const stk_event *event, const stk_task *tasks, uint32_t n) {
    stk_virtual *v = world;
    (void)event;
    if (!v->timed) return STK_OK;
    uint64_t payload = v->header->classes[v->header->layer_class[layer]].payload_bytes;
    for (uint32_t i = 0; i < n; i++)
        v->now_ns += stk_cost_expert_ns(&v->cost, payload, tasks[i].decision->n_tok) * phase_share(tasks[i].phases);
    return STK_OK;
}

/* Nothing fails here, so nothing is ever given up. */
static uint32_t drain(void *world, const uint32_t **keys) {
    stk_virtual *v = world;
    v->n_read = v->n_arrival = 0;
    memset(v->flights, 0, (size_t)v->header->n_layer * v->header->n_expert * sizeof *v->flights);
    *keys = NULL;
    return 0;
}

static uint64_t arrive_ns(void *world) { return (uint64_t)((stk_virtual *)world)->arrive_ns; }

const stk_world_ops stk_virtual_world = {now_ns, start_read, prefetch, want, reap, compute, drain, sizes, arrive_ns};

void stk_virtual_clear(stk_virtual *v) {
    const uint32_t *keys;
    (void)drain(v, &keys);
}

/* ---- Stage ---- */

/* Experts that the recorded run lost leave here too. */
static int take_drops(stk_virtual *v) {
    const stk_trace_record *r;
    int rc;
    while ((rc = stk_virtual_peek(v, &r)) == 1 && r->kind == STK_TRACE_DROP) {
        uint32_t key = r->drop_key;
        if (key >= v->header->n_layer * v->header->n_expert)
            return stk_fail(STK_EFORMAT, "trace: dropped expert %u does not exist", key);
        uint64_t payload, asked;
        sizes(v, key / v->header->n_expert, key % v->header->n_expert, &payload, &asked);
        if (stk_tally_drop(v->tally, key)) {
            v->dropped_bytes += payload;
            v->dropped_read_bytes += asked;
        }
        STK_TRY(stk_cache_drop(v->cache, key));
        stk_virtual_forget(v, key);
        stk_virtual_take(v);
    }
    if (rc == 1 && r->kind == STK_TRACE_ABORT) {
        stk_virtual_take(v);
        return stk_fail(STK_ECANCELED, "the recorded step ended here");
    }
    return rc < 0 ? rc : STK_OK;
}

static int begin(void *stage, const stk_trace_step *step) {
    stk_virtual *v = stage;
    v->n_tok = step->n_tok;
    return STK_OK;
}

static int route(void *stage, uint32_t layer, stk_event *event) {
    stk_virtual *v = stage;
    STK_TRY(take_drops(v));
    if (v->timed) v->now_ns += stk_cost_dense_layer_ns(&v->cost, v->n_tok);
    const stk_trace_record *r;
    int rc = stk_virtual_peek(v, &r);
    if (rc < 0) return rc;
    if (rc == 0 || r->kind != STK_TRACE_EVENT || r->event.layer != layer) return 0;
    *event = r->event;
    stk_virtual_take(v);
    return 1;
}

/* What the predictor said depends on a hidden state, so it is taken from the record. */
static int ahead(void *stage, const stk_event *event, stk_ahead **list) {
    stk_virtual *v = stage;
    const stk_trace_record *r;
    if (v->chooser) stk_chooser_settle(v->chooser, event); /* before the next record, which ends the event's arrays */
    int rc = stk_virtual_peek(v, &r);
    if (rc <= 0 || r->kind != STK_TRACE_AHEAD) return rc < 0 ? rc : 0;
    uint32_t n = r->ahead.n;
    memcpy(v->ahead, r->ahead.list, n * sizeof *v->ahead);
    if (v->chooser) stk_chooser_choose(v->chooser, event->layer, v->ahead, n);
    *list = v->ahead;
    stk_virtual_take(v);
    return (int)n;
}

static int combine(void *stage, uint32_t layer) {
    (void)stage;
    (void)layer;
    return STK_OK;
}

static int finish(void *stage) {
    stk_virtual *v = stage;
    STK_TRY(take_drops(v));
    if (v->timed) v->now_ns += stk_cost_dense_step_ns(&v->cost, v->n_tok);
    return STK_OK;
}

const stk_stage_ops stk_virtual_stage = {begin, route, ahead, combine, finish, now_ns};
