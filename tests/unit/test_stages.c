/* stages: the stages of a step add up to the step, and the clock is off unless it is asked for. */
#include <criterion/criterion.h>
#include <string.h>

#include "src/engine/stages.h"

#define MODEL STK_TEST_DATA "/ember-q4_k_m.gguf"

typedef struct setup {
    stk_model *model;
    stk_engine *engine;
    stk_model_info info;
} setup;

static setup start(const char *io, uint64_t ram_bytes) {
    setup s = {.info = {.struct_bytes = sizeof s.info}};
    stk_engine_options o;
    stk_engine_options_default(&o, sizeof o);
    o.n_ctx = 128;
    o.n_threads = 2;
    o.io = io;
    cr_assert_eq(stk_model_open(&s.model, MODEL), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_model_get_info(s.model, &s.info), 0);
    o.ram_bytes = ram_bytes ? ram_bytes : s.info.ram_bytes_all;
    cr_assert_eq(stk_engine_open(&s.engine, s.model, &o), 0, "%s", stk_error_detail());
    return s;
}

static void end(setup *s) {
    cr_assert_eq(stk_engine_close(&s->engine), 0);
    stk_model_close(&s->model);
}

static void steps(setup *s, uint32_t n_step, uint32_t n_tok) {
    int32_t token[32];
    for (uint32_t i = 0; i < n_step; i++) {
        for (uint32_t t = 0; t < n_tok; t++) token[t] = (int32_t)(i * 31 + t * 7) % 4096;
        cr_assert_eq(stk_step(s->engine, &(stk_batch){.struct_bytes = sizeof(stk_batch), .n = n_tok, .token = token}), 0);
    }
}

static stk_profile profile_of(const setup *s) {
    stk_profile p = {.struct_bytes = sizeof p};
    cr_assert_eq(stk_engine_get_profile(s->engine, &p), 0);
    return p;
}

static uint64_t sum(const stk_profile *p, uint32_t stage) {
    uint64_t ns = 0;
    for (uint32_t l = 0; l <= p->n_layer; l++) ns += p->stage_ns[l * STK_N_STAGE + stage];
    return ns;
}

static uint64_t total(const stk_profile *p) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < STK_N_STAGE; i++) ns += sum(p, i);
    return ns;
}

Test(stages, they_add_up_to_the_step) {
    for (uint32_t n_tok = 1; n_tok <= 8; n_tok += 7) {
        setup s = start(NULL, 0);
        steps(&s, 4, n_tok);
        cr_assert_eq(stk_engine_set_profile(s.engine, 1), 0);
        cr_assert_eq(stk_engine_reset_stats(s.engine), 0);
        steps(&s, 8, n_tok);
        stk_stats stats = {.struct_bytes = sizeof stats};
        cr_assert_eq(stk_engine_get_stats(s.engine, &stats), 0);
        stk_profile p = profile_of(&s);
        cr_assert_eq(p.n_step, 8);
        cr_assert_eq(p.n_token, 8 * n_tok);
        cr_assert_leq(total(&p), stats.step_ns);
        cr_assert_geq(total(&p), stats.step_ns * 85 / 100, "%u tokens: %zu of %zu ns", n_tok, (size_t)total(&p),
                      (size_t)stats.step_ns);
        end(&s);
    }
}

Test(stages, the_spans_are_the_last_step) {
    setup s = start(NULL, 0);
    cr_assert_eq(stk_engine_set_profile(s.engine, 1), 0);
    steps(&s, 1, 1);
    stk_profile p = profile_of(&s);
    cr_assert_gt(p.n_span, 10 * s.info.n_layer);
    uint64_t at = 0, ns = 0;
    for (uint32_t i = 0; i < p.n_span; i++) {
        cr_assert_eq(p.span[i].begin_ns, at, "span %u", i);
        cr_assert_lt(p.span[i].stage, STK_N_STAGE);
        cr_assert_leq(p.span[i].layer, s.info.n_layer);
        cr_assert(i == 0 || p.span[i].layer == s.info.n_layer || p.span[i - 1].layer == s.info.n_layer ||
                  p.span[i].layer >= p.span[i - 1].layer);
        at += p.span[i].ns;
        ns += p.span[i].ns;
    }
    cr_assert_eq(ns, total(&p), "one step: its spans are all there is");
    end(&s);
}

