/* tune: the budget, the search, the choice by cross-validation, the profile and the report. */
#include "tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/model/shape.h"
#include "src/text_file.h"

void stk_tune_options_default(stk_tune_options *o, size_t struct_bytes) {
    stk_struct_give(o, struct_bytes, &(stk_tune_options){0}, sizeof *o);
}

/* ---- Begin and end ------------------------------------------------------------------------------------------------------- */

static int take_options(stk_tuning *t, const stk_tune_options *options) {
    stk_tune_options_default(&t->o, sizeof t->o);
    if (options) STK_TRY(stk_struct_take(&t->o, sizeof t->o, options, "tune options"));
    if (t->o.ram_bytes && t->o.fraction != 0) return stk_fail(STK_EINVAL, "bytes and a fraction exclude one another as budgets");
    if (!(t->o.fraction >= 0 && t->o.fraction <= 1))
        return stk_fail(STK_EINVAL, "a fraction of %g of the experts", t->o.fraction);
    t->timed = t->o.io || t->o.cost;
    return STK_OK;
}

static int take_budget(stk_tuning *t) {
    const stk_tune_traces *traces = &t->traces;
    t->ram_bytes = t->o.ram_bytes      ? t->o.ram_bytes
                   : t->o.fraction > 0 ? (uint64_t)(t->o.fraction * (double)traces->all_bytes)
                                       : traces->recorded_bytes;
    t->ram_bytes = STK_MIN(t->ram_bytes, traces->all_bytes);
    if (!t->ram_bytes)
        return stk_fail(STK_EINVAL, "the trace names no budget: say how many bytes or what part of the experts fit");
    if (!traces->sized && (t->o.ram_bytes || t->timed))
        stk_log(STK_LOG_WARN, "%s does not say how large an expert is: %d bytes are assumed", traces->paths[0],
                STK_SOURCE_EXPERT_BYTES);
    return STK_OK;
}

static int check_model(const stk_tuning *t) {
    const stk_tune_traces *traces = &t->traces;
    stk_model_info info = {.struct_bytes = sizeof info};
    if (!t->o.model) return STK_OK;
    STK_TRY(stk_model_get_info(t->o.model, &info));
    if (info.n_moe_layer != traces->n_layer || info.n_expert != traces->n_expert || info.n_expert_used != traces->k)
        return stk_fail(STK_EINVAL, "the trace %s has %u layers of %u experts, %u a token; the model has %u of %u, %u a token",
                        traces->paths[0], traces->n_layer, traces->n_expert, traces->k, info.n_moe_layer, info.n_expert,
                        info.n_expert_used);
    return STK_OK;
}

static uint64_t hash_bytes(uint64_t h, const void *data, size_t bytes) {
    for (const unsigned char *p = data; bytes--; p++) h = (h ^ *p) * 0x100000001b3u;
    return h;
}

/* The content of a cost file counts, not its name. */
static uint64_t hash_cost(uint64_t h, const char *path) {
    char *text;
    size_t bytes;
    if (!path || stk_text_file_load(path, "cost file", 256 << 20, &text, &bytes) < 0) return h;
    h = hash_bytes(h, text, bytes);
    free(text);
    return h;
}

static void hash_state(stk_tuning *t) {
    const char *io = t->o.io ? t->o.io : "", *version = stk_version();
    const uint64_t numbers[] = {t->traces.hash, t->traces.n_step, t->ram_bytes, t->traces.all_bytes, t->o.seed, t->timed};
    uint64_t h = hash_bytes(0xcbf29ce484222325u, numbers, sizeof numbers);
    h = hash_bytes(hash_bytes(h, io, strlen(io)), version, strlen(version));
    t->state_hash = hash_cost(h, t->o.cost);
}

static void finish(stk_tuning *t) {
    stk_tune_traces_close(&t->traces);
    free(t->jobs);
    free(t->kept);
    stk_shape_close(&t->shape);
}

