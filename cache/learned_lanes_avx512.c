/* learned_lanes_avx512: vectors of 64 bytes, and masks that are the bits as they lie in memory. */
#define LANES_TABLE stk_lanes_avx512
#define LANES_NAME  "avx512"
#include "cache/learned_lanes_loops.h"
