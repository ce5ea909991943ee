/* simd_avxvnni: the table for AVX2 with AVX-VNNI. */
#include "cpu/tables.h"

#include "cpu/product_quant.h"

const stk_cpu_ops stk_cpu_ops_avxvnni = {
    .name = "avxvnni",
    .matmul_q8_0 = matmul_q8_0,
    .matmul_q4_0 = matmul_q4_0,
    .matmul_q4_k = matmul_q4_k,
    .matmul_q5_k = matmul_q5_k,
    .matmul_q6_k = matmul_q6_k,
};
