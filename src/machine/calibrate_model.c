/*
 * calibrate_model: what experts and the dense part of one model take, from steps of the engine itself. Routes are forced, so that
 * every expert of a step has all of its tokens; they go through as many experts as the cache holds, so that weights come from
 * memory and nothing is read; then once more, beside a drive that is kept at work.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate.h"
#include "io/io.h"
#include "src/ahead/routers.h"

enum { MOST_TOK = 1 << (STK_COST_POINTS - 1), MOST_SET = 8, STEPS = 6 };
enum { IN_FLIGHT = 8, CHUNK_BYTES = 4 << 20, CHUNK_STRIDE = 7, TURNS = 9, ALONE_NS = 30000000 };
#define LEAST_READ_NS 1e-6 /* a byte; the file holds positive numbers */

typedef struct run {
    const stk_model *model;
    stk_model_info info;
    stk_engine *engine;
    uint32_t n_set; /* of routes to go through */
    uint32_t set;
    uint16_t *ids;     /* [k] */
    int32_t *token;    /* [MOST_TOK] */
    double mean_bytes; /* of an expert */
} run;

/* A step of n_tok tokens through the next set of experts, from an empty context. */
static int step(run *r, uint32_t n_tok) {
    uint32_t k = r->info.n_expert_used;
    for (uint32_t i = 0; i < k; i++) r->ids[i] = (uint16_t)((r->set * k + i) % r->info.n_expert);
    r->set = (r->set + 1) % r->n_set;
    STK_TRY(stk_force_route(r->engine, -1, r->ids, k));
    STK_TRY(stk_seq_trim(r->engine, 0, 0));
    return stk_step(r->engine, &(stk_batch){.struct_bytes = sizeof(stk_batch), .n = n_tok, .token = r->token});
}

/* What lies outside of layers, in nanoseconds a step. */
static double outside_ns(const stk_profile *p) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < STK_N_STAGE; i++) sum += p->stage_ns[(size_t)p->n_layer * STK_N_STAGE + i];
    return (double)sum / (double)p->n_step;
}

static int measure_point(run *r, uint32_t point, stk_cost_file *out) {
    uint32_t n_tok = 1u << point, n_step = point < 6 ? STEPS : 2;
    stk_stats s = {.struct_bytes = sizeof s};
    stk_profile p = {.struct_bytes = sizeof p};
    STK_TRY(step(r, n_tok));
    STK_TRY(stk_engine_set_profile(r->engine, 1));
    STK_TRY(stk_engine_reset_stats(r->engine));
    for (uint32_t i = 0; i < n_step; i++) STK_TRY(step(r, n_tok));
    STK_TRY(stk_engine_get_stats(r->engine, &s));
    STK_TRY(stk_engine_get_profile(r->engine, &p));
    double steps = n_step, outside = outside_ns(&p), bytes = r->mean_bytes * r->info.n_expert_used * r->info.n_moe_layer;
    out->experts.expert_ns_per_byte[point] = (double)s.expert_ns / steps / bytes;
    out->dense_step_ns[point] = outside;
    out->dense_layer_ns[point] = STK_MAX((double)s.dense_ns / steps - outside, 1.0) / r->info.n_layer;
    double named = (double)(s.dense_ns + s.expert_ns + s.arrive_ns + s.wait_ns);
    if (n_tok == 1) out->event_ns = STK_MAX((double)s.step_ns - named, 1.0) / steps / r->info.n_moe_layer;
    return STK_OK;
}

/* Reads every set again and packs it. */
static int measure_arrival(run *r, stk_cost_file *out) {
    stk_stats s = {.struct_bytes = sizeof s};
    STK_TRY(stk_engine_drop_experts(r->engine));
    STK_TRY(stk_engine_reset_stats(r->engine));
    for (uint32_t i = 0; i < r->n_set; i++) STK_TRY(step(r, 1));
    STK_TRY(stk_engine_get_stats(r->engine, &s));
    if (s.bytes && s.arrive_ns) out->experts.arrive_ns_per_byte = (double)s.arrive_ns / (double)s.bytes;
    return STK_OK;
}

/* What asking the router of another layer takes: the product of a token with its copy from memory, in a phase that there is
 * anyway. */
static double lookahead_ns(const run *r, const stk_cost_file *f) {
    double bytes = (double)stk_routers_bytes(r->model) / r->info.n_layer;
    enum stk_type type = stk_routers_type(&r->model->hp);
    for (int i = 0; i < STK_COST_N_FORMAT; i++)
        if (stk_cost_formats[i] == type) return bytes * f->formats[i].expert_ns_per_byte[0];
    return bytes / f->read_bytes_per_s * 1e9;
}

/* ---- Beside a drive at work ---- */

typedef struct beside {
    stk_io *io;
    stk_map buffer; /* [IN_FLIGHT, chunk] */
    uint64_t chunk, n_chunk, next;
} beside;

static int submit_all(beside *b) {
    stk_io_read reads[IN_FLIGHT];
    for (uint64_t i = 0; i < IN_FLIGHT; i++, b->next += CHUNK_STRIDE)
        reads[i] = (stk_io_read){0, b->next % b->n_chunk * b->chunk, b->chunk, (char *)b->buffer.base + i * b->chunk, i};
    return stk_io_submit(b->io, STK_IO_DEMAND, reads, IN_FLIGHT);
}

