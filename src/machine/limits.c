/*
 * limits: what this machine can do at most with all threads, measured on the spot: reading memory, integer and float arithmetic,
 * and what it costs to bring the threads to work. Each is the best of several passes, since whatever disturbs one makes it
 * slower, never faster; the waits are medians.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "cpu/peak.h"
#include "cpu/pool.h"
#include "src/mem.h"

enum {
    PASSES = 5,
    PASS_NS = 20 * 1000 * 1000, /* of arithmetic */
    N_SAMPLE = 51,              /* of waits, */
    N_WAIT = 500,               /* so many each */
};

typedef struct job {
    stk_pool *pool;
    const stk_peak_ops *peak;
    const uint8_t *buffer;
    uint64_t part; /* bytes that each worker reads */
    uint32_t n_stream;
    bool ahead;
    uint64_t n_round;
    uint32_t n_phase;      /* of an empty job */
    _Atomic uint64_t n_op; /* of all workers; relaxed: read after the run */
} job;

static void read_job(void *ctx, uint32_t worker) {
    job *j = ctx;
    uint64_t words = j->peak->read(j->buffer + worker * j->part, j->part, j->n_stream, j->ahead);
    atomic_fetch_xor_explicit(&j->n_op, words, memory_order_relaxed);
}
static void int8_job(void *ctx, uint32_t worker) {
    job *j = ctx;
    (void)worker;
    atomic_fetch_add_explicit(&j->n_op, j->peak->int8(j->n_round), memory_order_relaxed);
}
static void f32_job(void *ctx, uint32_t worker) {
    job *j = ctx;
    (void)worker;
    atomic_fetch_add_explicit(&j->n_op, j->peak->f32(j->n_round), memory_order_relaxed);
}
/* An empty item for each worker, in the first n_phase phases. */
static void empty_job(void *ctx, uint32_t worker) {
    const job *j = ctx;
    uint32_t n = stk_pool_n_worker(j->pool);
    for (uint32_t phase = 0; phase < j->n_phase; phase++) {
        while (stk_pool_take(j->pool, phase, worker, n) < n) {
        }
        stk_pool_finish(j->pool, phase, worker, n);
    }
}

static uint64_t run_ns(job *j, stk_pool_fn fn) {
    atomic_store_explicit(&j->n_op, 0, memory_order_relaxed);
    uint64_t start = stk_now_ns();
    stk_pool_run(j->pool, fn, j);
    return STK_MAX(stk_now_ns() - start, (uint64_t)1);
}

/* How to go through memory depends on the CPU: each way once, then the best one again. */
static double read_speed(job *j) {
    static const struct {
        uint32_t n_stream;
        bool ahead;
    } ways[] = {{1, false}, {4, false}, {2, true}, {4, true}, {8, true}};
    double best = 0, bytes = (double)j->part * stk_pool_n_worker(j->pool);
    size_t best_way = 0;
    for (size_t i = 0; i < STK_ARRAY_LEN(ways) + PASSES; i++) {
        size_t way = i < STK_ARRAY_LEN(ways) ? i : best_way;
        j->n_stream = ways[way].n_stream;
        j->ahead = ways[way].ahead;
        double speed = bytes * 1e9 / (double)run_ns(j, read_job);
        if (speed <= best) continue;
        best = speed;
        best_way = way;
    }
    return best;
}

static double compute_speed(job *j, stk_pool_fn fn) {
    double best = 0;
    for (j->n_round = 1024; run_ns(j, fn) < PASS_NS / 4; j->n_round *= 2) {
    }
    j->n_round *= 4;
    for (int i = 0; i < PASSES; i++) {
        uint64_t ns = run_ns(j, fn);
        best = STK_MAX(best, (double)atomic_load_explicit(&j->n_op, memory_order_relaxed) * 1e9 / (double)ns);
    }
    return best;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n) {
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

/* An empty job of so many phases, as the engine has them: nobody waits for a worker that has not woken up. */
static double wait_ns(job *j, uint32_t n_phase) {
    double ns[N_SAMPLE];
    j->n_phase = n_phase;
    for (int s = 0; s < N_SAMPLE; s++) {
        uint64_t start = stk_now_ns();
        for (int i = 0; i < N_WAIT; i++) stk_pool_share(j->pool, empty_job, j, UINT32_MAX);
        ns[s] = (double)(stk_now_ns() - start) / N_WAIT;
    }
    return median(ns, N_SAMPLE);
}

/* Four times the last cache, where memory allows that; what is free bounds it. */
static uint64_t buffer_bytes(uint32_t n_worker) {
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    uint64_t want = STK_MAX(cache > 0 ? 4 * (uint64_t)cache : 0, (uint64_t)512 << 20);
    uint64_t bytes = STK_MIN(want, stk_mem_available() / 2), unit = (uint64_t)n_worker * 8 * STK_PEAK_CHUNK;
    return bytes / unit * unit;
}

static int measure(job *j, stk_limits *out) {
    stk_map map = {0};
    uint32_t n_worker = stk_pool_n_worker(j->pool);
    uint64_t bytes = buffer_bytes(n_worker);
    if (bytes == 0) return stk_fail(STK_ENOMEM, "no memory is free to measure its speed with");
    STK_TRY(stk_map_open(&map, bytes, false, "a buffer to measure reading with"));
    memset(map.base, 1, bytes);
    j->buffer = map.base;
    j->part = bytes / n_worker;
    out->buffer_bytes = bytes;
    out->huge_bytes = map.huge_bytes;
    out->read_bytes_per_s = read_speed(j);
    stk_map_close(&map);
    out->int8_ops_per_s = compute_speed(j, int8_job);
    out->float_ops_per_s = compute_speed(j, f32_job);
    out->run_ns = wait_ns(j, 1);
    double more = wait_ns(j, STK_POOL_PHASES) - out->run_ns;
    out->phase_ns = STK_MAX(more / (STK_POOL_PHASES - 1), 1.0);
    return STK_OK;
}

int stk_measure_limits(stk_limits *limits, uint32_t n_threads, const char *cpu) {
    if (!limits) return stk_fail(STK_EINVAL, "stk_measure_limits: an argument is NULL");
    if (limits->struct_bytes < sizeof limits->struct_bytes)
        return stk_fail(STK_EINVAL, "limits of %u bytes", limits->struct_bytes);
    const stk_cpu_ops *ops = stk_cpu_ops_at_most(cpu);
    if (!ops) return stk_fail(STK_EINVAL, "no kernels are named '%s'; there are ref, avx2, avxvnni and avx512", cpu);
    job j = {.peak = stk_peak_get(ops->name)};
    STK_TRY(stk_pool_open(&j.pool, n_threads));
    stk_limits full = {.struct_bytes = STK_MIN(limits->struct_bytes, (uint32_t)sizeof full),
                       .n_threads = stk_pool_n_worker(j.pool),
                       .cpu = ops->name};
    int rc = measure(&j, &full);
    stk_pool_close(&j.pool);
    if (rc >= 0) memcpy(limits, &full, full.struct_bytes);
    return rc;
}
