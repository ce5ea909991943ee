/*
 * watch: what it says on modelled drives. A token goes through layers; each reads the experts that miss, and, with the technique
 * on, guesses of the next layer while this one computes, on one drive (io/drive.h). How many of the guesses are right is what
 * makes reading ahead pay or not.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "io/drive.h"
#include "src/engine/watch.h"

enum { LAYERS = 12, MISSES = 4 };
static const uint64_t expert_bytes = 1 << 20, compute_ns = 1500000;

typedef struct world {
    stk_drive drive;
    uint64_t now_ns, random;
    double right;  /* part of the guesses that are used */
    uint32_t each; /* guesses a layer */
    double noise;  /* of a step's time, as a part of it */
} world;

static double draw(world *w) {
    w->random ^= w->random << 13, w->random ^= w->random >> 7, w->random ^= w->random << 17;
    return (double)(w->random >> 11) * 0x1p-53;
}

static world make(double right, uint32_t each, double noise) {
    world w = {.random = 88172645463325252u, .right = right, .each = each, .noise = noise};
    cr_assert_eq(stk_drive_parse(&w.drive, "2G,80us", 1), 0, "%s", stk_error_detail());
    return w;
}

/* One token. */
static stk_watch_step token(world *w, bool on) {
    uint64_t begin = w->now_ns;
    uint32_t n_right = 0; /* of the guesses for this layer */
    stk_watch_step s = {.n_tok = 1, .read_ns = 80000 + (double)expert_bytes / 2};
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint64_t there = w->now_ns;
        for (uint32_t i = n_right; i < MISSES; i++) there = stk_drive_submit(&w->drive, w->now_ns, expert_bytes);
        s.n_used += n_right;
        n_right = 0;
        for (uint32_t i = 0; on && i < w->each; i++) {
            (void)stk_drive_submit(&w->drive, w->now_ns, expert_bytes);
            s.n_asked++;
            if (n_right < MISSES) n_right += draw(w) < w->right;
        }
        w->now_ns = STK_MAX(there, w->now_ns) + compute_ns;
    }
    s.step_ns = w->now_ns - begin;
    double late = draw(w);
    s.step_ns += (uint64_t)((double)s.step_ns * w->noise * (late > 0.9 ? 20 * late : late)); /* now and then much too late */
    return s;
}

typedef struct outcome {
    uint32_t n_on, n_change, n_off; /* steps with the technique on, changes, and those to OFF */
    stk_watch watch;
} outcome;

static outcome run(world *w, uint32_t n) {
    outcome o = {.n_on = 0};
    stk_watch_init(&o.watch);
    for (uint32_t i = 0; i < n; i++) {
        o.n_on += stk_watch_is_on(&o.watch);
        stk_watch_step s = token(w, stk_watch_is_on(&o.watch));
        if (!stk_watch_tell(&o.watch, &s)) continue;
        o.n_change++;
        o.n_off += o.watch.state == STK_WATCH_OFF;
    }
    return o;
}

/* Mean time of a step with the technique always on, or off. */
static double mean(double right, uint32_t each, bool on) {
    world w = make(right, each, 0);
    double sum = 0;
    for (int i = 0; i < 200; i++) sum += (double)token(&w, on).step_ns;
    return sum / 200;
}

Test(watch, random_routing_turns_it_off_and_keeps_it_off) {
    cr_assert_gt(mean(0.06, 4, true), 1.05 * mean(0.06, 4, false), "the model must hurt");
    world w = make(0.06, 4, 0.02);
    outcome o = run(&w, 8000);
    cr_assert_eq(o.watch.state, STK_WATCH_OFF);
    cr_assert_gt(o.watch.with_ns, o.watch.without_ns);
    cr_assert_lt(o.n_on, 8000 / 10, "on in %u of 8000 steps", o.n_on);
    cr_assert_gt(o.n_off, 2, "it is tried again");
    cr_assert_lt(o.n_off, 8, "and ever less often");
}

Test(watch, what_is_predicted_well_stays_on) {
    cr_assert_lt(mean(0.85, 4, true), 0.95 * mean(0.85, 4, false), "the model must help");
    world w = make(0.85, 4, 0.02);
    outcome o = run(&w, 8000);
    cr_assert_eq(o.n_off, 0);
    cr_assert_gt(o.n_on, 8000 * 95 / 100, "on in %u of 8000 steps", o.n_on);
}

Test(watch, it_comes_back_when_the_text_changes) {
    world w = make(0.06, 4, 0.02);
    outcome o = {.n_on = 0};
    stk_watch_init(&o.watch);
    for (uint32_t i = 0; i < 6000; i++) {
        if (i == 2000) {
            cr_assert_eq(o.watch.state, STK_WATCH_OFF);
            w.right = 0.85;
        }
        stk_watch_step s = token(&w, stk_watch_is_on(&o.watch));
        (void)stk_watch_tell(&o.watch, &s);
    }
    cr_assert(stk_watch_is_on(&o.watch));
    cr_assert_lt(o.watch.with_ns, o.watch.without_ns);
}

/* The same time with and without; a machine that becomes slower or quicker for reasons of its own must not decide. */
Test(watch, a_drifting_machine_decides_nothing) {
    for (int direction = -1; direction <= 1; direction++) {
        stk_watch w;
        uint32_t n_off = 0;
        double scale = 1;
        stk_watch_init(&w);
        for (uint32_t i = 0; i < 4000; i++, scale *= 1 + direction * 0.0005) {
            stk_watch_step s = {.n_tok = 1, .step_ns = (uint64_t)(1e7 * scale), .n_used = 1, .n_asked = 3, .read_ns = 1e5};
            n_off += stk_watch_tell(&w, &s) && w.state == STK_WATCH_OFF;
        }
        cr_assert_eq(n_off, 0, "direction %d", direction);
    }
}

Test(watch, steps_of_another_size_are_not_compared) {
    stk_watch w;
    stk_watch_init(&w);
    for (uint32_t i = 0; i < 4000; i++) {
        stk_watch_step s = {.n_tok = 1 + i / 20 % 2, .step_ns = 1000000, .n_asked = 4, .read_ns = 1e5};
        cr_assert(!stk_watch_tell(&w, &s), "a window of 32 among runs of 20");
    }
}
