/*
 * simd_table: the kernels that are written over lanes.h, as one table. Each simd_*.c defines LANES, includes this once, and has a
 * table of its own instructions by it.
 */
#ifndef STK_CPU_SIMD_TABLE_H
#define STK_CPU_SIMD_TABLE_H

#include "cpu/attend_lanes.h"
#include "cpu/product_float.h"
#include "cpu/product_quant.h"
#include "cpu/tables.h"
#include "cpu/vector_lanes.h"

QUANT_PRODUCT(Q8_0, q8_0)
QUANT_PRODUCT(Q4_0, q4_0)
QUANT_PRODUCT(Q4_K, q4_k)
QUANT_PRODUCT(Q5_K, q5_k)
QUANT_PRODUCT(Q6_K, q6_k)

#define SIMD_TABLE(table_name)                                                                                                   \
    {                                                                                                                            \
        .name = table_name, .quantize = quantize, .quantize_groups = quantize_groups, .matmul_f32 = matmul_f32,                  \
        .matmul_f16 = matmul_f16, .matmul_bf16 = matmul_bf16, .matmul_q8_0 = matmul_q8_0, .matmul_q4_0 = matmul_q4_0,            \
        .matmul_q4_k = matmul_q4_k, .matmul_q5_k = matmul_q5_k, .matmul_q6_k = matmul_q6_k, .rmsnorm = rmsnorm,                  \
        .silu_mul = silu_mul, .add = add, .axpy = axpy, .rope = rope, .softmax = softmax, .f32_to_f16 = f32_to_f16,              \
        .attend = attend,                                                                                                        \
    }

#endif
