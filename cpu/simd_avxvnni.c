/* simd_avxvnni: the table for AVX2 with AVX-VNNI. */
#include "cpu/tables.h"

#define LANES 8
#include "cpu/attend_lanes.h"
#include "cpu/product_float.h"
#include "cpu/product_quant.h"
#include "cpu/vector_lanes.h"

const stk_cpu_ops stk_cpu_ops_avxvnni = {
    .name = "avxvnni",
    .quantize = quantize,
    .quantize_groups = quantize_groups,
    .matmul_f32 = matmul_f32,
    .matmul_f16 = matmul_f16,
    .matmul_bf16 = matmul_bf16,
    .matmul_q8_0 = matmul_q8_0,
    .matmul_q4_0 = matmul_q4_0,
    .matmul_q4_k = matmul_q4_k,
    .matmul_q5_k = matmul_q5_k,
    .matmul_q6_k = matmul_q6_k,
    .rmsnorm = rmsnorm,
    .silu_mul = silu_mul,
    .add = add,
    .axpy = axpy,
    .rope = rope,
    .softmax = softmax,
    .f32_to_f16 = f32_to_f16,
    .attend = attend,
};
