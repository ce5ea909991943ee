/*
 * pool: the one CPU thread pool. The caller of stk_pool_run is worker 0, so that the thread that plans also computes.
 *
 * Threads: one owner calls open, run and close; workers are pinned, one per physical core where the machine has that many (not
 * the caller; nobody where there are more workers than CPUs), and take no signals. Every worker sets its own MXCSR (round to
 * nearest, no flush to zero). Waits spin briefly and then sleep; they sleep at once where there are more workers than CPUs that
 * this process may use. Ownership: close joins all workers.
 */
#ifndef STK_POOL_H
#define STK_POOL_H

#include "src/base.h"

typedef struct stk_pool stk_pool;

/* Called once in each worker, 0 <= worker < n_worker. */
typedef void (*stk_pool_fn)(void *ctx, uint32_t worker);

/* n_worker 0: the physical cores in this process's affinity mask, no more than its cgroups' CPU quota. Errors: STK_ENOMEM,
 * STK_EINVAL (more than 1,024). */
int stk_pool_open(stk_pool **out, uint32_t n_worker) STK_CHECKED;
void stk_pool_close(stk_pool **pool);
uint32_t stk_pool_n_worker(const stk_pool *pool);

/* Runs fn in every worker and returns when all are done. */
void stk_pool_run(stk_pool *pool, stk_pool_fn fn, void *ctx);

/* Inside fn: all workers meet. What was written before is visible after. */
void stk_pool_barrier(stk_pool *pool, uint32_t worker);

/* Inside fn: a shared counter for dynamic work. `phase` 0..3 picks one of four counters, all zero at the start of each run. */
uint32_t stk_pool_next(stk_pool *pool, uint32_t phase);

/* Round to nearest, exceptions masked, no flush to zero; returns the previous MXCSR for stk_mxcsr_restore. */
uint32_t stk_mxcsr_set(void);
void stk_mxcsr_restore(uint32_t mxcsr);

#endif
