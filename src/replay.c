/*
 * replay: a recorded run again, through the same cache, step and executor on a virtual clock. A verifying replay takes the
 * trace's own slots and policy and compares every counter at the end; a what-if replay has others.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cost_file.h"
#include "experts/slots.h"
#include "virtual.h"

typedef struct replay {
    stk_replay_options o;
    stk_trace_reader *reader;
    const stk_trace_header *header;
    stk_cache *cache;
    stk_executor *executor;
    stk_virtual virtual;
    stk_stepper stepper;
    atomic_int cancel; /* never set: the executor wants one */
    uint32_t *n_slot;  /* [n_class] */
    uint64_t ram_bytes;
} replay;

void stk_replay_options_default(stk_replay_options *o) {
    memset(o, 0, sizeof *o);
    o->struct_bytes = sizeof *o;
}

/* The table that the run measured stands at its end: a first pass finds it. */
static int find_cost(const char *path, stk_cost *cost) {
    stk_trace_reader *r;
    stk_trace_record record;
    bool found = false;
    STK_TRY(stk_trace_reader_open(&r, path));
    int rc;
    while ((rc = stk_trace_read(r, &record)) == 1)
        if (record.kind == STK_TRACE_COST) {
            rc = stk_cost_import(cost, record.cost, STK_TRACE_N_COST);
            if (rc < 0) break;
            found = true;
        }
    stk_trace_reader_close(&r);
    if (rc >= 0 && !found) stk_log(STK_LOG_WARN, "%s: no measured costs (cut off?): times are those of a plain desktop", path);
    return rc < 0 ? rc : STK_OK;
}

/* Times by a cost file: its table, and without a modelled drive its drive. */
static int take_cost_file(replay *r) {
    stk_cost_file *file = malloc(sizeof *file);
    if (!file) return stk_fail(STK_ENOMEM, "out of memory for the replay");
    int rc = stk_cost_file_load(r->o.cost, file);
    if (rc >= 0) {
        stk_cost_file_table(file, NULL, &r->virtual.cost);
        if (!r->o.io)
            r->virtual.drive = (stk_drive){.bytes_per_ns = r->virtual.cost.nvme_bytes_per_ns,
                                           .latency_ns = (uint64_t)r->virtual.cost.nvme_latency_ns,
                                           .seed = r->o.seed};
        if (!file->has_model)
            stk_log(STK_LOG_WARN,
                    "%s: measured without a model: experts are taken for Q4_K, the dense part for that of a plain desktop",
                    r->o.cost);
    }
    free(file);
    return rc;
}

/* The clock that times are predicted with, if any are asked for. */
static int open_times(replay *r, const char *path) {
    r->virtual.timed = r->o.io || r->o.cost;
    if (r->o.io) {
        if (strncmp(r->o.io, "emu:", 4) != 0)
            return stk_fail(STK_EINVAL, "replay with --io '%s': a modelled drive is needed, emu:BANDWIDTH,LATENCY", r->o.io);
        STK_TRY(stk_drive_parse(&r->virtual.drive, r->o.io + 4, r->o.seed));
    }
    if (r->o.cost) return take_cost_file(r);
    return r->o.io ? find_cost(path, &r->virtual.cost) : STK_OK;
}

