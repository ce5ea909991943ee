/* executor: one event on the queues. */
#include "executor.h"

#include <stdlib.h>

enum state { WAITING, READING, THERE };

struct stk_executor {
    const stk_world_ops *ops;
    void *world;
    stk_cost *cost;
    uint32_t n_expert, n_key, n_slot;
    stk_plan_item *items;  /* [n_expert] in the order of the plan */
    uint8_t *state;        /* [n_expert] enum state of each decision */
    uint8_t *can, *did;    /* [n_expert] phases whose weights are there; that were computed */
    uint32_t *after;       /* [n_expert] decision that must be computed first, since it holds the slot; or itself for none */
    uint32_t *slot_user;   /* [n_slot] last decision of this event that uses the slot */
    uint64_t *slot_epoch;  /* [n_slot] event in which slot_user was set */
    stk_task *tasks;       /* [n_expert] */
    stk_arrival *arrivals; /* [2 * n_expert] */
    uint32_t *lost;        /* [n_key] */
    uint8_t *counted;      /* [n_key] prefetched, counted in bytes, and not computed since */
    uint32_t *ahead;       /* [n_key] prefetched for events that have not come */
    uint32_t n_ahead;
    uint64_t step, ahead_step; /* of the event; in which those were prefetched */
    uint64_t epoch;
    double nvme_free_at_ns; /* by the plans made so far, on the world's clock */
    double cpu_free_at_ns;
    stk_executor_stats stats;
    stk_timeline *timeline; /* NULL: none */

    /* The event. */
    const stk_event *event;
    const stk_decision *list;
    uint32_t layer, n;
};

