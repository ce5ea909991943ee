/* bench: what benchmark programs share. */
#ifndef STK_BENCH_H
#define STK_BENCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The CPU's name from /proc/cpuinfo, for the first column of the CSV. */
static inline const char *bench_machine(void) {
    static char name[256] = "unknown";
    FILE *f = fopen("/proc/cpuinfo", "r");
    for (char line[256]; f && fgets(line, sizeof line, f);) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(name, sizeof name, "%s", colon + 2);
        break;
    }
    if (f) fclose(f);
    return name;
}

/* Nanoseconds that this thread has computed for: not disturbed by others on a shared machine, except through its caches. */
static inline uint64_t bench_cpu_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline int bench_by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static inline uint64_t bench_median(uint64_t *samples, size_t n) {
    qsort(samples, n, sizeof *samples, bench_by_value);
    return samples[n / 2];
}

#endif
