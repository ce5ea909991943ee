/*
 * executor: every expert once, reads in time, slots never overwritten too early, errors that lose nothing; on a world of this
 * file whose clock is virtual and whose drive and CPU take what the test says.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "src/engine/executor.h"

enum { MAX = 64 };

typedef struct world {
    uint64_t now, read_ns, compute_ns, drive_free;
    struct {
        uint64_t done;
        uint32_t index;
        bool told; /* of gate and up */
    } flight[MAX];
    uint32_t n_flight;
    int fail_index;     /* decision whose read fails, -1 for none */
    int cancel_at_read; /* sets *cancel when this many reads have been started */
    atomic_int *cancel;
    int n_read;
    uint32_t owner[MAX]; /* key in each slot, UINT32_MAX for none */
    bool landed[MAX], up[MAX];
    uint32_t computed[MAX]; /* times, by decision */
    const stk_decision *list;
    bool drained;
    uint32_t lost[MAX];
    uint32_t prefetched[MAX], n_prefetched, stale[MAX], n_stale;
    bool halves;         /* gate and up arrive when half of the read's time is over */
    uint8_t phases[MAX]; /* computed, by decision */
    int fail_in;         /* enum call that fails, once */
} world;

enum call { NONE, READ, PREFETCH, WANT, REAP, COMPUTE };

static int fails(world *w, enum call call) {
    if (w->fail_in != (int)call) return 0;
    w->fail_in = NONE;
    return stk_fail(STK_ENOMEM, "call %d", (int)call);
}

static uint64_t now_ns(void *p) { return ((world *)p)->now; }

static int do_read(void *p, uint32_t layer, const stk_decision *d, uint32_t index) {
    world *w = p;
    (void)layer;
    if (d->victim != STK_NO_KEY)
        for (uint32_t i = 0; i < index; i++)
            cr_assert(w->list[i].key != d->victim || w->computed[i], "the victim of %u is read over before it was computed",
                      index);
    w->owner[d->slot] = d->key;
    w->landed[d->slot] = false;
    if (fails(w, READ)) return STK_ENOMEM;
    w->drive_free = STK_MAX(w->drive_free, w->now) + w->read_ns;
    w->flight[w->n_flight].done = w->drive_free;
    w->flight[w->n_flight].told = false;
    w->flight[w->n_flight++].index = index;
    if (++w->n_read == w->cancel_at_read) atomic_store(w->cancel, 1);
    return 0;
}

static int do_prefetch(void *p, uint32_t layer, const stk_decision *d) {
    world *w = p;
    (void)layer;
    w->prefetched[w->n_prefetched++] = d->key;
    w->owner[d->slot] = d->key;
    w->landed[d->slot] = false;
    return fails(w, PREFETCH);
}

static int do_want(void *p, const stk_decision *d, uint32_t index) {
    world *w = p;
    if (w->landed[d->slot]) return 1;
    if (fails(w, WANT)) return STK_ENOMEM;
    w->drive_free = STK_MAX(w->drive_free, w->now) + w->read_ns;
    w->flight[w->n_flight].done = w->drive_free;
    w->flight[w->n_flight].told = false;
    w->flight[w->n_flight++].index = index;
    return 0;
}

static int do_reap(void *p, stk_arrival *out, uint32_t max, bool wait) {
    world *w = p;
    if (fails(w, REAP)) return STK_ENOMEM;
    if (wait) {
        cr_assert(w->n_flight > 0, "waiting for nothing");
        uint64_t first = UINT64_MAX;
        for (uint32_t i = 0; i < w->n_flight; i++)
            first = STK_MIN(first, w->flight[i].done - (w->halves && !w->flight[i].told ? w->read_ns / 2 : 0));
        w->now = STK_MAX(w->now, first);
    }
    uint32_t n = 0, kept = 0;
    for (uint32_t i = 0; i < w->n_flight; i++) {
        if (w->halves && !w->flight[i].told && w->flight[i].done <= w->now + w->read_ns / 2 && n < max) {
            w->flight[i].told = true;
            w->up[w->list[w->flight[i].index].slot] = true;
            out[n++] = (stk_arrival){w->flight[i].index, 0, STK_PHASE_UP};
        }
        if (w->flight[i].done > w->now || n == max) {
            w->flight[kept++] = w->flight[i];
            continue;
        }
        uint32_t at = w->flight[i].index;
        bool failed = (int)at == w->fail_index;
        w->landed[w->list[at].slot] = !failed;
        out[n++] = (stk_arrival){at, failed ? stk_fail(STK_EIO, "injected") : 0, STK_PHASE_ALL};
    }
    w->n_flight = kept;
    return (int)n;
}

