/*
 * tune_search: which configurations are replayed. Coarse to fine: caches alone first, without times and without reading ahead,
 * every policy as it comes, for all layers together, by layer, and with slots fitted to each layer; then the parameters of
 * policies, from steps across their range to steps half as wide around the best; then the best few with times and what was
 * recorded as read ahead; every predictor with the best of these, and the parameters of the best predictors likewise.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "predict/predict.h"
#include "tune.h"

enum { SHORTLIST = 4, PREDICTORS = 2, FINE_ROUNDS = 2, MOST_CANDIDATES = 512 };
enum { PREDICTOR_STEPS = 40 }; /* replays that their parameters take, about */

/* Predictors that work on events alone. */
static const char *const event_predictors[] = {"popularity", "previous", "history", "transition", "crosslayer",
                                               "tokenid",    "matrices", "path",    "mix"};

stk_tune_sum stk_tune_total(const stk_tuning *t, const stk_tune_sum parts[STK_TUNE_PARTS][2], uint32_t mask) {
    stk_tune_sum sum = {{0}};
    for (uint32_t p = 0; p < t->traces.n_part; p++)
        for (int f = 0; mask >> p & 1 && f < STK_TUNE_N_FIGURE; f++) sum.v[f] += parts[p][t->phase].v[f];
    return sum;
}

double stk_tune_cost(const stk_tuning *t, const stk_tune_sum parts[STK_TUNE_PARTS][2], uint32_t mask) {
    stk_tune_sum s = stk_tune_total(t, parts, mask);
    if (!s.v[STK_TUNE_LOOKUPS] || !s.v[STK_TUNE_TOKENS]) return INFINITY;
    if (t->timed && s.v[STK_TUNE_STEP_NS]) return (double)s.v[STK_TUNE_STEP_NS] / (double)s.v[STK_TUNE_TOKENS];
    return (double)(s.v[STK_TUNE_LOOKUPS] - s.v[STK_TUNE_HITS]) / (double)s.v[STK_TUNE_LOOKUPS];
}

/* ---- Caches alone -------------------------------------------------------------------------------------------------------- */

/* Misses of a lookup over all parts, infinite where the budget was too small. */
static double misses(const stk_tuning *t, uint32_t job) {
    stk_tune_sum s = stk_tune_total(t, (const stk_tune_sum(*)[2])t->jobs[job].sums, UINT32_MAX);
    if (!s.v[STK_TUNE_LOOKUPS]) return INFINITY;
    return (double)(s.v[STK_TUNE_LOOKUPS] - s.v[STK_TUNE_HITS]) / (double)s.v[STK_TUNE_LOOKUPS];
}

static stk_tune_config cache_config(const stk_tuning *t, const char *policy, uint32_t scope, bool fitted) {
    stk_tune_config c = {.predictor = "none", .scope = scope, .fitted = fitted, .ram_bytes = t->ram_bytes};
    snprintf(c.policy, sizeof c.policy, "%s", policy);
    return c;
}

static int add_caches(stk_tuning *t) {
    for (const char *const *name = stk_policy_names(); *name; name++) {
        if (stk_policy_find(*name)->needs_future) continue;
        stk_tune_config all = cache_config(t, *name, STK_SCOPE_GLOBAL, false);
        stk_tune_config layer = cache_config(t, *name, STK_SCOPE_LAYER, false);
        stk_tune_config fitted = cache_config(t, *name, STK_SCOPE_LAYER, true);
        STK_TRY(stk_tune_add(t, &all, STK_TUNE_ALL));
        STK_TRY(stk_tune_add(t, &layer, STK_TUNE_ALL));
        STK_TRY(stk_tune_add(t, &fitted, STK_TUNE_ALL));
    }
    return STK_OK;
}

static bool is_cache(const stk_tuning *t, const stk_tune_job *job) {
    return !job->config.timed && strcmp(job->config.predictor, "none") == 0 && job->without == STK_TUNE_ALL &&
           job->config.ram_bytes == t->ram_bytes && !stk_tune_policy(&job->config)->needs_future;
}

