/* quantize: a group of 32 activations by one warp, as cpu/ref.c says. */
#ifndef STK_CUDA_QUANTIZE_CUH
#define STK_CUDA_QUANTIZE_CUH

#include "cuda/format.cuh"

/* Lane i has x[32 g + i]; the whole warp comes here. `row` is a quantized row of n. */
STK_DEVICE void stk_quantize_group(float x, uint32_t lane, uint32_t g, uint8_t *row, uint32_t n) {
    const stk_act_layout at = stk_act_layout_of(n);
    const bool finite = __all_sync(STK_ALL_LANES, fabsf(x) <= 3.40282347e38f);
    float amax = fabsf(x);
#pragma unroll
    for (int i = 16; i; i /= 2) {
        float other = __shfl_xor_sync(STK_ALL_LANES, amax, i);
        amax = other > amax ? other : amax;
    }
    const bool zero = !finite || amax < 0x1p-100f;
    const int q = zero ? 0 : (int)rintf(x * (127.0f / amax));
    int sum = q;
#pragma unroll
    for (int i = 8; i; i /= 2) sum += __shfl_xor_sync(STK_ALL_LANES, sum, i);
    const int other = __shfl_xor_sync(STK_ALL_LANES, sum, 16);
    ((int8_t *)row)[g * STK_GROUP + lane] = (int8_t)q;
    if (lane == 0) {
        const float d = !finite ? __int_as_float(0x7fc00000) : zero ? 0.0f : amax / 127.0f;
        ((float *)(row + at.scale_offset))[g] = d;
        ((float *)(row + at.sum_offset))[g] = d * (float)(sum + other);
    }
    if (lane % 16 == 0) ((int *)(row + at.neg16_offset))[2 * g + lane / 16] = -sum;
}

#endif
