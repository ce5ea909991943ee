/* emu_kernels: kernels in C++ for test_emu_device.c: what device.cuh and mma.cuh give to `.cu` files. */
#ifndef STK_EMU_KERNELS_H
#define STK_EMU_KERNELS_H

#include "emu_fixture.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One warp each; args: emu_args whose p is the struct. */
typedef struct emu_warp_results {
    uint32_t up[32], down[32], exclusive_or[32], from_3[32], halves[32], ballot[32], all[32], any[32];
} emu_warp_results;
void emu_kernel_warp(const void *args);

typedef struct emu_mma {
    int8_t a[16][32], b[32][8];
    int32_t c32[16][8], c16[16][8]; /* in and out; of the first 16 k alone */
} emu_mma;
void emu_kernel_mma(const void *args);

void emu_kernel_shuffle_from_outside(const void *args);
void emu_kernel_mma_of_half_a_warp(const void *args);

#ifdef __cplusplus
}
#endif
#endif
