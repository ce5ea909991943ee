/*
 * pool: workers that wait at a gate between runs.
 *
 * A gate is a word that only grows; waiting is waiting for it to differ from the value seen before. `start` is opened by the
 * owner once a run, `met` by whoever is the last to be done in a run of all workers, `finished` of a phase by whoever does
 * its last item, `left` by whoever is the last to leave.
 *
 * Waking a thread takes tens of microseconds, on a virtual machine more, as much as a small run: so a run of items does not need
 * anybody but its owner. `state` holds the number of the run, whether it is closed, and how many workers are inside; a worker
 * that wakes up after the owner has closed the run stays out of it and waits for the next. In a run of all workers the owner
 * closes after all have met.
 *
 * Worker 0 is the caller's thread, which is ours to bind only for as long as a step takes. Nobody is pinned where there are more
 * workers than CPUs.
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

/* Counters of all phases, of one writer or one purpose. */
typedef struct counters {
    alignas(LINE) _Atomic uint32_t n[STK_POOL_PHASES];
} counters;

typedef struct worker {
    alignas(LINE) uint32_t n_taken[STK_POOL_PHASES]; /* items that it took in this run */
    _Atomic uint32_t next[STK_POOL_PHASES];          /* of its part of the items, by whoever takes them */
    stk_pool *pool;
    uint32_t idx;
    int cpu; /* -1: not pinned */
    pthread_t thread;
} worker;

#define CLOSED    (UINT64_C(1) << 31)
#define RUN_SHIFT 32

struct stk_pool {
    alignas(LINE) _Atomic uint64_t state; /* number of the run, CLOSED, workers inside */
    gate start, met, left;
    gate finished[STK_POOL_PHASES];
    counter arrived;
    counters done; /* items */
    /* Written by the owner before it opens the run, read by workers inside. */
    alignas(LINE) stk_pool_fn fn;
    void *ctx;
    bool all;
    bool stop;
    /* Written by open alone. */
    uint32_t n_worker;
    uint32_t n_thread; /* threads that run, for close */
    bool spins;
    int owner_cpu; /* -1: the caller is not pinned */
    worker *workers;
    /* Of the owner. */
    cpu_set_t before; /* what it was allowed before it was bound */
    bool bound;
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

/* True for the last of the run, who has opened `met`. Each arrival releases what its worker wrote; the last acquires all of it.
 */
static bool arrive(stk_pool *pool) {
    if (atomic_fetch_add_explicit(&pool->arrived.n, 1, memory_order_acq_rel) + 1 < pool->n_worker) return false;
    atomic_store_explicit(&pool->arrived.n, 0, memory_order_relaxed); /* published by the gate */
    gate_open(&pool->met);
    return true;
}

/* The run cannot end before its owner arrives, so the word read here is the one to wait on. */
static void meet(stk_pool *pool) {
    uint32_t seen = atomic_load_explicit(&pool->met.word, memory_order_relaxed);
    if (!arrive(pool)) gate_wait(&pool->met, seen, pool->spins);
}

void stk_pool_part(const stk_pool *pool, uint32_t idx, uint32_t n, uint32_t *begin, uint32_t *end) {
    uint64_t w = pool->n_worker;
    *begin = (uint32_t)(((uint64_t)n * idx + w - 1) / w);
    *end = (uint32_t)(((uint64_t)n * (idx + 1) + w - 1) / w);
}

uint32_t stk_pool_take(stk_pool *pool, uint32_t phase, uint32_t idx, uint32_t n) {
    assert(phase < STK_POOL_PHASES && idx < pool->n_worker);
    for (uint32_t i = 0, of = idx; i < pool->n_worker; i++, of = of + 1 < pool->n_worker ? of + 1 : 0) {
        _Atomic uint32_t *next = &pool->workers[of].next[phase];
        uint32_t begin, end;
        stk_pool_part(pool, of, n, &begin, &end);
        if (begin + atomic_load_explicit(next, memory_order_relaxed) >= end) continue;    /* spares the others the line */
        uint32_t item = begin + atomic_fetch_add_explicit(next, 1, memory_order_relaxed); /* a ticket, it publishes nothing */
        if (item >= end) continue;
        pool->workers[idx].n_taken[phase]++;
        return item;
    }
    return n;
}

/* Each worker adds what it has done, which releases what it wrote. The gate's word is read before, so whoever completes the phase
 * later opens it after. */
void stk_pool_finish(stk_pool *pool, uint32_t phase, uint32_t idx, uint32_t n) {
    gate *g = &pool->finished[phase];
    uint32_t seen = atomic_load_explicit(&g->word, memory_order_relaxed), mine = pool->workers[idx].n_taken[phase];
    uint32_t done = atomic_fetch_add_explicit(&pool->done.n[phase], mine, memory_order_acq_rel) + mine;
    if (done < n)
        gate_wait(g, seen, pool->spins);
    else if (mine && pool->n_worker > 1)
        gate_open(g);
}

uint32_t stk_pool_n_worker(const stk_pool *pool) { return pool->n_worker; }

/* Into the open run that is not older than the word of `start` was; false where it is closed. *seen: the run. */
static bool enter(stk_pool *pool, uint32_t *seen) {
    uint64_t state = atomic_load_explicit(&pool->state, memory_order_acquire);
    do {
        *seen = (uint32_t)(state >> RUN_SHIFT);
        if (state & CLOSED) return false;
    } while (!atomic_compare_exchange_weak_explicit(&pool->state, &state, state + 1, memory_order_acquire, memory_order_acquire));
    return true;
}

static void leave(stk_pool *pool) {
    uint64_t before = atomic_fetch_sub_explicit(&pool->state, 1, memory_order_acq_rel);
    if ((before & (CLOSED | (CLOSED - 1))) == (CLOSED | 1)) gate_open(&pool->left);
}

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
    for (uint32_t seen = 0;;) {
        gate_wait(&pool->start, seen, pool->spins);
        if (!enter(pool, &seen)) continue;
        bool stop = pool->stop;
        if (!stop) {
            memset(w->n_taken, 0, sizeof w->n_taken);
            pool->fn(pool->ctx, w->idx);
            if (pool->all) arrive(pool);
        }
        leave(pool);
        if (stop) return NULL;
    }
}

