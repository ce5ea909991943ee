/* synth_model: names, the formats that a mix gives to each role, and the sizes of whole models. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "experts/quant.h"
#include "src/synth/synth_blocks.h"
#include "src/synth/synth_model.h"

static void open_list(stk_synth_list *list, const char *shape_name, const char *type, bool follows) {
    stk_synth_shape shape;
    const stk_synth_mix *mix;
    cr_assert_eq(stk_synth_shape_find(&shape, shape_name), STK_OK, "%s", stk_error_detail());
    cr_assert_eq(stk_synth_mix_find(&mix, type), STK_OK, "%s", stk_error_detail());
    cr_assert_eq(stk_synth_list_open(list, &shape, mix, follows), STK_OK, "%s", stk_error_detail());
}

static const stk_synth_tensor *find(const stk_synth_list *list, const char *name) {
    for (uint64_t i = 0; i < list->n; i++)
        if (strcmp(list->tensors[i].name, name) == 0) return &list->tensors[i];
    cr_assert_fail("no tensor %s", name);
    return NULL;
}

static void expect_type(const stk_synth_list *list, const char *name, const char *type) {
    cr_assert_str_eq(stk_type_info_get(find(list, name)->type)->name, type, "%s", name);
}

static void expect_shape(const stk_synth_list *list, const char *name, uint64_t d0, uint64_t d1, uint64_t d2) {
    const stk_synth_tensor *t = find(list, name);
    cr_assert(t->dim[0] == d0 && t->dim[1] == d1 && t->dim[2] == d2, "%s", name);
}

Test(synth_model, names) {
    stk_synth_shape s;
    const stk_synth_mix *mix;
    static const struct {
        const char *name;
        uint32_t n_layer, n_vocab;
    } known[] = {
        {"qwen3-30b-a3b", 48, 151936},      {"qwen3-30b-a3b-quarter", 12, 151936}, {"mixtral-8x7b", 32, 32000},
        {"mixtral-8x7b-quarter", 8, 32000}, {"deepseek-v2-lite", 27, 102400},      {"deepseek-v2-lite-quarter", 7, 102400},
        {"qwen2-57b-a14b", 28, 151936},     {"qwen2-57b-a14b-quarter", 7, 151936}, {"tiny-quarter", 1, 2048}};
    for (size_t i = 0; i < STK_ARRAY_LEN(known); i++) {
        cr_assert_eq(stk_synth_shape_find(&s, known[i].name), STK_OK);
        cr_assert_eq(s.n_layer, known[i].n_layer);
        cr_assert_eq(s.n_vocab, known[i].n_vocab);
    }
    static const char *const unknown[] = {"", "qwen", "qwen3-30b-a3b-", "qwen3-30b-a3b-quarters", "-quarter"};
    for (size_t i = 0; i < STK_ARRAY_LEN(unknown); i++) cr_assert_eq(stk_synth_shape_find(&s, unknown[i]), STK_EINVAL);
    cr_assert(strstr(stk_error_detail(), "mixtral-8x7b, deepseek-v2-lite, qwen2-57b-a14b, tiny"), "%s", stk_error_detail());
    cr_assert_eq(stk_synth_mix_find(&mix, "Q3_K_M"), STK_EINVAL);
    cr_assert(strstr(stk_error_detail(), "Q4_K_M, Q5_K_M, Q8_0, Q4_0, BF16, F16, F32"), "%s", stk_error_detail());
}

/* What llama.cpp's quantizer gives to these tensors of these models. */
Test(synth_model, types_by_role_and_layer) {
    stk_synth_list l;
    open_list(&l, "qwen3-30b-a3b", "Q4_K_M", false);
    static const char *const down[] = {"Q6_K", "Q6_K", "Q6_K", "Q6_K", "Q6_K", "Q6_K",
                                       "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K"};
    for (uint32_t i = 0; i < STK_ARRAY_LEN(down); i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.ffn_down_exps.weight", i);
        expect_type(&l, name, down[i]);
        snprintf(name, sizeof name, "blk.%u.attn_v.weight", i);
        expect_type(&l, name, down[i]);
    }
    expect_type(&l, "blk.41.ffn_down_exps.weight", "Q6_K");
    expect_type(&l, "blk.40.ffn_down_exps.weight", "Q4_K");
    expect_type(&l, "blk.47.ffn_down_exps.weight", "Q6_K");
    expect_type(&l, "blk.0.attn_k.weight", "Q4_K");
    expect_type(&l, "blk.0.attn_output.weight", "Q4_K");
    expect_type(&l, "blk.0.ffn_gate_inp.weight", "F32");
    expect_type(&l, "token_embd.weight", "Q4_K");
    expect_type(&l, "output.weight", "Q6_K");
    stk_synth_list_close(&l);

    open_list(&l, "mixtral-8x7b", "Q4_K_M", false);
    expect_type(&l, "blk.0.attn_k.weight", "Q8_0");
    expect_type(&l, "blk.9.attn_v.weight", "Q8_0");
    expect_type(&l, "blk.0.attn_output.weight", "Q5_K");
    expect_type(&l, "blk.0.ffn_down_exps.weight", "Q6_K");
    expect_type(&l, "blk.4.ffn_down_exps.weight", "Q4_K");
    stk_synth_list_close(&l);

    /* Rows of 1,408 and 128 weights take no blocks of 256. */
    open_list(&l, "deepseek-v2-lite", "Q4_K_M", false);
    expect_type(&l, "blk.1.ffn_down_exps.weight", "Q8_0");
    expect_type(&l, "blk.3.ffn_down_exps.weight", "Q5_0");
    expect_type(&l, "blk.0.ffn_down.weight", "Q8_0");
    expect_type(&l, "blk.0.attn_k_b.weight", "Q5_0");
    expect_type(&l, "blk.0.attn_v_b.weight", "Q4_K");
    expect_type(&l, "blk.3.ffn_down_shexp.weight", "Q4_K");
    stk_synth_list_close(&l);
    open_list(&l, "deepseek-v2-lite", "Q5_K_M", false);
    expect_type(&l, "blk.3.ffn_down_exps.weight", "Q5_1");
    stk_synth_list_close(&l);

    open_list(&l, "qwen2-57b-a14b", "Q4_0", false);
    expect_type(&l, "output.weight", "Q6_K");
    expect_type(&l, "blk.0.ffn_down_exps.weight", "Q4_0");
    stk_synth_list_close(&l);
    open_list(&l, "qwen3-30b-a3b", "Q8_0", false);
    expect_type(&l, "output.weight", "Q8_0");
    stk_synth_list_close(&l);
    open_list(&l, "deepseek-v2-lite", "BF16", false);
    expect_type(&l, "blk.3.ffn_down_exps.weight", "BF16");
    expect_type(&l, "blk.3.ffn_norm.weight", "F32");
    stk_synth_list_close(&l);
}