static int do_compute(void *p, uint32_t layer, const stk_event *event, const stk_task *tasks, uint32_t n) {
    world *w = p;
    (void)layer;
    (void)event;
    for (uint32_t i = 0; i < n; i++) {
        const stk_decision *d = tasks[i].decision;
        cr_assert_eq(w->owner[d->slot], d->key, "expert %u is not in its slot", d->key);
        cr_assert(w->landed[d->slot] || (w->up[d->slot] && tasks[i].phases == STK_PHASE_UP));
        cr_assert(tasks[i].phases && !(w->phases[d - w->list] & tasks[i].phases), "a phase is computed twice");
        w->phases[d - w->list] |= tasks[i].phases;
        if (w->phases[d - w->list] == STK_PHASE_ALL) w->computed[d - w->list]++;
        w->now += w->compute_ns;
    }
    return fails(w, COMPUTE);
}

static uint32_t do_drain(void *p, const uint32_t **keys) {
    world *w = p;
    uint32_t n = 0;
    for (uint32_t i = 0; i < MAX; i++)
        if (w->owner[i] != UINT32_MAX && !w->landed[i]) w->lost[n++] = w->owner[i];
    w->n_flight = 0;
    w->drained = true;
    *keys = w->lost;
    return n;
}

static uint64_t do_arrive_ns(void *p) {
    (void)p;
    return 0;
}

static void do_sizes(void *p, uint32_t layer, uint32_t expert, uint64_t *payload, uint64_t *asked) {
    (void)p;
    (void)layer;
    *payload = 1000 + expert;
    *asked = 4096;
}

static void do_backlog(void *p, uint64_t *demand, uint64_t *ahead) {
    (void)p;
    *demand = 3000;
    *ahead = 6000;
}

static void do_stale(void *p, uint32_t key) {
    world *w = p;
    w->stale[w->n_stale++] = key;
}

static const stk_world_ops ops = {now_ns,   do_read,  do_prefetch,  do_want,    do_reap, do_compute,
                                  do_drain, do_sizes, do_arrive_ns, do_backlog, do_stale};

static void start(world *w, const stk_decision *list, uint32_t n, uint64_t read_ns, uint64_t compute_ns) {
    memset(w, 0, sizeof *w);
    memset(w->owner, 0xff, sizeof w->owner);
    w->read_ns = read_ns;
    w->compute_ns = compute_ns;
    w->fail_index = -1;
    w->list = list;
    for (uint32_t i = 0; i < n; i++)
        if (list[i].kind == STK_HIT) {
            w->owner[list[i].slot] = list[i].key;
            w->landed[list[i].slot] = true;
        }
}

static stk_executor *open_executor(world *w, stk_cost *cost) {
    stk_executor *x;
    stk_cost_default(cost);
    cr_assert_eq(stk_executor_open(&x, &ops, w, MAX, MAX, MAX, cost), 0);
    return x;
}

static int run(stk_executor *x, const stk_event *e, const stk_decision *list, uint32_t n, const atomic_int *cancel,
               const uint32_t **lost, uint32_t *n_lost) {
    *n_lost = 0;
    int rc = stk_executor_begin(x, 0, e, list, n);
    if (rc >= 0) rc = stk_executor_finish(x, cancel);
    if (rc < 0) stk_executor_give_up(x, lost, n_lost);
    return rc;
}

static stk_decision make(uint32_t key, enum stk_decision_kind kind, uint32_t slot, uint32_t victim, uint32_t wave) {
    return (stk_decision){
        .key = key, .expert = (uint16_t)key, .kind = (uint8_t)kind, .n_tok = 1, .slot = slot, .victim = victim, .wave = wave};
}

Test(executor, hits_are_computed_while_misses_are_read) {
    stk_decision list[8];
    for (uint32_t i = 0; i < 8; i++) list[i] = make(i, i < 4 ? STK_HIT : STK_ADMIT, i, STK_NO_KEY, 0);
    world w;
    start(&w, list, 8, 100, 100);
    stk_cost cost;
    stk_executor *x = open_executor(&w, &cost);
    stk_event e = {.n_tok = 1};
    atomic_int cancel = 0;
    const uint32_t *lost;
    uint32_t n_lost;
    cr_assert_eq(run(x, &e, list, 8, &cancel, &lost, &n_lost), 0);
    for (int i = 0; i < 8; i++) cr_assert_eq(w.computed[i], 1);
    cr_assert_eq(w.now, 800, "4 reads are hidden behind 8 computations of the same length");
    stk_executor_stats s;
    stk_executor_get_stats(x, &s);
    cr_assert_eq(s.bytes, 4 * 1000 + 4 + 5 + 6 + 7);
    cr_assert_eq(s.read_bytes, 4 * 4096);
    cr_assert_eq(s.expert_ns, 800);
    cr_assert_eq(s.wait_ns, 0);
    stk_executor_close(&x);
}

