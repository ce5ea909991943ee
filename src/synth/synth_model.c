/* synth_model: the tables of shapes and mixes, and what follows from a row of each. */
#include "synth_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experts/quant.h"
#include "synth_blocks.h"
#include "synth_vocab.h"

/* ---- Shapes ------------------------------------------------------------------------------------------------------------- */

static const stk_synth_shape shapes[] = {
    {
        .name = "qwen3-30b-a3b",
        .arch = "qwen3moe",
        .n_layer = 48,
        .n_embd = 2048,
        .n_head = 32,
        .n_head_kv = 4,
        .head_dim = 128,
        .n_expert = 128,
        .n_used = 8,
        .n_ff = 6144,
        .n_ff_expert = 768,
        .n_vocab = 151936,
        .n_ctx = 40960,
        .rope_base = 1e6f,
        .rms_eps = 1e-6f,
        .has_qk_norm = true,
    },
    {
        .name = "mixtral-8x7b",
        .arch = "llama",
        .n_layer = 32,
        .n_embd = 4096,
        .n_head = 32,
        .n_head_kv = 8,
        .head_dim = 128,
        .n_expert = 8,
        .n_used = 2,
        .n_ff = 14336,
        .n_ff_expert = 14336,
        .n_vocab = 32000,
        .n_ctx = 32768,
        .rope_base = 1e6f,
        .rms_eps = 1e-5f,
    },
    {
        .name = "deepseek-v2-lite",
        .arch = "deepseek2",
        .n_layer = 27,
        .n_dense_layer = 1,
        .n_embd = 2048,
        .n_head = 16,
        .n_head_kv = 1,
        .head_dim = 192,
        .n_expert = 64,
        .n_used = 6,
        .n_ff = 10944,
        .n_ff_expert = 1408,
        .n_ff_shared = 2816,
        .n_vocab = 102400,
        .n_ctx = 163840,
        .rope_base = 1e4f,
        .rms_eps = 1e-6f,
        .kv_rank = 512,
        .rope_dim = 64,
        .value_dim = 128,
    },
    {
        .name = "qwen2-57b-a14b",
        .arch = "qwen2moe",
        .n_layer = 28,
        .n_embd = 3584,
        .n_head = 28,
        .n_head_kv = 4,
        .head_dim = 128,
        .n_expert = 64,
        .n_used = 8,
        .n_ff = 18944,
        .n_ff_expert = 2560,
        .n_ff_shared = 20480,
        .n_vocab = 151936,
        .n_ctx = 32768,
        .rope_base = 1e6f,
        .rms_eps = 1e-6f,
        .has_qkv_bias = true,
        .has_shared_gate = true,
    },
    {
        .name = "tiny",
        .arch = "qwen3moe",
        .n_layer = 4,
        .n_embd = 256,
        .n_head = 4,
        .n_head_kv = 2,
        .head_dim = 64,
        .n_expert = 16,
        .n_used = 4,
        .n_ff = 1024,
        .n_ff_expert = 256,
        .n_vocab = 2048,
        .n_ctx = 4096,
        .rope_base = 1e6f,
        .rms_eps = 1e-6f,
        .has_qk_norm = true,
    },
};

int stk_synth_shape_find(stk_synth_shape *out, const char *name) {
    static const char quarter[] = "-quarter";
    char names[160] = "";
    for (size_t i = 0; i < STK_ARRAY_LEN(shapes); i++) {
        size_t n = strlen(shapes[i].name), used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", shapes[i].name);
        if (strncmp(name, shapes[i].name, n) != 0 || (name[n] && strcmp(name + n, quarter) != 0)) continue;
        *out = shapes[i];
        if (name[n]) out->n_layer = (out->n_layer + 2) / 4;
        return STK_OK;
    }
    return stk_fail(STK_EINVAL, "no shape is called '%.64s'; there are %s, each also with %s at the end", name, names, quarter);
}

