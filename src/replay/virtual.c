/* virtual: modelled queues, the virtual clock, events from a trace. */
#include "virtual.h"

#include <stdlib.h>
#include <string.h>

#include "experts/catalogue.h"

/* Gate, up and down, as stk_part numbers them. */
enum { N_PHASED_PART = STK_N_PART, UP_PARTS = 1 << STK_GATE | 1 << STK_UP };
#define NOBODY UINT32_MAX

int stk_virtual_open(stk_virtual *v, stk_source *source, stk_cache *cache, stk_tally *tally) {
    memset(v, 0, sizeof *v);
    v->source = source;
    v->header = stk_source_header(source);
    v->cache = cache;
    v->tally = tally;
    stk_cost_default(&v->cost);
    uint32_t n_key = v->header->n_layer * v->header->n_expert;
    STK_TRY(stk_virtual_drive_open(&v->drive, n_key * v->header->n_part));
    v->drive.instant = true;
    v->flights = calloc(n_key, sizeof *v->flights);
    v->arrivals = calloc(v->header->n_expert, 2 * sizeof *v->arrivals);
    v->ahead = calloc((size_t)STK_TRACE_AHEAD_MAX * v->header->n_expert, sizeof *v->ahead);
    if (v->flights && v->arrivals && v->ahead) return STK_OK;
    return stk_fail(STK_ENOMEM, "out of memory for the replay");
}

void stk_virtual_set_drive(stk_virtual *v, const stk_drive *model) {
    v->timed = true;
    v->drive.instant = false;
    v->drive.model = *model;
}

