/*
 * calibrate_drive: reading experts in the engine's pattern: the parts of k experts of one layer in flight together, then those of
 * the next; first with nothing else going on, then while all threads compute experts and worker 0 looks for completions between
 * portions of work, as it does in a step.
 */
#include <stdio.h>
#include <stdlib.h>

#include "calibrate.h"
#include "io/io.h"

enum { N_LATENCY = 64, BUSY_RUNS = 9, MOST_BUSY_RUNS = 400, SMALL = 4096 };
#define PHASE_NS UINT64_C(1500000000)

typedef struct stream {
    const stk_calibrate_drive *d;
    stk_io *io;
    uint8_t *buffer; /* [k * 3, most_bytes] */
    uint64_t most_bytes;
    uint32_t left;  /* reads in flight */
    uint64_t bytes; /* read so far */
    uint64_t random;
    int rc; /* first failure */
} stream;

static uint32_t draw(stream *s, uint32_t below) {
    s->random ^= s->random << 13, s->random ^= s->random >> 7, s->random ^= s->random << 17;
    return (uint32_t)((s->random >> 11) % below);
}

/* The next event: k experts, whichever. */
static void submit(stream *s) {
    for (uint32_t i = 0; i < s->d->k && s->rc >= 0; i++) {
        const stk_calibrate_read *part = &s->d->reads[(size_t)draw(s, s->d->n_expert) * 3];
        stk_io_read reads[3];
        uint32_t n = 0;
        for (uint32_t p = 0; p < 3; p++) {
            if (part[p].bytes == 0) continue;
            reads[n++] = (stk_io_read){part[p].file, part[p].offset, part[p].bytes, s->buffer + (i * 3 + p) * s->most_bytes, i};
            s->bytes += part[p].bytes;
        }
        s->rc = stk_io_submit(s->io, STK_IO_DEMAND, reads, n);
        if (s->rc < 0) return;
        s->left += n;
    }
}

static void take(stream *s, bool wait) {
    stk_io_done done[64];
    int n = stk_io_reap(s->io, done, 64, wait);
    if (n < 0) s->rc = n;
    for (int i = 0; i < n; i++) {
        s->left--;
        if (done[i].status < 0 && s->rc >= 0) s->rc = done[i].status;
    }
}

static double read_alone(stream *s) {
    uint64_t start = stk_now_ns(), before = s->bytes;
    while (s->rc >= 0 && stk_now_ns() - start < PHASE_NS) {
        submit(s);
        while (s->left > 0 && s->rc >= 0) take(s, true);
    }
    return (double)(s->bytes - before) * 1e9 / (double)(stk_now_ns() - start);
}

/* Between portions of work: what is done is taken in, and when all is, the next event begins. */
static void poll(void *user) {
    stream *s = user;
    if (s->rc < 0) return;
    take(s, false);
    if (s->left == 0) submit(s);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

/* How long an event of experts takes while nothing is read, and while something always is. */
static void read_computing(stream *s, stk_calibrate_experts *experts, stk_cost_file *out) {
    double alone[BUSY_RUNS], busy[MOST_BUSY_RUNS];
    uint64_t bytes;
    uint32_t n = 0;
    for (uint32_t i = 0; i < BUSY_RUNS; i++) alone[i] = stk_calibrate_experts_run(experts, STK_TYPE_Q4_K, 1, NULL, NULL, &bytes);
    submit(s);
    uint64_t start = stk_now_ns(), before = s->bytes;
    while (s->rc >= 0 && stk_now_ns() - start < PHASE_NS) {
        double ns = stk_calibrate_experts_run(experts, STK_TYPE_Q4_K, 1, poll, s, &bytes);
        if (n < MOST_BUSY_RUNS) busy[n++] = ns;
    }
    out->drive_bytes_per_s_computing = (double)(s->bytes - before) * 1e9 / (double)(stk_now_ns() - start);
    while (s->left > 0 && s->rc >= 0) take(s, true);
    if (n) out->compute_slowdown = STK_MAX(median(busy, n) / median(alone, BUSY_RUNS), 1.0);
}

static double read_latency(stream *s) {
    double ns[N_LATENCY];
    for (uint32_t i = 0; i < N_LATENCY && s->rc >= 0; i++) {
        const stk_calibrate_read *part = &s->d->reads[(size_t)draw(s, s->d->n_expert) * 3];
        uint64_t start = stk_now_ns();
        s->rc = stk_io_submit(s->io, STK_IO_DEMAND, &(stk_io_read){part->file, part->offset, SMALL, s->buffer, 0}, 1);
        if (s->rc >= 0) s->left++;
        while (s->left > 0 && s->rc >= 0) take(s, true);
        ns[i] = (double)(stk_now_ns() - start);
    }
    return s->rc < 0 ? 0 : median(ns, N_LATENCY);
}

int stk_calibrate_drive_measure(const stk_calibrate_drive *d, stk_calibrate_experts *experts, stk_cost_file *out) {
    stream s = {.d = d, .random = 88172645463325252u, .most_bytes = SMALL};
    stk_map map = {0};
    for (size_t i = 0; i < (size_t)d->n_expert * 3; i++) s.most_bytes = STK_MAX(s.most_bytes, d->reads[i].bytes);
    STK_TRY(stk_map_open(&map, s.most_bytes * d->k * 3, false, "buffers to read into"));
    s.buffer = map.base;
    stk_io_options o = {.spec = d->io, .n_file = d->n_file, .paths = d->paths, .buffer = map.base, .buffer_bytes = map.bytes};
    s.rc = stk_io_open(&s.io, &o);
    if (s.rc >= 0) {
        snprintf(out->io, sizeof out->io, "%s", stk_io_name(s.io));
        out->drive_bytes_per_s = read_alone(&s);
        out->drive_latency_ns = s.rc >= 0 ? read_latency(&s) : 0;
        if (s.rc >= 0) read_computing(&s, experts, out);
    }
    int rc = s.rc;
    stk_io_close(&s.io); /* waits for what is in flight; keeps the detail of what failed */
    stk_map_close(&map);
    return rc;
}