/* ---- Formats ------------------------------------------------------------------------------------------------------------ */

static const stk_synth_mix mixes[] = {
    {.name = "Q4_K_M", .base = STK_TYPE_Q4_K, .file_type = 15, .more_bits = true, .output_q5 = true},
    {.name = "Q5_K_M", .base = STK_TYPE_Q5_K, .file_type = 17, .more_bits = true},
    {.name = "Q8_0", .base = STK_TYPE_Q8_0, .file_type = 7},
    {.name = "Q4_0", .base = STK_TYPE_Q4_0, .file_type = 2},
    {.name = "BF16", .base = STK_TYPE_BF16, .file_type = 32},
    {.name = "F16", .base = STK_TYPE_F16, .file_type = 1},
    {.name = "F32", .base = STK_TYPE_F32, .file_type = 0},
};

int stk_synth_mix_find(const stk_synth_mix **out, const char *name) {
    char names[96] = "";
    for (size_t i = 0; i < STK_ARRAY_LEN(mixes); i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", mixes[i].name);
        if (strcmp(name, mixes[i].name) != 0) continue;
        *out = &mixes[i];
        return STK_OK;
    }
    return stk_fail(STK_EINVAL, "no type is called '%.64s'; there are %s", name, names);
}

/* What a mix looks at besides the row length. PLAIN tensors are F32 in every file. */
enum role { PLAIN, OUTPUT, ATTN_K, ATTN_V, ATTN_O, DOWN, OTHER };

/* The first and the last eighth of the layers, and every third one between. */
static bool has_more_bits(uint32_t layer, uint32_t n_layer) {
    return layer < n_layer / 8 || layer >= 7 * n_layer / 8 || (layer - n_layer / 8) % 3 == 2;
}

/* The type of the role, of rows of any length. */
static uint32_t type_of_role(const stk_synth_mix *mix, const stk_synth_shape *s, enum role role, uint32_t layer) {
    bool few_experts = s->n_expert == 8; /* the quantizer's mark of a Mixtral, whose attention is a small part */
    switch (role) {
    case OUTPUT: return mix->base == STK_TYPE_Q8_0 ? STK_TYPE_Q8_0 : STK_TYPE_Q6_K;
    case ATTN_K: return few_experts ? STK_TYPE_Q8_0 : mix->base;
    case ATTN_V:
        if (few_experts) return STK_TYPE_Q8_0;
        return mix->more_bits && has_more_bits(layer, s->n_layer) ? STK_TYPE_Q6_K : mix->base;
    case ATTN_O: return few_experts && mix->output_q5 ? STK_TYPE_Q5_K : mix->base;
    case DOWN: return mix->more_bits && has_more_bits(layer, s->n_layer) ? STK_TYPE_Q6_K : mix->base;
    default: return mix->base;
    }
}

static uint32_t type_of(const stk_synth_mix *mix, const stk_synth_shape *s, enum role role, uint32_t layer, uint64_t n_in) {
    if (role == PLAIN) return STK_TYPE_F32;
    if (stk_type_info_get(mix->base)->block == 1) return mix->base;
    uint32_t type = type_of_role(mix, s, role, layer);
    if (n_in % stk_type_info_get(type)->block == 0) return type;
    switch (type) { /* rows of whole groups of 32 */
    case STK_TYPE_Q4_K: return STK_SYNTH_Q5_0;
    case STK_TYPE_Q5_K: return STK_SYNTH_Q5_1;
    default: return STK_TYPE_Q8_0;
    }
}

/* ---- Tensors ------------------------------------------------------------------------------------------------------------ */

typedef struct builder {
    stk_synth_list *list;
    const stk_synth_shape *shape;
    const stk_synth_mix *mix;
    bool follows;
    uint32_t layer;
} builder;

enum { NO_LAYER = UINT32_MAX };

/* Adds a tensor of n rows (0: a vector) times m matrices (0: one). Weights of a matrix keep the size of what they multiply. A
 * failure is kept in the list; what is returned may always be written to. */
