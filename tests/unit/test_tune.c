/* tune: the search on a small trace: what it says is what a replay says; it goes on where it was cancelled; nothing half written.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/tune/profile_file.h"
#include "tests/temp.h"

enum { N_LAYER = 3, N_EXPERT = 12, K = 2, N_SEQ = 5, STEPS = 60 };

static char dir[TEMP_PATH], path[TEMP_PATH + 8], profile[TEMP_PATH + 8], report[TEMP_PATH + 8], state[TEMP_PATH + 8];

static uint32_t rng = 9;
static uint32_t below(uint32_t n) {
    rng = rng * 1664525 + 1013904223;
    return (rng >> 16) % n;
}

/* A few experts are used often, with scans through the others between: what lru is bad at. */
static void make(void) {
    temp_make_dir(dir, "stoker-tune");
    snprintf(path, sizeof path, "%s/t.csv", dir);
    snprintf(profile, sizeof profile, "%s/p.json", dir);
    snprintf(report, sizeof report, "%s/r.html", dir);
    snprintf(state, sizeof state, "%s/s.json", dir);
    FILE *f = fopen(path, "w");
    fprintf(f, "# n_expert=%d\n# expert_bytes=65536\nstep,seq,pos,phase,layer,experts\n", N_EXPERT);
    for (int s = 0; s < N_SEQ * STEPS; s++)
        for (int l = 0; l < N_LAYER; l++) {
            uint32_t a = below(3) ? below(2) : 2 + (uint32_t)(s / 2) % (N_EXPERT - 2);
            fprintf(f, "%d,%d,%d,decode,%d,%u %u\n", s, s / STEPS, s % STEPS, l, a, (a + 1 + below(2)) % N_EXPERT);
        }
    fclose(f);
}
static void clean(void) {
    const char *const names[] = {path, profile, report, state};
    for (int i = 0; i < 4; i++) unlink(names[i]);
    cr_expect_eq(rmdir(dir), 0, "something is left in %s", dir);
}
TestSuite(tune, .init = make, .fini = clean);

static stk_tune_options options(void) {
    stk_tune_options o;
    stk_tune_options_default(&o, sizeof o);
    o.fraction = 0.4;
    o.n_threads = 2;
    o.profile = profile;
    o.report = report;
    o.state = state;
    return o;
}

static int tune(const stk_tune_options *o, stk_tune_result *r) {
    const char *paths[] = {path};
    *r = (stk_tune_result){.struct_bytes = sizeof *r};
    return stk_tune(paths, 1, o, r);
}

static stk_replay_result replayed(const char *io) {
    stk_replay_options o;
    stk_replay_result r = {.struct_bytes = sizeof r};
    stk_replay_options_default(&o, sizeof o);
    o.profile = profile;
    o.io = io;
    cr_assert_eq(stk_replay(path, &o, &r), 0, "%s", stk_error_detail());
    return r;
}

static double rate(const stk_stats *s) { return (double)s->n_hit / (double)s->n_lookup; }

Test(tune, by_hit_rate) {
    stk_tune_options o = options();
    stk_tune_result r;
    cr_assert_eq(tune(&o, &r), 0, "%s", stk_error_detail());
    cr_assert_eq(r.timed, 0);
    cr_assert(r.n_fold == N_SEQ && r.n_sequence == N_SEQ && r.n_token == N_SEQ * STEPS);
    cr_assert(r.margin > 0.02, "%g: lru is bad at this", r.margin);
    cr_assert(r.margin_low <= r.margin_high);
    cr_assert(r.hit_rate > r.default_hit_rate && r.hit_rate <= r.bound_hit_rate + 1e-9, "%g, bound %g", r.hit_rate,
              r.bound_hit_rate);
    cr_assert_neq(access(state, F_OK), 0, "the state is gone at the end");
    stk_profile_file p;
    cr_assert_eq(stk_profile_file_load(profile, &p), 0, "%s", stk_error_detail());
    cr_assert_str_eq(p.policy, r.policy);
    cr_assert(p.n_layer == N_LAYER && p.n_expert == N_EXPERT && p.k == K && p.scope == r.scope);
    stk_profile_file_fini(&p);
}

Test(tune, a_replay_of_the_profile_says_the_same) {
    static const char io[] = "emu:200M,100us";
    stk_tune_options o = options();
    stk_tune_result r;
    o.io = io;
    cr_assert_eq(tune(&o, &r), 0, "%s", stk_error_detail());
    cr_assert(r.timed && r.tok_s > r.default_tok_s && r.margin > 0, "%g beside %g tok/s", r.tok_s, r.default_tok_s);
    stk_replay_result x = replayed(io);
    double tok_s = (double)x.stats.n_token * 1e9 / (double)x.stats.step_ns;
    /* Parts are judged by what the others chose, the profile is what all choose. */
    cr_assert(tok_s > r.tok_s * 0.9 && tok_s < r.tok_s * 1.1, "replayed %g, said %g", tok_s, r.tok_s);
    cr_assert(rate(&x.stats) > r.hit_rate - 0.1 && rate(&x.stats) < r.hit_rate + 0.1);
}

