/* policy: the registry, and the reader of saved states. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "cache/future.h"
#include "cache/policies.h"

enum { MAX_STATE = 8192 };

/* What the future holds does not matter here. */
static stk_future *future;
static stk_future_cursor *cursor;

static void setup(void) {
    cr_assert_eq(stk_future_open(&future, 1, 1, NULL), 0);
    cr_assert_eq(stk_future_end(future), 0);
    cr_assert_eq(stk_future_cursor_open(&cursor, future), 0);
}

static void teardown(void) {
    stk_future_cursor_close(&cursor);
    stk_future_close(&future);
}

TestSuite(policy, .init = setup, .fini = teardown);

Test(policy, names_and_registry_agree) {
    uint32_t n = 0;
    for (const char *const *name = stk_policy_names(); *name; name++, n++) {
        const stk_policy_ops *ops = stk_policy_find(*name);
        cr_assert_not_null(ops);
        cr_assert_str_eq(ops->name, *name);
    }
    cr_assert_geq(n, 2);
    cr_assert_null(stk_policy_find("lr"));
    cr_assert_null(stk_policy_find(""));
}

/* What every policy owes, whatever its order. */
Test(policy, each_keeps_its_contract) {
    for (const char *const *name = stk_policy_names(); *name; name++) {
        const stk_policy_ops *ops = stk_policy_find(*name);
        stk_policy *p;
        stk_policy_config config = {.n_key = 100, .n_expert = 10, .n_slot = 8, .seed = 3, .future = cursor};
        uint64_t busy[2] = {0, 0};
        uint32_t key = 1234;
        cr_assert_eq(ops->open(&p, &config), 0);
        cr_assert_eq(ops->victim(p, busy, &key), 0);
        for (uint32_t i = 0; i < 8; i++) cr_assert_eq(ops->inserted(p, 11 * i, STK_WHY_DEMAND), 0);
        cr_assert_eq(ops->inserted(p, 99, STK_WHY_DEMAND), STK_ESTATE);
        cr_assert_eq(ops->inserted(p, 11, STK_WHY_DEMAND), STK_ESTATE);
        cr_assert_eq(ops->inserted(p, 100, STK_WHY_DEMAND), STK_ESTATE);
        cr_assert_eq(ops->evicted(p, 12), STK_ESTATE);
        cr_assert_eq(ops->evicted(p, 100), STK_ESTATE);
        cr_assert_eq(ops->resized(p, 7), STK_ESTATE);
        for (uint32_t i = 0; i < 8; i++)
            if (i != 5) busy[11 * i / 64] |= (uint64_t)1 << (11 * i % 64);
        cr_assert_eq(ops->victim(p, busy, &key), 1);
        cr_assert_eq(key, 55);
        cr_assert_eq(ops->evicted(p, 55), 0);
        cr_assert_eq(ops->victim(p, busy, &key), 0);
        cr_assert_eq(ops->resized(p, 7), 0);
        cr_assert_eq(ops->inserted(p, 55, STK_WHY_PREFETCH), STK_ESTATE);
        ops->close(p);
        ops->close(NULL);
        config.params = "x=1";
        cr_assert_eq(ops->open(&p, &config), STK_EINVAL);
        cr_assert_not_null(strstr(stk_error_detail(), "x=1"));
    }
}

