/* arch: hyperparameters and their defaults, and every way in which they do not fit. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "src/model/arch.h"
#include "tiny_model.h"

static stk_gguf *save(gguf_build *b) {
    stk_gguf *g = NULL;
    gguf_build_write(b, test_path("m.gguf"));
    gguf_build_close(b);
    cr_assert_eq(stk_gguf_open(&g, test_path("m.gguf")), 0, "%s", stk_error_detail());
    return g;
}

static int read_hparams(gguf_build *b, stk_hparams *hp) {
    stk_gguf *g = save(b);
    const stk_family *family = NULL;
    int rc = stk_arch_find(&family, g);
    if (rc == 0) rc = stk_arch_hparams(hp, family, g);
    stk_gguf_close(&g);
    return rc;
}

static stk_hparams hparams_of(gguf_build *b) {
    stk_hparams hp;
    cr_assert_eq(read_hparams(b, &hp), 0, "%s", stk_error_detail());
    return hp;
}

static void assert_fails(gguf_build *b, int code, const char *part) {
    stk_hparams hp;
    int rc = read_hparams(b, &hp);
    cr_assert_eq(rc, code, "%d instead of \"%s\": %s", rc, part, stk_error_detail());
    cr_assert(strstr(stk_error_detail(), part), "no \"%s\" in: %s", part, stk_error_detail());
}

static gguf_build *tiny(const char *omit) { return tiny_model_build(&(tiny_model){.omit = omit}); }

Test(arch, everything_given) {
    gguf_build *b = tiny(NULL);
    gguf_build_u32(b, "qwen3moe.rope.dimension_count", 8);
    gguf_build_f32(b, "qwen3moe.rope.freq_base", 1e6f);
    gguf_build_str(b, "qwen3moe.rope.scaling.type", "linear");
    gguf_build_f32(b, "qwen3moe.rope.scaling.factor", 4);
    gguf_build_f32(b, "qwen3moe.attention.scale", 0.5f);
    gguf_build_f32(b, "qwen3moe.expert_weights_scale", 2.5f);
    gguf_build_u32(b, "qwen3moe.expert_gating_func", 1);
    stk_hparams hp = hparams_of(b);
    cr_assert_eq(hp.n_layer, 2);
    cr_assert_eq(hp.n_embd, 64);
    cr_assert_eq(hp.n_vocab, 40);
    cr_assert_eq(hp.n_ctx_train, 128);
    cr_assert_eq(hp.n_head, 4);
    cr_assert_eq(hp.n_head_kv, 2);
    cr_assert_eq(hp.head_dim, 16);
    cr_assert_eq(hp.value_dim, 8);
    cr_assert_eq(hp.n_ff, 64);
    cr_assert_eq(hp.n_ff_expert, 32);
    cr_assert_eq(hp.n_expert, 3);
    cr_assert_eq(hp.n_expert_used, 2);
    cr_assert_eq(hp.rms_eps, 1e-6f);
    cr_assert_eq(hp.rope_dim, 8);
    cr_assert_eq(hp.rope_base, 1e6f);
    cr_assert_eq(hp.rope_factor, 4.0f);
    cr_assert_eq(hp.attn_scale, 0.5f);
    cr_assert_eq(hp.router_scale, 2.5f);
    cr_assert_eq(stk_arch_dim(&hp, STK_DIM_Q), 64);
    cr_assert_eq(stk_arch_dim(&hp, STK_DIM_K), 32);
    cr_assert_eq(stk_arch_dim(&hp, STK_DIM_V), 16);
    cr_assert_eq(stk_arch_dim(&hp, STK_DIM_O), 32);
    cr_assert_eq(stk_arch_dim(&hp, STK_DIM_ROPE_HALF), 4);
}

Test(arch, defaults) {
    stk_hparams hp = hparams_of(tiny(NULL));
    cr_assert_eq(hp.rope_dim, 16);
    cr_assert_eq(hp.rope_base, 10000.0f);
    cr_assert_eq(hp.rope_factor, 1.0f);
    cr_assert_eq(hp.attn_scale, 0.25f);
    cr_assert_eq(hp.router_scale, 1.0f);
    cr_assert_eq(hparams_of(tiny("attention.head_count_kv")).n_head_kv, 4);
    cr_assert_eq(hparams_of(tiny("attention.key_length")).head_dim, 16);
    cr_assert_eq(hparams_of(tiny("attention.value_length")).value_dim, 16);
    /* Of k experts together in qwen3moe, of one in llama. */
    cr_assert_eq(hparams_of(tiny("expert_feed_forward_length")).n_ff_expert, 32);
    cr_assert_eq(hparams_of(tiny_model_build(&(tiny_model){.arch = "llama", .omit = "expert_feed_forward_length"})).n_ff_expert,
                 64);
    gguf_build *b = tiny(NULL);
    gguf_build_f32(b, "qwen3moe.rope.scale_linear", 2); /* the older name */
    cr_assert_eq(hparams_of(b).rope_factor, 2.0f);
    b = tiny(NULL);
    gguf_build_str(b, "qwen3moe.rope.scaling.type", "none");
    gguf_build_f32(b, "qwen3moe.rope.scaling.factor", 4);
    cr_assert_eq(hparams_of(b).rope_factor, 1.0f);
    b = tiny("attention.head_count_kv");
    gguf_build_array(b, "qwen3moe.attention.head_count_kv", STK_GGUF_U32, 2, (const uint32_t[]){2, 2});
    cr_assert_eq(hparams_of(b).n_head_kv, 2);
}

