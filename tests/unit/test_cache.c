/* cache: against the model, decision for decision; and the promises of cache.h one by one. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "cache/policies.h"
#include "tests/alloc_count.h"
#include "tests/cache_model.h"

static const uint32_t one_class[16];
static model m; /* too large for a stack */

static stk_cache_config config_of(uint32_t n_expert, uint32_t k, const stk_cache_class *class) {
    return (stk_cache_config){
        .n_layer = 1, .n_expert = n_expert, .k = k, .n_class = 1, .classes = class, .layer_class = one_class, .policy = "lru"};
}

static stk_cache *open_cache(const stk_cache_config *config) {
    stk_cache *cache;
    cr_assert_eq(stk_cache_open(&cache, config), 0, "%s", stk_error_detail());
    return cache;
}

static void assert_same(const stk_decision *a, const stk_decision *b) {
    cr_assert(a->key == b->key && a->expert == b->expert && a->kind == b->kind && a->coming == b->coming &&
                  a->n_tok == b->n_tok && a->slot == b->slot && a->victim == b->victim && a->wave == b->wave,
              "key %u/%u kind %u/%u coming %u/%u tokens %u/%u slot %u/%u victim %d/%d wave %u/%u", a->key, b->key, a->kind,
              b->kind, a->coming, b->coming, a->n_tok, b->n_tok, a->slot, b->slot, (int)a->victim, (int)b->victim, a->wave,
              b->wave);
}

static void check_event(stk_cache *cache, uint32_t layer, const stk_event *event) {
    stk_decision want[MODEL_MAX_EXPERT];
    const stk_decision *list;
    int n = stk_cache_event(cache, layer, event, &list);
    cr_assert_eq(n, (int)model_event(&m, layer, event, want), "%s", stk_error_detail());
    for (int i = 0; i < n; i++) assert_same(&list[i], &want[i]);
}

static void check_state(const stk_cache *cache, uint32_t n_key) {
    stk_cache_counters c;
    stk_cache_get_counters(cache, &c);
    cr_assert_eq(memcmp(&c, &m.counters, sizeof c), 0);
    cr_assert_eq(c.n_hit + c.n_miss, c.n_lookup);
    for (uint32_t key = 0; key < n_key; key++) cr_assert_eq(stk_cache_slot(cache, key), model_slot(&m, key));
}

/* ---- Exhaustive --------------------------------------------------------------------------------------------------------- */

/* All sequences of `length` events over all non-empty subsets of 4 experts, with counts that vary, from every number of slots. */
Test(cache, every_short_sequence_of_small_events) {
    enum { E = 4, LENGTH = 4, N_SET = (1 << E) - 1 };
    for (uint32_t n_slot = 1; n_slot <= E; n_slot++) {
        const stk_cache_class class = {.n_slot = n_slot};
        const stk_cache_config config = config_of(E, 1, &class);
        stk_cache *cache = open_cache(&config);
        for (uint32_t code = 0; code < N_SET * N_SET * N_SET * N_SET; code++) {
            cr_assert_eq(stk_cache_clear(cache), 0);
            stk_cache_reset_counters(cache);
            model_open(&m, &config);
            for (uint32_t step = 0, rest = code; step < LENGTH; step++, rest /= N_SET) {
                model_input in = {.event.distinct = in.distinct, .event.counts = in.counts};
                uint32_t set = rest % N_SET + 1;
                for (uint32_t e = 0; e < E; e++) {
                    if (!(set >> e & 1)) continue;
                    in.counts[in.event.n_distinct] = 1 + (e * 2 + step + set) % 3;
                    in.distinct[in.event.n_distinct++] = (uint16_t)e;
                }
                check_event(cache, 0, &in.event);
            }
            check_state(cache, E);
        }
        stk_cache_close(&cache);
    }
}

/* ---- Random ------------------------------------------------------------------------------------------------------------- */

/* A policy is told local keys; the expert's number within its layer is the same in both. */
static uint32_t n_expert_of_run;
static bool refuses_some(uint32_t key) { return key % n_expert_of_run % 5 == 3 || key % n_expert_of_run % 7 == 2; }
static int admit_some(stk_policy *p, uint32_t key) {
    (void)p;
    return !refuses_some(key);
}

