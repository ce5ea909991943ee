/* chooser: what is absent is read ahead as soon as the predictor's word, corrected by what came of it, is good enough: by itself,
 * or against what it saves and costs where times are known. */
#include <criterion/criterion.h>

#include "src/ahead/chooser.h"

enum { N_LAYER = 5, N_EXPERT = 16, K = 2 };

static stk_cache *cache;
static stk_chooser *chooser;

static const stk_gain_size sizes[N_LAYER] = {
    {1 << 20, 1 << 20}, {1 << 20, 1 << 20}, {1 << 20, 1 << 20}, {1 << 20, 1 << 20}, {1 << 20, 1 << 20}};

static void begin_with(uint32_t rule) {
    static const stk_cache_class class = {8, 0};
    static const uint32_t layer_class[N_LAYER] = {0};
    cr_assert_eq(stk_cache_open(&cache, &(stk_cache_config){.n_layer = N_LAYER,
                                                            .n_expert = N_EXPERT,
                                                            .k = K,
                                                            .n_class = 1,
                                                            .classes = &class,
                                                            .layer_class = layer_class,
                                                            .policy = "lru"}),
                 0, "%s", stk_error_detail());
    cr_assert_eq(stk_chooser_open(&chooser, &(stk_chooser_config){cache, N_LAYER, N_EXPERT, 3 * N_EXPERT, sizes, rule}), 0);
}

static void begin(void) { begin_with(STK_AHEAD_VALUE); }

static void end(void) {
    stk_chooser_close(&chooser);
    cr_assert_null(chooser);
    stk_chooser_close(&chooser);
    stk_cache_close(&cache);
}

/* An event that uses expert `used` of its layer. */
static void event(uint64_t step, uint32_t layer, uint16_t used) {
    const uint32_t counts[1] = {1};
    stk_chooser_settle(
        chooser, &(stk_event){.step = step, .layer = layer, .n_tok = 1, .n_distinct = 1, .distinct = &used, .counts = counts});
}

/* Whether an expert of layer + depth, said to be used with probability p, is read ahead. */
static bool choose(uint32_t layer, uint32_t depth, uint16_t expert, float p) {
    stk_ahead a = {.key = (layer + depth) * N_EXPERT + expert, .p = p};
    stk_chooser_choose(chooser, layer, &a, 1, NULL);
    return a.issue;
}

Test(chooser, trusts_the_predictor_before_it_knows_better) {
    begin();
    event(0, 0, 0);
    cr_assert(choose(0, 1, 3, 0.9f) && choose(0, 3, 3, 1.0f));
    cr_assert(!choose(0, 1, 4, 0.1f) && !choose(0, 1, 4, 0.0f));
    end();
}

Test(chooser, an_expert_that_is_there_is_not_read_and_teaches_nothing) {
    const uint16_t distinct[1] = {5};
    const uint32_t counts[1] = {1};
    const stk_decision *list;
    begin();
    cr_assert_eq(stk_cache_event(cache, 1,
                                 &(stk_event){.layer = 1, .n_tok = 1, .n_distinct = 1, .distinct = distinct, .counts = counts},
                                 &list),
                 1);
    for (uint64_t step = 0; step < 100; step++) { /* wrong all the time */
        event(step, 0, 0);
        cr_assert(!choose(0, 1, 5, 0.9f));
        event(step, 1, 0);
    }
    event(100, 0, 0);
    cr_assert(choose(0, 1, 6, 0.9f));
    end();
}

Test(chooser, learns_by_depth_what_a_word_is_worth) {
    begin();
    for (uint64_t step = 0; step < 40; step++) { /* 0.9 is never true a layer ahead; 0.2 always, two layers ahead */
        event(step, 0, 0);
        (void)choose(0, 1, 7, 0.9f);
        (void)choose(0, 2, 8, 0.2f);
        event(step, 1, 1);
        event(step, 2, 8);
    }
    event(40, 0, 0);
    cr_assert(!choose(0, 1, 7, 0.9f) && choose(0, 2, 7, 0.9f) && choose(0, 1, 7, 0.7f),
              "another word, another depth: not learned");
    cr_assert(choose(0, 2, 8, 0.2f) && !choose(0, 1, 8, 0.2f));
    end();
}

