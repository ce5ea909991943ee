/* numeric: the scalar arithmetic against the CPU's own conversions and double precision. */
#include <criterion/criterion.h>
#include <immintrin.h>

#include "src/numeric.h"

/* The largest error of stk_expf over every float, in units of the last place of the float result; measured, and rounded up. */
static const double EXP_MAX_ULP = 0.892;

static void need_f16c(void) {
    if (!__builtin_cpu_supports("avx2")) cr_skip_test("this CPU has no F16C to compare with");
}

__attribute__((target("avx,f16c"))) static float cpu_f16_f32(uint16_t h) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_set1_epi16((short)h)));
}

__attribute__((target("avx,f16c"))) static uint16_t cpu_f32_f16(float x) {
    return (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set1_ps(x), _MM_FROUND_TO_NEAREST_INT), 0);
}

Test(numeric, every_half_converts_as_vcvtph2ps) {
    need_f16c();
    for (uint32_t h = 0; h < 0x10000u; h++)
        cr_assert_eq(stk_f32_bits(stk_f16_f32((uint16_t)h)), stk_f32_bits(cpu_f16_f32((uint16_t)h)), "half %04x", h);
}

static void check_to_half(float x) {
    uint16_t want = cpu_f32_f16(x);
    cr_assert_eq(stk_f32_f16(x), want, "%a: %04x, want %04x", (double)x, stk_f32_f16(x), want);
    bool beyond = (want & 0x7fffu) == 0x7c00u;
    cr_assert_eq(stk_f32_f16_sat(x), beyond ? (want & 0x8000u) | 0x7bffu : want, "%a saturated", (double)x);
}

/* A monotone rounding is right everywhere if it is right at each half, at each midpoint and one float to either side of them. */
Test(numeric, floats_round_to_halves_as_vcvtps2ph) {
    need_f16c();
    for (uint32_t h = 0; h < 0x7c00u; h++) {
        float x = stk_f16_f32((uint16_t)h), next = h == 0x7bffu ? 65536.0f : stk_f16_f32((uint16_t)(h + 1));
        uint32_t at[2] = {stk_f32_bits(x), stk_f32_bits(x + (next - x) * 0.5f)};
        for (uint32_t i = 0; i < 2; i++)
            for (uint32_t u = at[i] ? at[i] - 1 : 0; u <= at[i] + 1; u++) {
                check_to_half(stk_bits_f32(u));
                check_to_half(stk_bits_f32(u | 0x80000000u));
            }
    }
}

Test(numeric, any_float_rounds_to_half_as_vcvtps2ph) {
    need_f16c();
    for (uint64_t u = 0; u < UINT64_C(1) << 32; u += 251) check_to_half(stk_bits_f32((uint32_t)u));
    for (uint32_t u = 0x7f7fff00u; u < 0x7f800100u; u++) check_to_half(stk_bits_f32(u));
}

static double ulp(double y) {
    int e;
    frexp(y, &e);
    return ldexp(1.0, (e < -125 ? -125 : e) - 24);
}

Test(numeric, exp_keeps_its_bound) {
    double worst = 0, worst_x = 0;
    for (uint32_t sign = 0; sign < 2; sign++)
        for (uint32_t u = 0; u < 0x42d20000u; u += 1021) { /* up to 105 */
            float x = stk_bits_f32(u | sign << 31);
            double want = exp((double)x), got = (double)stk_expf(x);
            if (want >= 0x1.ffffffp127) {
                cr_assert(isinf(got), "exp(%a)", (double)x);
                continue;
            }
            double err = fabs(got - want) / ulp(want);
            if (err > worst) worst = err, worst_x = (double)x;
        }
    cr_assert_leq(worst, EXP_MAX_ULP, "%f ulp at %a", worst, worst_x);
    cr_assert_geq(worst, 0.8 * EXP_MAX_ULP, "the sample misses the hard cases: %f ulp", worst);
}

Test(numeric, exp_at_the_edges) {
    cr_assert_eq(stk_f32_bits(stk_expf(0.0f)), 0x3f800000u);
    cr_assert_eq(stk_f32_bits(stk_expf(-0.0f)), 0x3f800000u);
    cr_assert_eq(stk_f32_bits(stk_expf(-INFINITY)), 0);
    cr_assert_eq(stk_f32_bits(stk_expf(-104.0f)), 0);
    cr_assert_eq(stk_f32_bits(stk_expf(-103.9f)), 1);
    cr_assert(isinf(stk_expf(INFINITY)) && isinf(stk_expf(88.8f)) && !isinf(stk_expf(88.72f)));
    cr_assert(isnan(stk_expf(NAN)) && isnan(stk_expf(-NAN)));
}

Test(numeric, silu) {
    cr_assert_eq(stk_f32_bits(stk_siluf(0.0f)), 0);
    cr_assert_eq(stk_siluf(200.0f), 200.0f);
    cr_assert_eq(stk_siluf(-200.0f), 0.0f);
    cr_assert_float_eq(stk_siluf(1.0f), 0.7310585786f, 2e-7);
    cr_assert(isnan(stk_siluf(NAN)));
}

Test(numeric, bf16_is_the_upper_half) {
    cr_assert_eq(stk_bf16_f32(0x3f80), 1.0f);
    cr_assert_eq(stk_f32_bits(stk_bf16_f32(0x8000)), 0x80000000u);
    cr_assert(isnan(stk_bf16_f32(0x7fc0)));
}