static void random_run(uint64_t seed, const stk_policy_ops *ops, bool (*refuses)(uint32_t)) {
    static const uint32_t n_experts[] = {1, 2, 3, 8, 60, 64, 65, 128, 256};
    uint64_t rng = seed;
    uint32_t n_expert = n_expert_of_run = n_experts[model_random(&rng, STK_ARRAY_LEN(n_experts))];
    uint32_t k = 1 + model_random(&rng, STK_MIN(8u, n_expert));
    stk_cache_class classes[3];
    uint32_t layer_class[6];
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t room = model_random(&rng, 3) ? n_expert * 2 + 1 : 3;
        classes[i] = (stk_cache_class){.n_slot = k + model_random(&rng, room), .n_transit = 1 + model_random(&rng, k)};
    }
    for (uint32_t i = 0; i < 6; i++) layer_class[i] = model_random(&rng, 3);
    const stk_cache_config config = {.n_layer = 6,
                                     .n_expert = n_expert,
                                     .k = k,
                                     .n_class = 3,
                                     .classes = classes,
                                     .layer_class = layer_class,
                                     .policy = "lru",
                                     .ops = ops};
    stk_cache *cache = open_cache(&config);
    model_open(&m, &config);
    m.refuses = refuses;
    for (uint32_t step = 0; step < 60; step++) {
        static const uint32_t n_toks[] = {1, 1, 1, 2, 5, 33, 512};
        static model_input in;
        uint32_t n_tok = n_toks[model_random(&rng, STK_ARRAY_LEN(n_toks))], layer = step % 6;
        uint32_t key = model_random(&rng, 6 * n_expert);
        model_random_event(&in, &rng, n_expert, k, n_tok);
        check_event(cache, layer, &in.event);
        for (uint32_t i = model_random(&rng, 4); i-- > 0; key = model_random(&rng, 6 * n_expert)) {
            stk_decision got, want;
            int rc = stk_cache_prefetch(cache, key, &got);
            cr_assert_eq(rc, model_prefetch(&m, key, &want));
            if (rc == 1) assert_same(&got, &want);
        }
        if (model_random(&rng, 8) == 0) {
            cr_assert_eq(stk_cache_drop(cache, key), 0);
            model_drop(&m, key);
        }
        check_state(cache, 6 * n_expert);
    }
    stk_cache_close(&cache);
}

Test(cache, random_events_of_many_shapes) {
    for (uint64_t seed = 1; seed <= 400; seed++) random_run(seed, NULL, NULL);
}

Test(cache, random_events_with_refusals) {
    stk_policy_ops picky = stk_policy_lru;
    picky.name = "picky";
    picky.admit = admit_some;
    for (uint64_t seed = 1; seed <= 400; seed++) random_run(seed, &picky, refuses_some);
}

/* What holds for any policy: no slot holds two experts, nothing leaves before it is computed, the counts add up. */
static void check_invariants(const stk_cache *cache, const stk_decision *list, int n, uint32_t *resident, uint32_t n_slot) {
    uint32_t computed[64] = {0}, in_slot[64] = {0}, n_resident = 0;
    for (int i = 0; i < n; i++) {
        const stk_decision *d = &list[i];
        cr_assert_eq(d->kind == STK_HIT, resident[d->key]);
        if (d->kind == STK_HIT) cr_assert(i == 0 || list[i - 1].kind == STK_HIT);
        if (i && (list[i - 1].kind == STK_HIT) == (d->kind == STK_HIT)) cr_assert_geq(list[i - 1].n_tok, d->n_tok);
        if (i && d->wave != list[i - 1].wave)
            for (int j = 0; j < i; j++) computed[list[j].key] = 1;
        cr_assert_eq(d->kind == STK_TRANSIT, d->slot >= n_slot);
        if (d->victim != STK_NO_KEY) {
            cr_assert_eq(d->kind, STK_ADMIT);
            cr_assert_neq(resident[d->victim], 0);
            for (int j = 0; j < n; j++) cr_assert(list[j].key != d->victim || computed[d->victim]);
            resident[d->victim] = 0;
        }
        resident[d->key] |= d->kind != STK_TRANSIT;
    }
    for (uint32_t key = 0; key < 64; key++) {
        int32_t slot = stk_cache_slot(cache, key);
        cr_assert_eq(slot >= 0, resident[key]);
        n_resident += slot >= 0;
        if (slot >= 0) cr_assert(slot < (int)n_slot && in_slot[slot]++ == 0);
    }
    cr_assert_leq(n_resident, n_slot);
}

