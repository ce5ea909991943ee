/* pairs: counts of what came after what. */
#include "predict/pairs.h"

#include <criterion/criterion.h>

enum { WIDTH = 16, NONE = STK_NO_EXPERT };

Test(pairs, the_mean_share_of_each_row) {
    stk_pairs t;
    float row[WIDTH];
    const uint16_t from[2] = {1, 2}, to[2] = {5, 6}, other[2] = {5, 7}, unseen[2] = {3, NONE}, half[2] = {1, NONE};
    cr_assert_eq(stk_pairs_init(&t, 8, WIDTH, "test"), 0);
    cr_assert_not(stk_pairs_score(&t, 4, from, 2, row));
    for (int i = 0; i < 99; i++) stk_pairs_add(&t, 4, half, 2, i % 3 ? to : other, 2);
    stk_pairs_add(&t, 4, from + 1, 1, other, 1);
    cr_assert_not(stk_pairs_score(&t, 4, unseen, 2, row));
    cr_assert(stk_pairs_score(&t, 4, half, 2, row));
    cr_assert_float_eq(row[5], 0.99f, 1e-5f);
    cr_assert_float_eq(row[6], 0.66f, 1e-5f);
    cr_assert_float_eq(row[7], 0.33f, 1e-5f);
    cr_assert_eq(row[4], 0.0f);
    cr_assert(stk_pairs_score(&t, 4, from, 2, row));
    cr_assert_float_eq(row[5], (0.99f + 0.5f) / 2, 1e-5f);
    cr_assert_not(stk_pairs_score(&t, 0, from, 2, row)); /* other rows know nothing */
    stk_pairs_fini(&t);
}

Test(pairs, counts_are_halved_and_follow_what_came_lately) {
    stk_pairs t;
    float row[WIDTH];
    const uint16_t from[1] = {0}, a[1] = {1}, b[1] = {2};
    cr_assert_eq(stk_pairs_init(&t, 1, WIDTH, "test"), 0);
    for (int i = 0; i < 100000; i++) stk_pairs_add(&t, 0, from, 1, a, 1);
    for (int i = 0; i < 20000; i++) stk_pairs_add(&t, 0, from, 1, b, 1);
    cr_assert(stk_pairs_score(&t, 0, from, 1, row));
    cr_assert_gt(row[2], 0.8f);
    cr_assert_float_eq(row[1] + row[2], 1.0f, 0.01f);
    stk_pairs_fini(&t);
}
