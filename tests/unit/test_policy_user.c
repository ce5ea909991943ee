/*
 * policy_user: hooks decide; where they fail LRU does, for that event alone; scores order like the policy that they stand for.
 * Long because each hook is tried with each way of failing.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/cache.h"
#include "src/hooks/policy_user.h"
#include "tests/temp.h"

#define MODEL STK_TEST_DATA "/tiny/qwen3moe-f32.gguf"

enum { N_LAYER = 3, N_EXPERT = 40, N_SLOT = 24, N_TRANSIT = 6, N_EVENT = 2000, K = 4 };

/* A policy that leaves in the order of keys, and whatever a test wants to go wrong. */
typedef struct user {
    uint32_t n_open, n_close, n_touch, n_admit, n_inserted, n_evicted, n_victim, n_fault;
    uint32_t n_key;
    uint8_t resident[N_LAYER * N_EXPERT];
    uint32_t last_fault_touch;
    int fail_touch, fail_victim, fail_inserted, fail_score; /* every that many calls; 0: never */
    int wrong_victim, no_victim;
    uint32_t n_score;
    char why[128];
} user;

static int every(uint32_t n, int by) { return by && n % (uint32_t)by == 0 ? -1000 : 0; }

static int hook_open(void *ctx, const stk_policy_shape *shape, void **policy) {
    user *u = ctx;
    u->n_open++;
    u->n_key = shape->n_key;
    *policy = u;
    return 0;
}
static void hook_close(void *policy) { ((user *)policy)->n_close++; }
static int hook_touch(void *policy, const stk_policy_event *event) {
    user *u = policy;
    cr_assert_eq(event->struct_bytes, sizeof *event);
    cr_assert_lt(event->layer, N_LAYER);
    for (uint32_t i = 0; i < event->n; i++) cr_assert_eq(event->keys[i] / N_EXPERT, event->layer);
    return every(++u->n_touch, u->fail_touch);
}
static int hook_admit(void *policy, uint32_t key) {
    user *u = policy;
    u->n_admit++;
    return key % 3 != 0;
}
static int hook_inserted(void *policy, uint32_t key, int why) {
    user *u = policy;
    cr_assert(why >= STK_WHY_DEMAND && why <= STK_WHY_WARM);
    cr_assert_eq(u->resident[key], 0);
    u->resident[key] = 1;
    return every(++u->n_inserted, u->fail_inserted);
}
static int hook_evicted(void *policy, uint32_t key) {
    user *u = policy;
    u->n_evicted++;
    cr_assert_eq(u->resident[key], 1);
    u->resident[key] = 0;
    return 0;
}
static int hook_victim(void *policy, const uint64_t *busy, uint32_t *key) {
    user *u = policy;
    if (every(++u->n_victim, u->fail_victim)) return -7;
    if (every(u->n_victim, u->no_victim)) return 0;
    for (uint32_t i = 0; i < u->n_key; i++) {
        int is_busy = busy[i / 64] >> (i % 64) & 1;
        int wrong = every(u->n_victim, u->wrong_victim) != 0;
        if (!u->resident[i] || is_busy != wrong) continue;
        *key = i;
        return 1;
    }
    return 0;
}
static int hook_score(void *policy, const stk_policy_event *event, double *scores) {
    user *u = policy;
    for (uint32_t i = 0; i < event->n; i++) scores[i] = (double)u->n_score;
    u->n_score++;
    if (every(u->n_score, u->fail_score)) scores[0] = NAN;
    return 0;
}
static void hook_fault(void *policy, int code, const char *detail) {
    user *u = policy;
    cr_assert_lt(code, 0);
    cr_assert(u->n_touch == 0 || u->n_touch != u->last_fault_touch, "one fault an event");
    u->last_fault_touch = u->n_touch;
    u->n_fault++;
    snprintf(u->why, sizeof u->why, "%s", detail);
}