Test(chooser, follows_a_change) {
    begin();
    for (uint64_t step = 0; step < 4000; step++) {
        event(step, 0, 0);
        (void)choose(0, 1, 7, 0.9f);
        event(step, 1, step < 2000 ? 1 : 7);
        if (step != 1999) continue;
        event(step, 2, 0);
        cr_assert(!choose(2, 1, 7, 0.9f));
    }
    event(4000, 0, 0);
    cr_assert(choose(0, 1, 7, 0.9f));
    end();
}

Test(chooser, what_a_step_did_not_reach_is_not_held_against_it) {
    begin();
    for (uint64_t step = 0; step < 40; step++) { /* steps end before the layer that was spoken of; the next step's is another */
        event(2 * step, 0, 0);
        (void)choose(0, 1, 7, 0.9f);
        event(2 * step + 1, 0, 0);
        event(2 * step + 1, 1, 1);
    }
    for (uint64_t step = 100; step < 140; step++) { /* or pass over it */
        event(step, 0, 0);
        (void)choose(0, 1, 7, 0.9f);
        event(step, 2, 1);
    }
    event(200, 0, 0);
    cr_assert(choose(0, 1, 7, 0.9f));
    end();
}

Test(chooser, more_than_ever_expected_is_still_judged) {
    begin();
    event(0, 0, 0);
    for (uint32_t i = 0; i < 1000; i++) cr_assert(choose(0, 1 + i % 3, (uint16_t)(i % N_EXPERT), 0.9f));
    cr_assert(!choose(0, 4, 1, 1.0f), "too far ahead");
    stk_ahead behind = {.key = 1, .p = 1};
    stk_chooser_choose(chooser, 1, &behind, 1, NULL);
    cr_assert(!behind.issue, "of a layer that has passed");
    end();
}

/* ---- By value ----------------------------------------------------------------------------------------------------------- */

/* A drive that takes 1 ms for an expert, a CPU that takes a tenth of that, layers of 2 ms; an event of two experts, both absent.
 */
static stk_cost cost;
static stk_gain_now slow_drive(void) {
    stk_cost_default(&cost);
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) {
        cost.expert_ns_per_byte[i] = 1e5 / (1 << 20);
        cost.dense_layer_ns[i] = 2e6;
    }
    cost.nvme_bytes_per_ns = (1 << 20) / 1e6;
    cost.arrive_ns_per_byte = 1e4 / (1 << 20);
    cost.read_ns_per_byte = 1e5 / (1 << 20);
    cost.wake_ns = cost.nvme_latency_ns = 1e4;
    return (stk_gain_now){.cost = &cost, .n_tok = 1, .n_used = K, .n_absent = K};
}

/* Tells each layer's chooser often enough what its events are like. */
static void get_used_to(const stk_gain_now *now) {
    for (uint64_t step = 0; step < 60; step++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            event(step, l, 0);
            stk_chooser_choose(chooser, l, NULL, 0, now);
        }
    event(60, 0, 0);
}

static bool worth(uint32_t depth, float p, const stk_gain_now *now) {
    stk_ahead a = {.key = depth * N_EXPERT + 3, .p = p};
    stk_chooser_choose(chooser, 0, &a, 1, now);
    return a.issue;
}

Test(chooser, weighs_what_is_saved_against_what_it_costs) {
    stk_gain_now now = slow_drive();
    begin();
    get_used_to(&now);
    cr_assert(worth(1, 0.9f, &now) && worth(1, 0.4f, &now), "a stall of 1 ms against 0.1 ms of drag");
    cr_assert(!worth(1, 0.03f, &now));
    now.demand_ns = 1e8;
    cr_assert(!worth(1, 0.9f, &now), "the drive does not come to it before its layer");
    now.demand_ns = 0;
    now.ahead_ns = 1e8;
    cr_assert(!worth(1, 0.9f, &now));
    now.cpu_ns = 1e9;
    cr_assert(worth(1, 0.9f, &now), "there is time");
    end();
}

