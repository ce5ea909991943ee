/* tune_choice: the simplest of the configurations that are as good as the best. */
#include <math.h>
#include <string.h>

#include "tune.h"

/* A replay repeats to the bit, but tells of a run to no better than this. */
static const double tie_share = 0.005;

uint32_t stk_tune_least(const stk_tuning *t, const stk_tune_list *list, uint32_t mask) {
    uint32_t best = 0;
    double least = INFINITY;
    for (uint32_t i = 0; i < list->n; i++) {
        double cost = stk_tune_cost(t, (const stk_tune_sum(*)[2])list->items[i].parts, mask);
        if (cost >= least) continue;
        least = cost;
        best = i;
    }
    return best;
}

/* What a run has to be told: the less, the simpler. The default has nothing to say. */
static uint32_t words_of(const stk_tuning *t, const stk_tune_config *c) {
    const char *standard = t->traces.n_ahead || !t->timed ? "gate" : "none";
    uint32_t n = stk_tune_n_set(c->policy) + (strcmp(stk_spec_parse(c->policy).name, "lru") != 0);
    n += (c->scope == STK_SCOPE_LAYER) + 2 * c->fitted;
    if (!t->timed) return n;
    return n + stk_tune_n_set(c->predictor) + (strcmp(c->predictor, standard) != 0) + (c->depth > 1 ? c->depth - 1 : 0);
}

/* How much more one costs than another, part by part: the mean of the differences as a share of the other's cost, and the
 * standard error of that mean. */
static double excess(const stk_tuning *t, const stk_tune_candidate *is, const stk_tune_candidate *than, uint32_t mask,
                     double *error) {
    double d[STK_TUNE_PARTS], mean = 0, square = 0;
    uint32_t n = 0;
    for (uint32_t p = 0; p < t->traces.n_part; p++) {
        double a = stk_tune_cost(t, (const stk_tune_sum(*)[2])is->parts, mask & 1u << p),
               b = stk_tune_cost(t, (const stk_tune_sum(*)[2])than->parts, mask & 1u << p);
        if (isfinite(a) && isfinite(b) && b > 0) d[n++] = a / b - 1;
    }
    for (uint32_t i = 0; i < n; i++) mean += d[i] / n;
    for (uint32_t i = 0; i < n; i++) square += (d[i] - mean) * (d[i] - mean);
    *error = n > 1 ? sqrt(square / (n - 1) / n) : 0;
    return mean;
}

/* Whether a candidate is as good as the best, for all that these parts can tell. */
static bool is_tied(const stk_tuning *t, const stk_tune_candidate *c, const stk_tune_candidate *best, uint32_t mask) {
    double error, more = excess(t, c, best, mask, &error);
    return c == best || more <= fmax(error, tie_share);
}

uint32_t stk_tune_choose(const stk_tuning *t, const stk_tune_list *list, uint32_t mask, uint32_t *n_tied) {
    uint32_t best = stk_tune_least(t, list, mask), chosen = best, n = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        const stk_tune_candidate *c = &list->items[i], *now = &list->items[chosen];
        if (!is_tied(t, c, &list->items[best], mask)) continue;
        n++;
        uint32_t words = words_of(t, &c->config), least = words_of(t, &now->config);
        double cost = stk_tune_cost(t, (const stk_tune_sum(*)[2])c->parts, mask),
               cost_now = stk_tune_cost(t, (const stk_tune_sum(*)[2])now->parts, mask);
        if (words < least || (words == least && cost < cost_now)) chosen = i;
    }
    if (n_tied) *n_tied = n;
    return chosen;
}
