/* engine: the step's contract through the public API, on the tiny models: what it refuses, what it undoes, what never changes its
 * bits. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/policy.h"
#include "src/stoker.h"
#include "tests/temp.h"

#define MODEL STK_TEST_DATA "/tiny/qwen3moe-f32.gguf"

enum { N = 24 };

typedef struct setup {
    stk_model *model;
    stk_engine *engine;
    stk_model_info info;
} setup;

static setup open_with(stk_engine_options o) {
    setup s;
    cr_assert_eq(stk_model_open(&s.model, MODEL), 0, "%s", stk_error_detail());
    s.info.struct_bytes = sizeof s.info;
    cr_assert_eq(stk_model_get_info(s.model, &s.info), 0);
    o.struct_bytes = sizeof o;
    o.kv_k_type = o.kv_v_type = STK_KV_F32;
    if (!o.n_threads) o.n_threads = 2;
    if (!o.n_ctx) o.n_ctx = 128;
    cr_assert_eq(stk_engine_open(&s.engine, s.model, &o), 0, "%s", stk_error_detail());
    return s;
}

static void close_all(setup *s) {
    cr_assert_eq(stk_engine_close(&s->engine), 0, "%s", stk_error_detail());
    stk_model_close(&s->model);
}

static const int32_t *text(void) {
    static int32_t t[N];
    for (int i = 0; i < N; i++) t[i] = (i * 37 + 11) % 131;
    return t;
}

static int step(stk_engine *e, const int32_t *token, uint32_t n, int32_t seq) {
    int32_t seqs[N];
    for (uint32_t i = 0; i < n; i++) seqs[i] = seq;
    return stk_step(e, &(stk_batch){.struct_bytes = sizeof(stk_batch), .n = n, .token = token, .seq = seqs});
}

/* Logits after the whole text, taken in one step. */
static float *reference(void) {
    setup s = open_with((stk_engine_options){0});
    cr_assert_eq(step(s.engine, text(), N, 0), 0, "%s", stk_error_detail());
    float *out = malloc(s.info.n_vocab * sizeof *out);
    memcpy(out, stk_get_logits(s.engine, N - 1), s.info.n_vocab * sizeof *out);
    close_all(&s);
    return out;
}

Test(engine, a_text_in_pieces_gives_the_same_bits) {
    float *want = reference();
    for (uint32_t piece = 1; piece < N; piece += 4) {
        setup s = open_with((stk_engine_options){.n_threads = 1 + piece % 3});
        uint32_t at = 0, n = 0;
        for (; at < N; at += n) {
            n = N - at < piece ? N - at : piece;
            cr_assert_eq(step(s.engine, text() + at, n, 0), 0);
        }
        cr_assert_arr_eq(stk_get_logits(s.engine, n - 1), want, s.info.n_vocab * sizeof *want, "pieces of %u", piece);
        close_all(&s);
    }
    free(want);
}

Test(engine, the_least_memory_gives_the_same_bits_and_less_is_refused_by_name) {
    float *want = reference();
    setup s = open_with((stk_engine_options){0});
    stk_memory_info m = {.struct_bytes = sizeof m};
    cr_assert_eq(stk_engine_get_memory(s.engine, &m), 0);
    close_all(&s);
    s = open_with((stk_engine_options){.ram_bytes = m.ram_bytes_min});
    cr_assert_eq(step(s.engine, text(), N, 0), 0, "%s", stk_error_detail());
    cr_assert_arr_eq(stk_get_logits(s.engine, N - 1), want, s.info.n_vocab * sizeof *want);
    stk_stats st = {.struct_bytes = sizeof st};
    cr_assert_eq(stk_engine_get_stats(s.engine, &st), 0);
    cr_assert_gt(st.n_wave, st.n_event);
    cr_assert_eq(st.n_hit + st.n_miss, st.n_lookup);
    cr_assert_eq(st.n_pair, (uint64_t)N * s.info.n_expert_used * s.info.n_layer);
    close_all(&s);

    stk_model *model;
    stk_engine *e;
    cr_assert_eq(stk_model_open(&model, MODEL), 0);
    stk_engine_options o;
    stk_engine_options_default(&o, sizeof o);
    o.ram_bytes = m.ram_bytes_min - 1;
    cr_assert_eq(stk_engine_open(&e, model, &o), STK_EBUDGET);
    cr_assert_null(e);
    char least[32];
    snprintf(least, sizeof least, "%llu bytes", (unsigned long long)m.ram_bytes_min);
    cr_assert(strstr(stk_error_detail(), least), "%s", stk_error_detail());
    stk_model_close(&model);
    free(want);
}

