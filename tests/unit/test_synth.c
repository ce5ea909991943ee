/* synth: whole models through the public API: they load and run, a seed decides every byte, and a model made from a trace routes
 * as the trace did. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base.h"
#include "tests/temp.h"
#include "traces/trace.h"

#define EMBER STK_TEST_DATA "/ember-q4_k_m.gguf"

static char model_path[TEMP_PATH], other_path[TEMP_PATH], trace_path[TEMP_PATH];

static void setup(void) {
    unlink(temp_file(model_path, "stoker-synth"));
    unlink(temp_file(other_path, "stoker-synth"));
    unlink(temp_file(trace_path, "stoker-synth"));
}

static void teardown(void) {
    unlink(model_path);
    unlink(other_path);
    unlink(trace_path);
}

static stk_synth_options options(const char *type) {
    stk_synth_options o;
    stk_synth_options_default(&o, sizeof o);
    o.shape = "tiny";
    o.type = type;
    return o;
}

static void synth(const char *path, const stk_synth_options *o) {
    cr_assert_eq(stk_synth(path, o), STK_OK, "%s", stk_error_detail());
}

/* The bytes of a file; free them. */
static char *contents(const char *path, size_t *bytes) {
    struct stat st;
    int fd = open(path, O_RDONLY);
    cr_assert(fd >= 0 && fstat(fd, &st) == 0, "%s", path);
    *bytes = (size_t)st.st_size;
    char *data = malloc(*bytes);
    for (size_t at = 0; at < *bytes;) {
        ssize_t n = read(fd, data + at, *bytes - at);
        cr_assert_gt(n, 0);
        at += (size_t)n;
    }
    close(fd);
    return data;
}

static bool same(const char *a, const char *b) {
    size_t n, m;
    char *p = contents(a, &n), *q = contents(b, &m);
    bool equal = n == m && memcmp(p, q, n) == 0;
    free(p);
    free(q);
    return equal;
}

static stk_engine *open_engine(const char *path, const char *trace, stk_model **model) {
    stk_engine_options o = {.struct_bytes = sizeof o};
    stk_engine *e;
    stk_engine_options_default(&o, sizeof o);
    o.n_threads = 2;
    o.n_ctx = 1024;
    o.n_batch = 64;
    o.trace = trace;
    cr_assert_eq(stk_model_open(model, path), STK_OK, "%s", stk_error_detail());
    cr_assert_eq(stk_engine_open(&e, *model, &o), STK_OK, "%s", stk_error_detail());
    return e;
}

static void close_engine(stk_engine **e, stk_model **model) {
    cr_assert_eq(stk_engine_close(e), STK_OK, "%s", stk_error_detail());
    stk_model_close(model);
}

static uint32_t n_vocab_of(const stk_model *m) {
    stk_model_info info = {.struct_bytes = sizeof info};
    cr_assert_eq(stk_model_get_info(m, &info), STK_OK);
    return info.n_vocab;
}

static void step(stk_engine *e, const int32_t *token, uint32_t n) {
    cr_assert_eq(stk_step(e, &(stk_batch){.struct_bytes = sizeof(stk_batch), .n = n, .token = token}), STK_OK, "%s",
                 stk_error_detail());
}

