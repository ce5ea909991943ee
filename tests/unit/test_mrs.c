/* mrs: against its formula applied to every expert at every step; and the forms without scores. */
#include <math.h>

#include "tests/policy_model.h"

static double score[PM_KEY], ahead_score[PM_KEY], a;
static uint64_t score_step;
static bool ahead[PM_KEY];

static void pm_reset(void) {
    memset(score, 0, sizeof score);
    memset(ahead, 0, sizeof ahead);
    score_step = 0;
}

static void pm_touch(const stk_event *event, const uint32_t *keys, uint32_t n) {
    (void)n;
    for (; score_step < pm_step; score_step++)
        for (uint32_t key = 0; key < PM_KEY; key++) {
            score[key] *= 1 - a;
            ahead_score[key] *= 1 - a;
        }
    uint32_t base = keys[0] / PM_EXPERT * PM_EXPERT, best = STK_MIN(2 * event->k, event->n_top);
    for (uint32_t t = 0; t < event->n_tok; t++)
        for (uint32_t i = 0; i < best; i++) {
            uint32_t key = base + event->top_ids[t * event->n_top + i];
            score[key] += a * (double)event->top_scores[t * event->n_top + i] / event->n_tok;
            ahead[key] = false;
        }
}

static void pm_inserted(uint32_t key, enum stk_why why) {
    ahead[key] = why != STK_WHY_DEMAND;
    ahead_score[key] = score[key] + a;
}

static void pm_evicted(uint32_t key) { ahead[key] = false; }

static void pm_check_victim(uint32_t victim) {
    double least = ahead[victim] ? ahead_score[victim] : score[victim];
    for (uint32_t key = 0; key < PM_KEY; key++) {
        double s = ahead[key] ? ahead_score[key] : score[key];
        cr_assert(!pm_may_leave(key) || least <= s * (1 + 1e-9), "expert %u (%g) left before %u (%g)", victim, least, key, s);
    }
}

Test(mrs, as_its_formula_says) {
    static const struct {
        const char *params;
        double a;
    } cases[] = {{NULL, 0.5}, {"a=0.1", 0.1}, {"a=0.9", 0.9}, {"a=0.999", 0.999}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        a = cases[i].a;
        for (uint64_t seed = 1; seed <= 20; seed++) pm_run(&stk_policy_mrs, cases[i].params, seed);
    }
}

/* ---- Without scores ----------------------------------------------------------------------------------------------------- */

static int n_logged;
static char logged[256];
static void sink(void *user, int level, const char *line) {
    (void)user, (void)level;
    n_logged++;
    strncpy(logged, line, sizeof logged - 1);
}

/* Experts 1 and 2 are resident; the event prefers one of them. The other leaves, and one line says how it was decided. */
static void check_degraded(stk_event event, uint32_t want, const char *line) {
    bool told = false;
    const stk_policy_config config = {.n_key = 4, .n_expert = 4, .n_slot = 2, .told = &told};
    const uint32_t keys[2] = {1, 2};
    const uint64_t busy = 0;
    uint32_t victim;
    stk_policy *p;
    stk_log_set(sink, NULL);
    n_logged = 0;
    cr_assert_eq(stk_policy_mrs.open(&p, &config), 0);
    for (uint32_t i = 0; i < 2; i++) cr_assert_eq(stk_policy_mrs.inserted(p, keys[i], STK_WHY_WARM), 0);
    event.k = 2;
    event.n_distinct = 2;
    for (int i = 0; i < 2; i++) cr_assert_eq(stk_policy_mrs.touch(p, &event, keys, 2), 0);
    cr_assert_eq(stk_policy_mrs.victim(p, &busy, &victim), 1);
    cr_assert_eq(victim, want);
    cr_assert_eq(n_logged, 1);
    cr_assert_not_null(strstr(logged, line), "%s", logged);
    stk_policy_mrs.close(p);
}

Test(mrs, without_scores_it_says_what_it_does) {
    const uint16_t ids[6] = {2, 1, 1, 2, STK_NO_EXPERT, 1};
    const float weights[6] = {0.9F, 0.1F, 0.4F, 0.6F, 7, NAN};
    const uint32_t counts[2] = {3, 2};
    check_degraded((stk_event){.n_tok = 3, .ids = ids, .weights = weights, .counts = counts}, 1, "weights");
    check_degraded((stk_event){.n_tok = 3, .ids = ids, .counts = counts}, 2, "how many tokens");
}

Test(mrs, hostile_scores_count_nothing) {
    const uint16_t ids[4] = {9, 1, 2, 3};
    const float scores[4] = {1, NAN, -1, INFINITY};
    const uint32_t counts[2] = {1, 1}, keys[2] = {1, 2};
    const stk_event event = {
        .n_tok = 1, .k = 2, .n_top = 4, .top_ids = ids, .top_scores = scores, .n_distinct = 2, .counts = counts};
    const stk_policy_config config = {.n_key = 4, .n_expert = 4, .n_slot = 3};
    const uint64_t busy = 0;
    uint32_t victim;
    stk_policy *p;
    cr_assert_eq(stk_policy_mrs.open(&p, &config), 0);
    for (uint32_t i = 0; i < 2000; i++) cr_assert_eq(stk_policy_mrs.touch(p, &event, keys, 2), 0);
    for (uint32_t key = 1; key < 4; key++) cr_assert_eq(stk_policy_mrs.inserted(p, key, STK_WHY_DEMAND), 0);
    cr_assert_eq(stk_policy_mrs.victim(p, &busy, &victim), 1);
    cr_assert_neq(victim, 3, "an infinite score counts as 1");
    stk_policy_mrs.close(p);
}
