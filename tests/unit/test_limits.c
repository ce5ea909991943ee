/* limits: figures in a range that machines can have, in the right order, and refusals. */
#include <criterion/criterion.h>
#include <string.h>

#include "src/stoker.h"

#define MODEL STK_TEST_DATA "/tiny/qwen3moe-f32.gguf"

Test(limits, sane_figures) {
    stk_limits l = {.struct_bytes = sizeof l};
    cr_assert_eq(stk_measure_limits(&l, 2, NULL), 0, "%s", stk_error_detail());
    cr_assert_eq(l.n_threads, 2);
    cr_assert_eq(l.struct_bytes, sizeof l);
    cr_assert(l.read_bytes_per_s > 1e8 && l.read_bytes_per_s < 2e13, "%g", l.read_bytes_per_s);
    cr_assert(l.int8_ops_per_s > 1e7 && l.int8_ops_per_s < 2 * 3072e9, "%g", l.int8_ops_per_s);
    cr_assert(l.float_ops_per_s > 1e7 && l.float_ops_per_s < 2 * 768e9, "%g", l.float_ops_per_s);
    cr_assert(l.barrier_ns > 5 && l.barrier_ns < 1e8, "%g", l.barrier_ns);
    cr_assert(l.run_ns > 5 && l.run_ns < 1e8, "%g", l.run_ns);
    cr_assert_geq(l.buffer_bytes, 64u << 20);
    cr_assert_leq(l.huge_bytes, l.buffer_bytes + (2u << 20));
}

Test(limits, the_kernels_that_were_asked_for) {
    stk_limits l = {.struct_bytes = sizeof l};
    cr_assert_eq(stk_measure_limits(&l, 1, "ref"), 0);
    cr_assert_str_eq(l.cpu, "ref");
    cr_assert_eq(l.n_threads, 1);
    cr_assert_eq(stk_measure_limits(&l, 1, "sse9"), STK_EINVAL);
    cr_assert_not_null(strstr(stk_error_detail(), "sse9"));
    cr_assert_eq(stk_measure_limits(NULL, 1, NULL), STK_EINVAL);
    cr_assert_eq(stk_measure_limits(&l, 5000, NULL), STK_EINVAL);
    stk_limits none = {0};
    cr_assert_eq(stk_measure_limits(&none, 1, NULL), STK_EINVAL);
}

Test(limits, an_empty_layer_leaves_the_engine_as_it_was) {
    stk_model *model;
    stk_engine *engine;
    stk_engine_options o;
    stk_engine_options_default(&o, sizeof o);
    o.n_threads = 2;
    o.n_ctx = 64;
    cr_assert_eq(stk_model_open(&model, MODEL), 0);
    cr_assert_eq(stk_engine_open(&engine, model, &o), 0, "%s", stk_error_detail());
    int32_t token[3] = {1, 2, 3};
    stk_batch batch = {.struct_bytes = sizeof batch, .n = 3, .token = token};
    cr_assert_eq(stk_step(engine, &batch), 0);
    float before = stk_get_logits(engine, 2)[5];
    stk_stats s = {.struct_bytes = sizeof s}, t = {.struct_bytes = sizeof t};
    cr_assert_eq(stk_engine_get_stats(engine, &s), 0);
    double layer_ns = 0;
    cr_assert_eq(stk_engine_measure_layer(engine, &layer_ns), 0, "%s", stk_error_detail());
    cr_assert(layer_ns > 100 && layer_ns < 1e8, "%g", layer_ns);
    cr_assert_eq(stk_engine_get_stats(engine, &t), 0);
    cr_assert_eq(s.n_event, t.n_event);
    cr_assert_eq(s.n_lookup, t.n_lookup);
    cr_assert_eq(stk_get_logits(engine, 2)[5], before);
    cr_assert_eq(stk_seq_trim(engine, 0, 0), 0);
    cr_assert_eq(stk_step(engine, &batch), 0);
    cr_assert_eq(stk_get_logits(engine, 2)[5], before, "the same bits after it");
    cr_assert_eq(stk_engine_measure_layer(engine, NULL), STK_EINVAL);
    cr_assert_eq(stk_engine_close(&engine), 0);
    stk_model_close(&model);
}
