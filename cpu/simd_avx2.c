/* simd_avx2: the table for AVX2, FMA and F16C. */
#include "cpu/tables.h"

#include "cpu/product_quant.h"

const stk_cpu_ops stk_cpu_ops_avx2 = {
    .name = "avx2",
    .matmul_q8_0 = matmul_q8_0,
    .matmul_q4_0 = matmul_q4_0,
    .matmul_q4_k = matmul_q4_k,
    .matmul_q5_k = matmul_q5_k,
    .matmul_q6_k = matmul_q6_k,
};