/* With the least that it accepts: a policy that may refuse needs slots of its own for what it refuses. A replay, which divides
 * the budget from the trace's header, repeats every decision. */
Test(engine, every_policy_gives_the_same_bits_and_is_verified) {
    float *want = reference();
    char trace[TEMP_PATH];
    temp_file(trace, "stoker-engine");
    for (const char *const *name = stk_policy_names(); *name; name++) {
        const stk_policy_ops *ops = stk_policy_find(*name);
        if (ops->needs_future) continue;
        setup s = open_with((stk_engine_options){.policy = *name});
        stk_model_info info = s.info;
        stk_memory_info m = {.struct_bytes = sizeof m};
        cr_assert_eq(stk_engine_get_memory(s.engine, &m), 0);
        close_all(&s);
        if (ops->admit)
            cr_assert_gt(m.ram_bytes_min, info.ram_bytes_min, "%s", *name);
        else
            cr_assert_eq(m.ram_bytes_min, info.ram_bytes_min, "%s", *name);
        s = open_with((stk_engine_options){.policy = *name, .ram_bytes = m.ram_bytes_min, .trace = trace});
        for (uint32_t i = 0; i < N; i++) cr_assert_eq(step(s.engine, text() + i, 1, 0), 0, "%s: %s", *name, stk_error_detail());
        cr_assert_arr_eq(stk_get_logits(s.engine, 0), want, info.n_vocab * sizeof *want, "%s", *name);
        close_all(&s);
        stk_replay_options o;
        stk_replay_options_default(&o, sizeof o);
        stk_replay_result r = {.struct_bytes = sizeof r};
        o.verify = 1;
        cr_assert_eq(stk_replay(trace, &o, &r), 0, "%s: %s", *name, stk_error_detail());
        cr_assert_leq(r.ram_bytes, m.ram_bytes_min);
        o.verify = 0;
        o.policy = *name;
        o.ram_bytes = m.ram_bytes_min;
        cr_assert_eq(stk_replay(trace, &o, &r), 0, "%s: %s", *name, stk_error_detail());
        o.ram_bytes = m.ram_bytes_min - 1;
        cr_assert_eq(stk_replay(trace, &o, &r), STK_EBUDGET, "%s", *name);
    }
    unlink(trace);
    free(want);
}

Test(engine, a_sequence_among_others_gives_the_same_bits) {
    float *want = reference();
    setup s = open_with((stk_engine_options){.n_seq_max = 3, .n_ctx = 128});
    for (int i = 0; i < N; i++) {
        int32_t token[3] = {text()[(i * 5) % N], text()[i], text()[N - 1 - i]}, seq[3] = {2, 1, 0};
        uint8_t logits[3] = {1, 1, 0};
        stk_batch b = {.struct_bytes = sizeof b, .n = 3, .token = token, .seq = seq, .logits = logits};
        cr_assert_eq(stk_step(s.engine, &b), 0, "%s", stk_error_detail());
    }
    cr_assert_arr_eq(stk_get_logits(s.engine, 1), want, s.info.n_vocab * sizeof *want);
    cr_assert_null(stk_get_logits(s.engine, 2));
    cr_assert_null(stk_get_logits(s.engine, 3));
    close_all(&s);
    free(want);
}

Test(engine, a_failed_read_undoes_the_step_and_it_can_be_repeated) {
    float *want = reference();
    int failures = 0;
    for (int at = 1; at < 400; at += 13) {
        char io[64];
        /* Dense weights are read first; those failures end in stk_engine_open. */
        snprintf(io, sizeof io, "emu:4G,1us,eio=%d", at);
        stk_model *model;
        stk_engine *e;
        cr_assert_eq(stk_model_open(&model, MODEL), 0);
        stk_engine_options o;
        stk_engine_options_default(&o, sizeof o);
        o.io = io;
        o.n_ctx = 128;
        o.kv_k_type = o.kv_v_type = STK_KV_F32;
        int rc = stk_engine_open(&e, model, &o);
        if (rc == 0) {
            rc = step(e, text(), N, 0);
            if (rc < 0) {
                cr_assert_eq(rc, STK_EIO);
                cr_assert(strstr(stk_error_detail(), "qwen3moe-f32.gguf"), "%s", stk_error_detail());
                cr_assert_eq(stk_seq_length(e, 0), 0);
                cr_assert_null(stk_get_logits(e, N - 1));
                failures++;
                cr_assert_eq(step(e, text(), N, 0), 0, "%s", stk_error_detail());
            }
            cr_assert_eq(stk_seq_length(e, 0), N);
            cr_assert_arr_eq(stk_get_logits(e, N - 1), want, 131 * sizeof *want);
            cr_assert_eq(stk_engine_close(&e), 0);
        }
        stk_model_close(&model);
    }
    cr_assert_gt(failures, 1);
    free(want);
}

