/* trace_count: every way of counting against a plain one. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "traces/trace_count.h"

static uint64_t rng = 1;
static uint32_t below(uint32_t n) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % n);
}

Test(trace_count, equals_a_plain_count) {
    static const uint32_t n_experts[] = {1, 7, 63, 64, 65, 128, 1000, 1024, 1025, 5000};
    for (size_t x = 0; x < STK_ARRAY_LEN(n_experts); x++) {
        uint32_t n_expert = n_experts[x], *plain = calloc(n_expert, sizeof *plain);
        trace_count c = {0};
        cr_assert_eq(stk_trace_count_open(&c, n_expert), 0);
        for (int round = 0; round < 400; round++) {
            uint16_t ids[40];
            stk_event e = {.n_tok = 1 + below(4) / 3 * 4, .k = 1 + below(8), .n_expert = n_expert, .ids = ids};
            memset(plain, 0, sizeof *plain * n_expert);
            for (uint32_t i = 0; i < e.n_tok * e.k; i++) {
                ids[i] = below(9) ? (uint16_t)below(n_expert) : STK_NO_EXPERT;
                if (ids[i] != STK_NO_EXPERT) plain[ids[i]]++;
            }
            stk_trace_count(&c, &e);
            uint32_t n = 0;
            for (uint32_t id = 0; id < n_expert; id++) {
                if (!plain[id]) continue;
                cr_assert(n < e.n_distinct && e.distinct[n] == id && e.counts[n] == plain[id]);
                n++;
            }
            cr_assert_eq(n, e.n_distinct);
        }
        stk_trace_count_close(&c);
        free(plain);
    }
}