static stk_policy_hooks hooks_of(user *u) {
    return (stk_policy_hooks){.struct_bytes = sizeof(stk_policy_hooks),
                              .name = "keys",
                              .user = u,
                              .open = hook_open,
                              .close = hook_close,
                              .touch = hook_touch,
                              .inserted = hook_inserted,
                              .evicted = hook_evicted,
                              .victim = hook_victim,
                              .fault = hook_fault};
}

static stk_policy_hooks scored_hooks(user *u) {
    stk_policy_hooks h = hooks_of(u);
    h.victim = NULL;
    h.touch = NULL;
    h.score = hook_score;
    return h;
}

static stk_cache *open_cache(stk_policy_user *u, const stk_policy_hooks *hooks) {
    static const uint32_t layer_class[N_LAYER];
    const stk_cache_class class = {N_SLOT, hooks && hooks->admit ? N_TRANSIT : 0};
    stk_cache_config config = {
        .n_layer = N_LAYER, .n_expert = N_EXPERT, .k = K, .n_class = 1, .classes = &class, .layer_class = layer_class};
    if (hooks) {
        cr_assert_eq(stk_policy_user_init(u, hooks), 0, "%s", stk_error_detail());
        config.ops = &u->ops;
        config.ops_user = u;
    } else {
        config.policy = "lru";
    }
    stk_cache *c;
    cr_assert_eq(stk_cache_open(&c, &config), 0, "%s", stk_error_detail());
    return c;
}

/* Event i of a stream that is the same for everyone: few or many experts (more than there are slots), unequal counts. */
static void run_event(stk_cache *c, uint32_t i) {
    uint16_t distinct[N_EXPERT];
    uint32_t counts[N_EXPERT], n = 0, most = i % 50 == 49 ? 90 : 15;
    uint64_t x = i * 0x9e3779b97f4a7c15u + 1;
    for (uint32_t e = 0; e < N_EXPERT; e++) {
        x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u + e;
        if ((x >> 33) % 100 >= most) continue;
        distinct[n] = (uint16_t)e;
        counts[n++] = 1 + (uint32_t)(x >> 40) % 4;
    }
    const stk_event event = {
        .step = i / N_LAYER, .layer = i % N_LAYER, .n_expert = N_EXPERT, .n_distinct = n, .distinct = distinct, .counts = counts};
    const stk_decision *list;
    cr_assert_geq(stk_cache_event(c, i % N_LAYER, &event, &list), 0, "%s", stk_error_detail());
    stk_decision d;
    if (i % 7 == 3) cr_assert_geq(stk_cache_prefetch(c, (uint32_t)(x % (N_LAYER * N_EXPERT)), &d), 0);
    if (i % 97 == 5) cr_assert_eq(stk_cache_drop(c, (uint32_t)((x >> 20) % (N_LAYER * N_EXPERT))), 0);
    if (i == N_EVENT / 2) cr_assert_eq(stk_cache_clear(c), 0);
}

/* The user's books show the residents of the cache. */
static void check_books(const stk_cache *c, const user *u) {
    for (uint32_t key = 0; key < N_LAYER * N_EXPERT; key++)
        cr_assert_eq(u->resident[key], stk_cache_slot(c, key) >= 0, "expert %u", key);
}

/* Hashes of the cache after some events, of the whole stream. */
static uint64_t run_stream(const stk_policy_hooks *hooks, user *u) {
    stk_policy_user adapter;
    stk_cache *c = open_cache(&adapter, hooks);
    uint64_t h = 0;
    for (uint32_t i = 0; i < N_EVENT; i++) {
        run_event(c, i);
        if (u) check_books(c, u);
        h = h * 31 + stk_cache_hash(c);
    }
    stk_cache_close(&c);
    return h;
}

Test(policy_user, hooks_decide_and_are_told_everything) {
    user u = {0};
    stk_policy_hooks h = hooks_of(&u);
    uint64_t own = run_stream(&h, &u);
    cr_assert_eq(u.n_fault, 0, "%s", u.why);
    cr_assert_eq(u.n_touch, N_EVENT);
    cr_assert_gt(u.n_victim, 100);
    cr_assert_eq(u.n_open, 1);
    cr_assert_eq(u.n_close, 1);
    cr_assert_neq(own, run_stream(NULL, NULL));
}

