/*
 * quant: the block formats of ggml tensors: sizes of every type, the exact block layouts of those that Stoker computes with, and
 * their dequantization in plain C.
 *
 * Who may call it: every folder (cpu/ and cuda/ included). Pure functions, no state. Source: ggml's block definitions; equality
 * with the `gguf` Python package is a test.
 */
#ifndef STK_QUANT_H
#define STK_QUANT_H

#include "src/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ggml type numbers of the formats that have kernels. */
enum stk_type {
    STK_TYPE_F32 = 0,
    STK_TYPE_F16 = 1,
    STK_TYPE_Q4_0 = 2,
    STK_TYPE_Q8_0 = 8,
    STK_TYPE_Q4_K = 12,
    STK_TYPE_Q5_K = 13,
    STK_TYPE_Q6_K = 14,
    STK_TYPE_BF16 = 30,
};

typedef struct stk_type_info {
    const char *name; /* "Q4_K" */
    uint32_t block;   /* weights of a block; 0: no such type */
    uint32_t block_bytes;
    bool has_kernel;
} stk_type_info;

/* Sizes of every ggml type; NULL for a number that names none. */
const stk_type_info *stk_type_info_get(uint32_t type);

/* Bytes of a row of n weights; STK_EFORMAT when n is no multiple of the block or the product does not fit. */
int stk_type_row_bytes(uint32_t type, uint64_t n, uint64_t *bytes) STK_CHECKED;

/* The 6-bit scale and min of group g, 0..7, of a Q4_K or Q5_K block. */
void stk_k_scale_min(const uint8_t scales[12], uint32_t g, uint32_t *scale, uint32_t *min);

/* out [n] f32 = the weights of a row as stored in a file; type must have a kernel, n is a multiple of its block. */
void stk_dequantize_row(enum stk_type type, const void *row, uint64_t n, float *out);

#ifdef __cplusplus
}
#endif
#endif
