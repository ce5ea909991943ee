/*
 * bench_pool: nanoseconds of an empty run and of a barrier, for each number of workers. CSV on stdout.
 *
 *     bench_pool [workers...]      default: 1, 2, ... up to the CPUs of the machine, doubling
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/pool.h"

enum { N_SAMPLE = 101, RUNS = 1000, WARM_UP = 10 };

typedef struct barrier_ctx {
    stk_pool *pool;
    uint32_t n;
} barrier_ctx;

static void nothing(void *ctx, uint32_t worker) {
    (void)ctx;
    (void)worker;
}

static void barriers(void *p, uint32_t worker) {
    barrier_ctx *ctx = p;
    for (uint32_t i = 0; i < ctx->n; i++) stk_pool_barrier(ctx->pool, worker);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median over samples of the time of one run, or of one of the barriers that a run is full of. */
static double median_ns(stk_pool *pool, uint32_t n_barrier) {
    double ns[N_SAMPLE];
    barrier_ctx ctx = {pool, n_barrier};
    for (int s = -WARM_UP; s < N_SAMPLE; s++) {
        uint64_t begin = stk_now_ns();
        if (n_barrier)
            stk_pool_run(pool, barriers, &ctx);
        else
            for (uint32_t i = 0; i < RUNS; i++) stk_pool_run(pool, nothing, NULL);
        if (s >= 0) ns[s] = (double)(stk_now_ns() - begin) / (n_barrier ? n_barrier : RUNS);
    }
    qsort(ns, N_SAMPLE, sizeof *ns, compare);
    return ns[N_SAMPLE / 2];
}

static void cpu_model(char *out, size_t bytes) {
    snprintf(out, bytes, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) return;
    for (char line[256]; fgets(line, sizeof line, f);) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, bytes, "%s", colon + 2);
        break;
    }
    fclose(f);
}

static int bench(const char *machine, uint32_t n_worker) {
    stk_pool *pool;
    if (stk_pool_open(&pool, n_worker) < 0) {
        fprintf(stderr, "bench_pool: %s\n", stk_error_detail());
        return 1;
    }
    printf("%s,%s,run,%u,%d,%.1f\n", machine, STK_COMMIT, n_worker, WARM_UP, median_ns(pool, 0));
    printf("%s,%s,barrier,%u,%d,%.1f\n", machine, STK_COMMIT, n_worker, WARM_UP, median_ns(pool, RUNS));
    stk_pool_close(&pool);
    return 0;
}

int main(int argc, char **argv) {
    char machine[256];
    cpu_model(machine, sizeof machine);
    uint32_t n_cpu = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    int rc = 0;
    puts("machine,commit,benchmark,workers,warm_up_samples,median_ns");
    for (int i = 1; i < argc; i++) rc |= bench(machine, (uint32_t)strtoul(argv[i], NULL, 10));
    for (uint32_t n = 1; argc == 1 && n <= n_cpu; n *= 2) rc |= bench(machine, n);
    return rc;
}
