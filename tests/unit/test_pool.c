/* pool: runs, barriers and counters under more and fewer workers than CPUs; the state of the workers' threads. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "cpu/pool.h"

enum { MAX = 64 };

static stk_pool *open_pool(uint32_t n) {
    stk_pool *pool;
    cr_assert_eq(stk_pool_open(&pool, n), 0, "%s", stk_error_detail());
    return pool;
}

typedef struct count_ctx {
    uint32_t calls[MAX]; /* one a worker, no lock: the pool orders them */
} count_ctx;

static void count(void *ctx, uint32_t worker) { ((count_ctx *)ctx)->calls[worker]++; }

/* Plain memory: a run that does not order what workers wrote shows under the thread sanitizer, or as a lost count. */
Test(pool, each_worker_is_called_once_a_run) {
    static const uint32_t sizes[] = {1, 2, 3, 8};
    for (uint32_t s = 0; s < STK_ARRAY_LEN(sizes); s++) {
        stk_pool *pool = open_pool(sizes[s]);
        cr_assert_eq(stk_pool_n_worker(pool), sizes[s]);
        count_ctx ctx = {{0}};
        for (uint32_t run = 1; run <= 2000; run++) {
            stk_pool_run(pool, count, &ctx);
            for (uint32_t w = 0; w < sizes[s]; w++) cr_assert_eq(ctx.calls[w], run);
        }
        stk_pool_close(&pool);
        cr_assert_null(pool);
    }
}

typedef struct ring_ctx {
    stk_pool *pool;
    uint32_t n_worker, n_round;
    uint32_t value[MAX];
    _Atomic uint32_t n_wrong;
} ring_ctx;

/* Each round, every worker reads what its neighbour wrote in the round before. */
static void ring(void *p, uint32_t worker) {
    ring_ctx *ctx = p;
    uint32_t neighbour = (worker + 1) % ctx->n_worker;
    for (uint32_t round = 0; round < ctx->n_round; round++) {
        ctx->value[worker] = round * 100 + worker;
        stk_pool_barrier(ctx->pool, worker);
        if (ctx->value[neighbour] != round * 100 + neighbour) atomic_fetch_add(&ctx->n_wrong, 1);
        stk_pool_barrier(ctx->pool, worker);
    }
}

static void check_ring(uint32_t n_worker, uint32_t n_run, uint32_t n_round) {
    ring_ctx ctx = {.pool = open_pool(n_worker), .n_worker = n_worker, .n_round = n_round};
    for (uint32_t run = 0; run < n_run; run++) stk_pool_run(ctx.pool, ring, &ctx);
    cr_assert_eq(ctx.n_wrong, 0);
    stk_pool_close(&ctx.pool);
}

Test(pool, barriers_order_memory_with_1_worker) { check_ring(1, 1000, 3); }
Test(pool, barriers_order_memory_with_2_workers) { check_ring(2, 3000, 3); }
Test(pool, barriers_order_memory_with_3_workers) { check_ring(3, 1000, 3); }
Test(pool, barriers_order_memory_with_8_workers) { check_ring(8, 300, 3); }
Test(pool, barriers_order_memory_with_64_workers) { check_ring(64, 10, 3); }

/* Gaps longer than the spin, so that workers sleep and are woken. */
Test(pool, sleeping_workers_wake) {
    stk_pool *pool = open_pool(2);
    count_ctx ctx = {{0}};
    for (uint32_t run = 1; run <= 50; run++) {
        usleep(run % 5 * 100);
        stk_pool_run(pool, count, &ctx);
        cr_assert(ctx.calls[0] == run && ctx.calls[1] == run);
    }
    usleep(1000);
    stk_pool_close(&pool); /* asleep */
}

enum { N_TICKET = 5000 };

typedef struct ticket_ctx {
    stk_pool *pool;
    uint8_t taken[4][N_TICKET];
} ticket_ctx;

static void take_tickets(void *p, uint32_t worker) {
    ticket_ctx *ctx = p;
    (void)worker;
    for (uint32_t phase = 0; phase < 4; phase++)
        for (uint32_t i; (i = stk_pool_next(ctx->pool, phase)) < N_TICKET;) ctx->taken[phase][i]++;
}

Test(pool, counters_hand_out_each_number_once_and_restart) {
    static ticket_ctx ctx;
    ctx.pool = open_pool(3);
    for (uint32_t run = 0; run < 3; run++) {
        memset(ctx.taken, 0, sizeof ctx.taken);
        stk_pool_run(ctx.pool, take_tickets, &ctx);
        for (uint32_t phase = 0; phase < 4; phase++)
            for (uint32_t i = 0; i < N_TICKET; i++) cr_assert_eq(ctx.taken[phase][i], 1);
    }
    stk_pool_close(&ctx.pool);
}

typedef struct state_ctx {
    uint32_t mxcsr[MAX];
    bool takes_signals[MAX];
} state_ctx;

static void look(void *p, uint32_t worker) {
    state_ctx *ctx = p;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    ctx->mxcsr[worker] = _mm_getcsr() & 0xffc0u; /* without the sticky flags */
    ctx->takes_signals[worker] = !sigismember(&blocked, SIGINT);
}

/* Threads inherit the creator's MXCSR, which here flushes subnormals and rounds up. */
Test(pool, workers_set_their_own_mxcsr_and_take_no_signals) {
    uint32_t before = stk_mxcsr_set();
    _mm_setcsr(0xdfc0u);
    stk_pool *pool = open_pool(3);
    state_ctx ctx;
    stk_pool_run(pool, look, &ctx);
    cr_assert_eq(ctx.mxcsr[0], 0xdfc0u);
    for (uint32_t w = 1; w < 3; w++) cr_assert(ctx.mxcsr[w] == 0x1f80u && !ctx.takes_signals[w]);
    cr_assert(ctx.takes_signals[0]);
    cr_assert_eq(stk_mxcsr_set() & 0xffc0u, 0xdfc0u);
    stk_pool_close(&pool);
    volatile float tiny = 0x1p-126f;
    cr_assert(tiny * 0.5f > 0.0f);
    stk_mxcsr_restore(before);
    cr_assert_eq(_mm_getcsr(), before);
}

Test(pool, refuses_too_many_and_closes_nothing) {
    stk_pool *pool;
    cr_assert_eq(stk_pool_open(&pool, 1025), STK_EINVAL);
    cr_assert_null(pool);
    stk_pool_close(&pool);
}

Test(pool, zero_means_the_cores_of_the_machine) {
    stk_pool *pool = open_pool(0);
    cr_assert(stk_pool_n_worker(pool) >= 1 && stk_pool_n_worker(pool) <= (uint32_t)sysconf(_SC_NPROCESSORS_CONF));
    stk_pool_close(&pool);
}