/* Slots of each class: the trace's own, or those of another budget. */
static int choose_slots(replay *r) {
    const stk_trace_header *h = r->header;
    stk_slot_class *classes = calloc(h->n_class, sizeof *classes);
    r->n_slot = calloc(h->n_class, sizeof *r->n_slot);
    if (!classes || !r->n_slot) {
        free(classes);
        return stk_fail(STK_ENOMEM, "out of memory for the replay");
    }
    uint64_t all = 0;
    for (uint32_t c = 0; c < h->n_class; c++) classes[c].slot_bytes = h->classes[c].slot_bytes;
    for (uint32_t l = 0; l < h->n_layer; l++) {
        classes[h->layer_class[l]].n_expert += h->n_expert;
        all += h->n_expert * h->classes[h->layer_class[l]].slot_bytes;
    }
    int rc = STK_OK;
    r->ram_bytes = r->o.ram_bytes;
    if (r->o.n_slot) r->ram_bytes = (uint64_t)((double)all * (double)r->o.n_slot / ((double)h->n_layer * h->n_expert));
    uint64_t least = 0;
    for (uint32_t c = 0; c < h->n_class; c++) least += h->k * classes[c].slot_bytes;
    /* Slots are of several sizes: as few as can be are the least bytes, whatever the mean size says. */
    if (r->o.n_slot >= (uint64_t)h->k * h->n_class) r->ram_bytes = STK_MAX(r->ram_bytes, least);
    if (r->ram_bytes)
        rc = stk_slots_share(classes, h->n_class, STK_MIN(r->ram_bytes, all), h->k, r->n_slot);
    else
        for (uint32_t c = 0; c < h->n_class; c++) r->n_slot[c] = h->classes[c].n_slot;
    r->ram_bytes = 0;
    for (uint32_t c = 0; c < h->n_class; c++) r->ram_bytes += r->n_slot[c] * h->classes[c].slot_bytes;
    free(classes);
    return rc;
}

static int open_cache(replay *r) {
    const stk_trace_header *h = r->header;
    stk_cache_class *classes = calloc(h->n_class, sizeof *classes);
    if (!classes) return stk_fail(STK_ENOMEM, "out of memory for the replay");
    for (uint32_t c = 0; c < h->n_class; c++) classes[c] = (stk_cache_class){r->n_slot[c], h->classes[c].n_transit};
    int rc = stk_cache_open(&r->cache, &(stk_cache_config){.n_layer = h->n_layer,
                                                           .n_expert = h->n_expert,
                                                           .k = h->k,
                                                           .n_class = h->n_class,
                                                           .classes = classes,
                                                           .layer_class = h->layer_class,
                                                           .policy = r->o.policy ? r->o.policy : h->policy,
                                                           .params = r->o.policy || !h->params[0] ? NULL : h->params,
                                                           .seed = r->o.seed ? r->o.seed : h->seed});
    free(classes);
    return rc;
}

static int open_replay(replay *r, const char *path) {
    STK_TRY(stk_trace_reader_open(&r->reader, path));
    r->header = stk_trace_reader_header(r->reader);
    if (r->o.verify && (r->o.ram_bytes || r->o.n_slot || r->o.policy))
        return stk_fail(STK_EINVAL, "a verifying replay takes the trace's own budget and policy");
    STK_TRY(choose_slots(r));
    STK_TRY(open_cache(r));
    STK_TRY(stk_virtual_open(&r->virtual, r->reader, r->cache));
    STK_TRY(open_times(r, path));
    uint32_t most = 1;
    for (uint32_t c = 0; c < r->header->n_class; c++) most = STK_MAX(most, r->n_slot[c] + r->header->classes[c].n_transit);
    STK_TRY(stk_executor_open(&r->executor, &stk_virtual_world, &r->virtual, r->header->n_expert, most, &r->virtual.cost));
    r->stepper = (stk_stepper){.ops = &stk_virtual_stage,
                               .stage = &r->virtual,
                               .cache = r->cache,
                               .executor = r->executor,
                               .cancel = &r->cancel,
                               .n_layer = r->header->n_layer};
    return STK_OK;
}

static void close_replay(replay *r) {
    stk_executor_close(&r->executor);
    stk_virtual_close(&r->virtual);
    stk_cache_close(&r->cache);
    stk_trace_reader_close(&r->reader);
    free(r->n_slot);
}

static void count(const replay *r, stk_stats *s) {
    stk_stepper_count(&r->stepper, s);
    s->bytes -= r->virtual.dropped_bytes;
    s->read_bytes -= r->virtual.dropped_read_bytes;
}