static int32_t likeliest(const float *logits, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

Test(synth, every_type_runs, .init = setup, .fini = teardown) {
    static const char *const types[] = {"Q4_K_M", "Q5_K_M", "Q8_0", "Q4_0", "BF16", "F16", "F32"};
    static const char text[] = "Any text \xc3\xa9\n\x01";
    for (size_t i = 0; i < STK_ARRAY_LEN(types); i++) {
        stk_synth_options o = options(types[i]);
        int32_t ids[32];
        stk_model *m;
        synth(model_path, &o);
        stk_engine *e = open_engine(model_path, NULL, &m);
        int64_t n = stk_tokenize(m, text, sizeof text - 1, 0, ids, 32);
        cr_assert(n > 0 && n <= 32, "%s", stk_error_detail());
        step(e, ids, (uint32_t)n);
        const float *logits = stk_get_logits(e, (uint32_t)n - 1);
        for (uint32_t k = 0; k < n_vocab_of(m); k++) cr_assert(isfinite(logits[k]), "%s", types[i]);
        close_engine(&e, &m);
    }
}

Test(synth, a_seed_decides_every_byte, .init = setup, .fini = teardown) {
    static const char *const types[] = {"Q4_K_M", "BF16"}; /* tensors of the second are cut out of pools */
    for (size_t i = 0; i < STK_ARRAY_LEN(types); i++) {
        stk_synth_options o = options(types[i]);
        o.n_vocab = 20000;
        synth(model_path, &o);
        synth(other_path, &o);
        cr_assert(same(model_path, other_path));
        o.seed = 1;
        synth(other_path, &o);
        cr_assert_not(same(model_path, other_path));
    }
}

Test(synth, layers_and_vocabulary, .init = setup, .fini = teardown) {
    stk_synth_options o = options("Q8_0");
    stk_model_info info = {.struct_bytes = sizeof info};
    stk_model *m;
    o.n_layer = 7;
    o.n_vocab = 257;
    synth(model_path, &o);
    cr_assert_eq(stk_model_open(&m, model_path), STK_OK, "%s", stk_error_detail());
    cr_assert_eq(stk_model_get_info(m, &info), STK_OK);
    cr_assert(info.n_layer == 7 && info.n_vocab == 257 && info.n_expert == 16);
    stk_model_close(&m);
}

static int cancel(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what;
    return done > total / 2 && ++*(int *)user;
}

Test(synth, mistakes, .init = setup, .fini = teardown) {
    stk_synth_options o = options("Q4_K_M");
    int n_cancel = 0;
    cr_assert_eq(stk_synth(NULL, &o), STK_EINVAL);
    cr_assert_eq(stk_synth(model_path, NULL), STK_EINVAL);
#define EXPECT(code, field, value)                                                                                               \
    do {                                                                                                                         \
        o = options("Q4_K_M");                                                                                                   \
        o.field = (value);                                                                                                       \
        cr_assert_eq(stk_synth(model_path, &o), code, #field);                                                                   \
    } while (0)
    EXPECT(STK_EINVAL, shape, "huge");
    EXPECT(STK_EINVAL, shape, NULL);
    EXPECT(STK_EINVAL, type, "Q2_K");
    EXPECT(STK_EINVAL, n_vocab, 256);
    EXPECT(STK_EINVAL, n_layer, 1025);
    EXPECT(STK_EINVAL, struct_bytes, sizeof o + 8);
    EXPECT(STK_EIO, route_from, "/nowhere");
    EXPECT(STK_EFORMAT, route_from, EMBER);
    o = options("Q4_K_M");
    o.shape = "deepseek-v2-lite";
    o.n_layer = 1;
    cr_assert_eq(stk_synth(model_path, &o), STK_EINVAL, "a layer with experts is needed");
    o = options("Q4_K_M");
    o.progress = cancel;
    o.progress_user = &n_cancel;
    cr_assert_eq(stk_synth(model_path, &o), STK_ECANCELED);
    cr_assert_eq(n_cancel, 1);
    cr_assert_neq(access(model_path, F_OK), 0, "nothing is left");
}

/* ---- Routing ------------------------------------------------------------------------------------------------------------ */

/* Runs the trained model over its own text, recorded. */
static void record(uint32_t n_prompt, uint32_t n_decode) {
    int32_t token[64];
    stk_model *m;
    stk_engine *e = open_engine(EMBER, trace_path, &m);
    for (uint32_t i = 0; i < n_prompt; i++) token[i] = (int32_t)(300 + 17 * i % 3000);
    step(e, token, n_prompt);
    for (uint32_t i = 0, last = n_prompt - 1; i < n_decode; i++, last = 0) {
        token[0] = likeliest(stk_get_logits(e, last), n_vocab_of(m));
        step(e, token, 1);
    }
    close_engine(&e, &m);
}

typedef struct routing {
    uint32_t n_layer, k, n_token;
    uint16_t *ids;  /* [n_token, n_layer, k] */
    float *weights; /* the same */
} routing;

/* Token by token as the reader of traces has it. */
static routing read_routing(const char *path) {
    stk_trace_reader *reader;
    stk_trace_record r;
    routing out = {0};
    uint32_t base = 0;
    int rc;
    cr_assert_eq(stk_trace_reader_open(&reader, path), STK_OK, "%s", stk_error_detail());
    out.n_layer = stk_trace_reader_header(reader)->n_layer;
    out.k = stk_trace_reader_header(reader)->k;
    out.ids = calloc((size_t)1000 * out.n_layer * out.k, sizeof *out.ids);
    out.weights = calloc((size_t)1000 * out.n_layer * out.k, sizeof *out.weights);
    while ((rc = stk_trace_read(reader, &r)) == 1) {
        if (r.kind == STK_TRACE_STEP) {
            base = out.n_token;
            out.n_token += r.step.n_tok;
            cr_assert_leq(out.n_token, 1000);
        }
        for (uint32_t t = 0; r.kind == STK_TRACE_EVENT && t < r.event.n_tok; t++) {
            size_t at = ((size_t)(base + t) * out.n_layer + r.event.layer) * out.k;
            memcpy(out.ids + at, r.event.ids + t * out.k, out.k * sizeof *out.ids);
            memcpy(out.weights + at, r.event.weights + t * out.k, out.k * sizeof *out.weights);
        }
    }
    cr_assert_eq(rc, 0, "%s", stk_error_detail());
    stk_trace_reader_close(&reader);
    return out;
}

/* The last step's one token against token t of the trace, in every layer. */
static void expect_routing(const stk_engine *e, const routing *want, uint32_t t) {
    for (uint32_t l = 0; l < want->n_layer; l++) {
        const uint16_t *ids;
        const float *weights;
        size_t at = ((size_t)t * want->n_layer + l) * want->k;
        cr_assert_eq(stk_get_routing(e, l, &ids, &weights), want->k);
        for (uint32_t i = 0; i < want->k; i++) {
            cr_assert_eq(ids[i], want->ids[at + i], "token %u, layer %u, rank %u: expert %u, not %u", t, l, i, ids[i],
                         want->ids[at + i]);
            cr_assert_lt(fabsf(weights[i] - want->weights[at + i]), 0.02f, "token %u, layer %u, rank %u", t, l, i);
        }
    }
}

/* Greedily from entry 0 on, once around and a little further. */
static void expect_followed(const routing *want, uint32_t n) {
    stk_model *m;
    stk_engine *e = open_engine(model_path, NULL, &m);
    int32_t token = 0;
    for (uint32_t i = 0; i < n + 5; i++) {
        cr_assert_eq((uint32_t)token, i % n, "after entry %u", (i + n - 1) % n);
        step(e, &token, 1);
        expect_routing(e, want, i % n);
        token = likeliest(stk_get_logits(e, 0), n_vocab_of(m));
    }
    token = (int32_t)n + 3; /* an entry beyond the trace's is routed as one of them */
    step(e, &token, 1);
    expect_routing(e, want, 3);
    close_engine(&e, &m);
}

static char logged[1024];
static void on_log(void *user, int level, const char *line) {
    (void)user;
    if (level <= STK_LOG_INFO) strncat(logged, line, sizeof logged - strlen(logged) - 1);
}

Test(synth, a_model_follows_a_trace_in_every_type, .init = setup, .fini = teardown) {
    static const char *const types[] = {"Q4_K_M", "Q5_K_M", "Q8_0", "Q4_0", "BF16", "F16", "F32"};
    record(40, 120);
    routing want = read_routing(trace_path);
    cr_assert_eq(want.n_token, 160);
    stk_log_set(on_log, NULL);
    for (size_t i = 0; i < STK_ARRAY_LEN(types); i++) {
        stk_synth_options o = options(types[i]);
        o.route_from = trace_path;
        synth(model_path, &o);
        expect_followed(&want, want.n_token);
    }
    cr_assert_null(strstr(logged, "starts over"));
    free(want.ids);
    free(want.weights);
}

Test(synth, a_longer_trace_wraps, .init = setup, .fini = teardown) {
    record(64, 240);
    routing want = read_routing(trace_path);
    stk_synth_options o = options("Q4_K_M");
    o.route_from = trace_path;
    stk_log_set(on_log, NULL);
    synth(model_path, &o);
    cr_assert(strstr(logged, "the first 256 of 304 tokens fit"), "%s", logged);
    expect_followed(&want, 256);
    free(want.ids);
    free(want.weights);
}

Test(synth, the_trace_is_not_overwritten, .init = setup, .fini = teardown) {
    record(8, 1);
    stk_synth_options o = options("Q4_K_M");
    o.route_from = trace_path;
    cr_assert_eq(stk_synth(trace_path, &o), STK_EINVAL);
    o.n_layer = 2;
    cr_assert_eq(stk_synth(model_path, &o), STK_EINVAL, "the layers are the trace's");
    o = options("Q4_K_M");
    o.route_from = trace_path;
    routing want = read_routing(trace_path);
    cr_assert_eq(want.n_token, 9);
    free(want.ids);
    free(want.weights);
}