/* ---- The choice ---------------------------------------------------------------------------------------------------------- */

/* The default: lru for all layers, with what the next layer's router named. The search replays it first. */
static uint32_t default_of(const stk_tune_list *list) {
    for (uint32_t i = 0; i < list->n; i++) {
        const stk_tune_config *c = &list->items[i].config;
        bool ahead = strcmp(c->predictor, "gate") == 0 && c->depth == 1;
        if (strcmp(c->policy, "lru") == 0 && c->scope == STK_SCOPE_GLOBAL && (i == 0 || ahead)) return i;
    }
    return 0;
}

/* How much better one is than the other on some parts: of speed, or of misses. */
static double margin_of(const stk_tuning *t, const stk_tune_candidate *is, const stk_tune_candidate *than, uint32_t mask) {
    double a = stk_tune_cost(t, (const stk_tune_sum(*)[2])is->parts, mask),
           b = stk_tune_cost(t, (const stk_tune_sum(*)[2])than->parts, mask);
    if (!isfinite(a) || !isfinite(b) || a == 0 || b == 0) return 0;
    return t->timed ? b / a - 1 : 1 - a / b;
}

static double rate(const stk_tune_sum *s) {
    return s->v[STK_TUNE_LOOKUPS] ? (double)s->v[STK_TUNE_HITS] / (double)s->v[STK_TUNE_LOOKUPS] : 0;
}

static double speed(const stk_tune_sum *s) {
    return s->v[STK_TUNE_STEP_NS] ? (double)s->v[STK_TUNE_TOKENS] * 1e9 / (double)s->v[STK_TUNE_STEP_NS] : 0;
}

/* Whether a part has anything that counts. */
static bool has_part(const stk_tuning *t, const stk_tune_list *list, uint32_t part) {
    return isfinite(stk_tune_cost(t, (const stk_tune_sum(*)[2])list->items[0].parts, 1u << part));
}

/* Each part's margin is that of the candidate that the other parts chose. Figures are sums over parts of these choices. */
static void validate(const stk_tuning *t, const stk_tune_list *list, uint32_t standard, double *margins, stk_tune_result *r) {
    uint32_t all = (1u << t->traces.n_part) - 1;
    stk_tune_sum tuned = {{0}}, plain = stk_tune_total(t, (const stk_tune_sum(*)[2])list->items[standard].parts, all);
    r->margin_low = INFINITY;
    r->margin_high = -INFINITY;
    for (uint32_t p = 0; p < t->traces.n_part; p++) {
        margins[p] = NAN;
        if (!has_part(t, list, p)) continue;
        const stk_tune_candidate *chosen = &list->items[stk_tune_choose(t, list, all & ~(1u << p), NULL)];
        if (t->traces.n_part == 1) chosen = &list->items[stk_tune_choose(t, list, all, NULL)];
        stk_tune_sum s = stk_tune_total(t, (const stk_tune_sum(*)[2])chosen->parts, 1u << p);
        for (int f = 0; f < STK_TUNE_N_FIGURE; f++) tuned.v[f] += s.v[f];
        margins[p] = margin_of(t, chosen, &list->items[standard], 1u << p);
        r->margin_low = fmin(r->margin_low, margins[p]);
        r->margin_high = fmax(r->margin_high, margins[p]);
        r->n_fold++;
    }
    r->hit_rate = rate(&tuned);
    r->default_hit_rate = rate(&plain);
    r->tok_s = speed(&tuned);
    r->default_tok_s = speed(&plain);
    if (t->timed)
        r->margin = r->default_tok_s > 0 ? r->tok_s / r->default_tok_s - 1 : 0;
    else
        r->margin = r->default_hit_rate < 1 ? 1 - (1 - r->hit_rate) / (1 - r->default_hit_rate) : 0;
    if (!isfinite(r->margin_low)) r->margin_low = r->margin_high = 0;
}

