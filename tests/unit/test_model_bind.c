/* model_bind: every layout of weights ends at the same places; every wrong tensor is named. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/model/model.h"
#include "tiny_model.h"

typedef struct opened {
    stk_model m;
} opened;

static int try_bind(opened *o, gguf_build *b) {
    memset(o, 0, sizeof *o);
    gguf_build_write(b, test_path("m.gguf"));
    gguf_build_close(b);
    cr_assert_eq(stk_gguf_open(&o->m.gguf, test_path("m.gguf")), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_arch_find(&o->m.family, o->m.gguf), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_arch_hparams(&o->m.hp, o->m.family, o->m.gguf), 0, "%s", stk_error_detail());
    return stk_model_bind(&o->m);
}

static void release(opened *o) {
    free(o->m.layers);
    stk_catalogue_close(&o->m.experts);
    stk_gguf_close(&o->m.gguf);
}

static opened bind_ok(const tiny_model *m) {
    opened o;
    cr_assert_eq(try_bind(&o, tiny_model_build(m)), 0, "%s", stk_error_detail());
    return o;
}

static void assert_fails(gguf_build *b, int code, const char *part) {
    opened o;
    int rc = try_bind(&o, b);
    cr_assert_eq(rc, code, "%d instead of \"%s\": %s", rc, part, stk_error_detail());
    cr_assert(strstr(stk_error_detail(), part), "no \"%s\" in: %s", part, stk_error_detail());
    release(&o);
}

static void assert_weight(const stk_weight *w, enum stk_type type, uint32_t n_rows, uint32_t n_in, const char *name) {
    uint64_t row = 0;
    cr_assert_str_eq(w->name, name);
    cr_assert_eq(w->type, type, "%s", name);
    cr_assert_eq(w->n_rows, n_rows, "%s: %u", name, w->n_rows);
    cr_assert_eq(w->n_in, n_in, "%s: %u", name, w->n_in);
    cr_assert_eq(stk_type_row_bytes(type, n_in, &row), 0);
    cr_assert_eq(w->bytes, row * n_rows);
}

Test(model_bind, plain_weights) {
    opened o = bind_ok(&(tiny_model){.separate_output = true});
    const stk_layer *l = &o.m.layers[1];
    assert_weight(&o.m.token_embd, STK_TYPE_Q8_0, 40, 64, "token_embd.weight");
    assert_weight(&o.m.output, STK_TYPE_F16, 40, 64, "output.weight");
    cr_assert_not(o.m.tied);
    assert_weight(&o.m.output_norm, STK_TYPE_F32, 1, 64, "output_norm.weight");
    assert_weight(&l->attn_norm, STK_TYPE_F32, 1, 64, "blk.1.attn_norm.weight");
    assert_weight(&l->attn_q, STK_TYPE_Q8_0, 64, 64, "blk.1.attn_q.weight");
    assert_weight(&l->attn_k, STK_TYPE_Q8_0, 32, 64, "blk.1.attn_k.weight");
    assert_weight(&l->attn_v, STK_TYPE_Q4_0, 16, 64, "blk.1.attn_v.weight");
    assert_weight(&l->attn_output, STK_TYPE_Q8_0, 64, 32, "blk.1.attn_output.weight");
    assert_weight(&l->attn_q_norm, STK_TYPE_F32, 1, 16, "blk.1.attn_q_norm.weight");
    assert_weight(&l->ffn_norm, STK_TYPE_F32, 1, 64, "blk.1.ffn_norm.weight");
    assert_weight(&l->router, STK_TYPE_F32, 3, 64, "blk.1.ffn_gate_inp.weight");
    cr_assert_eq(l->attn_q_bias.n_rows, 0);
    cr_assert_eq(o.m.rope_freqs.n_rows, 0);
    cr_assert_eq(l->attn_q.offset, stk_gguf_find_tensor(o.m.gguf, "blk.1.attn_q.weight")->offset);
    release(&o);
}

Test(model_bind, tied_output_and_rope_freqs) {
    gguf_build *b = tiny_model_build(&(tiny_model){.arch = "llama"});
    gguf_build_tensor(b, "rope_freqs.weight", STK_TYPE_F32, (uint64_t[4]){8}, NULL);
    opened o;
    cr_assert_eq(try_bind(&o, b), 0, "%s", stk_error_detail());
    cr_assert(o.m.tied);
    cr_assert_eq(o.m.output.offset, o.m.token_embd.offset);
    assert_weight(&o.m.rope_freqs, STK_TYPE_F32, 1, 8, "rope_freqs.weight");
    cr_assert_eq(o.m.layers[0].attn_q_norm.n_rows, 0);
    release(&o);
}

Test(model_bind, fused_qkv_is_three_views) {
    opened o = bind_ok(&(tiny_model){.fused_qkv = true, .bias = true});
    const stk_layer *l = &o.m.layers[0];
    const stk_gguf_tensor *w = stk_gguf_find_tensor(o.m.gguf, "blk.0.attn_qkv.weight"),
                          *b = stk_gguf_find_tensor(o.m.gguf, "blk.0.attn_qkv.bias");
    assert_weight(&l->attn_q, STK_TYPE_Q8_0, 64, 64, "blk.0.attn_qkv.weight");
    assert_weight(&l->attn_k, STK_TYPE_Q8_0, 32, 64, "blk.0.attn_qkv.weight");
    assert_weight(&l->attn_v, STK_TYPE_Q8_0, 16, 64, "blk.0.attn_qkv.weight");
    cr_assert_eq(l->attn_q.offset, w->offset);
    cr_assert_eq(l->attn_k.offset, w->offset + 64 * 68);
    cr_assert_eq(l->attn_v.offset, w->offset + 96 * 68);
    assert_weight(&l->attn_q_bias, STK_TYPE_F32, 1, 64, "blk.0.attn_qkv.bias");
    assert_weight(&l->attn_v_bias, STK_TYPE_F32, 1, 16, "blk.0.attn_qkv.bias");
    cr_assert_eq(l->attn_q_bias.offset, b->offset);
    cr_assert_eq(l->attn_k_bias.offset, b->offset + 64 * 4);
    cr_assert_eq(l->attn_v_bias.offset, b->offset + 96 * 4);
    assert_weight(&l->attn_output_bias, STK_TYPE_F16, 1, 64, "blk.0.attn_output.bias");
    release(&o);
}

/* Where expert `e` of a part must be in each form. */
static uint64_t place_of(const stk_gguf *g, enum tiny_form form, int layer, int e, enum stk_part part) {
    const char *names[] = {"gate", "up", "down"};
    char name[96];
    uint64_t index = (uint64_t)e;
    bool fused = form == TINY_FUSED && part != STK_DOWN;
    if (form == TINY_SINGLE) {
        snprintf(name, sizeof name, "blk.%d.ffn_%s.%d.weight", layer, names[part], e);
        index = 0;
    } else {
        snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", layer, fused ? "gate_up" : names[part]);
        if (fused) index = 2 * index + (part == STK_UP);
    }
    uint64_t part_bytes = part == STK_DOWN ? 64 * 34 : 32 * 2 * 18;
    return stk_gguf_find_tensor(g, name)->offset + index * part_bytes;
}

