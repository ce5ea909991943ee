/*
 * rows16: what one warp computes of a product: one block of 256 weights of a stripe's 16 rows, for 1 or 8 tokens.
 *
 *     1 token    lane = row + 16 * half of the group's units (quantized), or half of a pair of blocks (float: a row's block is
 * one chain of fma) 8 tokens   quantized: mma m16n8k32 with rows 2i and 2i + 1 of the stripe as rows i and i + 8, fragments as
 * they lie in units float: lane = row + 16 * half of the tokens
 *
 * Blocks are summed in ascending order by whoever has all of them, so warps may share out blocks as they like.
 */
#ifndef STK_CUDA_ROWS16_CUH
#define STK_CUDA_ROWS16_CUH

#include "cuda/cuda.h"
#include "cuda/format.cuh"
#include "cuda/mma.cuh"

/* The tokens of a tile: columns 0 .. count - 1; what reads beyond gets the last one. */
struct stk_columns {
    stk_cuda_rows rows;
    const uint32_t *pairs; /* of the tile, or NULL: rows first, first + 1, ... */
    uint32_t first, count, per;
    __device__ __forceinline__ uint32_t row(uint32_t column) const {
        uint32_t c = column < count ? column : count - 1;
        return pairs ? pairs[c] / per : first + c;
    }
    __device__ __forceinline__ const uint8_t *act(uint32_t column) const {
        return rows.act + (uint64_t)row(column) * rows.act_stride;
    }
    __device__ __forceinline__ const float *f32(uint32_t column) const {
        return rows.f32 + (uint64_t)row(column) * rows.f32_stride;
    }
};

/* ---- Quantized, one token ---- */

template <class F> STK_DEVICE float stk_vec_block(const F &w, uint32_t block, const stk_act &x, uint32_t row, uint32_t odd) {
    const typename F::row_scales s = w.scales(row);
    const int8_t *q = x.q + block * STK_BLOCK + 16 * odd;
    const uint32_t g0 = block * STK_GROUPS;
    float t = 0;
#pragma unroll
    for (int g = 0; g < STK_GROUPS; g++) {
        if ((uint32_t)g >= w.n_group) break;
        const uint4 q4 = *(const uint4 *)(q + 32 * g);
        const uint32_t qs[4] = {q4.x, q4.y, q4.z, q4.w};
        int sum = F::SIXTEENS || !odd ? STK_MAGIC_BITS : 0, other;
        if (F::OFFSET) sum += F::OFFSET * x.neg16[2 * (g0 + g) + odd];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t u = 4 * odd + i;
            uint32_t high = F::HIGH ? stk_word_at(w.high, F::high_unit(g, u), row) : 0;
            sum = __dp4a((int)F::decode(g, u, stk_word_at(w.low, F::low_unit(g, u), row), high), (int)qs[i], sum);
        }
        other = __shfl_xor_sync(STK_ALL_LANES, sum, 16);
        if (F::SIXTEENS)
            t = stk_fold<F>(t, odd ? other : sum, odd ? sum : other, s.ws(2 * g), s.ws(2 * g + 1), 0, x.d[g0 + g], 0);
        else
            t = stk_fold<F>(t, sum + other, 0, s.ws(2 * g), 0, s.wm(g), x.d[g0 + g], F::MINS ? x.sum[g0 + g] : 0);
    }
    return t;
}

/* ---- Quantized, eight tokens ---- */

/* A's registers for group g: rows `row` and row + 1, units u and u + 4. */
template <class F> STK_DEVICE void stk_load_a(const F &w, int g, uint32_t u, uint32_t row, uint32_t a[4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint2 low = stk_words_at(w.low, F::low_unit(g, u + 4 * i), row), high = make_uint2(0, 0);
        if (F::HIGH) high = stk_words_at(w.high, F::high_unit(g, u + 4 * i), row);
        a[2 * i] = F::decode(g, u + 4 * i, low.x, high.x);
        a[2 * i + 1] = F::decode(g, u + 4 * i, low.y, high.y);
    }
}

/* The sums of group g of 16 rows and 8 tokens: s[0] (and s[1] of the second 16 weights). neg: of this lane's two tokens. */
template <class F> STK_DEVICE void stk_group_sums(int s[2][4], const uint32_t a[4], const uint32_t b[2], const int neg[2][2]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[0][i] = s[1][i] = STK_MAGIC_BITS;
        if (F::OFFSET) {
            s[0][i] += F::OFFSET * (F::SIXTEENS ? neg[i % 2][0] : neg[i % 2][0] + neg[i % 2][1]);
            s[1][i] += F::OFFSET * neg[i % 2][1];
        }
    }
    if (F::SIXTEENS) {
        stk_mma_k16(s[0], a, b[0]);
        stk_mma_k16(s[1], a + 2, b[1]);
    } else {
        stk_mma_k32(s[0], a, b);
    }
}

