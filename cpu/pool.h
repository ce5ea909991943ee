/*
 * pool: the one CPU thread pool. The caller of stk_pool_run is worker 0, so that the thread that plans also computes.
 *
 * Threads: one owner calls open, run and close; workers are pinned, one per physical core where the machine has that many (the
 * caller only between bind and unbind; nobody where there are more workers than CPUs), and take no signals. Every worker sets its
 * own MXCSR (round to nearest, no flush to zero). Waits spin briefly and then sleep; they sleep at once where there are more
 * workers than CPUs that this process may use. Ownership: close joins all workers.
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

/*
 * Between these the caller's thread stays on the CPU that is left for it where the workers are pinned: woken by a drive on
 * another one, it would stay there, and that CPU's worker with it. unbind gives it back the CPUs that it was allowed before.
 */
void stk_pool_bind(stk_pool *pool);
void stk_pool_unbind(stk_pool *pool);

/* Runs fn in every worker and returns when all are done. */
void stk_pool_run(stk_pool *pool, stk_pool_fn fn, void *ctx);

/*
 * Work that is shared out by items: fn runs in the caller and in every worker that comes before the work is done, and nobody
 * waits for a worker that has not woken up yet or has nothing to do. Inside fn all work is items of phases 0 to STK_POOL_PHASES -
 * 1, each phase used once; a worker that comes late finds earlier phases done. n: most items of a phase; with one the caller
 * works alone.
 */
enum { STK_POOL_PHASES = 16 };
void stk_pool_share(stk_pool *pool, stk_pool_fn fn, void *ctx, uint32_t n);

/* Inside either fn: hands out items 0..n-1 of a phase, each once; returns n when none is left. A worker is given neighbours, in
 * order, in a part of the items that is its own in every run with this n, so that its cache and its prefetcher know them; then it
 * helps the others. n is the same in all workers. */
uint32_t stk_pool_take(stk_pool *pool, uint32_t phase, uint32_t worker, uint32_t n);
/* The items from *begin to *end - 1 are those of `worker`. */
void stk_pool_part(const stk_pool *pool, uint32_t worker, uint32_t n, uint32_t *begin, uint32_t *end);
/* Behind a loop over stk_pool_take: waits until all items of the phase are done. What they wrote is visible after. */
void stk_pool_finish(stk_pool *pool, uint32_t phase, uint32_t worker, uint32_t n);

/* Round to nearest, exceptions masked, no flush to zero; returns the previous MXCSR for stk_mxcsr_restore. */
uint32_t stk_mxcsr_set(void);
void stk_mxcsr_restore(uint32_t mxcsr);

#endif
