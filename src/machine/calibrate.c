/* calibrate: the measurements in turn, and their file. */
#include "calibrate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"
#include "src/text_file.h"

enum {
    SAMPLES = 3,
    SCRATCH_EXPERT_PARTS = 3,
    SCRATCH_PART_BYTES = 864 << 10, /* of a Qwen3-30B-A3B expert in Q4_K */
    SCRATCH_EXPERTS = 100,
    SCRATCH_IN_FLIGHT = 8,
    N_WAKE = 101,
    WAKE_AFTER_NS = 1000000, /* longer than workers spin */
    NS_PER_S = 1000000000,
};
#define ENOUGH_NS 1e9 /* a sample of this length is the last of its format: what follows is in proportion */

void stk_calibrate_options_default(stk_calibrate_options *o, size_t struct_bytes) {
    stk_struct_give(o, struct_bytes, &(stk_calibrate_options){0}, sizeof *o);
}

static int progress(const stk_calibrate_options *o, const char *what, uint64_t done, uint64_t total) {
    if (o->progress && o->progress(o->progress_user, what, done, total))
        return stk_fail(STK_ECANCELED, "the calibration was cancelled");
    return STK_OK;
}

/* The best of a few: whatever disturbs one makes it slower. */
static double best_ns_per_byte(stk_calibrate_experts *b, enum stk_type type, uint32_t n_tok, double *took) {
    double best = 0;
    *took = 0;
    for (uint32_t i = 0; i < SAMPLES && *took < ENOUGH_NS; i++) {
        uint64_t bytes;
        double ns = stk_calibrate_experts_run(b, type, n_tok, NULL, NULL, &bytes), each = ns / (double)bytes;
        best = i == 0 ? each : STK_MIN(best, each);
        *took += ns;
    }
    return best;
}

static void measure_format(stk_calibrate_experts *b, enum stk_type type, stk_cost_format *out) {
    double took = 0;
    uint64_t bytes;
    (void)stk_calibrate_experts_run(b, type, 1, NULL, NULL, &bytes);
    for (uint32_t i = 0; i < STK_COST_POINTS; i++)
        out->expert_ns_per_byte[i] =
            took < ENOUGH_NS ? best_ns_per_byte(b, type, 1u << i, &took) : 2 * out->expert_ns_per_byte[i - 1];
    for (uint32_t i = 0; i < SAMPLES; i++) {
        double each = stk_calibrate_experts_pack(b, type, &bytes) / (double)bytes;
        out->arrive_ns_per_byte = i == 0 ? each : STK_MIN(out->arrive_ns_per_byte, each);
    }
}

/* ---- What is read ---- */

/* A read as the engine makes it, if the part has one of its own; cut where the file ends: what is aligned more than the file
 * needs may reach beyond. */
static stk_calibrate_read read_of(const stk_model *model, uint32_t layer, uint32_t expert, enum stk_part part) {
    stk_part_read r;
    stk_catalogue_read(model->experts, layer, expert, part, STK_DIRECT_ALIGN, &r);
    if (r.bytes == 0) return (stk_calibrate_read){.file = r.file};
    uint64_t end = stk_gguf_file_bytes(model->gguf, r.file) / STK_DIRECT_ALIGN * STK_DIRECT_ALIGN;
    if (r.file_offset + r.bytes <= end) return (stk_calibrate_read){r.file, r.file_offset, r.bytes};
    if (r.file_offset < end) return (stk_calibrate_read){r.file, r.file_offset, end - r.file_offset};
    return (stk_calibrate_read){r.file, 0, STK_DIRECT_ALIGN};
}

