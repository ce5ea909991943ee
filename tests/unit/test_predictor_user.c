/* predictor_user: hooks predict, in any order; where they fail nothing is predicted, for that event alone; a run that they
 * predicted for verifies from its record, and replays the same. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/hooks/predictor_user.h"
#include "tests/predict_events.h"
#include "tests/temp.h"

#define MODEL STK_TEST_DATA "/tiny/qwen3moe-f32.gguf"

enum { N_LAYER = 4, N_EXPERT = 8, K = 2, CAP = 4 };

/* A predictor that says what a test wants it to. */
typedef struct user {
    uint32_t n_open, n_close, n_observe, n_suggest, n_fault, n_ahead;
    stk_predictor_shape shape;
    int fail_open, fail_observe, fail_suggest;
    stk_prediction say[2 * N_EXPERT];
    int n_say;
    uint32_t layer, depth; /* asked for last */
    char why[128];
} user;

static int hook_open(void *ctx, const stk_predictor_shape *shape, void **predictor) {
    user *u = ctx;
    u->n_open++;
    u->shape = *shape;
    *predictor = u;
    return u->fail_open;
}
static void hook_close(void *predictor) { ((user *)predictor)->n_close++; }
static int hook_observe(void *predictor, const stk_policy_event *event, const float *ahead, uint32_t n_ahead) {
    user *u = predictor;
    u->n_observe++;
    u->n_ahead += n_ahead;
    cr_assert_eq(event->struct_bytes, sizeof *event);
    cr_assert_eq(ahead != NULL, n_ahead > 0);
    for (uint32_t i = 0; i < event->n; i++) cr_assert_eq(event->keys[i] / u->shape.n_expert, event->layer);
    return u->fail_observe;
}
static int hook_suggest(void *predictor, uint32_t layer, uint32_t depth, stk_prediction *out, uint32_t cap) {
    user *u = predictor;
    u->n_suggest++;
    u->layer = layer;
    u->depth = depth;
    if (u->fail_suggest) return u->fail_suggest;
    for (int i = 0; i < u->n_say && i < (int)cap; i++) out[i] = u->say[i];
    return u->n_say;
}
static void hook_fault(void *predictor, int code, const char *detail) {
    user *u = predictor;
    u->n_fault++;
    cr_assert_lt(code, 0);
    strncpy(u->why, detail, sizeof u->why - 1);
}

static stk_predictor_hooks hooks_of(user *u) {
    return (stk_predictor_hooks){.struct_bytes = sizeof(stk_predictor_hooks),
                                 .user = u,
                                 .open = hook_open,
                                 .close = hook_close,
                                 .observe = hook_observe,
                                 .suggest = hook_suggest,
                                 .fault = hook_fault};
}

static pe_input in;

static stk_predictor *begin(stk_predictor_user *adapter, const stk_predictor_hooks *hooks, uint32_t depth) {
    stk_predictor *p;
    cr_assert_eq(stk_predictor_user_init(adapter, hooks, depth), 0, "%s", stk_error_detail());
    const stk_predictor_config config = {.n_layer = N_LAYER, .n_expert = N_EXPERT, .k = K, .seed = 5, .user = adapter};
    cr_assert_eq(adapter->ops.open(&p, &config), 0, "%s", stk_error_detail());
    return p;
}

static void observe(const stk_predictor_user *adapter, stk_predictor *p, uint64_t step, uint32_t layer) {
    const uint16_t ids[K] = {6, 1};
    const stk_lookahead none = {0, 1, N_EXPERT, NULL};
    cr_assert_eq(adapter->ops.observe(p, pe_one(&in, step, layer, K, N_EXPERT, 0, ids), &none), 0);
}

Test(predictor_user, predictions_are_put_in_order) {
    user u = {.n_say = 6, .say = {{5, 0.1f}, {7, 0.5f}, {2, 0.9f}, {3, 0.5f}, {0, 0.2f}, {1, 0.0f}}};
    const stk_predictor_hooks h = hooks_of(&u);
    stk_predictor_user adapter;
    stk_predictor *p = begin(&adapter, &h, 2);
    cr_assert(u.shape.n_layer == N_LAYER && u.shape.n_expert == N_EXPERT && u.shape.k == K && u.shape.depth == 2);
    cr_assert(u.shape.n_max == CAP && u.shape.seed == 5);
    observe(&adapter, p, 0, 1);
    stk_suggestion out[CAP + 1] = {[CAP] = {99, 9.0f}};
    cr_assert_eq(adapter.ops.suggest(p, 2, out, CAP), CAP);
    cr_assert(u.layer == 3 && u.depth == 2);
    cr_assert(out[0].expert == 2 && out[1].expert == 3 && out[2].expert == 7 && out[3].expert == 0, "best first, ties by id");
    cr_assert_eq(out[CAP].expert, 99);
    u.n_say = 0;
    cr_assert_eq(adapter.ops.suggest(p, 1, out, CAP), 0);
    adapter.ops.close(p);
    cr_assert(u.n_close == 1 && u.n_fault == 0);
}

