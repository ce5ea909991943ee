/*
 * twins: the products of Q4_K, Q8_0 and BF16 as a GPU would compute them from the stripes of experts/layout.c, by the rules of
 * cpu/ref.c. They are here to be compiled and counted (count.py), which is what decided the layout and the rules; they are not
 * linked into anything.
 *
 *     *_vec    one token. A warp takes 2 units of a stripe at a time, 128 bytes in a row: lane = row + 16 * (unit & 1).
 *     *_tile   8 tokens. A warp multiplies a stripe with mma m16n8k32 whose fragments are dwords of units as they lie there. Sums
 * of int8 are exact, so the mma's row i may be any row and its k any permutation of the group: registers 0 and 1 of A are rows 2i
 * and 2i + 1 of one unit, one load of 8 bytes. GROUP256 and SCALE_INT are the rules that were not chosen: activations in groups
 * of 256, and sub-scales multiplied as integers.
 */
#include <cuda_fp16.h>
#include <stdint.h>

struct product {
    const uint8_t *weights;
    uint32_t n_in;
    uint64_t stripe_bytes;
    const int8_t *q[8]; /* of a token: codes, then scales and sums */
    const float *d[8], *sum[8];
    float *out[8];
};

enum { BLOCK = 256, UNIT = 64 };
#define MAGIC 12582912.0f /* 1.5 * 2^23: an int32 sum that starts at its bits ends as the bits of MAGIC + sum */

enum rule { PLAIN, CONVERT, GROUP256, SCALE_INT };

/* One scale of Q4_K and Q5_K: 6 bits of the 12 bytes s[3]. */
__device__ __forceinline__ void scale_min(const uint32_t s[3], int g, int *sc, int *mn) {
    int at = 8 * (g & 3);
    int s0 = s[0] >> at & 255, s1 = s[1] >> at & 255, s2 = s[2] >> at & 255;
    *sc = g < 4 ? s0 & 63 : (s2 & 15) | (s0 >> 6) << 4;
    *mn = g < 4 ? s1 & 63 : s2 >> 4 | (s1 >> 6) << 4;
}

/* t after group: u = ws * S, t = fma(u, d, t). S starts at MAGIC unless the rule converts. */
template <rule R> __device__ __forceinline__ float fold(float t, int s, float ws, float d) {
    if (R == CONVERT) return fmaf(ws * (float)s, d, t);
    if (R == GROUP256) return fmaf(ws, __int_as_float(s) - MAGIC, t); /* d comes once a block */
    return fmaf(fmaf(ws, __int_as_float(s), -(ws * MAGIC)), d, t);
}
template <rule R> __device__ __forceinline__ int start() { return R == CONVERT || R == SCALE_INT ? 0 : 0x4b400000; }

/* ---- One token ------------------------------------------------------------------------------------------------------------ */

template <rule R> __device__ __forceinline__ void q4_k_vec(const product &p) {
    const uint32_t lane = threadIdx.x & 31, row = lane & 15, odd = lane >> 4;
    const uint8_t *w = p.weights + (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * p.stripe_bytes;
    float sum = 0;
    for (uint32_t k = 0; k < p.n_in; k += BLOCK, w += 36 * UNIT) {
        const uint32_t *s = (const uint32_t *)(w + UNIT) + row;
        const uint32_t scales[3] = {s[0], s[16], s[32]};
        float dw = __half2float(((const __half *)w)[row]), dmin = __half2float(((const __half *)w)[16 + row]), t = 0;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int lo = odd ? 0 : start<R>(), hi = lo;
#pragma unroll
            for (int u = 0; u < 8; u += 2) {
                uint32_t code = *(const uint32_t *)(w + (4 + 8 * c + u) * UNIT + 4 * lane);
                const int8_t *q = p.q[0] + k + 64 * c + 4 * (u + odd);
                lo = __dp4a((int)(code & 0x0f0f0f0f), *(const int *)q, lo);
                hi = __dp4a((int)(code >> 4 & 0x0f0f0f0f), *(const int *)(q + 32), hi);
            }
            lo += __shfl_xor_sync(~0u, lo, 16);
            hi += __shfl_xor_sync(~0u, hi, 16);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int sc, mn, g = 2 * c + i;
                scale_min(scales, g, &sc, &mn);
                t = fold<R>(t, i ? hi : lo, dw * (float)sc, p.d[0][k / 32 + g]);
                t = fmaf(-(dmin * (float)mn), p.sum[0][k / 32 + g], t);
            }
        }
        sum += t;
    }
    if (!odd) p.out[0][blockIdx.x * 16 + row] = sum;
}