Test(policy_user, a_policy_that_always_fails_is_lru) {
    const uint64_t lru = run_stream(NULL, NULL);
    for (int i = 0; i < 4; i++) {
        user u = {.fail_touch = i == 0, .fail_victim = i == 1, .wrong_victim = i == 2, .no_victim = i == 3};
        stk_policy_hooks h = hooks_of(&u);
        cr_assert_eq(run_stream(&h, &u), lru, "variant %d", i);
        cr_assert_gt(u.n_fault, 100);
        cr_assert_gt(strlen(u.why), 0);
    }
}

Test(policy_user, a_failure_costs_one_event) {
    user u = {.fail_touch = 5, .fail_victim = 11, .fail_inserted = 13, .no_victim = 17};
    stk_policy_hooks h = hooks_of(&u);
    uint64_t mixed = run_stream(&h, &u);
    cr_assert_neq(mixed, run_stream(NULL, NULL));
    cr_assert_geq(u.n_fault, N_EVENT / 5);
    cr_assert_gt(u.n_victim, 100, "it is asked again");
}

Test(policy_user, scores_that_rise_with_time_are_lru) {
    const uint64_t lru = run_stream(NULL, NULL);
    user u = {0};
    stk_policy_hooks h = scored_hooks(&u);
    cr_assert_eq(run_stream(&h, &u), lru);
    cr_assert_eq(u.n_fault, 0);

    static double scores[N_EVENT * N_EXPERT];
    user v = {0};
    h = scored_hooks(&v);
    h.score = NULL;
    h.scores = scores; /* all equal: the least recently used leaves */
    h.n_scores = N_EVENT * N_EXPERT;
    cr_assert_eq(run_stream(&h, &v), lru);
    cr_assert_eq(v.n_fault, 0);
}

Test(policy_user, a_score_that_is_no_number_costs_one_event) {
    user u = {.fail_score = 1};
    stk_policy_hooks h = scored_hooks(&u);
    h.fault = NULL;
    cr_assert_eq(run_stream(&h, &u), run_stream(NULL, NULL));
}

Test(policy_user, scores_that_end_early_leave_the_rest_to_lru) {
    static const double scores[100];
    user u = {0};
    stk_policy_hooks h = hooks_of(&u);
    h.victim = NULL;
    h.scores = scores;
    h.n_scores = 100;
    run_stream(&h, &u);
    cr_assert_gt(u.n_fault, N_EVENT / 2);
    cr_assert(strstr(u.why, "fewer scores"), "%s", u.why);
}

static int least_key_score(void *policy, const stk_policy_event *event, double *scores) {
    (void)policy;
    for (uint32_t i = 0; i < event->n; i++) scores[i] = event->keys[i];
    return 0;
}

Test(policy_user, the_least_score_leaves) {
    user u = {0}, v = {0};
    stk_policy_hooks by_victim = hooks_of(&u), by_score = scored_hooks(&v);
    by_score.score = least_key_score;
    stk_policy_user a, b;
    stk_cache *one = open_cache(&a, &by_victim), *two = open_cache(&b, &by_score);
    for (uint32_t i = 0; i < N_EVENT; i++) {
        if (i % 7 == 3) continue; /* a prefetched expert counts as the best, not by its key */
        run_event(one, i);
        run_event(two, i);
        for (uint32_t key = 0; key < N_LAYER * N_EXPERT; key++) cr_assert_eq(stk_cache_slot(one, key), stk_cache_slot(two, key));
    }
    stk_cache_close(&one);
    stk_cache_close(&two);
}

/* Layers 0 and 2 in one class, 1 and 3 in the other: hooks name experts by their place in the model. */
typedef struct classed {
    uint32_t n_instance, n_foreign;
    uint32_t resident[4 * N_EXPERT];
} classed;
static classed *classes_seen;
static uint32_t instance_of[2] = {0, 1};