/* The best cache of a policy so far, whatever its parameters; `scope` too where it is not -1. A negative number: none. */
static int best_of(const stk_tuning *t, const stk_policy_ops *policy) {
    int best = -1;
    for (uint32_t i = 0; i < t->n_job; i++) {
        const stk_tune_job *job = &t->jobs[i];
        if (!job->done || !is_cache(t, job) || stk_tune_policy(&job->config) != policy) continue;
        if (best < 0 || misses(t, i) < misses(t, (uint32_t)best)) best = (int)i;
    }
    return best;
}

/* ---- Parameters ---------------------------------------------------------------------------------------------------------- */

/* Configurations that were replayed and differ from this one in its policy's or predictor's parameters alone, itself too. */
static uint32_t siblings(const stk_tuning *t, const stk_tune_config *of, uint32_t kind, stk_tune_config *out, uint32_t room) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_job && n < room; i++) {
        stk_tune_config c = t->jobs[i].config, same = *of;
        if (!t->jobs[i].done || !stk_tune_same_method(&c, of, kind)) continue;
        memcpy(stk_tune_spec(&same, kind), stk_tune_spec(&c, kind), STK_SPEC_BYTES);
        if (stk_tune_same(&c, &same)) out[n++] = c;
    }
    return n;
}

static int step(const stk_tuning *t, const stk_tune_config *best, uint32_t kind, bool coarse, stk_tune_trials *out) {
    if (coarse) {
        stk_tune_coarse(best, kind, out);
        return STK_OK;
    }
    stk_tune_config *tried = calloc(t->n_job, sizeof *tried);
    if (!tried) return stk_fail(STK_ENOMEM, "out of memory for tuning");
    stk_tune_fine(best, kind, tried, siblings(t, best, kind, tried, t->n_job), out);
    free(tried);
    return STK_OK;
}

/* Of every policy's best cache. */
static int add_params(stk_tuning *t, bool coarse) {
    for (const char *const *name = stk_policy_names(); *name; name++) {
        stk_tune_trials trials;
        int at = best_of(t, stk_policy_find(*name));
        if (at < 0 || isinf(misses(t, (uint32_t)at))) continue;
        stk_tune_config best = t->jobs[at].config;
        STK_TRY(step(t, &best, STK_METHOD_POLICY, coarse, &trials));
        for (uint32_t i = 0; i < trials.n; i++) STK_TRY(stk_tune_add(t, &trials.items[i], STK_TUNE_ALL));
    }
    return STK_OK;
}

/* ---- Candidates ---------------------------------------------------------------------------------------------------------- */

/* Asks for the replays that a candidate's figures come from. */
static int ask(stk_tuning *t, const stk_tune_config *c) {
    if (!c->fitted) return stk_tune_add(t, c, STK_TUNE_ALL);
    for (uint32_t p = 0; p < t->traces.n_part; p++) STK_TRY(stk_tune_add(t, c, (int)p));
    return STK_OK;
}

/* Adds a candidate whose replays are done. */
static int collect(stk_tuning *t, const stk_tune_config *c, stk_tune_list *list) {
    for (uint32_t i = 0; i < list->n; i++)
        if (stk_tune_same(&list->items[i].config, c)) return STK_OK;
    if (list->n == MOST_CANDIDATES) return STK_OK;
    stk_tune_candidate *to = &list->items[list->n];
    *to = (stk_tune_candidate){.config = *c};
    for (uint32_t p = 0; p < t->traces.n_part; p++) {
        int job = stk_tune_add(t, c, c->fitted ? (int)p : STK_TUNE_ALL);
        if (job < 0) return job;
        memcpy(to->parts[p], t->jobs[job].sums[p], sizeof to->parts[p]);
    }
    list->n += isfinite(stk_tune_cost(t, (const stk_tune_sum(*)[2])to->parts, UINT32_MAX));
    return STK_OK;
}