Test(policy, a_saved_state_repeats_the_same_victims) {
    for (const char *const *name = stk_policy_names(); *name; name++) {
        const stk_policy_ops *ops = stk_policy_find(*name);
        if (ops == &stk_policy_learned) continue; /* more than a list of keys: test_learned.c */
        stk_policy *a, *b;
        const stk_policy_config config = {.n_key = 64, .n_expert = 64, .n_slot = 20, .seed = 9, .future = cursor};
        const uint64_t busy[1] = {0};
        unsigned char state[MAX_STATE], again[MAX_STATE];
        cr_assert_eq(ops->open(&a, &config), 0);
        cr_assert_eq(ops->open(&b, &config), 0);
        int64_t bytes = ops->save(a, NULL, 0);
        cr_assert(bytes > 0 && bytes <= (int64_t)sizeof state);
        for (uint32_t i = 0; i < 17; i++) cr_assert_eq(ops->inserted(a, i * 7 % 64, STK_WHY_WARM), 0);
        cr_assert_eq(ops->inserted(b, 1, STK_WHY_WARM), 0); /* load replaces what was there */
        memset(state, 0x5a, sizeof state);
        cr_assert_eq(ops->save(a, state, (size_t)bytes - 1), bytes);
        cr_assert_eq(state[0], 0x5a, "nothing is written where it does not fit");
        cr_assert_eq(ops->save(a, state, sizeof state), bytes);
        cr_assert_eq(ops->load(b, state, (size_t)bytes), 0);
        cr_assert_eq(ops->save(b, again, sizeof again), bytes);
        cr_assert_arr_eq(again, state, (size_t)bytes);
        for (uint32_t i = 0; i < 17; i++) {
            uint32_t ka, kb;
            cr_assert_eq(ops->victim(a, busy, &ka), 1);
            cr_assert_eq(ops->victim(b, busy, &kb), 1);
            cr_assert_eq(ka, kb);
            cr_assert_eq(ops->evicted(a, ka), 0);
            cr_assert_eq(ops->evicted(b, kb), 0);
        }
        ops->close(a);
        ops->close(b);
    }
}

static void put(unsigned char *state, size_t word, uint32_t value) { memcpy(state + 4 * word, &value, 4); }

/* Every single-byte change and every length: refused, or a state that works; a refused one changes nothing. */
Test(policy, hostile_states_do_no_harm) {
    for (const char *const *name = stk_policy_names(); *name; name++) {
        const stk_policy_ops *ops = stk_policy_find(*name);
        if (ops == &stk_policy_learned) continue; /* more than a list of keys: test_learned.c */
        stk_policy *p;
        const stk_policy_config config = {.n_key = 40, .n_expert = 40, .n_slot = 6, .seed = 9, .future = cursor};
        unsigned char good[MAX_STATE], bad[MAX_STATE], now[MAX_STATE];
        cr_assert_eq(ops->open(&p, &config), 0);
        for (uint32_t i = 0; i < 5; i++) cr_assert_eq(ops->inserted(p, 8 * i, STK_WHY_WARM), 0);
        size_t bytes = (size_t)ops->save(p, good, sizeof good);
        for (size_t n = 0; n < bytes; n++) cr_assert_eq(ops->load(p, good, n), STK_EFORMAT);
        const struct {
            size_t word;
            uint32_t value;
            const char *detail;
        } cases[] = {{0, 1, "another policy"}, {1, 41, "41 experts"},
                     {2, 5, "do not fill"},    {2, 0x40000006, "do not fill"},
                     {3, 7, "do not fill"},    {3, UINT32_MAX, "do not fill"},
                     {6, 40, "expert 40"},     {6, UINT32_MAX, "expert"},
                     {6, 8, "twice"},          {10, 0, "twice"}};
        for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
            memcpy(bad, good, sizeof bad);
            put(bad, cases[i].word, cases[i].value);
            cr_assert_eq(ops->load(p, bad, bytes), STK_EFORMAT, "%s case %zu", *name, i);
            cr_assert_not_null(strstr(stk_error_detail(), cases[i].detail), "%s: %s", *name, stk_error_detail());
            cr_assert_eq(ops->save(p, now, sizeof now), (int64_t)bytes);
            cr_assert_arr_eq(now, good, bytes);
        }
        for (size_t at = 0; at < bytes; at++)
            for (uint32_t flip = 1; flip < 256; flip++) {
                memcpy(bad, good, bytes);
                bad[at] ^= (unsigned char)flip;
                if (ops->load(p, bad, bytes) < 0) continue;
                uint64_t busy[1] = {0};
                uint32_t key, n = 0;
                for (; ops->victim(p, busy, &key) == 1; n++) {
                    cr_assert_lt(key, 40);
                    cr_assert_eq(ops->evicted(p, key), 0);
                }
                cr_assert_leq(n, 6);
            }
        ops->close(p);
    }
}

