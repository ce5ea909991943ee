/*
 * prelude: what every `.cu` file includes first: CUDA itself, or its emulation (STK_EMU), under the same names; shared arrays;
 * the launch macro.
 *
 *     STK_SHARED(float, sums, 32);          an array of the block; sums[i]
 *     STK_SHARED_DYNAMIC(uint4, tile);      the launch's dynamic bytes
 *     stk_shared<float>                     a pointer into either; threads share whole 32-bit words
 *     STK_LAUNCH(grid, block, shared_bytes, stream, args, kernel<X>)   kernel takes one struct by value; a cudaError_t
 *
 * Arithmetic is that of cpu/ref.c: compiled without contraction, fma explicit, division and square root exact, no flush to zero.
 */
#ifndef STK_CUDA_PRELUDE_CUH
#define STK_CUDA_PRELUDE_CUH

#ifdef STK_EMU

#include "cuda/emu/device.cuh"

#else

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "src/numeric.h"

template <class T> using stk_shared = T *;
template <class U, class T> __device__ __forceinline__ U *stk_shared_as(T *p) { return (U *)p; }

#define STK_SHARED(T, name, n)                                                                                                   \
    __shared__ __align__(16) unsigned char name##_bytes[(n) * sizeof(T)];                                                        \
    T *const name = (T *)name##_bytes
#define STK_SHARED_DYNAMIC(T, name)                                                                                              \
    extern __shared__ uint4 stk_dynamic_shared[];                                                                                \
    T *const name = (T *)stk_dynamic_shared

#define STK_LAUNCH(grid, block, shared_bytes, stream, args, ...)                                                                 \
    (__VA_ARGS__<<<grid, block, shared_bytes, stream>>>(args), cudaGetLastError())

#endif

#define STK_DEVICE    static __device__ __forceinline__
#define STK_KERNEL    static __global__ void
#define STK_ALL_LANES 0xffffffffu

#endif
