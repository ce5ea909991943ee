/* lru: the order that its head comment promises. */
#include <criterion/criterion.h>
#include <string.h>

#include "cache/policies.h"
#include "tests/cache_model.h"

static const stk_policy_ops *const lru = &stk_policy_lru;
static stk_policy *p;

static void setup(void) {
    const stk_policy_config config = {.n_key = 64, .n_expert = 32, .n_slot = 16};
    cr_assert_eq(lru->open(&p, &config), 0);
}

static void teardown(void) { lru->close(p); }

static void insert(uint32_t key, enum stk_why why) { cr_assert_eq(lru->inserted(p, key, why), 0); }

static void touch(uint32_t n, const uint32_t *keys, const uint32_t *counts) {
    const stk_event event = {.n_distinct = n, .counts = counts};
    cr_assert_eq(lru->touch(p, &event, keys, n), 0);
}

/* All residents, oldest first. */
static void expect(uint32_t n, const uint32_t *keys) {
    uint64_t busy[1] = {0};
    uint32_t key;
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(lru->victim(p, busy, &key), 1);
        cr_assert_eq(key, keys[i], "place %u: %u instead of %u", i, key, keys[i]);
        busy[0] |= (uint64_t)1 << key;
    }
    cr_assert_eq(lru->victim(p, busy, &key), 0);
}

TestSuite(lru, .init = setup, .fini = teardown);

Test(lru, insertion_order) {
    expect(0, NULL);
    insert(5, STK_WHY_WARM);
    insert(3, STK_WHY_PREFETCH);
    insert(9, STK_WHY_DEMAND);
    expect(3, (const uint32_t[]){3, 5, 9});
}

Test(lru, the_least_useful_of_an_event_is_the_oldest) {
    for (uint32_t key = 0; key < 6; key++) insert(key, STK_WHY_WARM);
    touch(4, (const uint32_t[]){1, 2, 3, 5}, (const uint32_t[]){2, 7, 2, 1});
    expect(6, (const uint32_t[]){0, 4, 5, 3, 1, 2});
}

Test(lru, a_missed_expert_takes_its_place_within_the_event) {
    for (uint32_t key = 0; key < 3; key++) insert(key, STK_WHY_WARM);
    touch(5, (const uint32_t[]){0, 1, 2, 10, 11}, (const uint32_t[]){5, 3, 1, 4, 2});
    insert(10, STK_WHY_DEMAND);
    insert(11, STK_WHY_DEMAND);
    expect(5, (const uint32_t[]){2, 11, 1, 10, 0});
}

Test(lru, the_most_useful_may_be_a_miss_and_neighbours_may_have_left) {
    insert(1, STK_WHY_WARM);
    insert(2, STK_WHY_WARM);
    touch(4, (const uint32_t[]){1, 2, 3, 4}, (const uint32_t[]){3, 2, 9, 1});
    insert(3, STK_WHY_DEMAND);
    cr_assert_eq(lru->evicted(p, 2), 0);
    insert(4, STK_WHY_DEMAND);
    expect(3, (const uint32_t[]){4, 1, 3});
}

Test(lru, a_prefetch_is_the_oldest_until_it_is_used) {
    insert(1, STK_WHY_WARM);
    touch(2, (const uint32_t[]){1, 2}, (const uint32_t[]){3, 2});
    insert(2, STK_WHY_PREFETCH);
    insert(3, STK_WHY_PREFETCH);
    expect(3, (const uint32_t[]){3, 2, 1});
    touch(1, (const uint32_t[]){2}, (const uint32_t[]){1});
    expect(3, (const uint32_t[]){3, 1, 2});
}

Test(lru, ranks_of_an_earlier_event_mean_nothing) {
    insert(1, STK_WHY_WARM);
    touch(2, (const uint32_t[]){1, 2}, (const uint32_t[]){3, 2});
    touch(1, (const uint32_t[]){1}, (const uint32_t[]){1});
    insert(2, STK_WHY_DEMAND);
    expect(2, (const uint32_t[]){1, 2});
}

/* Events, prefetches, drops, more experts than slots: the same decisions and the same state, whichever way a policy is asked. */
Test(lru, replacing_in_one_call_is_the_same_as_in_three) {
    stk_policy_ops ops = stk_policy_lru;
    ops.replace = NULL;
    const uint32_t layer_class = 0;
    for (uint32_t n_slot = 3; n_slot <= 40; n_slot += 37) {
        const stk_cache_class class = {.n_slot = n_slot, .n_transit = 8};
        stk_cache_config config = {
            .n_layer = 1, .n_expert = 64, .k = 3, .n_class = 1, .classes = &class, .layer_class = &layer_class, .policy = "lru"};
        stk_cache *one, *three;
        cr_assert_eq(stk_cache_open(&one, &config), 0);
        config.ops = &ops;
        cr_assert_eq(stk_cache_open(&three, &config), 0);
        static model_input in;
        uint64_t rng = 7;
        for (uint32_t step = 0; step < 3000; step++) {
            const stk_decision *a, *b;
            stk_decision c, d;
            model_random_event(&in, &rng, 64, 3, 1 + step);
            int n = stk_cache_event(one, 0, &in.event, &a);
            cr_assert_eq(n, stk_cache_event(three, 0, &in.event, &b));
            cr_assert_geq(n, 0);
            cr_assert_eq(memcmp(a, b, (size_t)n * sizeof *a), 0, "step %u", step);
            uint32_t key = (uint32_t)(rng >> 40) % 64;
            if (step > 1000 && step % 3 == 0) cr_assert_eq(stk_cache_prefetch(one, key, &c), stk_cache_prefetch(three, key, &d));
            if (step % 50 == 0) cr_assert_eq(stk_cache_drop(one, key), stk_cache_drop(three, key));
            cr_assert_eq(stk_cache_hash(one), stk_cache_hash(three), "step %u", step);
        }
        stk_cache_close(&one);
        stk_cache_close(&three);
    }
}
