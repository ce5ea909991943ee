/*
 * bench_model: speed of the whole engine on one model. CSV on stdout.
 *
 *     bench_model [MODEL.gguf [KEY=VALUE...]]      default: the model that comes with the tests
 *
 * Keys: prompt (512), gen (64), reps (3), t (threads), ram (bytes, or a percentage of all experts such as 50%), io, cpu, batch,
 * drive. Tests: `prompt`, that many tokens in steps of at most `batch` from an empty context; `gen`, tokens one by one from an
 * empty context; tokens are random. Before them, the prompt runs until it misses no expert, at most 3 times. `median_ns` is of a
 * step's tokens; the other times and bytes are means a token, as the engine counts them. drive=N: what the engine's own reads
 * reach, N random experts of a layer in flight together and none computed, in bytes a second (column tok_s).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/engine.h"

enum { WARM_UP = 3, MAX_STEP = 1 << 16 };

typedef struct bench {
    const char *path;
    uint32_t prompt, gen, reps, drive;
    double ram_percent;
    stk_engine_options o;
    stk_model *model;
    stk_model_info info;
    stk_engine *engine;
    stk_memory_info memory;
    char machine[256];
    uint64_t random;
    uint64_t step_ns[MAX_STEP]; /* a token, of the running repetition */
    uint32_t n_step;
} bench;

static int fail(const char *what) {
    fprintf(stderr, "bench_model: %s: %s\n", what, stk_error_detail());
    return 1;
}

static uint32_t draw(bench *b, uint32_t below) {
    b->random ^= b->random << 13, b->random ^= b->random >> 7, b->random ^= b->random << 17;
    return (uint32_t)((b->random >> 11) % below);
}

/* n random tokens in steps of at most `most`, from an empty context. */
static int run(bench *b, uint32_t n, uint32_t most) {
    int32_t *token = malloc(n * sizeof *token);
    if (!token) return fail("out of memory");
    for (uint32_t i = 0; i < n; i++) token[i] = (int32_t)draw(b, b->info.n_vocab);
    int rc = stk_seq_trim(b->engine, 0, 0);
    b->n_step = 0;
    for (uint32_t i = 0, now; rc >= 0 && i < n; i += now) {
        now = STK_MIN(n - i, most);
        stk_batch batch = {.struct_bytes = sizeof batch, .n = now, .token = token + i};
        uint64_t start = stk_now_ns();
        rc = stk_step(b->engine, &batch);
        if (b->n_step < MAX_STEP) b->step_ns[b->n_step++] = (stk_now_ns() - start) / now;
    }
    free(token);
    return rc < 0 ? fail("step") : 0;
}

static int compare(const void *a, const void *c) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)c;
    return (x > y) - (x < y);
}

static void print_head(const bench *b, const char *test, uint32_t rep) {
    const char *name = strrchr(b->path, '/');
    printf("%s,%s,%s,%s,%s,%u,%" PRIu64 ",%d,%s,%u", b->machine, STK_COMMIT, name ? name + 1 : b->path, b->memory.cpu,
           b->memory.io, b->memory.n_threads, b->memory.ram_bytes, WARM_UP, test, rep);
}

static int measure(bench *b, const char *test, uint32_t n, uint32_t most, uint32_t rep) {
    stk_stats s = {.struct_bytes = sizeof s};
    if (stk_engine_reset_stats(b->engine) < 0) return fail("stats");
    uint64_t start = stk_now_ns();
    if (run(b, n, most)) return 1;
    double ns = (double)(stk_now_ns() - start), per = 1.0 / n;
    if (stk_engine_get_stats(b->engine, &s) < 0) return fail("stats");
    qsort(b->step_ns, b->n_step, sizeof *b->step_ns, compare);
    print_head(b, test, rep);
    printf(",%.2f,%" PRIu64 ",%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,%.2f,%.2f,%.2f\n", n / ns * 1e9, b->step_ns[b->n_step / 2],
           (double)s.dense_ns * per, (double)s.expert_ns * per, (double)s.arrive_ns * per, (double)s.wait_ns * per,
           (double)s.bytes * per, (double)s.read_bytes * per, (double)s.n_miss * per, (double)s.n_prefetch * per,
           (double)s.n_prefetch_used * per);
    fflush(stdout);
    return 0;
}