int stk_executor_open(stk_executor **out, const stk_world_ops *ops, void *world, uint32_t n_expert, uint32_t n_key,
                      uint32_t n_slot, stk_cost *cost) {
    *out = NULL;
    stk_executor *x = calloc(1, sizeof *x);
    if (!x) return stk_fail(STK_ENOMEM, "executor: out of memory");
    x->ops = ops;
    x->world = world;
    x->cost = cost;
    x->n_expert = n_expert;
    x->n_key = n_key;
    x->n_slot = n_slot;
    x->items = calloc(n_expert, sizeof *x->items);
    x->state = calloc(n_expert, 1);
    x->can = calloc(n_expert, 1);
    x->did = calloc(n_expert, 1);
    x->after = calloc(n_expert, sizeof *x->after);
    x->slot_user = calloc(n_slot, sizeof *x->slot_user);
    x->slot_epoch = calloc(n_slot, sizeof *x->slot_epoch);
    x->tasks = calloc(n_expert, sizeof *x->tasks);
    x->arrivals = calloc(n_expert, 2 * sizeof *x->arrivals);
    x->lost = calloc(n_key, sizeof *x->lost);
    x->counted = calloc(n_key, sizeof *x->counted);
    x->ahead = calloc(n_key, sizeof *x->ahead);
    if (!x->items || !x->state || !x->can || !x->did || !x->after || !x->slot_user || !x->slot_epoch || !x->tasks ||
        !x->arrivals || !x->lost || !x->counted || !x->ahead) {
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
    free((*x)->can);
    free((*x)->did);
    free((*x)->after);
    free((*x)->slot_user);
    free((*x)->slot_epoch);
    free((*x)->tasks);
    free((*x)->arrivals);
    free((*x)->lost);
    free((*x)->counted);
    free((*x)->ahead);
    free(*x);
    *x = NULL;
}

void stk_executor_set_timeline(stk_executor *x, stk_timeline *timeline) { x->timeline = timeline; }

void stk_executor_get_stats(const stk_executor *x, stk_executor_stats *stats) {
    *stats = x->stats;
    stats->arrive_ns = x->ops->arrive_ns(x->world);
}

/* A prefetched expert is wanted: it is there, or it will arrive. */
static int want(stk_executor *x, const stk_decision *d, uint32_t index) {
    int there = x->ops->want(x->world, d, index);
    x->state[index] = there == 1 ? THERE : READING;
    x->can[index] = there == 1 ? STK_PHASE_ALL : 0;
    return there < 0 ? there : STK_OK;
}

/* Lists the decisions as plan items and finds out who must leave a slot before its next reader. */
static int prepare(stk_executor *x) {
    x->epoch++;
    for (uint32_t i = 0; i < x->n; i++) {
        const stk_decision *d = &x->list[i];
        x->items[i] = (stk_plan_item){.index = i, .n_tok = d->n_tok, .wave = d->wave};
        x->state[i] = d->kind == STK_HIT ? THERE : WAITING;
        x->can[i] = d->kind == STK_HIT ? STK_PHASE_ALL : 0;
        x->did[i] = 0;
        x->after[i] = x->slot_epoch[d->slot] == x->epoch ? x->slot_user[d->slot] : i;
        x->slot_epoch[d->slot] = x->epoch;
        x->slot_user[d->slot] = i;
    }
    for (uint32_t i = 0; i < x->n; i++) {
        const stk_decision *d = &x->list[i];
        stk_plan_item *it = &x->items[i];
        x->ops->sizes(x->world, x->layer, d->expert, &it->payload_bytes, &it->read_bytes);
        if (d->coming) STK_TRY(want(x, d, i));
        it->tier = x->state[i] == WAITING ? STK_TIER_NVME : x->state[i] == READING ? STK_TIER_COMING : STK_TIER_RAM;
    }
    double now = (double)x->ops->now_ns(x->world), done;
    stk_plan_queues queues = {{[STK_QUEUE_NVME] = STK_MAX(0.0, x->nvme_free_at_ns - now)}};
    STK_TRY(stk_plan_make(x->cost, &queues, x->items, x->n, &done));
    for (uint32_t i = 0; i < x->n; i++)
        if (x->items[i].tier == STK_TIER_NVME)
            queues.free_at_ns[STK_QUEUE_NVME] += stk_cost_read_ns(x->cost, x->items[i].read_bytes);
    x->nvme_free_at_ns = now + queues.free_at_ns[STK_QUEUE_NVME];
    x->cpu_free_at_ns = now + done;
    return STK_OK;
}

static bool is_decided(const stk_executor *x, uint32_t key) {
    for (uint32_t i = 0; i < x->n; i++)
        if (x->list[i].key == key) return true;
    return false;
}

/* What was read ahead for this event, or for one that its step did not reach, and is not wanted makes room on the drive. */
static void drop_stale(stk_executor *x) {
    uint32_t kept = 0;
    bool over = x->step != x->ahead_step;
    for (uint32_t i = 0; i < x->n_ahead; i++) {
        uint32_t key = x->ahead[i];
        if (!over && key / x->n_expert != x->layer)
            x->ahead[kept++] = key;
        else if (!is_decided(x, key))
            x->ops->stale(x->world, key);
    }
    x->n_ahead = kept;
}

/* Starts every read whose slot is free, in the plan's order. */
static int start_reads(stk_executor *x) {
    for (uint32_t i = 0; i < x->n; i++) {
        uint32_t at = x->items[i].index;
        if (x->state[at] != WAITING || (x->after[at] != at && x->did[x->after[at]] != STK_PHASE_ALL)) continue;
        x->state[at] = READING; /* also where that fails: the world lists it among the lost */
        x->counted[x->list[at].key] = 0;
        STK_TRY(x->ops->read(x->world, x->layer, &x->list[at], at));
    }
    return STK_OK;
}

static void note(stk_executor *x, uint32_t kind, uint64_t begin_ns, uint64_t end_ns, uint32_t n_expert) {
    stk_timeline_put(x->timeline,
                     (stk_work){begin_ns, end_ns, .kind = kind, .layer = x->layer, .expert = UINT32_MAX, .n_expert = n_expert});
}

/* What reap did: it waits first, if at all, and then packs. */
static int timed_reap(stk_executor *x, bool wait) {
    if (!stk_timeline_on(x->timeline)) return x->ops->reap(x->world, x->arrivals, 2 * x->n, wait);
    uint64_t begin = x->ops->now_ns(x->world), packed = x->ops->arrive_ns(x->world);
    int got = x->ops->reap(x->world, x->arrivals, 2 * x->n, wait);
    uint64_t end = x->ops->now_ns(x->world);
    packed = STK_MIN(x->ops->arrive_ns(x->world) - packed, end - begin);
    if (wait) note(x, STK_WORK_WAIT, begin, end - packed, 0);
    note(x, STK_WORK_PACK, end - packed, end, 0);
    return got;
}

/* Takes in what has arrived; the first failed read is the result, after all of this call have been taken in. */
static int reap(stk_executor *x, bool wait) {
    int got = timed_reap(x, wait);
    if (got < 0) return got;
    int rc = STK_OK;
    for (int i = 0; i < got; i++) {
        const stk_arrival *a = &x->arrivals[i];
        if (a->status < 0) {
            if (rc == STK_OK) rc = a->status;
            continue;
        }
        x->can[a->index] = a->phases;
        if (a->phases == STK_PHASE_ALL) x->state[a->index] = THERE;
    }
    return rc;
}

static void count(stk_executor *x, const stk_plan_item *it) {
    const stk_decision *d = &x->list[it->index];
    if (d->kind == STK_HIT) {
        x->counted[d->key] = 0; /* when its prefetch was issued */
        return;
    }
    x->stats.bytes += it->payload_bytes;
    x->stats.read_bytes += it->read_bytes;
}

/* Computes everything that can be as one batch. Returns how many experts were finished, and in *any whether there was a batch. */
static int compute_ready(stk_executor *x, bool *any) {
    uint32_t n_task = 0;
    int finished = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        uint32_t at = x->items[i].index;
        uint8_t phases = x->can[at] & (uint8_t)~x->did[at];
        if (phases) x->tasks[n_task++] = (stk_task){&x->list[at], phases, NULL};
    }
    *any = n_task > 0;
    if (n_task == 0) return 0;
    uint64_t start = x->ops->now_ns(x->world);
    STK_TRY(x->ops->compute(x->world, x->layer, x->event, x->tasks, n_task));
    uint64_t end = x->ops->now_ns(x->world);
    x->stats.expert_ns += end - start;
    if (stk_timeline_on(x->timeline)) note(x, STK_WORK_EXPERTS, start, end, n_task);
    for (uint32_t i = 0; i < x->n; i++) {
        uint32_t at = x->items[i].index;
        if (x->did[at] == x->can[at]) continue;
        x->did[at] = x->can[at];
        if (x->did[at] != STK_PHASE_ALL) continue;
        finished++;
        count(x, &x->items[i]);
    }
    return finished;
}