Test(policy, a_state_of_more_experts_than_slots_is_refused) {
    for (const char *const *name = stk_policy_names(); *name; name++) {
        const stk_policy_ops *ops = stk_policy_find(*name);
        if (ops == &stk_policy_learned) continue; /* more than a list of keys: test_learned.c */
        stk_policy *big, *small;
        unsigned char state[MAX_STATE];
        stk_policy_config config = {.n_key = 40, .n_expert = 40, .n_slot = 6, .future = cursor};
        cr_assert_eq(ops->open(&big, &config), 0);
        config.n_slot = 3;
        cr_assert_eq(ops->open(&small, &config), 0);
        for (uint32_t i = 0; i < 4; i++) {
            int64_t bytes = ops->save(big, state, sizeof state);
            cr_assert_eq(ops->load(small, state, (size_t)bytes), 0, "%u experts fit in 3 slots", i);
            cr_assert_eq(ops->inserted(big, i, STK_WHY_DEMAND), 0);
        }
        int64_t bytes = ops->save(big, state, sizeof state);
        cr_assert_eq(ops->load(small, state, (size_t)bytes), STK_EFORMAT);
        ops->close(big);
        ops->close(small);
    }
}

/* ---- Parameters --------------------------------------------------------------------------------------------------------- */

Test(policy, parameters_are_read_or_named) {
    static const stk_policy_param params[] = {{"half", 0, 1, 0.25, "x"}, {"steps", 1, 100, 10, "x"}, {0}};
    static const stk_policy_ops ops = {.name = "some", .params = params};
    static const struct {
        const char *text;
        double half, steps;
    } good[] = {{NULL, 0.25, 10}, {"", 0.25, 10}, {"half=0.5", 0.5, 10}, {"steps=100,half=0", 0, 100}, {"steps=1e1,", 0.25, 10}};
    static const char *const bad[][2] = {
        {"half", "half is a number"}, {"half=", "half is a number"}, {"half=x", "\"half=x\""},
        {"half=0.5x", "from 0 to 1"}, {"half=1.5", "from 0 to 1"},   {"half=nan", "from 0 to 1"},
        {"steps=0", "from 1 to 100"}, {"half=1,half=1", "twice"},    {"hal=1", "there are: half, steps"},
        {"halfx=1", "no parameter"},  {",", "no parameter"},         {"half=1,,steps=2", "no parameter"},
        {"=1", "no parameter"}};
    double values[2];
    for (size_t i = 0; i < STK_ARRAY_LEN(good); i++) {
        cr_assert_eq(stk_policy_params(&ops, good[i].text, values), 0, "%s", stk_error_detail());
        cr_assert(values[0] == good[i].half && values[1] == good[i].steps);
    }
    for (size_t i = 0; i < STK_ARRAY_LEN(bad); i++) {
        cr_assert_eq(stk_policy_params(&ops, bad[i][0], values), STK_EINVAL, "%s", bad[i][0]);
        cr_assert_not_null(strstr(stk_error_detail(), bad[i][1]), "%s: %s", bad[i][0], stk_error_detail());
    }
    char digits[256] = "half=0.";
    memset(digits + 7, '1', 200);
    cr_assert_eq(stk_policy_params(&ops, digits, values), STK_EINVAL);
}

/* The list says what open does: an initial value is in range, and every name is taken. */
Test(policy, documented_parameters_are_those_that_open_takes) {
    for (const char *const *name = stk_policy_names(); *name; name++) {
        const stk_policy_ops *ops = stk_policy_find(*name);
        cr_assert(ops->idea && *ops->idea);
        for (const stk_policy_param *param = ops->params; param && param->name; param++) {
            const double edges[] = {param->min, param->initial, param->max};
            cr_assert(param->min <= param->initial && param->initial <= param->max && *param->what);
            for (size_t i = 0; i < STK_ARRAY_LEN(edges); i++) {
                char text[64];
                stk_policy *p;
                snprintf(text, sizeof text, "%s=%.17g", param->name, edges[i]);
                const stk_policy_config config = {.n_key = 8, .n_expert = 8, .n_slot = 4, .params = text, .future = cursor};
                cr_assert_eq(ops->open(&p, &config), 0, "%s: %s", *name, stk_error_detail());
                ops->close(p);
            }
        }
    }
}
