/*
 * arch: what a model family is, as data: its names, the shapes of its tensors, and what its layers compute. The next family is a
 * table row and, where it computes something that no family did before, an enum value that the engine learns.
 *
 * Who may call it: src/. Threads: pure functions over immutable tables. Source: the GGUF conversion of each family and its
 * Hugging Face original.
 */
#ifndef STK_ARCH_H
#define STK_ARCH_H

#include "gguf.h"

/* Which elements of a head rotate together: (2i, 2i+1), or (i, i + rope_dim/2). */
enum stk_rope_style { STK_ROPE_NORM, STK_ROPE_NEOX };

/* How the scores of all experts become k weights. SOFTMAX_RENORM: softmax over all, the best k, divided by their sum. */
enum stk_router_kind { STK_ROUTER_SOFTMAX_RENORM };

/* What a layer does before and after its middle; per layer, since families mix them. */
enum stk_attn_kind { STK_ATTN_GQA };
enum stk_ffn_kind { STK_FFN_MOE };

/* Hyperparameters, checked: each is in range and they fit one another. */
typedef struct stk_hparams {
    uint32_t n_layer;
    uint32_t n_embd;
    uint32_t n_vocab; /* rows of token_embd */
    uint32_t n_ctx_train;
    uint32_t n_head;
    uint32_t n_head_kv; /* divides n_head */
    uint32_t head_dim;  /* of a query and a key */
    uint32_t value_dim; /* of a value */
    uint32_t n_ff;      /* of a dense layer; 0: the file does not say */
    uint32_t n_ff_expert;
    uint32_t n_expert;      /* at most 65,535: ids are 16 bits, one of them none (event.h) */
    uint32_t n_expert_used; /* k, 1 to n_expert */
    float rms_eps;
    float attn_scale;   /* of the scores; 1/sqrt(head_dim) unless the file says otherwise */
    float router_scale; /* of the k weights; 1 unless the file says otherwise */
    uint32_t rope_dim;  /* even, <= head_dim; the first rope_dim elements of a head rotate, the others pass */
    float rope_base;
    float rope_factor; /* positions are divided by it; 1 without scaling */
} stk_hparams;

/* The lengths that shapes are made of. */
enum stk_dim {
    STK_DIM_ONE,
    STK_DIM_EMBD,
    STK_DIM_VOCAB,
    STK_DIM_Q,         /* n_head * head_dim */
    STK_DIM_K,         /* n_head_kv * head_dim */
    STK_DIM_V,         /* n_head_kv * value_dim */
    STK_DIM_O,         /* n_head * value_dim */
    STK_DIM_HEAD,      /* head_dim */
    STK_DIM_ROPE_HALF, /* rope_dim / 2 */
    STK_DIM_EXPERT,
    STK_DIM_FF_EXPERT,
};

/* One weight of the model or of a layer. A vector has the one row STK_DIM_ONE. */
typedef struct stk_tensor_rule {
    const char *name;  /* "attn_q.weight"; in a layer it follows "blk.N." */
    const char *fused; /* or NULL: the tensor that may hold these rows instead, after those of the earlier rules that name it */
    size_t field;      /* offset of its stk_weight in stk_layer or stk_model (model.h) */
    enum stk_dim rows, in;
    bool optional;
} stk_tensor_rule;

/* One matrix of an expert: "NAME_exps.weight" for all experts of the layer, FUSED_exps.weight, or "NAME.E.weight" for expert E.
 */
typedef struct stk_expert_rule {
    const char *name;
    const char *fused;
    enum stk_dim rows, in;
} stk_expert_rule;

typedef struct stk_family {
    const char *arch; /* general.architecture, and the prefix of its keys */
    enum stk_rope_style rope;
    enum stk_router_kind router;
    enum stk_attn_kind attn;
    enum stk_ffn_kind ffn;
    bool ff_expert_is_share; /* without expert_feed_forward_length: feed_forward_length / k, else feed_forward_length */
    const stk_tensor_rule *model_rules;
    uint32_t n_model_rule;
    const stk_tensor_rule *layer_rules;
    uint32_t n_layer_rule;
    const stk_expert_rule *expert_rules; /* [3] gate, up, down */
} stk_family;

/* The family of the file. Errors: STK_EUNSUPPORTED names the architecture and those supported; STK_EFORMAT when the file names
 * none. */
int stk_arch_find(const stk_family **out, const stk_gguf *g) STK_CHECKED;

/* Reads and checks the hyperparameters. Errors: STK_EFORMAT names the key; STK_EUNSUPPORTED (dense model, kinds of RoPE scaling,
 * layers that differ). */
int stk_arch_hparams(stk_hparams *out, const stk_family *family, const stk_gguf *g) STK_CHECKED;

uint64_t stk_arch_dim(const stk_hparams *hp, enum stk_dim dim);

#endif
