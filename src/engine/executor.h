/*
 * executor: carries out the decisions of one event on the queues: reads on the NVMe queue, experts on the CPU queue, both at the
 * same time; and reads ahead of later events behind them. One code path for every combination of real and modelled queues and
 * clocks: what is behind a queue is a world (a table of functions): the live engine (forward.h and store.h), whose drive may be
 * real or modelled (io/), or the replay's, whose clock is virtual (virtual.h).
 *
 * The CPU queue is the thread that plans and its pool: a batch of experts is computed in one call, inside which the world looks
 * after its drive; what has landed is brought into its layout between batches.
 *
 * Who may call it: src/engine/step.c. Threads: one owner. All memory is taken at open.
 */
#ifndef STK_EXECUTOR_H
#define STK_EXECUTOR_H

#include <stdatomic.h>

#include "cache/cache.h"
#include "src/ahead/gain.h"
#include "src/plan/plan.h"
#include "timeline.h"

/* An expert is computed in two phases: gate and up, then down. The first may run while the down matrix is still on its way. */
enum stk_expert_phase { STK_PHASE_UP = 1, STK_PHASE_DOWN = 2, STK_PHASE_ALL = 3 };

typedef struct stk_task {
    const stk_decision *decision;
    uint8_t phases;      /* to be computed */
    const void *weights; /* where they are instead of the decision's slot; NULL: there */
} stk_task;

typedef struct stk_arrival {
    uint32_t index; /* of the decision */
    int status;     /* 0, or an error, whose detail is set in this thread when reap returns */
    uint8_t phases; /* of status 0: whose weights are there; STK_PHASE_UP, later STK_PHASE_ALL, or the latter at once */
} stk_arrival;

typedef struct stk_world_ops {
    uint64_t (*now_ns)(void *world);
    /* Starts reading the expert of decision `index` into its slot. */
    int (*read)(void *world, uint32_t layer, const stk_decision *d, uint32_t index);
    /* Starts reading an expert ahead of its use, behind all demand. */
    int (*prefetch)(void *world, uint32_t layer, const stk_decision *d);
    /* Decision `index` hit a prefetched expert: 1 when it is there, 0 when it will arrive. */
    int (*want)(void *world, const stk_decision *d, uint32_t index);
    /* Brings what has landed into its layout and collects experts that are there; with wait, blocks once if nothing has landed
     * (0 then means: look again). */
    int (*reap)(void *world, stk_arrival *out, uint32_t max, bool wait);
    /* Computes a batch for all tokens that use it. */
    int (*compute)(void *world, uint32_t layer, const stk_event *event, const stk_task *tasks, uint32_t n);
    /* Gives up all reads and returns when none is in flight; *keys are the experts that were asked for, by calls that failed too,
     * and are not there. */
    uint32_t (*drain)(void *world, const uint32_t **keys);
    /* Sizes of an expert: payload, and what its read asks of the drive. */
    void (*sizes)(void *world, uint32_t layer, uint32_t expert, uint64_t *payload_bytes, uint64_t *read_bytes);
    /* Time spent so far on bringing experts into their layout. */
    uint64_t (*arrive_ns)(void *world);
    /* Bytes that the drive still has to bring: on demand, and ahead. */
    void (*backlog)(void *world, uint64_t *demand_bytes, uint64_t *ahead_bytes);
    /* What was read ahead was in vain: what of it is not under way yet is not read. The expert keeps its slot; where it is wanted
     * after all, the rest is read on demand. */
    void (*stale)(void *world, uint32_t key);
} stk_world_ops;

typedef struct stk_executor_stats {
    uint64_t bytes, read_bytes; /* of experts that were read and computed, or read ahead and not lost */
    uint64_t expert_ns;         /* in compute */
    uint64_t wait_ns;           /* in reap with nothing to compute or bring into its layout */
    uint64_t arrive_ns;         /* bringing experts into their layout */
} stk_executor_stats;

typedef struct stk_executor stk_executor;

/* n_expert: most experts of a layer; n_key: experts of all layers, numbered layer * n_expert + expert; n_slot: most slots of a
 * class, transit included. `cost` is borrowed. */
int stk_executor_open(stk_executor **out, const stk_world_ops *ops, void *world, uint32_t n_expert, uint32_t n_key,
                      uint32_t n_slot, stk_cost *cost) STK_CHECKED;
void stk_executor_close(stk_executor **x);
/* Takes down there what the CPU does; NULL: nowhere. */
void stk_executor_set_timeline(stk_executor *x, stk_timeline *timeline);

/*
 * An event is carried out in three calls. begin takes its decisions list [n], which lives until the end, and starts their reads;
 * prefetch starts the read of another layer's expert that the cache has taken in, which is given up when that layer's event does
 * not want it; finish computes, and returns when every expert of the event has been computed. `cancel` is looked at between
 * batches and while waiting.
 *
 * After an error of any of them (STK_EIO of a read, STK_ECANCELED) the event is given up, which may also be done between events:
 * all reads end, prefetches of other
 * layers included, and *lost, *n_lost are the keys of experts that the cache has taken in and that are not there.
 */
int stk_executor_begin(stk_executor *x, uint32_t layer, const stk_event *event, const stk_decision *list, uint32_t n) STK_CHECKED;
int stk_executor_prefetch(stk_executor *x, const stk_decision *d) STK_CHECKED;
int stk_executor_finish(stk_executor *x, const atomic_int *cancel) STK_CHECKED;
void stk_executor_give_up(stk_executor *x, const uint32_t **lost, uint32_t *n_lost);

/* The queues after begin, for deciding what is worth a prefetch. */
void stk_executor_get_now(const stk_executor *x, stk_gain_now *now);

void stk_executor_get_stats(const stk_executor *x, stk_executor_stats *stats);

#endif
