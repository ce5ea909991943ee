/* slru: against two arrays. */
#include "tests/policy_model.h"

static uint32_t segment[2][PM_KEY], n_in[2], event_keys[PM_EXPERT], n_event; /* oldest first; least useful first */
static double share;

static void pm_reset(void) { n_in[0] = n_in[1] = n_event = 0; }

static int segment_of(uint32_t key) {
    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; i < n_in[s]; i++)
            if (segment[s][i] == key) return s;
    return -1;
}

static void take_out(uint32_t key) {
    for (int s = 0; s < 2; s++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_in[s]; i++)
            if (segment[s][i] != key) segment[s][n++] = segment[s][i];
        n_in[s] = n;
    }
}

static void pm_touch(const stk_event *event, const uint32_t *keys, uint32_t n) {
    (void)event;
    for (uint32_t i = 0; i < n; i++) {
        event_keys[i] = keys[i];
        if (segment_of(keys[i]) < 0) continue;
        take_out(keys[i]);
        segment[1][n_in[1]++] = keys[i];
    }
    n_event = n;
    while (n_in[1] > (uint32_t)(share * pm_n_slot)) {
        uint32_t oldest = segment[1][0];
        take_out(oldest);
        segment[0][n_in[0]++] = oldest;
    }
}

/* Behind those on probation that are less useful in the same event: just before the first that is more useful. */
static void pm_inserted(uint32_t key, enum stk_why why) {
    uint32_t at = n_in[0], rank = n_event;
    for (uint32_t i = 0; i < n_event; i++)
        if (event_keys[i] == key) rank = i;
    for (uint32_t better = rank + 1; better < n_event && at == n_in[0] && why == STK_WHY_DEMAND; better++)
        for (uint32_t i = 0; i < n_in[0]; i++)
            if (segment[0][i] == event_keys[better]) at = i;
    memmove(&segment[0][at + 1], &segment[0][at], (n_in[0] - at) * sizeof segment[0][0]);
    segment[0][at] = key;
    n_in[0]++;
}

static void pm_evicted(uint32_t key) { take_out(key); }

static void pm_check_victim(uint32_t victim) {
    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; i < n_in[s]; i++) {
            if (!pm_may_leave(segment[s][i])) continue;
            cr_assert_eq(segment[s][i], victim);
            return;
        }
}

Test(slru, as_two_arrays_say) {
    static const struct {
        const char *params;
        double share;
    } cases[] = {{NULL, 0.8}, {"protected=0.5", 0.5}, {"protected=0", 0}, {"protected=1", 1}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        share = cases[i].share;
        for (uint64_t seed = 1; seed <= 20; seed++) pm_run(&stk_policy_slru, cases[i].params, seed);
    }
}

Test(slru, a_smaller_cache_protects_fewer) {
    const stk_policy_config config = {.n_key = 8, .n_expert = 8, .n_slot = 8, .params = "protected=0.5"};
    const stk_policy_ops *slru = &stk_policy_slru;
    const uint32_t counts[4] = {1, 1, 1, 1}, keys[4] = {0, 1, 2, 3};
    const stk_event event = {.counts = counts};
    const uint64_t busy = 0;
    uint32_t victim;
    stk_policy *p;
    cr_assert_eq(slru->open(&p, &config), 0);
    for (uint32_t i = 0; i < 4; i++) cr_assert_eq(slru->inserted(p, i, STK_WHY_DEMAND), 0);
    cr_assert_eq(slru->touch(p, &event, keys, 4), 0);
    cr_assert_eq(slru->inserted(p, 7, STK_WHY_PREFETCH), 0);
    cr_assert_eq(slru->victim(p, &busy, &victim), 1);
    cr_assert_eq(victim, 7, "the others are protected");
    cr_assert_eq(slru->resized(p, 6), 0);
    cr_assert_eq(slru->evicted(p, 7), 0);
    cr_assert_eq(slru->inserted(p, 6, STK_WHY_PREFETCH), 0);
    cr_assert_eq(slru->victim(p, &busy, &victim), 1);
    cr_assert_eq(victim, 3, "the oldest of four is on probation again");
    slru->close(p);
}