int stk_executor_begin(stk_executor *x, uint32_t layer, const stk_event *event, const stk_decision *list, uint32_t n) {
    x->layer = layer;
    x->event = event;
    x->step = event->step;
    x->list = list;
    x->n = n;
    drop_stale(x);
    STK_TRY(prepare(x));
    return start_reads(x);
}

int stk_executor_prefetch(stk_executor *x, const stk_decision *d) {
    uint32_t layer = d->key / x->n_expert;
    uint64_t payload, asked;
    x->ops->sizes(x->world, layer, d->expert, &payload, &asked);
    x->stats.bytes += payload;
    x->stats.read_bytes += asked;
    x->counted[d->key] = 1;
    if (x->n_ahead == 0) x->ahead_step = x->step;
    if (x->n_ahead < x->n_key) x->ahead[x->n_ahead++] = d->key;
    return x->ops->prefetch(x->world, layer, d);
}

void stk_executor_get_now(const stk_executor *x, stk_gain_now *now) {
    uint64_t demand, ahead;
    double at = (double)x->ops->now_ns(x->world);
    x->ops->backlog(x->world, &demand, &ahead);
    *now = (stk_gain_now){.cost = x->cost,
                          .cpu_ns = STK_MAX(x->cpu_free_at_ns - at, 0.0),
                          .demand_ns = stk_cost_read_ns(x->cost, demand),
                          .ahead_ns = stk_cost_read_ns(x->cost, ahead),
                          .n_tok = x->event->n_tok,
                          .n_used = x->n};
    for (uint32_t i = 0; i < x->n; i++) now->n_absent += x->list[i].kind != STK_HIT || x->list[i].coming;
}

int stk_executor_finish(stk_executor *x, const atomic_int *cancel) {
    for (uint32_t left = x->n; left > 0;) {
        if (atomic_load_explicit(cancel, memory_order_relaxed)) return stk_fail(STK_ECANCELED, "the step was cancelled");
        STK_TRY(start_reads(x));
        STK_TRY(reap(x, false));
        bool any;
        int finished = compute_ready(x, &any);
        if (finished < 0) return finished;
        left -= (uint32_t)finished;
        if (any || left == 0) continue;
        uint64_t start = x->ops->now_ns(x->world), arrive = x->ops->arrive_ns(x->world);
        int rc = reap(x, true);
        x->stats.wait_ns += x->ops->now_ns(x->world) - start - (x->ops->arrive_ns(x->world) - arrive);
        if (rc < 0) return rc;
    }
    return STK_OK;
}

void stk_executor_give_up(stk_executor *x, const uint32_t **lost, uint32_t *n_lost) {
    const uint32_t *keys;
    uint32_t n = x->ops->drain(x->world, &keys);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = x->lost[i] = keys[i];
        if (!x->counted[key]) continue;
        uint64_t payload, asked;
        x->ops->sizes(x->world, key / x->n_expert, key % x->n_expert, &payload, &asked);
        x->stats.bytes -= payload;
        x->stats.read_bytes -= asked;
        x->counted[key] = 0;
    }
    for (uint32_t i = 0; i < x->n; i++) {
        uint32_t at = x->items[i].index;
        if (x->state[at] == WAITING) x->lost[n++] = x->list[at].key;
        if (x->state[at] == THERE && x->did[at] != STK_PHASE_ALL) count(x, &x->items[i]); /* there, though not computed */
    }
    x->n = 0; /* the event is over: what it had done counts once */
    x->n_ahead = 0;
    *lost = x->lost;
    *n_lost = n;
}