/* The experts of a model where they lie. */
static int model_reads(const stk_model *model, stk_calibrate_drive *d, stk_calibrate_read **reads, const char ***paths) {
    const stk_catalogue *cat = model->experts;
    uint32_t n_layer = stk_catalogue_n_layer(cat), n_expert = stk_catalogue_n_expert(cat);
    d->n_file = stk_gguf_n_file(model->gguf);
    *paths = calloc(d->n_file, sizeof **paths);
    *reads = calloc((size_t)n_layer * n_expert * STK_N_PART, sizeof **reads);
    if (!*paths || !*reads) return stk_fail(STK_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < d->n_file; i++) (*paths)[i] = stk_gguf_path(model->gguf, i);
    stk_calibrate_read *out = *reads;
    for (uint32_t l = 0; l < n_layer; l++) {
        if (stk_catalogue_layer_class(cat, l) == STK_NO_CLASS) continue;
        for (uint32_t e = 0; e < n_expert; e++)
            for (uint32_t p = 0; p < STK_N_PART; p++) *out++ = read_of(model, l, e, p);
        d->n_expert += n_expert;
    }
    d->k = model->hp.n_expert_used;
    if (d->n_expert == 0) return stk_fail(STK_EUNSUPPORTED, "the model has no experts to read");
    return STK_OK;
}

/* A file of its own beside `path`, which is gone as soon as it is open: *fd keeps it. */
static int scratch_file(const char *path, int *fd, char *name, size_t name_bytes) {
    enum { BLOCK = 1 << 20 };
    uint64_t left = (uint64_t)SCRATCH_EXPERTS * SCRATCH_EXPERT_PARTS * SCRATCH_PART_BYTES;
    char *beside = NULL, *block = malloc(BLOCK);
    if (!block || asprintf(&beside, "%s.read-XXXXXX", path) < 0) {
        free(block);
        return stk_fail(STK_ENOMEM, "out of memory");
    }
    *fd = mkostemp(beside, O_CLOEXEC);
    int error = *fd < 0 ? errno : 0;
    if (!error) unlink(beside);
    for (uint64_t x = 1; left > 0 && !error;) {
        for (size_t i = 0; i < BLOCK; i += sizeof x) { /* nothing that a drive could pack */
            x = x * 6364136223846793005u + 1442695040888963407u;
            memcpy(block + i, &x, sizeof x);
        }
        ssize_t n = write(*fd, block, STK_MIN(left, (uint64_t)BLOCK));
        if (n < 0 && errno != EINTR) error = errno;
        if (n > 0) left -= (uint64_t)n;
    }
    if (!error && fsync(*fd) < 0) error = errno;
    int rc = error ? stk_fail_errno(error, "a file to measure the drive with, %s", beside) : STK_OK;
    snprintf(name, name_bytes, "/proc/self/fd/%d", *fd);
    free(beside);
    free(block);
    return rc;
}

static int scratch_reads(stk_calibrate_drive *d, stk_calibrate_read **reads) {
    uint32_t n = SCRATCH_EXPERTS * SCRATCH_EXPERT_PARTS;
    *reads = calloc(n, sizeof **reads);
    if (!*reads) return stk_fail(STK_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) (*reads)[i] = (stk_calibrate_read){0, (uint64_t)i * SCRATCH_PART_BYTES, SCRATCH_PART_BYTES};
    d->n_expert = SCRATCH_EXPERTS;
    d->k = SCRATCH_IN_FLIGHT;
    return STK_OK;
}

static int measure_drive(const stk_model *model, const stk_calibrate_options *o, const char *path, stk_calibrate_experts *experts,
                         stk_cost_file *out) {
    stk_calibrate_drive d = {.io = o->io, .n_file = 1};
    stk_calibrate_read *reads = NULL;
    const char **paths = NULL;
    char name[64];
    const char *scratch = name;
    int rc, fd = -1;
    if (model) {
        STK_TRYGOTO(model_reads(model, &d, &reads, &paths), rc, out);
    } else {
        STK_TRYGOTO(scratch_file(path, &fd, name, sizeof name), rc, out);
        STK_TRYGOTO(scratch_reads(&d, &reads), rc, out);
    }
    d.reads = reads;
    d.paths = paths ? paths : &scratch;
    rc = stk_calibrate_drive_measure(&d, experts, out);
out:
    if (fd >= 0) close(fd);
    free(reads);
    free(paths);
    return rc;
}

/* ---- All of it ---- */

