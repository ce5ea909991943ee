/* spec: names with parameters, and the lists of what may be named. */
#include "spec.h"

#include <string.h>

#include "cache/policy.h"
#include "predict/predict.h"

stk_spec stk_spec_parse(const char *text) {
    stk_spec s = {.params = NULL};
    size_t n = strcspn(text, ":");
    memcpy(s.name, text, STK_MIN(n, sizeof s.name - 1));
    if (text[n]) s.params = text + n + 1;
    return s;
}

/* ---- The lists ---------------------------------------------------------------------------------------------------------- */

/* Number i of a list of names, or NULL. */
static const char *name_at(const char *const *names, uint32_t i) {
    for (uint32_t j = 0; names[j]; j++)
        if (j == i) return names[j];
    return NULL;
}

/* Parameter i of a policy: 1, or 0 beyond the last. */
static int policy_param(const stk_policy_ops *ops, uint32_t i, stk_param_info *out) {
    for (uint32_t j = 0; ops->params && ops->params[j].name; j++) {
        const stk_policy_param *p = &ops->params[j];
        if (j == i)
            *out = (stk_param_info){.name = p->name, .what = p->what, .least = p->min, .most = p->max, .initial = p->initial};
        if (j == i) return 1;
    }
    return 0;
}

static int predictor_param(const stk_predictor_ops *ops, uint32_t i, stk_param_info *out) {
    return ops->param ? ops->param(i, out) : 0;
}

/* What is known of entry i of a list; false beyond its end. */
static bool find(uint32_t kind, uint32_t i, const stk_policy_ops **policy, const stk_predictor_ops **predictor) {
    const char *name = name_at(kind == STK_METHOD_POLICY ? stk_policy_names() : stk_predictor_names(), i);
    *policy = name && kind == STK_METHOD_POLICY ? stk_policy_find(name) : NULL;
    *predictor = name && kind == STK_METHOD_PREDICTOR ? stk_predictor_find(name) : NULL;
    return *policy || *predictor;
}

static int check(const char *call, uint32_t kind, const void *info, uint32_t struct_bytes) {
    if (!info || struct_bytes < sizeof struct_bytes) return stk_fail(STK_EINVAL, "%s: an argument is NULL or of no size", call);
    if (kind > STK_METHOD_PREDICTOR) return stk_fail(STK_EINVAL, "%s: no kind %u of method", call, kind);
    return STK_OK;
}

int stk_get_method(uint32_t kind, uint32_t i, stk_method_info *info) {
    const stk_policy_ops *policy;
    const stk_predictor_ops *predictor;
    STK_TRY(check("stk_get_method", kind, info, info ? info->struct_bytes : 0));
    if (!find(kind, i, &policy, &predictor)) return 0;
    stk_method_info full = {.struct_bytes = STK_MIN(info->struct_bytes, (uint32_t)sizeof full),
                            .name = policy ? policy->name : predictor->name,
                            .idea = policy            ? policy->idea
                                    : predictor->idea ? predictor->idea
                                                      : "",
                            .replay_only = policy && policy->needs_future};
    stk_param_info unused;
    while (policy ? policy_param(policy, full.n_param, &unused) : predictor_param(predictor, full.n_param, &unused))
        full.n_param++;
    memcpy(info, &full, full.struct_bytes);
    return 1;
}

int stk_get_method_param(uint32_t kind, uint32_t i, uint32_t param, stk_param_info *info) {
    const stk_policy_ops *policy;
    const stk_predictor_ops *predictor;
    STK_TRY(check("stk_get_method_param", kind, info, info ? info->struct_bytes : 0));
    stk_param_info full;
    if (!find(kind, i, &policy, &predictor)) return 0;
    if (!(policy ? policy_param(policy, param, &full) : predictor_param(predictor, param, &full))) return 0;
    full.struct_bytes = STK_MIN(info->struct_bytes, (uint32_t)sizeof full);
    memcpy(info, &full, full.struct_bytes);
    return 1;
}