/* The best caches: one of each policy, and lru for all layers in any case. Returns how many. */
static uint32_t shortlist(const stk_tuning *t, stk_tune_config *out) {
    uint32_t n = 0;
    int jobs[64];
    out[n++] = cache_config(t, "lru", STK_SCOPE_GLOBAL, false);
    uint32_t n_best = 0;
    for (const char *const *name = stk_policy_names(); *name && n_best < STK_ARRAY_LEN(jobs); name++) {
        int best = stk_policy_find(*name)->needs_future ? -1 : best_of(t, stk_policy_find(*name));
        if (best >= 0 && isfinite(misses(t, (uint32_t)best))) jobs[n_best++] = best;
    }
    for (uint32_t round = 0; round < SHORTLIST && n < SHORTLIST + 1; round++) {
        uint32_t best = n_best;
        for (uint32_t i = 0; i < n_best; i++)
            if (jobs[i] >= 0 && (best == n_best || misses(t, (uint32_t)jobs[i]) < misses(t, (uint32_t)jobs[best]))) best = i;
        if (best == n_best) break;
        if (!stk_tune_same(&t->jobs[jobs[best]].config, &out[0])) out[n++] = t->jobs[jobs[best]].config;
        jobs[best] = -1;
    }
    return n;
}

static stk_tune_config with_predictor(const stk_tune_config *c, const char *predictor, uint32_t depth, bool timed) {
    stk_tune_config out = *c;
    snprintf(out.predictor, sizeof out.predictor, "%s", predictor);
    out.depth = depth;
    out.timed = timed;
    return out;
}

typedef struct set {
    stk_tune_config items[MOST_CANDIDATES];
    uint32_t n;
} set;

static void put(set *s, stk_tune_config c) {
    for (uint32_t i = 0; i < s->n; i++)
        if (stk_tune_same(&s->items[i], &c)) return;
    if (s->n < MOST_CANDIDATES) s->items[s->n++] = c;
}

/* Runs what a set asks for and adds it to the candidates. */
static int settle(stk_tuning *t, const set *s, stk_tune_list *list) {
    for (uint32_t i = 0; i < s->n; i++) STK_TRY(ask(t, &s->items[i]));
    STK_TRY(stk_tune_run(t));
    for (uint32_t i = 0; i < s->n; i++) STK_TRY(collect(t, &s->items[i], list));
    return STK_OK;
}

/* ---- Predictors ---------------------------------------------------------------------------------------------------------- */

static double job_cost(const stk_tuning *t, uint32_t i) {
    return stk_tune_cost(t, (const stk_tune_sum(*)[2])t->jobs[i].sums, UINT32_MAX);
}

/* The best of so many predictors that were tried with a cache, one layer ahead, each with its best parameters. Returns how many
 * there are. */
static uint32_t best_predictors(const stk_tuning *t, const stk_tune_config *cache, stk_tune_config *out) {
    uint32_t n = 0;
    for (; n < PREDICTORS; n++) {
        uint32_t best = t->n_job;
        for (uint32_t i = 0; i < t->n_job; i++) {
            const stk_tune_config *c = &t->jobs[i].config;
            stk_tune_config same = with_predictor(cache, c->predictor, 1, true);
            bool out_of_it = !t->jobs[i].done || t->jobs[i].without != STK_TUNE_ALL || !stk_tune_same(c, &same) ||
                             strcmp(c->predictor, "gate") == 0 || strcmp(c->predictor, "none") == 0;
            for (uint32_t k = 0; k < n; k++) out_of_it = out_of_it || stk_tune_same_method(c, &out[k], STK_METHOD_PREDICTOR);
            if (!out_of_it && isfinite(job_cost(t, i)) && (best == t->n_job || job_cost(t, i) < job_cost(t, best))) best = i;
        }
        if (best == t->n_job) break;
        out[n] = t->jobs[best].config;
    }
    return n;
}

