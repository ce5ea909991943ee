/* engine_options: what the caller, a profile and the defaults say, and what follows from it before anything is opened. */
#include <stdio.h>
#include <string.h>

#include "engine.h"

enum { DEFAULT_CTX = 4096, DEFAULT_BATCH = 512, MAX_SEQ = 4096, MAX_BATCH = 65536 };

void stk_engine_options_default(stk_engine_options *o, size_t struct_bytes) {
    stk_struct_give(o, struct_bytes, &(stk_engine_options){0}, sizeof *o);
}

/* Takes the caller's struct, of whatever size it was compiled with, and fills in what was left at 0. */
static int fill_options(stk_engine_options *o, const stk_engine_options *given, const stk_hparams *hp) {
    stk_engine_options_default(o, sizeof *o);
    if (given) STK_TRY(stk_struct_take(o, sizeof *o, given, "engine options"));
    if (o->n_ctx == 0) o->n_ctx = STK_MIN(hp->n_ctx_train, (uint32_t)DEFAULT_CTX);
    if (o->n_seq_max == 0) o->n_seq_max = 1;
    if (o->n_batch == 0) o->n_batch = STK_MIN(o->n_ctx, (uint32_t)DEFAULT_BATCH);
    if (o->n_logits == 0) o->n_logits = STK_MIN(o->n_seq_max, o->n_batch);
    if (o->n_ctx > (1u << 30)) return stk_fail(STK_EINVAL, "a context of %u positions; at most 2^30 are possible", o->n_ctx);
    if (o->n_seq_max > MAX_SEQ) return stk_fail(STK_EINVAL, "%u sequences; at most %d are possible", o->n_seq_max, MAX_SEQ);
    if (o->n_batch > MAX_BATCH)
        return stk_fail(STK_EINVAL, "a batch of %u tokens; at most %d are possible", o->n_batch, MAX_BATCH);
    if (o->n_logits > o->n_batch)
        return stk_fail(STK_EINVAL, "logits of %u tokens a step of at most %u", o->n_logits, o->n_batch);
    if (o->kv_k_type > STK_KV_F32 || o->kv_v_type > STK_KV_F32)
        return stk_fail(STK_EINVAL, "KV cache types %u and %u; f16 (0) and f32 (1) exist", o->kv_k_type, o->kv_v_type);
    if (o->float_mode > STK_FLOAT_FAST) return stk_fail(STK_EINVAL, "float mode %u; exact (0) and fast (1) exist", o->float_mode);
    if (o->hooks && o->policy) return stk_fail(STK_EINVAL, "policy '%s' and hooks of another exclude one another", o->policy);
    if (o->predictor && o->predictor_hooks)
        return stk_fail(STK_EINVAL, "predictor '%s' and hooks of another exclude one another", o->predictor);
    if (o->predict_depth > STK_PREDICT_DEPTH_MAX)
        return stk_fail(STK_EINVAL, "predicting %u layers ahead; at most %d are possible", o->predict_depth,
                        STK_PREDICT_DEPTH_MAX);
    if (o->scope && strcmp(o->scope, "global") != 0 && strcmp(o->scope, "layer") != 0)
        return stk_fail(STK_EINVAL, "scope '%s'; there are global and layer", o->scope);
    return STK_OK;
}

/* The options that were left open are as the profile says. */
static int take_profile(stk_engine *e) {
    stk_engine_options *o = &e->o;
    stk_profile_file *p = &e->profile;
    const stk_catalogue *cat = e->model->experts;
    if (!o->profile) return STK_OK;
    STK_TRY(stk_profile_file_load(o->profile, p));
    STK_TRY(stk_profile_file_check(p, o->profile, e->model->name, stk_catalogue_n_layer(cat), stk_catalogue_n_expert(cat),
                                   e->model->hp.n_expert_used));
    if (!o->ram_bytes) o->ram_bytes = p->ram_bytes ? p->ram_bytes : (uint64_t)(p->fraction * (double)stk_slots_all_bytes(cat));
    if (!o->policy && !o->hooks) o->policy = p->policy;
    if (!o->scope) o->scope = p->scope == STK_SCOPE_LAYER ? "layer" : "global";
    if (!o->predictor && !o->predictor_hooks) {
        o->predictor = p->predictor;
        if (!o->predict_depth) o->predict_depth = p->depth;
    }
    return STK_OK;
}

static int choose_scope(stk_engine *e) {
    e->experts = e->model->experts;
    if (!e->o.scope || strcmp(e->o.scope, "layer") != 0) return STK_OK;
    STK_TRY(stk_catalogue_by_layer(&e->own_experts, e->experts));
    e->experts = e->own_experts;
    return STK_OK;
}

/* Keeps what a user named: the caller's text ends with the call. */
static int keep_spec(const char *what, const char *given, char kept[STK_SPEC_BYTES]) {
    if (strlen(given) >= STK_SPEC_BYTES)
        return stk_fail(STK_EINVAL, "%s \"%.40s...\" is longer than %d bytes", what, given, STK_SPEC_BYTES - 1);
    strcpy(kept, given);
    return STK_OK;
}

static int choose_predictor(stk_engine *e) {
    const char *text = e->o.predictor ? e->o.predictor : "gate";
    if (e->o.predict_depth == 0) e->o.predict_depth = 1;
    if (e->o.predictor_hooks) {
        STK_TRY(stk_predictor_user_init(&e->predictor_user, e->o.predictor_hooks, e->o.predict_depth));
        e->o.predictor_hooks = NULL;
        return keep_spec("predictor", e->predictor_user.ops.name, e->predictor_text);
    }
    if (strcmp(text, "none") == 0) return STK_OK;
    STK_TRY(keep_spec("predictor", text, e->predictor_text));
    stk_spec spec = stk_spec_parse(text);
    if (stk_predictor_find(spec.name)) return STK_OK;
    char all[256] = "none";
    for (const char *const *name = stk_predictor_names(); *name; name++)
        snprintf(all + strlen(all), sizeof all - strlen(all), ", %s", *name);
    return stk_fail(STK_EINVAL, "there is no predictor \"%s\"; there are: %s", spec.name, all);
}

/* A policy that may refuse an expert needs k slots of each class aside for those. */
static int choose_policy(stk_engine *e) {
    const stk_policy_ops *ops;
    if (e->o.hooks) {
        STK_TRY(stk_policy_user_init(&e->policy_user, e->o.hooks));
        e->o.hooks = NULL;
        ops = &e->policy_user.ops;
        STK_TRY(keep_spec("policy", ops->name, e->policy_text));
        strncpy(e->policy.name, ops->name, sizeof e->policy.name - 1);
    } else {
        STK_TRY(keep_spec("policy", e->o.policy ? e->o.policy : "lru", e->policy_text));
        e->policy = stk_spec_parse(e->policy_text);
        ops = stk_policy_find(e->policy.name);
    }
    if (ops && ops->admit) e->n_transit = e->model->hp.n_expert_used;
    return STK_OK;
}

int stk_engine_take_options(stk_engine *e, const stk_engine_options *given) {
    STK_TRY(fill_options(&e->o, given, &e->model->hp));
    STK_TRY(take_profile(e));
    STK_TRY(choose_scope(e));
    STK_TRY(choose_predictor(e));
    return choose_policy(e);
}