/* Compares with what the recorded run counted; names the first difference. */
static int verify(const replay *r, const stk_trace_end *end) {
    stk_stats s;
    count(r, &s);
    const struct {
        const char *name;
        uint64_t live, replayed;
    } figures[] = {
        {"events", end->n_event, s.n_event},
        {"lookups", end->n_lookup, s.n_lookup},
        {"token-expert pairs", end->n_pair, s.n_pair},
        {"hits", end->n_hit, s.n_hit},
        {"misses", end->n_miss, s.n_miss},
        {"evictions", end->n_evict, s.n_evict},
        {"waves", end->n_wave, s.n_wave},
        {"bytes", end->bytes, s.bytes},
        {"read_bytes", end->read_bytes, s.read_bytes},
        {"cache state", end->cache_hash, stk_cache_hash(r->cache)},
    };
    for (size_t i = 0; i < STK_ARRAY_LEN(figures); i++)
        if (figures[i].live != figures[i].replayed)
            return stk_fail(STK_ESTATE, "the replay differs from the recorded run in its %s: %" PRIu64 ", recorded %" PRIu64,
                            figures[i].name, figures[i].replayed, figures[i].live);
    return STK_OK;
}

/* One record that stands between steps. Returns 1 at the end of the run. */
static int take_record(replay *r, const stk_trace_record *record) {
    switch (record->kind) {
    case STK_TRACE_STEP: {
        stk_trace_step step = record->step;
        stk_virtual_take(&r->virtual);
        int rc = stk_stepper_run(&r->stepper, &step);
        return rc == STK_ECANCELED ? STK_OK : rc;
    }
    case STK_TRACE_CLEAR: stk_virtual_take(&r->virtual); return stk_cache_clear(r->cache);
    case STK_TRACE_COST: stk_virtual_take(&r->virtual); return STK_OK;
    case STK_TRACE_END:
        if (r->o.verify) STK_TRY(verify(r, &record->end));
        return 1;
    default: return stk_fail(STK_EFORMAT, "trace: a record of kind %d outside of a step", (int)record->kind);
    }
}

static int run(replay *r) {
    for (uint64_t n = 0;; n++) {
        const stk_trace_record *record;
        int rc = stk_virtual_peek(&r->virtual, &record);
        if (rc <= 0) return rc;
        rc = take_record(r, record);
        if (rc != STK_OK) return rc < 0 ? rc : STK_OK;
        if (!r->o.progress || n % 256) continue;
        uint64_t done, total;
        stk_trace_reader_progress(r->reader, &done, &total);
        if (r->o.progress(r->o.progress_user, "replay", done, total)) return stk_fail(STK_ECANCELED, "the replay was cancelled");
    }
}

static void fill_result(const replay *r, stk_replay_result *result) {
    stk_replay_result full = {.complete = !stk_trace_reader_cut(r->reader), .ram_bytes = r->ram_bytes};
    full.struct_bytes = STK_MIN(result->struct_bytes, (uint32_t)sizeof full);
    count(r, &full.stats);
    for (uint32_t c = 0; c < r->header->n_class; c++) full.n_slot += r->n_slot[c];
    full.virtual_ns = (uint64_t)r->virtual.now_ns;
    memcpy(result, &full, full.struct_bytes);
}

int stk_replay(const char *trace, const stk_replay_options *options, stk_replay_result *result) {
    if (!trace || !result) return stk_fail(STK_EINVAL, "stk_replay: an argument is NULL");
    replay r = {0};
    stk_replay_options_default(&r.o);
    if (options) {
        if (options->struct_bytes < sizeof options->struct_bytes || options->struct_bytes > sizeof r.o)
            return stk_fail(STK_EINVAL, "replay options of %u bytes; this library knows %zu", options->struct_bytes, sizeof r.o);
        memcpy(&r.o, options, options->struct_bytes);
    }
    if (result->struct_bytes < sizeof result->struct_bytes)
        return stk_fail(STK_EINVAL, "replay result of %u bytes", result->struct_bytes);
    int rc = open_replay(&r, trace);
    if (rc >= 0) rc = run(&r);
    if (rc >= 0 && r.o.verify && stk_trace_reader_cut(r.reader))
        rc = stk_fail(STK_ESTATE, "%s is cut off: it has no counters to compare with", trace);
    if (rc >= 0) fill_result(&r, result);
    close_replay(&r);
    return rc;
}
