/*
 * bench: prefill and decode on random tokens in the manner of llama-bench, with the engine's clock of stages running.
 *
 * The context in front of a test is computed once; each repetition then cuts the sequence back to it. Prompts run before all
 * tests, so that a cache which can hold every expert does, and each test runs once, or its first tokens do, before it is
 * measured.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WARM_UP = 3, WARM_UP_GEN = 16, WARM_UP_PROMPT = 512, ROUTER_STEPS = WARM_UP_GEN, SVG_STEPS = 9 };

static int32_t draw_token(bench *b) {
    b->random ^= b->random << 13, b->random ^= b->random >> 7, b->random ^= b->random << 17;
    return (int32_t)((b->random >> 11) % b->session.info.n_vocab);
}

/* n random tokens in steps of at most `most`. */
static int run_tokens(bench *b, uint32_t n, uint32_t most) {
    int rc = 0;
    b->n_step = 0;
    for (uint32_t i = 0; i < n; i++) b->tokens[i] = draw_token(b);
    for (uint32_t i = 0, now; rc >= 0 && i < n; i += now) {
        now = n - i < most ? n - i : most;
        stk_batch batch = {.struct_bytes = sizeof batch, .n = now, .token = b->tokens + i};
        double start = cli_now();
        rc = stk_step(b->session.engine, &batch);
        b->step_ns[b->n_step++] = (cli_now() - start) * 1e9 / now;
    }
    return rc < 0 ? cli_fail_stk(rc, "computing") : CLI_OK;
}

