/*
 * synth_model: what a synthetic model holds: the shapes that have names, the mixes of formats, and for one of each the metadata
 * and the list of tensors. Shapes and keys are those of the published models and of their conversion to GGUF; the mixes follow
 * what llama.cpp's quantizer chooses for a tensor's role, layer and row length.
 *
 * Who may call it: src/. Pure but for the list, which belongs to whoever opened it.
 */
#ifndef STK_SYNTH_MODEL_H
#define STK_SYNTH_MODEL_H

#include "src/model/gguf_write.h"

typedef struct stk_synth_shape {
    const char *name;
    const char *arch;
    uint32_t n_layer;
    uint32_t n_dense_layer; /* the first ones, without experts */
    uint32_t n_embd;
    uint32_t n_head;
    uint32_t n_head_kv;
    uint32_t head_dim;
    uint32_t n_expert;
    uint32_t n_used; /* k */
    uint32_t n_ff;   /* of a dense layer */
    uint32_t n_ff_expert;
    uint32_t n_ff_shared; /* of all shared experts together; 0: none */
    uint32_t n_vocab;
    uint32_t n_ctx;
    float rope_base, rms_eps;
    bool has_qk_norm, has_qkv_bias, has_shared_gate;
    /* Multi-head latent attention, where kv_rank is not 0; head_dim is then that of queries and keys. */
    uint32_t kv_rank, rope_dim, value_dim;
} stk_synth_shape;

/* A format, or mix of formats, that files come in. */
typedef struct stk_synth_mix {
    const char *name;
    uint32_t base;      /* ggml type of most tensors */
    uint32_t file_type; /* general.file_type */
    bool more_bits;     /* Q6_K for the values and the down projections of some layers */
    bool output_q5;     /* Q5_K for attn_output where there are 8 experts */
} stk_synth_mix;

/* How a tensor's weights are made. The last three only in a model that follows a trace (synth_route.h). */
enum stk_synth_kind { STK_SYNTH_RANDOM, STK_SYNTH_EMBEDDING, STK_SYNTH_ROUTER, STK_SYNTH_HEAD };

typedef struct stk_synth_tensor {
    char name[48];
    uint32_t type, n_dim;
    uint64_t dim[3]; /* dim[0] is a row; unused ones are 1 */
    uint64_t bytes;
    float mean, std;
    enum stk_synth_kind kind;
    uint32_t moe_layer; /* of a router: number among the layers with experts */
} stk_synth_tensor;

typedef struct stk_synth_list {
    stk_synth_tensor *tensors; /* [n] */
    uint64_t n, cap;
    int error; /* of the first add that failed */
} stk_synth_list;

/* "qwen3-30b-a3b", or with "-quarter" behind it a quarter of the layers. STK_EINVAL lists the names. */
int stk_synth_shape_find(stk_synth_shape *out, const char *name) STK_CHECKED;
/* STK_EINVAL lists the names. */
int stk_synth_mix_find(const stk_synth_mix **out, const char *name) STK_CHECKED;

/* The tensors of a model, in file order. follows: for a model that follows a trace. STK_ENOMEM, STK_EINVAL (a size that no format
 * takes). */
int stk_synth_list_open(stk_synth_list *list, const stk_synth_shape *shape, const stk_synth_mix *mix, bool follows) STK_CHECKED;
void stk_synth_list_close(stk_synth_list *list);

/* Puts all metadata, the vocabulary included. `name` is general.name. */
void stk_synth_put_keys(stk_gguf_writer *w, const stk_synth_shape *shape, const stk_synth_mix *mix, const char *name);

#endif
