/*
 * dot: sums of products of four int8 codes per lane, for product_quant.h: vpdpbusd where the including file has VNNI, else
 * vpmaddubsw.
 *
 * Weights are the unsigned operand. vpmaddubsw adds pairs into saturating int16, exactly for codes below 128 and |q| <= 127; how
 * many of its results may then be added in int16 follows from the largest code: 8 for 4 bits (8 * 2 * 15 * 127 = 30,480), 4 for 5
 * bits (31,496), 2 for 6 bits (32,004). Q8_0 multiplies |w| by q with w's sign, which is right for w = -128, too, and fills the
 * int16 with one result (32,512).
 */
#ifndef STK_CPU_DOT_H
#define STK_CPU_DOT_H

#include <stdbool.h>

#include "cpu/lanes.h"

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define DOT_VNNI 1
#else
#define DOT_VNNI 0
#endif

#if DOT_VNNI

/* acc + the four products. */
INLINE vi dot4(vi acc, vi codes, int32_t q) {
#if defined(__AVX512VNNI__)
    return V(dpbusd_epi32)(acc, codes, vi_set1(q));
#else
    return _mm256_dpbusd_avx_epi32(acc, codes, vi_set1(q));
#endif
}

#else

/* int16 sums of two products each; `sign` is set for codes that are int8. */
INLINE vi dot4_pairs(vi codes, int32_t q, bool sign) {
    vi x = vi_set1(q);
    return sign ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)) : _mm256_maddubs_epi16(codes, x);
}

#endif
#endif