void stk_virtual_close(stk_virtual *v) {
    stk_virtual_drive_close(&v->drive);
    free(v->flights);
    free(v->arrivals);
    free(v->ahead);
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

/* The CPU works for ns. What the drive brings meanwhile takes memory bandwidth from it. */
static void work(stk_virtual *v, double ns) {
    if (!v->timed) return;
    while (ns >= 1) {
        uint64_t before = v->drive.moved_bytes;
        v->now_ns += ns;
        stk_virtual_drive_advance(&v->drive, (uint64_t)v->now_ns);
        ns = v->cost.read_ns_per_byte * (double)(v->drive.moved_bytes - before);
    }
}

static uint32_t read_of(const stk_virtual *v, uint32_t key, uint32_t part) { return key * v->header->n_part + part; }

static uint32_t key_of(const stk_virtual *v, uint32_t read) { return read / v->header->n_part; }

static void note_read(void *user, uint32_t read, uint64_t end_ns) {
    stk_virtual *v = user;
    const stk_virtual_read *r = &v->drive.reads[read];
    uint32_t key = key_of(v, read);
    if (!stk_timeline_on(v->timeline)) return;
    stk_timeline_put(v->timeline,
                     (stk_work){r->begin_ns, end_ns, .bytes = r->issued_bytes,
                                .kind = v->flights[key].ahead ? STK_WORK_READ_AHEAD : STK_WORK_READ,
                                .layer = key / v->header->n_expert, .expert = key % v->header->n_expert, .n_expert = 1});
}

void stk_virtual_set_timeline(stk_virtual *v, stk_timeline *timeline) {
    v->timeline = timeline;
    v->drive.ended = timeline ? note_read : NULL;
    v->drive.user = v;
}

void stk_virtual_forget(stk_virtual *v, uint32_t key) {
    for (uint32_t p = 0; p < v->header->n_part; p++) stk_virtual_drive_cancel(&v->drive, read_of(v, key, p));
    v->flights[key] = (stk_virtual_flight){0};
}

static void submit(stk_virtual *v, uint32_t layer, const stk_decision *d, uint32_t index, enum stk_io_class cls) {
    const stk_trace_extent *x = extents_of(v, layer, d->expert);
    if (d->victim != STK_NO_KEY && v->flights[d->victim].n_missing) stk_virtual_forget(v, d->victim);
    stk_virtual_drive_advance(&v->drive, (uint64_t)v->now_ns);
    v->flights[d->key] = (stk_virtual_flight){
        .n_missing = v->header->n_part, .up_missing = UP_PARTS, .index = index, .ahead = cls == STK_IO_PREFETCH};
    for (uint32_t p = 0; p < v->header->n_part; p++)
        stk_virtual_drive_submit(&v->drive, read_of(v, d->key, p), cls, x[p].bytes, (uint64_t)v->now_ns);
}

/* A recorded run is repeated as it was: what it cancelled decided nothing. */
static void stale(void *world, uint32_t key) {
    stk_virtual *v = world;
    stk_virtual_flight *f = &v->flights[key];
    if (f->n_missing == 0 || f->index != NOBODY || (!v->chooser && !v->prefetch)) return;
    for (uint32_t p = 0; p < STK_MIN(v->header->n_part, 64u); p++) {
        if (!stk_virtual_drive_reads(&v->drive, read_of(v, key, p))) continue;
        stk_virtual_drive_cancel(&v->drive, read_of(v, key, p));
        f->stale |= (uint64_t)1 << p;
    }
}

/* What was cancelled is wanted after all. */
static void read_again(stk_virtual *v, const stk_decision *d, stk_virtual_flight *f) {
    const stk_trace_extent *x = extents_of(v, d->key / v->header->n_expert, d->expert);
    for (uint32_t p = 0; f->stale; p++, f->stale >>= 1)
        if (f->stale & 1)
            stk_virtual_drive_submit(&v->drive, read_of(v, d->key, p), STK_IO_DEMAND, x[p].bytes, (uint64_t)v->now_ns);
}

static int start_read(void *world, uint32_t layer, const stk_decision *d, uint32_t index) {
    submit(world, layer, d, index, STK_IO_DEMAND);
    return STK_OK;
}

static int prefetch(void *world, uint32_t layer, const stk_decision *d) {
    submit(world, layer, d, NOBODY, STK_IO_PREFETCH);
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
    read_again(v, d, f);
    for (uint32_t p = 0; p < v->header->n_part; p++) stk_virtual_drive_promote(&v->drive, read_of(v, d->key, p));
    return 0;
}

/* Bytes of an expert's part, of its payload: reads are longer by their alignment, a little and each likewise. */
static double part_bytes(const stk_virtual *v, uint32_t key, uint32_t part) {
    uint32_t layer = key / v->header->n_expert;
    const stk_trace_extent *x = extents_of(v, layer, key % v->header->n_expert);
    uint64_t asked = 0;
    for (uint32_t p = 0; p < v->header->n_part; p++) asked += x[p].bytes;
    return asked ? (double)v->header->classes[v->header->layer_class[layer]].payload_bytes * (double)x[part].bytes / (double)asked
                 : 0;
}

/* Takes in a part that has landed. */
static void land(stk_virtual *v, uint32_t read) {
    stk_virtual_flight *f = &v->flights[key_of(v, read)];
    uint32_t part = read % v->header->n_part;
    f->n_missing--;
    if (part <= STK_UP) f->up_missing &= (uint8_t) ~(1u << part);
    if (f->index != NOBODY) arrive(v, f);
}

/* Packs what has landed, as stk_store_pick chooses it: all that is wanted, or, if there is none and nothing better to do, what
 * there is of one other expert. */
static void pack(stk_virtual *v, bool idle) {
    stk_virtual_drive *d = &v->drive;
    bool wanted = false;
    double bytes = 0;
    for (uint32_t i = 0; i < d->n_landed; i++) wanted |= v->flights[key_of(v, d->landed[i])].index != NOBODY;
    if (d->n_landed == 0 || (!wanted && !idle)) return;
    for (uint32_t i = 0, other = key_of(v, d->landed[0]); i < d->n_landed;) {
        uint32_t read = d->landed[i], key = key_of(v, read);
        if (wanted ? v->flights[key].index == NOBODY : key != other) {
            i++;
            continue;
        }
        (void)stk_virtual_drive_take(d, i);
        bytes += part_bytes(v, key, read % v->header->n_part);
        land(v, read);
    }
    if (!v->timed) return;
    double ns = stk_cost_arrive_ns(&v->cost, (uint64_t)bytes); /* which was measured beside reads */
    v->now_ns += ns;
    v->arrive_ns += ns;
}

static int reap(void *world, stk_arrival *out, uint32_t max, bool wait) {
    stk_virtual *v = world;
    uint64_t now = (uint64_t)v->now_ns;
    stk_virtual_drive_advance(&v->drive, now);
    if (wait && v->drive.n_landed == 0 && v->n_arrival == 0) {
        uint64_t landed = stk_virtual_drive_wait(&v->drive, now);
        if (landed > now) v->now_ns = (double)landed + v->cost.wake_ns;
    }
    pack(v, wait);
    uint32_t n = STK_MIN(max, v->n_arrival);
    memcpy(out, v->arrivals, n * sizeof *out);
    v->n_arrival -= n;
    memmove(v->arrivals, v->arrivals + n, v->n_arrival * sizeof *out);
    return (int)n;
}

/* Of an expert's computation, what its phases take: as their bytes do. */
static double phase_share(const stk_virtual *v, const stk_task *t) {
    if (t->phases == STK_PHASE_ALL) return 1;
    double up = part_bytes(v, t->decision->key, STK_GATE) + part_bytes(v, t->decision->key, STK_UP);
    double all = up + part_bytes(v, t->decision->key, STK_DOWN);
    return (t->phases & STK_PHASE_UP ? up : all - up) / all;
}

static int compute(void *world, uint32_t layer, const stk_event *event, const stk_task *tasks, uint32_t n) {
    stk_virtual *v = world;
    double ns = 0;
    (void)event;
    if (!v->timed) return STK_OK;
    uint64_t payload = v->header->classes[v->header->layer_class[layer]].payload_bytes;
    for (uint32_t i = 0; i < n; i++)
        ns += stk_cost_expert_ns(&v->cost, payload, tasks[i].decision->n_tok) * phase_share(v, &tasks[i]);
    work(v, ns);
    return STK_OK;
}

/* Nothing fails here, so nothing is ever given up. */
static uint32_t drain(void *world, const uint32_t **keys) {
    stk_virtual *v = world;
    v->n_arrival = 0;
    for (uint32_t key = 0; key < v->header->n_layer * v->header->n_expert; key++)
        if (v->flights[key].n_missing) stk_virtual_forget(v, key);
    *keys = NULL;
    return 0;
}

static uint64_t arrive_ns(void *world) { return (uint64_t)((stk_virtual *)world)->arrive_ns; }

static void backlog(void *world, uint64_t *demand_bytes, uint64_t *ahead_bytes) {
    uint64_t bytes[STK_IO_PREFETCH + 1];
    stk_virtual *v = world;
    stk_virtual_drive_advance(&v->drive, (uint64_t)v->now_ns);
    stk_virtual_drive_backlog(&v->drive, bytes);
    *demand_bytes = bytes[STK_IO_DEMAND];
    *ahead_bytes = bytes[STK_IO_PREFETCH];
}

const stk_world_ops stk_virtual_world = {now_ns, start_read, prefetch,  want,    reap, compute,
                                         drain,  sizes,      arrive_ns, backlog, stale};

void stk_virtual_clear(stk_virtual *v) {
    const uint32_t *keys;
    (void)drain(v, &keys);
}

/* ---- Stage ---- */

/* Experts that the recorded run lost leave here too. */
static int take_drops(stk_virtual *v) {
    const stk_trace_record *r = NULL;
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
    work(v, stk_cost_dense_layer_ns(&v->cost, v->n_tok));
    const stk_trace_record *r = NULL;
    int rc = stk_virtual_peek(v, &r);
    if (rc < 0) return rc;
    if (rc == 0 || r->kind != STK_TRACE_EVENT || r->event.layer != layer) return 0;
    *event = r->event;
    stk_virtual_take(v);
    v->n_lookahead = 0;
    return 1;
}

/* Predictions of today. What the recorded run said is what routers ahead said, or left out. */
static int predict(stk_virtual *v, const stk_event *event, const stk_gain_now *now, stk_ahead **list) {
    stk_lookahead look = {.n_tok = event->n_tok, .n_expert = event->n_expert};
    const stk_trace_record *r = NULL;
    const stk_event *kept = v->gates ? stk_gates_keep(v->gates, event) : NULL;
    int n = kept ? 0 : stk_prefetch_choose(v->prefetch, event, &look, now, list); /* the next record ends the event's arrays */
    if (n < 0) return n;
    int rc = stk_virtual_peek(v, &r);
    if (rc < 0) return rc;
    bool said = rc > 0 && r->kind == STK_TRACE_AHEAD;
    if (kept) {
        look = stk_gates_look(v->gates, said ? &r->ahead : NULL);
        v->n_lookahead = look.depth;
        n = stk_prefetch_choose(v->prefetch, kept, &look, now, list);
    }
    if (said) stk_virtual_take(v);
    return n;
}

/* What a live predictor said may depend on a hidden state, so it is taken from the record, unless another one is to be asked. */
static int ahead(void *stage, const stk_event *event, const stk_gain_now *now, stk_ahead **list) {
    stk_virtual *v = stage;
    const stk_trace_record *r = NULL;
    if (!v->timed) now = NULL;
    work(v, v->cost.event_ns);
    if (v->prefetch) return predict(v, event, now, list);
    if (v->chooser) stk_chooser_settle(v->chooser, event); /* before the next record, which ends the event's arrays */
    uint32_t layer = event->layer;
    int rc = stk_virtual_peek(v, &r);
    if (rc <= 0 || r->kind != STK_TRACE_AHEAD) return rc < 0 ? rc : 0;
    uint32_t n = r->ahead.n;
    if (v->chooser)
        n = stk_chooser_near(v->chooser, layer, v->depth, r->ahead.list, n, v->ahead);
    else
        memcpy(v->ahead, r->ahead.list, n * sizeof *v->ahead);
    if (n) v->n_lookahead = v->ahead[n - 1].key / v->header->n_expert - layer; /* the farthest is last */
    if (v->chooser) stk_chooser_choose(v->chooser, layer, v->ahead, n, now);
    *list = v->ahead;
    stk_virtual_take(v);
    return (int)n;
}

/* What a recorded run has read ahead, it was allowed to. */
static bool may_evict(void *stage, uint32_t i, uint32_t victim) {
    const stk_virtual *v = stage;
    if (v->prefetch) return stk_prefetch_may_evict(v->prefetch, i, victim);
    return !v->chooser || stk_chooser_may_evict(v->chooser, i, victim);
}

/* The live run asks the routers of the layers ahead before the event whose record tells of it. */
static int combine(void *stage, uint32_t layer) {
    stk_virtual *v = stage;
    (void)layer;
    work(v, v->n_lookahead * v->cost.lookahead_ns);
    return STK_OK;
}

static int finish(void *stage) {
    stk_virtual *v = stage;
    STK_TRY(take_drops(v));
    work(v, stk_cost_dense_step_ns(&v->cost, v->n_tok));
    return STK_OK;
}

const stk_stage_ops stk_virtual_stage = {begin, route, ahead, may_evict, combine, finish, now_ns};
