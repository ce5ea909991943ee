/*
 * order: a bottom-up merge sort, stable by construction of its keys: complement of the count above, position below. A decode
 * step of one sequence has equal counts and is done after the first look.
 */
#include "cache/order.h"

static void merge(const uint64_t *from, uint64_t *to, uint32_t begin, uint32_t middle, uint32_t end) {
    uint32_t a = begin, b = middle;
    for (uint32_t i = begin; i < end; i++) to[i] = a < middle && (b == end || from[a] < from[b]) ? from[a++] : from[b++];
}

/* What is in order already. */
#define FROM4(i)  (i), (i) + 1, (i) + 2, (i) + 3
#define FROM16(i) FROM4(i), FROM4((i) + 4), FROM4((i) + 8), FROM4((i) + 12)
const uint64_t stk_order_as_is[STK_ORDER_AS_IS] = {FROM16(0), FROM16(16), FROM16(32), FROM16(48)};

void stk_cache_order(const uint32_t *counts, uint32_t n, uint64_t *scratch, const uint64_t **order) {
    uint64_t *from = scratch, *to = scratch + n;
    *order = scratch;
    uint32_t last = UINT32_MAX;
    bool rises = false;
    for (uint32_t i = 0; i < n; i++) {
        scratch[i] = i;
        rises |= counts[i] > last;
        last = counts[i];
    }
    if (!rises) return;
    for (uint32_t i = 0; i < n; i++) from[i] = (uint64_t)(UINT32_MAX - counts[i]) << 32 | i;
    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t begin = 0; begin < n; begin += 2 * width)
            merge(from, to, begin, STK_MIN(begin + width, n), STK_MIN(begin + 2 * width, n));
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    for (uint32_t i = 0; i < n; i++) from[i] = (uint32_t)from[i];
    *order = from;
}
