/* fit: what `stoker plan` says, against what an engine then reserves; and what it refuses. */
#include <criterion/criterion.h>
#include <string.h>

#include "src/stoker.h"

#define MODEL STK_TEST_DATA "/ember-q4_k_m.gguf"

static stk_model *model;
static void setup(void) { cr_assert_eq(stk_model_open(&model, MODEL), 0); }
static void teardown(void) { stk_model_close(&model); }

static stk_plan_options options(void) {
    stk_plan_options o;
    stk_plan_options_default(&o, sizeof o);
    o.n_threads = 1;
    return o;
}

static stk_plan_info plan(stk_plan_options o) {
    stk_plan_info p = {.struct_bytes = sizeof p};
    cr_assert_eq(stk_plan(model, &o, &p), 0, "%s", stk_error_detail());
    return p;
}

Test(fit, an_engine_reserves_what_was_planned, .init = setup, .fini = teardown) {
    stk_engine *engine;
    stk_engine_options e;
    stk_memory_info m = {.struct_bytes = sizeof m};
    stk_plan_options o = options();
    o.n_ctx = 128;
    stk_plan_info p = plan(o);
    stk_engine_options_default(&e, sizeof e);
    e.n_threads = 1;
    e.n_ctx = 128;
    cr_assert_eq(stk_engine_open(&engine, model, &e), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_engine_get_memory(engine, &m), 0);
    cr_assert_eq(p.dense_bytes, m.dense_bytes);
    cr_assert_eq(p.kv_bytes, m.kv_bytes);
    cr_assert_eq(p.buffer_bytes, m.buffer_bytes);
    cr_assert_eq(p.n_slot_ram, m.n_slot);
    cr_assert_eq(p.n_ctx, m.n_ctx);
    cr_assert_eq(p.nvme_bytes, 0);
    cr_assert_eq(stk_engine_close(&engine), 0);
}

Test(fit, a_gpu_takes_what_it_can, .init = setup, .fini = teardown) {
    stk_plan_options o = options();
    stk_plan_info alone = plan(o);
    o.cost = "4090";
    stk_plan_info all = plan(o);
    cr_assert(all.gpu && !alone.gpu);
    cr_assert_str_eq(all.gpu_name, "NVIDIA GeForce RTX 4090");
    cr_assert_eq(all.n_slot_vram, all.n_expert);
    cr_assert_float_eq(all.vram_hit, 1, 1e-12);
    cr_assert_eq(all.vram_used_bytes, all.dense_bytes + all.kv_bytes + all.buffer_bytes + all.vram_bytes);
    cr_assert_gt(all.staging_bytes, 0);
    cr_assert_geq(all.decode_tok_s, alone.decode_tok_s);
    stk_model_info info = {.struct_bytes = sizeof info};
    cr_assert_eq(stk_model_get_info(model, &info), 0);
    o.vram_bytes = info.ram_bytes_all / 2;
    o.ram_bytes = info.ram_bytes_min;
    stk_plan_info some = plan(o);
    cr_assert(some.n_slot_vram < all.n_slot_vram && some.n_slot_vram > 0);
    cr_assert_gt(some.nvme_bytes, 0);
    cr_assert_lt(some.decode_tok_s, all.decode_tok_s);
    cr_assert_leq(some.decode_tok_s_uniform, some.decode_tok_s);
    cr_assert_eq(some.nvme_bytes + some.vram_bytes + some.ram_bytes, info.ram_bytes_all);
}

Test(fit, what_cannot_fit_is_refused_and_the_least_fits, .init = setup, .fini = teardown) {
    stk_plan_info p = {.struct_bytes = sizeof p};
    stk_model_info info = {.struct_bytes = sizeof info};
    cr_assert_eq(stk_model_get_info(model, &info), 0);
    stk_plan_options o = options();
    o.ram_bytes = info.ram_bytes_min - 1;
    cr_assert_eq(stk_plan(model, &o, &p), STK_EBUDGET);
    cr_assert_not_null(strstr(stk_error_detail(), "the least is"));
    o.ram_bytes = info.ram_bytes_min;
    p = plan(o);
    o.ram_free_bytes = p.ram_used_bytes;
    p = plan(o);
    cr_assert_eq(p.n_ctx_max, p.n_ctx, "no position more");
    o.ram_free_bytes--;
    cr_assert_eq(stk_plan(model, &o, &p), STK_EBUDGET);
    o = options();
    o.vram_bytes = 1 << 20;
    cr_assert_eq(stk_plan(model, &o, &p), STK_EINVAL, "no GPU");
    o.cost = "4090";
    o.vram_cap_bytes = 1 << 20;
    cr_assert_eq(stk_plan(model, &o, &p), STK_EBUDGET);
    cr_assert_not_null(strstr(stk_error_detail(), "the least"));
    o.vram_cap_bytes = 0;
    o.vram_bytes = 4096;
    cr_assert_eq(stk_plan(model, &o, &p), STK_EBUDGET);
}

Test(fit, a_longer_context_needs_more, .init = setup, .fini = teardown) {
    stk_plan_options o = options();
    o.n_ctx = 64;
    stk_plan_info few = plan(o);
    o.n_ctx = 256;
    stk_plan_info many = plan(o);
    cr_assert_gt(many.kv_bytes, few.kv_bytes);
    cr_assert_geq(few.n_ctx_max, 64);
    o.kv_k_type = o.kv_v_type = STK_KV_F32;
    cr_assert_eq(plan(o).kv_bytes, 2 * many.kv_bytes);
}