template <rule R> __device__ __forceinline__ void q8_0_vec(const product &p) {
    const uint32_t lane = threadIdx.x & 31, row = lane & 15, odd = lane >> 4;
    const uint8_t *w = p.weights + (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * p.stripe_bytes;
    float sum = 0;
    for (uint32_t k = 0; k < p.n_in; k += BLOCK, w += 68 * UNIT) {
        float t = 0;
#pragma unroll
        for (int g = 0; g < 8; g++) {
            int s = odd ? 0 : start<R>();
#pragma unroll
            for (int u = 0; u < 8; u += 2)
                s = __dp4a(*(const int *)(w + (4 + 8 * g + u) * UNIT + 4 * lane),
                           *(const int *)(p.q[0] + k + 32 * g + 4 * (u + odd)), s);
            s += __shfl_xor_sync(~0u, s, 16);
            t = fold<R>(t, s, __half2float(((const __half *)w)[16 * g + row]), p.d[0][k / 32 + g]);
        }
        sum += t;
    }
    if (!odd) p.out[0][blockIdx.x * 16 + row] = sum;
}

/* A row's block is one chain of fmas, so the two halves of the warp take different blocks. */
extern "C" __global__ void bf16_vec(product p) {
    const uint32_t lane = threadIdx.x & 31, row = lane & 15, odd = lane >> 4;
    const uint8_t *w = p.weights + (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * p.stripe_bytes;
    const float *x = (const float *)p.q[0];
    float sum = 0;
    for (uint32_t k = 0; k < p.n_in; k += 2 * BLOCK) {
        float t = 0;
#pragma unroll 16
        for (int i = 0; i < BLOCK; i += 2) {
            uint32_t at = k + odd * BLOCK + i, pair = *(const uint32_t *)(w + at / 2 * UNIT + 4 * row);
            t = fmaf(__uint_as_float(pair << 16), x[at], t);
            t = fmaf(__uint_as_float(pair & 0xffff0000u), x[at + 1], t);
        }
        sum += __shfl_sync(~0u, t, row);
        sum += __shfl_sync(~0u, t, row + 16);
    }
    if (!odd) p.out[0][blockIdx.x * 16 + row] = sum;
}

/* ---- Eight tokens --------------------------------------------------------------------------------------------------------- */

/* c += a b of 16 rows x 32 x 8 tokens; on sm_75 as four products of 8 x 16 x 8. */
__device__ __forceinline__ void mma(int c[4], const uint32_t a[4], const uint32_t b[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
            : "+r"(c[i % 2 * 2]), "+r"(c[i % 2 * 2 + 1])
            : "r"(a[i]), "r"(b[i / 2]));
#endif
}

/* c = the sums of one group. Columns of c are tokens 2 (lane % 4) and + 1; rows 2 (lane / 4) twice, then + 1 twice. */
template <rule R> __device__ __forceinline__ void group_sums(int c[4], const uint32_t a[4], const int8_t *q) {
    const uint32_t b[2] = {*(const uint32_t *)q, *(const uint32_t *)(q + 16)};
#pragma unroll
    for (int i = 0; i < 4; i++) c[i] = start<R>();
    mma(c, a, b);
}

template <rule R>
__device__ __forceinline__ void fold_tile(float t[4], const int c[4], const float ws[2], const float wm[2], const product &p,
                                          uint32_t tok, uint32_t g, bool mins) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        t[i] = fold<R>(t[i], c[i], ws[i / 2], p.d[tok + i % 2][g]);
        if (mins) t[i] = fmaf(-wm[i / 2], p.sum[tok + i % 2][g], t[i]);
    }
}

