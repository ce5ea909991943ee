/*
 * format: the block formats as a warp reads them from a stripe (experts/layout.c). For each quantized type a struct of the same
 * shape, made for one block of 256 weights of one stripe:
 *
 *     low_unit(g, u), high_unit(g, u)   the units that hold the codes of weights 4u .. 4u + 3 of group g
 *     decode(g, u, low, high)           these four codes as bytes, from a row's dwords of those units
 *     scales(row)                       what a row needs for ws(i) and wm(g)
 *     OFFSET                            what the codes have too much: added back from the activations' sums
 *     MINS, SIXTEENS                    a minimum per group; a scale per 16 weights instead of 32
 *
 * g and u are constants after unrolling wherever it matters.
 */
#ifndef STK_CUDA_FORMAT_CUH
#define STK_CUDA_FORMAT_CUH

#include "cuda/prelude.cuh"
#include "experts/layout.h"

enum { STK_GROUPS = STK_BLOCK / STK_GROUP };

/* 1.5 * 2^23: an int32 sum that starts at its bits ends as the bits of it plus the sum (cpu/ref.c). */
#define STK_MAGIC      12582912.0f
#define STK_MAGIC_BITS 0x4b400000

STK_DEVICE float stk_half_at(const uint8_t *p) { return __half2float(__ushort_as_half(*(const unsigned short *)p)); }
STK_DEVICE uint32_t stk_word_at(const uint8_t *units, uint32_t unit, uint32_t row) {
    return *(const uint32_t *)(units + unit * STK_UNIT_BYTES + 4 * row);
}
/* Of two neighbouring rows, the first even. */
STK_DEVICE uint2 stk_words_at(const uint8_t *units, uint32_t unit, uint32_t row) {
    return *(const uint2 *)(units + unit * STK_UNIT_BYTES + 4 * row);
}

/* Halves [group][16] before the codes, groups of a last block fewer. */
template <int UNITS> struct stk_format_of_32 {
    const uint8_t *halves, *low, *high;
    uint32_t n_group;
    __device__ __forceinline__ stk_format_of_32(const uint8_t *stripe, uint32_t n_in, uint32_t block) {
        uint32_t rest = n_in / STK_GROUP - block * STK_GROUPS;
        halves = stripe + (uint64_t)block * (STK_GROUPS * (32 + UNITS * STK_UNIT_BYTES));
        n_group = rest < STK_GROUPS ? rest : (uint32_t)STK_GROUPS;
        low = halves + (n_group * 32 + STK_UNIT_BYTES - 1) / STK_UNIT_BYTES * STK_UNIT_BYTES;
        high = low;
    }
    struct row_scales {
        const uint8_t *halves;
        __device__ __forceinline__ float ws(int i) const { return stk_half_at(halves + 32 * (i / 2)); }
        __device__ __forceinline__ float wm(int) const { return 0.0f; }
    };
    __device__ __forceinline__ row_scales scales(uint32_t row) const { return {halves + 2 * row}; }
};

struct stk_format_q8_0 : stk_format_of_32<8> {
    static constexpr bool MINS = false, SIXTEENS = false, HIGH = false;
    static constexpr int OFFSET = 0;
    using stk_format_of_32<8>::stk_format_of_32;
    static __device__ __forceinline__ uint32_t low_unit(int g, uint32_t u) { return 8 * g + u; }
    static __device__ __forceinline__ uint32_t high_unit(int, uint32_t) { return 0; }
    static __device__ __forceinline__ uint32_t decode(int, uint32_t, uint32_t low, uint32_t) { return low; }
};

struct stk_format_q4_0 : stk_format_of_32<4> {
    static constexpr bool MINS = false, SIXTEENS = false, HIGH = false;
    static constexpr int OFFSET = 8;
    using stk_format_of_32<4>::stk_format_of_32;
    static __device__ __forceinline__ uint32_t low_unit(int g, uint32_t u) { return 4 * g + u % 4; }
    static __device__ __forceinline__ uint32_t high_unit(int, uint32_t) { return 0; }
    static __device__ __forceinline__ uint32_t decode(int, uint32_t u, uint32_t low, uint32_t) {
        return low >> u / 4 * 4 & 0x0f0f0f0fu;
    }
};