static uint64_t n_weight(const stk_synth_list *l) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < l->n; i++) n += l->tensors[i].dim[0] * l->tensors[i].dim[1] * l->tensors[i].dim[2];
    return n;
}

/* Millions of parameters as published for the models. */
Test(synth_model, models_are_as_large_as_the_real_ones) {
    static const struct {
        const char *name;
        uint64_t millions;
    } known[] = {{"qwen3-30b-a3b", 30532}, {"mixtral-8x7b", 46703}, {"deepseek-v2-lite", 15706}, {"qwen2-57b-a14b", 57409}};
    for (size_t i = 0; i < STK_ARRAY_LEN(known); i++) {
        stk_synth_list l;
        open_list(&l, known[i].name, "Q8_0", false);
        cr_assert_eq((n_weight(&l) + 500000) / 1000000, known[i].millions, "%s: %llu", known[i].name,
                     (unsigned long long)n_weight(&l));
        stk_synth_list_close(&l);
    }
    stk_synth_list l;
    open_list(&l, "deepseek-v2-lite", "Q8_0", false);
    expect_shape(&l, "blk.5.attn_q.weight", 2048, 3072, 1);
    expect_shape(&l, "blk.5.attn_kv_a_mqa.weight", 2048, 576, 1);
    expect_shape(&l, "blk.5.attn_k_b.weight", 128, 512, 16);
    expect_shape(&l, "blk.5.ffn_gate_shexp.weight", 2048, 2816, 1);
    expect_shape(&l, "blk.0.ffn_up.weight", 2048, 10944, 1);
    stk_synth_list_close(&l);
}

Test(synth_model, every_type_can_be_made) {
    static const char *const shapes[] = {"qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite", "qwen2-57b-a14b", "tiny"};
    static const char *const mixes[] = {"Q4_K_M", "Q5_K_M", "Q8_0", "Q4_0", "BF16", "F16", "F32"};
    for (size_t i = 0; i < STK_ARRAY_LEN(shapes); i++) {
        for (size_t k = 0; k < STK_ARRAY_LEN(mixes); k++) {
            stk_synth_list l;
            open_list(&l, shapes[i], mixes[k], true);
            for (uint64_t n = 0; n < l.n; n++) {
                const stk_synth_tensor *t = &l.tensors[n];
                uint64_t row;
                cr_assert(stk_synth_can_fill(t->type), "%s", t->name);
                cr_assert_eq(stk_type_row_bytes(t->type, t->dim[0], &row), STK_OK);
                cr_assert_eq(t->bytes, row * t->dim[1] * t->dim[2]);
                if (t->kind == STK_SYNTH_EMBEDDING || t->kind == STK_SYNTH_HEAD)
                    cr_assert(stk_type_info_get(t->type)->has_kernel, "%s of %s", t->name, mixes[k]);
            }
            stk_synth_list_close(&l);
        }
    }
}

Test(synth_model, nothing_is_added_to_a_state_that_follows_a_trace) {
    stk_synth_list l;
    open_list(&l, "deepseek-v2-lite", "Q4_K_M", true);
    static const char *const results[] = {"blk.0.attn_output.weight", "blk.0.ffn_down.weight", "blk.9.ffn_down_exps.weight",
                                          "blk.9.ffn_down_shexp.weight"};
    for (size_t i = 0; i < STK_ARRAY_LEN(results); i++) cr_assert_eq(find(&l, results[i])->std, 0.0f, "%s", results[i]);
    cr_assert_eq(find(&l, "blk.9.ffn_norm.weight")->std, 0.0f);
    cr_assert_gt(find(&l, "blk.9.ffn_up_exps.weight")->std, 0.0f);
    cr_assert_eq(find(&l, "blk.9.ffn_gate_inp.weight")->kind, STK_SYNTH_ROUTER);
    cr_assert_eq(find(&l, "blk.9.ffn_gate_inp.weight")->moe_layer, 8);
    stk_synth_list_close(&l);
}
