/* peak_avx2: the peaks of AVX2. */
#define LANES 8
#include "cpu/peak_lanes.h"

const stk_peak_ops stk_peak_ops_avx2 = PEAK_TABLE("avx2");