static void fill_result(const stk_tuning *t, const stk_tune_list *list, uint32_t best, stk_tune_result *r) {
    const stk_tune_config *c = &list->items[best].config;
    bool ahead = strcmp(c->predictor, "none") != 0;
    uint32_t n_config = 0;
    for (uint32_t i = 0; i < t->n_job; i++) n_config += t->jobs[i].without == STK_TUNE_ALL || t->jobs[i].without == 0;
    r->n_config = n_config;
    r->n_replay = t->n_done;
    r->n_resumed = t->n_resumed;
    r->timed = t->timed;
    r->scope = c->scope;
    r->fitted = c->fitted;
    r->ram_bytes = t->ram_bytes;
    r->fraction = (double)t->ram_bytes / (double)t->traces.all_bytes;
    r->n_sequence = t->traces.n_sequence;
    r->n_token = t->traces.n_token;
    snprintf(r->policy, sizeof r->policy, "%s", c->policy);
    /* Without times nothing says what reading ahead is worth: that stays as it is by default. */
    snprintf(r->predictor, sizeof r->predictor, "%s", t->timed ? c->predictor : "gate");
    r->depth = !t->timed ? 1 : ahead ? c->depth : 0;
}

/* ---- What is written ----------------------------------------------------------------------------------------------------- */

static int best_slots(const stk_tuning *t, const stk_tune_config *c, uint32_t **out) {
    const stk_policy_ops *ops = stk_tune_policy(c);
    *out = NULL;
    if (!c->fitted) return STK_OK;
    *out = calloc(t->traces.n_layer, sizeof **out);
    if (!*out) return stk_fail(STK_ENOMEM, "out of memory for tuning");
    return stk_tune_traces_fit(&t->traces, t->ram_bytes, ops && ops->admit ? t->traces.k : 0, STK_TUNE_ALL, *out);
}

static int save_profile(const stk_tuning *t, const stk_tune_result *r, uint32_t *layer_slots) {
    stk_profile_file p = {.n_layer = t->traces.n_layer,
                          .n_expert = t->traces.n_expert,
                          .k = t->traces.k,
                          .ram_bytes = t->traces.sized ? t->ram_bytes : 0,
                          .fraction = r->fraction,
                          .scope = r->scope,
                          .layer_slots = layer_slots,
                          .depth = r->depth,
                          .tok_s = r->tok_s,
                          .hit_rate = r->hit_rate,
                          .default_tok_s = r->default_tok_s,
                          .default_hit_rate = r->default_hit_rate,
                          .margin = r->margin,
                          .margin_low = r->margin_low,
                          .margin_high = r->margin_high,
                          .bound_hit_rate = r->bound_hit_rate};
    stk_profile_from from = {.traces = t->traces.paths,
                             .n_trace = t->traces.n_path,
                             .n_sequence = r->n_sequence,
                             .n_token = r->n_token,
                             .io = t->o.io ? t->o.io : "",
                             .cost = t->o.cost ? t->o.cost : ""};
    stk_model_info info = {.struct_bytes = sizeof info};
    if (t->o.model) STK_TRY(stk_model_get_info(t->o.model, &info));
    /* Other tools' names of a model are not those of its GGUF file. */
    bool recorded = t->traces.recorded_bytes != 0;
    snprintf(p.model, sizeof p.model, "%s", t->o.model ? info.name : recorded ? t->traces.model : "");
    snprintf(p.policy, sizeof p.policy, "%s", r->policy);
    snprintf(p.predictor, sizeof p.predictor, "%s", r->predictor);
    return stk_profile_file_save(t->o.profile, &p, &from);
}

