/* emu_kernels: see the header. */
#include "emu_kernels.h"

#include "cuda/mma.cuh"

extern "C" void emu_kernel_warp(const void *args) {
    emu_warp_results *r = (emu_warp_results *)((const emu_args *)args)->p;
    const uint32_t lane = threadIdx.x;
    r->up[lane] = __shfl_up_sync(~0u, lane * 10, 3);
    r->down[lane] = __shfl_down_sync(~0u, lane * 10, 3);
    r->exclusive_or[lane] = __shfl_xor_sync(~0u, lane * 10, 5);
    r->from_3[lane] = __shfl_sync(~0u, lane * 10, 3);
    r->halves[lane] = __shfl_down_sync(~0u, lane * 10, 8, 16);
    r->ballot[lane] = __ballot_sync(~0u, lane % 3 == 0);
    r->all[lane] = (uint32_t)__all_sync(lane < 16 ? 0xffffu : 0xffff0000u, lane < 16);
    r->any[lane] = (uint32_t)__any_sync(~0u, lane == 31);
}

/* The fragments as the PTX manual words them: groupID = lane >> 2, threadID_in_group = lane % 4. */
extern "C" void emu_kernel_mma(const void *args) {
    emu_mma *m = (emu_mma *)((const emu_args *)args)->p;
    const int group = (int)threadIdx.x >> 2, in_group = (int)threadIdx.x % 4;
    uint32_t a[4] = {}, b[2] = {};
    int c32[4], c16[4];
    for (int i = 0; i < 16; i++) {
        int row = i < 4 || (i >= 8 && i < 12) ? group : group + 8, column = in_group * 4 + (i & 3) + (i < 8 ? 0 : 16);
        a[i / 4] |= (uint32_t)(uint8_t)m->a[row][column] << i % 4 * 8;
    }
    for (int i = 0; i < 8; i++) {
        int row = in_group * 4 + (i & 3) + (i < 4 ? 0 : 16);
        b[i / 4] |= (uint32_t)(uint8_t)m->b[row][group] << i % 4 * 8;
    }
    for (int i = 0; i < 4; i++) {
        int row = i < 2 ? group : group + 8, column = in_group * 2 + (i & 1);
        c32[i] = m->c32[row][column];
        c16[i] = m->c16[row][column];
    }
    stk_mma_k32(c32, a, b);
    stk_mma_k16(c16, a, b[0]);
    for (int i = 0; i < 4; i++) {
        int row = i < 2 ? group : group + 8, column = in_group * 2 + (i & 1);
        m->c32[row][column] = c32[i];
        m->c16[row][column] = c16[i];
    }
}

extern "C" void emu_kernel_shuffle_from_outside(const void *) {
    if (threadIdx.x < 8) __shfl_sync(0xffu, threadIdx.x, 9);
}

extern "C" void emu_kernel_mma_of_half_a_warp(const void *) {
    uint32_t a[4] = {}, b[2] = {};
    int c[4] = {};
    stk_mma_k32(c, a, b);
}
