/* pinned: who stays, what the list may say, and which instance an entry is for. */
#include <criterion/criterion.h>
#include <string.h>

#include "cache/policies.h"

static const stk_policy_ops *const pinned = &stk_policy_pinned;

static stk_policy *open_pinned(const char *params, const uint32_t *layers, uint32_t n_slot) {
    const stk_policy_config config = {.n_key = 32, .n_expert = 16, .n_slot = n_slot, .params = params, .layers = layers};
    stk_policy *p;
    cr_assert_eq(pinned->open(&p, &config), 0, "%s", stk_error_detail());
    return p;
}

/* The residents in the order in which they leave. */
static void expect(stk_policy *p, uint32_t n, const uint32_t *keys) {
    uint64_t busy = 0;
    uint32_t key;
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(pinned->victim(p, &busy, &key), 1);
        cr_assert_eq(key, keys[i], "place %u: %u instead of %u", i, key, keys[i]);
        busy |= (uint64_t)1 << key;
    }
    cr_assert_eq(pinned->victim(p, &busy, &key), 0);
}

Test(pinned, they_leave_after_all_others) {
    static const char *const same[] = {"keys=0:3-4+1:0", "keys=1:0+0:4+0:3", "keys= 0:3-4\n1:0\n", "keys=0:3+0:3-4++1:0+"};
    for (size_t i = 0; i < STK_ARRAY_LEN(same); i++) {
        stk_policy *p = open_pinned(same[i], NULL, 8);
        const uint32_t in[] = {3, 16, 5, 9, 4, 1}, used[] = {3, 5}, counts[] = {1, 1};
        const stk_event event = {.counts = counts};
        for (size_t j = 0; j < STK_ARRAY_LEN(in); j++) cr_assert_eq(pinned->inserted(p, in[j], STK_WHY_WARM), 0);
        cr_assert_eq(pinned->touch(p, &event, used, 2), 0);
        expect(p, 6, (const uint32_t[]){9, 1, 5, 16, 4, 3});
        cr_assert_eq(pinned->evicted(p, 9), 0);
        expect(p, 5, (const uint32_t[]){1, 5, 16, 4, 3});
        pinned->close(p);
    }
}

Test(pinned, an_instance_takes_the_entries_of_its_layers) {
    const uint32_t layers[] = {7, 2};
    stk_policy *p = open_pinned("keys=2:1+0:0-15+7:5", layers, 4);
    for (uint32_t key = 16; key < 18; key++) cr_assert_eq(pinned->inserted(p, key, STK_WHY_WARM), 0);
    for (uint32_t key = 5; key < 7; key++) cr_assert_eq(pinned->inserted(p, key, STK_WHY_WARM), 0);
    expect(p, 4, (const uint32_t[]){16, 6, 17, 5});
    pinned->close(p);
}

Test(pinned, a_state_of_other_pins_takes_those_of_the_instance) {
    unsigned char state[512];
    stk_policy *a = open_pinned("keys=0:1", NULL, 4), *b = open_pinned("keys=0:2", NULL, 4);
    for (uint32_t key = 1; key < 4; key++) cr_assert_eq(pinned->inserted(a, key, STK_WHY_WARM), 0);
    expect(a, 3, (const uint32_t[]){2, 3, 1});
    int64_t bytes = pinned->save(a, state, sizeof state);
    cr_assert_eq(pinned->load(b, state, (size_t)bytes), 0);
    expect(b, 3, (const uint32_t[]){3, 1, 2});
    pinned->close(a);
    pinned->close(b);
}

Test(pinned, bad_lists_are_named) {
    static const char *const bad[][2] = {{"keys=0", "LAYER:EXPERT"},    {"keys=0:", "LAYER:EXPERT"}, {"keys=:1", "LAYER:EXPERT"},
                                         {"keys=0:1,1:2", "0:1,1:2"},   {"keys=0:3-2", "0:3-2"},     {"keys=0:1-", "0:1-"},
                                         {"keys=0:16", "expert 16"},    {"keys=9:16", "expert 16"},  {"keys=-1:2", "-1:2"},
                                         {"keys=0:4294967297", "4294"}, {"list=0:1", "list=0:1"},    {"keys=0:1 x", "x"}};
    for (size_t i = 0; i < STK_ARRAY_LEN(bad); i++) {
        const stk_policy_config config = {.n_key = 32, .n_expert = 16, .n_slot = 4, .params = bad[i][0]};
        stk_policy *p;
        cr_assert_eq(pinned->open(&p, &config), STK_EINVAL, "%s", bad[i][0]);
        cr_assert_not_null(strstr(stk_error_detail(), bad[i][1]), "%s", stk_error_detail());
    }
}
