/*
 * bench_pool: nanoseconds of an empty run of all workers, of an empty shared job, and of each of its further phases,
 * for each number of workers. CSV on stdout.
 *
 *     bench_pool [workers...]      default: 1, 2, ... up to the CPUs of the machine, doubling
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/pool.h"

enum { N_SAMPLE = 101, RUNS = 1000, WARM_UP = 10 };

typedef struct job {
    stk_pool *pool;
    uint32_t n_phase;
} job;

static void nothing(void *ctx, uint32_t worker) {
    (void)ctx;
    (void)worker;
}

/* An empty item for each worker, in each phase. */
static void phases(void *ctx, uint32_t worker) {
    const job *j = ctx;
    uint32_t n = stk_pool_n_worker(j->pool);
    for (uint32_t phase = 0; phase < j->n_phase; phase++) {
        while (stk_pool_take(j->pool, phase, worker, n) < n) {
        }
        stk_pool_finish(j->pool, phase, worker, n);
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median over samples of the time of one run of all workers, or of one shared job of so many phases. */
static double median_ns(stk_pool *pool, uint32_t n_phase) {
    double ns[N_SAMPLE];
    job j = {pool, n_phase};
    for (int s = -WARM_UP; s < N_SAMPLE; s++) {
        uint64_t begin = stk_now_ns();
        for (uint32_t i = 0; i < RUNS; i++) {
            if (n_phase)
                stk_pool_share(pool, phases, &j, UINT32_MAX);
            else
                stk_pool_run(pool, nothing, NULL);
        }
        if (s >= 0) ns[s] = (double)(stk_now_ns() - begin) / RUNS;
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
    double one = median_ns(pool, 1), all = median_ns(pool, STK_POOL_PHASES);
    printf("%s,%s,job,%u,%d,%.1f\n", machine, STK_COMMIT, n_worker, WARM_UP, one);
    printf("%s,%s,phase,%u,%d,%.1f\n", machine, STK_COMMIT, n_worker, WARM_UP, (all - one) / (STK_POOL_PHASES - 1));
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
