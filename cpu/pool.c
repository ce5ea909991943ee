/*
 * pool: workers that wait at a gate between runs and meet at a barrier inside one.
 *
 * A gate is a word that only grows; waiting is waiting for it to differ from the value seen before. There are two: `start`,
 * opened by the owner once a run, and `met`, opened by whoever arrives last at the barrier. The end of a run is the same barrier,
 * except that workers go straight back to `start` and the owner alone waits. Arrivals are counted in a line of their own, so that
 * those who spin on the word are disturbed once a round.
 *
 * Worker 0 is the caller's thread and keeps its affinity: it is not ours to bind, and with one other worker pinned to each of the
 * remaining cores the scheduler leaves it the free one. Nobody is pinned where there are more workers than CPUs.
 */
#include "cpu/pool.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "cpu/topology.h"

enum {
    LINE = 64,
    MAX_WORKER = 1024,
    N_PHASE = 4,
    SPIN_NS = 50 * 1000, /* longer than the gap between two runs of a step, shorter than a scheduler tick */
    SPIN_PAUSES = 64,    /* between two looks at the clock */
    MXCSR_DEFAULT = 0x1f80,
};

typedef struct gate {
    alignas(LINE) _Atomic uint32_t word;
    _Atomic uint32_t n_sleeper;
} gate;

typedef struct counter {
    alignas(LINE) _Atomic uint32_t n;
} counter;

typedef struct worker {
    stk_pool *pool;
    uint32_t idx;
    int cpu; /* -1: not pinned */
    pthread_t thread;
} worker;

struct stk_pool {
    gate start, met;
    counter arrived;
    counter next[N_PHASE];
    /* Written by the owner before it opens `start`, read by workers after. */
    alignas(LINE) stk_pool_fn fn;
    void *ctx;
    bool stop;
    /* Written by open alone. */
    uint32_t n_worker;
    uint32_t n_thread; /* threads that run, for close */
    bool spins;
    worker *workers;
};

uint32_t stk_mxcsr_set(void) {
    uint32_t before = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
    return before;
}

void stk_mxcsr_restore(uint32_t mxcsr) { _mm_setcsr(mxcsr); }

/*
 * The word grows before n_sleeper is read; a sleeper counts itself before the kernel compares the word. Both in the one order of
 * seq_cst, so either the sleeper is seen or the sleeper sees the word. What happened before the opening is visible after the
 * wait.
 */
static void gate_open(gate *g) {
    atomic_fetch_add_explicit(&g->word, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&g->n_sleeper, memory_order_seq_cst))
        syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Pairs with the growth in gate_open. */
static bool gate_is_open(gate *g, uint32_t seen) { return atomic_load_explicit(&g->word, memory_order_acquire) != seen; }

static bool gate_spin(gate *g, uint32_t seen) {
    uint64_t end = 0;
    for (;;) {
        for (uint32_t i = 0; i < SPIN_PAUSES; i++) {
            if (gate_is_open(g, seen)) return true;
            _mm_pause();
        }
        uint64_t now = stk_now_ns();
        if (!end) end = now + SPIN_NS;
        if (now >= end) return false;
    }
}

static void gate_wait(gate *g, uint32_t seen, bool spins) {
    if (gate_is_open(g, seen) || (spins && gate_spin(g, seen))) return;
    atomic_fetch_add_explicit(&g->n_sleeper, 1, memory_order_seq_cst);
    while (!gate_is_open(g, seen)) syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&g->n_sleeper, 1, memory_order_relaxed);
}

/* True for the last of the round, who has opened `met`. Each arrival releases what its worker wrote; the last acquires all of it.
 */
static bool arrive(stk_pool *pool) {
    if (atomic_fetch_add_explicit(&pool->arrived.n, 1, memory_order_acq_rel) + 1 < pool->n_worker) return false;
    atomic_store_explicit(&pool->arrived.n, 0, memory_order_relaxed); /* published by the gate */
    gate_open(&pool->met);
    return true;
}

