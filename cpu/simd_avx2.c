/* simd_avx2: the table for AVX2, FMA and F16C. */
#define LANES 8
#include "cpu/simd_table.h"

const stk_cpu_ops stk_cpu_ops_avx2 = SIMD_TABLE("avx2");
