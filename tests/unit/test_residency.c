/* residency: resizing, saving and loading, for every policy; and what hostile bytes do, which is nothing. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "cache/policies.h"
#include "tests/cache_model.h"

enum { N_LAYER = 4, N_EXPERT = 16, N_KEY = N_LAYER * N_EXPERT, K = 3, N_CLASS = 2, MAX_STATE = 1 << 18 };

static const uint32_t layer_class[N_LAYER] = {0, 1, 0, 1};

static stk_cache *open_with(const char *policy, uint32_t n_slot) {
    const stk_cache_class classes[N_CLASS] = {{n_slot, K}, {n_slot + 2, K}};
    const stk_cache_config config = {.n_layer = N_LAYER,
                                     .n_expert = N_EXPERT,
                                     .k = K,
                                     .n_class = N_CLASS,
                                     .classes = classes,
                                     .layer_class = layer_class,
                                     .policy = policy,
                                     .seed = 4};
    stk_cache *cache;
    cr_assert_eq(stk_cache_open(&cache, &config), 0, "%s: %s", policy, stk_error_detail());
    return cache;
}

/* Who would leave is who leaves; to ask leaves no trace. */
static void check_prefetch(stk_cache *cache, uint32_t key, stk_decision *d) {
    uint64_t hash = stk_cache_hash(cache);
    uint32_t first, victim;
    int may = stk_cache_would_leave(cache, key, &first);
    cr_assert(may >= 0 && stk_cache_would_leave(cache, key, &victim) == may && victim == first, "key %u: %d, %u then %u", key,
              may, first, victim);
    cr_assert_eq(stk_cache_hash(cache), hash);
    int rc = stk_cache_prefetch(cache, key, d);
    cr_assert(rc >= 0 && rc <= may);
    if (rc) cr_assert_eq(d->victim, victim);
}

static void run_events(stk_cache *cache, uint64_t *rng, uint32_t n) {
    static model_input in;
    for (uint32_t i = 0; i < n; i++) {
        const stk_decision *list;
        stk_decision d;
        model_random_event(&in, rng, N_EXPERT, K, 1 + (i % 5 == 0));
        cr_assert_geq(stk_cache_event(cache, i % N_LAYER, &in.event, &list), 0, "%s", stk_error_detail());
        if (model_random(rng, 4) == 0) check_prefetch(cache, model_random(rng, N_KEY), &d);
    }
}

/* Policies that a live cache may have. */
#define FOR_EACH_POLICY(name)                                                                                                    \
    for (const char *const *name = stk_policy_names(); *name; name++)                                                            \
        if (!stk_policy_find(*name)->needs_future)

/* ---- Resizing ----------------------------------------------------------------------------------------------------------- */

/* Carries a picture of what lies in which slot through the moves, as the caller would carry the bytes. */
static void check_resize(stk_cache *cache, uint32_t class, uint32_t n_slot, uint32_t *in_slot) {
    const stk_cache_move *moves;
    int32_t before[N_KEY];
    for (uint32_t key = 0; key < N_KEY; key++) before[key] = stk_cache_slot(cache, key);
    int n = stk_cache_resize(cache, class, n_slot, K, &moves);
    cr_assert_geq(n, 0, "%s", stk_error_detail());
    for (int i = 0; i < n; i++) {
        cr_assert_eq(in_slot[moves[i].from], moves[i].key);
        cr_assert_eq(before[moves[i].key], (int32_t)moves[i].from);
        in_slot[moves[i].from] = STK_NO_KEY;
        if (moves[i].to == STK_NO_SLOT) continue;
        cr_assert(moves[i].to < n_slot && moves[i].from >= n_slot && in_slot[moves[i].to] == STK_NO_KEY);
        in_slot[moves[i].to] = moves[i].key;
    }
    for (uint32_t slot = 0; slot < N_KEY; slot++)
        cr_assert(in_slot[slot] == STK_NO_KEY || (slot < n_slot && stk_cache_slot(cache, in_slot[slot]) == (int32_t)slot));
}

static uint32_t take_picture(const stk_cache *cache, uint32_t class, uint32_t *in_slot) {
    uint32_t n = 0;
    memset(in_slot, 0xff, sizeof *in_slot * N_KEY);
    for (uint32_t key = 0; key < N_KEY; key++) {
        int32_t slot = stk_cache_slot(cache, key);
        if (slot < 0 || layer_class[key / N_EXPERT] != class) continue;
        in_slot[slot] = key;
        n++;
    }
    return n;
}

Test(residency, a_resized_class_keeps_what_fits) {
    FOR_EACH_POLICY(name) {
        stk_cache *cache = open_with(*name, 10);
        uint64_t rng = 1;
        for (uint32_t round = 0; round < 60; round++) {
            uint32_t in_slot[N_KEY], class = round % 2, n_slot = K + model_random(&rng, 2 * N_EXPERT - K + 1);
            run_events(cache, &rng, 40);
            uint32_t n = take_picture(cache, class, in_slot);
            check_resize(cache, class, n_slot, in_slot);
            cr_assert_eq(take_picture(cache, class, in_slot), STK_MIN(n, n_slot), "%s: no more leave than must", *name);
        }
        stk_cache_close(&cache);
    }
}