/* 6-bit scales and minima of Q4_K and Q5_K, from the three dwords of 12 bytes. */
struct stk_k_row_scales {
    float d, dmin;
    uint32_t s[3];
    __device__ __forceinline__ stk_k_row_scales(const uint8_t *block, uint32_t row) {
        d = stk_half_at(block + 2 * row);
        dmin = stk_half_at(block + 32 + 2 * row);
#pragma unroll
        for (int i = 0; i < 3; i++) s[i] = stk_word_at(block, 1 + i, row);
    }
    __device__ __forceinline__ float ws(int i) const {
        int g = i / 2, at = 8 * (g & 3);
        uint32_t scale = g < 4 ? s[0] >> at & 63u : (s[2] >> at & 15u) | (s[0] >> (at + 6) & 3u) << 4;
        return d * (float)scale;
    }
    __device__ __forceinline__ float wm(int g) const {
        int at = 8 * (g & 3);
        uint32_t min = g < 4 ? s[1] >> at & 63u : (s[2] >> (at + 4) & 15u) | (s[1] >> (at + 6) & 3u) << 4;
        return dmin * (float)min;
    }
};

struct stk_format_q4_k {
    static constexpr bool MINS = true, SIXTEENS = false, HIGH = false;
    static constexpr int OFFSET = 0;
    static constexpr uint32_t n_group = STK_GROUPS;
    const uint8_t *block, *low, *high;
    typedef stk_k_row_scales row_scales;
    __device__ __forceinline__ stk_format_q4_k(const uint8_t *stripe, uint32_t, uint32_t b) {
        block = stripe + (uint64_t)b * (36 * STK_UNIT_BYTES);
        low = high = block + 4 * STK_UNIT_BYTES;
    }
    __device__ __forceinline__ row_scales scales(uint32_t row) const { return {block, row}; }
    static __device__ __forceinline__ uint32_t low_unit(int g, uint32_t u) { return g / 2 * 8 + u; }
    static __device__ __forceinline__ uint32_t high_unit(int, uint32_t) { return 0; }
    static __device__ __forceinline__ uint32_t decode(int g, uint32_t, uint32_t low, uint32_t) {
        return low >> g % 2 * 4 & 0x0f0f0f0fu;
    }
};

struct stk_format_q5_k {
    static constexpr bool MINS = true, SIXTEENS = false, HIGH = true;
    static constexpr int OFFSET = 0;
    static constexpr uint32_t n_group = STK_GROUPS;
    const uint8_t *block, *low, *high;
    typedef stk_k_row_scales row_scales;
    __device__ __forceinline__ stk_format_q5_k(const uint8_t *stripe, uint32_t, uint32_t b) {
        block = stripe + (uint64_t)b * (44 * STK_UNIT_BYTES);
        high = block + 4 * STK_UNIT_BYTES;
        low = high + 8 * STK_UNIT_BYTES;
    }
    __device__ __forceinline__ row_scales scales(uint32_t row) const { return {block, row}; }
    static __device__ __forceinline__ uint32_t low_unit(int g, uint32_t u) { return g / 2 * 8 + u; }
    static __device__ __forceinline__ uint32_t high_unit(int, uint32_t u) { return u; }
    static __device__ __forceinline__ uint32_t decode(int g, uint32_t, uint32_t low, uint32_t high) {
        return (low >> g % 2 * 4 & 0x0f0f0f0fu) | (high >> g & 0x01010101u) << 4;
    }
};

struct stk_format_q6_k {
    static constexpr bool MINS = false, SIXTEENS = true, HIGH = true;
    static constexpr int OFFSET = 32;
    static constexpr uint32_t n_group = STK_GROUPS;
    const uint8_t *half, *block, *low, *high;
    __device__ __forceinline__ stk_format_q6_k(const uint8_t *stripe, uint32_t n_in, uint32_t b) {
        uint32_t head = (n_in / STK_BLOCK * 32 + STK_UNIT_BYTES - 1) / STK_UNIT_BYTES * STK_UNIT_BYTES;
        half = stripe + b * 32;
        block = stripe + head + (uint64_t)b * (52 * STK_UNIT_BYTES);
        high = block + 4 * STK_UNIT_BYTES;
        low = high + 16 * STK_UNIT_BYTES;
    }
    struct row_scales {
        float d;
        uint32_t s[4];
        __device__ __forceinline__ float ws(int i) const { return d * (float)(int8_t)(s[i / 4] >> i % 4 * 8); }
        __device__ __forceinline__ float wm(int) const { return 0.0f; }
    };
    __device__ __forceinline__ row_scales scales(uint32_t row) const {
        return {stk_half_at(half + 2 * row),
                {stk_word_at(block, 0, row), stk_word_at(block, 1, row), stk_word_at(block, 2, row), stk_word_at(block, 3, row)}};
    }
    static __device__ __forceinline__ uint32_t low_unit(int g, uint32_t u) { return g / 4 * 16 + g % 2 * 8 + u; }
    static __device__ __forceinline__ uint32_t high_unit(int g, uint32_t u) { return g / 4 * 8 + u; }
    static __device__ __forceinline__ uint32_t decode(int g, uint32_t, uint32_t low, uint32_t high) {
        return (low >> g % 4 / 2 * 4 & 0x0f0f0f0fu) | (high >> g % 4 * 2 & 0x03030303u) << 4;
    }
};

