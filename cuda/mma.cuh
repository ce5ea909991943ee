/*
 * mma: integer products of the tensor cores: c += a b with a of 16 rows, b of 8 columns, s8, exact in s32.
 *
 * Fragments (PTX, mma.m16n8k32): lane holds rows lane / 4 (registers 0 and 2) and + 8 (1 and 3), k = 4 (lane % 4) to + 3 in
 * registers 0 and 1 and 16 further on in 2 and 3; b register i: column lane / 4, the k of a's registers 2i; c: row lane / 4 in 0
 * and 1, + 8 in 2 and 3, columns 2 (lane % 4) and + 1. Turing's are the same pieces as products of 8 x 16 x 8.
 */
#ifndef STK_CUDA_MMA_CUH
#define STK_CUDA_MMA_CUH

#include "cuda/prelude.cuh"

#ifdef STK_EMU

static inline void stk_mma_k32(int c[4], const uint32_t a[4], const uint32_t b[2], STK_EMU_HERE) {
    stk_emu_mma<32> in = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c[0], c[1], c[2], c[3]}};
    stk_emu_warp_op({file, line}, "mma m16n8k32", ~0u, &in, c, stk_emu_combine_mma<32>);
}
static inline void stk_mma_k16(int c[4], const uint32_t a[2], uint32_t b, STK_EMU_HERE) {
    stk_emu_mma<16> in = {{a[0], a[1]}, {b}, {c[0], c[1], c[2], c[3]}};
    stk_emu_warp_op({file, line}, "mma m16n8k16", ~0u, &in, c, stk_emu_combine_mma<16>);
}

#else

/* 8 rows x 16 x 8 columns, all that sm_75 has. */
STK_DEVICE void stk_mma_8x8(int &c0, int &c1, uint32_t a, uint32_t b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c0), "+r"(c1) : "r"(a), "r"(b));
}

STK_DEVICE void stk_mma_k32(int c[4], const uint32_t a[4], const uint32_t b[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    stk_mma_8x8(c[0], c[1], a[0], b[0]);
    stk_mma_8x8(c[2], c[3], a[1], b[0]);
    stk_mma_8x8(c[0], c[1], a[2], b[1]);
    stk_mma_8x8(c[2], c[3], a[3], b[1]);
#endif
}

STK_DEVICE void stk_mma_k16(int c[4], const uint32_t a[2], uint32_t b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    stk_mma_8x8(c[0], c[1], a[0], b);
    stk_mma_8x8(c[2], c[3], a[1], b);
#endif
}

#endif
#endif