Test(residency, the_oldest_leave_a_smaller_lru) {
    const stk_cache_class class = {.n_slot = 4};
    const uint32_t one[1] = {0};
    const stk_cache_config config = {
        .n_layer = 1, .n_expert = 8, .k = 1, .n_class = 1, .classes = &class, .layer_class = one, .policy = "lru"};
    stk_cache *cache;
    const stk_cache_move *moves;
    stk_decision d;
    cr_assert_eq(stk_cache_open(&cache, &config), 0);
    for (uint16_t key = 7; key > 3; key--) {
        const uint32_t count = 1;
        const stk_decision *list;
        const stk_event e = {.n_tok = 1, .k = 1, .n_expert = 8, .n_distinct = 1, .distinct = &key, .counts = &count};
        cr_assert_eq(stk_cache_event(cache, 0, &e, &list), 1);
    }
    cr_assert_eq(stk_cache_resize(cache, 0, 2, 0, &moves), 4);
    cr_assert(moves[0].key == 7 && moves[0].to == STK_NO_SLOT && moves[1].key == 6 && moves[1].to == STK_NO_SLOT);
    cr_assert(moves[2].key == 5 && moves[2].from == 2 && moves[2].to == 0 && moves[3].key == 4 && moves[3].to == 1);
    cr_assert_eq(stk_cache_resize(cache, 0, 8, 0, &moves), 0);
    for (uint32_t key = 0; key < 4; key++) cr_assert_eq(stk_cache_prefetch(cache, key, &d), 1);
    cr_assert(d.slot == 5 && d.victim == STK_NO_KEY);
    cr_assert_eq(stk_cache_resize(cache, 0, 9, 0, &moves), STK_EINVAL);
    cr_assert_eq(stk_cache_resize(cache, 1, 4, 0, &moves), STK_EINVAL);
    cr_assert_eq(stk_cache_resize(cache, 0, 0, 0, &moves), STK_EBUDGET);
    cr_assert_geq(stk_cache_slot(cache, 5), 0, "a refused resize changes nothing");
    stk_cache_close(&cache);
}

/* ---- Saving and loading ------------------------------------------------------------------------------------------------- */

static unsigned char state[MAX_STATE], again[MAX_STATE];

static size_t save(const stk_cache *cache, unsigned char *to) {
    int64_t bytes = stk_cache_save(cache, NULL, 0);
    cr_assert(bytes > 0 && bytes <= MAX_STATE);
    to[0] = 0x5a;
    cr_assert_eq(stk_cache_save(cache, to, (size_t)bytes - 1), bytes);
    cr_assert_eq(to[0], 0x5a, "nothing is written where it does not fit");
    cr_assert_eq(stk_cache_save(cache, to, MAX_STATE), bytes);
    return (size_t)bytes;
}

Test(residency, a_loaded_cache_goes_on_as_the_saved_one) {
    FOR_EACH_POLICY(name) {
        stk_cache *a = open_with(*name, 9), *b = open_with(*name, 9);
        uint64_t rng = 1, other = 2;
        run_events(a, &rng, 300);
        run_events(b, &other, 50); /* load replaces what was there */
        size_t bytes = save(a, state);
        cr_assert_eq(stk_cache_load(b, state, bytes), 0, "%s: %s", *name, stk_error_detail());
        cr_assert_eq(save(b, again), bytes);
        cr_assert_arr_eq(again, state, bytes);
        for (uint32_t key = 0; key < N_KEY; key++) cr_assert_eq(stk_cache_slot(a, key), stk_cache_slot(b, key));
        other = rng;
        run_events(a, &rng, 300);
        run_events(b, &other, 300);
        bytes = save(a, state);
        cr_assert_eq(save(b, again), bytes);
        cr_assert_arr_eq(again, state, bytes, "%s", *name);
        stk_cache_close(&a);
        stk_cache_close(&b);
    }
}

Test(residency, loaded_experts_are_coming) {
    stk_cache *a = open_with("lru", 9), *b = open_with("lru", 9);
    uint64_t rng = 1;
    run_events(a, &rng, 100);
    cr_assert_eq(stk_cache_load(b, state, save(a, state)), 0);
    uint16_t ids[N_EXPERT];
    uint32_t counts[N_EXPERT], n = 0;
    for (uint32_t e = 0; e < N_EXPERT; e++)
        if (stk_cache_slot(b, e) >= 0) ids[n] = (uint16_t)e, counts[n++] = 1;
    const stk_event event = {.n_distinct = n, .distinct = ids, .counts = counts};
    const stk_decision *list;
    cr_assert_geq(n, 1);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(stk_cache_event(b, 0, &event, &list), (int)n);
        for (uint32_t j = 0; j < n; j++) cr_assert(list[j].kind == STK_HIT && list[j].coming == (i == 0));
    }
    stk_cache_close(&a);
    stk_cache_close(&b);
}

