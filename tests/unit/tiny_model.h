/*
 * tiny_model: GGUF models of a few kilobytes with every tensor in place, or with one fault, for tests that open models.
 *
 * Two layers, n_embd 64, 4 heads of 16, 2 of them for keys and values of 16 and 8, 3 experts of 32, 2 used, 40 tokens.
 */
#ifndef STK_TEST_TINY_MODEL_H
#define STK_TEST_TINY_MODEL_H

#include "gguf_build.h"

enum tiny_form { TINY_STACKED, TINY_FUSED, TINY_SINGLE };

typedef struct tiny_model {
    const char *arch;    /* NULL: "qwen3moe" */
    enum tiny_form form; /* of the experts' gate and up */
    bool fused_qkv, bias, separate_output;
    const char *omit; /* a tensor, or a key without the architecture, that is left out */
    const char *odd;  /* a tensor with another type and shape */
    uint32_t odd_type;
    uint64_t odd_dim[4];
} tiny_model;

/* More keys and tensors may be added to the result. */
gguf_build *tiny_model_build(const tiny_model *m);

#endif