Test(arch, families) {
    const stk_family *family = NULL;
    stk_gguf *g = save(tiny(NULL));
    cr_assert_eq(stk_arch_find(&family, g), 0);
    cr_assert_eq(family->rope, STK_ROPE_NEOX);
    stk_gguf_close(&g);
    g = save(tiny_model_build(&(tiny_model){.arch = "llama"}));
    cr_assert_eq(stk_arch_find(&family, g), 0);
    cr_assert_eq(family->rope, STK_ROPE_NORM);
    stk_gguf_close(&g);
    gguf_build *b = tiny("general.architecture");
    gguf_build_str(b, "general.architecture", "gpt-\x1bx");
    assert_fails(b, STK_EUNSUPPORTED, "m.gguf: architecture \"gpt-\\x1bx\" is not supported; supported are: llama, qwen3moe");
    assert_fails(tiny("general.architecture"), STK_EFORMAT, "metadata key general.architecture is missing");
}

Test(arch, missing_keys) {
    const char *required[] = {"block_count",          "context_length",    "embedding_length",
                              "attention.head_count", "expert_used_count", "token_embd.weight"};
    for (size_t i = 0; i < STK_ARRAY_LEN(required); i++) assert_fails(tiny(required[i]), STK_EFORMAT, required[i]);
    assert_fails(tiny("attention.layer_norm_rms_epsilon"), STK_EFORMAT, "layer_norm_rms_epsilon is missing");
    assert_fails(tiny("expert_count"), STK_EUNSUPPORTED, "a dense qwen3moe model (no qwen3moe.expert_count)");
    gguf_build *b = tiny_model_build(&(tiny_model){.arch = "llama", .omit = "feed_forward_length"});
    cr_assert_eq(hparams_of(b).n_ff, 0);
}

typedef struct change {
    const char *name;
    uint32_t value;
    int code;
    const char *part;
} change;

Test(arch, numbers_that_do_not_fit) {
    const change changes[] = {
        {"block_count", 0, STK_EFORMAT, "qwen3moe.block_count is 0"},
        {"block_count", 4000000000u, STK_EFORMAT, "qwen3moe.block_count is 4000000000, but the file has only"},
        {"embedding_length", 0, STK_EFORMAT, "embedding_length is 0"},
        {"attention.head_count", 0, STK_EFORMAT, "attention.head_count is missing or 0"},
        {"attention.head_count", 3, STK_EFORMAT, "3 heads (qwen3moe.attention.head_count) are no multiple of 2"},
        {"attention.head_count", 1u << 31, STK_EFORMAT, "are too large"},
        {"attention.key_length", 0, STK_EFORMAT, "key_length is 0"},
        {"attention.key_length", 15, STK_EFORMAT, "rope.dimension_count is 15"},
        {"rope.dimension_count", 18, STK_EFORMAT, "rope.dimension_count is 18"},
        {"rope.dimension_count", 7, STK_EFORMAT, "rope.dimension_count is 7"},
        {"rope.dimension_count", 0, STK_EFORMAT, "rope.dimension_count is 0"},
        {"rope.freq_base", 0, STK_EFORMAT, "rope.freq_base is 0"},
        {"rope.scaling.attn_factor", 2, STK_EUNSUPPORTED, "rope.scaling.attn_factor is 2"},
        {"expert_count", 70000, STK_EUNSUPPORTED, "70000 experts, at most 65535"},
        {"expert_count", 1, STK_EFORMAT, "expert_used_count is 2, but there are 1"},
        {"expert_used_count", 0, STK_EFORMAT, "expert_used_count is 0"},
        {"expert_used_count", 4, STK_EFORMAT, "expert_used_count is 4, but there are 3"},
        {"expert_feed_forward_length", 0, STK_EFORMAT, "expert_feed_forward_length is 0"},
        {"expert_gating_func", 2, STK_EUNSUPPORTED, "expert_gating_func is 2"},
        {"expert_group_count", 4, STK_EUNSUPPORTED, "expert_group_count is 4"},
        {"expert_shared_count", 1, STK_EUNSUPPORTED, "expert_shared_count is 1"},
    };
    for (size_t i = 0; i < STK_ARRAY_LEN(changes); i++) {
        char key[96];
        snprintf(key, sizeof key, "qwen3moe.%s", changes[i].name);
        gguf_build *b = tiny(changes[i].name);
        gguf_build_u32(b, key, changes[i].value);
        assert_fails(b, changes[i].code, changes[i].part);
    }
}

Test(arch, values_that_are_not_supported) {
    gguf_build *b = tiny(NULL);
    gguf_build_str(b, "qwen3moe.rope.scaling.type", "yarn");
    assert_fails(b, STK_EUNSUPPORTED, "rope.scaling.type: RoPE scaling \"yarn\" is not supported; none and linear are");
    b = tiny("attention.head_count_kv");
    gguf_build_array(b, "qwen3moe.attention.head_count_kv", STK_GGUF_U32, 2, (const uint32_t[]){2, 4});
    assert_fails(b, STK_EUNSUPPORTED, "attention.head_count_kv: 4 in layer 1 but 2 before");
    b = tiny("attention.head_count_kv");
    gguf_build_array(b, "qwen3moe.attention.head_count_kv", STK_GGUF_U32, 1, (const uint32_t[]){2});
    assert_fails(b, STK_EFORMAT, "has 1 items, expected one for each layer");
    b = tiny(NULL);
    gguf_build_f32(b, "qwen3moe.rope.scaling.factor", -1);
    assert_fails(b, STK_EFORMAT, "rope.scaling.factor is -1, expected a finite number above 0");
    b = tiny("block_count");
    gguf_build_str(b, "qwen3moe.block_count", "two");
    assert_fails(b, STK_EFORMAT, "qwen3moe.block_count: is a string, expected an integer");
}
