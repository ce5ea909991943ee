/* peak_avxvnni: the peaks of AVX-VNNI. */
#define LANES 8
#include "cpu/peak_lanes.h"

const stk_peak_ops stk_peak_ops_avxvnni = PEAK_TABLE("avxvnni");
