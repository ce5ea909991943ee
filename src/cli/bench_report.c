/* bench_report: the results as a table for people, as CSV, or as JSON. */
#include <string.h>

#include "bench.h"

double bench_read_share(const bench *b, const bench_test *t) {
    double limit = b->limits.machine.read_bytes_per_s;
    return limit > 0 ? (double)t->bytes / t->seconds / limit : 0;
}

double bench_int8_share(const bench *b, const bench_test *t) {
    double limit = b->limits.machine.int8_ops_per_s;
    return limit > 0 ? (double)t->int8_ops / t->seconds / limit : 0;
}

/* Figures a token, for CSV and JSON. */
static const struct figure {
    const char *name;
    size_t offset; /* of a counter in stk_stats */
} figures[] = {
    {"dense_ns", offsetof(stk_stats, dense_ns)},     {"expert_ns", offsetof(stk_stats, expert_ns)},
    {"arrive_ns", offsetof(stk_stats, arrive_ns)},   {"wait_ns", offsetof(stk_stats, wait_ns)},
    {"trace_ns", offsetof(stk_stats, trace_ns)},     {"bytes", offsetof(stk_stats, bytes)},
    {"read_bytes", offsetof(stk_stats, read_bytes)}, {"n_miss", offsetof(stk_stats, n_miss)},
    {"n_prefetch", offsetof(stk_stats, n_prefetch)}, {"n_prefetch_used", offsetof(stk_stats, n_prefetch_used)},
};
enum { N_FIGURE = sizeof figures / sizeof figures[0] };

static double figure_of(const bench_test *t, const struct figure *f) {
    uint64_t v;
    memcpy(&v, (const char *)&t->stats + f->offset, sizeof v);
    return (double)v / (double)t->n_token;
}

static double per_token(const bench_test *t, uint64_t sum) { return (double)sum / (double)t->n_token; }

/* ---- For people ---- */

static int print_limits(const bench *b) {
    const stk_limits *l = &b->limits.machine;
    char buffer[32];
    int rc = cli_print("| limit (%u thread%s, %s) | |\n|---|--:|\n", l->n_threads, l->n_threads == 1 ? "" : "s", l->cpu);
    if (rc == CLI_OK)
        rc = cli_print(
            "| memory reads, %s | %.1f GB/s |\n| 8-bit arithmetic | %.0f GOP/s |\n| float32 arithmetic | %.0f GFLOP/s |\n",
            cli_bytes_text(l->buffer_bytes, buffer), l->read_bytes_per_s * 1e-9, l->int8_ops_per_s * 1e-9,
            l->float_ops_per_s * 1e-9);
    if (rc == CLI_OK)
        rc = cli_print("| an empty job | %.2f us |\n| a phase of a job | %.2f us |\n", l->run_ns * 1e-3, l->phase_ns * 1e-3);
    if (rc != CLI_OK || !b->session.engine) return rc;
    rc = cli_print("| a layer without work | %.2f us |\n| the router of one token | %.2f us |\n", b->limits.layer_ns * 1e-3,
                   b->limits.router_ns * 1e-3);
    if (rc == CLI_OK && b->limits.drive_bytes_per_s > 0)
        rc = cli_print("| reading experts (%s), before the tests | %.2f GB/s |\n| and after them | %.2f GB/s |\n",
                       b->session.memory.io, b->limits.drive_bytes_per_s * 1e-9, b->limits.drive_after_bytes_per_s * 1e-9);
    return rc;
}

static int print_tests(const bench *b) {
    const cli_session *s = &b->session;
    bool shares = b->limits.machine.read_bytes_per_s > 0;
    char size[32], ram[32];
    int rc = cli_print("| model | size | experts | threads | cpu | test | tok/s | +- | GB/s |%s\n",
                       shares ? " of reads | GOP/s | of 8-bit |" : " GOP/s |");
    if (rc == CLI_OK) rc = cli_print("|---|--:|--:|--:|---|---|--:|--:|--:|%s\n", shares ? "--:|--:|--:|" : "--:|");
    for (uint32_t i = 0; i < b->n_test && rc == CLI_OK; i++) {
        const bench_test *t = &b->tests[i];
        rc = cli_print("| %s %s | %s | %s | %u | %s | %s | %.2f | %.2f | %.2f |", s->info.arch, s->info.name,
                       cli_bytes_text(s->info.file_bytes, size), cli_bytes_text(s->memory.ram_bytes, ram), s->memory.n_threads,
                       s->memory.cpu, t->name, t->tok_s, t->stddev, (double)t->bytes / t->seconds * 1e-9);
        if (rc == CLI_OK && shares) rc = cli_print(" %.1f %% |", 100 * bench_read_share(b, t));
        if (rc == CLI_OK) rc = cli_print(" %.1f |", (double)t->int8_ops / t->seconds * 1e-9);
        if (rc == CLI_OK && shares) rc = cli_print(" %.1f %% |", 100 * bench_int8_share(b, t));
        if (rc == CLI_OK) rc = cli_print("\n");
    }
    return rc;
}

