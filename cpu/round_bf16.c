/* round_bf16: rounding by AVX512-BF16. */
#include <immintrin.h>

#include "cpu/round.h"

static void row(const float *x, uint32_t n, uint16_t *out) {
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32)
        _mm512_storeu_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i)));
    stk_round_plain.row(x + i, n - i, out + i);
}

/* Pairs of a row lie side by side in both types. */
static void stripe_f16(const void *stripe, uint32_t n_in, uint16_t *out) {
    const uint16_t *w = stripe;
    for (uint32_t i = 0; i < n_in * STK_STRIPE; i += 32) {
        __m512 low = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(w + i)));
        __m512 high = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(w + i + 16)));
        _mm512_storeu_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* Two units of one weight each become one of pairs. */
static void stripe_f32(const void *stripe, uint32_t n_in, uint16_t *out) {
    const float *w = stripe;
    for (uint32_t k = 0; k < n_in; k += 2) {
        __m512i first = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(w + (size_t)k * STK_STRIPE)));
        __m512i second = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(w + (size_t)(k + 1) * STK_STRIPE)));
        _mm512_storeu_si512(out + (size_t)k * STK_STRIPE, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
    }
}

const stk_round_ops stk_round_bf16 = {row, stripe_f16, stripe_f32};