/* Steps until all reads have ended, or, without any, for a while. Returns how many; *ns is what they took. */
static int steps_of(run *r, beside *b, bool reading, double *ns) {
    uint64_t start = stk_now_ns(), n = 0, left = IN_FLIGHT;
    stk_io_done done[IN_FLIGHT];
    if (reading) STK_TRY(submit_all(b));
    for (; reading ? left > 0 : stk_now_ns() - start < ALONE_NS; n++) {
        STK_TRY(step(r, 1));
        int got = reading ? stk_io_reap(b->io, done, IN_FLIGHT, false) : 0;
        if (got < 0) return got;
        for (int i = 0; i < got; i++)
            if (done[i].status < 0) return done[i].status;
        left -= (uint64_t)got;
    }
    *ns = (double)(stk_now_ns() - start);
    return (int)STK_MIN(n, (uint64_t)INT32_MAX);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How much longer the same steps take for each byte that is read beside them: the median of several turns. */
static int measure_beside(run *r, beside *b, stk_cost_file *out) {
    double each[TURNS], alone, reading;
    for (uint32_t i = 0; i < TURNS; i++) {
        int n_alone = steps_of(r, b, false, &alone), n = n_alone < 0 ? n_alone : steps_of(r, b, true, &reading);
        if (n < 0) return n;
        each[i] = (reading - n * alone / n_alone) / ((double)b->chunk * IN_FLIGHT);
    }
    qsort(each, TURNS, sizeof *each, by_value);
    out->read_ns_per_byte = STK_MAX(each[TURNS / 2], LEAST_READ_NS);
    return STK_OK;
}

static int open_beside(const run *r, const char *spec, beside *b) {
    const char *path = stk_gguf_path(r->model->gguf, 0);
    uint64_t file = stk_gguf_file_bytes(r->model->gguf, 0);
    b->chunk = STK_MIN(file / IN_FLIGHT / STK_DIRECT_ALIGN * STK_DIRECT_ALIGN, (uint64_t)CHUNK_BYTES);
    if (b->chunk == 0) return 0;
    b->n_chunk = file / b->chunk;
    STK_TRY(stk_map_open(&b->buffer, b->chunk * IN_FLIGHT, false, "buffers to read into"));
    return stk_io_open(&b->io, &(stk_io_options){.spec = spec,
                                                 .n_file = 1,
                                                 .paths = &path,
                                                 .depth = IN_FLIGHT,
                                                 .piece_bytes = CHUNK_BYTES,
                                                 .buffer = b->buffer.base,
                                                 .buffer_bytes = b->buffer.bytes});
}

/* A drive that needs nobody to look after it: all it is to read is in flight at once. */
static int measure_reading(run *r, const char *spec, stk_cost_file *out) {
    beside b = {0};
    int rc = open_beside(r, spec, &b);
    if (rc >= 0 && b.io) rc = measure_beside(r, &b, out);
    stk_io_close(&b.io);
    stk_map_close(&b.buffer);
    return rc;
}

static int measure(run *r, const stk_calibrate_options *o, stk_cost_file *out) {
    stk_memory_info m = {.struct_bytes = sizeof m};
    uint32_t k = r->info.n_expert_used;
    STK_TRY(stk_engine_get_memory(r->engine, &m));
    uint32_t fit = m.n_slot / (k * r->info.n_moe_layer), sets = r->info.n_expert / k;
    r->n_set = STK_MAX(STK_MIN(STK_MIN(fit, sets), (uint32_t)MOST_SET), 1u);
    STK_TRY(measure_arrival(r, out));
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) {
        STK_TRY(measure_point(r, i, out));
        if (o->progress && o->progress(o->progress_user, "running the model", i + 1, STK_COST_POINTS))
            return stk_fail(STK_ECANCELED, "the calibration was cancelled");
    }
    out->lookahead_ns = lookahead_ns(r, out);
    return measure_reading(r, o->io, out);
}

int stk_calibrate_model_measure(const stk_model *model, const stk_calibrate_options *o, stk_cost_file *out) {
    run r = {.model = model, .info = {.struct_bytes = sizeof r.info}};
    STK_TRY(stk_model_get_info(model, &r.info));
    if (r.info.n_moe_layer == 0) return stk_fail(STK_EUNSUPPORTED, "the model has no experts to measure");
    r.mean_bytes = (double)r.info.expert_bytes / r.info.n_expert / r.info.n_moe_layer;
    stk_engine_options e;
    stk_engine_options_default(&e, sizeof e);
    e.n_ctx = e.n_batch = MOST_TOK;
    e.n_threads = o->n_threads;
    e.cpu = o->cpu;
    e.io = o->io;
    e.ram_bytes = o->ram_bytes;
    e.progress = o->progress;
    e.progress_user = o->progress_user;
    r.ids = calloc(r.info.n_expert_used, sizeof *r.ids);
    r.token = calloc(MOST_TOK, sizeof *r.token);
    int rc = r.ids && r.token ? stk_engine_open(&r.engine, model, &e) : stk_fail(STK_ENOMEM, "out of memory");
    for (uint32_t i = 0; rc >= 0 && i < MOST_TOK; i++) r.token[i] = (int32_t)(i * 7919u % r.info.n_vocab);
    if (rc >= 0) rc = measure(&r, o, out);
    if (rc >= 0) {
        out->has_model = true;
        out->model_bytes = r.info.file_bytes;
        snprintf(out->model, sizeof out->model, "%s", r.info.name);
    }
    (void)stk_engine_close(&r.engine); /* there is no trace to end */
    free(r.ids);
    free(r.token);
    return rc;
}