Test(predictor_user, a_failure_is_told_once_an_event) {
    static const struct {
        int fail_observe, fail_suggest, n;
        stk_prediction say[2];
        const char *why;
    } cases[] = {
        {-1000, 0, 0, {{0}}, "observe"},
        {0, -1000, 0, {{0}}, "suggest"},
        {0, 0, N_EXPERT + 1, {{0}}, "more experts"},
        {0, 0, 1, {{N_EXPERT, 0.5f}}, "that there is not"},
        {0, 0, 1, {{1, 1.5f}}, "probability"},
        {0, 0, 1, {{1, -0.5f}}, "probability"},
        {0, 0, 1, {{1, NAN}}, "probability"},
        {0, 0, 2, {{1, 0.5f}, {1, 0.25f}}, "twice"},
    };
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        user u = {.fail_observe = cases[i].fail_observe, .fail_suggest = cases[i].fail_suggest, .n_say = cases[i].n};
        memcpy(u.say, cases[i].say, sizeof cases[i].say);
        const stk_predictor_hooks h = hooks_of(&u);
        stk_predictor_user adapter;
        stk_predictor *p = begin(&adapter, &h, 2);
        stk_suggestion out[CAP];
        observe(&adapter, p, 0, 0);
        cr_assert_eq(adapter.ops.suggest(p, 1, out, CAP), 0);
        cr_assert_eq(adapter.ops.suggest(p, 2, out, CAP), 0);
        cr_assert_eq(u.n_fault, 1);
        cr_assert(strstr(u.why, cases[i].why), "%s", u.why);
        u.fail_observe = u.fail_suggest = 0;
        u.n_say = 1;
        u.say[0] = (stk_prediction){3, 1.0f};
        observe(&adapter, p, 0, 1);
        cr_assert_eq(adapter.ops.suggest(p, 1, out, CAP), 1, "the next event is asked again");
        cr_assert_eq(out[0].expert, 3);
        adapter.ops.close(p);
        cr_assert_eq(u.n_fault, 1);
    }
}

Test(predictor_user, what_was_computed_in_advance_is_found) {
    user u = {0};
    stk_predictor_hooks h = hooks_of(&u);
    const stk_prediction list[] = {{4, 0.5f}, {1, 0.25f}, {2, 0.75f}};
    uint64_t first[] = {0, 1, 1, 3, 3}; /* two events, two layers ahead */
    h.suggest = NULL;
    h.list = list;
    h.first = first;
    h.n_list = 3;
    h.n_event = 2;
    h.depth = 2;
    stk_predictor_user adapter;
    cr_assert_eq(stk_predictor_user_init(&adapter, &h, 1), STK_EINVAL, "for another depth");
    stk_predictor *p = begin(&adapter, &h, 2);
    stk_suggestion out[CAP];
    observe(&adapter, p, 0, 0);
    cr_assert(adapter.ops.suggest(p, 1, out, CAP) == 1 && out[0].expert == 4);
    cr_assert_eq(adapter.ops.suggest(p, 2, out, CAP), 0);
    observe(&adapter, p, 0, 1);
    cr_assert(adapter.ops.suggest(p, 1, out, CAP) == 2 && out[0].expert == 2 && out[1].expert == 1);
    observe(&adapter, p, 0, 2);
    cr_assert_eq(u.n_fault, 0);
    cr_assert_eq(adapter.ops.suggest(p, 1, out, CAP), 0, "the run is longer");
    cr_assert_eq(u.n_fault, 1);
    adapter.ops.close(p);
    first[3] = 9;
    p = begin(&adapter, &h, 2);
    observe(&adapter, p, 0, 0);
    observe(&adapter, p, 0, 1);
    cr_assert_eq(adapter.ops.suggest(p, 1, out, CAP), 0, "beyond the list");
    cr_assert_eq(u.n_fault, 2);
    adapter.ops.close(p);
}

Test(predictor_user, hooks_that_cannot_be) {
    user u = {.fail_open = -1000};
    stk_predictor_hooks h = hooks_of(&u);
    stk_predictor_user adapter;
    const uint64_t first[] = {0};
    h.first = first;
    cr_assert_eq(stk_predictor_user_init(&adapter, &h, 1), STK_EINVAL, "both");
    h.first = NULL;
    h.suggest = NULL;
    cr_assert_eq(stk_predictor_user_init(&adapter, &h, 1), STK_EINVAL, "neither");
    h.struct_bytes = sizeof h + 8;
    cr_assert_eq(stk_predictor_user_init(&adapter, &h, 1), STK_EINVAL, "of a later library");
    h = hooks_of(&u);
    cr_assert_eq(stk_predictor_user_init(&adapter, &h, 1), 0);
    cr_assert_str_eq(adapter.ops.name, "user");
    stk_predictor *p;
    const stk_predictor_config config = {.n_layer = N_LAYER, .n_expert = N_EXPERT, .k = K, .user = &adapter};
    cr_assert_eq(adapter.ops.open(&p, &config), -1000);
    cr_assert_eq(u.n_close, 0);
}