static stk_synth_tensor *add(builder *b, enum role role, const char *name, uint64_t n_in, uint64_t n, uint64_t m) {
    static _Thread_local stk_synth_tensor lost;
    stk_synth_list *list = b->list;
    uint64_t row_bytes;
    uint32_t type = type_of(b->mix, b->shape, role, b->layer, n_in);
    if (list->n == list->cap && !list->error) {
        uint64_t cap = list->cap ? 2 * list->cap : 256;
        stk_synth_tensor *grown = realloc(list->tensors, cap * sizeof *grown);
        if (grown) {
            list->tensors = grown;
            list->cap = cap;
        } else
            list->error = stk_fail(STK_ENOMEM, "out of memory for %" PRIu64 " tensors", cap);
    }
    if (!list->error) list->error = stk_type_row_bytes(type, n_in, &row_bytes);
    if (list->error) return &lost;
    stk_synth_tensor *t = &list->tensors[list->n++];
    *t = (stk_synth_tensor){.type = type,
                            .n_dim = m   ? 3
                                     : n ? 2
                                         : 1,
                            .dim = {n_in, n ? n : 1, m ? m : 1},
                            .std = 1.0f / sqrtf((float)n_in)};
    if (b->layer == NO_LAYER)
        snprintf(t->name, sizeof t->name, "%s", name);
    else
        snprintf(t->name, sizeof t->name, "blk.%" PRIu32 ".%s", b->layer, name);
    t->bytes = row_bytes * t->dim[1] * t->dim[2];
    return t;
}

static void add_norm(builder *b, const char *name, uint64_t n) {
    stk_synth_tensor *t = add(b, PLAIN, name, n, 0, 0);
    t->mean = 1.0f;
    t->std = b->follows ? 0.0f : 0.1f;
}

static void add_bias(builder *b, const char *name, uint64_t n) { add(b, PLAIN, name, n, 0, 0)->std = 0.1f; }

/* A matrix whose results are added to the hidden state. That of a model that follows a trace stays as the embedding left it. */
static void add_result(builder *b, enum role role, const char *name, uint64_t n_in, uint64_t m) {
    stk_synth_tensor *t = add(b, role, name, n_in, b->shape->n_embd, m);
    if (b->follows) t->std = 0.0f;
}

static void add_latent_attention(builder *b) {
    const stk_synth_shape *s = b->shape;
    add(b, OTHER, "attn_q.weight", s->n_embd, (uint64_t)s->n_head * s->head_dim, 0);
    add(b, OTHER, "attn_kv_a_mqa.weight", s->n_embd, s->kv_rank + s->rope_dim, 0);
    add_norm(b, "attn_kv_a_norm.weight", s->kv_rank);
    add(b, OTHER, "attn_k_b.weight", s->head_dim - s->rope_dim, s->kv_rank, s->n_head);
    add(b, OTHER, "attn_v_b.weight", s->kv_rank, s->value_dim, s->n_head);
    add_result(b, ATTN_O, "attn_output.weight", (uint64_t)s->n_head * s->value_dim, 0);
}

static void add_attention(builder *b) {
    const stk_synth_shape *s = b->shape;
    uint64_t q = (uint64_t)s->n_head * s->head_dim, kv = (uint64_t)s->n_head_kv * s->head_dim;
    if (s->kv_rank) {
        add_latent_attention(b);
        return;
    }
    /* Larger queries and keys: attention that prefers some positions. */
    add(b, OTHER, "attn_q.weight", s->n_embd, q, 0)->std *= 1.5f;
    add(b, ATTN_K, "attn_k.weight", s->n_embd, kv, 0)->std *= 1.5f;
    add(b, ATTN_V, "attn_v.weight", s->n_embd, kv, 0);
    if (s->has_qkv_bias) {
        add_bias(b, "attn_q.bias", q);
        add_bias(b, "attn_k.bias", kv);
        add_bias(b, "attn_v.bias", kv);
    }
    add_result(b, ATTN_O, "attn_output.weight", q, 0);
    if (s->has_qk_norm) {
        add_norm(b, "attn_q_norm.weight", s->head_dim);
        add_norm(b, "attn_k_norm.weight", s->head_dim);
    }
}

