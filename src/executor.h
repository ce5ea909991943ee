/*
 * executor: carries out the decisions of one event on the queues: reads on the NVMe queue, experts on the CPU queue, both at the
 * same time. One code path for every combination of real and modelled queues and clocks: what is behind a queue is a world (a
 * table of functions): the live engine (forward.h and store.h), whose drive may be real or modelled (io/), or the replay's, whose
 * clock is virtual (virtual.h).
 *
 * The CPU queue is the thread that plans and its pool: a batch of experts is computed in one call, inside which the world reaps
 * what arrives.
 *
 * Who may call it: src/step.c. Threads: one owner. All memory is taken at open.
 */
#ifndef STK_EXECUTOR_H
#define STK_EXECUTOR_H

#include <stdatomic.h>

#include "cache/cache.h"
#include "plan.h"

/* One expert of the event, ready to be computed. */
typedef struct stk_task {
    const stk_decision *decision;
    bool arrived; /* it was read in this event: its bytes still have to be brought into their layout */
} stk_task;

typedef struct stk_arrival {
    uint32_t index; /* of the decision */
    int status;     /* 0 or an error, whose detail is set in this thread when reap returns */
} stk_arrival;

typedef struct stk_world_ops {
    uint64_t (*now_ns)(void *world);
    /* Starts reading the expert of decision `index` into its slot. */
    int (*read)(void *world, uint32_t layer, const stk_decision *d, uint32_t index);
    /* Collects reads that are done; with wait, until at least one is, or the world was interrupted (then 0). */
    int (*reap)(void *world, stk_arrival *out, uint32_t max, bool wait);
    /* Computes a batch for all tokens that use it. */
    int (*compute)(void *world, uint32_t layer, const stk_event *event, const stk_task *tasks, uint32_t n);
    /* Gives up all reads in flight and returns when none is left. */
    void (*drain)(void *world);
    /* Sizes of an expert: payload, and what its read asks of the drive. */
    void (*sizes)(void *world, uint32_t layer, uint32_t expert, uint64_t *payload_bytes, uint64_t *read_bytes);
} stk_world_ops;

typedef struct stk_executor_stats {
    uint64_t bytes, read_bytes;  /* of experts that were read and computed */
    uint64_t expert_ns, wait_ns; /* in compute; in reap with nothing to compute */
} stk_executor_stats;

typedef struct stk_executor stk_executor;

/* n_expert: most experts of an event; n_slot: most slots of a class, transit included. `cost` is borrowed and corrected. */
int stk_executor_open(stk_executor **out, const stk_world_ops *ops, void *world, uint32_t n_expert, uint32_t n_slot,
                      stk_cost *cost) STK_CHECKED;
void stk_executor_close(stk_executor **x);

/*
 * Runs the decisions list [n] of an event. `cancel` is looked at between batches and while waiting. On an error (STK_EIO of a
 * read, STK_ECANCELED) all reads have ended and *lost, *n_lost name the decisions whose expert was to be read and is not in its
 * layout yet; the rest may be used again.
 */
int stk_executor_event(stk_executor *x, uint32_t layer, const stk_event *event, const stk_decision *list, uint32_t n,
                       const atomic_int *cancel, const uint32_t **lost, uint32_t *n_lost) STK_CHECKED;

void stk_executor_get_stats(const stk_executor *x, stk_executor_stats *stats);
void stk_executor_reset_stats(stk_executor *x);

#endif
