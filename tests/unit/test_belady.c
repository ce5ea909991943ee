/*
 * belady and belady-bypass: no other choice of victims (and of refusals) would have hit more often. The choices are tried out
 * exhaustively on the cache itself, with a policy that plays a script, so that events are taken whole, as the cache takes them.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "cache/future.h"
#include "cache/policies.h"
#include "tests/cache_model.h"

enum { N_EXPERT = 5, N_EVENT = 6, MAX_CHOICE = 64 };

/* ---- A policy that plays a script --------------------------------------------------------------------------------------- */

/* choice[i] of n_option[i]; choices beyond n_script are 0. An odometer over it visits every run. */
static uint32_t choice[MAX_CHOICE], n_option[MAX_CHOICE], n_script, at;

static uint32_t choose(uint32_t n) {
    cr_assert_lt(at, MAX_CHOICE);
    if (at == n_script) choice[n_script++] = 0;
    n_option[at] = n;
    return choice[at++];
}

static bool next_script(void) {
    while (n_script > 0 && choice[n_script - 1] + 1 == n_option[n_script - 1]) n_script--;
    if (n_script > 0) choice[n_script - 1]++;
    return n_script > 0;
}

static int scripted_admit(stk_policy *p, uint32_t key) {
    (void)p, (void)key;
    return choose(2) == 0;
}

/* Any resident that is not busy or, while there are busy ones as well, none: the cache then begins a wave. */
static bool may_wait;
static int scripted_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    uint64_t none = 0, idle[N_EXPERT], n = 0;
    bool any_busy = false;
    for (uint32_t i; stk_policy_lru.victim(p, &none, &i) == 1; none |= (uint64_t)1 << i)
        if (*busy >> i & 1)
            any_busy = true;
        else
            idle[n++] = i;
    if (n == 0) return 0;
    uint32_t i = choose((uint32_t)n + (may_wait && any_busy));
    if (i == n) return 0;
    *key = (uint32_t)idle[i];
    return 1;
}

/* ---- Runs --------------------------------------------------------------------------------------------------------------- */

static model_input inputs[N_EVENT];

static uint64_t run(const stk_cache_config *config, uint64_t best_possible) {
    stk_cache *cache;
    stk_cache_counters c;
    cr_assert_eq(stk_cache_open(&cache, config), 0, "%s", stk_error_detail());
    for (uint32_t i = 0; i < N_EVENT; i++) {
        const stk_decision *list;
        cr_assert_geq(stk_cache_event(cache, 0, &inputs[i].event, &list), 0, "%s", stk_error_detail());
    }
    stk_cache_get_counters(cache, &c);
    cr_assert_leq(c.n_hit, best_possible);
    stk_cache_close(&cache);
    return c.n_hit;
}

static void make_inputs(uint64_t *rng, uint32_t most) {
    for (uint32_t i = 0; i < N_EVENT; i++) {
        do model_random_event(&inputs[i], rng, N_EXPERT, 1, 1 + model_random(rng, 4));
        while (inputs[i].event.n_distinct > most);
    }
}

static void check(uint64_t seed, const char *name, bool bypass, uint32_t most) {
    static const uint32_t layer_class[1];
    uint64_t rng = seed, best = 0;
    stk_policy_ops scripted = stk_policy_lru;
    scripted.replace = NULL;
    scripted.victim = scripted_victim;
    scripted.admit = bypass ? scripted_admit : NULL;
    may_wait = bypass;
    const stk_cache_class class = {.n_slot = 1 + model_random(&rng, 3), .n_transit = 4};
    make_inputs(&rng, STK_MIN(most, bypass ? 3 : class.n_slot));
    stk_cache_config config = {.n_layer = 1,
                               .n_expert = N_EXPERT,
                               .k = 1,
                               .n_class = 1,
                               .classes = &class,
                               .layer_class = layer_class,
                               .ops = &scripted};
    n_script = 0;
    do {
        at = 0;
        best = STK_MAX(best, run(&config, UINT64_MAX));
    } while (next_script());
    stk_future *future;
    cr_assert_eq(stk_future_open(&future, 1, N_EXPERT, NULL), 0);
    for (uint32_t i = 0; i < N_EVENT; i++) cr_assert_eq(stk_future_add(future, 0, &inputs[i].event), 0);
    cr_assert_eq(stk_future_end(future), 0);
    config.ops = NULL;
    config.policy = name;
    config.future = future;
    cr_assert_eq(run(&config, best), best, "%s, seed %lu", name, (unsigned long)seed);
    stk_future_close(&future);
}

Test(belady, no_other_victims_hit_more_often) {
    for (uint64_t seed = 1; seed <= 300; seed++) check(seed, "belady", false, 3);
}

Test(belady, no_other_choice_hits_more_often_where_experts_may_be_refused) {
    for (uint64_t seed = 1; seed <= 60; seed++) check(seed, "belady-bypass", true, 2);
}

/* ---- What else its head says -------------------------------------------------------------------------------------------- */

static int one(stk_cache *cache, stk_future *future, uint32_t expert, const stk_decision **list) {
    const uint16_t id = (uint16_t)expert;
    const uint32_t count = 1;
    const stk_event event = {.n_distinct = 1, .distinct = &id, .counts = &count};
    return future ? stk_future_add(future, 0, &event) : stk_cache_event(cache, 0, &event, list);
}

Test(belady, prefetches_need_a_known_use) {
    static const uint32_t layer_class[1], uses[] = {0, 1, 2, 0, 2, 1};
    stk_future *future;
    stk_cache *cache;
    const stk_decision *list;
    stk_decision d;
    cr_assert_eq(stk_future_open(&future, 1, 8, NULL), 0);
    for (size_t i = 0; i < STK_ARRAY_LEN(uses); i++) cr_assert_eq(one(NULL, future, uses[i], NULL), 0);
    cr_assert_eq(stk_future_end(future), 0);
    const stk_cache_class class = {.n_slot = 2, .n_transit = 1};
    const stk_cache_config config = {.n_layer = 1,
                                     .n_expert = 8,
                                     .k = 1,
                                     .n_class = 1,
                                     .classes = &class,
                                     .layer_class = layer_class,
                                     .policy = "belady-bypass",
                                     .future = future};
    cr_assert_eq(stk_cache_open(&cache, &config), 0);
    for (uint32_t i = 0; i < 3; i++) cr_assert_eq(one(cache, NULL, i, &list), 1);
    cr_assert_eq(list[0].kind, STK_ADMIT, "2 is used before 1");
    cr_assert_eq(list[0].victim, 1);
    cr_assert_eq(stk_cache_prefetch(cache, 1, &d), 0, "1 is used last");
    cr_assert_eq(stk_cache_prefetch(cache, 7, &d), 0, "nobody knows of a use of 7");
    cr_assert_eq(one(cache, NULL, 0, &list), 1);
    cr_assert_eq(one(cache, NULL, 2, &list), 1);
    cr_assert_eq(stk_cache_prefetch(cache, 1, &d), 1);
    cr_assert_eq(d.victim, 0);
    const stk_cache_move *moves;
    cr_assert_eq(stk_cache_resize(cache, 0, 1, 1, &moves), 1);
    cr_assert_eq(moves[0].key, 2, "it is never used again");
    cr_assert_eq(one(cache, NULL, 1, &list), 1);
    cr_assert_eq(list[0].kind, STK_HIT);
    cr_assert_eq(one(cache, NULL, 1, &list), STK_ESTATE, "the trace has ended");
    stk_cache_close(&cache);
    stk_future_close(&future);
}