Test(executor, a_slow_drive_costs_its_time_and_one_computation) {
    stk_decision list[6];
    for (uint32_t i = 0; i < 6; i++) list[i] = make(i, STK_ADMIT, i, STK_NO_KEY, 0);
    world w;
    start(&w, list, 6, 1000, 10);
    stk_cost cost;
    stk_executor *x = open_executor(&w, &cost);
    stk_event e = {.n_tok = 1};
    atomic_int cancel = 0;
    const uint32_t *lost;
    uint32_t n_lost;
    cr_assert_eq(run(x, &e, list, 6, &cancel, &lost, &n_lost), 0);
    cr_assert_eq(w.now, 6010);
    stk_executor_close(&x);
}

Test(executor, waves_reuse_slots_after_their_experts_were_computed) {
    /* 9 experts through 3 slots: do_read checks that no victim is overwritten too early. */
    stk_decision list[9];
    for (uint32_t i = 0; i < 9; i++) list[i] = make(i, i == 0 ? STK_HIT : STK_ADMIT, i % 3, i < 3 ? STK_NO_KEY : i - 3, i / 3);
    world w;
    start(&w, list, 9, 7, 5);
    stk_cost cost;
    stk_executor *x = open_executor(&w, &cost);
    stk_event e = {.n_tok = 1};
    atomic_int cancel = 0;
    const uint32_t *lost;
    uint32_t n_lost;
    cr_assert_eq(run(x, &e, list, 9, &cancel, &lost, &n_lost), 0);
    for (int i = 0; i < 9; i++) cr_assert_eq(w.computed[i], 1);
    stk_executor_close(&x);
}

Test(executor, a_failed_read_names_what_was_lost_and_the_next_event_runs) {
    stk_decision list[5];
    for (uint32_t i = 0; i < 5; i++) list[i] = make(i, i < 1 ? STK_HIT : STK_ADMIT, i, STK_NO_KEY, 0);
    world w;
    start(&w, list, 5, 100, 1);
    w.fail_index = 2;
    stk_cost cost;
    stk_executor *x = open_executor(&w, &cost);
    stk_event e = {.n_tok = 1};
    atomic_int cancel = 0;
    const uint32_t *lost;
    uint32_t n_lost;
    cr_assert_eq(run(x, &e, list, 5, &cancel, &lost, &n_lost), STK_EIO);
    cr_assert_str_eq(stk_error_detail(), "injected");
    cr_assert(w.drained);
    cr_assert_eq(n_lost, 3);
    for (uint32_t i = 0; i < 3; i++) cr_assert_eq(lost[i], i + 2);
    cr_assert_eq(w.computed[0] + w.computed[1], 2);
    stk_decision again[1] = {make(2, STK_ADMIT, 2, STK_NO_KEY, 0)};
    start(&w, again, 1, 100, 1);
    cr_assert_eq(run(x, &e, again, 1, &cancel, &lost, &n_lost), 0);
    cr_assert_eq(w.computed[0], 1);
    stk_executor_close(&x);
}

Test(executor, a_cancelled_event_loses_what_has_not_been_computed) {
    stk_decision list[4];
    for (uint32_t i = 0; i < 4; i++) list[i] = make(i, STK_ADMIT, i, STK_NO_KEY, 0);
    world w;
    start(&w, list, 4, 100, 1);
    atomic_int cancel = 0;
    w.cancel = &cancel;
    w.cancel_at_read = 4;
    stk_cost cost;
    stk_executor *x = open_executor(&w, &cost);
    stk_event e = {.n_tok = 1};
    const uint32_t *lost;
    uint32_t n_lost;
    cr_assert_eq(run(x, &e, list, 4, &cancel, &lost, &n_lost), STK_ECANCELED);
    cr_assert(w.drained);
    cr_assert_eq(n_lost, 4);
    stk_executor_close(&x);
}