Test(tune, explicit_options_win_over_a_profile) {
    stk_tune_options o = options();
    stk_tune_result r;
    cr_assert_eq(tune(&o, &r), 0, "%s", stk_error_detail());
    stk_replay_detail d = {.struct_bytes = sizeof d};
    stk_replay_options ro;
    stk_replay_result x = {.struct_bytes = sizeof x};
    stk_replay_options_default(&ro, sizeof ro);
    ro.profile = profile;
    ro.policy = "random";
    ro.scope = STK_SCOPE_GLOBAL;
    ro.n_slot = 9;
    ro.detail = &d;
    cr_assert_eq(stk_replay(path, &ro, &x), 0, "%s", stk_error_detail());
    cr_assert_str_eq(d.policy, "random");
    cr_assert(x.n_slot == 9 && d.scope == STK_SCOPE_GLOBAL);
}

typedef struct stopper {
    uint64_t at, seen;
} stopper;

static int stop(void *user, const char *what, uint64_t done, uint64_t total) {
    stopper *s = user;
    cr_expect(done <= total);
    if (strcmp(what, "tune") != 0) return 0;
    s->seen = done;
    return done >= s->at;
}

Test(tune, goes_on_where_it_was_cancelled) {
    stk_tune_options o = options();
    stk_tune_result whole, again;
    o.profile = o.report = NULL;
    cr_assert_eq(tune(&o, &whole), 0, "%s", stk_error_detail());
    stopper s = {.at = 20};
    o = options();
    o.progress = stop;
    o.progress_user = &s;
    cr_assert_eq(tune(&o, &again), STK_ECANCELED);
    cr_assert_eq(access(state, F_OK), 0, "the state is kept");
    cr_assert_neq(access(profile, F_OK), 0, "no profile of a search that was cancelled");
    cr_assert_neq(access(report, F_OK), 0);
    o.progress = NULL;
    cr_assert_eq(tune(&o, &again), 0, "%s", stk_error_detail());
    cr_assert(again.n_resumed >= 20, "%u", again.n_resumed);
    cr_assert_str_eq(again.policy, whole.policy);
    cr_assert(again.margin == whole.margin && again.hit_rate == whole.hit_rate && again.scope == whole.scope,
              "%.17g %.17g %u, was %.17g %.17g %u", again.margin, again.hit_rate, again.scope, whole.margin, whole.hit_rate,
              whole.scope);
}

Test(tune, a_state_of_something_else) {
    stk_tune_options o = options();
    stk_tune_result r;
    stopper s = {.at = 20};
    o.progress = stop;
    o.progress_user = &s;
    cr_assert_eq(tune(&o, &r), STK_ECANCELED);
    o.progress = NULL;
    o.fraction = 0.5;
    cr_assert_eq(tune(&o, &r), 0, "%s", stk_error_detail());
    cr_assert_eq(r.n_resumed, 0, "another budget");
    FILE *f = fopen(state, "w");
    fputs("precious\n", f);
    fclose(f);
    cr_assert_eq(tune(&o, &r), STK_EINVAL, "a file that is no state is not written over");
    cr_assert_not_null(strstr(stk_error_detail(), state));
}

Test(tune, bad_arguments) {
    stk_tune_options o = options();
    stk_tune_result r;
    const char *paths[] = {path};
    o.fraction = 0;
    cr_assert_eq(tune(&o, &r), STK_EINVAL, "an imported trace has no budget of its own");
    o.fraction = 1.5;
    cr_assert_eq(tune(&o, &r), STK_EINVAL);
    o.fraction = 0.5;
    o.ram_bytes = 4096;
    cr_assert_eq(tune(&o, &r), STK_EINVAL, "two budgets");
    o.fraction = 0;
    cr_assert_eq(tune(&o, &r), STK_EBUDGET, "%s", stk_error_detail());
    cr_assert_eq(stk_tune(paths, 0, &o, &r), STK_EINVAL);
    o = options();
    o.io = "uring";
    cr_assert_eq(tune(&o, &r), STK_EINVAL, "no modelled drive");
    unlink(state);
    paths[0] = "/nonexistent.trace";
    cr_assert_eq(stk_tune(paths, 1, &o, &r), STK_EIO);
    o = options();
    o.profile = "/nonexistent/p.json";
    cr_assert_lt(tune(&o, &r), 0);
}