static void add_ffn(builder *b) {
    const stk_synth_shape *s = b->shape;
    if (b->layer < s->n_dense_layer) {
        add(b, OTHER, "ffn_gate.weight", s->n_embd, s->n_ff, 0);
        add_result(b, DOWN, "ffn_down.weight", s->n_ff, 0);
        add(b, OTHER, "ffn_up.weight", s->n_embd, s->n_ff, 0);
        return;
    }
    stk_synth_tensor *router = add(b, PLAIN, "ffn_gate_inp.weight", s->n_embd, s->n_expert, 0);
    router->kind = b->follows ? STK_SYNTH_ROUTER : STK_SYNTH_RANDOM;
    router->moe_layer = b->layer - s->n_dense_layer;
    add(b, OTHER, "ffn_gate_exps.weight", s->n_embd, s->n_ff_expert, s->n_expert);
    add_result(b, DOWN, "ffn_down_exps.weight", s->n_ff_expert, s->n_expert);
    add(b, OTHER, "ffn_up_exps.weight", s->n_embd, s->n_ff_expert, s->n_expert);
    if (!s->n_ff_shared) return;
    if (s->has_shared_gate) add(b, PLAIN, "ffn_gate_inp_shexp.weight", s->n_embd, 0, 0);
    add(b, OTHER, "ffn_gate_shexp.weight", s->n_embd, s->n_ff_shared, 0);
    add_result(b, DOWN, "ffn_down_shexp.weight", s->n_ff_shared, 0);
    add(b, OTHER, "ffn_up_shexp.weight", s->n_embd, s->n_ff_shared, 0);
}

int stk_synth_list_open(stk_synth_list *list, const stk_synth_shape *shape, const stk_synth_mix *mix, bool follows) {
    builder b = {list, shape, mix, follows, NO_LAYER};
    *list = (stk_synth_list){0};
    stk_synth_tensor *embd = add(&b, OTHER, "token_embd.weight", shape->n_embd, shape->n_vocab, 0);
    embd->std = 1.0f;
    embd->kind = follows ? STK_SYNTH_EMBEDDING : STK_SYNTH_RANDOM;
    for (b.layer = 0; b.layer < shape->n_layer; b.layer++) {
        add_norm(&b, "attn_norm.weight", shape->n_embd);
        add_attention(&b);
        add_norm(&b, "ffn_norm.weight", shape->n_embd);
        add_ffn(&b);
    }
    b.layer = NO_LAYER;
    add_norm(&b, "output_norm.weight", shape->n_embd);
    stk_synth_tensor *output = add(&b, OUTPUT, "output.weight", shape->n_embd, shape->n_vocab, 0);
    output->std *= 3.0f; /* some tokens are clearly likelier than others */
    output->kind = follows ? STK_SYNTH_HEAD : STK_SYNTH_RANDOM;
    int rc = list->error;
    if (rc < 0) stk_synth_list_close(list);
    return rc;
}

void stk_synth_list_close(stk_synth_list *list) {
    free(list->tensors);
    *list = (stk_synth_list){0};
}

/* ---- Metadata ----------------------------------------------------------------------------------------------------------- */

typedef struct keys {
    stk_gguf_writer *w;
    const char *arch;
    char text[96];
} keys;

static const char *key(keys *k, const char *name) {
    snprintf(k->text, sizeof k->text, "%s.%s", k->arch, name);
    return k->text;
}

