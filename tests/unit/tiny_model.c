/* tiny_model: see the header. */
#include "tiny_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "experts/quant.h"

enum { LAYERS = 2, EMBD = 64, HEADS = 4, KV = 2, KEY = 16, VALUE = 8, EXPERTS = 3, USED = 2, FF = 32, VOCAB = 40 };

static bool left_out(const tiny_model *m, const char *name) { return m->omit && strcmp(m->omit, name) == 0; }

static const char *arch_of(const tiny_model *m) { return m->arch ? m->arch : "qwen3moe"; }

static void key(gguf_build *b, const tiny_model *m, const char *name, uint32_t value) {
    char full[128];
    if (left_out(m, name)) return;
    snprintf(full, sizeof full, "%s.%s", arch_of(m), name);
    gguf_build_u32(b, full, value);
}

/* layer -1: a tensor of the model. */
static void tensor(gguf_build *b, const tiny_model *m, int layer, const char *name, uint32_t type, uint64_t d0, uint64_t d1,
                   uint64_t d2) {
    char full[96];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    const uint64_t dim[4] = {d0, d1, d2, 0};
    bool odd = m->odd && strcmp(m->odd, full) == 0;
    if (!left_out(m, full)) gguf_build_tensor(b, full, odd ? m->odd_type : type, odd ? m->odd_dim : dim, NULL);
}

static void attention(gguf_build *b, const tiny_model *m, int l) {
    tensor(b, m, l, "attn_norm.weight", STK_TYPE_F32, EMBD, 0, 0);
    if (m->fused_qkv) {
        tensor(b, m, l, "attn_qkv.weight", STK_TYPE_Q8_0, EMBD, HEADS * KEY + KV * (KEY + VALUE), 0);
        if (m->bias) tensor(b, m, l, "attn_qkv.bias", STK_TYPE_F32, HEADS * KEY + KV * (KEY + VALUE), 0, 0);
    } else {
        tensor(b, m, l, "attn_q.weight", STK_TYPE_Q8_0, EMBD, HEADS * KEY, 0);
        tensor(b, m, l, "attn_k.weight", STK_TYPE_Q8_0, EMBD, KV * KEY, 0);
        tensor(b, m, l, "attn_v.weight", STK_TYPE_Q4_0, EMBD, KV * VALUE, 0);
        if (m->bias) {
            tensor(b, m, l, "attn_q.bias", STK_TYPE_F32, HEADS * KEY, 0, 0);
            tensor(b, m, l, "attn_k.bias", STK_TYPE_F32, KV * KEY, 0, 0);
            tensor(b, m, l, "attn_v.bias", STK_TYPE_F32, KV * VALUE, 0, 0);
        }
    }
    tensor(b, m, l, "attn_output.weight", STK_TYPE_Q8_0, HEADS * VALUE, EMBD, 0);
    if (m->bias) tensor(b, m, l, "attn_output.bias", STK_TYPE_F16, EMBD, 0, 0);
    if (strcmp(arch_of(m), "qwen3moe") == 0) {
        tensor(b, m, l, "attn_q_norm.weight", STK_TYPE_F32, KEY, 0, 0);
        tensor(b, m, l, "attn_k_norm.weight", STK_TYPE_F32, KEY, 0, 0);
    }
}

static void experts(gguf_build *b, const tiny_model *m, int l) {
    tensor(b, m, l, "ffn_norm.weight", STK_TYPE_F32, EMBD, 0, 0);
    tensor(b, m, l, "ffn_gate_inp.weight", STK_TYPE_F32, EMBD, EXPERTS, 0);
    for (int e = 0; m->form == TINY_SINGLE && e < EXPERTS; e++) {
        char name[48];
        snprintf(name, sizeof name, "ffn_down.%d.weight", e);
        tensor(b, m, l, name, STK_TYPE_Q8_0, FF, EMBD, 0);
        snprintf(name, sizeof name, "ffn_gate.%d.weight", e);
        tensor(b, m, l, name, STK_TYPE_Q4_0, EMBD, FF, 0);
        snprintf(name, sizeof name, "ffn_up.%d.weight", e);
        tensor(b, m, l, name, STK_TYPE_Q4_0, EMBD, FF, 0);
    }
    if (m->form == TINY_SINGLE) return;
    if (m->form == TINY_FUSED) {
        tensor(b, m, l, "ffn_gate_up_exps.weight", STK_TYPE_Q4_0, EMBD, (uint64_t)2 * FF, EXPERTS);
    } else {
        tensor(b, m, l, "ffn_gate_exps.weight", STK_TYPE_Q4_0, EMBD, FF, EXPERTS);
        tensor(b, m, l, "ffn_up_exps.weight", STK_TYPE_Q4_0, EMBD, FF, EXPERTS);
    }
    tensor(b, m, l, "ffn_down_exps.weight", STK_TYPE_Q8_0, FF, EMBD, EXPERTS);
}

gguf_build *tiny_model_build(const tiny_model *m) {
    gguf_build *b = gguf_build_open();
    char eps[128];
    if (!left_out(m, "general.architecture")) gguf_build_str(b, "general.architecture", arch_of(m));
    if (!left_out(m, "general.name")) gguf_build_str(b, "general.name", "tiny");
    key(b, m, "block_count", LAYERS);
    key(b, m, "context_length", 128);
    key(b, m, "embedding_length", EMBD);
    key(b, m, "feed_forward_length", USED * FF);
    key(b, m, "attention.head_count", HEADS);
    key(b, m, "attention.head_count_kv", KV);
    key(b, m, "attention.key_length", KEY);
    key(b, m, "attention.value_length", VALUE);
    key(b, m, "expert_count", EXPERTS);
    key(b, m, "expert_used_count", USED);
    key(b, m, "expert_feed_forward_length", FF);
    snprintf(eps, sizeof eps, "%s.attention.layer_norm_rms_epsilon", arch_of(m));
    if (!left_out(m, "attention.layer_norm_rms_epsilon")) gguf_build_f32(b, eps, 1e-6f);
    tensor(b, m, -1, "token_embd.weight", STK_TYPE_Q8_0, EMBD, VOCAB, 0);
    tensor(b, m, -1, "output_norm.weight", STK_TYPE_F32, EMBD, 0, 0);
    if (m->separate_output) tensor(b, m, -1, "output.weight", STK_TYPE_F16, EMBD, VOCAB, 0);
    for (int l = 0; l < LAYERS; l++) {
        attention(b, m, l);
        experts(b, m, l);
    }
    return b;
}
