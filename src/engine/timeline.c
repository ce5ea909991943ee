/* timeline: intervals of work in a fixed array. */
#include "timeline.h"

#include <stdlib.h>

static const struct {
    const char *name, *queue;
} kinds[] = {
    [STK_WORK_DENSE] = {"dense part", "cpu"}, [STK_WORK_EXPERTS] = {"experts", "cpu"},
    [STK_WORK_PACK] = {"packing", "cpu"},     [STK_WORK_WAIT] = {"waiting for reads", "cpu"},
    [STK_WORK_READ] = {"reads", "nvme"},      [STK_WORK_READ_AHEAD] = {"reads ahead", "nvme"},
};
_Static_assert(STK_ARRAY_LEN(kinds) == STK_N_WORK, "each kind has a name");

const char *stk_work_name(uint32_t kind) { return kind < STK_N_WORK ? kinds[kind].name : NULL; }

const char *stk_work_queue(uint32_t kind) { return kind < STK_N_WORK ? kinds[kind].queue : NULL; }

int stk_timeline_open(stk_timeline **out, uint64_t n_max, uint64_t first_step, uint64_t n_step) {
    if (!out) return stk_fail(STK_EINVAL, "stk_timeline_open: out is NULL");
    *out = NULL;
    if (!n_max || n_max > SIZE_MAX / sizeof(stk_work))
        return stk_fail(STK_EINVAL, "a timeline of %llu intervals", (unsigned long long)n_max);
    stk_timeline *t = calloc(1, sizeof *t);
    if (t) t->work = calloc(n_max, sizeof *t->work);
    if (!t || !t->work) {
        stk_timeline_close(&t);
        return stk_fail(STK_ENOMEM, "out of memory for a timeline of %llu intervals", (unsigned long long)n_max);
    }
    t->n_max = n_max;
    t->first_step = first_step;
    t->n_step = n_step;
    *out = t;
    return STK_OK;
}

void stk_timeline_close(stk_timeline **timeline) {
    if (!timeline || !*timeline) return;
    free((*timeline)->work);
    free(*timeline);
    *timeline = NULL;
}

int64_t stk_timeline_get(const stk_timeline *t, const stk_work **work, uint64_t *n_lost) {
    if (!t || !work) return stk_fail(STK_EINVAL, "stk_timeline_get: an argument is NULL");
    *work = t->work;
    if (n_lost) *n_lost = t->n_lost;
    return (int64_t)t->n;
}

void stk_timeline_attach(stk_timeline *t) {
    t->n_seen = 0;
    t->on = false;
}

void stk_timeline_step(stk_timeline *t, uint64_t step, uint64_t now_ns) {
    uint64_t i = t->n_seen++;
    t->step = step;
    t->on = i >= t->first_step && (!t->n_step || i - t->first_step < t->n_step);
    if (i == t->first_step && t->n == 0) t->origin_ns = now_ns;
}

/* A read may have begun before the first step that is wanted. */
static uint64_t since(const stk_timeline *t, uint64_t ns) { return ns > t->origin_ns ? ns - t->origin_ns : 0; }

void stk_timeline_put(stk_timeline *t, stk_work work) {
    work.begin_ns = since(t, work.begin_ns);
    work.end_ns = since(t, work.end_ns);
    work.step = t->step;
    if (work.end_ns <= work.begin_ns) return;
    if (t->n < t->n_max)
        t->work[t->n++] = work;
    else
        t->n_lost++;
}
