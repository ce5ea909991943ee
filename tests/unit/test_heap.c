/* heap: against a search over all keys. */
#include <criterion/criterion.h>

#include "cache/heap.h"
#include "tests/cache_model.h"

enum { N_KEY = 150 };

Test(heap, as_a_search_over_all_keys_says) {
    static uint64_t rank[N_KEY];
    static bool there[N_KEY];
    uint64_t rng = 11;
    stk_heap h;
    cr_assert_eq(stk_heap_open(&h, N_KEY), 0);
    for (uint32_t round = 0; round < 30000; round++) {
        uint32_t key = model_random(&rng, N_KEY), what = model_random(&rng, 8);
        uint64_t to = model_random(&rng, 2) ? model_random(&rng, 20) : UINT64_MAX - model_random(&rng, 20);
        if (!there[key]) {
            stk_heap_insert(&h, key, rank[key] = to);
            there[key] = true;
        } else if (what < 3) {
            stk_heap_remove(&h, key);
            there[key] = false;
        } else
            stk_heap_update(&h, key, rank[key] = to);
        uint64_t busy[(N_KEY + 63) / 64] = {0};
        uint32_t n_busy = model_random(&rng, 3) ? model_random(&rng, 10) : model_random(&rng, 4 * N_KEY), want = N_KEY,
                 got = N_KEY;
        for (uint32_t i = 0; i < n_busy; i++) {
            uint32_t b = model_random(&rng, N_KEY);
            busy[b / 64] |= (uint64_t)1 << (b % 64);
        }
        for (uint32_t i = 0; i < N_KEY; i++) {
            cr_assert_eq(stk_heap_has(&h, i), there[i]);
            if (!there[i] || busy[i / 64] >> (i % 64) & 1) continue;
            if (want == N_KEY || rank[i] <= rank[want]) want = i; /* of equals the higher key */
        }
        cr_assert_eq(stk_heap_least(&h, busy, &got), want < N_KEY);
        cr_assert_eq(got, want);
    }
    stk_heap_close(&h);
}