/* Microseconds a token, and the share, of each stage. */
static int print_stages(const bench *b) {
    int rc = cli_print("| us a token |");
    for (uint32_t i = 0; i < b->n_test && rc == CLI_OK; i++) rc = cli_print(" %s | |", b->tests[i].name);
    if (rc == CLI_OK) rc = cli_print("\n|---|");
    for (uint32_t i = 0; i < b->n_test && rc == CLI_OK; i++) rc = cli_print("--:|--:|");
    for (uint32_t k = 0; k < STK_N_STAGE && rc == CLI_OK; k++) {
        rc = cli_print("\n| %s |", stk_stage_name(k));
        for (uint32_t i = 0; i < b->n_test && rc == CLI_OK; i++) {
            const bench_test *t = &b->tests[i];
            double ns = (double)t->stage_ns[k];
            rc = cli_print(" %.1f | %.1f %% |", per_token(t, t->stage_ns[k]) * 1e-3, 1e-7 * ns / t->seconds);
        }
    }
    return rc == CLI_OK ? cli_print("\n") : rc;
}

static int report_md(const bench *b) {
    int rc = b->settings->limits ? print_limits(b) : CLI_OK;
    if (rc == CLI_OK && b->settings->limits && b->n_test) rc = cli_print("\n");
    if (rc == CLI_OK && b->n_test) rc = print_tests(b);
    if (rc == CLI_OK && b->n_test) rc = cli_print("\n");
    return rc == CLI_OK && b->n_test ? print_stages(b) : rc;
}

/* ---- CSV ---- */

/* A field in quotes, with those inside it doubled. */
static int print_quoted(const char *text) {
    int rc = cli_print("\"");
    for (; *text && rc == CLI_OK; text++) rc = *text == '"' ? cli_print("\"\"") : cli_print("%c", *text);
    return rc == CLI_OK ? cli_print("\",") : rc;
}

static int limits_csv(const bench *b) {
    const stk_limits *l = &b->limits.machine;
    return cli_print("cpu,threads,read_bytes_per_s,int8_ops_per_s,float_ops_per_s,run_ns,phase_ns,layer_ns,router_ns,"
                     "drive_bytes_per_s,drive_after_bytes_per_s\n%s,%u,%.0f,%.0f,%.0f,%.1f,%.1f,%.1f,%.1f,%.0f,%.0f\n",
                     l->cpu, l->n_threads, l->read_bytes_per_s, l->int8_ops_per_s, l->float_ops_per_s, l->run_ns, l->phase_ns,
                     b->limits.layer_ns, b->limits.router_ns, b->limits.drive_bytes_per_s, b->limits.drive_after_bytes_per_s);
}

static int report_csv(const bench *b) {
    const cli_session *s = &b->session;
    if (b->n_test == 0 && b->settings->limits) return limits_csv(b);
    int rc = cli_print(
        "model,arch,file_bytes,ram_bytes,threads,cpu,io,test,n_prompt,n_gen,n_depth,repetitions,tok_s,mean,stddev,least,"
        "most,median_ns,bytes_per_s,read_share,int8_ops_per_s,int8_share,touched_bytes");
    for (int i = 0; i < N_FIGURE && rc == CLI_OK; i++) rc = cli_print(",%s", figures[i].name);
    for (uint32_t k = 0; k < STK_N_STAGE && rc == CLI_OK; k++) rc = cli_print(",%s_ns", stk_stage_name(k));
    for (uint32_t i = 0; i < b->n_test && rc == CLI_OK; i++) {
        const bench_test *t = &b->tests[i];
        rc = cli_print("\n");
        if (rc == CLI_OK) rc = print_quoted(s->info.name);
        if (rc == CLI_OK)
            rc = cli_print("%s,%llu,%llu,%u,%s,%s,%s,%u,%u,%u,%u,%.4f,%.4f,%.4f,%.4f,%.4f,%.0f,%.0f,%.4f,%.0f,%.4f,%.0f",
                           s->info.arch, (unsigned long long)s->info.file_bytes, (unsigned long long)s->memory.ram_bytes,
                           s->memory.n_threads, s->memory.cpu, s->memory.io, t->name, t->n_prompt, t->n_gen, t->n_depth,
                           t->n_sample, t->tok_s, t->mean, t->stddev, t->least, t->most, t->median_ns,
                           (double)t->bytes / t->seconds, bench_read_share(b, t), (double)t->int8_ops / t->seconds,
                           bench_int8_share(b, t), per_token(t, t->bytes));
        for (int k = 0; k < N_FIGURE && rc == CLI_OK; k++) rc = cli_print(",%.2f", figure_of(t, &figures[k]));
        for (uint32_t k = 0; k < STK_N_STAGE && rc == CLI_OK; k++) rc = cli_print(",%.0f", per_token(t, t->stage_ns[k]));
    }
    return rc == CLI_OK ? cli_print("\n") : rc;
}

/* ---- JSON ---- */

