/* random: every expert that is not busy has the same chance, and the seed decides. */
#include <criterion/criterion.h>

#include "cache/policies.h"

enum { N_KEY = 20, N_DRAW = 40000 };

static stk_policy *open_full(uint64_t seed) {
    stk_policy *p;
    const stk_policy_config config = {.n_key = N_KEY, .n_expert = N_KEY, .n_slot = N_KEY, .seed = seed};
    cr_assert_eq(stk_policy_random.open(&p, &config), 0);
    for (uint32_t i = 0; i < N_KEY; i++) cr_assert_eq(stk_policy_random.inserted(p, i, STK_WHY_DEMAND), 0);
    return p;
}

Test(random, busy_ones_stay_and_the_others_leave_evenly) {
    stk_policy *p = open_full(1);
    const uint64_t busy = 0xf0f0f; /* 12 of 20 */
    uint32_t n[N_KEY] = {0}, key;
    for (uint32_t i = 0; i < N_DRAW; i++) {
        cr_assert_eq(stk_policy_random.victim(p, &busy, &key), 1);
        n[key]++;
    }
    for (uint32_t i = 0; i < N_KEY; i++) {
        if (busy >> i & 1)
            cr_assert_eq(n[i], 0);
        else /* 5,000 expected; 5 standard deviations are 331 */
            cr_assert(n[i] > 4669 && n[i] < 5331, "expert %u left %u times", i, n[i]);
    }
    stk_policy_random.close(p);
}

Test(random, the_seed_decides) {
    stk_policy *a = open_full(1), *b = open_full(1), *c = open_full(2);
    const uint64_t busy = 0;
    uint32_t n_same = 0;
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t ka, kb, kc;
        cr_assert_eq(stk_policy_random.victim(a, &busy, &ka), 1);
        cr_assert_eq(stk_policy_random.victim(b, &busy, &kb), 1);
        cr_assert_eq(stk_policy_random.victim(c, &busy, &kc), 1);
        cr_assert_eq(ka, kb);
        n_same += ka == kc;
    }
    cr_assert_lt(n_same, 30);
    stk_policy_random.close(a);
    stk_policy_random.close(b);
    stk_policy_random.close(c);
}
