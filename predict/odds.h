/*
 * odds: probabilities and their log-odds, in plain additions and multiplications, so that every machine and compiler gets the
 * same bits and a loop over a row becomes vector instructions (stk_expf needs fma, a library call where that is not compiled in).
 *
 * Who may call it: predict/.
 */
#ifndef STK_ODDS_H
#define STK_ODDS_H

#include <stdint.h>
#include <string.h>

enum { STK_ODDS_MAX = 30 }; /* log-odds beyond are cut to it */

/* 1 / (1 + exp(-z)), relative error below 3e-6. */
static inline float stk_odds_p(float z) {
    z = z > STK_ODDS_MAX ? STK_ODDS_MAX : z;
    z = z > -STK_ODDS_MAX ? z : -STK_ODDS_MAX; /* NaN too */
    float t = z * -1.44269504f, shifted = t + 12582912.0f, f = t - (shifted - 12582912.0f);
    uint32_t n;
    memcpy(&n, &shifted, sizeof n); /* the integer nearest to t in its low bits */
    float e = 1.3333558e-3f;        /* 2^f for |f| <= 1/2 */
    e = e * f + 9.6181291e-3f;
    e = e * f + 5.5504109e-2f;
    e = e * f + 2.4022651e-1f;
    e = e * f + 6.9314718e-1f;
    e = e * f + 1.0f;
    uint32_t bits;
    memcpy(&bits, &e, sizeof bits);
    bits += n << 23;
    memcpy(&e, &bits, sizeof e);
    return 1.0f / (1.0f + e);
}

/* The same for a row [n], a multiple of 4; four at a time where a compiler can. NaN becomes 0 or 1. */
static inline void stk_odds_row(float *restrict p, const float *restrict z, uint32_t n) {
    typedef float f32x4 __attribute__((vector_size(16), aligned(4), may_alias));
    typedef int32_t i32x4 __attribute__((vector_size(16)));
    const f32x4 most = {STK_ODDS_MAX, STK_ODDS_MAX, STK_ODDS_MAX, STK_ODDS_MAX};
    for (size_t i = 0; i < n; i += 4) {
        f32x4 x = *(const f32x4 *)(z + i);
        i32x4 above = x > most, below = x < -most;
        x = (f32x4)(((i32x4)x & ~above & ~below) | ((i32x4)most & above) | ((i32x4)-most & below));
        f32x4 t = x * -1.44269504f, shifted = t + 12582912.0f, f = t - (shifted - 12582912.0f);
        f32x4 e = f * 1.3333558e-3f + 9.6181291e-3f;
        e = e * f + 5.5504109e-2f;
        e = e * f + 2.4022651e-1f;
        e = e * f + 6.9314718e-1f;
        e = e * f + 1.0f;
        e = (f32x4)((i32x4)e + ((i32x4)shifted << 23));
        *(f32x4 *)(p + i) = 1.0f / (1.0f + e);
    }
}

/* Natural logarithm of a normal positive number. */
static inline float stk_odds_ln(float x) {
    uint32_t u, bits;
    memcpy(&u, &x, sizeof u);
    int32_t n = (int32_t)(u - 0x3f3504f3u) >> 23; /* x = m * 2^n, sqrt(1/2) <= m < sqrt(2) */
    bits = u - ((uint32_t)n << 23);
    float m;
    memcpy(&m, &bits, sizeof m);
    float s = (m - 1.0f) / (m + 1.0f), q = s * s;
    return (float)n * 0.69314718f + 2.0f * s * (1.0f + q * (0.33333333f + q * (0.2f + q * 0.14285714f)));
}

/* The log-odds of p, which is cut to 2^-20 from either end. */
static inline float stk_odds_of(float p) {
    p = p > 0x1p-20f ? p : 0x1p-20f;
    p = p < 1.0f - 0x1p-20f ? p : 1.0f - 0x1p-20f;
    return stk_odds_ln(p) - stk_odds_ln(1.0f - p);
}

#endif