static int classed_open(void *ctx, const stk_policy_shape *shape, void **policy) {
    (void)ctx;
    cr_assert_eq(shape->n_key, 4 * N_EXPERT);
    classes_seen->n_instance++;
    *policy = &instance_of[shape->instance];
    return 0;
}
static bool is_mine(const void *policy, uint32_t key) { return key / N_EXPERT % 2 == *(const uint32_t *)policy; }
static int classed_touch(void *policy, const stk_policy_event *event) {
    for (uint32_t i = 0; i < event->n; i++)
        cr_assert(event->keys[i] / N_EXPERT == event->layer && is_mine(policy, event->keys[i]));
    return 0;
}
static int classed_inserted(void *policy, uint32_t key, int why) {
    (void)why;
    cr_assert(is_mine(policy, key));
    classes_seen->resident[key] = 1;
    return 0;
}
static int classed_evicted(void *policy, uint32_t key) {
    cr_assert(is_mine(policy, key));
    classes_seen->resident[key] = 0;
    return 0;
}
/* At times an expert of the other class, which is no victim. */
static int classed_victim(void *policy, const uint64_t *busy, uint32_t *key) {
    bool foreign = ++classes_seen->n_foreign % 10 == 0;
    for (uint32_t i = 0; i < 4 * N_EXPERT; i++) {
        if (!classes_seen->resident[i] || is_mine(policy, i) == foreign || busy[i / 64] >> (i % 64) & 1) continue;
        *key = i;
        return 1;
    }
    return 0;
}
static uint32_t n_classed_fault;
static void classed_fault(void *policy, int code, const char *detail) {
    (void)policy, (void)code, (void)detail;
    n_classed_fault++;
}

Test(policy_user, experts_of_several_classes_keep_their_names) {
    static classed seen;
    classes_seen = &seen;
    const stk_policy_hooks h = {.struct_bytes = sizeof h,
                                .open = classed_open,
                                .touch = classed_touch,
                                .inserted = classed_inserted,
                                .evicted = classed_evicted,
                                .victim = classed_victim,
                                .fault = classed_fault};
    static const uint32_t layer_class[4] = {0, 1, 0, 1};
    const stk_cache_class classes[2] = {{.n_slot = N_SLOT}, {.n_slot = N_SLOT + 3}};
    stk_policy_user u;
    cr_assert_eq(stk_policy_user_init(&u, &h), 0);
    const stk_cache_config config = {.n_layer = 4,
                                     .n_expert = N_EXPERT,
                                     .k = K,
                                     .n_class = 2,
                                     .classes = classes,
                                     .layer_class = layer_class,
                                     .ops = &u.ops,
                                     .ops_user = &u};
    stk_cache *c;
    cr_assert_eq(stk_cache_open(&c, &config), 0, "%s", stk_error_detail());
    cr_assert_eq(seen.n_instance, 2);
    for (uint32_t i = 0; i < 400; i++) {
        uint16_t distinct[3];
        const uint32_t counts[3] = {1, 1, 1};
        for (uint32_t j = 0; j < 3; j++) distinct[j] = (uint16_t)(i * 7 % (N_EXPERT / 3) + j * (N_EXPERT / 3));
        const stk_event event = {
            .step = i / 4, .layer = i % 4, .n_expert = N_EXPERT, .n_distinct = 3, .distinct = distinct, .counts = counts};
        const stk_decision *list;
        cr_assert_geq(stk_cache_event(c, i % 4, &event, &list), 0, "%s", stk_error_detail());
        for (uint32_t key = 0; key < 4 * N_EXPERT; key++) cr_assert_eq(seen.resident[key], stk_cache_slot(c, key) >= 0);
    }
    cr_assert_gt(seen.n_foreign, 100);
    cr_assert_gt(n_classed_fault, 0);
    stk_cache_close(&c);
}

