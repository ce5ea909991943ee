/*
 * lanes_math: arithmetic on the vector of lanes.h that the operations on vectors and attention share. Rules: ref.c.
 *
 * Private to the files that lanes.h names.
 */
#ifndef STK_CPU_LANES_MATH_H
#define STK_CPU_LANES_MATH_H

#include <math.h>

#include "cpu/lanes.h"

/* The sums of ref.c have 16 lanes: this many vectors. */
#define SUM_VECS (16 / LANES)

/* The first n lanes; where n is the constant LANES, without a mask. */
INLINE vf load_part(const float *p, uint32_t n) { return n == LANES ? vf_load(p) : vf_load_n(p, n); }
INLINE void store_part(float *p, vf a, uint32_t n) {
    if (n == LANES)
        vf_store(p, a);
    else
        vf_store_n(p, a, n);
}

INLINE vf vf_max(vf a, vf b) { return V(max_ps)(a, b); } /* a > b ? a : b */
INLINE vf vf_min(vf a, vf b) { return V(min_ps)(a, b); } /* a < b ? a : b */
INLINE vf vf_neg(vf a) { return vf_bits(vi_xor(vi_bits(a), vi_set1(INT32_MIN))); }
INLINE vi vi_max(vi a, vi b) { return V(max_epi32)(a, b); }
INLINE vi vi_from_f32(vf a) { return V(cvtps_epi32)(a); } /* half to even */

#if LANES == 16

INLINE vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* a * 2^n for integers n, rounded once. */
INLINE vf vf_scale(vf a, vf n) { return _mm512_scalef_ps(a, n); }
/* The first n <= LANES lanes of a, the others of b. */
INLINE vf vf_first_n(vf a, uint32_t n, vf b) { return _mm512_mask_mov_ps(b, (__mmask16)((1u << n) - 1), a); }
/* Even or odd lanes of the 2 * LANES floats a, b. */
INLINE vf vf_even(vf a, vf b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
}
INLINE vf vf_odd(vf a, vf b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
}
INLINE void vf_store_f16(void *p, vf a) {
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#else

INLINE vf vf_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* In two steps, as 2^n alone may not be a float; the first is exact where |log2 a| and |n| are as small as in vf_exp. */
INLINE vf vf_scale(vf a, vf n) {
    vi e = vi_from_f32(n), half = vi_sar(e, 1), rest = _mm256_sub_epi32(e, half), bias = vi_set1(127);
    a = vf_mul(a, vf_bits(vi_shl(vi_add(half, bias), 23)));
    return vf_mul(a, vf_bits(vi_shl(vi_add(rest, bias), 23)));
}
INLINE vf vf_first_n(vf a, uint32_t n, vf b) { return _mm256_blendv_ps(b, a, vf_bits(first_lanes(n))); }
INLINE vf vf_even(vf a, vf b) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xd8));
}
INLINE vf vf_odd(vf a, vf b) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8));
}
INLINE void vf_store_f16(void *p, vf a) {
    _mm_storeu_si128(p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#endif

/* Lanes i += i + 8, i += i + 4, i += i + 2, i += i + 1 of the 16. */
INLINE float sum_lanes(const vf s[SUM_VECS]) {
#if LANES == 16
    __m256 x = _mm256_add_ps(_mm512_castps512_ps256(s[0]), _mm512_extractf32x8_ps(s[0], 1));
#else
    __m256 x = _mm256_add_ps(s[0], s[1]);
#endif
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

/* No lane is NaN. */
INLINE float max_lanes(vf a) {
#if LANES == 16
    __m256 x = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
#else
    __m256 x = a;
#endif
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

/*
 * stk_expf. What it returns without computing, 0 below -104 and infinity above 88.8, is what its operations give at these ends,
 * so that x is only clamped; the order of the operands keeps NaN.
 */
INLINE vf vf_exp(vf x) {
    x = vf_min(vf_set1(88.8f), vf_max(vf_set1(-104.0f), x));
    vf n = vf_round(vf_mul(x, vf_set1(0x1.715476p+0f)));
    vf r = vf_fma(n, vf_set1(-0x1.62e400p-1f), x);
    r = vf_fma(n, vf_set1(-0x1.7f7d1cp-20f), r);
    vf p = vf_set1(0x1.6a4d14p-10f);
    p = vf_fma(p, r, vf_set1(0x1.12398ap-7f));
    p = vf_fma(p, r, vf_set1(0x1.5558b0p-5f));
    p = vf_fma(p, r, vf_set1(0x1.555492p-3f));
    p = vf_fma(p, r, vf_set1(0x1.fffffcp-2f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_scale(p, n);
}

#endif