Test(model_bind, three_forms_of_experts) {
    for (enum tiny_form form = TINY_STACKED; form <= TINY_SINGLE; form++) {
        opened o = bind_ok(&(tiny_model){.form = form});
        cr_assert_eq(stk_catalogue_n_layer(o.m.experts), 2);
        cr_assert_eq(stk_catalogue_n_expert(o.m.experts), 3);
        cr_assert_eq(stk_catalogue_n_class(o.m.experts), 1);
        const stk_class *cls = stk_catalogue_class(o.m.experts, 0);
        cr_assert_eq(cls->part[STK_GATE].n_rows, 32);
        cr_assert_eq(cls->part[STK_GATE].n_in, 64);
        cr_assert_eq(cls->part[STK_DOWN].n_rows, 64);
        cr_assert_eq(cls->part[STK_DOWN].type, STK_TYPE_Q8_0);
        for (int l = 0; l < 2; l++) {
            for (int e = 0; e < 3; e++) {
                for (int p = 0; p < STK_N_PART; p++) {
                    stk_extent x = stk_catalogue_extent(o.m.experts, (uint32_t)l, (uint32_t)e, (enum stk_part)p);
                    cr_assert_eq(x.offset, place_of(o.m.gguf, form, l, e, (enum stk_part)p), "form %d: %d %d %d", form, l, e, p);
                }
            }
        }
        uint64_t all = 0, expert = 2 * 32 * 36 + 64 * 34;
        for (uint64_t i = 0; i < stk_gguf_n_tensor(o.m.gguf); i++) all += stk_gguf_tensor_at(o.m.gguf, i)->bytes;
        cr_assert_eq(o.m.expert_bytes, 2 * 3 * expert);
        cr_assert_eq(o.m.dense_bytes, all - 2 * 3 * expert);
        cr_assert_eq(o.m.token_bytes, o.m.dense_bytes + 68 + 2 * 2 * expert); /* tied: all of token_embd, and one row */
        release(&o);
    }
}

Test(model_bind, split_file) {
    gguf_build *b = tiny_model_build(&(tiny_model){0});
    gguf_build_write_split(b, test_path("m"), 4);
    gguf_build_close(b);
    opened o = {0};
    cr_assert_eq(stk_gguf_open(&o.m.gguf, test_path("m-00001-of-00004.gguf")), 0);
    cr_assert_eq(stk_arch_find(&o.m.family, o.m.gguf), 0);
    cr_assert_eq(stk_arch_hparams(&o.m.hp, o.m.family, o.m.gguf), 0);
    cr_assert_eq(stk_model_bind(&o.m), 0, "%s", stk_error_detail());
    const stk_gguf_tensor *t = stk_gguf_find_tensor(o.m.gguf, "blk.1.ffn_down_exps.weight");
    cr_assert_eq(t->file, 3);
    cr_assert_eq(stk_catalogue_extent(o.m.experts, 1, 0, STK_DOWN).file, 3);
    cr_assert_eq(stk_catalogue_extent(o.m.experts, 1, 0, STK_DOWN).offset, t->offset);
    cr_assert_eq(o.m.layers[1].attn_q.file, stk_gguf_find_tensor(o.m.gguf, "blk.1.attn_q.weight")->file);
    release(&o);
}