template <rule R> __device__ __forceinline__ void q4_k_tile(const product &p) {
    const uint32_t lane = threadIdx.x & 31, row = lane / 4 * 2, unit = lane % 4, tok = lane % 4 * 2;
    const uint8_t *w = p.weights + (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * p.stripe_bytes;
    float out[4] = {0, 0, 0, 0};
    for (uint32_t k = 0; k < p.n_in; k += BLOCK, w += 36 * UNIT) {
        float2 dw = __half22float2(((const __half2 *)w)[row / 2]), dmin = __half22float2(((const __half2 *)w)[8 + row / 2]);
        uint2 s[3];
#pragma unroll
        for (int i = 0; i < 3; i++) s[i] = *(const uint2 *)(w + (1 + i) * UNIT + 4 * row);
        const uint32_t s0[3] = {s[0].x, s[1].x, s[2].x}, s1[3] = {s[0].y, s[1].y, s[2].y};
        float t[4] = {0, 0, 0, 0};
        int total[4] = {0, 0, 0, 0};
#pragma unroll
        for (int g = 0; g < 8; g++) {
            uint2 a0 = *(const uint2 *)(w + (4 + g / 2 * 8 + unit) * UNIT + 4 * row),
                  a1 = *(const uint2 *)(w + (8 + g / 2 * 8 + unit) * UNIT + 4 * row);
            uint32_t shift = g % 2 * 4, low = 0x0f0f0f0f;
            uint32_t a[4] = {a0.x >> shift & low, a0.y >> shift & low, a1.x >> shift & low, a1.y >> shift & low};
            int c[4], sc[2], mn[2];
            group_sums<R>(c, a, p.q[lane / 4] + k + 32 * g + 4 * unit);
            scale_min(s0, g, &sc[0], &mn[0]);
            scale_min(s1, g, &sc[1], &mn[1]);
            if (R == SCALE_INT) {
#pragma unroll
                for (int i = 0; i < 4; i++) total[i] += sc[i / 2] * c[i];
            }
            const float ws[2] = {dw.x * (float)sc[0], dw.y * (float)sc[1]},
                        wm[2] = {dmin.x * (float)mn[0], dmin.y * (float)mn[1]};
            if (R != SCALE_INT) fold_tile<R>(t, c, ws, wm, p, tok, k / 32 + g, true);
            if (R == SCALE_INT) {
#pragma unroll
                for (int i = 0; i < 4; i++) t[i] = fmaf(-wm[i / 2], p.sum[tok + i % 2][k / 32 + g], t[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float d = p.d[tok + i % 2][k / BLOCK];
            if (R == SCALE_INT) t[i] = fmaf((i / 2 ? dw.y : dw.x) * d, (float)total[i], t[i]);
            out[i] = R == GROUP256 ? fmaf(t[i], d, out[i]) : out[i] + t[i];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) p.out[tok + i % 2][blockIdx.x * 16 + row + i / 2] = out[i];
}

template <rule R> __device__ __forceinline__ void q8_0_tile(const product &p) {
    const uint32_t lane = threadIdx.x & 31, row = lane / 4 * 2, unit = lane % 4, tok = lane % 4 * 2;
    const uint8_t *w = p.weights + (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * p.stripe_bytes;
    float out[4] = {0, 0, 0, 0};
    for (uint32_t k = 0; k < p.n_in; k += BLOCK, w += 68 * UNIT) {
        float t[4] = {0, 0, 0, 0};
#pragma unroll
        for (int g = 0; g < 8; g++) {
            uint2 a0 = *(const uint2 *)(w + (4 + 8 * g + unit) * UNIT + 4 * row),
                  a1 = *(const uint2 *)(w + (8 + 8 * g + unit) * UNIT + 4 * row);
            uint32_t a[4] = {a0.x, a0.y, a1.x, a1.y};
            int c[4];
            float2 d = __half22float2(((const __half2 *)w)[8 * g + row / 2]);
            const float ws[2] = {d.x, d.y};
            group_sums<R>(c, a, p.q[lane / 4] + k + 32 * g + 4 * unit);
            fold_tile<R>(t, c, ws, ws, p, tok, k / 32 + g, false);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] += t[i];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) p.out[tok + i % 2][blockIdx.x * 16 + row + i / 2] = out[i];
}

/* lane = row + 16 * (half of the tokens); tensor cores would not give the chain of fmas. */
extern "C" __global__ void bf16_tile(product p) {
    const uint32_t lane = threadIdx.x & 31, row = lane & 15, tok = lane / 16 * 4;
    const uint8_t *w = p.weights + (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * p.stripe_bytes;
    float out[4] = {0, 0, 0, 0};
    for (uint32_t k = 0; k < p.n_in; k += BLOCK) {
        float t[4] = {0, 0, 0, 0};
#pragma unroll 8
        for (uint32_t i = k; i < k + BLOCK; i += 2) {
            uint32_t pair = *(const uint32_t *)(w + i / 2 * UNIT + 4 * row);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float2 x = *(const float2 *)((const float *)p.q[tok + j] + i);
                t[j] = fmaf(__uint_as_float(pair & 0xffff0000u), x.y, fmaf(__uint_as_float(pair << 16), x.x, t[j]));
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) out[j] += t[j];
    }
#pragma unroll
    for (int j = 0; j < 4; j++) p.out[tok + j][blockIdx.x * 16 + row] = out[j];
}

extern "C" __global__ void q4_k_vec_plain(product p) { q4_k_vec<PLAIN>(p); }
extern "C" __global__ void q4_k_vec_convert(product p) { q4_k_vec<CONVERT>(p); }
extern "C" __global__ void q8_0_vec_plain(product p) { q8_0_vec<PLAIN>(p); }
extern "C" __global__ void q4_k_tile_plain(product p) { q4_k_tile<PLAIN>(p); }
extern "C" __global__ void q4_k_tile_convert(product p) { q4_k_tile<CONVERT>(p); }
extern "C" __global__ void q4_k_tile_group256(product p) { q4_k_tile<GROUP256>(p); }
extern "C" __global__ void q4_k_tile_scale_int(product p) { q4_k_tile<SCALE_INT>(p); }
extern "C" __global__ void q8_0_tile_plain(product p) { q8_0_tile<PLAIN>(p); }
extern "C" __global__ void q8_0_tile_convert(product p) { q8_0_tile<CONVERT>(p); }