Test(stages, each_has_its_part) {
    setup s = start("emu:200M,200us", 6u << 20);
    cr_assert_eq(stk_engine_set_profile(s.engine, 1), 0);
    steps(&s, 6, 4);
    stk_profile p = profile_of(&s);
    for (uint32_t i = 0; i < STK_N_STAGE; i++)
        if (i != STK_STAGE_DEVICE) cr_assert_gt(sum(&p, i), 0, "no time in %s", stk_stage_name(i));
    const uint64_t *outside = p.stage_ns + (size_t)p.n_layer * STK_N_STAGE;
    cr_assert_gt(outside[STK_STAGE_OUTPUT], 0);
    cr_assert_eq(outside[STK_STAGE_DOWN], 0, "experts are in layers");
    cr_assert_gt(sum(&p, STK_STAGE_IO), 6 * 200000u, "a slow drive is waited for");
    end(&s);
}

Test(stages, what_was_touched) {
    setup s = start(NULL, 0);
    cr_assert_eq(stk_engine_set_profile(s.engine, 1), 0);
    steps(&s, 3, 1);
    stk_profile p = profile_of(&s);
    double token = (double)s.info.token_bytes;
    cr_assert(p.bytes > 3 * token * 0.95 && p.bytes < 3 * token * 1.15, "%zu bytes of 3 tokens of %.0f", (size_t)p.bytes, token);
    cr_assert_gt(p.int8_ops, 3 * 2 * token, "less than two operations a byte");
    cr_assert_gt(p.float_ops, 0);
    end(&s);
}

Test(stages, off_until_asked_for_and_from_zero_then) {
    setup s = start(NULL, 0);
    steps(&s, 2, 1);
    stk_profile p = profile_of(&s);
    cr_assert_eq(p.n_step, 0);
    cr_assert_eq(total(&p) + p.n_span + p.bytes + p.int8_ops, 0);
    cr_assert_eq(stk_engine_set_profile(s.engine, 1), 0);
    steps(&s, 2, 1);
    cr_assert_eq(stk_engine_set_profile(s.engine, 0), 0);
    steps(&s, 1, 1);
    p = profile_of(&s);
    cr_assert_eq(p.n_step + total(&p), 0);
    end(&s);
}

Test(stages, names_and_refusals) {
    for (uint32_t i = 0; i < STK_N_STAGE; i++) {
        cr_assert_not_null(stk_stage_name(i), "%u", i);
        for (uint32_t k = 0; k < i; k++) cr_assert_str_neq(stk_stage_name(i), stk_stage_name(k));
    }
    cr_assert_null(stk_stage_name(STK_N_STAGE));
    stk_profile p = {0};
    setup s = start(NULL, 0);
    cr_assert_eq(stk_engine_get_profile(s.engine, &p), STK_EINVAL);
    cr_assert_eq(stk_engine_get_profile(NULL, &p), STK_EINVAL);
    cr_assert_eq(stk_engine_set_profile(NULL, 1), STK_EINVAL);
    end(&s);
}

Test(stages, what_does_not_fit_is_still_counted) {
    static uint64_t memory[4096];
    stk_stages s;
    cr_assert_leq(stk_stages_bytes(1), sizeof memory);
    stk_stages_place(&s, 1, memory);
    stk_stages_reset(&s, true);
    stk_stages_begin(&s, 1);
    for (uint32_t i = 0; i < s.n_span_max + 10; i++) stk_stages_mark(&s, 0, STK_STAGE_NORM);
    stk_stages_mark(&s, 1, STK_STAGE_DOWN);
    cr_assert_eq(s.n_span, s.n_span_max);
    cr_assert_eq(s.ns[STK_N_STAGE + STK_STAGE_NORM], s.last_ns - s.begin_ns);
    cr_assert_eq(s.ns[STK_N_STAGE + STK_STAGE_DOWN], 0, "worker 0 alone has the clock");
}
