/*
 * model: an opened GGUF model: hyperparameters, where every weight lies, the experts' catalogue, the tokenizer. Holds no weights.
 *
 * Who may call it: src/. Threads: immutable after stk_model_open (stoker.h), which makes it. Ownership: everything belongs to the
 * model.
 */
#ifndef STK_MODEL_H
#define STK_MODEL_H

#include "arch.h"
#include "experts/catalogue.h"
#include "src/text/tokenizer.h"

/* A dense weight as it lies in a file: n_rows rows of n_in weights, stk_type_row_bytes(type, n_in) bytes each, one after the
 * other. A vector is one row. Parts of fused tensors are weights of their own. Every type has a kernel; vectors are F32, F16 or
 * BF16. */
typedef struct stk_weight {
    enum stk_type type;
    uint32_t n_rows; /* 0: the model has no such weight */
    uint32_t n_in;
    uint32_t file; /* for stk_gguf_path */
    uint64_t offset;
    uint64_t bytes;
    const char *name; /* of the tensor, for messages */
    bool in_stripes;  /* not rows: it lies as in memory (packed.h) */
} stk_weight;

typedef struct stk_layer {
    enum stk_attn_kind attn;
    enum stk_ffn_kind ffn;
    stk_weight attn_norm;   /* [n_embd] */
    stk_weight attn_q;      /* [n_head * head_dim, n_embd] */
    stk_weight attn_k;      /* [n_head_kv * head_dim, n_embd] */
    stk_weight attn_v;      /* [n_head_kv * value_dim, n_embd] */
    stk_weight attn_output; /* [n_embd, n_head * value_dim] */
    stk_weight attn_q_bias; /* [rows of attn_q], optional; so are the next three */
    stk_weight attn_k_bias;
    stk_weight attn_v_bias;
    stk_weight attn_output_bias;
    stk_weight attn_q_norm; /* [head_dim] before RoPE, each head by itself; absent in some families */
    stk_weight attn_k_norm;
    stk_weight ffn_norm; /* [n_embd] */
    stk_weight router;   /* [n_expert, n_embd] */
} stk_layer;

struct stk_model {
    stk_gguf *gguf;
    uint32_t packed; /* version of the form that the file is packed in (packed.h), 0: a plain model */
    const stk_family *family;
    stk_hparams hp;
    stk_weight token_embd;  /* [n_vocab, n_embd] */
    stk_weight output_norm; /* [n_embd] */
    stk_weight output;      /* [n_vocab, n_embd]; the same bytes as token_embd when tied */
    stk_weight rope_freqs;  /* [rope_dim / 2] divides the frequencies; optional */
    bool tied;
    stk_layer *layers;        /* [n_layer] */
    stk_catalogue *experts;   /* its layers are those of the model */
    stk_tokenizer *tokenizer; /* NULL: tokenizer_rc and tokenizer_error say why */
    int tokenizer_rc;
    char *tokenizer_error;
    char **meta_text; /* [stk_gguf_n_value] */
    char name[256];   /* general.name, "" where there is none; as text for people: cut with dots where it is longer, and control
                         characters are escaped, since it goes to terminals */
    uint64_t n_param;
    uint64_t expert_bytes;
    uint64_t dense_bytes;
    uint64_t token_bytes;
};

/* The tokenizer; NULL when this build has none for the model: then tokenizer_rc is the error, and its detail text is set. */
const stk_tokenizer *stk_model_tokenizer(const stk_model *model);

/* Finds every weight that the family names and the experts of every layer. Fills token_embd ... rope_freqs, tied, layers,
 * experts. Errors: STK_EFORMAT (missing tensor, wrong shape), STK_EUNSUPPORTED (type without kernel, a tensor that the family
 * does not know), STK_ENOMEM. */
int stk_model_bind(stk_model *model) STK_CHECKED;

#endif