Test(chooser, where_nothing_stalls_nothing_is_worth_it) {
    stk_gain_now now = slow_drive();
    cost.nvme_bytes_per_ns = 1e3; /* reads hide behind computing */
    cost.nvme_latency_ns = cost.wake_ns = 1;
    begin();
    get_used_to(&now);
    cr_assert(!worth(1, 0.9f, &now));
    end();
}

Test(chooser, each_choice_takes_its_place_in_the_queue) {
    stk_ahead list[12];
    uint32_t n_issue = 0;
    stk_gain_now now = slow_drive();
    begin();
    get_used_to(&now);
    for (uint32_t i = 0; i < 12; i++) list[i] = (stk_ahead){.key = N_EXPERT + 1 + i, .p = 0.9f};
    stk_chooser_choose(chooser, 0, list, 12, &now);
    for (uint32_t i = 0; i < 12; i++) {
        cr_assert(i == 0 || list[i].issue <= list[i - 1].issue);
        n_issue += list[i].issue;
    }
    cr_assert(n_issue == 2 || n_issue == 3, "2 ms are two reads, and a beginning: %u", n_issue);
    end();
}

Test(chooser, nobody_leaves_who_is_used_more) {
    stk_gain_now now = slow_drive();
    begin();
    for (uint64_t step = 0; step < 60; step++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            event(step, l, step % 4 ? 5 : 6);
            stk_chooser_choose(chooser, l, NULL, 0, &now);
        }
    event(60, 0, 0);
    float often = stk_chooser_use(chooser, 2 * N_EXPERT + 5), seldom = stk_chooser_use(chooser, 2 * N_EXPERT + 6);
    cr_assert(often > 0.6f && often < 0.85f && seldom > 0.1f && seldom < 0.4f && often + seldom < 1, "%g %g", (double)often,
              (double)seldom);
    cr_assert_eq(stk_chooser_use(chooser, 2 * N_EXPERT + 7), 0);
    cr_assert(worth(1, 0.5f, &now));
    cr_assert(stk_chooser_may_evict(chooser, 0, STK_NO_KEY) && stk_chooser_may_evict(chooser, 0, 2 * N_EXPERT + 7));
    cr_assert(!stk_chooser_may_evict(chooser, 0, 2 * N_EXPERT + 5));
    cr_assert(worth(1, 1.0f, &now) && stk_chooser_may_evict(chooser, 0, 2 * N_EXPERT + 6));
    (void)choose(0, 1, 3, 0.6f);
    cr_assert(!stk_chooser_may_evict(chooser, 0, 2 * N_EXPERT + 5), "without times, too");
    end();
}

Test(chooser, uses_are_forgotten) {
    begin();
    event(0, 1, 4);
    float before = stk_chooser_use(chooser, N_EXPERT + 4);
    for (uint64_t step = 1; step < 400; step++) {
        event(step, 1, 0);
        float now = stk_chooser_use(chooser, N_EXPERT + 4);
        cr_assert(now < before || now == 0);
        before = now;
    }
    cr_assert_eq(before, 0);
    end();
}

Test(chooser, impact_takes_predictions_as_certain) {
    stk_ahead list[3];
    stk_gain_now now = slow_drive();
    begin_with(STK_AHEAD_IMPACT);
    event(0, 0, 0);
    for (uint32_t i = 0; i < 3; i++) list[i] = (stk_ahead){.key = N_EXPERT + 1 + i, .p = 0.3f - 0.1f * (float)i};
    stk_chooser_choose(chooser, 0, list, 3, &now);
    cr_assert(list[0].issue && list[1].issue && !list[2].issue, "as many as an event uses");
    cr_assert(stk_chooser_may_evict(chooser, 0, N_EXPERT + 9));
    now.demand_ns = 1e9;
    stk_chooser_choose(chooser, 0, list, 3, &now);
    cr_assert(!list[0].issue, "the drive does not come to it");
    end();
}