static void add_limits(const bench *b, cJSON *o) {
    const stk_limits *l = &b->limits.machine;
    if (!b->settings->limits) return;
    o = cJSON_AddObjectToObject(o, "limits");
    cJSON_AddStringToObject(o, "cpu", l->cpu);
    cJSON_AddNumberToObject(o, "n_threads", l->n_threads);
    cJSON_AddNumberToObject(o, "read_bytes_per_s", l->read_bytes_per_s);
    cJSON_AddNumberToObject(o, "int8_ops_per_s", l->int8_ops_per_s);
    cJSON_AddNumberToObject(o, "float_ops_per_s", l->float_ops_per_s);
    cJSON_AddNumberToObject(o, "run_ns", l->run_ns);
    cJSON_AddNumberToObject(o, "phase_ns", l->phase_ns);
    cJSON_AddNumberToObject(o, "buffer_bytes", (double)l->buffer_bytes);
    cJSON_AddNumberToObject(o, "huge_bytes", (double)l->huge_bytes);
    if (!b->session.engine) return;
    cJSON_AddNumberToObject(o, "layer_ns", b->limits.layer_ns);
    cJSON_AddNumberToObject(o, "router_ns", b->limits.router_ns);
    cJSON_AddNumberToObject(o, "drive_bytes_per_s", b->limits.drive_bytes_per_s);
    cJSON_AddNumberToObject(o, "drive_after_bytes_per_s", b->limits.drive_after_bytes_per_s);
}

static cJSON *test_json(const bench *b, const bench_test *t) {
    const cli_session *s = &b->session;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "test", t->name);
    cJSON_AddNumberToObject(o, "tok_s", t->tok_s);
    cJSON_AddItemToObject(o, "samples", cJSON_CreateDoubleArray(t->samples, (int)t->n_sample));
    cJSON_AddNumberToObject(o, "mean", t->mean);
    cJSON_AddNumberToObject(o, "stddev", t->stddev);
    cJSON_AddNumberToObject(o, "n_prompt", t->n_prompt);
    cJSON_AddNumberToObject(o, "n_gen", t->n_gen);
    cJSON_AddNumberToObject(o, "n_depth", t->n_depth);
    cJSON_AddNumberToObject(o, "n_batch", b->n_batch);
    cJSON_AddStringToObject(o, "model", s->info.name);
    cJSON_AddStringToObject(o, "arch", s->info.arch);
    cJSON_AddNumberToObject(o, "file_bytes", (double)s->info.file_bytes);
    cJSON_AddNumberToObject(o, "median_ns", t->median_ns);
    cJSON_AddNumberToObject(o, "touched_bytes", per_token(t, t->bytes));
    cJSON_AddNumberToObject(o, "int8_ops", per_token(t, t->int8_ops));
    cJSON_AddNumberToObject(o, "float_ops", per_token(t, t->float_ops));
    cJSON_AddNumberToObject(o, "bytes_per_s", (double)t->bytes / t->seconds);
    cJSON_AddNumberToObject(o, "int8_ops_per_s", (double)t->int8_ops / t->seconds);
    if (b->limits.machine.read_bytes_per_s > 0) {
        cJSON_AddNumberToObject(o, "read_share", bench_read_share(b, t));
        cJSON_AddNumberToObject(o, "int8_share", bench_int8_share(b, t));
    }
    cJSON *token = cJSON_AddObjectToObject(o, "token"), *stages = cJSON_AddObjectToObject(o, "stage_ns");
    for (int k = 0; k < N_FIGURE; k++) cJSON_AddNumberToObject(token, figures[k].name, figure_of(t, &figures[k]));
    for (uint32_t k = 0; k < STK_N_STAGE; k++) cJSON_AddNumberToObject(stages, stk_stage_name(k), per_token(t, t->stage_ns[k]));
    cli_json_stats(o, "stats", &t->stats);
    cli_json_memory(o, &s->memory);
    add_limits(b, o);
    return o;
}

static int report_json(const bench *b) {
    cJSON *list = cJSON_CreateArray();
    for (uint32_t i = 0; i < b->n_test; i++) cJSON_AddItemToArray(list, test_json(b, &b->tests[i]));
    if (b->n_test == 0 && b->settings->limits) { /* the limits alone, in the same form */
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "test", "limits");
        cJSON_AddNumberToObject(o, "tok_s", 0);
        cJSON_AddItemToObject(o, "samples", cJSON_CreateArray());
        add_limits(b, o);
        cJSON_AddItemToArray(list, o);
    }
    return cli_json_print(list);
}

int bench_report(const bench *b) {
    if (b->n_test && b->settings->stats)
        for (uint32_t i = 0; i < b->n_test; i++) {
            cli_note("\n%s", b->tests[i].name);
            cli_print_table(NULL, &b->tests[i].stats, true);
        }
    if (b->settings->json || !strcmp(b->settings->output, "json")) return report_json(b);
    return !strcmp(b->settings->output, "csv") ? report_csv(b) : report_md(b);
}