static int measure_machine(const stk_calibrate_options *o, stk_cost_file *out) {
    stk_limits l = {.struct_bytes = sizeof l};
    stk_machine_info m = {.struct_bytes = sizeof m};
    STK_TRY(progress(o, "measuring the CPU", 0, STK_COST_N_FORMAT + 1));
    STK_TRY(stk_measure_limits(&l, o->n_threads, o->cpu));
    STK_TRY(stk_get_machine(&m));
    snprintf(out->machine, sizeof out->machine, "%s", m.name);
    snprintf(out->cpu, sizeof out->cpu, "%s", l.cpu);
    out->n_threads = l.n_threads;
    out->read_bytes_per_s = l.read_bytes_per_s;
    out->int8_ops_per_s = l.int8_ops_per_s;
    out->float_ops_per_s = l.float_ops_per_s;
    out->run_ns = l.run_ns;
    out->phase_ns = l.phase_ns;
    return STK_OK;
}

/* An empty item for each thread; nobody waits for one that is still asleep. */
static void nothing(void *ctx, uint32_t worker) {
    stk_pool *pool = ctx;
    uint32_t n = stk_pool_n_worker(pool);
    while (stk_pool_take(pool, 0, worker, n) < n) {
    }
    stk_pool_finish(pool, 0, worker, n);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* From when the thread that plans was to wake until an empty job was done. */
static double measure_wake(stk_pool *pool) {
    double ns[N_WAKE];
    for (uint32_t i = 0; i < N_WAKE; i++) {
        uint64_t at = stk_now_ns() + WAKE_AFTER_NS;
        struct timespec t = {(time_t)(at / NS_PER_S), (long)(at % NS_PER_S)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
        }
        stk_pool_share(pool, nothing, pool, UINT32_MAX);
        ns[i] = (double)(stk_now_ns() - at);
    }
    qsort(ns, N_WAKE, sizeof *ns, by_value);
    return ns[N_WAKE / 2];
}

static int measure_experts(const stk_model *model, const stk_calibrate_options *o, const char *path, stk_cost_file *out) {
    stk_pool *pool;
    stk_calibrate_experts *experts = NULL;
    int rc;
    STK_TRY(stk_pool_open(&pool, o->n_threads));
    out->wake_ns = measure_wake(pool);
    STK_TRYGOTO(stk_calibrate_experts_open(&experts, pool, stk_cpu_ops_at_most(o->cpu)), rc, out);
    for (uint32_t i = 0; i < STK_COST_N_FORMAT; i++) {
        STK_TRYGOTO(progress(o, "measuring the CPU", i + 1, STK_COST_N_FORMAT + 1), rc, out);
        measure_format(experts, stk_cost_formats[i], &out->formats[i]);
    }
    STK_TRYGOTO(progress(o, "measuring the drive", 0, 1), rc, out);
    rc = measure_drive(model, o, path, experts, out);
out:
    stk_calibrate_experts_close(&experts);
    stk_pool_close(&pool);
    return rc;
}

/* The options, of whatever size the caller was compiled with. */
static int take_options(stk_calibrate_options *o, const stk_calibrate_options *given) {
    stk_calibrate_options_default(o, sizeof *o);
    return given ? stk_struct_take(o, sizeof *o, given, "calibration options") : STK_OK;
}

int stk_calibrate(const stk_model *model, const stk_calibrate_options *options, const char *path) {
    stk_calibrate_options o;
    if (!path) return stk_fail(STK_EINVAL, "stk_calibrate: an argument is NULL");
    STK_TRY(take_options(&o, options));
    if (model && stk_model_owns_file(model, path))
        return stk_fail(STK_EINVAL, "%s: that is a file of the model; name another", path);
    STK_TRY(stk_text_file_try(path, "cost file"));
    stk_cost_file *file = calloc(1, sizeof *file);
    if (!file) return stk_fail(STK_ENOMEM, "out of memory");
    uint32_t mxcsr = stk_mxcsr_set();
    int rc = measure_machine(&o, file);
    if (rc >= 0) rc = measure_experts(model, &o, path, file);
    if (rc >= 0 && model) rc = stk_calibrate_model_measure(model, &o, file);
    if (rc >= 0) rc = stk_cost_file_save(path, file);
    stk_mxcsr_restore(mxcsr);
    free(file);
    return rc;
}