static void put_latent_keys(keys *k, const stk_synth_shape *s) {
    stk_gguf_put_u32(k->w, key(k, "attention.q_lora_rank"), 0); /* asked for at some depths */
    stk_gguf_put_u32(k->w, key(k, "attention.kv_lora_rank"), s->kv_rank);
    stk_gguf_put_u32(k->w, key(k, "attention.key_length"), s->kv_rank + s->rope_dim);
    stk_gguf_put_u32(k->w, key(k, "attention.value_length"), s->kv_rank);
    stk_gguf_put_u32(k->w, key(k, "attention.key_length_mla"), s->head_dim);
    stk_gguf_put_u32(k->w, key(k, "attention.value_length_mla"), s->value_dim);
    stk_gguf_put_u32(k->w, key(k, "rope.dimension_count"), s->rope_dim);
    stk_gguf_put_str(k->w, key(k, "rope.scaling.type"), "yarn");
    stk_gguf_put_f32(k->w, key(k, "rope.scaling.factor"), 40.0f);
    stk_gguf_put_u32(k->w, key(k, "rope.scaling.original_context_length"), 4096);
    stk_gguf_put_f32(k->w, key(k, "rope.scaling.yarn_log_multiplier"), 0.0707f);
    stk_gguf_put_u32(k->w, key(k, "leading_dense_block_count"), s->n_dense_layer);
    stk_gguf_put_u32(k->w, key(k, "expert_shared_count"), s->n_ff_shared / s->n_ff_expert);
    stk_gguf_put_f32(k->w, key(k, "expert_weights_scale"), 1.0f);
    stk_gguf_put_bool(k->w, key(k, "expert_weights_norm"), false);
    stk_gguf_put_u32(k->w, key(k, "expert_gating_func"), 1); /* softmax */
}

void stk_synth_put_keys(stk_gguf_writer *w, const stk_synth_shape *s, const stk_synth_mix *mix, const char *name) {
    keys k = {.w = w, .arch = s->arch};
    stk_gguf_put_str(w, "general.architecture", s->arch);
    stk_gguf_put_str(w, "general.type", "model");
    stk_gguf_put_str(w, "general.name", name);
    stk_gguf_put_u32(w, "general.file_type", mix->file_type);
    stk_gguf_put_u32(w, "general.quantization_version", 2);
    stk_gguf_put_u32(w, key(&k, "vocab_size"), s->n_vocab);
    stk_gguf_put_u32(w, key(&k, "context_length"), s->n_ctx);
    stk_gguf_put_u32(w, key(&k, "embedding_length"), s->n_embd);
    stk_gguf_put_u32(w, key(&k, "block_count"), s->n_layer);
    stk_gguf_put_u32(w, key(&k, "feed_forward_length"), s->n_ff);
    stk_gguf_put_u32(w, key(&k, "attention.head_count"), s->n_head);
    stk_gguf_put_u32(w, key(&k, "attention.head_count_kv"), s->n_head_kv);
    stk_gguf_put_f32(w, key(&k, "attention.layer_norm_rms_epsilon"), s->rms_eps);
    stk_gguf_put_f32(w, key(&k, "rope.freq_base"), s->rope_base);
    if (s->kv_rank) {
        put_latent_keys(&k, s);
    } else {
        stk_gguf_put_u32(w, key(&k, "attention.key_length"), s->head_dim);
        stk_gguf_put_u32(w, key(&k, "attention.value_length"), s->head_dim);
        stk_gguf_put_u32(w, key(&k, "rope.dimension_count"), s->head_dim);
    }
    stk_gguf_put_u32(w, key(&k, "expert_count"), s->n_expert);
    stk_gguf_put_u32(w, key(&k, "expert_used_count"), s->n_used);
    if (s->n_ff_expert != s->n_ff) stk_gguf_put_u32(w, key(&k, "expert_feed_forward_length"), s->n_ff_expert);
    if (s->has_shared_gate) stk_gguf_put_u32(w, key(&k, "expert_shared_feed_forward_length"), s->n_ff_shared);
    stk_synth_put_vocab(w, s->n_vocab);
}
