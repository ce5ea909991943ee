/* predict: the registry, what the predictors share, and what every predictor owes. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "tests/predict_events.h"

Test(predict, names_and_registry_agree) {
    uint32_t n = 0;
    for (const char *const *name = stk_predictor_names(); *name; name++, n++) {
        const stk_predictor_ops *ops = stk_predictor_find(*name);
        cr_assert_not_null(ops);
        cr_assert_str_eq(ops->name, *name);
        cr_assert(ops->open && ops->close && ops->observe && ops->suggest && !ops->save == !ops->load);
    }
    cr_assert_geq(n, 1);
    cr_assert_null(stk_predictor_find("gat"));
    cr_assert_null(stk_predictor_find(""));
}

Test(predict, sizes_out_of_range_are_refused_by_all) {
    static const stk_predictor_config bad[] = {
        {.n_layer = 0, .n_expert = 8, .k = 2},     {.n_layer = 1, .n_expert = 0, .k = 1},
        {.n_layer = 1, .n_expert = 8, .k = 0},     {.n_layer = 1, .n_expert = 8, .k = 9},
        {.n_layer = 1, .n_expert = 65535, .k = 2}, {.n_layer = 1 << 30, .n_expert = 8, .k = 2}};
    for (const char *const *name = stk_predictor_names(); *name; name++)
        for (size_t i = 0; i < STK_ARRAY_LEN(bad); i++) {
            stk_predictor *p = NULL;
            cr_assert_eq(stk_predictor_find(*name)->open(&p, &bad[i]), STK_EINVAL, "%s takes case %zu", *name, i);
            cr_assert_null(p);
        }
}

Test(predict, parameters_that_nobody_knows_are_refused) {
    for (const char *const *name = stk_predictor_names(); *name; name++) {
        const stk_predictor_config config = {.n_layer = 2, .n_expert = 8, .k = 2, .params = "frobnicate=1"};
        stk_predictor *p = NULL;
        cr_assert_eq(stk_predictor_find(*name)->open(&p, &config), STK_EINVAL);
        cr_assert_not_null(strstr(stk_error_detail(), "frobnicate"));
        cr_assert_null(p);
    }
}

Test(predict, best_first_ties_to_the_lower_id) {
    const float p[] = {0.1f, 0.5f, 0.0f, 0.5f, 0.9f, -1.0f, NAN, 0.1f, 0.5f};
    stk_suggestion out[9];
    cr_assert_eq(stk_predictor_best(p, 9, out, 9), 6);
    static const uint16_t want[] = {4, 1, 3, 8, 0, 7};
    for (int i = 0; i < 6; i++) cr_assert(out[i].expert == want[i] && out[i].p == p[want[i]]);
    cr_assert_eq(stk_predictor_best(p, 9, out, 3), 3);
    for (int i = 0; i < 3; i++) cr_assert_eq(out[i].expert, want[i]);
    cr_assert_eq(stk_predictor_best(p, 9, out, 0), 0);
    cr_assert_eq(stk_predictor_best(p, 0, out, 9), 0);
}

Test(predict, best_equals_a_sort) {
    uint64_t rng = 5;
    for (uint32_t round = 0; round < 300; round++) {
        float p[PE_EXPERT];
        stk_suggestion out[PE_EXPERT];
        uint32_t n = 1 + pe_random(&rng, PE_EXPERT), cap = 1 + pe_random(&rng, n);
        for (uint32_t e = 0; e < n; e++) p[e] = (float)(1 + pe_random(&rng, 20)) / 20.0f;
        int n_out = stk_predictor_best(p, n, out, cap);
        cr_assert_eq(n_out, (int)cap);
        cr_assert(pe_in_order(out, n_out, n));
        uint32_t n_before = 0; /* those that come before the last one */
        for (uint32_t e = 0; e < n; e++) n_before += p[e] > out[cap - 1].p || (p[e] == out[cap - 1].p && e < out[cap - 1].expert);
        cr_assert_eq(n_before, cap - 1);
    }
}

Test(predict, none_of_n_tokens) {
    cr_assert_eq(stk_predictor_none(0.25f, 0), 1.0f);
    cr_assert_eq(stk_predictor_none(0.25f, 1), 0.75f);
    cr_assert_eq(stk_predictor_none(0.5f, 5), 0.03125f);
    cr_assert_eq(stk_predictor_none(0.0f, 1000000), 1.0f);
    cr_assert_eq(stk_predictor_none(1.0f, 3), 0.0f);
}