/* Reads b->drive random experts of one layer after another, as an event would, for a second and a half. */
static int measure_drive(bench *b) {
    const stk_catalogue *cat = b->model->experts;
    stk_engine *e = b->engine;
    uint64_t start = stk_now_ns(), bytes = 0, now = start;
    uint32_t n_expert = stk_catalogue_n_expert(cat), n = STK_MIN(b->drive, b->info.n_expert_used);
    stk_arrival *done = malloc(2 * n_expert * sizeof *done);
    if (!done) return fail("out of memory");
    for (uint32_t layer = 0; now - start < 1500000000u; layer = (layer + 1) % stk_catalogue_n_layer(cat), now = stk_now_ns()) {
        uint32_t first = draw(b, n_expert), step = 1 + 2 * draw(b, n_expert / 2), left = n;
        for (uint32_t i = 0; i < n; i++) {
            uint16_t expert = (uint16_t)((first + i * step) % n_expert);
            stk_decision d = {
                .key = layer * n_expert + expert, .expert = expert, .kind = STK_ADMIT, .slot = i, .victim = STK_NO_KEY};
            uint64_t payload, asked;
            stk_store_sizes(e->store, layer, expert, &payload, &asked);
            bytes += asked;
            if (stk_store_read(e->store, layer, &d, i) < 0) return free(done), fail("read");
        }
        while (left > 0) {
            if (stk_store_poll(e->store, true) < 0) return free(done), fail("read");
            (void)stk_store_pick(e->store, true);
            (void)stk_store_settle(e->store); /* nothing is packed: the drive alone is measured */
            for (uint32_t i = stk_store_take(e->store, done, 2 * n_expert); i-- > 0;) left -= done[i].phases == STK_PHASE_ALL;
        }
    }
    free(done);
    print_head(b, "drive", 0);
    printf(",%.0f,,,,,,,,,,\n", (double)bytes / (double)(now - start) * 1e9);
    fflush(stdout);
    return stk_engine_drop_experts(e) < 0 ? fail("drop") : 0;
}

static int bench_all(bench *b) {
    b->info.struct_bytes = sizeof b->info;
    b->memory.struct_bytes = sizeof b->memory;
    if (stk_model_open(&b->model, b->path) < 0 || stk_model_get_info(b->model, &b->info) < 0) return fail(b->path);
    if (b->ram_percent > 0) b->o.ram_bytes = (uint64_t)((double)b->info.expert_bytes * b->ram_percent / 100);
    b->o.n_ctx = STK_MAX(b->prompt, b->gen) + 64;
    if (stk_engine_open(&b->engine, b->model, &b->o) < 0) return fail("engine");
    if (stk_engine_get_memory(b->engine, &b->memory) < 0) return fail("memory");
    if (b->drive && measure_drive(b)) return 1;
    stk_stats s = {.struct_bytes = sizeof s};
    for (int i = 0; i < WARM_UP; i++) {
        uint64_t before = s.n_miss;
        if (b->prompt && run(b, b->prompt, b->o.n_batch)) return 1;
        if (stk_engine_get_stats(b->engine, &s) < 0) return fail("stats");
        if (i > 0 && s.n_miss == before) break;
    }
    if (b->gen && run(b, STK_MIN(b->gen, 16), 1)) return 1;
    for (uint32_t rep = 0; rep < b->reps; rep++) {
        if (b->prompt && measure(b, "prompt", b->prompt, b->o.n_batch, rep)) return 1;
        if (b->gen && measure(b, "gen", b->gen, 1, rep)) return 1;
    }
    if (b->drive && measure_drive(b)) return 1;
    return 0;
}

static void machine_name(char *out, size_t bytes) {
    snprintf(out, bytes, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) return;
    for (char line[256]; fgets(line, sizeof line, f);) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, bytes, "%s", colon + 2);
        break;
    }
    fclose(f);
}

static int set(bench *b, const char *arg) {
    const char *value = strchr(arg, '=');
    size_t n = value ? (size_t)(value++ - arg) : 0;
    uint64_t number = value ? strtoull(value, NULL, 10) : 0;
    const struct {
        const char *key;
        uint32_t *at;
    } keys[] = {{"prompt", &b->prompt},
                {"gen", &b->gen},
                {"reps", &b->reps},
                {"drive", &b->drive},
                {"t", &b->o.n_threads},
                {"batch", &b->o.n_batch},
                {"lookahead", &b->o.predict_depth}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strlen(keys[i].key) != n || strncmp(keys[i].key, arg, n) != 0) continue;
        *keys[i].at = (uint32_t)number;
        return 0;
    }
    if (n == 2 && !strncmp(arg, "io", n)) return b->o.io = value, 0;
    if (n == 3 && !strncmp(arg, "cpu", n)) return b->o.cpu = value, 0;
    if (n == 9 && !strncmp(arg, "predictor", n)) return b->o.predictor = value, 0;
    if (n == 3 && !strncmp(arg, "ram", n)) {
        if (strchr(value, '%'))
            b->ram_percent = strtod(value, NULL);
        else
            b->o.ram_bytes = number;
        return 0;
    }
    fprintf(stderr, "bench_model: no such key: %s\n", arg);
    return 1;
}

int main(int argc, char **argv) {
    static bench b = {.prompt = 512, .gen = 64, .reps = 3, .random = 88172645463325252u};
    stk_engine_options_default(&b.o);
    b.o.n_batch = 512;
    b.path = argc > 1 ? argv[1] : STK_TEST_DATA "/ember-q4_k_m.gguf";
    for (int i = 2; i < argc; i++)
        if (set(&b, argv[i])) return 2;
    machine_name(b.machine, sizeof b.machine);
    puts("machine,commit,model,cpu,io,threads,ram_bytes,warm_up,test,rep,tok_s,median_ns,dense_ns,expert_ns,arrive_ns,wait_ns,"
         "bytes,"
         "read_bytes,misses,prefetches,prefetches_used");
    int rc = bench_all(&b);
    (void)stk_engine_close(&b.engine);
    stk_model_close(&b.model);
    return rc;
}