Test(cache, invariants_hold_for_every_policy) {
    enum { N_STEP = 3000 };
    for (const char *const *name = stk_policy_names(); *name; name++) {
        stk_future *future;
        static model_input in;
        uint64_t rng = 7;
        cr_assert_eq(stk_future_open(&future, 1, 64, NULL), 0);
        for (uint32_t step = 0; step < N_STEP; step++) {
            model_random_event(&in, &rng, 64, 4, 1 + model_random(&rng, 9));
            cr_assert_eq(stk_future_add(future, 0, &in.event), 0);
        }
        cr_assert_eq(stk_future_end(future), 0);
        const stk_cache_class class = {.n_slot = 11, .n_transit = 3};
        stk_cache_config config = config_of(64, 4, &class);
        config.policy = *name;
        config.future = future;
        stk_cache *cache = open_cache(&config);
        uint32_t resident[64] = {0};
        rng = 7;
        for (uint32_t step = 0; step < N_STEP; step++) {
            const stk_decision *list;
            model_random_event(&in, &rng, 64, 4, 1 + model_random(&rng, 9));
            int n = stk_cache_event(cache, 0, &in.event, &list);
            cr_assert_geq(n, 1, "%s: %s", *name, stk_error_detail());
            check_invariants(cache, list, n, resident, 11);
        }
        stk_cache_close(&cache);
        stk_future_close(&future);
    }
}

/* ---- One promise each --------------------------------------------------------------------------------------------------- */

static int all_experts(stk_cache *cache, uint32_t first, uint32_t n, const stk_decision **list) {
    static model_input in;
    in.event = (stk_event){.n_distinct = n, .distinct = in.distinct, .counts = in.counts};
    for (uint32_t i = 0; i < n; i++) {
        in.distinct[i] = (uint16_t)(first + i);
        in.counts[i] = 1;
    }
    return stk_cache_event(cache, 0, &in.event, list);
}

Test(cache, a_cold_event_takes_as_few_waves_as_its_slots_allow) {
    for (uint32_t n_slot = 1; n_slot <= 9; n_slot++)
        for (uint32_t n = 1; n <= 40; n++) {
            const stk_cache_class class = {.n_slot = n_slot};
            const stk_cache_config config = config_of(64, 1, &class);
            stk_cache *cache = open_cache(&config);
            const stk_decision *list;
            cr_assert_eq(all_experts(cache, 3, n, &list), (int)n);
            cr_assert_eq(list[n - 1].wave, (n - 1) / n_slot);
            stk_cache_close(&cache);
        }
}

Test(cache, prefetched_experts_are_hits_and_coming_once) {
    const stk_cache_class class = {.n_slot = 3};
    const stk_cache_config config = config_of(16, 1, &class);
    stk_cache *cache = open_cache(&config);
    const stk_decision *list;
    stk_decision d;
    cr_assert_eq(stk_cache_prefetch(cache, 5, &d), 1);
    cr_assert(d.key == 5 && d.expert == 5 && d.kind == STK_ADMIT && d.slot == 0 && d.victim == STK_NO_KEY && d.n_tok == 0);
    cr_assert_eq(stk_cache_prefetch(cache, 5, &d), 0, "it is there");
    cr_assert_eq(stk_cache_prefetch(cache, 16, &d), STK_EINVAL);
    cr_assert_eq(all_experts(cache, 5, 1, &list), 1);
    cr_assert(list[0].kind == STK_HIT && list[0].coming);
    cr_assert_eq(all_experts(cache, 5, 1, &list), 1);
    cr_assert(list[0].kind == STK_HIT && !list[0].coming);
    stk_cache_close(&cache);
}

Test(cache, a_prefetch_never_takes_the_slot_of_a_running_event) {
    const stk_cache_class class = {.n_slot = 3};
    const stk_cache_config config = config_of(16, 1, &class);
    stk_cache *cache = open_cache(&config);
    const stk_decision *list;
    stk_decision d;
    cr_assert_eq(all_experts(cache, 0, 7, &list), 7); /* waves 0 to 2 */
    cr_assert_eq(stk_cache_prefetch(cache, 9, &d), 0);
    cr_assert_eq(all_experts(cache, 4, 1, &list), 1);
    cr_assert_eq(stk_cache_prefetch(cache, 9, &d), 1);
    cr_assert_neq(d.victim, STK_NO_KEY);
    cr_assert_neq(d.victim, 4);
    cr_assert_eq(list[0].key, 4, "the event's list outlives a prefetch");
    stk_cache_close(&cache);
}

