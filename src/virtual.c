/* virtual: modelled queues, the virtual clock, events from a trace. */
#include "virtual.h"

#include <stdlib.h>
#include <string.h>

int stk_virtual_open(stk_virtual *v, stk_source *source, stk_cache *cache, stk_tally *tally) {
    memset(v, 0, sizeof *v);
    v->source = source;
    v->header = stk_source_header(source);
    v->cache = cache;
    v->tally = tally;
    stk_cost_default(&v->cost);
    v->reads = calloc(v->header->n_expert, sizeof *v->reads);
    return v->reads ? STK_OK : stk_fail(STK_ENOMEM, "out of memory for the replay");
}

void stk_virtual_close(stk_virtual *v) {
    free(v->reads);
    v->reads = NULL;
}

int stk_virtual_peek(stk_virtual *v, const stk_trace_record **record) {
    if (!v->have && !v->ended) {
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

static int start_read(void *world, uint32_t layer, const stk_decision *d, uint32_t index) {
    stk_virtual *v = world;
    uint64_t done = (uint64_t)v->now_ns;
    const stk_trace_extent *x = extents_of(v, layer, d->expert);
    for (uint32_t p = 0; v->timed && p < v->header->n_part; p++) {
        uint64_t part = stk_drive_submit(&v->drive, (uint64_t)v->now_ns, x[p].bytes);
        done = STK_MAX(done, part);
    }
    v->reads[v->n_read++] = (stk_virtual_read){done, index};
    return STK_OK;
}

static int reap(void *world, stk_arrival *out, uint32_t max, bool wait) {
    stk_virtual *v = world;
    uint64_t now = (uint64_t)v->now_ns, first = UINT64_MAX;
    for (uint32_t i = 0; i < v->n_read; i++) first = STK_MIN(first, v->reads[i].done_ns);
    if (wait && v->n_read && first > now) {
        v->now_ns = (double)first;
        now = first;
    }
    uint32_t n = 0, kept = 0;
    for (uint32_t i = 0; i < v->n_read; i++) {
        if (v->reads[i].done_ns <= now && n < max)
            out[n++] = (stk_arrival){v->reads[i].index, STK_OK};
        else
            v->reads[kept++] = v->reads[i];
    }
    v->n_read = kept;
    return (int)n;
}

static int compute(void *world, uint32_t layer, const stk_event *event, const stk_task *tasks, uint32_t n) {
    stk_virtual *v = world;
    (void)event;
    if (!v->timed) return STK_OK;
    uint64_t payload = v->header->classes[v->header->layer_class[layer]].payload_bytes;
    for (uint32_t i = 0; i < n; i++) {
        v->now_ns += stk_cost_expert_ns(&v->cost, payload, tasks[i].decision->n_tok);
        if (tasks[i].arrived) v->now_ns += stk_cost_arrive_ns(&v->cost, payload);
    }
    return STK_OK;
}

static void drain(void *world) { ((stk_virtual *)world)->n_read = 0; }

const stk_world_ops stk_virtual_world = {now_ns, start_read, reap, compute, drain, sizes};

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
        v->dropped_bytes += payload;
        v->dropped_read_bytes += asked;
        stk_tally_drop(v->tally, key);
        STK_TRY(stk_cache_drop(v->cache, key));
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

const stk_stage_ops stk_virtual_stage = {begin, route, combine, finish, now_ns};
