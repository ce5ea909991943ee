/* sum: the order of sums of cpu/ref.c: 16 lanes, each a chain, then halves. */
#ifndef STK_CUDA_SUM_CUH
#define STK_CUDA_SUM_CUH

#include "cuda/prelude.cuh"

enum { STK_LANES = 16 };

/* The sum of lanes 0 to 15, and of 16 to 31, in the first lane of each half; all lanes of the warp come here. */
STK_DEVICE float stk_add_lanes(float s) {
#pragma unroll
    for (unsigned i = STK_LANES / 2; i; i /= 2) s += __shfl_down_sync(STK_ALL_LANES, s, i, STK_LANES);
    return s;
}

#endif
