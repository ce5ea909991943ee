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

/* ---- What every predictor owes ------------------------------------------------------------------------------------------ */

enum { N_LAYER = 5, N_EXPERT = 24, K = 3 };

typedef struct pair {
    const stk_predictor_ops *ops;
    stk_predictor *a, *b;
} pair;

static pe_input in;
static float scores[3 * PE_TOK * N_EXPERT];

static pair open_two(const char *name) {
    const stk_predictor_config config = {.n_layer = N_LAYER, .n_expert = N_EXPERT, .k = K};
    pair p = {.ops = stk_predictor_find(name)};
    cr_assert_eq(p.ops->open(&p.a, &config), 0, "%s", stk_error_detail());
    cr_assert_eq(p.ops->open(&p.b, &config), 0, "%s", stk_error_detail());
    return p;
}

static void close_two(pair *p) {
    p->ops->close(p->a);
    p->ops->close(p->b);
    p->ops->close(NULL);
}

/* A step's event of any shape: one token or hundreds, several sequences, holes, tokens that leave before the last layer. */
static const stk_event *any_event(uint64_t step, uint32_t layer) {
    uint64_t rng = step * 7919 + 1, choice = rng + layer * 104729;
    static const uint32_t sizes[] = {1, 1, 1, 2, 5, 40, 100, PE_TOK};
    uint32_t n_tok = sizes[pe_random(&rng, 8)], run = 1 + pe_random(&rng, 64);
    int32_t wild = pe_random(&rng, 16) ? 0 : pe_random(&rng, 2) ? INT32_MAX - 20 : INT32_MIN;
    pe_begin(&in, step, layer, K, N_EXPERT);
    for (uint32_t i = 0; i < n_tok; i++) {
        uint16_t ids[K];
        pe_random_ids(&choice, ids, K, N_EXPERT);
        if (pe_random(&choice, 20) == 0) ids[pe_random(&choice, K)] = STK_NO_EXPERT;
        int32_t pos = wild ? wild + (int32_t)(i % run) % 20 : (int32_t)((step * 3 + i % run) % 50);
        int32_t token = pe_random(&rng, 10) ? (int32_t)pe_random(&rng, 5000) : -1;
        if (layer == N_LAYER - 1 && step % 3 == 0 && i + 1 < n_tok) continue;
        pe_token(&in, (int32_t)(i / run), pos, token, ids);
    }
    return pe_end(&in);
}

static void observe_both(pair *p, const stk_event *event) {
    const stk_lookahead ahead = {event->step % 4, event->n_tok, N_EXPERT, scores};
    cr_assert_eq(p->ops->observe(p->a, event, &ahead), 0, "%s", stk_error_detail());
    cr_assert_eq(p->ops->observe(p->b, event, &ahead), 0, "%s", stk_error_detail());
}

static void same_suggestions(const pair *p) {
    static stk_suggestion a[N_EXPERT], b[N_EXPERT];
    for (uint32_t d = 0; d <= STK_PREDICT_DEPTH_MAX + 1; d++) {
        int n = p->ops->suggest(p->a, d, a, N_EXPERT);
        cr_assert(n >= 0 && n <= N_EXPERT && pe_in_order(a, n, N_EXPERT), "%s", p->ops->name);
        cr_assert_eq(p->ops->suggest(p->b, d, b, N_EXPERT), n, "%s", p->ops->name);
        for (int i = 0; i < n; i++) cr_assert(a[i].expert == b[i].expert && a[i].p == b[i].p, "%s", p->ops->name);
        if (n > 2) cr_assert(p->ops->suggest(p->a, d, b, 2) == 2 && b[1].expert == a[1].expert && b[1].p == a[1].p);
        if (d == 0 || d > STK_PREDICT_DEPTH_MAX) cr_assert_eq(n, 0);
    }
}

Test(predict, any_event_is_taken_and_the_same_twice) {
    uint64_t rng = 1;
    for (size_t i = 0; i < STK_ARRAY_LEN(scores); i++) scores[i] = (float)pe_random(&rng, 1000);
    for (const char *const *name = stk_predictor_names(); *name; name++) {
        pair p = open_two(*name);
        same_suggestions(&p); /* of nothing */
        for (uint64_t step = 0; step < 150; step++)
            for (uint32_t l = 0; l < N_LAYER; l++) {
                if (step % 11 == 3 && l == 2) continue;
                observe_both(&p, any_event(step, l));
                same_suggestions(&p);
            }
        close_two(&p);
    }
}

Test(predict, an_event_that_does_not_fit_is_refused_by_all) {
    for (const char *const *name = stk_predictor_names(); *name; name++) {
        pair p = open_two(*name);
        uint16_t ids[K] = {0, 1, N_EXPERT};
        cr_assert_eq(p.ops->observe(p.a, pe_one(&in, 0, 0, K, N_EXPERT, 0, ids), &pe_no_scores), STK_EINVAL);
        ids[2] = 2;
        cr_assert_eq(p.ops->observe(p.a, pe_one(&in, 0, N_LAYER, K, N_EXPERT, 0, ids), &pe_no_scores), STK_EINVAL);
        cr_assert_eq(p.ops->observe(p.a, pe_one(&in, 0, 0, K, N_EXPERT + 1, 0, ids), &pe_no_scores), STK_EINVAL);
        pe_one(&in, 0, 0, K, N_EXPERT, 0, ids);
        in.event.k = K + 1;
        cr_assert_eq(p.ops->observe(p.a, &in.event, &pe_no_scores), STK_EINVAL);
        close_two(&p);
    }
}