Test(executor, gate_and_up_are_computed_while_down_is_on_its_way) {
    stk_decision list[3];
    for (uint32_t i = 0; i < 3; i++) list[i] = make(i, STK_ADMIT, i, STK_NO_KEY, 0);
    world w;
    start(&w, list, 3, 1000, 10);
    w.halves = true;
    stk_cost cost;
    stk_executor *x = open_executor(&w, &cost);
    stk_event e = {.n_tok = 1};
    atomic_int cancel = 0;
    const uint32_t *lost;
    uint32_t n_lost;
    cr_assert_eq(run(x, &e, list, 3, &cancel, &lost, &n_lost), 0);
    for (int i = 0; i < 3; i++) cr_assert_eq(w.phases[i], STK_PHASE_ALL);
    cr_assert_eq(w.now, 3010, "half an expert after the last read");
    stk_executor_stats s;
    stk_executor_get_stats(x, &s);
    cr_assert(s.expert_ns == 60 && s.wait_ns == 3010 - 60 && s.bytes == 3003);
    stk_executor_close(&x);
}

/* 4 hits that were read ahead: two there, two coming; and two misses. Their bytes count once, when they were asked for. */
Test(executor, what_was_read_ahead_is_waited_for_and_counted_once) {
    stk_decision list[6];
    for (uint32_t i = 0; i < 6; i++) list[i] = make(i, i < 4 ? STK_HIT : STK_ADMIT, i, STK_NO_KEY, 0);
    world w;
    start(&w, list, 0, 100, 10);
    stk_cost cost;
    stk_executor *x = open_executor(&w, &cost);
    stk_event e = {.n_tok = 1};
    atomic_int cancel = 0;
    const uint32_t *lost;
    uint32_t n_lost;
    for (uint32_t i = 0; i < 4; i++) {
        stk_decision d = make(i, STK_ADMIT, i, STK_NO_KEY, 0);
        cr_assert_eq(stk_executor_prefetch(x, &d), 0);
        list[i].coming = 1;
        w.landed[i] = i < 2;
    }
    stk_executor_stats s;
    stk_executor_get_stats(x, &s);
    cr_assert(s.bytes == 4 * 1000 + 0 + 1 + 2 + 3 && s.read_bytes == 4 * 4096);
    cr_assert_eq(run(x, &e, list, 6, &cancel, &lost, &n_lost), 0);
    for (int i = 0; i < 6; i++) cr_assert_eq(w.computed[i], 1);
    cr_assert_eq(w.n_read, 2);
    stk_executor_get_stats(x, &s);
    cr_assert(s.bytes == 6 * 1000 + 15 && s.read_bytes == 6 * 4096);
    stk_executor_close(&x);
}

Test(executor, what_was_read_ahead_and_lost_is_not_counted) {
    stk_decision list[1] = {make(0, STK_ADMIT, 0, STK_NO_KEY, 0)};
    world w;
    start(&w, list, 1, 100, 10);
    w.fail_index = 0;
    stk_cost cost;
    stk_executor *x = open_executor(&w, &cost);
    stk_event e = {.n_tok = 1};
    atomic_int cancel = 0;
    const uint32_t *lost;
    uint32_t n_lost;
    stk_executor_stats s;
    for (uint32_t i = 5; i < 8; i++) {
        stk_decision d = make(i, STK_ADMIT, i, STK_NO_KEY, 0);
        cr_assert_eq(stk_executor_prefetch(x, &d), 0);
        w.landed[i] = i == 6;
    }
    cr_assert_eq(run(x, &e, list, 1, &cancel, &lost, &n_lost), STK_EIO);
    cr_assert(n_lost == 3 && lost[0] == 0 && lost[1] == 5 && lost[2] == 7);
    stk_executor_get_stats(x, &s);
    cr_assert(s.bytes == 1006 && s.read_bytes == 4096);
    stk_executor_close(&x);
}