Test(model_bind, missing_tensors_are_named) {
    const char *required[] = {"output_norm.weight",        "blk.0.attn_norm.weight",     "blk.1.attn_q.weight",
                              "blk.0.attn_k.weight",       "blk.0.attn_v.weight",        "blk.1.attn_output.weight",
                              "blk.0.attn_q_norm.weight",  "blk.0.attn_k_norm.weight",   "blk.0.ffn_norm.weight",
                              "blk.1.ffn_gate_inp.weight", "blk.0.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight",
                              "blk.1.ffn_down_exps.weight"};
    for (size_t i = 0; i < STK_ARRAY_LEN(required); i++) {
        char part[96];
        snprintf(part, sizeof part, "tensor %s is missing", required[i]);
        assert_fails(tiny_model_build(&(tiny_model){.omit = required[i]}), STK_EFORMAT, part);
    }
    assert_fails(tiny_model_build(&(tiny_model){.form = TINY_SINGLE, .omit = "blk.1.ffn_up.2.weight"}), STK_EFORMAT,
                 "tensor blk.1.ffn_up.2.weight is missing");
}

Test(model_bind, odd_tensors_are_named) {
    const struct {
        tiny_model m;
        int code;
        const char *part;
    } cases[] = {
        {{.odd = "blk.0.attn_q.weight", .odd_type = 8, .odd_dim = {64, 63}},
         STK_EFORMAT,
         "m.gguf: tensor blk.0.attn_q.weight: its shape is [64, 63, 1, 1], expected [64, 64, 1, 1]"},
        {{.odd = "blk.0.attn_norm.weight", .odd_dim = {64, 2}}, STK_EFORMAT, "expected [64, 1, 1, 1]"},
        {{.odd = "blk.1.ffn_gate_exps.weight", .odd_type = 8, .odd_dim = {64, 32, 4}}, STK_EFORMAT, "expected [64, 32, 3, 1]"},
        {{.form = TINY_FUSED, .odd = "blk.0.ffn_gate_up_exps.weight", .odd_dim = {64, 32, 3}},
         STK_EFORMAT,
         "expected [64, 64, 3, 1]"},
        {{.fused_qkv = true, .odd = "blk.0.attn_qkv.weight", .odd_dim = {64, 111}}, STK_EFORMAT, "expected [64, 112, 1, 1]"},
        {{.odd = "blk.0.attn_q.weight", .odd_type = 20, .odd_dim = {64, 64}},
         STK_EUNSUPPORTED,
         "tensor blk.0.attn_q.weight: its type IQ4_NL is not supported"},
        {{.odd = "blk.0.attn_norm.weight", .odd_type = 8, .odd_dim = {64}},
         STK_EUNSUPPORTED,
         "its type Q8_0 is not supported for a vector"},
        {{.odd = "blk.1.ffn_up_exps.weight", .odd_type = 6, .odd_dim = {64, 32, 3}},
         STK_EUNSUPPORTED,
         "its type Q5_0 is not supported"},
        {{.form = TINY_SINGLE, .odd = "blk.1.ffn_up.1.weight", .odd_type = 8, .odd_dim = {64, 32}},
         STK_EUNSUPPORTED,
         "tensor blk.1.ffn_up.1.weight: its type differs"},
    };
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) assert_fails(tiny_model_build(&cases[i].m), cases[i].code, cases[i].part);
}

Test(model_bind, unknown_tensors_are_refused) {
    gguf_build *b = tiny_model_build(&(tiny_model){0});
    gguf_build_tensor(b, "blk.0.attn_q.scale", 0, (uint64_t[4]){1}, NULL);
    assert_fails(b, STK_EUNSUPPORTED, "tensor blk.0.attn_q.scale: not known in this architecture");
    b = tiny_model_build(&(tiny_model){0}); /* a layer more than block_count says */
    gguf_build_tensor(b, "blk.2.attn_norm.weight", 0, (uint64_t[4]){64}, NULL);
    assert_fails(b, STK_EUNSUPPORTED, "blk.2.attn_norm.weight");
}

Test(model_bind, more_experts_than_bytes) {
    gguf_build *b = tiny_model_build(&(tiny_model){.omit = "expert_count"});
    gguf_build_u32(b, "qwen3moe.expert_count", 65535);
    assert_fails(b, STK_EFORMAT, "2 layers of 65535 experts (qwen3moe.block_count, qwen3moe.expert_count) cannot be in");
}