/* The round cannot end before this worker arrives, so the word read here is the one to wait on. */
static void meet(stk_pool *pool) {
    uint32_t seen = atomic_load_explicit(&pool->met.word, memory_order_relaxed);
    if (!arrive(pool)) gate_wait(&pool->met, seen, pool->spins);
}

void stk_pool_barrier(stk_pool *pool, uint32_t idx) {
    assert(idx < pool->n_worker);
    (void)idx;
    if (pool->n_worker > 1) meet(pool);
}

uint32_t stk_pool_next(stk_pool *pool, uint32_t phase) {
    assert(phase < N_PHASE);
    return atomic_fetch_add_explicit(&pool->next[phase].n, 1, memory_order_relaxed); /* a ticket, it publishes nothing */
}

uint32_t stk_pool_n_worker(const stk_pool *pool) { return pool->n_worker; }

static void *work(void *arg) {
    worker *w = arg;
    stk_pool *pool = w->pool;
    char name[16];
    snprintf(name, sizeof name, "stk-worker-%u", w->idx % 10000);
    pthread_setname_np(pthread_self(), name);
    if (w->cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(w->cpu, &set);
        pthread_setaffinity_np(pthread_self(), sizeof set, &set); /* a CPU that went offline: the scheduler's choice is as good */
    }
    stk_mxcsr_set();
    for (uint32_t seen = 0;; seen++) {
        gate_wait(&pool->start, seen, pool->spins);
        if (pool->stop) return NULL;
        pool->fn(pool->ctx, w->idx);
        arrive(pool);
    }
}

void stk_pool_run(stk_pool *pool, stk_pool_fn fn, void *ctx) {
    for (uint32_t i = 0; i < N_PHASE; i++)
        atomic_store_explicit(&pool->next[i].n, 0, memory_order_relaxed); /* published by the gate */
    if (pool->n_worker == 1) {
        fn(ctx, 0);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    gate_open(&pool->start);
    fn(ctx, 0);
    meet(pool);
}

/* Signals are for the threads of the program: a worker takes none. */
static int start_worker(stk_pool *pool, worker *w) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!err) return 0;
    return stk_fail(STK_ENOMEM, "cannot start worker %u of %u (%s): use fewer threads or raise the limit on processes", w->idx,
                    pool->n_worker, err == EAGAIN ? "no thread available" : "out of memory");
}

int stk_pool_open(stk_pool **out, uint32_t n_worker) {
    *out = NULL;
    if (n_worker > MAX_WORKER) return stk_fail(STK_EINVAL, "%u threads: at most %u are possible", n_worker, MAX_WORKER);
    stk_topology cpus;
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) CPU_ZERO(&allowed); /* a kernel with more CPUs than the set holds */
    stk_topology_read(&allowed, "", &cpus);
    if (!n_worker) n_worker = STK_MIN(cpus.n_core, cpus.n_usable);

    int rc = 0;
    stk_pool *pool = aligned_alloc(alignof(stk_pool), sizeof *pool);
    worker *workers = calloc(n_worker, sizeof *workers);
    if (!pool || !workers) {
        free(workers);
        free(pool);
        return stk_fail(STK_ENOMEM, "no memory for a pool of %u threads", n_worker);
    }
    memset(pool, 0, sizeof *pool);
    pool->workers = workers;
    pool->n_worker = n_worker;
    pool->spins = n_worker <= cpus.n_usable;
    for (uint32_t i = 1; i < n_worker; i++) {
        workers[i] = (worker){.pool = pool, .idx = i, .cpu = n_worker <= cpus.n_cpu ? cpus.cpu[i] : -1};
        STK_TRYGOTO(start_worker(pool, &workers[i]), rc, out);
        pool->n_thread++;
    }
    *out = pool;
    return 0;
out:
    stk_pool_close(&pool);
    return rc;
}

void stk_pool_close(stk_pool **out) {
    stk_pool *pool = *out;
    if (!pool) return;
    pool->stop = true;
    gate_open(&pool->start);
    for (uint32_t i = 1; i <= pool->n_thread; i++) pthread_join(pool->workers[i].thread, NULL);
    free(pool->workers);
    free(pool);
    *out = NULL;
}