Test(policy_user, refused_experts_never_come_in) {
    user u = {0};
    stk_policy_hooks h = hooks_of(&u);
    h.admit = hook_admit;
    run_stream(&h, &u);
    cr_assert_gt(u.n_admit, 1000);
    cr_assert_eq(u.n_fault, 0);
}

Test(policy_user, a_saved_state_is_told_as_experts_that_come) {
    for (int scored = 0; scored < 2; scored++) {
        user u = {0}, v = {0};
        stk_policy_hooks h = scored ? scored_hooks(&u) : hooks_of(&u), g = h;
        g.user = &v;
        stk_policy_user a, b;
        cr_assert_eq(stk_policy_user_init(&a, &h), 0);
        cr_assert_eq(stk_policy_user_init(&b, &g), 0);
        stk_policy_config config = {.n_key = N_LAYER * N_EXPERT, .n_expert = N_EXPERT, .n_slot = 4, .user = &a};
        stk_policy *p, *q;
        cr_assert_eq(a.ops.open(&p, &config), 0);
        config.user = &b;
        cr_assert_eq(b.ops.open(&q, &config), 0);
        for (uint32_t key = 5; key < 8; key++) cr_assert_eq(a.ops.inserted(p, key, STK_WHY_DEMAND), 0);
        cr_assert_eq(b.ops.inserted(q, 99, STK_WHY_DEMAND), 0);
        char state[256];
        int64_t bytes = a.ops.save(p, state, sizeof state);
        cr_assert(bytes > 0 && bytes <= (int64_t)sizeof state);
        cr_assert_eq(b.ops.load(q, state, 3), STK_EFORMAT);
        cr_assert_eq(v.resident[99], 1);
        cr_assert_eq(b.ops.load(q, state, (size_t)bytes), 0);
        cr_assert_eq(v.resident[99], 0);
        cr_assert(v.resident[5] && v.resident[6] && v.resident[7]);
        const uint64_t busy[2] = {0};
        uint32_t key = 0;
        cr_assert_eq(b.ops.victim(q, busy, &key), 1);
        cr_assert_eq(key, 5);
        a.ops.close(p);
        b.ops.close(q);
    }
}

static int failing_open(void *ctx, const stk_policy_shape *shape, void **policy) {
    (void)ctx, (void)shape, (void)policy;
    return STK_EIO;
}

Test(policy_user, hooks_that_contradict_themselves_are_refused) {
    user u = {0};
    stk_policy_user a;
    stk_policy_hooks h = hooks_of(&u);
    h.victim = NULL;
    cr_assert_eq(stk_policy_user_init(&a, &h), STK_EINVAL);
    h = hooks_of(&u);
    h.score = hook_score;
    cr_assert_eq(stk_policy_user_init(&a, &h), STK_EINVAL);
    h = hooks_of(&u);
    h.struct_bytes += 8;
    cr_assert_eq(stk_policy_user_init(&a, &h), STK_EINVAL);
    h = hooks_of(&u);
    h.open = failing_open;
    cr_assert_eq(stk_policy_user_init(&a, &h), 0);
    const stk_policy_config config = {.n_key = 4, .n_expert = 4, .n_slot = 4, .user = &a};
    stk_policy *p;
    cr_assert_eq(a.ops.open(&p, &config), STK_EIO);
    cr_assert_eq(u.n_close, 0);
}

/* ---- In an engine and in a replay ---- */

static int greatest_victim(void *policy, const uint64_t *busy, uint32_t *key) {
    user *u = policy;
    for (uint32_t i = u->n_key; i-- > 0;)
        if (u->resident[i] && !(busy[i / 64] >> (i % 64) & 1)) {
            *key = i;
            return 1;
        }
    return 0;
}

