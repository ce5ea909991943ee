/* tune_choice: the simplest of those that are as good as the best; noise is told from a gain by how parts agree. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "src/tune/tune.h"

enum { PARTS = 4, ROOM = 4 };

static stk_tune_candidate items[ROOM];
static stk_tune_list list;
static stk_tuning tuning;

static void begin(void) {
    tuning = (stk_tuning){.traces = {.n_part = PARTS, .n_ahead = 1}, .phase = STK_DECODE, .timed = true};
    list = (stk_tune_list){.items = items, .n = 0};
}
TestSuite(tune_choice, .init = begin);

/* Times of a token in us, part by part. */
static uint32_t add(const char *policy, const char *predictor, const double us[PARTS]) {
    stk_tune_candidate *c = &items[list.n];
    *c = (stk_tune_candidate){.config = {.depth = 1, .timed = true}};
    snprintf(c->config.policy, sizeof c->config.policy, "%s", policy);
    snprintf(c->config.predictor, sizeof c->config.predictor, "%s", predictor);
    for (int p = 0; p < PARTS; p++) {
        c->parts[p][STK_DECODE].v[STK_TUNE_TOKENS] = 100;
        c->parts[p][STK_DECODE].v[STK_TUNE_LOOKUPS] = 1000;
        c->parts[p][STK_DECODE].v[STK_TUNE_STEP_NS] = (uint64_t)(us[p] * 1e5);
    }
    return list.n++;
}

static uint32_t choose(uint32_t *n_tied) { return stk_tune_choose(&tuning, &list, (1u << PARTS) - 1, n_tied); }

Test(tune_choice, a_gain_on_every_part_is_one) {
    uint32_t n;
    add("lru", "gate", (double[]){100, 120, 90, 110});
    uint32_t better = add("lrfu:decay=0.9", "mix:rate=0.1", (double[]){97, 116, 87, 107});
    cr_assert_eq(choose(&n), better);
    cr_assert_eq(n, 1);
}

Test(tune_choice, what_parts_disagree_on_is_noise) {
    uint32_t n, plain = add("lru", "gate", (double[]){100, 120, 90, 110});
    uint32_t lucky = add("lrfu:decay=0.9", "gate", (double[]){80, 125, 92, 112});
    cr_assert_eq(stk_tune_least(&tuning, &list, (1u << PARTS) - 1), lucky);
    cr_assert_eq(choose(&n), plain, "one part alone speaks for it");
    cr_assert_eq(n, 2);
}

Test(tune_choice, less_than_half_a_percent_is_nothing) {
    uint32_t n, plain = add("lru", "gate", (double[]){100, 100, 100, 100});
    add("s3fifo:small=0.2,ghost=2", "gate", (double[]){99.6, 99.6, 99.6, 99.6});
    cr_assert_eq(choose(&n), plain);
    cr_assert_eq(n, 2);
}

Test(tune_choice, the_fewer_words_the_simpler) {
    uint32_t n;
    add("lru", "gate", (double[]){100, 100, 100, 100});
    add("slru:protected=0.5", "history:keep=0.9", (double[]){50, 50, 50, 50});
    uint32_t simple = add("slru", "gate", (double[]){50.1, 50.1, 50.1, 50.1});
    add("slru:protected=0.6", "gate", (double[]){50.05, 50.05, 50.05, 50.05});
    cr_assert_eq(choose(&n), simple);
    cr_assert_eq(n, 3, "the default is not among them");
}

Test(tune_choice, among_equally_simple_ones_the_quickest) {
    add("lfu", "gate", (double[]){50.1, 50.1, 50.1, 50.1});
    uint32_t quick = add("slru", "gate", (double[]){50, 50, 50, 50});
    cr_assert_eq(choose(NULL), quick);
}

static bool tried(const stk_tune_trials *t, const char *spec) {
    for (uint32_t i = 0; i < t->n; i++)
        if (strcmp(t->items[i].policy, spec) == 0 || strcmp(t->items[i].predictor, spec) == 0) return true;
    return false;
}

/* Parameters: across the range first, then halfway to what was tried. */
Test(tune_choice, parameters_from_coarse_to_fine) {
    stk_tune_trials t;
    stk_tune_config c = {.policy = "lrfu", .predictor = "mix"};
    stk_tune_coarse(&c, STK_METHOD_POLICY, &t);
    cr_assert_geq(t.n, 3);
    cr_assert(tried(&t, "lrfu:decay=0.97") && !tried(&t, "lrfu"), "%s", t.items[0].policy);
    stk_tune_config best = t.items[0];
    t.items[t.n++] = c;
    stk_tune_trials fine;
    stk_tune_fine(&best, STK_METHOD_POLICY, t.items, t.n, &fine);
    cr_assert_eq(fine.n, 2);
    cr_assert(tried(&fine, "lrfu:decay=0.965") && tried(&fine, "lrfu:decay=0.98"), "%s, %s", fine.items[0].policy,
              fine.items[1].policy);
    stk_tune_coarse(&c, STK_METHOD_PREDICTOR, &t);
    cr_assert(tried(&t, "mix:rate=0.08") && tried(&t, "mix:back=7"), "%u", t.n);
    for (uint32_t i = 0; i < t.n; i++) {
        cr_assert_null(strstr(t.items[i].predictor, "depth="), "--lookahead says that");
        cr_assert_null(strstr(t.items[i].predictor, "mib="), "a limit of memory is no choice");
        cr_assert_str_eq(t.items[i].policy, "lrfu");
    }
    stk_tune_config set = {.policy = "s3fifo:small=0.2,ghost=2", .predictor = "none"};
    cr_assert(stk_tune_n_set(set.policy) == 2 && stk_tune_n_set(set.predictor) == 0);
    stk_tune_coarse(&set, STK_METHOD_PREDICTOR, &t);
    cr_assert_eq(t.n, 0, "none has nothing to set");
}