/* ---- In an engine and in replays ---- */

static stk_stats run_engine(const stk_model *model, const stk_predictor_hooks *hooks, uint64_t ram, const char *trace) {
    stk_engine_options o;
    stk_engine_options_default(&o, sizeof o);
    o.predictor_hooks = hooks;
    o.predict_depth = 2;
    o.ram_bytes = ram;
    o.trace = trace;
    o.n_threads = 1;
    stk_engine *e;
    cr_assert_eq(stk_engine_open(&e, model, &o), 0, "%s", stk_error_detail());
    stk_stats stats = {.struct_bytes = sizeof stats};
    for (int32_t i = 0; i < 60; i++) {
        const int32_t token[12] = {i, 2 * i % 90, i * 7 % 90};
        const stk_batch batch = {.struct_bytes = sizeof batch, .n = i % 8 == 0 ? 12 : 1, .token = token};
        cr_assert_eq(stk_step(e, &batch), 0, "%s", stk_error_detail());
    }
    stk_predict_count count;
    cr_assert_eq(stk_engine_get_predicted(e, 1, &count), 0);
    cr_assert(count.n_event > 0 && count.n_found <= count.n_lookup && count.n_used <= count.n_predicted);
    cr_assert_eq(stk_engine_get_predicted(e, 0, &count), STK_EINVAL);
    cr_assert_eq(stk_engine_get_predicted(e, 4, &count), STK_EINVAL);
    cr_assert_eq(stk_engine_get_stats(e, &stats), 0);
    cr_assert_eq(stk_engine_close(&e), 0);
    return stats;
}

Test(predictor_user, a_run_verifies_and_replays_the_same) {
    char trace[TEMP_PATH];
    temp_file(trace, "stoker-predictor-user");
    stk_model *model;
    cr_assert_eq(stk_model_open(&model, MODEL), 0);
    stk_model_info info = {.struct_bytes = sizeof info};
    cr_assert_eq(stk_model_get_info(model, &info), 0);
    user u = {.n_say = 3, .say = {{1, 0.9f}, {4, 0.8f}, {3, 0.95f}}}, v = u;
    stk_predictor_hooks h = hooks_of(&u);
    h.wants_lookahead = 1;
    stk_stats live = run_engine(model, &h, 2 * info.ram_bytes_min, trace);
    cr_assert(u.n_open == 1 && u.n_close == 1 && u.n_fault == 0 && u.n_ahead > 0 && live.n_prefetch > 0);
    cr_assert_eq(u.n_observe, live.n_event);

    stk_replay_options o;
    stk_replay_options_default(&o, sizeof o);
    stk_replay_result r = {.struct_bytes = sizeof r};
    o.verify = 1;
    cr_assert_eq(stk_replay(trace, &o, &r), 0, "%s", stk_error_detail());
    cr_assert_eq(r.stats.n_prefetch, live.n_prefetch);
    h.user = &v;
    o.predictor_hooks = &h;
    cr_assert_eq(stk_replay(trace, &o, &r), STK_EINVAL, "what is verified is what was predicted");
    o.verify = 0;
    o.predict_depth = 2;
    for (int timed = 0; timed < 2; timed++) {
        stk_replay_detail detail = {.struct_bytes = sizeof detail};
        o.detail = &detail;
        o.io = timed ? "emu:1G,50us" : NULL;
        memset(&r.stats, 0, sizeof r.stats);
        cr_assert_eq(stk_replay(trace, &o, &r), 0, "%s", stk_error_detail());
        cr_assert_eq(r.stats.n_lookup, live.n_lookup);
        cr_assert(r.stats.n_prefetch > 0 && r.stats.n_prefetch_used <= r.stats.n_prefetch); /* how many, time decides */
        cr_assert(detail.predicted[0].n_event > 0 && detail.predicted[1].n_event > 0 && detail.predicted[2].n_event == 0);
    }
    o.detail = NULL;
    o.predictor = "mix";
    cr_assert_eq(stk_replay(trace, &o, &r), STK_EINVAL, "two predictors");
    o.predictor_hooks = NULL;
    cr_assert_eq(stk_replay(trace, &o, &r), 0, "%s", stk_error_detail());
    o.predictor = "none";
    cr_assert_eq(stk_replay(trace, &o, &r), 0, "%s", stk_error_detail());
    cr_assert_eq(r.stats.n_prefetch, 0);
    o.predictor = "nobody";
    cr_assert_eq(stk_replay(trace, &o, &r), STK_EINVAL);
    o.predictor = NULL;
    cr_assert_eq(stk_replay(trace, &o, &r), 0, "%s", stk_error_detail());
    uint64_t n_prefetch = r.stats.n_prefetch;
    o.predict_depth = 1;
    cr_assert_eq(stk_replay(trace, &o, &r), 0, "%s", stk_error_detail());
    cr_assert(r.stats.n_prefetch > 0 && r.stats.n_prefetch != n_prefetch, "of what was recorded, so many layers ahead count");
    stk_model_close(&model);
    unlink(trace);
}