Test(engine, cancel_returns_at_once_and_only_once) {
    float *want = reference();
    setup s = open_with((stk_engine_options){0});
    stk_cancel(s.engine);
    cr_assert_eq(step(s.engine, text(), N, 0), STK_ECANCELED);
    cr_assert_eq(stk_seq_length(s.engine, 0), 0);
    cr_assert_eq(step(s.engine, text(), N, 0), 0);
    cr_assert_arr_eq(stk_get_logits(s.engine, N - 1), want, s.info.n_vocab * sizeof *want);
    close_all(&s);
    free(want);
}

static void *cancel_soon(void *engine) {
    usleep(30000);
    stk_cancel(engine);
    return NULL;
}

Test(engine, cancel_from_another_thread_ends_a_step_that_waits) {
    float *want = reference();
    setup s = open_with((stk_engine_options){.io = "emu:4G,20ms"});
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, cancel_soon, s.engine), 0);
    int rc = step(s.engine, text(), N, 0);
    pthread_join(thread, NULL);
    cr_assert_eq(rc, STK_ECANCELED);
    cr_assert_eq(stk_seq_length(s.engine, 0), 0);
    cr_assert_eq(step(s.engine, text(), N, 0), 0);
    cr_assert_arr_eq(stk_get_logits(s.engine, N - 1), want, s.info.n_vocab * sizeof *want);
    close_all(&s);
    free(want);
}

Test(engine, trim_and_go_another_way) {
    float *want = reference();
    setup s = open_with((stk_engine_options){0});
    const int32_t wrong[5] = {1, 2, 3, 4, 5};
    cr_assert_eq(step(s.engine, text(), 10, 0), 0);
    cr_assert_eq(step(s.engine, wrong, 5, 0), 0);
    cr_assert_eq(stk_seq_trim(s.engine, 0, 10), 0);
    cr_assert_eq(step(s.engine, text() + 10, N - 10, 0), 0);
    cr_assert_arr_eq(stk_get_logits(s.engine, N - 11), want, s.info.n_vocab * sizeof *want);
    close_all(&s);
    free(want);
}

Test(engine, a_full_context_is_said_and_nothing_moves) {
    setup s = open_with((stk_engine_options){.n_ctx = 20, .n_batch = 20});
    cr_assert_eq(step(s.engine, text(), 18, 0), 0);
    cr_assert_eq(step(s.engine, text(), 3, 0), STK_EFULL);
    cr_assert_eq(stk_seq_length(s.engine, 0), 18);
    cr_assert_eq(step(s.engine, text(), 2, 0), 0);
    close_all(&s);
}

Test(engine, wrong_batches_are_refused) {
    setup s = open_with((stk_engine_options){.n_batch = 8, .n_seq_max = 2, .n_logits = 1});
    stk_batch b = {.struct_bytes = sizeof b, .n = 2, .token = text()};
    int32_t seq[2] = {0, 2}, pos[2] = {0, 2}, token[2] = {0, 131};
    uint8_t both[2] = {1, 1};
    b.seq = seq;
    cr_assert_eq(stk_step(s.engine, &b), STK_EINVAL);
    b.seq = NULL;
    b.pos = pos;
    cr_assert_eq(stk_step(s.engine, &b), STK_EINVAL);
    b.pos = NULL;
    b.logits = both;
    cr_assert_eq(stk_step(s.engine, &b), STK_EINVAL);
    b.logits = NULL;
    b.token = token;
    cr_assert_eq(stk_step(s.engine, &b), STK_EINVAL);
    b.token = text();
    b.n = 9;
    cr_assert_eq(stk_step(s.engine, &b), STK_EINVAL);
    b.n = 0;
    cr_assert_eq(stk_step(s.engine, &b), STK_EINVAL);
    cr_assert_eq(stk_seq_length(s.engine, 0), 0);
    b.n = 2;
    cr_assert_eq(stk_step(s.engine, &b), 0, "%s", stk_error_detail());
    close_all(&s);
}

