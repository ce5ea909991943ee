/* simd_avx512: the table for AVX-512 with VNNI. */
#define LANES 16
#include "cpu/simd_table.h"

const stk_cpu_ops stk_cpu_ops_avx512 = SIMD_TABLE("avx512");
