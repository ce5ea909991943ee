/* lru2: against lists of uses, and the correlated period. */
#include "tests/policy_model.h"

enum { MAX_USE = 1000 };
static uint64_t uses[PM_KEY][MAX_USE], use_step[PM_KEY], now; /* by number; the newest last */
static uint64_t ahead_of[PM_KEY];                             /* the use that a prefetch stands for */
static uint32_t n_use[PM_KEY];
static uint64_t correlated;

static void pm_reset(void) {
    memset(n_use, 0, sizeof n_use);
    memset(ahead_of, 0, sizeof ahead_of);
    now = 0;
}

static void pm_touch(const stk_event *event, const uint32_t *keys, uint32_t n) {
    (void)event;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = keys[i];
        if (n_use[key] && pm_step - use_step[key] <= correlated) n_use[key]--;
        uses[key][n_use[key]++] = ++now;
        use_step[key] = pm_step;
        ahead_of[key] = 0;
    }
}

static void pm_inserted(uint32_t key, enum stk_why why) {
    ahead_of[key] = 0;
    if (why == STK_WHY_DEMAND) return;
    bool another = n_use[key] && pm_step - use_step[key] > correlated;
    bool twice = n_use[key] >= 2 || another;
    ahead_of[key] = twice ? (another ? uses[key][n_use[key] - 1] : uses[key][n_use[key] - 2]) + 1000000 : ++now;
}

static void pm_evicted(uint32_t key) { (void)key; }

static uint64_t place(uint32_t key) {
    if (ahead_of[key]) return ahead_of[key];
    return n_use[key] >= 2 ? uses[key][n_use[key] - 2] + 1000000 : uses[key][0];
}

static void pm_check_victim(uint32_t victim) {
    for (uint32_t key = 0; key < PM_KEY; key++)
        cr_assert(!pm_may_leave(key) || place(victim) < place(key) || (place(victim) == place(key) && victim >= key));
}

Test(lru2, as_lists_of_uses_say) {
    for (uint64_t seed = 1; seed <= 20; seed++) pm_run(&stk_policy_lru2, NULL, seed);
}

Test(lru2, uses_within_the_correlated_period_are_one) {
    correlated = 3;
    for (uint64_t seed = 1; seed <= 20; seed++) pm_run(&stk_policy_lru2, "correlated=3", seed);
}
