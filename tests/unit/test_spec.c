/* spec: names with parameters, and the lists of policies and predictors: what they say is what the methods take. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "cache/policy.h"
#include "predict/predict.h"
#include "src/spec.h"

Test(spec, a_name_and_its_parameters) {
    stk_spec s = stk_spec_parse("lru");
    cr_assert_str_eq(s.name, "lru");
    cr_assert_null(s.params);
    s = stk_spec_parse("lrfu:decay=0.9,x=1:2");
    cr_assert_str_eq(s.name, "lrfu");
    cr_assert_str_eq(s.params, "decay=0.9,x=1:2");
    s = stk_spec_parse("lrfu:");
    cr_assert_str_eq(s.params, "");
    s = stk_spec_parse("");
    cr_assert_str_eq(s.name, "");
    s = stk_spec_parse("0123456789012345678901234567890123456789:a=1");
    cr_assert_eq(strlen(s.name), STK_SPEC_NAME_BYTES - 1u);
    cr_assert_str_eq(s.params, "a=1");
}

/* Opens a method with "parameter=value": 0 or its error. */
static int try_open(uint32_t kind, const char *name, const char *param, double value) {
    char params[128];
    int rc;
    snprintf(params, sizeof params, "%s=%.9g", param, value);
    if (kind == STK_METHOD_POLICY) {
        const stk_policy_ops *ops = stk_policy_find(name);
        stk_policy *p = NULL;
        rc = ops->open(&p, &(stk_policy_config){.n_key = 32, .n_expert = 8, .n_slot = 8, .params = params});
        if (rc >= 0) ops->close(p);
    } else {
        const stk_predictor_ops *ops = stk_predictor_find(name);
        stk_predictor *p = NULL;
        rc = ops->open(&p, &(stk_predictor_config){.n_layer = 4, .n_expert = 8, .k = 2, .params = params});
        if (rc >= 0) ops->close(p);
    }
    return rc;
}

/* The ends of every range are taken, what lies beyond is refused by name and range. */
static uint32_t check_params(uint32_t kind, uint32_t i, const stk_method_info *m) {
    stk_param_info p = {.struct_bytes = sizeof p};
    uint32_t j = 0;
    for (; stk_get_method_param(kind, i, j, &p) == 1; j++) {
        cr_assert_gt(strlen(p.what), 5, "%s: %s", m->name, p.name);
        cr_assert(p.least <= p.initial && p.initial <= p.most, "%s: %s", m->name, p.name);
        cr_assert_eq(try_open(kind, m->name, p.name, p.least), 0, "%s: %s", m->name, stk_error_detail());
        cr_assert_eq(try_open(kind, m->name, p.name, p.initial), 0, "%s: %s", m->name, stk_error_detail());
        cr_assert_eq(try_open(kind, m->name, p.name, p.most * 2 + 1), STK_EINVAL, "%s: %s", m->name, p.name);
        cr_assert(strstr(stk_error_detail(), p.name) && strstr(stk_error_detail(), m->name), "%s", stk_error_detail());
    }
    cr_assert_eq(j, m->n_param);
    if (m->replay_only) return j;
    cr_assert_eq(try_open(kind, m->name, "nonsense", 1), STK_EINVAL);
    for (uint32_t k = 0; stk_get_method_param(kind, i, k, &p) == 1; k++)
        cr_assert(strstr(stk_error_detail(), p.name), "%s is not listed: %s", p.name, stk_error_detail());
    return j;
}

Test(spec, every_method_is_listed_with_what_it_takes) {
    for (uint32_t kind = STK_METHOD_POLICY; kind <= STK_METHOD_PREDICTOR; kind++) {
        const char *const *names = kind == STK_METHOD_POLICY ? stk_policy_names() : stk_predictor_names();
        stk_method_info m = {.struct_bytes = sizeof m};
        uint32_t n = 0, n_param = 0;
        for (; stk_get_method(kind, n, &m) == 1; n++) {
            cr_assert_str_eq(m.name, names[n]);
            cr_assert_gt(strlen(m.idea), 10, "%s", m.name);
            n_param += check_params(kind, n, &m);
        }
        cr_assert_null(names[n]);
        cr_assert_gt(n_param, 4);
    }
}

Test(spec, wrong_arguments_are_refused) {
    stk_method_info m = {.struct_bytes = sizeof m};
    stk_param_info p = {.struct_bytes = sizeof p};
    cr_assert_eq(stk_get_method(2, 0, &m), STK_EINVAL);
    cr_assert_eq(stk_get_method(STK_METHOD_POLICY, 0, NULL), STK_EINVAL);
    cr_assert_eq(stk_get_method(STK_METHOD_POLICY, 1000, &m), 0);
    cr_assert_eq(stk_get_method_param(STK_METHOD_PREDICTOR, 0, 1000, &p), 0);
    cr_assert_eq(stk_get_method_param(STK_METHOD_PREDICTOR, 1000, 0, &p), 0);
    p.struct_bytes = 0;
    cr_assert_eq(stk_get_method_param(STK_METHOD_POLICY, 0, 0, &p), STK_EINVAL);
}