/* Whichever call fails: every expert that is not there is lost, once, and counts for nothing. */
Test(executor, an_error_of_any_call_loses_nothing_twice) {
    for (int call = READ; call <= COMPUTE; call++) {
        stk_decision list[4];
        for (uint32_t i = 0; i < 4; i++) list[i] = make(i, i < 1 ? STK_HIT : STK_ADMIT, i, STK_NO_KEY, 0);
        world w;
        start(&w, list, 0, 100, 10);
        stk_cost cost;
        stk_executor *x = open_executor(&w, &cost);
        stk_event e = {.n_tok = 1};
        atomic_int cancel = 0;
        const uint32_t *lost;
        uint32_t n_lost, seen[MAX] = {0};
        stk_decision before = make(0, STK_ADMIT, 0, STK_NO_KEY, 0), later = make(9, STK_ADMIT, 9, STK_NO_KEY, 0);
        cr_assert_eq(stk_executor_prefetch(x, &before), 0);
        list[0].coming = 1;
        w.fail_in = call;
        int rc = stk_executor_begin(x, 0, &e, list, 4);
        if (rc >= 0) rc = stk_executor_prefetch(x, &later);
        if (rc >= 0) rc = stk_executor_finish(x, &cancel);
        cr_assert_eq(rc, STK_ENOMEM, "call %d", call);
        stk_executor_give_up(x, &lost, &n_lost);
        for (uint32_t i = 0; i < n_lost; i++) seen[lost[i]]++;
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < 4; i++) {
            cr_assert_eq(seen[i], !w.landed[i], "call %d: expert %u is %d times among the lost", call, i, (int)seen[i]);
            if (w.landed[i]) bytes += 1000 + i;
        }
        cr_assert_eq(seen[9], w.n_prefetched == 2, "call %d", call);
        stk_executor_stats s;
        stk_executor_get_stats(x, &s);
        cr_assert_eq(s.bytes, bytes, "call %d: %d bytes", call, (int)s.bytes);
        stk_executor_close(&x);
    }
}

/* Events of one expert, which the cache has there; prefetches go to other slots. */
static void event_of(stk_executor *x, world *w, uint64_t step, uint32_t layer, const stk_decision *d) {
    const atomic_int cancel = 0;
    stk_event e = {.step = step, .layer = layer, .n_tok = 1};
    w->list = d;
    memset(w->phases, 0, sizeof w->phases);
    w->owner[d->slot] = d->key;
    w->landed[d->slot] = true;
    cr_assert_eq(stk_executor_begin(x, layer, &e, d, 1), 0);
    cr_assert_eq(stk_executor_finish(x, &cancel), 0);
}

Test(executor, what_is_read_ahead_in_vain_is_given_up_when_its_layer_has_come) {
    enum { E = 8 };
    world w;
    stk_cost cost;
    stk_executor *x;
    start(&w, NULL, 0, 100, 1);
    stk_cost_default(&cost);
    cr_assert_eq(stk_executor_open(&x, &ops, &w, E, MAX, MAX, &cost), 0);
    stk_decision hit[3], ahead[4];
    for (uint32_t l = 0; l < 3; l++) hit[l] = make(l * E, STK_HIT, l, STK_NO_KEY, 0);
    for (uint32_t i = 0; i < 4; i++) ahead[i] = make(E + E * (i / 2) + i, STK_ADMIT, 10 + i, STK_NO_KEY, 0);
    event_of(x, &w, 0, 0, &hit[0]);
    for (uint32_t i = 0; i < 4; i++) cr_assert_eq(stk_executor_prefetch(x, &ahead[i]), 0); /* two of layer 1, two of layer 2 */
    hit[1] = ahead[0];
    hit[1].kind = STK_HIT;
    event_of(x, &w, 0, 1, &hit[1]);
    cr_assert(w.n_stale == 1 && w.stale[0] == ahead[1].key, "one was wanted, one was not; layer 2 is still to come");
    event_of(x, &w, 1, 0, &hit[0]);
    cr_assert_eq(w.n_stale, 3, "the step ended before layer 2");
    event_of(x, &w, 1, 2, &hit[2]);
    cr_assert_eq(w.n_stale, 3);
    stk_executor_close(&x);
}

Test(executor, tells_what_the_queues_have_to_do) {
    stk_decision list[4];
    for (uint32_t i = 0; i < 4; i++) list[i] = make(i, i < 2 ? STK_HIT : STK_ADMIT, i, STK_NO_KEY, 0);
    world w;
    stk_cost cost;
    stk_gain_now now;
    start(&w, list, 4, 100, 100);
    stk_executor *x = open_executor(&w, &cost);
    stk_event e = {.n_tok = 5};
    cr_assert_eq(stk_executor_begin(x, 0, &e, list, 4), 0);
    stk_executor_get_now(x, &now);
    cr_assert(now.cost == &cost && now.n_tok == 5 && now.n_used == 4 && now.n_absent == 2);
    cr_assert_float_eq(now.demand_ns, stk_cost_read_ns(&cost, 3000), 1e-6);
    cr_assert_float_eq(now.ahead_ns, stk_cost_read_ns(&cost, 6000), 1e-6);
    cr_assert_geq(now.cpu_ns, 2 * stk_cost_read_ns(&cost, 4096) + cost.nvme_latency_ns, "two reads");
    w.now += 1000000000;
    stk_executor_get_now(x, &now);
    cr_assert_eq(now.cpu_ns, 0);
    stk_executor_close(&x);
}