template <class F> STK_DEVICE void stk_mma_block(const F &w, uint32_t block, uint32_t n_in, const stk_columns &x, float t[4]) {
    const uint32_t lane = threadIdx.x % 32, row = lane / 4 * 2, unit = lane % 4, column = lane % 4 * 2, g0 = block * STK_GROUPS;
    const int8_t *q = (const int8_t *)x.act(lane / 4) + block * STK_BLOCK + 4 * unit;
    const stk_act x0(x.act(column), n_in), x1(x.act(column + 1), n_in);
    const typename F::row_scales s0 = w.scales(row), s1 = w.scales(row + 1);
    t[0] = t[1] = t[2] = t[3] = 0;
#pragma unroll
    for (int g = 0; g < STK_GROUPS; g++) {
        if ((uint32_t)g >= w.n_group) break;
        uint32_t a[4];
        int s[2][4], neg[2][2] = {{0, 0}, {0, 0}};
        stk_load_a(w, g, unit, row, a);
        const uint32_t b[2] = {*(const uint32_t *)(q + 32 * g), *(const uint32_t *)(q + 32 * g + 16)};
        if (F::OFFSET) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                neg[0][i] = x0.neg16[2 * (g0 + g) + i];
                neg[1][i] = x1.neg16[2 * (g0 + g) + i];
            }
        }
        stk_group_sums<F>(s, a, b, neg);
        const float d[2] = {x0.d[g0 + g], x1.d[g0 + g]};
        const float sum[2] = {F::MINS ? x0.sum[g0 + g] : 0, F::MINS ? x1.sum[g0 + g] : 0};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const typename F::row_scales &r = i / 2 ? s1 : s0;
            t[i] = stk_fold<F>(t[i], s[0][i], s[1][i], r.ws(2 * g), r.ws(2 * g + 1), r.wm(g), d[i % 2], sum[i % 2]);
        }
    }
}

/* ---- Float ---- */

/* TOK tokens of one row: their chains over [k, end). */
template <class F, int TOK>
STK_DEVICE void stk_float_block(const uint8_t *stripe, uint32_t k, uint32_t end, uint32_t row, const float *const x[TOK],
                                float t[TOK]) {
#pragma unroll
    for (int j = 0; j < TOK; j++) t[j] = 0;
#pragma unroll 8
    for (; k + 1 < end; k += 2) {
        float2 w = F::pair(stripe, k, row);
#pragma unroll
        for (int j = 0; j < TOK; j++) t[j] = fmaf(w.y, x[j][k + 1], fmaf(w.x, x[j][k], t[j]));
    }
    if (k < end) {
        float w = F::one(stripe, k, row);
#pragma unroll
        for (int j = 0; j < TOK; j++) t[j] = fmaf(w, x[j][k], t[j]);
    }
}

/* ---- One piece of work of a warp ---- */

/* Blocks that a warp takes at a time. */
template <enum stk_type T, int TOK> STK_ANYWHERE constexpr uint32_t stk_rows16_blocks() {
    return !stk_reads_act(T) && TOK == 1 ? 2 : 1;
}

template <enum stk_type T, int TOK, bool ACT> struct stk_rows16_impl;

template <enum stk_type T> struct stk_rows16_impl<T, 1, true> {
    static __device__ __forceinline__ void run(const uint8_t *stripe, uint32_t n_in, uint32_t block, const stk_columns &x,
                                               stk_shared<float> out) {
        typedef typename stk_format<T>::block F;
        const uint32_t lane = threadIdx.x % 32;
        float t = stk_vec_block(F(stripe, n_in, block), block, stk_act(x.act(0), n_in), lane % 16, lane / 16);
        if (lane < 16) out[lane] = t;
    }
};

template <enum stk_type T> struct stk_rows16_impl<T, 8, true> {
    static __device__ __forceinline__ void run(const uint8_t *stripe, uint32_t n_in, uint32_t block, const stk_columns &x,
                                               stk_shared<float> out) {
        typedef typename stk_format<T>::block F;
        const uint32_t lane = threadIdx.x % 32;
        float t[4];
        stk_mma_block(F(stripe, n_in, block), block, n_in, x, t);
#pragma unroll
        for (int i = 0; i < 4; i++) out[(lane % 4 * 2 + i % 2) * STK_STRIPE + lane / 4 * 2 + i / 2] = t[i];
    }
};

template <enum stk_type T> struct stk_rows16_impl<T, 1, false> {
    static __device__ __forceinline__ void run(const uint8_t *stripe, uint32_t n_in, uint32_t block, const stk_columns &x,
                                               stk_shared<float> out) {
        const uint32_t lane = threadIdx.x % 32, begin = (block + lane / 16) * STK_BLOCK;
        if (begin >= n_in) return;
        const float *const rows[1] = {x.f32(0)};
        float t[1];
        stk_float_block<typename stk_format<T>::block, 1>(stripe, begin, min(begin + STK_BLOCK, n_in), lane % 16, rows, t);
        out[lane / 16 * STK_STRIPE + lane % 16] = t[0];
    }
};

template <enum stk_type T> struct stk_rows16_impl<T, 8, false> {
    static __device__ __forceinline__ void run(const uint8_t *stripe, uint32_t n_in, uint32_t block, const stk_columns &x,
                                               stk_shared<float> out) {
        const uint32_t lane = threadIdx.x % 32, column = lane / 16 * 4, begin = block * STK_BLOCK;
        const float *const rows[4] = {x.f32(column), x.f32(column + 1), x.f32(column + 2), x.f32(column + 3)};
        float t[4];
        stk_float_block<typename stk_format<T>::block, 4>(stripe, begin, min(begin + STK_BLOCK, n_in), lane % 16, rows, t);
#pragma unroll
        for (int i = 0; i < 4; i++) out[(column + i) * STK_STRIPE + lane % 16] = t[i];
    }
};

/* out [blocks][TOK][16] of the block, or of the blocks that a warp takes at a time. All lanes of a warp come here together. */
template <enum stk_type T, int TOK>
STK_DEVICE void stk_rows16(const uint8_t *stripe, uint32_t n_in, uint32_t block, const stk_columns &x, stk_shared<float> out) {
    stk_rows16_impl<T, TOK, stk_reads_act(T)>::run(stripe, n_in, block, x, out);
}

#endif