Test(engine, forced_routes_are_taken_and_given_back) {
    float *want = reference();
    setup s = open_with((stk_engine_options){0});
    uint16_t route[8];
    uint32_t k = s.info.n_expert_used;
    for (uint32_t i = 0; i < k; i++) route[i] = (uint16_t)i;
    cr_assert_eq(stk_force_route(s.engine, 1, route, k), 0);
    cr_assert_eq(step(s.engine, text(), N, 0), 0);
    const uint16_t *ids;
    const float *weights;
    cr_assert_eq(stk_get_routing(s.engine, 1, &ids, &weights), (int64_t)N * k);
    for (uint32_t i = 0; i < N * k; i++) cr_assert(ids[i] == i % k && weights[i] == 1.0f / (float)k);
    cr_assert_neq(memcmp(stk_get_logits(s.engine, N - 1), want, s.info.n_vocab * sizeof *want), 0);
    route[1] = route[0];
    cr_assert_eq(stk_force_route(s.engine, 1, route, k), STK_EINVAL, "an expert twice");
    route[1] = 1000;
    cr_assert_eq(stk_force_route(s.engine, 1, route, k), STK_EINVAL);
    cr_assert_eq(stk_force_route(s.engine, -1, NULL, 0), 0);
    cr_assert_eq(stk_seq_trim(s.engine, 0, 0), 0);
    cr_assert_eq(step(s.engine, text(), N, 0), 0);
    cr_assert_arr_eq(stk_get_logits(s.engine, N - 1), want, s.info.n_vocab * sizeof *want);
    close_all(&s);
    free(want);
}

Test(engine, dropping_all_experts_reads_them_again) {
    setup s = open_with((stk_engine_options){0});
    stk_stats a = {.struct_bytes = sizeof a}, b = a;
    cr_assert_eq(step(s.engine, text(), N, 0), 0);
    cr_assert_eq(stk_engine_get_stats(s.engine, &a), 0);
    cr_assert_eq(stk_engine_reset_stats(s.engine), 0);
    cr_assert_eq(stk_seq_trim(s.engine, 0, 0), 0);
    cr_assert_eq(stk_engine_drop_experts(s.engine), 0);
    cr_assert_eq(step(s.engine, text(), N, 0), 0);
    cr_assert_eq(stk_engine_get_stats(s.engine, &b), 0);
    cr_assert_gt(a.n_miss, 0);
    cr_assert_eq(a.n_miss, b.n_miss);
    cr_assert_eq(a.bytes, b.bytes);
    cr_assert_eq(a.read_bytes, b.read_bytes);
    close_all(&s);
}