static int save(stk_tuning *t, const stk_tune_list *list, uint32_t best, const double *margins, const stk_tune_result *r) {
    uint32_t *layer_slots;
    stk_tune_curves curves = {.n_curve = 0};
    int rc = t->o.report ? stk_tune_curves_make(t, list, best, &curves) : STK_OK;
    STK_TRY(rc);
    rc = best_slots(t, &list->items[best].config, &layer_slots);
    if (rc >= 0 && t->o.profile) rc = save_profile(t, r, layer_slots);
    if (rc >= 0 && t->o.report) {
        stk_tune_report report = {
            .tune = t, .result = r, .list = list, .curves = &curves, .best = best, .layer_slots = layer_slots};
        memcpy(report.margins, margins, sizeof report.margins);
        rc = stk_tune_report_save(t->o.report, &report);
    }
    free(layer_slots);
    return rc;
}

/* ---- All of it ----------------------------------------------------------------------------------------------------------- */

/* A search takes minutes: a name that cannot be written is known before it. */
static int try_outputs(const stk_tune_options *o) {
    if (o->profile) STK_TRY(stk_text_file_try(o->profile, "profile"));
    if (o->report) STK_TRY(stk_text_file_try(o->report, "report"));
    return o->state ? stk_text_file_try(o->state, "state of tuning") : STK_OK;
}

static int tune(stk_tuning *t, stk_tune_list *list, stk_tune_result *r) {
    double margins[STK_TUNE_PARTS] = {0};
    STK_TRY(try_outputs(&t->o));
    STK_TRY(stk_tune_traces_open(&t->traces, t->o.progress, t->o.progress_user));
    STK_TRY(check_model(t));
    STK_TRY(take_budget(t));
    t->phase = t->traces.n_decode ? STK_DECODE : STK_PREFILL;
    hash_state(t);
    STK_TRY(stk_tune_state_load(t));
    STK_TRY(stk_tune_search(t, list));
    if (!list->n)
        return stk_fail(STK_EBUDGET, "%llu bytes of expert slots are too few for any cache", (unsigned long long)t->ram_bytes);
    uint32_t all = (1u << t->traces.n_part) - 1, best = stk_tune_choose(t, list, all, &r->n_tied),
             least = stk_tune_least(t, list, all);
    r->tie_margin = margin_of(t, &list->items[least], &list->items[best], all);
    STK_TRY(stk_tune_bound(t, t->ram_bytes, &r->bound_hit_rate));
    STK_TRY(stk_tune_cache(t, &list->items[best].config, &r->cache_hit_rate));
    STK_TRY(stk_tune_cache(t, &list->items[default_of(list)].config, &r->default_cache_hit_rate));
    validate(t, list, default_of(list), margins, r);
    fill_result(t, list, best, r);
    STK_TRY(save(t, list, best, margins, r));
    if (t->o.state) (void)unlink(t->o.state);
    return STK_OK;
}

int stk_tune(const char *const *traces, uint32_t n, const stk_tune_options *options, stk_tune_result *result) {
    stk_tuning t = {.traces = {.paths = traces, .n_path = n}};
    stk_tune_list list = {.n = 0};
    stk_tune_result r = {.n_config = 0};
    if (!traces || !n || !result) return stk_fail(STK_EINVAL, "stk_tune: an argument is NULL");
    for (uint32_t i = 0; i < n; i++)
        if (!traces[i]) return stk_fail(STK_EINVAL, "stk_tune: trace %u is NULL", i);
    if (result->struct_bytes < sizeof result->struct_bytes)
        return stk_fail(STK_EINVAL, "tune result of %u bytes", result->struct_bytes);
    STK_TRY(take_options(&t, options));
    int rc = stk_shape_choose(t.o.model, t.o.model_shape, &t.shape);
    t.traces.source = (stk_source_options){t.o.expert_bytes, rc > 0 ? &t.shape : NULL};
    if (rc >= 0) rc = tune(&t, &list, &r);
    free(list.items);
    finish(&t);
    if (rc < 0) return rc;
    r.struct_bytes = STK_MIN(result->struct_bytes, (uint32_t)sizeof r);
    memcpy(result, &r, r.struct_bytes);
    return STK_OK;
}