/* Every predictor one layer ahead of a cache, then the parameters of the best: across their range, and around the best. */
static int search_predictors(stk_tuning *t, const stk_tune_config *cache) {
    for (size_t i = 0; i < STK_ARRAY_LEN(event_predictors); i++) {
        stk_tune_config c = with_predictor(cache, event_predictors[i], 1, true);
        STK_TRY(stk_tune_add(t, &c, STK_TUNE_ALL));
    }
    STK_TRY(stk_tune_run(t));
    for (int round = 0; round <= FINE_ROUNDS; round++) {
        stk_tune_config best[PREDICTORS];
        uint32_t n = best_predictors(t, cache, best);
        for (uint32_t i = 0; i < n; i++) {
            stk_tune_trials trials;
            STK_TRY(step(t, &best[i], STK_METHOD_PREDICTOR, round == 0, &trials));
            for (uint32_t k = 0; k < trials.n; k++) STK_TRY(stk_tune_add(t, &trials.items[k], STK_TUNE_ALL));
        }
        STK_TRY(stk_tune_run(t));
    }
    return STK_OK;
}

/* With times: what was recorded as read ahead by depth, and nothing, for every cache of the shortlist; then predictors with the
 * best cache; the best of them with the other caches and further ahead. */
static int search_timed(stk_tuning *t, const stk_tune_config *caches, uint32_t n, set *s, stk_tune_list *list) {
    stk_tune_config own[PREDICTORS];
    s->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t d = 1; d <= t->traces.n_ahead; d++) put(s, with_predictor(&caches[i], "gate", d, true));
        put(s, with_predictor(&caches[i], "none", 0, true));
    }
    STK_TRY(settle(t, s, list));
    if (!list->n) return STK_OK;
    stk_tune_config best = list->items[stk_tune_least(t, list, UINT32_MAX)].config;
    STK_TRY(search_predictors(t, &best));
    uint32_t n_own = best_predictors(t, &best, own);
    s->n = 0;
    for (uint32_t p = 0; p < n_own; p++)
        for (uint32_t d = 1; d <= STK_PREDICT_DEPTH_MAX; d++) put(s, with_predictor(&best, own[p].predictor, d, true));
    STK_TRY(settle(t, s, list));
    s->n = 0;
    best = list->items[stk_tune_least(t, list, UINT32_MAX)].config;
    bool events = strcmp(best.predictor, "gate") != 0 && strcmp(best.predictor, "none") != 0;
    for (uint32_t i = 0; i < n && events; i++) put(s, with_predictor(&caches[i], best.predictor, best.depth, true));
    return settle(t, s, list);
}

static int search(stk_tuning *t, set *s, stk_tune_list *list) {
    stk_tune_config caches[SHORTLIST + 1];
    STK_TRY(add_caches(t));
    STK_TRY(stk_tune_run(t));
    STK_TRY(add_params(t, true));
    STK_TRY(stk_tune_run(t));
    for (int round = 0; round < FINE_ROUNDS; round++) {
        STK_TRY(add_params(t, false));
        STK_TRY(stk_tune_run(t));
    }
    uint32_t n = shortlist(t, caches);
    uint32_t per_cache = 1;
    for (uint32_t i = 0; i < n; i++) per_cache += caches[i].fitted ? t->traces.n_part : 1;
    t->n_expected = t->n_job + (t->timed ? per_cache * (t->traces.n_ahead + 1) + STK_ARRAY_LEN(event_predictors) + PREDICTOR_STEPS
                                         : per_cache);
    t->n_expected += t->o.report ? STK_TUNE_BUDGETS * (STK_TUNE_CURVES - 2) : 1;
    if (t->timed) return search_timed(t, caches, n, s, list);
    for (uint32_t i = 0; i < n; i++) put(s, caches[i]);
    return settle(t, s, list);
}

int stk_tune_search(stk_tuning *t, stk_tune_list *list) {
    enum { EXPECTED = 160 };
    set *s = calloc(1, sizeof *s);
    list->items = calloc(MOST_CANDIDATES, sizeof *list->items);
    t->n_expected = t->n_done + EXPECTED;
    int rc = s && list->items ? STK_OK : stk_fail(STK_ENOMEM, "out of memory for tuning");
    if (rc >= 0) rc = search(t, s, list);
    free(s);
    return rc;
}