/* Nobody is inside. */
static void reset_counters(stk_pool *pool) {
    for (uint32_t i = 0; i < pool->n_worker; i++)
        for (uint32_t p = 0; p < STK_POOL_PHASES; p++)
            atomic_store_explicit(&pool->workers[i].next[p], 0, memory_order_relaxed); /* published by the state */
    for (uint32_t p = 0; p < STK_POOL_PHASES; p++) atomic_store_explicit(&pool->done.n[p], 0, memory_order_relaxed);
    memset(pool->workers[0].n_taken, 0, sizeof pool->workers[0].n_taken);
}

/* Opens a run: its number is in `state` first, so that a worker which sees the new word finds the run, or a later one. */
static void open_run(stk_pool *pool, stk_pool_fn fn, void *ctx, bool all) {
    reset_counters(pool);
    pool->fn = fn;
    pool->ctx = ctx;
    pool->all = all;
    uint32_t run = atomic_load_explicit(&pool->start.word, memory_order_relaxed) + 1;
    atomic_store_explicit(&pool->state, (uint64_t)run << RUN_SHIFT, memory_order_release);
    gate_open(&pool->start);
}

/* Nobody comes in any more; returns when all have left. */
static void close_run(stk_pool *pool) {
    uint32_t seen = atomic_load_explicit(&pool->left.word, memory_order_relaxed);
    uint64_t state = atomic_fetch_or_explicit(&pool->state, CLOSED, memory_order_acq_rel);
    if (state & (CLOSED - 1)) gate_wait(&pool->left, seen, pool->spins);
}

void stk_pool_run(stk_pool *pool, stk_pool_fn fn, void *ctx) {
    open_run(pool, fn, ctx, true);
    fn(ctx, 0);
    if (pool->n_worker > 1) meet(pool);
    close_run(pool);
}

void stk_pool_share(stk_pool *pool, stk_pool_fn fn, void *ctx, uint32_t n) {
    if (n <= 1 || pool->n_worker == 1) {
        reset_counters(pool);
        fn(ctx, 0);
        return;
    }
    open_run(pool, fn, ctx, false);
    fn(ctx, 0);
    close_run(pool);
}

void stk_pool_bind(stk_pool *pool) {
    cpu_set_t set;
    pool->bound = false;
    if (pool->owner_cpu < 0 || pthread_getaffinity_np(pthread_self(), sizeof pool->before, &pool->before)) return;
    CPU_ZERO(&set);
    CPU_SET(pool->owner_cpu, &set);
    pool->bound = CPU_ISSET(pool->owner_cpu, &pool->before) && !pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void stk_pool_unbind(stk_pool *pool) {
    if (pool->bound) pthread_setaffinity_np(pthread_self(), sizeof pool->before, &pool->before);
    pool->bound = false;
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
    worker *workers = aligned_alloc(alignof(worker), n_worker * sizeof *workers);
    if (!pool || !workers) {
        free(workers);
        free(pool);
        return stk_fail(STK_ENOMEM, "no memory for a pool of %u threads", n_worker);
    }
    memset(pool, 0, sizeof *pool);
    atomic_init(&pool->state, CLOSED);
    pool->workers = workers;
    memset(workers, 0, n_worker * sizeof *workers);
    pool->n_worker = n_worker;
    pool->spins = n_worker <= cpus.n_usable;
    pool->owner_cpu = n_worker > 1 && n_worker <= cpus.n_cpu ? cpus.cpu[0] : -1;
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
    open_run(pool, NULL, NULL, false); /* never closed: everybody comes in and sees the end */
    for (uint32_t i = 1; i <= pool->n_thread; i++) pthread_join(pool->workers[i].thread, NULL);
    free(pool->workers);
    free(pool);
    *out = NULL;
}
