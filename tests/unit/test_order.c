/* order: the merge sort against a selection that is plainly right. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "cache/order.h"

enum { MAX_N = 600 };

static void check(const uint32_t *counts, uint32_t n) {
    uint64_t scratch[2 * MAX_N];
    const uint64_t *order;
    bool taken[MAX_N] = {false};
    stk_cache_order(counts, n, scratch, &order);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t best = MAX_N;
        for (uint32_t j = 0; j < n; j++)
            if (!taken[j] && (best == MAX_N || counts[j] > counts[best])) best = j;
        taken[best] = true;
        cr_assert_eq(order[i], best, "n %u, place %u: %lu instead of %u", n, i, (unsigned long)order[i], best);
    }
}

Test(order, every_vector_of_five_small_counts) {
    for (uint32_t code = 0; code < 4 * 4 * 4 * 4 * 4; code++) {
        uint32_t counts[5];
        for (uint32_t i = 0, c = code; i < 5; i++, c /= 4) counts[i] = c % 4;
        for (uint32_t n = 0; n <= 5; n++) check(counts, n);
    }
}

Test(order, random_counts_of_any_length_and_extremes) {
    srand(1);
    uint32_t counts[MAX_N];
    for (uint32_t n = 1; n <= MAX_N; n += n < 70 ? 1 : 37)
        for (uint32_t range = 1; range <= 1000; range *= 10) {
            for (uint32_t i = 0; i < n; i++) counts[i] = (uint32_t)rand() % range;
            check(counts, n);
        }
    check((const uint32_t[]){0, UINT32_MAX, 1, UINT32_MAX - 1, 0}, 5);
}
