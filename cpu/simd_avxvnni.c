/* simd_avxvnni: the table for AVX2 with AVX-VNNI. */
#define LANES 8
#include "cpu/simd_table.h"

const stk_cpu_ops stk_cpu_ops_avxvnni = SIMD_TABLE("avxvnni");