Test(cache, dropped_slots_are_filled_from_the_lowest) {
    const stk_cache_class class = {.n_slot = 130};
    const stk_cache_config config = config_of(256, 1, &class);
    stk_cache *cache = open_cache(&config);
    const stk_decision *list;
    cr_assert_eq(all_experts(cache, 0, 130, &list), 130);
    cr_assert_eq(stk_cache_drop(cache, 129), 0);
    cr_assert_eq(stk_cache_drop(cache, 70), 0);
    cr_assert_eq(stk_cache_drop(cache, 3), 0);
    cr_assert_eq(stk_cache_drop(cache, 3), 0, "dropping what is not there does nothing");
    cr_assert_eq(stk_cache_drop(cache, 256), STK_EINVAL);
    cr_assert_eq(stk_cache_slot(cache, 70), -1);
    cr_assert_eq(stk_cache_slot(cache, 256), -1);
    cr_assert_eq(all_experts(cache, 200, 4, &list), 4);
    cr_assert(list[0].slot == 3 && list[1].slot == 70 && list[2].slot == 129 && list[3].victim != STK_NO_KEY);
    stk_cache_close(&cache);
}

Test(cache, the_hash_tells_states_apart_and_repeats) {
    const stk_cache_class class = {.n_slot = 4, .n_transit = 2};
    const stk_cache_config config = config_of(16, 2, &class);
    stk_cache *a = open_cache(&config), *b = open_cache(&config);
    const stk_decision *list;
    stk_decision d;
    uint64_t empty = stk_cache_hash(a);
    cr_assert_eq(empty, stk_cache_hash(b));
    cr_assert_eq(all_experts(a, 0, 2, &list), 2);
    uint64_t filled = stk_cache_hash(a);
    cr_assert_neq(filled, empty);
    cr_assert_eq(all_experts(b, 0, 2, &list), 2);
    cr_assert_eq(stk_cache_hash(b), filled);
    cr_assert_eq(all_experts(a, 1, 1, &list), 1);
    cr_assert_neq(stk_cache_hash(a), filled, "the order of leaving differs");
    cr_assert_eq(all_experts(a, 0, 1, &list), 1);
    cr_assert_eq(all_experts(b, 1, 1, &list), 1);
    cr_assert_eq(all_experts(b, 0, 1, &list), 1);
    cr_assert_eq(stk_cache_hash(a), stk_cache_hash(b));
    cr_assert_eq(stk_cache_prefetch(a, 9, &d), 1);
    cr_assert_eq(all_experts(b, 9, 1, &list), 1);
    cr_assert_neq(stk_cache_hash(a), stk_cache_hash(b), "one of them is coming");
    cr_assert_eq(stk_cache_clear(a), 0);
    cr_assert_eq(stk_cache_hash(a), empty);
    stk_cache_close(&a);
    stk_cache_close(&b);
}

Test(cache, the_same_seed_gives_the_same_run) {
    const stk_cache_class class = {.n_slot = 20};
    stk_cache_config config = config_of(64, 8, &class);
    config.policy = "random";
    stk_cache *caches[3];
    for (uint32_t i = 0; i < 3; i++) {
        config.seed = i == 2;
        caches[i] = open_cache(&config);
    }
    uint64_t rng = 5;
    for (uint32_t step = 0; step < 500; step++) {
        static model_input in;
        const stk_decision *list;
        model_random_event(&in, &rng, 64, 8, 1);
        for (uint32_t i = 0; i < 3; i++) cr_assert_eq(stk_cache_event(caches[i], 0, &in.event, &list), 8);
        cr_assert_eq(stk_cache_hash(caches[0]), stk_cache_hash(caches[1]));
    }
    cr_assert_neq(stk_cache_hash(caches[0]), stk_cache_hash(caches[2]));
    for (uint32_t i = 0; i < 3; i++) stk_cache_close(&caches[i]);
}

