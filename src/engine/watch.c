/* watch: windows of steps, and what follows from them. */
#include "watch.h"

#include <stdlib.h>
#include <string.h>

enum {
    FIRST_TRIAL = 4,    /* windows before anything is tried: the cache fills */
    MAX_PATIENCE = 64,  /* windows */
    ROUTINE_TRIAL = 64, /* windows after which a technique that shows a gain is tried without as well */
    MAX_PAUSE = 1 << 14 /* steps */
};
static const double worth = 0.98; /* a change is made for what takes less than this part of the time */

void stk_watch_init(stk_watch *w) { *w = (stk_watch){.patience = 2, .next_trial = FIRST_TRIAL, .pause = STK_WATCH_PAUSE}; }

static void begin_window(stk_watch *w, uint32_t n_skip) {
    w->n_step = 0;
    w->n_skip = n_skip;
    w->n_used = w->n_asked = 0;
    w->read_ns = 0;
}

static bool change(stk_watch *w, enum stk_watch_state state) {
    w->state = state;
    w->n_off = 0;
    begin_window(w, STK_WATCH_SETTLE);
    return true;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* A median, since single steps are late for reasons of their own. */
static double median(const stk_watch *w) {
    uint64_t sorted[STK_WATCH_WINDOW];
    memcpy(sorted, w->step_ns, sizeof sorted);
    qsort(sorted, STK_WATCH_WINDOW, sizeof *sorted, by_value);
    enum { MIDDLE = STK_WATCH_WINDOW / 2 };
    return ((double)sorted[MIDDLE - 1] + (double)sorted[MIDDLE]) / 2;
}

/* By counts: what was used saved at most a read each, what was not cost one. Less than a hundredth of the time is no gain. */
static bool shows_gain(const stk_watch *w) {
    uint64_t n_wasted = w->n_asked > w->n_used ? w->n_asked - w->n_used : 0;
    double read_ns = w->read_ns / STK_WATCH_WINDOW;
    double gain_ns = ((double)w->n_used - (double)n_wasted) * read_ns;
    return gain_ns > 0.01 * w->with_ns * STK_WATCH_WINDOW;
}

/* ---- What a full window means ------------------------------------------------------------------------------------------- */

static bool end_on(stk_watch *w) {
    w->with_ns = median(w);
    w->n_window++;
    bool due = w->n_window >= w->next_trial && (!shows_gain(w) || w->n_window >= w->next_trial + ROUTINE_TRIAL);
    begin_window(w, 0);
    return due ? change(w, STK_WATCH_TRIAL_OFF) : false;
}

static bool end_trial_off(stk_watch *w) {
    w->without_ns = median(w);
    return change(w, STK_WATCH_CHECK_ON);
}

static bool end_check_on(stk_watch *w) {
    double after_ns = median(w);
    w->with_ns = STK_MIN(w->with_ns, after_ns);
    if (w->without_ns < worth * w->with_ns) return change(w, STK_WATCH_OFF);
    w->next_trial = w->n_window + w->patience;
    w->patience = STK_MIN(2 * w->patience, (uint64_t)MAX_PATIENCE);
    return change(w, STK_WATCH_ON);
}

/* The latest steps without are what the trial is compared with. */
static bool end_off(stk_watch *w) {
    w->without_ns = median(w);
    begin_window(w, 0);
    return w->n_off >= w->pause ? change(w, STK_WATCH_TRIAL_ON) : false;
}

static bool end_trial_on(stk_watch *w) {
    w->with_ns = median(w);
    return change(w, STK_WATCH_CHECK_OFF);
}

static bool end_check_off(stk_watch *w) {
    double after_ns = median(w);
    w->without_ns = STK_MIN(w->without_ns, after_ns);
    if (w->with_ns >= worth * w->without_ns) {
        w->pause = STK_MIN(2 * w->pause, (uint64_t)MAX_PAUSE);
        return change(w, STK_WATCH_OFF);
    }
    w->pause = STK_WATCH_PAUSE;
    w->patience = 2;
    w->next_trial = w->n_window + FIRST_TRIAL;
    return change(w, STK_WATCH_ON);
}

bool stk_watch_tell(stk_watch *w, const stk_watch_step *step) {
    if (step->n_tok != w->n_tok) begin_window(w, STK_WATCH_SETTLE);
    w->n_tok = step->n_tok;
    w->n_off++;
    if (w->n_skip > 0) {
        w->n_skip--;
        return false;
    }
    w->step_ns[w->n_step++] = step->step_ns;
    w->n_used += step->n_used;
    w->n_asked += step->n_asked;
    w->read_ns += step->read_ns;
    if (w->n_step < STK_WATCH_WINDOW) return false;
    switch (w->state) {
    case STK_WATCH_ON: return end_on(w);
    case STK_WATCH_TRIAL_OFF: return end_trial_off(w);
    case STK_WATCH_CHECK_ON: return end_check_on(w);
    case STK_WATCH_OFF: return end_off(w);
    case STK_WATCH_TRIAL_ON: return end_trial_on(w);
    case STK_WATCH_CHECK_OFF: return end_check_off(w);
    }
    return false;
}
