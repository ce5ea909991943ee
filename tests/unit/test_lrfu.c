/* lrfu: against scores summed up from scratch; and its two ends, lru and lfu. */
#include "tests/policy_model.h"

static double score[PM_KEY], factor; /* as of score_step */
static uint64_t score_step;
static bool ahead[PM_KEY];
static double ahead_score[PM_KEY];

static void fade(void) {
    for (; score_step < pm_step; score_step++)
        for (uint32_t key = 0; key < PM_KEY; key++) {
            score[key] *= factor;
            ahead_score[key] *= factor;
        }
}

static void pm_reset(void) {
    memset(score, 0, sizeof score);
    memset(ahead, 0, sizeof ahead);
    score_step = 0;
}

static void pm_touch(const stk_event *event, const uint32_t *keys, uint32_t n) {
    (void)event;
    fade();
    for (uint32_t i = 0; i < n; i++) {
        score[keys[i]] += 1;
        ahead[keys[i]] = false;
    }
}

static void pm_inserted(uint32_t key, enum stk_why why) {
    ahead[key] = why != STK_WHY_DEMAND;
    ahead_score[key] = score[key] + 1;
}

static void pm_evicted(uint32_t key) { (void)key; }

static void pm_check_victim(uint32_t victim) {
    double least = ahead[victim] ? ahead_score[victim] : score[victim];
    for (uint32_t key = 0; key < PM_KEY; key++) {
        double s = ahead[key] ? ahead_score[key] : score[key];
        cr_assert(!pm_may_leave(key) || least <= s * (1 + 1e-9), "expert %u (%g) left before %u (%g)", victim, least, key, s);
    }
}

Test(lrfu, as_scores_from_scratch_say) {
    static const struct {
        const char *params;
        double factor;
    } cases[] = {{NULL, 0.96}, {"decay=0.5", 0.5}, {"decay=0.8", 0.8}, {"decay=1", 1}, {"decay=0.001", 0.001}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) { /* the last ones scale back often: 300 steps are 10^900 */
        factor = cases[i].factor;
        for (uint64_t seed = 1; seed <= 20; seed++) pm_run(&stk_policy_lrfu, cases[i].params, seed);
    }
}
