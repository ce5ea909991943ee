/*
 * watch: whether a technique, such as reading ahead, pays. It is told what each step took and what the technique did in it, and
 * says when to turn it off or on. Pure: no clock, no allocation; what it says is the engine's to carry out, log and record.
 *
 * While the technique is on, its gain is estimated from counts: a used expert saved at most the wait for its read, a wasted one
 * cost the drive as much. Where that is no gain, and every few thousand tokens in any case, the last tokens are compared with as
 * many without it, and these with as many with it again: a machine that became slower or quicker meanwhile decides nothing. If
 * those without were quicker than both it stays off, and is tried again in the same way after a pause that doubles each time.
 *
 *     ON --no gain in sight--> TRIAL_OFF --> CHECK_ON --without was quicker--> OFF, else ON
 *     OFF --after a pause--> TRIAL_ON --> CHECK_OFF --with was quicker--> ON, else OFF
 *
 * Who may call it: src/. Threads: one owner.
 */
#ifndef STK_WATCH_H
#define STK_WATCH_H

#include "src/base.h"

enum {
    STK_WATCH_WINDOW = 32, /* steps that are compared */
    STK_WATCH_SETTLE = 8,  /* after a change, steps that do not count */
    STK_WATCH_PAUSE = 512, /* steps until what was turned off is tried again, at first */
};

typedef struct stk_watch_step {
    uint32_t n_tok;           /* steps of another size begin a new comparison */
    uint64_t step_ns;         /* what it took */
    uint64_t n_used, n_asked; /* experts that were read ahead: used, and asked for, in this step */
    double read_ns;           /* one expert's read */
} stk_watch_step;

enum stk_watch_state {
    STK_WATCH_ON,
    STK_WATCH_TRIAL_OFF,
    STK_WATCH_CHECK_ON,
    STK_WATCH_OFF,
    STK_WATCH_TRIAL_ON,
    STK_WATCH_CHECK_OFF
};

typedef struct stk_watch {
    enum stk_watch_state state;
    uint32_t n_tok;
    uint64_t step_ns[STK_WATCH_WINDOW];
    uint32_t n_step, n_skip; /* in the window; still to be left out */
    uint64_t n_used, n_asked;
    double read_ns;             /* sum over the window */
    double with_ns, without_ns; /* median steps: of the latest windows; after a trial, of it and the lesser of those around it */
    uint64_t n_window, next_trial; /* windows with the technique on, in all; the one that is followed by a trial if it shows no
                                      gain */
    uint64_t patience;             /* windows between trials that found nothing */
    uint64_t pause, n_off;         /* steps to be off; since the latest change */
} stk_watch;

void stk_watch_init(stk_watch *w);
/* A step was done. Returns whether the state has changed: w->state says to what; once a trial is over (from CHECK_...), with_ns
 * and without_ns say why. */
bool stk_watch_tell(stk_watch *w, const stk_watch_step *step);
/* Whether the technique is to be on. */
static inline bool stk_watch_is_on(const stk_watch *w) {
    return w->state == STK_WATCH_ON || w->state == STK_WATCH_CHECK_ON || w->state == STK_WATCH_TRIAL_ON;
}

#endif