/* Into fewer or more slots, or another policy: as much as fits, and it works on. */
Test(residency, other_slots_and_policies_take_over_what_fits) {
    FOR_EACH_POLICY(from)
    FOR_EACH_POLICY(to) {
        for (uint32_t n_slot = 4; n_slot <= 14; n_slot += 5) {
            stk_cache *a = open_with(*from, 9), *b = open_with(*to, n_slot);
            uint32_t in_slot[N_KEY];
            uint64_t rng = 1;
            run_events(a, &rng, 300);
            uint32_t n = take_picture(a, 0, in_slot);
            cr_assert_eq(stk_cache_load(b, state, save(a, state)), 0, "%s", stk_error_detail());
            cr_assert_eq(take_picture(b, 0, in_slot), STK_MIN(n, n_slot));
            for (uint32_t key = 0; key < N_KEY; key++) cr_assert(stk_cache_slot(b, key) < 0 || stk_cache_slot(a, key) >= 0);
            run_events(b, &rng, 100);
            stk_cache_close(&a);
            stk_cache_close(&b);
        }
    }
}

/* ---- Hostile bytes ------------------------------------------------------------------------------------------------------ */

static uint32_t n_resident(const stk_cache *cache) {
    uint32_t n = 0;
    for (uint32_t key = 0; key < N_KEY; key++) n += stk_cache_slot(cache, key) >= 0;
    return n;
}

/* The hash at the end, as whoever forges a state would put it right. */
static void seal(unsigned char *data, size_t bytes) {
    uint64_t h = bytes;
    for (size_t i = 0; i + 8 < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, data + i, STK_MIN(bytes - 8 - i, (size_t)8));
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    memcpy(data + bytes - 8, &h, 8);
}

Test(residency, damaged_states_are_refused_and_leave_an_empty_cache) {
    stk_cache *cache = open_with("lru", 9);
    uint64_t rng = 1;
    run_events(cache, &rng, 100);
    size_t bytes = save(cache, state);
    for (size_t n = 0; n < bytes; n++) {
        cr_assert_eq(stk_cache_load(cache, state, n), STK_EFORMAT);
        cr_assert_eq(n_resident(cache), 0);
    }
    for (size_t at = 0; at < bytes; at++) {
        memcpy(again, state, bytes);
        again[at] ^= 1;
        cr_assert_eq(stk_cache_load(cache, again, bytes), STK_EFORMAT, "byte %zu", at);
        cr_assert_eq(n_resident(cache), 0);
        run_events(cache, &rng, 4);
    }
    cr_assert_eq(stk_cache_load(cache, state, bytes), 0);
    stk_cache_close(&cache);
}

Test(residency, forged_states_do_no_harm) {
    FOR_EACH_POLICY(name) {
        stk_cache *cache = open_with(*name, 9);
        uint64_t rng = 1;
        uint32_t n_refused = 0;
        run_events(cache, &rng, 100);
        size_t bytes = save(cache, state);
        for (uint32_t i = 0; i < 3000; i++) {
            memcpy(again, state, bytes);
            for (uint32_t n = 1 + model_random(&rng, 2); n > 0; n--)
                again[model_random(&rng, (uint32_t)STK_MIN(bytes, 600u))] = (unsigned char)model_random(&rng, 256);
            size_t len = model_random(&rng, 9) ? bytes : bytes - model_random(&rng, 40);
            seal(again, len);
            int rc = stk_cache_load(cache, again, len);
            cr_assert(rc == 0 || rc == STK_EFORMAT, "%s: %d %s", *name, rc, stk_error_detail());
            n_refused += rc < 0;
            if (rc < 0) cr_assert_eq(n_resident(cache), 0);
            run_events(cache, &rng, 12);
        }
        cr_assert_gt(n_refused, 100);
        stk_cache_close(&cache);
    }
}

Test(residency, states_of_other_models_are_named) {
    static const struct {
        size_t at;
        const char *detail;
    } cases[] = {{0, "are none"}, {8, "version"}, {12, "layers"}, {16, "layers"}, {20, "layers"}, {56, "other sizes"}};
    stk_cache *cache = open_with("lru", 9);
    size_t bytes = save(cache, state);
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        memcpy(again, state, bytes);
        again[cases[i].at] ^= 1;
        seal(again, bytes);
        cr_assert_eq(stk_cache_load(cache, again, bytes), STK_EFORMAT);
        cr_assert_not_null(strstr(stk_error_detail(), cases[i].detail), "%s", stk_error_detail());
    }
    stk_cache_close(&cache);
}
