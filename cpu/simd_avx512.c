/* simd_avx512: the table for AVX-512 with VNNI. */
#include "cpu/tables.h"

#include "cpu/product_quant.h"

const stk_cpu_ops stk_cpu_ops_avx512 = {
    .name = "avx512",
    .matmul_q8_0 = matmul_q8_0,
    .matmul_q4_0 = matmul_q4_0,
    .matmul_q4_k = matmul_q4_k,
    .matmul_q5_k = matmul_q5_k,
    .matmul_q6_k = matmul_q6_k,
};