Test(engine, options_are_checked) {
    stk_model *model;
    stk_engine *e;
    cr_assert_eq(stk_model_open(&model, MODEL), 0);
    const struct {
        stk_engine_options o;
        int rc;
    } cases[] = {
        {{.struct_bytes = 2}, STK_EINVAL},
        {{.struct_bytes = sizeof(stk_engine_options) + 8}, STK_EINVAL},
        {{.struct_bytes = sizeof(stk_engine_options), .io = "tape"}, STK_EINVAL},
        {{.struct_bytes = sizeof(stk_engine_options), .policy = "oracle"}, STK_EINVAL},
        {{.struct_bytes = sizeof(stk_engine_options), .cpu = "abacus"}, STK_EINVAL},
        {{.struct_bytes = sizeof(stk_engine_options), .kv_k_type = 7}, STK_EINVAL},
        {{.struct_bytes = sizeof(stk_engine_options), .n_batch = 4, .n_logits = 5}, STK_EINVAL},
        {{.struct_bytes = sizeof(stk_engine_options), .n_ctx = UINT32_MAX}, STK_EINVAL},
        {{.struct_bytes = sizeof(stk_engine_options), .n_ctx = 1u << 30}, STK_EBUDGET},
        {{.struct_bytes = sizeof(stk_engine_options), .n_threads = 5000}, STK_EINVAL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = stk_engine_open(&e, model, &cases[i].o);
        cr_assert_eq(rc, cases[i].rc, "case %zu: %d %s", i, rc, stk_error_detail());
        cr_assert_null(e);
    }
    stk_engine_options old = {.struct_bytes = offsetof(stk_engine_options, n_batch)};
    cr_assert_eq(stk_engine_open(&e, model, &old), 0, "an older, shorter struct: %s", stk_error_detail());
    cr_assert_eq(stk_engine_close(&e), 0);
    cr_assert_eq(stk_engine_close(&e), 0, "closing twice");
    stk_model_close(&model);
}

/* Calls every stk_..._options_default on a struct that is shorter than the library's. */
Test(engine, defaults_of_an_older_caller_stay_in_its_struct) {
    union {
        stk_engine_options engine;
        stk_calibrate_options calibrate;
        stk_sampler_options sampler;
        stk_trace_convert_options convert;
        stk_replay_options replay;
        stk_synth_options synth;
        stk_tune_options tune;
        stk_plan_options plan;
        uint32_t words[sizeof(stk_replay_options) / 4];
    } o;
    enum { OLD = 12 };
    for (int i = 0; i < 8; i++) {
        memset(&o, 0xee, sizeof o);
        switch (i) {
        case 0: stk_engine_options_default(&o.engine, OLD); break;
        case 1: stk_calibrate_options_default(&o.calibrate, OLD); break;
        case 2: stk_sampler_options_default(&o.sampler, OLD); break;
        case 3: stk_trace_convert_options_default(&o.convert, OLD); break;
        case 4: stk_replay_options_default(&o.replay, OLD); break;
        case 5: stk_synth_options_default(&o.synth, OLD); break;
        case 6: stk_tune_options_default(&o.tune, OLD); break;
        default: stk_plan_options_default(&o.plan, OLD); break;
        }
        cr_assert_eq(o.words[0], OLD, "%d: struct_bytes is %u", i, o.words[0]);
        cr_assert_neq(o.words[OLD / 4 - 1], 0xeeeeeeee, "%d: not filled", i);
        cr_assert_eq(o.words[OLD / 4], 0xeeeeeeee, "%d: written behind the caller's struct", i);
    }
}

Test(engine, a_trace_is_never_written_over_the_model) {
    char path[TEMP_PATH], link[TEMP_PATH + 8];
    FILE *from = fopen(MODEL, "rb"), *to = fopen(temp_file(path, "stoker-engine"), "wb");
    static char bytes[1 << 20];
    size_t n = fread(bytes, 1, sizeof bytes, from);
    cr_assert(n > 0 && n < sizeof bytes && fwrite(bytes, 1, n, to) == n);
    fclose(from);
    fclose(to);
    snprintf(link, sizeof link, "%s.link", path);
    cr_assert_eq(symlink(path, link), 0);
    stk_model *model;
    stk_engine *e;
    cr_assert_eq(stk_model_open(&model, path), 0);
    cr_assert_eq(stk_model_owns_file(model, link), 1);
    cr_assert_eq(stk_model_owns_file(model, MODEL), 0);
    cr_assert_eq(stk_model_owns_file(model, "/nonexistent"), 0);
    stk_engine_options o;
    stk_engine_options_default(&o, sizeof o);
    o.trace = link;
    cr_assert_eq(stk_engine_open(&e, model, &o), STK_EINVAL);
    cr_assert(strstr(stk_error_detail(), "a file of the model"));
    stk_model_close(&model);
    cr_assert_eq(stk_model_open(&model, path), 0, "the model is unharmed");
    stk_model_close(&model);
    unlink(link);
    unlink(path);
}

Test(engine, missing_arguments_are_refused) {
    setup s = open_with((stk_engine_options){0});
    stk_engine *e = NULL;
    stk_replay_result result = {.struct_bytes = sizeof result};
    const uint16_t *ids;
    cr_assert_eq(stk_engine_open(&e, NULL, NULL), STK_EINVAL);
    cr_assert_eq(stk_engine_open(NULL, s.model, NULL), STK_EINVAL);
    cr_assert_eq(stk_engine_close(NULL), 0);
    stk_cancel(NULL);
    cr_assert_eq(stk_step(NULL, NULL), STK_EINVAL);
    cr_assert_eq(stk_step(s.engine, NULL), STK_EINVAL);
    cr_assert_null(stk_get_logits(NULL, 0));
    cr_assert_null(stk_get_hidden(NULL, 0));
    cr_assert_eq(stk_get_routing(s.engine, 0, &ids, NULL), STK_EINVAL);
    cr_assert_eq(stk_seq_length(NULL, 0), STK_EINVAL);
    cr_assert_eq(stk_seq_trim(NULL, 0, 0), STK_EINVAL);
    cr_assert_eq(stk_engine_get_stats(s.engine, NULL), STK_EINVAL);
    cr_assert_eq(stk_engine_get_memory(s.engine, NULL), STK_EINVAL);
    cr_assert_eq(stk_replay(NULL, NULL, &result), STK_EINVAL);
    cr_assert_eq(stk_replay(MODEL, NULL, NULL), STK_EINVAL);
    cr_assert_eq(stk_tokenize(NULL, "a", 1, 0, NULL, 0), STK_EINVAL);
    cr_assert_eq(stk_token_bytes(NULL, 0, 0, NULL), STK_EINVAL);
    cr_assert_eq(stk_token_is_end(NULL, 0), 0);
    cr_assert_eq(stk_model_n_meta(NULL), 0);
    cr_assert_eq(stk_model_n_tensor(NULL), 0);
    close_all(&s);
}
