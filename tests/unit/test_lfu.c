/* lfu: against plain counts, and who is refused. */
#include "tests/policy_model.h"

static uint64_t count[PM_KEY], last[PM_KEY], now;
static bool ahead[PM_KEY];

static void pm_reset(void) {
    memset(count, 0, sizeof count);
    memset(ahead, 0, sizeof ahead);
    now = 0;
}

static void pm_touch(const stk_event *event, const uint32_t *keys, uint32_t n) {
    (void)event;
    for (uint32_t i = 0; i < n; i++) {
        count[keys[i]]++;
        last[keys[i]] = ++now;
        ahead[keys[i]] = false;
    }
}

static void pm_inserted(uint32_t key, enum stk_why why) {
    ahead[key] = why != STK_WHY_DEMAND;
    if (ahead[key]) last[key] = ++now;
}

static void pm_evicted(uint32_t key) { (void)key; }

static void pm_check_victim(uint32_t victim) {
    uint64_t least = count[victim] + ahead[victim];
    for (uint32_t key = 0; key < PM_KEY; key++) {
        if (!pm_may_leave(key) || key == victim) continue;
        uint64_t n = count[key] + ahead[key];
        cr_assert(least < n || (least == n && last[victim] < last[key]));
    }
}

Test(lfu, as_plain_counts_say) {
    for (uint64_t seed = 1; seed <= 20; seed++) pm_run(&stk_policy_lfu, NULL, seed);
}

static int touch(stk_policy *p, uint32_t key) {
    const uint32_t one = 1;
    const stk_event event = {.n_distinct = 1, .counts = &one};
    return stk_policy_lfu.touch(p, &event, &key, 1);
}

Test(lfu, only_what_is_used_more_often_comes_in) {
    const stk_policy_config config = {.n_key = 8, .n_expert = 8, .n_slot = 2};
    const stk_policy_ops *lfu = &stk_policy_lfu;
    stk_policy *p;
    cr_assert_eq(lfu->open(&p, &config), 0);
    for (uint32_t key = 0; key < 2; key++) {
        cr_assert_eq(touch(p, key), 0);
        cr_assert_eq(touch(p, key), 0);
        cr_assert_eq(lfu->admit(p, key), 1, "a slot is free");
        cr_assert_eq(lfu->inserted(p, key, STK_WHY_DEMAND), 0);
    }
    for (uint32_t use = 1; use <= 3; use++) {
        cr_assert_eq(touch(p, 5), 0);
        cr_assert_eq(lfu->admit(p, 5), use == 3);
    }
    cr_assert_eq(lfu->admit(p, 8), STK_ESTATE);
    lfu->close(p);
}
