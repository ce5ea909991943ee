/* chooser: what is absent is read ahead as soon as the predictor's word, corrected by what came of it, is good enough. */
#include <criterion/criterion.h>

#include "src/chooser.h"

enum { N_LAYER = 5, N_EXPERT = 16, K = 2 };

static stk_cache *cache;
static stk_chooser *chooser;

static void begin(void) {
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
    cr_assert_eq(stk_chooser_open(&chooser, cache, N_EXPERT, 3 * N_EXPERT), 0);
}

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
    stk_chooser_choose(chooser, layer, &a, 1);
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
    stk_chooser_choose(chooser, 1, &behind, 1);
    cr_assert(!behind.issue, "of a layer that has passed");
    end();
}