Test(predict, a_saved_state_goes_on_alike) {
    for (const char *const *name = stk_predictor_names(); *name; name++) {
        pair p = open_two(*name);
        const stk_lookahead none = {0};
        for (uint64_t step = 0; step < 60; step++)
            for (uint32_t l = 0; l < N_LAYER; l++) cr_assert_eq(p.ops->observe(p.a, any_event(step, l), &none), 0);
        int64_t bytes = p.ops->save(p.a, NULL, 0);
        cr_assert_gt(bytes, (int64_t)sizeof(stk_predictor_state));
        unsigned char *state = calloc((size_t)bytes, 1), *again = calloc((size_t)bytes, 1);
        cr_assert_eq(p.ops->save(p.a, state, (size_t)bytes - 1), bytes);
        cr_assert_eq(state[0], 0); /* all or nothing */
        cr_assert_eq(p.ops->save(p.a, state, (size_t)bytes), bytes);
        /* Both from the saved state: what a remembers of running sequences is not part of it. */
        cr_assert_eq(p.ops->load(p.a, state, (size_t)bytes), 0, "%s", stk_error_detail());
        cr_assert_eq(p.ops->load(p.b, state, (size_t)bytes), 0, "%s", stk_error_detail());
        cr_assert_eq(p.ops->save(p.b, again, (size_t)bytes), bytes);
        cr_assert_arr_eq(state, again, (size_t)bytes);
        for (uint64_t step = 60; step < 80; step++)
            for (uint32_t l = 0; l < N_LAYER; l++) {
                observe_both(&p, any_event(step, l));
                same_suggestions(&p);
            }
        free(state);
        free(again);
        close_two(&p);
    }
}

Test(predict, a_damaged_state_changes_nothing_or_does_no_harm) {
    for (const char *const *name = stk_predictor_names(); *name; name++) {
        pair p = open_two(*name);
        uint64_t rng = 3;
        for (uint64_t step = 0; step < 20; step++)
            for (uint32_t l = 0; l < N_LAYER; l++) observe_both(&p, any_event(step, l));
        size_t bytes = (size_t)p.ops->save(p.a, NULL, 0), n_taken = 0;
        unsigned char *state = malloc(bytes + 1), *bad = malloc(bytes + 1), *after = malloc(bytes + 1);
        cr_assert_eq(p.ops->save(p.a, state, bytes), (int64_t)bytes);
        for (size_t n = 0; n < bytes; n += n < 40 ? 1 : bytes / 20) cr_assert_eq(p.ops->load(p.a, state, n), STK_EFORMAT);
        cr_assert_eq(p.ops->load(p.a, state, bytes + 1), STK_EFORMAT);
        memset(bad, 0xff, bytes);
        memcpy(bad, state, sizeof(stk_predictor_state));
        cr_assert_eq(p.ops->load(p.a, bad, bytes), STK_EFORMAT);
        cr_assert_eq(p.ops->save(p.a, after, bytes), (int64_t)bytes);
        cr_assert_arr_eq(after, state, bytes);
        for (uint32_t round = 0; round < 200; round++) {
            memcpy(bad, state, bytes);
            for (uint32_t i = 0; i < 4; i++) bad[pe_random(&rng, (uint32_t)bytes)] = (unsigned char)pe_random(&rng, 256);
            if (p.ops->load(p.a, bad, bytes) != 0) continue;
            cr_assert_eq(p.ops->load(p.b, bad, bytes), 0);
            observe_both(&p, any_event(round, round % N_LAYER));
            same_suggestions(&p);
            n_taken++;
        }
        cr_assert_gt(n_taken, 0);
        free(state);
        free(bad);
        free(after);
        close_two(&p);
    }
}

Test(predict, parameters_out_of_range_are_refused) {
    static const char *const bad[] = {"depth=0",   "depth=4", "depth=",    "depth",      "depth=nan",   "depth=1x",
                                      "depth=1,,", ",",       "=1",        "keep=1",     "back=0",      "back=17",
                                      "mib=-1",    "rate=2",  "entries=0", "matrices=0", "matrices=1e9"};
    static const char *const names[] = {"mix", "path", "history", "tokenid", "matrices"};
    for (size_t i = 0; i < STK_ARRAY_LEN(names); i++)
        for (size_t j = 0; j < STK_ARRAY_LEN(bad); j++) {
            const stk_predictor_config config = {.n_layer = 2, .n_expert = 8, .k = 2, .params = bad[j]};
            stk_predictor *p = NULL;
            cr_assert_eq(stk_predictor_find(names[i])->open(&p, &config), STK_EINVAL, "%s takes %s", names[i], bad[j]);
            cr_assert_null(p);
        }
    const stk_predictor_config good = {
        .n_layer = 2, .n_expert = 8, .k = 2, .params = "depth=2,back=3,matrices=2,mib=1,entries=9"};
    stk_predictor *p;
    cr_assert_eq(stk_predictor_mix.open(&p, &good), 0, "%s", stk_error_detail());
    stk_predictor_mix.close(p);
}

/* ---- What they share ---------------------------------------------------------------------------------------------------- */

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