/* Float types: weights k (even) and k + 1 of a row; the second of the last odd one is padding. */
struct stk_format_f32 {
    static __device__ __forceinline__ float2 pair(const uint8_t *stripe, uint32_t k, uint32_t row) {
        return make_float2(__uint_as_float(stk_word_at(stripe, k, row)), __uint_as_float(stk_word_at(stripe, k + 1, row)));
    }
    static __device__ __forceinline__ float one(const uint8_t *stripe, uint32_t k, uint32_t row) {
        return __uint_as_float(stk_word_at(stripe, k, row));
    }
};
struct stk_format_f16 {
    static __device__ __forceinline__ float2 pair(const uint8_t *stripe, uint32_t k, uint32_t row) {
        uint32_t w = stk_word_at(stripe, k / 2, row);
        return make_float2(__half2float(__ushort_as_half((unsigned short)w)),
                           __half2float(__ushort_as_half((unsigned short)(w >> 16))));
    }
    static __device__ __forceinline__ float one(const uint8_t *stripe, uint32_t k, uint32_t row) {
        return pair(stripe, k, row).x;
    }
};
struct stk_format_bf16 {
    static __device__ __forceinline__ float2 pair(const uint8_t *stripe, uint32_t k, uint32_t row) {
        uint32_t w = stk_word_at(stripe, k / 2, row);
        return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
    }
    static __device__ __forceinline__ float one(const uint8_t *stripe, uint32_t k, uint32_t row) {
        return pair(stripe, k, row).x;
    }
};

template <enum stk_type T> struct stk_format;
#define STK_FORMAT(type, name)                                                                                                   \
    template <> struct stk_format<type> { typedef name block; }
STK_FORMAT(STK_TYPE_F32, stk_format_f32);
STK_FORMAT(STK_TYPE_F16, stk_format_f16);
STK_FORMAT(STK_TYPE_BF16, stk_format_bf16);
STK_FORMAT(STK_TYPE_Q8_0, stk_format_q8_0);
STK_FORMAT(STK_TYPE_Q4_0, stk_format_q4_0);
STK_FORMAT(STK_TYPE_Q4_K, stk_format_q4_k);
STK_FORMAT(STK_TYPE_Q5_K, stk_format_q5_k);
STK_FORMAT(STK_TYPE_Q6_K, stk_format_q6_k);

STK_ANYWHERE constexpr bool stk_reads_act(enum stk_type t) {
    return t != STK_TYPE_F32 && t != STK_TYPE_F16 && t != STK_TYPE_BF16;
}

/* A quantized activation row. */
struct stk_act {
    const int8_t *q;
    const float *d, *sum;
    const int32_t *neg16;
    __device__ __forceinline__ stk_act(const uint8_t *row, uint32_t n_in) {
        stk_act_layout at = stk_act_layout_of(n_in);
        q = (const int8_t *)row;
        d = (const float *)(row + at.scale_offset);
        sum = (const float *)(row + at.sum_offset);
        neg16 = (const int32_t *)(row + at.neg16_offset);
    }
};

/* t after one group, from sums that started at STK_MAGIC_BITS (s1: the second 16 weights of SIXTEENS). */
template <class F> STK_DEVICE float stk_fold(float t, int s0, int s1, float ws0, float ws1, float wm, float d, float sum) {
    float u = fmaf(ws0, __int_as_float(s0), -(ws0 * STK_MAGIC));
    if (F::SIXTEENS) u = fmaf(ws1, __int_as_float(s1) - STK_MAGIC, u);
    t = fmaf(u, d, t);
    return F::MINS ? fmaf(-wm, sum, t) : t;
}

#endif