/* ---- Bound and curves ---------------------------------------------------------------------------------------------------- */

static int bound_job(stk_tuning *t, uint64_t ram_bytes) {
    stk_tune_config c = cache_config(t, "belady-bypass", STK_SCOPE_GLOBAL, false);
    c.ram_bytes = ram_bytes;
    return stk_tune_add(t, &c, STK_TUNE_ALL);
}

static int hits_of(stk_tuning *t, int job, double *hit_rate) {
    if (job < 0) return job;
    STK_TRY(stk_tune_run(t));
    double m = misses(t, (uint32_t)job);
    *hit_rate = isfinite(m) ? 1 - m : 0;
    return STK_OK;
}

int stk_tune_bound(stk_tuning *t, uint64_t ram_bytes, double *hit_rate) { return hits_of(t, bound_job(t, ram_bytes), hit_rate); }

int stk_tune_cache(stk_tuning *t, const stk_tune_config *config, double *hit_rate) {
    stk_tune_config c = with_predictor(config, "none", 0, false);
    return hits_of(t, stk_tune_add(t, &c, STK_TUNE_ALL), hit_rate);
}

/* Curves: lru, the best cache, then the best of other policies; the bound. */
static uint32_t curve_configs(const stk_tuning *t, const stk_tune_list *list, uint32_t best, stk_tune_config *out) {
    stk_tune_config caches[SHORTLIST + 1];
    uint32_t n = 0, n_cache = shortlist(t, caches);
    out[n++] = caches[0];
    out[n] = with_predictor(&list->items[best].config, "none", 0, false);
    n += !stk_tune_same(&out[n], &out[0]);
    for (uint32_t i = 1; i < n_cache && n < STK_TUNE_CURVES - 1; i++) {
        bool known = false;
        for (uint32_t j = 0; j < n; j++) known = known || stk_tune_policy(&out[j]) == stk_tune_policy(&caches[i]);
        if (!known) out[n++] = caches[i];
    }
    return n;
}

int stk_tune_curves_make(stk_tuning *t, const stk_tune_list *list, uint32_t best, stk_tune_curves *curves) {
    static const double fractions[STK_TUNE_BUDGETS] = {0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.7, 0.9};
    stk_tune_config configs[STK_TUNE_CURVES];
    int jobs[STK_TUNE_CURVES][STK_TUNE_BUDGETS];
    uint32_t n = curve_configs(t, list, best, configs);
    *curves = (stk_tune_curves){.n_budget = STK_TUNE_BUDGETS, .n_curve = n + 1};
    t->n_expected = t->n_done + (n + 1) * STK_TUNE_BUDGETS;
    for (uint32_t b = 0; b < STK_TUNE_BUDGETS; b++) {
        uint64_t bytes = (uint64_t)(fractions[b] * (double)t->traces.all_bytes);
        curves->fractions[b] = fractions[b];
        for (uint32_t i = 0; i <= n; i++) {
            if (i < n) configs[i].ram_bytes = bytes;
            jobs[i][b] = i < n ? stk_tune_add(t, &configs[i], STK_TUNE_ALL) : bound_job(t, bytes);
            if (jobs[i][b] < 0) return jobs[i][b];
        }
    }
    STK_TRY(stk_tune_run(t));
    for (uint32_t i = 0; i <= n; i++) {
        const char *scope = i == n || configs[i].scope == STK_SCOPE_GLOBAL ? "" : configs[i].fitted ? ", fitted" : ", by layer";
        snprintf(curves->names[i], sizeof curves->names[i], "%.31s%s",
                 i < n ? stk_tune_policy(&configs[i])->name : "belady-bypass", scope);
        for (uint32_t b = 0; b < STK_TUNE_BUDGETS; b++) curves->rates[i][b] = 1 - misses(t, (uint32_t)jobs[i][b]);
    }
    return STK_OK;
}
