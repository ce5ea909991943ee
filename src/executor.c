/* executor: one event on the queues. */
#include "executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum state { WAITING, READING, READY, DONE };

struct stk_executor {
    const stk_world_ops *ops;
    void *world;
    stk_cost *cost;
    uint32_t n_expert, n_slot;
    stk_plan_item *items;  /* [n_expert] in the order of the plan */
    uint8_t *state;        /* [n_expert] enum state of each decision */
    uint8_t *was_read;     /* [n_expert] */
    uint32_t *after;       /* [n_expert] decision that must be computed first, since it holds the slot; or itself for none */
    uint32_t *slot_user;   /* [n_slot] last decision of this event that uses the slot */
    uint64_t *slot_epoch;  /* [n_slot] event in which slot_user was set */
    stk_task *tasks;       /* [n_expert] */
    stk_arrival *arrivals; /* [n_expert] */
    uint32_t *lost;        /* [n_expert] */
    uint64_t epoch;
    double nvme_free_at_ns; /* by the plans made so far, on the world's clock */
    stk_executor_stats stats;
};

int stk_executor_open(stk_executor **out, const stk_world_ops *ops, void *world, uint32_t n_expert, uint32_t n_slot,
                      stk_cost *cost) {
    *out = NULL;
    stk_executor *x = calloc(1, sizeof *x);
    if (!x) return stk_fail(STK_ENOMEM, "executor: out of memory");
    x->ops = ops;
    x->world = world;
    x->cost = cost;
    x->n_expert = n_expert;
    x->n_slot = n_slot;
    x->items = calloc(n_expert, sizeof *x->items);
    x->state = calloc(n_expert, 1);
    x->was_read = calloc(n_expert, 1);
    x->after = calloc(n_expert, sizeof *x->after);
    x->slot_user = calloc(n_slot, sizeof *x->slot_user);
    x->slot_epoch = calloc(n_slot, sizeof *x->slot_epoch);
    x->tasks = calloc(n_expert, sizeof *x->tasks);
    x->arrivals = calloc(n_expert, sizeof *x->arrivals);
    x->lost = calloc(n_expert, sizeof *x->lost);
    if (!x->items || !x->state || !x->was_read || !x->after || !x->slot_user || !x->slot_epoch || !x->tasks || !x->arrivals ||
        !x->lost) {
        stk_executor_close(&x);
        return stk_fail(STK_ENOMEM, "executor: out of memory");
    }
    *out = x;
    return STK_OK;
}

void stk_executor_close(stk_executor **x) {
    if (!*x) return;
    free((*x)->items);
    free((*x)->state);
    free((*x)->was_read);
    free((*x)->after);
    free((*x)->slot_user);
    free((*x)->slot_epoch);
    free((*x)->tasks);
    free((*x)->arrivals);
    free((*x)->lost);
    free(*x);
    *x = NULL;
}

void stk_executor_get_stats(const stk_executor *x, stk_executor_stats *stats) { *stats = x->stats; }
void stk_executor_reset_stats(stk_executor *x) { memset(&x->stats, 0, sizeof x->stats); }

/* Lists the decisions as plan items and finds out who must leave a slot before its next reader. */
static int prepare(stk_executor *x, uint32_t layer, const stk_decision *list, uint32_t n) {
    x->epoch++;
    for (uint32_t i = 0; i < n; i++) {
        const stk_decision *d = &list[i];
        stk_plan_item *it = &x->items[i];
        *it = (stk_plan_item){.index = i, .n_tok = d->n_tok, .wave = d->wave};
        x->ops->sizes(x->world, layer, d->expert, &it->payload_bytes, &it->read_bytes);
        bool hit = d->kind == STK_HIT;
        it->tier = !hit ? STK_TIER_NVME : d->coming ? STK_TIER_COMING : STK_TIER_RAM;
        x->state[i] = (uint8_t)(!hit ? WAITING : d->coming ? READING : READY);
        x->was_read[i] = x->state[i] != READY;
        x->after[i] = x->slot_epoch[d->slot] == x->epoch ? x->slot_user[d->slot] : i;
        x->slot_epoch[d->slot] = x->epoch;
        x->slot_user[d->slot] = i;
    }
    double now = (double)x->ops->now_ns(x->world), done;
    stk_plan_queues queues = {{0.0, STK_MAX(0.0, x->nvme_free_at_ns - now)}};
    STK_TRY(stk_plan_make(x->cost, &queues, x->items, n, &done));
    for (uint32_t i = 0; i < n; i++)
        if (x->items[i].tier == STK_TIER_NVME)
            queues.free_at_ns[STK_QUEUE_NVME] += stk_cost_read_ns(x->cost, x->items[i].read_bytes);
    x->nvme_free_at_ns = now + queues.free_at_ns[STK_QUEUE_NVME];
    return STK_OK;
}

