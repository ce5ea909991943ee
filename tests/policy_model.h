/*
 * policy_model: drives a policy through random events as a cache would, beside a model of it that is written as plainly as
 * possible (loops over all keys), and compares every victim. Now and then the policy is saved and its state loaded into a fresh
 * instance, which goes on in its place.
 */
#ifndef STK_TEST_POLICY_MODEL_H
#define STK_TEST_POLICY_MODEL_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "cache/policies.h"
#include "tests/cache_model.h"

enum { PM_LAYER = 3, PM_EXPERT = 16, PM_KEY = PM_LAYER * PM_EXPERT, PM_TOP = 8 };

static bool pm_resident[PM_KEY];
static uint64_t pm_busy[1];
static uint32_t pm_n_resident, pm_n_slot;
static uint64_t pm_step; /* of the events so far, from 1 */

static inline bool pm_may_leave(uint32_t key) { return pm_resident[key] && !(pm_busy[0] >> key & 1); }

/* The model under test, by its test file. An event's keys come least useful first. */
static void pm_reset(void);
static void pm_touch(const stk_event *event, const uint32_t *keys, uint32_t n);
static void pm_inserted(uint32_t key, enum stk_why why);
static void pm_evicted(uint32_t key);
/* Fails the test where `key` is the wrong victim; pm_may_leave tells the candidates. */
static void pm_check_victim(uint32_t key);

/* An event of one layer, with scores. Counts differ, so that the order of the event's experts does. */
typedef struct pm_input {
    model_input in;
    uint16_t top_ids[PM_TOP * 8];
    float top_scores[PM_TOP * 8];
    uint32_t keys[PM_EXPERT], useful[PM_EXPERT]; /* ascending; least useful first */
} pm_input;

static inline void pm_event(pm_input *p, uint64_t *rng, uint32_t layer, uint32_t k, uint32_t n_tok) {
    model_random_event(&p->in, rng, PM_EXPERT, k, n_tok);
    stk_event *e = &p->in.event;
    e->n_top = PM_TOP;
    e->top_ids = p->top_ids;
    e->top_scores = p->top_scores;
    for (uint32_t t = 0; t < n_tok; t++)
        for (uint32_t i = 0; i < PM_TOP; i++) { /* different ids, falling scores */
            p->top_ids[t * PM_TOP + i] = (uint16_t)((model_random(rng, 2) + 2 * i + t) % PM_EXPERT);
            p->top_scores[t * PM_TOP + i] = (float)(1 + model_random(rng, 99)) / (float)(100 * (i + 2));
        }
    uint32_t order[PM_EXPERT];
    model_sort(e, order);
    for (uint32_t i = 0; i < e->n_distinct; i++) p->keys[i] = layer * PM_EXPERT + e->distinct[i];
    for (uint32_t i = 0; i < e->n_distinct; i++) p->useful[e->n_distinct - 1 - i] = p->keys[order[i]];
}

/* Takes one expert in if a slot is free or somebody may leave. */
static inline void pm_take(const stk_policy_ops *ops, stk_policy *p, uint32_t key, enum stk_why why) {
    if (pm_n_resident == pm_n_slot) {
        uint32_t victim = PM_KEY;
        bool any = false;
        for (uint32_t i = 0; i < PM_KEY; i++) any |= pm_may_leave(i);
        cr_assert_eq(ops->victim(p, pm_busy, &victim), any);
        if (!any) return;
        cr_assert(victim < PM_KEY && pm_may_leave(victim), "expert %u may not leave", victim);
        pm_check_victim(victim);
        cr_assert_eq(ops->evicted(p, victim), 0);
        pm_resident[victim] = false;
        pm_n_resident--;
        pm_evicted(victim);
    }
    cr_assert_eq(ops->inserted(p, key, why), 0);
    pm_resident[key] = true;
    pm_n_resident++;
    pm_inserted(key, why);
}

static inline stk_policy *pm_reload(const stk_policy_ops *ops, stk_policy *p, const stk_policy_config *config) {
    static unsigned char state[1 << 14];
    stk_policy *fresh;
    int64_t bytes = ops->save(p, state, sizeof state);
    cr_assert(bytes > 0 && bytes <= (int64_t)sizeof state);
    cr_assert_eq(ops->open(&fresh, config), 0);
    cr_assert_eq(ops->load(fresh, state, (size_t)bytes), 0, "%s", stk_error_detail());
    ops->close(p);
    return fresh;
}

static inline void pm_run(const stk_policy_ops *ops, const char *params, uint64_t seed) {
    static pm_input in;
    uint64_t rng = seed;
    stk_policy *p;
    pm_n_slot = 5 + model_random(&rng, 20);
    const stk_policy_config config = {
        .n_key = PM_KEY, .n_expert = PM_EXPERT, .n_slot = pm_n_slot, .seed = seed, .params = params};
    cr_assert_eq(ops->open(&p, &config), 0, "%s", stk_error_detail());
    memset(pm_resident, 0, sizeof pm_resident);
    pm_n_resident = 0;
    pm_reset();
    for (uint32_t i = 0; i < 900; i++) {
        uint32_t layer = i % PM_LAYER, k = 1 + model_random(&rng, 4),
                 n_tok = model_random(&rng, 4) ? 1 : 1 + model_random(&rng, 7);
        pm_step = 1 + i / PM_LAYER;
        pm_event(&in, &rng, layer, k, n_tok);
        const stk_event *e = &in.in.event;
        cr_assert_eq(ops->touch(p, e, in.keys, e->n_distinct), 0);
        pm_busy[0] = 0;
        for (uint32_t j = 0; j < e->n_distinct; j++) pm_busy[0] |= (uint64_t)1 << in.keys[j];
        pm_touch(e, in.useful, e->n_distinct);
        for (uint32_t j = e->n_distinct; j-- > 0;)
            if (!pm_resident[in.useful[j]] && !(ops->admit && ops->admit(p, in.useful[j]) == 0))
                pm_take(ops, p, in.useful[j], STK_WHY_DEMAND);
        uint32_t ahead = model_random(&rng, PM_KEY);
        if (model_random(&rng, 3) == 0 && !pm_resident[ahead]) pm_take(ops, p, ahead, STK_WHY_PREFETCH);
        if (model_random(&rng, 20) == 0) p = pm_reload(ops, p, &config);
    }
    ops->close(p);
}

#endif
