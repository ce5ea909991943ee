/* lanes_avx2: vectors of 32 bytes. */
#define LANES_TABLE stk_lanes_avx2
#define LANES_NAME  "avx2"
#include "cache/lanes_loops.h"
