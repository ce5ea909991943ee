/*
 * numeric: the scalar arithmetic that every device must agree on to the bit: half and bfloat conversions, exp, silu, and the
 * order of router scores. Plain C that is also valid C++ and CUDA; fma is explicit, contraction is off everywhere.
 *
 * Who may call it: every folder. Pure functions.
 */
#ifndef STK_NUMERIC_H
#define STK_NUMERIC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base.h"

static inline STK_ANYWHERE uint32_t stk_f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline STK_ANYWHERE float stk_bits_f32(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline STK_ANYWHERE float stk_bf16_f32(uint16_t h) { return stk_bits_f32((uint32_t)h << 16); }

/* Exact; subnormals included; NaN payloads are kept in the upper bits and made quiet, as vcvtph2ps does. */
static inline STK_ANYWHERE float stk_f16_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = h & 0x7fffu;
    if (mag >= 0x7c00u) return stk_bits_f32(sign | 0x7f800000u | (mag & 0x3ffu) << 13 | ((mag & 0x3ffu) ? 0x400000u : 0));
    if (mag >= 0x400u) return stk_bits_f32(sign | ((mag << 13) + 0x38000000u));
    float f = (float)mag * 0x1p-24f;
    return stk_bits_f32(sign | stk_f32_bits(f));
}

/* Round half to even, overflow to infinity, NaN stays NaN, as vcvtps2ph does. */
static inline STK_ANYWHERE uint16_t stk_f32_f16(float x) {
    uint32_t u = stk_f32_bits(x), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((mag >> 13) & 0x1ffu));
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (mag < 0x38800000u) { /* subnormal or zero: let the float adder round at 2^-24 */
        float f = stk_bits_f32(mag) + 0.5f;
        return (uint16_t)(sign | (stk_f32_bits(f) - 0x3f000000u));
    }
    mag += 0xfffu + ((mag >> 13) & 1u);
    return (uint16_t)(sign | ((mag - 0x38000000u) >> 13));
}

/* As stk_f32_f16, but what is beyond the range, infinities too, becomes the largest finite half. */
static inline STK_ANYWHERE uint16_t stk_f32_f16_sat(float x) {
    if (x > 65504.0f) x = 65504.0f;
    if (x < -65504.0f) x = -65504.0f;
    return stk_f32_f16(x);
}

/*
 * exp(x) with one fixed sequence of operations: x = n ln2 + r by two-step reduction, a polynomial of degree 6 in r, scaling by
 * 2^n in two steps so that subnormal results round once. exp(0) is 1, exp(-inf) is 0, NaN stays NaN; below -104 the result is 0,
 * above 88.8 infinity.
 *
 * The coefficients of r^2..r^6 are the minimax ones of the relative error on |r| <= ln2 / 2 with the first two fixed at 1
 * (2^-28.25 after rounding to float). The result is within 0.892 ulp of exp, over every float.
 */
static inline STK_ANYWHERE float stk_expf(float x) {
    if (!(x > -104.0f)) return x != x ? x : 0.0f;
    if (x > 88.8f) return stk_bits_f32(0x7f800000u);
    float n = rintf(x * 0x1.715476p+0f);
    float r = fmaf(n, -0x1.62e400p-1f, x);
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.6a4d14p-10f;
    p = fmaf(p, r, 0x1.12398ap-7f);
    p = fmaf(p, r, 0x1.5558b0p-5f);
    p = fmaf(p, r, 0x1.555492p-3f);
    p = fmaf(p, r, 0x1.fffffcp-2f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    int32_t e = (int32_t)n, half = e >> 1;
    p *= stk_bits_f32((uint32_t)(half + 127) << 23);
    return p * stk_bits_f32((uint32_t)(e - half + 127) << 23);
}

/* x * sigmoid(x). */
static inline STK_ANYWHERE float stk_siluf(float x) { return x / (1.0f + stk_expf(-x)); }

#endif
