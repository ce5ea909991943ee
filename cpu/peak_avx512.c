/* peak_avx512: the peaks of AVX-512 with VNNI. */
#define LANES 16
#include "cpu/peak_lanes.h"

const stk_peak_ops stk_peak_ops_avx512 = PEAK_TABLE("avx512");