Test(cache, bad_configurations_are_named) {
    stk_cache *cache = NULL;
    stk_cache_class class = {.n_slot = 7};
    stk_cache_config good = config_of(16, 8, &class), bad = good;
    cr_assert_eq(stk_cache_open(&cache, &bad), STK_EBUDGET);
    cr_assert_not_null(strstr(stk_error_detail(), "at least 8"));
    class.n_slot = 8;
    bad.policy = "fifo";
    cr_assert_eq(stk_cache_open(&cache, &bad), STK_EINVAL);
    cr_assert_not_null(strstr(stk_error_detail(), "fifo"));
    for (const char *const *name = stk_policy_names(); *name; name++)
        cr_assert_not_null(strstr(stk_error_detail(), *name), "%s is not named", *name);
    bad.policy = "belady";
    cr_assert_eq(stk_cache_open(&cache, &bad), STK_EINVAL);
    cr_assert_not_null(strstr(stk_error_detail(), "future"));
    bad.policy = NULL;
    cr_assert_eq(stk_cache_open(&cache, &bad), STK_EINVAL);
    bad = good;
    bad.params = "half_life=3";
    cr_assert_eq(stk_cache_open(&cache, &bad), STK_EINVAL);
    bad = good;
    bad.layer_class = (const uint32_t[]){1};
    cr_assert_eq(stk_cache_open(&cache, &bad), STK_EINVAL);
    bad = good;
    bad.k = 17;
    cr_assert_eq(stk_cache_open(&cache, &bad), STK_EINVAL);
    bad = good;
    bad.n_layer = 0;
    cr_assert_eq(stk_cache_open(&cache, &bad), STK_EINVAL);
    bad = good;
    bad.n_layer = 1u << 31;
    cr_assert_eq(stk_cache_open(&cache, &bad), STK_EINVAL);
    stk_policy_ops picky = stk_policy_lru;
    picky.admit = admit_some;
    bad = good;
    bad.ops = &picky;
    cr_assert_eq(stk_cache_open(&cache, &bad), STK_EBUDGET);
    cr_assert_null(cache);
    stk_cache_close(&cache);
}

Test(cache, bad_events_change_nothing) {
    const stk_cache_class class = {.n_slot = 4};
    const stk_cache_config config = config_of(16, 1, &class);
    stk_cache *cache = open_cache(&config);
    const stk_decision *list;
    static const uint16_t wrong[][2] = {{3, 3}, {4, 3}, {3, 16}, {3, STK_NO_EXPERT}};
    const uint32_t counts[2] = {1, 1};
    uint64_t before = stk_cache_hash(cache);
    for (size_t i = 0; i < STK_ARRAY_LEN(wrong); i++) {
        const stk_event event = {.n_distinct = 2, .distinct = wrong[i], .counts = counts};
        cr_assert_eq(stk_cache_event(cache, 0, &event, &list), STK_EINVAL);
    }
    const stk_event many = {.n_distinct = 17}, fine = {.n_distinct = 0};
    cr_assert_eq(stk_cache_event(cache, 0, &many, &list), STK_EINVAL);
    cr_assert_eq(stk_cache_event(cache, 1, &fine, &list), STK_EINVAL);
    cr_assert_eq(stk_cache_event(cache, 0, &fine, &list), 0);
    cr_assert_eq(stk_cache_hash(cache), before);
    stk_cache_close(&cache);
}

/* ---- A policy that fails ------------------------------------------------------------------------------------------------ */

static int fail_after; /* calls of victim */
static int failing_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    return fail_after-- > 0 ? stk_policy_lru.victim(p, busy, key) : stk_fail(STK_EIO, "no victim today");
}
static int wrong_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    (void)p;
    for (*key = 0; !stk_policy_is_busy(busy, *key);) ++*key;
    return 1;
}
static int shy_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    (void)p, (void)busy, (void)key;
    return 0;
}

/* Nothing that would have to be read for the failed event stays; the cache works on. */
Test(cache, a_failing_policy_leaves_no_unread_expert) {
    static const struct {
        int (*victim)(stk_policy *, const uint64_t *, uint32_t *);
        int code;
    } cases[] = {{failing_victim, STK_EIO}, {wrong_victim, STK_ESTATE}, {shy_victim, STK_ESTATE}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        stk_policy_ops ops = stk_policy_lru;
        ops.victim = cases[i].victim;
        ops.replace = NULL;
        fail_after = 2;
        const stk_cache_class class = {.n_slot = 4};
        stk_cache_config config = config_of(64, 1, &class);
        config.ops = &ops;
        stk_cache *cache = open_cache(&config);
        const stk_decision *list;
        cr_assert_eq(all_experts(cache, 0, 3, &list), 3);
        cr_assert_eq(all_experts(cache, 2, 6, &list), cases[i].code);
        uint32_t n = 0;
        for (uint32_t key = 0; key < 64; key++) {
            if (stk_cache_slot(cache, key) < 0) continue;
            n++;
            cr_assert_leq(key, 2);
        }
        cr_assert_geq(n, 1);
        cr_assert_eq(all_experts(cache, 20, 1, &list), 1);
        cr_assert_eq(list[0].kind, STK_ADMIT);
        stk_cache_close(&cache);
    }
}

