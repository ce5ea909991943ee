/*
 * bench_io: GB/s and CPU time of reading a file at random, for each backend, size of pieces, depth, and pages of the buffer. CSV
 * on stdout.
 *
 *     bench_io FILE [MIB_PER_SAMPLE] [SAMPLES]      default: 256 MiB, 5 samples
 *
 * A sample reads extents of 4 MiB in random order, none twice, all queued at once. Samples go round all configurations, so that a
 * busy minute of the machine does not fall on one of them; the first round warms up and is not counted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "io/io.h"
#include "src/mem.h"

enum { EXTENT_BYTES = 4 << 20, MAX_SAMPLE = 101, WARM_UP = 1 };
static const char *const specs[] = {"uring", "pread"};
static const uint32_t piece_kib[] = {128, 256, 512, 1024, 2048, 4096};
static const uint32_t depths[] = {1, 2, 4, 8, 16, 32, 64, 128};

typedef struct config {
    const char *spec;
    uint32_t piece_bytes;
    uint32_t depth;
    bool huge;
    double gb_per_s[MAX_SAMPLE];
    double cpu_ms_per_gb[MAX_SAMPLE];
} config;

typedef struct bench {
    const char *path;
    uint64_t sample_bytes;
    uint32_t n_sample;
    uint32_t n_extent; /* of the file */
    uint32_t *order;   /* [n_extent] shuffled for each sample */
    stk_map huge;
    char *small;
} bench;

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n) {
    qsort(values, n, sizeof *values, compare);
    return values[n / 2];
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

static double cpu_ms(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e3 +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e3;
}

static void shuffle(bench *b) {
    for (uint32_t i = b->n_extent - 1; i > 0; i--) {
        uint32_t j = (uint32_t)random() % (i + 1), t = b->order[i];
        b->order[i] = b->order[j];
        b->order[j] = t;
    }
}

static int read_all(stk_io *io, const bench *b, char *buffer) {
    uint32_t n = (uint32_t)(b->sample_bytes / EXTENT_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        stk_io_read read = {
            .offset = (uint64_t)b->order[i] * EXTENT_BYTES, .bytes = EXTENT_BYTES, .dst = buffer + (uint64_t)i * EXTENT_BYTES};
        STK_TRY(stk_io_submit(io, STK_IO_DEMAND, &read, 1));
    }
    while (stk_io_in_flight(io)) {
        stk_io_done done[16];
        int got = stk_io_reap(io, done, 16, true);
        STK_TRY(got);
        for (int i = 0; i < got; i++) STK_TRY(done[i].status);
    }
    return 0;
}

static int sample(bench *b, config *c, int s) {
    char *buffer = c->huge ? b->huge.base : b->small;
    stk_io *io;
    STK_TRY(stk_io_open(&io, &(stk_io_options){.spec = c->spec,
                                               .n_file = 1,
                                               .paths = &b->path,
                                               .depth = c->depth,
                                               .piece_bytes = c->piece_bytes,
                                               .buffer = buffer,
                                               .buffer_bytes = b->sample_bytes}));
    shuffle(b);
    double cpu = cpu_ms();
    uint64_t begin = stk_now_ns();
    int rc = read_all(io, b, buffer);
    double seconds = (double)(stk_now_ns() - begin) / 1e9, gb = (double)b->sample_bytes / 1e9;
    if (rc == 0 && s >= 0) {
        c->gb_per_s[s] = gb / seconds;
        c->cpu_ms_per_gb[s] = (cpu_ms() - cpu) / gb;
    }
    stk_io_close(&io);
    return rc;
}

static int open_bench(bench *b, int argc, char **argv) {
    struct stat st;
    b->path = argv[1];
    b->sample_bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 256) << 20;
    b->n_sample = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 5;
    if (stat(b->path, &st) != 0) return stk_fail(STK_EIO, "%s: cannot open", b->path);
    b->n_extent = (uint32_t)((uint64_t)st.st_size / EXTENT_BYTES);
    if (b->n_sample < 1 || b->n_sample > MAX_SAMPLE || b->sample_bytes < 64u << 20 ||
        b->n_extent < b->sample_bytes / EXTENT_BYTES)
        return stk_fail(STK_EINVAL, "1 to %d samples of 64 MiB or more, and no more than the file has", MAX_SAMPLE);
    b->order = malloc(b->n_extent * sizeof *b->order);
    if (!b->order) return stk_fail(STK_ENOMEM, "no memory");
    for (uint32_t i = 0; i < b->n_extent; i++) b->order[i] = i;
    STK_TRY(stk_map_open(&b->huge, b->sample_bytes, false, "buffer on huge pages"));
    b->small = mmap(NULL, b->sample_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->small == MAP_FAILED) return stk_fail(STK_ENOMEM, "no memory for the buffer on small pages");
    madvise(b->small, b->sample_bytes, MADV_NOHUGEPAGE);
    memset(b->small, 1, b->sample_bytes);
    return 0;
}

static int run(bench *b, config *configs, uint32_t n) {
    for (int s = -WARM_UP; s < (int)b->n_sample; s++)
        for (uint32_t i = 0; i < n; i++) STK_TRY(sample(b, &configs[i], s));
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_io FILE [MIB_PER_SAMPLE] [SAMPLES]\n");
        return 2;
    }
    static config configs[STK_ARRAY_LEN(specs) * STK_ARRAY_LEN(piece_kib) * STK_ARRAY_LEN(depths) * 2];
    uint32_t n = 0;
    for (size_t s = 0; s < STK_ARRAY_LEN(specs); s++)
        for (size_t p = 0; p < STK_ARRAY_LEN(piece_kib); p++)
            for (size_t d = 0; d < STK_ARRAY_LEN(depths); d++)
                for (int huge = 0; huge < 2; huge++)
                    configs[n++] =
                        (config){.spec = specs[s], .piece_bytes = piece_kib[p] << 10, .depth = depths[d], .huge = huge};
    bench b = {0};
    int rc = open_bench(&b, argc, argv);
    if (rc == 0) rc = run(&b, configs, n);
    if (rc < 0) {
        fprintf(stderr, "bench_io: %s\n", stk_error_detail());
        return 1;
    }
    char machine[256];
    cpu_model(machine, sizeof machine);
    puts("machine,commit,backend,piece_kib,depth,pages,warm_up_samples,samples,median_gb_per_s,median_cpu_ms_per_gb");
    for (uint32_t i = 0; i < n; i++) {
        config *c = &configs[i];
        printf("%s,%s,%s,%u,%u,%s,%d,%u,%.3f,%.1f\n", machine, STK_COMMIT, c->spec, c->piece_bytes >> 10, c->depth,
               c->huge ? "2M" : "4K", WARM_UP, b.n_sample, median(c->gb_per_s, b.n_sample), median(c->cpu_ms_per_gb, b.n_sample));
    }
    return 0;
}
