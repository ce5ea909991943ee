/* learned_lanes_avx2: vectors of 32 bytes. */
#define LANES_TABLE stk_lanes_avx2
#define LANES_NAME  "avx2"
#include "cache/learned_lanes_loops.h"