Test(cache, events_and_prefetches_allocate_nothing) {
    if (!ALLOC_COUNTED) cr_skip_test("the sanitizer has its own malloc");
    const stk_cache_class class = {.n_slot = 40};
    const stk_cache_config config = config_of(256, 8, &class);
    stk_cache *cache = open_cache(&config);
    static model_input in;
    uint64_t rng = 3, hash = 0;
    bool failed = false;
    uint64_t before = atomic_load_explicit(&alloc_count, memory_order_relaxed);
    for (uint32_t step = 0; step < 300; step++) {
        const stk_decision *list;
        stk_decision d;
        model_random_event(&in, &rng, 256, 8, 1 + step);
        failed |= stk_cache_event(cache, 0, &in.event, &list) < 0 || stk_cache_prefetch(cache, step % 256, &d) < 0;
        hash ^= stk_cache_hash(cache);
    }
    uint64_t after = atomic_load_explicit(&alloc_count, memory_order_relaxed);
    cr_assert_gt(before, 0, "opening was counted");
    cr_assert_eq(after, before);
    cr_assert_not(failed);
    cr_assert_neq(hash, 0);
    stk_cache_close(&cache);
}

Test(cache, a_lookup_takes_nothing_in_and_an_admission_does) {
    const stk_cache_class class = {2, 0};
    const uint32_t layer_class[1] = {0};
    const uint16_t distinct[2] = {1, 3}, later[2] = {3, 5};
    const uint32_t counts[2] = {1, 4}, twos[2] = {2, 2};
    stk_event event = {.n_distinct = 2, .distinct = distinct, .counts = counts, .n_tok = 4, .k = 2, .n_expert = 8};
    const stk_decision *list;
    stk_decision d;
    stk_cache *cache;
    cr_assert_eq(stk_cache_open(&cache, &(stk_cache_config){.n_layer = 1,
                                                            .n_expert = 8,
                                                            .k = 2,
                                                            .n_class = 1,
                                                            .classes = &class,
                                                            .layer_class = layer_class,
                                                            .policy = "lru",
                                                            .partial = true}),
                 0);
    cr_assert_eq(stk_cache_admit(cache, 7, false, &d), 1);
    cr_assert_eq(stk_cache_lookup(cache, 0, &event, &list), 2);
    cr_assert(list[0].expert == 3 && list[0].kind == STK_AWAY, "heavy first, nowhere");
    cr_assert_lt(stk_cache_slot(cache, 3), 0);
    cr_assert_eq(stk_cache_admit(cache, 3, true, &d), 1);
    cr_assert_eq(d.victim, STK_NO_KEY);
    cr_assert_eq(stk_cache_admit(cache, 3, true, &d), 0, "it is there");
    cr_assert_eq(stk_cache_admit(cache, 1, true, &d), 1);
    cr_assert_eq(d.victim, 7u);
    event.distinct = later;
    event.counts = twos;
    cr_assert_eq(stk_cache_lookup(cache, 0, &event, &list), 2);
    cr_assert(list[0].expert == 3 && list[0].kind == STK_HIT && list[1].kind == STK_AWAY);
    cr_assert_eq(stk_cache_admit(cache, 5, true, &d), 1);
    cr_assert_eq(d.victim, 1u, "3 is in use");
    cr_assert_eq(stk_cache_admit(cache, 0, true, &d), 0, "all are in use");
    cr_assert_eq(stk_cache_admit(cache, 8, true, &d), STK_EINVAL);
    stk_cache_counters c;
    stk_cache_get_counters(cache, &c);
    cr_assert(c.n_event == 2 && c.n_lookup == 4 && c.n_hit == 1 && c.n_miss == 3 && c.n_evict == 2);
    stk_cache_close(&cache);
}