static int trim(bench *b, uint32_t n_pos) {
    int rc = stk_seq_trim(b->session.engine, 0, (int32_t)n_pos);
    return rc < 0 ? cli_fail_stk(rc, "computing") : CLI_OK;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double median(double *v, size_t n) {
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static int summarize(bench_test *t) {
    double *sorted = malloc(t->n_sample * sizeof *sorted);
    if (!sorted) return cli_fail(CLI_FAILED, "bench", "out of memory");
    memcpy(sorted, t->samples, t->n_sample * sizeof *sorted);
    t->tok_s = median(sorted, t->n_sample);
    t->least = sorted[0];
    t->most = sorted[t->n_sample - 1];
    free(sorted);
    double squares = 0;
    for (uint32_t i = 0; i < t->n_sample; i++) t->mean += t->samples[i] / t->n_sample;
    for (uint32_t i = 0; i < t->n_sample; i++) squares += (t->samples[i] - t->mean) * (t->samples[i] - t->mean);
    t->stddev = t->n_sample > 1 ? sqrt(squares / (t->n_sample - 1)) : 0;
    return CLI_OK;
}

/* Fills the cache with what prompts route to: until a whole run misses nothing, or three have been made. */
static int fill_cache(bench *b) {
    uint64_t before = 0;
    for (int i = 0; i < MAX_WARM_UP; i++) {
        cli_progress_text("warming up");
        int rc = run_tokens(b, WARM_UP_PROMPT, b->n_batch);
        if (rc == CLI_OK) rc = trim(b, 0);
        if (rc) return rc;
        uint64_t n_miss = cli_session_stats(&b->session).n_miss;
        if (n_miss == before) break;
        before = n_miss;
    }
    return CLI_OK;
}

/* Adds what the engine counted to the test's sums. */
static int take_figures(bench *b, bench_test *t) {
    stk_profile p = {.struct_bytes = sizeof p};
    int rc = stk_engine_get_profile(b->session.engine, &p);
    if (rc < 0) return cli_fail_stk(rc, "bench");
    for (size_t i = 0; i < (size_t)(p.n_layer + 1) * STK_N_STAGE; i++) t->stage_ns[i % STK_N_STAGE] += p.stage_ns[i];
    t->bytes = p.bytes;
    t->int8_ops = p.int8_ops;
    t->float_ops = p.float_ops;
    t->n_step = p.n_step;
    t->n_token = p.n_token;
    t->stats = cli_session_stats(&b->session);
    return CLI_OK;
}

static int run_test(bench *b, bench_test *t) {
    uint32_t n = t->n_prompt ? t->n_prompt : t->n_gen, most = t->n_prompt ? b->n_batch : 1;
    stk_engine *e = b->session.engine;
    size_t n_step = 0;
    double *all_ns = malloc((size_t)t->n_sample * ((n + most - 1) / most) * sizeof *all_ns);
    if (!all_ns) return cli_fail(CLI_FAILED, "bench", "out of memory");
    cli_progress_text("%s: warming up", t->name);
    int rc = trim(b, 0);
    if (rc == CLI_OK) rc = run_tokens(b, t->n_depth, b->n_batch);
    if (rc == CLI_OK) rc = run_tokens(b, t->n_gen && n > WARM_UP_GEN ? WARM_UP_GEN : n, most);
    if (rc == CLI_OK) rc = trim(b, t->n_depth);
    if (rc == CLI_OK && (stk_engine_set_profile(e, 1) < 0 || stk_engine_reset_stats(e) < 0)) rc = cli_fail_stk(-1, "bench");
    for (uint32_t i = 0; rc == CLI_OK && i < t->n_sample; i++) {
        double start = cli_now();
        rc = run_tokens(b, n, most);
        double seconds = cli_now() - start;
        t->samples[i] = n / seconds;
        t->seconds += seconds;
        memcpy(all_ns + n_step, b->step_ns, b->n_step * sizeof *all_ns);
        n_step += b->n_step;
        if (rc == CLI_OK) rc = trim(b, t->n_depth);
        cli_progress_text("%s: %u of %u, %.2f tok/s", t->name, i + 1, t->n_sample, t->samples[i]);
    }
    if (rc == CLI_OK) rc = take_figures(b, t);
    if (rc == CLI_OK) rc = summarize(t);
    if (rc == CLI_OK) t->median_ns = median(all_ns, n_step);
    free(all_ns);
    cli_progress_clear();
    return rc;
}

/* ---- The tests that were asked for ---- */

static int add_test(bench *b, uint32_t n_prompt, uint32_t n_gen, uint32_t n_depth) {
    if (!n_prompt && !n_gen) return CLI_OK;
    bench_test *t = &b->tests[b->n_test];
    *t = (bench_test){.n_prompt = n_prompt, .n_gen = n_gen, .n_depth = n_depth, .n_sample = (uint32_t)b->settings->n_rep};
    t->samples = calloc(t->n_sample, sizeof *t->samples);
    if (!t->samples) return cli_fail(CLI_FAILED, "bench", "out of memory");
    b->n_test++;
    int n = snprintf(t->name, sizeof t->name, "%s%u", n_prompt ? "pp" : "tg", n_prompt ? n_prompt : n_gen);
    if (n_depth) snprintf(t->name + n, sizeof t->name - (size_t)n, " @ d%u", n_depth);
    uint64_t n_ctx = (uint64_t)n_depth + n_prompt + n_gen + 1;
    if (n_ctx > INT32_MAX) return cli_fail(CLI_USAGE, "bench", "%s needs more positions than there can be", t->name);
    if (n_ctx > b->n_ctx) b->n_ctx = (uint32_t)n_ctx;
    uint32_t longest = n_prompt > n_depth ? n_prompt : n_depth;
    if (longest > b->n_batch) b->n_batch = longest;
    return CLI_OK;
}

static int plan_tests(bench *b) {
    const cli_settings *s = b->settings;
    size_t n = (s->n_prompt.n + s->n_gen.n) * s->n_depth.n;
    int rc = CLI_OK;
    b->tests = calloc(n ? n : 1, sizeof *b->tests);
    if (!b->tests) return cli_fail(CLI_FAILED, "bench", "out of memory for %zu tests", n);
    b->n_batch = b->n_ctx = WARM_UP_PROMPT;
    for (size_t d = 0; d < s->n_depth.n; d++) {
        uint32_t depth = (uint32_t)s->n_depth.v[d];
        for (size_t i = 0; i < s->n_prompt.n && rc == CLI_OK; i++) rc = add_test(b, (uint32_t)s->n_prompt.v[i], 0, depth);
        for (size_t i = 0; i < s->n_gen.n && rc == CLI_OK; i++) rc = add_test(b, 0, (uint32_t)s->n_gen.v[i], depth);
    }
    if (b->n_batch > s->n_batch) b->n_batch = (uint32_t)s->n_batch;
    if (rc == CLI_OK && b->n_test == 0 && !s->limits && !s->svg)
        rc = cli_fail(CLI_USAGE, "bench", "no test: -p, -n or --limits must ask for one");
    return rc;
}

/* ---- Limits and the picture ---- */

static int measure_machine(bench *b) {
    b->limits.machine.struct_bytes = sizeof b->limits.machine;
    cli_progress_text("measuring the machine");
    int rc = stk_measure_limits(&b->limits.machine, (uint32_t)b->settings->n_threads, b->settings->cpu);
    cli_progress_clear();
    if (rc == STK_EINVAL) return cli_fail(CLI_USAGE, "bench", "%s", stk_error_detail());
    return rc < 0 ? cli_fail_stk(rc, "measuring the machine") : cli_signal_exit();
}

/* What a calibration has found of this machine, where it is not measured now. */
static int take_known_limits(bench *b) {
    char buffer[4096];
    const char *path = b->settings->cost ? b->settings->cost : cli_cost_path(b->settings, buffer, sizeof buffer);
    cli_buffer text = {0};
    if (!path || stk_cost_check(path) < 0) return CLI_OK; /* opening the engine says what is wrong with it */
    int rc = cli_read_file(&text, path);
    cJSON *json = rc == CLI_OK ? cJSON_ParseWithLength(text.data, text.bytes) : NULL;
    const cJSON *limits = cJSON_GetObjectItem(json, "limits");
    b->limits.machine.read_bytes_per_s = cJSON_GetNumberValue(cJSON_GetObjectItem(limits, "read_bytes_per_s"));
    b->limits.machine.int8_ops_per_s = cJSON_GetNumberValue(cJSON_GetObjectItem(limits, "int8_ops_per_s"));
    cJSON_Delete(json);
    free(text.data);
    return rc;
}

/* Takes all experts out of the cache. */
static int measure_drive(bench *b, double *bytes_per_s) {
    int rc = b->session.info.n_expert ? stk_engine_measure_drive(b->session.engine, bytes_per_s) : 0;
    return rc < 0 ? cli_fail_stk(rc, "measuring the drive") : CLI_OK;
}

/* The drive, before anything is in the cache; then a layer without work. */
static int measure_engine(bench *b) {
    int rc = measure_drive(b, &b->limits.drive_bytes_per_s);
    if (rc != CLI_OK) return rc;
    rc = stk_engine_measure_layer(b->session.engine, &b->limits.layer_ns);
    return rc < 0 ? cli_fail_stk(rc, "measuring the engine") : CLI_OK;
}

/* The router of one token and layer, from steps of one token. */
static int measure_router(bench *b) {
    stk_profile p = {.struct_bytes = sizeof p};
    int rc = trim(b, 0);
    if (rc == CLI_OK) rc = run_tokens(b, ROUTER_STEPS, 1);
    if (rc == CLI_OK) rc = trim(b, 0);
    if (rc) return rc;
    (void)stk_engine_set_profile(b->session.engine, 1);
    rc = run_tokens(b, ROUTER_STEPS, 1);
    if (rc) return rc;
    (void)stk_engine_get_profile(b->session.engine, &p);
    for (uint32_t l = 0; l < p.n_layer; l++)
        b->limits.router_ns += (double)p.stage_ns[(size_t)l * STK_N_STAGE + STK_STAGE_ROUTER] / ROUTER_STEPS;
    if (b->session.info.n_moe_layer) b->limits.router_ns /= b->session.info.n_moe_layer;
    return CLI_OK;
}

/* A step that was kept. */
typedef struct kept_step {
    double ns;
    stk_profile profile; /* its spans are ours */
} kept_step;

static int by_ns(const void *a, const void *b) { return by_value(&((const kept_step *)a)->ns, &((const kept_step *)b)->ns); }

/* Takes one token behind `depth` others and keeps its spans. */
static int keep_step(bench *b, uint32_t depth, kept_step *k) {
    k->profile = (stk_profile){.struct_bytes = sizeof k->profile};
    (void)stk_engine_set_profile(b->session.engine, 1);
    int rc = run_tokens(b, 1, 1);
    if (rc == CLI_OK) rc = trim(b, depth);
    if (rc) return rc;
    k->ns = b->step_ns[0];
    (void)stk_engine_get_profile(b->session.engine, &k->profile);
    size_t bytes = k->profile.n_span * sizeof(stk_span);
    stk_span *spans = malloc(bytes + 1);
    if (spans) memcpy(spans, k->profile.span, bytes);
    k->profile.span = spans;
    return spans ? CLI_OK : cli_fail(CLI_FAILED, "bench", "out of memory");
}

/* The step of median length out of a few, behind the depth of the first test. */
static int draw_picture(bench *b) {
    uint32_t depth = b->n_test ? b->tests[0].n_depth : 0, n_threads = b->session.memory.n_threads;
    kept_step steps[SVG_STEPS] = {{0}};
    char title[256];
    int rc = trim(b, 0);
    if (rc == CLI_OK) rc = run_tokens(b, depth, b->n_batch);
    if (rc == CLI_OK) rc = run_tokens(b, 1, 1);
    if (rc == CLI_OK) rc = trim(b, depth);
    for (int i = 0; i < SVG_STEPS && rc == CLI_OK; i++) rc = keep_step(b, depth, &steps[i]);
    if (rc == CLI_OK) {
        qsort(steps, SVG_STEPS, sizeof *steps, by_ns);
        snprintf(title, sizeof title, "%s, %u thread%s, %s kernels, %u token%s of context", b->session.info.name, n_threads,
                 n_threads == 1 ? "" : "s", b->session.memory.cpu, depth, depth == 1 ? "" : "s");
        rc = bench_svg(b->settings->svg, title, &steps[SVG_STEPS / 2].profile);
    }
    for (int i = 0; i < SVG_STEPS; i++) free((void *)steps[i].profile.span);
    return rc;
}

/* ---- The verb ---- */

static int open_engine(bench *b) {
    const cli_settings *s = b->settings;
    int rc = cli_session_open_model(&b->session, s->model);
    if (rc == CLI_OK && s->svg && stk_model_owns_file(b->session.model, s->svg))
        rc = cli_fail(CLI_USAGE, "bench", "--svg %s: that is a file of the model; name another", s->svg);
    if (rc == CLI_OK && s->svg) rc = cli_try_file(s->svg, "drawing");
    if (rc == CLI_OK) rc = cli_session_open_engine(&b->session, s, b->n_ctx, b->n_batch, 1);
    if (rc) return rc;
    b->tokens = malloc(b->n_ctx * sizeof *b->tokens);
    b->step_ns = malloc(b->n_ctx * sizeof *b->step_ns);
    return b->tokens && b->step_ns ? CLI_OK : cli_fail(CLI_FAILED, "bench", "out of memory");
}

static int run(bench *b) {
    const cli_settings *s = b->settings;
    int rc = s->model ? plan_tests(b) : CLI_OK;
    if (rc == CLI_OK) rc = s->limits ? measure_machine(b) : take_known_limits(b);
    if (rc || !s->model) return rc;
    rc = open_engine(b);
    if (rc == CLI_OK && s->limits) rc = measure_engine(b);
    if (rc == CLI_OK) rc = fill_cache(b);
    for (uint32_t i = 0; i < b->n_test && rc == CLI_OK; i++) rc = run_test(b, &b->tests[i]);
    if (rc == CLI_OK && s->limits) rc = measure_router(b);
    if (rc == CLI_OK && s->svg) rc = draw_picture(b);
    if (rc == CLI_OK && s->limits) rc = measure_drive(b, &b->limits.drive_after_bytes_per_s);
    return rc;
}

int cli_bench(const cli_settings *s) {
    bench b = {.settings = s, .random = 88172645463325252u};
    if (!s->model && (!s->limits || s->svg)) return cli_fail(CLI_USAGE, "bench", "which model? (-m FILE)");
    int rc = run(&b);
    if (rc == CLI_OK) rc = bench_report(&b);
    rc = cli_session_close(&b.session, rc);
    for (uint32_t i = 0; i < b.n_test; i++) free(b.tests[i].samples);
    free(b.tests);
    free(b.tokens);
    free(b.step_ns);
    return rc;
}