/* Starts every read whose slot is free, in the plan's order. */
static int start_reads(stk_executor *x, uint32_t layer, const stk_decision *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = x->items[i].index;
        if (x->state[at] != WAITING || (x->after[at] != at && x->state[x->after[at]] != DONE)) continue;
        STK_TRY(x->ops->read(x->world, layer, &list[at], at));
        x->state[at] = READING;
    }
    return STK_OK;
}

/* Takes in what has arrived; the first failed read is the result, after all of this call have been taken in. */
static int reap(stk_executor *x, uint32_t n, bool wait) {
    int got = x->ops->reap(x->world, x->arrivals, n, wait);
    if (got < 0) return got;
    int rc = STK_OK;
    for (int i = 0; i < got; i++) {
        const stk_arrival *a = &x->arrivals[i];
        if (a->status < 0) {
            if (rc == STK_OK) rc = a->status;
            continue;
        }
        x->state[a->index] = READY;
    }
    return rc;
}

/* Computes everything that is ready as one batch. Returns how many. */
static int compute_ready(stk_executor *x, uint32_t layer, const stk_event *event, const stk_decision *list, uint32_t n) {
    uint32_t n_task = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = x->items[i].index;
        if (x->state[at] == READY) x->tasks[n_task++] = (stk_task){&list[at], x->was_read[at]};
    }
    if (n_task == 0) return 0;
    uint64_t start = x->ops->now_ns(x->world);
    STK_TRY(x->ops->compute(x->world, layer, event, x->tasks, n_task));
    x->stats.expert_ns += x->ops->now_ns(x->world) - start;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = x->items[i].index;
        if (x->state[at] != READY) continue;
        x->state[at] = DONE;
        if (!x->was_read[at]) continue;
        x->stats.bytes += x->items[i].payload_bytes;
        x->stats.read_bytes += x->items[i].read_bytes;
    }
    return (int)n_task;
}

static int run(stk_executor *x, uint32_t layer, const stk_event *event, const stk_decision *list, uint32_t n,
               const atomic_int *cancel) {
    for (uint32_t left = n; left > 0;) {
        if (atomic_load_explicit(cancel, memory_order_relaxed)) return stk_fail(STK_ECANCELED, "the step was cancelled");
        STK_TRY(start_reads(x, layer, list, n));
        STK_TRY(reap(x, n, false));
        int done = compute_ready(x, layer, event, list, n);
        if (done < 0) return done;
        left -= (uint32_t)done;
        if (done > 0 || left == 0) continue;
        uint64_t start = x->ops->now_ns(x->world);
        int rc = reap(x, n, true);
        x->stats.wait_ns += x->ops->now_ns(x->world) - start;
        if (rc < 0) return rc;
    }
    return STK_OK;
}

int stk_executor_event(stk_executor *x, uint32_t layer, const stk_event *event, const stk_decision *list, uint32_t n,
                       const atomic_int *cancel, const uint32_t **lost, uint32_t *n_lost) {
    *n_lost = 0;
    *lost = x->lost;
    STK_TRY(prepare(x, layer, list, n));
    int rc = run(x, layer, event, list, n, cancel);
    if (rc >= 0) return rc;
    char why[512];
    snprintf(why, sizeof why, "%s", stk_error_detail());
    x->ops->drain(x->world);
    for (uint32_t i = 0; i < n; i++)
        if (x->was_read[i] && x->state[i] != DONE) x->lost[(*n_lost)++] = i;
    return stk_fail(rc, "%s", why);
}
