/* arch: the table of families, and the reading of their hyperparameters. */
#include "arch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "packed.h"
#include "src/event.h"

/* ---- Families ----------------------------------------------------------------------------------------------------------- */

enum { REQUIRED = 0, OPTIONAL = 1 };

#define MODEL(name, field, rows, in, presence)                                                                                   \
    { name, NULL, offsetof(stk_model, field), STK_DIM_##rows, STK_DIM_##in, presence }
#define LAYER(name, field, rows, in, presence)                                                                                   \
    { name, NULL, offsetof(stk_layer, field), STK_DIM_##rows, STK_DIM_##in, presence }
#define FUSED(name, fused, field, rows, in, presence)                                                                            \
    { name, fused, offsetof(stk_layer, field), STK_DIM_##rows, STK_DIM_##in, presence }

/* An absent output.weight is token_embd.weight. */
#define MODEL_RULES                                                                                                              \
    MODEL("token_embd.weight", token_embd, VOCAB, EMBD, REQUIRED),                                                               \
        MODEL("output_norm.weight", output_norm, ONE, EMBD, REQUIRED), MODEL("output.weight", output, VOCAB, EMBD, OPTIONAL)

/* Grouped-query attention, then experts behind a plain router. */
#define GQA_MOE_RULES                                                                                                            \
    LAYER("attn_norm.weight", attn_norm, ONE, EMBD, REQUIRED),                                                                   \
        FUSED("attn_q.weight", "attn_qkv.weight", attn_q, Q, EMBD, REQUIRED),                                                    \
        FUSED("attn_k.weight", "attn_qkv.weight", attn_k, K, EMBD, REQUIRED),                                                    \
        FUSED("attn_v.weight", "attn_qkv.weight", attn_v, V, EMBD, REQUIRED),                                                    \
        FUSED("attn_q.bias", "attn_qkv.bias", attn_q_bias, ONE, Q, OPTIONAL),                                                    \
        FUSED("attn_k.bias", "attn_qkv.bias", attn_k_bias, ONE, K, OPTIONAL),                                                    \
        FUSED("attn_v.bias", "attn_qkv.bias", attn_v_bias, ONE, V, OPTIONAL),                                                    \
        LAYER("attn_output.weight", attn_output, EMBD, O, REQUIRED),                                                             \
        LAYER("attn_output.bias", attn_output_bias, ONE, EMBD, OPTIONAL),                                                        \
        LAYER("ffn_norm.weight", ffn_norm, ONE, EMBD, REQUIRED), LAYER("ffn_gate_inp.weight", router, EXPERT, EMBD, REQUIRED)

static const stk_expert_rule swiglu_experts[] = {
    [STK_GATE] = {"ffn_gate", "ffn_gate_up", STK_DIM_FF_EXPERT, STK_DIM_EMBD},
    [STK_UP] = {"ffn_up", "ffn_gate_up", STK_DIM_FF_EXPERT, STK_DIM_EMBD},
    [STK_DOWN] = {"ffn_down", NULL, STK_DIM_EMBD, STK_DIM_FF_EXPERT},
};

static const stk_tensor_rule llama_model[] = {
    MODEL_RULES,
    MODEL("rope_freqs.weight", rope_freqs, ONE, ROPE_HALF, OPTIONAL),
};
static const stk_tensor_rule llama_layer[] = {GQA_MOE_RULES};

static const stk_tensor_rule qwen3moe_model[] = {MODEL_RULES};
static const stk_tensor_rule qwen3moe_layer[] = {
    GQA_MOE_RULES,
    LAYER("attn_q_norm.weight", attn_q_norm, ONE, HEAD, REQUIRED),
    LAYER("attn_k_norm.weight", attn_k_norm, ONE, HEAD, REQUIRED),
};

#define RULES(model, layer, experts)                                                                                             \
    .model_rules = model, .n_model_rule = STK_ARRAY_LEN(model), .layer_rules = layer, .n_layer_rule = STK_ARRAY_LEN(layer),      \
    .expert_rules = experts

static const stk_family families[] = {
    {
        .arch = "llama", /* with experts: Mixtral */
        .rope = STK_ROPE_NORM,
        .router = STK_ROUTER_SOFTMAX_RENORM,
        .attn = STK_ATTN_GQA,
        .ffn = STK_FFN_MOE,
        RULES(llama_model, llama_layer, swiglu_experts),
    },
    {
        .arch = "qwen3moe",
        .rope = STK_ROPE_NEOX,
        .router = STK_ROUTER_SOFTMAX_RENORM,
        .attn = STK_ATTN_GQA,
        .ffn = STK_FFN_MOE,
        .ff_expert_is_share = true,
        RULES(qwen3moe_model, qwen3moe_layer, swiglu_experts),
    },
};

int stk_arch_find(const stk_family **out, const stk_gguf *g) {
    const char *key = "general.architecture";
    stk_gguf_string arch;
    int found = stk_gguf_str(g, key, &arch);
    if (found == 1 && strcmp(arch.text, STK_PACKED_ARCH) == 0) found = stk_gguf_str(g, key = STK_PACKED_ARCH_KEY, &arch);
    if (found < 0) return found;
    if (found == 0) return stk_fail(STK_EFORMAT, "%s: metadata key %s is missing", stk_gguf_path(g, 0), key);
    char supported[256] = "";
    for (size_t i = 0; i < STK_ARRAY_LEN(families); i++) {
        if (strcmp(families[i].arch, arch.text) == 0) {
            *out = &families[i];
            return 0;
        }
        size_t n = strlen(supported);
        snprintf(supported + n, sizeof supported - n, "%s%s", n ? ", " : "", families[i].arch);
    }
    char text[64];
    stk_gguf_format(stk_gguf_find(g, key), text, sizeof text);
    return stk_fail(STK_EUNSUPPORTED, "%s: architecture \"%s\" is not supported; supported are: %s", stk_gguf_path(g, 0), text,
                    supported);
}

/* ---- Hyperparameters ---------------------------------------------------------------------------------------------------- */

typedef struct source {
    const stk_gguf *g;
    const char *arch;
    const char *path;
} source;

enum { KEY_BYTES = 128 };

static const char *key_of(const source *s, const char *name, char key[KEY_BYTES]) {
    snprintf(key, KEY_BYTES, "%s.%s", s->arch, name);
    return key;
}

/* A count from 1 up; `absent` stands in for a missing key, 0 makes it required. */
static int read_count(const source *s, const char *name, uint32_t absent, uint32_t *out) {
    char key[KEY_BYTES];
    *out = absent;
    int found = stk_gguf_u32(s->g, key_of(s, name, key), out);
    if (found < 0) return found;
    if (found == 0 && absent == 0) return stk_fail(STK_EFORMAT, "%s: metadata key %s is missing", s->path, key);
    if (*out == 0) return stk_fail(STK_EFORMAT, "%s: metadata key %s is 0, expected 1 or more", s->path, key);
    return 0;
}

/* As read_count for a key that may have a value for each layer; those must agree. 0 when it is absent. */
static int read_layer_count(const source *s, const char *name, uint32_t n_layer, uint32_t *out) {
    char key[KEY_BYTES];
    *out = 0;
    for (uint32_t l = 0; l < n_layer; l++) {
        uint32_t value;
        int found = stk_gguf_u32_at(s->g, key_of(s, name, key), l, &value);
        if (found <= 0) return found;
        if (l > 0 && value != *out) {
            return stk_fail(STK_EUNSUPPORTED,
                            "%s: metadata key %s: %" PRIu32 " in layer %" PRIu32 " but %" PRIu32
                            " before; layers that differ are not supported",
                            s->path, key, value, l, *out);
        }
        *out = value;
    }
    return 0;
}

/* A finite number above 0; `absent` stands in for a missing key (0 makes it required), and for 0 where `zero_is_absent`. */
static int read_number(const source *s, const char *name, float absent, bool zero_is_absent, float *out) {
    char key[KEY_BYTES];
    *out = absent;
    int found = stk_gguf_f32(s->g, key_of(s, name, key), out);
    if (found < 0) return found;
    if (found == 0 && absent == 0.0f) return stk_fail(STK_EFORMAT, "%s: metadata key %s is missing", s->path, key);
    if (*out == 0.0f && zero_is_absent) *out = absent;
    if (!isfinite(*out) || *out <= 0.0f) {
        return stk_fail(STK_EFORMAT, "%s: metadata key %s is %g, expected a finite number above 0", s->path, key, (double)*out);
    }
    return 0;
}

static int read_sizes(const source *s, stk_hparams *hp) {
    STK_TRY(read_count(s, "block_count", 0, &hp->n_layer));
    if (hp->n_layer > stk_gguf_n_tensor(s->g)) {
        return stk_fail(STK_EFORMAT, "%s: metadata key %s.block_count is %" PRIu32 ", but the file has only %" PRIu64 " tensors",
                        s->path, s->arch, hp->n_layer, stk_gguf_n_tensor(s->g));
    }
    STK_TRY(read_count(s, "embedding_length", 0, &hp->n_embd));
    STK_TRY(read_count(s, "context_length", 0, &hp->n_ctx_train));
    STK_TRY(read_layer_count(s, "feed_forward_length", hp->n_layer, &hp->n_ff));
    const stk_gguf_tensor *embd = stk_gguf_find_tensor(s->g, "token_embd.weight");
    if (!embd) return stk_fail(STK_EFORMAT, "%s: tensor token_embd.weight is missing", s->path);
    if (embd->dim[1] > INT32_MAX)
        return stk_fail(STK_EFORMAT, "%s: token_embd.weight: %" PRIu64 " rows are more than token ids", s->path, embd->dim[1]);
    hp->n_vocab = (uint32_t)embd->dim[1];
    return 0;
}

static int read_attention(const source *s, stk_hparams *hp) {
    STK_TRY(read_layer_count(s, "attention.head_count", hp->n_layer, &hp->n_head));
    STK_TRY(read_layer_count(s, "attention.head_count_kv", hp->n_layer, &hp->n_head_kv));
    if (hp->n_head == 0)
        return stk_fail(STK_EFORMAT, "%s: metadata key %s.attention.head_count is missing or 0", s->path, s->arch);
    if (hp->n_head_kv == 0) hp->n_head_kv = hp->n_head;
    if (hp->n_head % hp->n_head_kv != 0) {
        return stk_fail(STK_EFORMAT,
                        "%s: %" PRIu32 " heads (%s.attention.head_count) are no multiple of %" PRIu32
                        " (%s.attention.head_count_kv)",
                        s->path, hp->n_head, s->arch, hp->n_head_kv, s->arch);
    }
    uint32_t head_dim = hp->n_embd % hp->n_head == 0 ? hp->n_embd / hp->n_head : 0;
    STK_TRY(read_count(s, "attention.key_length", head_dim, &hp->head_dim));
    STK_TRY(read_count(s, "attention.value_length", head_dim, &hp->value_dim));
    if ((uint64_t)hp->n_head * STK_MAX(hp->head_dim, hp->value_dim) > UINT32_MAX) {
        return stk_fail(STK_EFORMAT, "%s: %" PRIu32 " heads of %" PRIu32 " and %" PRIu32 " are too large", s->path, hp->n_head,
                        hp->head_dim, hp->value_dim);
    }
    STK_TRY(read_number(s, "attention.scale", 1.0f / sqrtf((float)hp->head_dim), true, &hp->attn_scale));
    return read_number(s, "attention.layer_norm_rms_epsilon", 0.0f, false, &hp->rms_eps);
}

static int read_rope(const source *s, stk_hparams *hp) {
    char key[KEY_BYTES];
    float attn_factor;
    stk_gguf_string type = {"linear", strlen("linear")};
    STK_TRY(read_count(s, "rope.dimension_count", hp->head_dim, &hp->rope_dim));
    if (hp->rope_dim > hp->head_dim || hp->rope_dim % 2 != 0) {
        return stk_fail(STK_EFORMAT,
                        "%s: metadata key %s.rope.dimension_count is %" PRIu32
                        ", expected an even number up to the head's %" PRIu32,
                        s->path, s->arch, hp->rope_dim, hp->head_dim);
    }
    STK_TRY(read_number(s, "rope.freq_base", 10000.0f, false, &hp->rope_base));
    STK_TRY(stk_gguf_str(s->g, key_of(s, "rope.scaling.type", key), &type));
    bool none = strcmp(type.text, "none") == 0;
    if (!none && strcmp(type.text, "linear") != 0) {
        char text[48];
        stk_gguf_format(stk_gguf_find(s->g, key), text, sizeof text);
        return stk_fail(STK_EUNSUPPORTED, "%s: metadata key %s: RoPE scaling \"%s\" is not supported; none and linear are",
                        s->path, key, text);
    }
    STK_TRY(read_number(s, "rope.scale_linear", 1.0f, true, &hp->rope_factor)); /* the older name */
    STK_TRY(read_number(s, "rope.scaling.factor", hp->rope_factor, true, &hp->rope_factor));
    if (none) hp->rope_factor = 1.0f;
    STK_TRY(read_number(s, "rope.scaling.attn_factor", 1.0f, true, &attn_factor));
    if (attn_factor != 1.0f) {
        return stk_fail(STK_EUNSUPPORTED, "%s: metadata key %s.rope.scaling.attn_factor is %g; only 1 is supported", s->path,
                        s->arch, (double)attn_factor);
    }
    return 0;
}

/* Routers that the table has no name for. */
static int check_router(const source *s) {
    static const struct {
        const char *name;
        uint32_t most;
    } limits[] = {
        {"expert_gating_func", 1},  /* 0: not said, 1: softmax */
        {"expert_group_count", 1},  /* more: only some groups of experts are looked at */
        {"expert_shared_count", 0}, /* experts that every token uses */
    };
    for (size_t i = 0; i < STK_ARRAY_LEN(limits); i++) {
        char key[KEY_BYTES];
        uint32_t value = 0;
        STK_TRY(stk_gguf_u32(s->g, key_of(s, limits[i].name, key), &value));
        if (value > limits[i].most) {
            return stk_fail(STK_EUNSUPPORTED, "%s: metadata key %s is %" PRIu32 ", which is not supported for this architecture",
                            s->path, key, value);
        }
    }
    return 0;
}

static int read_experts(const source *s, const stk_family *family, stk_hparams *hp) {
    char key[KEY_BYTES];
    hp->n_expert = 0;
    STK_TRY(stk_gguf_u32(s->g, key_of(s, "expert_count", key), &hp->n_expert));
    if (hp->n_expert == 0) {
        return stk_fail(STK_EUNSUPPORTED, "%s: a dense %s model (no %s); only models with experts are supported", s->path,
                        s->arch, key);
    }
    if (hp->n_expert > STK_NO_EXPERT)
        return stk_fail(STK_EUNSUPPORTED, "%s: metadata key %s: %" PRIu32 " experts, at most 65535 are supported", s->path, key,
                        hp->n_expert);
    STK_TRY(read_count(s, "expert_used_count", 0, &hp->n_expert_used));
    if (hp->n_expert_used > hp->n_expert) {
        return stk_fail(STK_EFORMAT, "%s: metadata key %s.expert_used_count is %" PRIu32 ", but there are %" PRIu32 " experts",
                        s->path, s->arch, hp->n_expert_used, hp->n_expert);
    }
    STK_TRY(check_router(s));
    uint32_t absent = family->ff_expert_is_share ? hp->n_ff / hp->n_expert_used : hp->n_ff;
    STK_TRY(read_count(s, "expert_feed_forward_length", absent, &hp->n_ff_expert));
    return read_number(s, "expert_weights_scale", 1.0f, true, &hp->router_scale);
}

int stk_arch_hparams(stk_hparams *out, const stk_family *family, const stk_gguf *g) {
    source s = {.g = g, .arch = family->arch, .path = stk_gguf_path(g, 0)};
    *out = (stk_hparams){0};
    STK_TRY(read_sizes(&s, out));
    STK_TRY(read_experts(&s, family, out));
    STK_TRY(read_attention(&s, out));
    return read_rope(&s, out);
}

uint64_t stk_arch_dim(const stk_hparams *hp, enum stk_dim dim) {
    switch (dim) {
    case STK_DIM_ONE: return 1;
    case STK_DIM_EMBD: return hp->n_embd;
    case STK_DIM_VOCAB: return hp->n_vocab;
    case STK_DIM_Q: return (uint64_t)hp->n_head * hp->head_dim;
    case STK_DIM_K: return (uint64_t)hp->n_head_kv * hp->head_dim;
    case STK_DIM_V: return (uint64_t)hp->n_head_kv * hp->value_dim;
    case STK_DIM_O: return (uint64_t)hp->n_head * hp->value_dim;
    case STK_DIM_HEAD: return hp->head_dim;
    case STK_DIM_ROPE_HALF: return hp->rope_dim / 2;
    case STK_DIM_EXPERT: return hp->n_expert;
    case STK_DIM_FF_EXPERT: return hp->n_ff_expert;
    }
    return 0;
}