static stk_stats run_engine(const stk_model *model, const stk_policy_hooks *hooks, uint64_t ram, const char *trace) {
    stk_engine_options o;
    stk_engine_options_default(&o, sizeof o);
    o.n_ctx = 128;
    o.n_threads = 1;
    o.ram_bytes = ram;
    o.hooks = hooks;
    o.trace = trace;
    stk_engine *e;
    cr_assert_eq(stk_engine_open(&e, model, &o), 0, "%s", stk_error_detail());
    for (int i = 0; i < 8; i++) {
        const int32_t token[] = {i * 17 % 131, i * 29 % 131, 3};
        cr_assert_eq(stk_step(e, &(stk_batch){.struct_bytes = sizeof(stk_batch), .n = 3, .token = token}), 0);
    }
    stk_stats s = {.struct_bytes = sizeof s};
    cr_assert_eq(stk_engine_get_stats(e, &s), 0);
    uint8_t flags[64];
    int64_t n = 0, n_resident = 0;
    for (uint32_t layer = 0; stk_get_residency(e, layer, NULL, 0) > 0; layer++) {
        n = stk_get_residency(e, layer, flags, sizeof flags);
        for (int64_t i = 0; i < n; i++) n_resident += flags[i];
    }
    cr_assert_gt(n_resident, 0);
    cr_assert_eq(stk_engine_drop_experts(e), 0);
    cr_assert_eq(stk_get_residency(e, 0, flags, 2), n);
    cr_assert(flags[0] == 0 && flags[1] == 0);
    cr_assert_eq(stk_get_residency(e, 99, flags, 2), STK_EINVAL);
    cr_assert_eq(stk_engine_close(&e), 0);
    return s;
}

Test(policy_user, a_run_with_hooks_is_verified_with_the_same_hooks) {
    stk_model *model;
    cr_assert_eq(stk_model_open(&model, MODEL), 0);
    stk_model_info info = {.struct_bytes = sizeof info};
    cr_assert_eq(stk_model_get_info(model, &info), 0);
    char trace[TEMP_PATH];
    temp_file(trace, "stoker-hooks");
    for (int refuses = 0; refuses < 2; refuses++) {
        user u = {0}, v = {0}, w = {0};
        stk_policy_hooks h = hooks_of(&u);
        h.touch = NULL;
        h.victim = greatest_victim;
        h.admit = refuses ? hook_admit : NULL;
        stk_stats live = run_engine(model, &h, 2 * info.ram_bytes_min, trace);
        cr_assert(u.n_fault == 0 && u.n_evicted > 0 && u.n_close == 1);
        stk_replay_options o;
        stk_replay_options_default(&o, sizeof o);
        stk_replay_result r = {.struct_bytes = sizeof r};
        o.verify = 1;
        cr_assert_eq(stk_replay(trace, &o, &r), STK_EINVAL, "nobody knows that policy by name");
        h.user = &v;
        o.hooks = &h;
        cr_assert_eq(stk_replay(trace, &o, &r), 0, "%s", stk_error_detail());
        cr_assert_eq(r.stats.n_hit, live.n_hit);
        cr_assert_eq(v.n_close, 1);
        h.name = "another";
        cr_assert_eq(stk_replay(trace, &o, &r), STK_EINVAL);
        h.user = &w;
        o.verify = 0;
        o.policy = "lru";
        cr_assert_eq(stk_replay(trace, &o, &r), STK_EINVAL, "two policies");
    }
    unlink(trace);
    stk_model_close(&model);
}

Test(policy_user, a_policy_that_may_refuse_needs_twice_the_least) {
    stk_model *model;
    cr_assert_eq(stk_model_open(&model, MODEL), 0);
    stk_model_info info = {.struct_bytes = sizeof info};
    cr_assert_eq(stk_model_get_info(model, &info), 0);
    user u = {0};
    stk_policy_hooks h = hooks_of(&u);
    h.admit = hook_admit;
    stk_engine_options o;
    stk_engine_options_default(&o, sizeof o);
    o.hooks = &h;
    o.ram_bytes = info.ram_bytes_min;
    stk_engine *e;
    cr_assert_eq(stk_engine_open(&e, model, &o), STK_EBUDGET);
    o.policy = "lru";
    cr_assert_eq(stk_engine_open(&e, model, &o), STK_EINVAL);
    stk_model_close(&model);
}
