/* pool: runs, phases and items under more and fewer workers than CPUs; the state of the workers' threads. */
#include <criterion/criterion.h>
#include <math.h>
#include <sched.h>
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

enum { N_ITEM = 5000, N_PHASE = 3 };

typedef struct item_ctx {
    stk_pool *pool;
    uint32_t n;
    uint32_t value[N_PHASE][N_ITEM]; /* plain memory: the phases order it */
    uint8_t called[MAX];
    _Atomic uint32_t n_wrong;
} item_ctx;

/* Each item reads one of the phase before that another worker may have done. */
static void do_items(void *p, uint32_t worker) {
    item_ctx *ctx = p;
    ctx->called[worker]++;
    for (uint32_t phase = 0; phase < N_PHASE; phase++) {
        for (uint32_t i; (i = stk_pool_take(ctx->pool, phase, worker, ctx->n)) < ctx->n;) {
            if (phase && ctx->value[phase - 1][ctx->n - 1 - i] != phase) atomic_fetch_add(&ctx->n_wrong, 1);
            ctx->value[phase][i] += phase + 1;
        }
        stk_pool_finish(ctx->pool, phase, worker, ctx->n);
    }
}

static void check_items(uint32_t n_worker, uint32_t n, bool all) {
    static item_ctx ctx;
    memset(&ctx, 0, sizeof ctx);
    ctx.pool = open_pool(n_worker);
    ctx.n = n;
    for (uint32_t run = 0; run < 200; run++) {
        memset(ctx.value, 0, sizeof ctx.value);
        memset(ctx.called, 0, sizeof ctx.called);
        if (run % 16 == 15) usleep(200); /* longer than the spin: the workers sleep */
        (all ? stk_pool_run(ctx.pool, do_items, &ctx) : stk_pool_share(ctx.pool, do_items, &ctx, n));
        cr_assert_eq(ctx.n_wrong, 0);
        for (uint32_t phase = 0; phase < N_PHASE; phase++)
            for (uint32_t i = 0; i < n; i++) cr_assert_eq(ctx.value[phase][i], phase + 1, "each item is done once");
        cr_assert_eq(ctx.called[0], 1);
        for (uint32_t w = 1; w < n_worker; w++) cr_assert(ctx.called[w] <= 1 && (!all || ctx.called[w]));
        cr_assert(n > 1 || all || n_worker == 1 || !ctx.called[1], "one item is the caller's");
    }
    stk_pool_close(&ctx.pool);
}

Test(pool, items_are_done_once_and_phases_order_memory) {
    static const uint32_t sizes[] = {1, 2, 3, 8}, items[] = {0, 1, 2, 7, 100};
    for (uint32_t s = 0; s < STK_ARRAY_LEN(sizes); s++)
        for (uint32_t i = 0; i < STK_ARRAY_LEN(items); i++) check_items(sizes[s], items[i], false);
    check_items(3, N_ITEM, false);
}

Test(pool, items_in_a_run_of_all_workers) {
    check_items(1, 100, true);
    check_items(3, 100, true);
    check_items(3, 1, true);
}

Test(pool, parts_are_neighbours_and_cover_all_items) {
    static const uint32_t sizes[] = {1, 2, 3, 7, 64}, items[] = {0, 1, 2, 63, 64, 1000};
    for (uint32_t s = 0; s < STK_ARRAY_LEN(sizes); s++) {
        stk_pool *pool = open_pool(sizes[s]);
        for (uint32_t i = 0; i < STK_ARRAY_LEN(items); i++) {
            uint32_t at = 0, begin, end;
            for (uint32_t w = 0; w < sizes[s]; w++, at = end) {
                stk_pool_part(pool, w, items[i], &begin, &end);
                cr_assert(begin == at && end >= begin && end - begin <= items[i] / sizes[s] + 1);
            }
            cr_assert_eq(at, items[i]);
        }
        stk_pool_close(&pool);
    }
}

typedef struct own_ctx {
    stk_pool *pool;
    bool in_part;
} own_ctx;

static void take_alone(void *p, uint32_t worker) {
    own_ctx *ctx = p;
    if (worker) return;
    uint32_t begin, end, i = stk_pool_take(ctx->pool, 0, 0, 90);
    stk_pool_part(ctx->pool, 0, 90, &begin, &end);
    ctx->in_part = i == begin && end > begin + 1 && stk_pool_take(ctx->pool, 0, 0, 90) == begin + 1;
    for (uint32_t left = 88; left > 0; left--) cr_assert_lt(stk_pool_take(ctx->pool, 0, 0, 90), 90);
    cr_assert_eq(stk_pool_take(ctx->pool, 0, 0, 90), 90, "the caller does everything where nobody helps");
    stk_pool_finish(ctx->pool, 0, 0, 90);
}

Test(pool, a_worker_begins_with_its_part) {
    own_ctx ctx = {.pool = open_pool(3)};
    stk_pool_share(ctx.pool, take_alone, &ctx, 90);
    cr_assert(ctx.in_part);
    stk_pool_close(&ctx.pool);
}

Test(pool, the_caller_is_bound_for_a_while) {
    cpu_set_t before, during, after;
    stk_pool *pool = open_pool(2);
    cr_assert_eq(sched_getaffinity(0, sizeof before, &before), 0);
    stk_pool_bind(pool);
    cr_assert_eq(sched_getaffinity(0, sizeof during, &during), 0);
    cr_assert_eq(CPU_COUNT(&during), CPU_COUNT(&before) < 2 ? CPU_COUNT(&before) : 1);
    stk_pool_unbind(pool);
    cr_assert_eq(sched_getaffinity(0, sizeof after, &after), 0);
    cr_assert(CPU_EQUAL(&before, &after));
    stk_pool_unbind(pool);
    stk_pool_close(&pool);
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
