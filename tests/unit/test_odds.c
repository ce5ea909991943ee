/* odds: close to the mathematical functions, and the same bits alone and in rows. */
#include "predict/odds.h"

#include <criterion/criterion.h>
#include <math.h>

Test(odds, a_probability_and_back) {
    for (int i = -4000; i <= 4000; i++) {
        float z = (float)i / 300.0f, p = stk_odds_p(z);
        double want = 1.0 / (1.0 + exp(-(double)z));
        cr_assert_lt(fabs((double)p - want), 4e-6 * want + 1e-9, "%g: %g, %g", (double)z, (double)p, want);
        if (fabsf(z) < 9.0f) cr_assert_float_eq(stk_odds_of(p), z, 1e-3f, "%g", (double)z);
    }
}

Test(odds, the_logarithm) {
    for (int i = -60; i <= 60; i++)
        for (int j = 0; j < 100; j++) {
            float x = ldexpf(1.0f + (float)j / 100.0f, i);
            cr_assert_lt(fabs((double)stk_odds_ln(x) - log((double)x)), 3e-6 + 2e-7 * abs(i), "%g", (double)x);
        }
}

Test(odds, extremes_are_cut) {
    const float hostile[] = {INFINITY, -INFINITY, NAN, -NAN, 1e38f, -1e38f, 0.0f, -0.0f};
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        float p = stk_odds_p(hostile[i]), z = stk_odds_of(hostile[i]);
        cr_assert(p >= 0.0f && p <= 1.0f);
        cr_assert(z > -15.0f && z < 15.0f);
    }
    cr_assert_eq(stk_odds_p(0.0f), 0.5f);
    cr_assert_eq(stk_odds_of(0.5f), 0.0f);
}

Test(odds, a_row_has_the_same_bits) {
    float z[64], p[64];
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 64; i++) z[i] = (float)(round * 64 + i - 6400) / 150.0f;
        stk_odds_row(p, z, 64);
        for (int i = 0; i < 64; i++) {
            float one = stk_odds_p(z[i]);
            cr_assert_arr_eq(&p[i], &one, sizeof one, "%g", (double)z[i]);
        }
    }
}
