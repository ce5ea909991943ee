/* block: the scheduler of a block's threads. One launch at a time; the caller holds the runtime's lock. */
#include "cuda/emu/block.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xmmintrin.h>

#include "cuda/emu/fiber.h"
#include "cuda/emu/shared.h"

enum { MXCSR_DEFAULT = 0x1f80 };
#define ALL_LANES UINT32_MAX

enum state { READY, AT_BLOCK, AT_WARP, EXITED };

typedef struct thread {
    enum state state;
    stk_emu_place at; /* of the rendezvous */
    const char *op;
    uint32_t mask;
    const void *in;
    void *out;
    int predicate;
    uint32_t clocks[STK_EMU_WARP]; /* its own counts its __syncwarps */
} thread;

static struct {
    const stk_emu_launch_info *launch;
    uint64_t random;
    thread threads[STK_EMU_MAX_THREADS];
    stk_fiber fibers[STK_EMU_MAX_THREADS], home;
    uint32_t n_fiber, n_thread, n_exited, n_at_block, epoch, running;
    uint16_t ready[STK_EMU_MAX_THREADS];
    uint32_t n_ready;
    stk_emu_place barrier; /* that the first of n_at_block came to */
    int count;             /* of the last __syncthreads_count */
    bool failed;
    char *fault;
    size_t fault_bytes;
} g;

stk_emu_dim stk_emu_thread_idx, stk_emu_block_idx, stk_emu_block_dim, stk_emu_grid_dim;

/* splitmix64 */
static uint32_t draw(uint32_t below) {
    uint64_t z = g.random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(((z ^ z >> 31) >> 32) * below >> 32);
}

static void make_ready(uint32_t t) {
    g.threads[t].state = READY;
    g.ready[g.n_ready++] = (uint16_t)t;
}

/* ---- Faults ---- */

static void report(stk_emu_place at, uint32_t t, const char *fmt, va_list ap) {
    if (g.failed) return;
    g.failed = true;
    stk_emu_dim b = stk_emu_block_idx;
    int n = snprintf(g.fault, g.fault_bytes, "kernel %s, block (%u, %u, %u), thread %u, %s:%d: ", g.launch->kernel, b.x, b.y, b.z,
                     t, at.file, at.line);
    if (n >= 0 && (size_t)n < g.fault_bytes) vsnprintf(g.fault + n, g.fault_bytes - (size_t)n, fmt, ap);
}

STK_PRINTF(3, 4) static void report_of(stk_emu_place at, uint32_t t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    report(at, t, fmt, ap);
    va_end(ap);
}

void stk_emu_fault(stk_emu_place at, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    report(at, g.running, fmt, ap);
    va_end(ap);
    stk_fiber_switch(&g.fibers[g.running], &g.home);
    __builtin_trap(); /* a block that has failed resumes nobody */
}

/* ---- Rendezvous ---- */

static void wait_for_others(void) { stk_fiber_switch(&g.fibers[g.running], &g.home); }

static void release_block(void) {
    g.count = 0;
    for (uint32_t t = 0; t < g.n_thread; t++) {
        if (g.threads[t].state != AT_BLOCK) continue;
        g.count += g.threads[t].predicate != 0;
        if (t != g.running) make_ready(t);
    }
    g.threads[g.running].state = READY;
    g.n_at_block = 0;
    g.epoch++;
}

int stk_emu_sync_count(stk_emu_place at, int predicate) {
    thread *me = &g.threads[g.running];
    if (g.n_at_block == 0)
        g.barrier = at;
    else if (g.barrier.line != at.line || strcmp(g.barrier.file, at.file) != 0)
        stk_emu_fault(at, "a divergent barrier: other threads wait at the one in %s:%d", g.barrier.file, g.barrier.line);
    me->state = AT_BLOCK;
    me->at = at;
    me->predicate = predicate;
    if (++g.n_at_block == g.n_thread)
        release_block();
    else
        wait_for_others();
    return g.count;
}

void stk_emu_sync_block(stk_emu_place at) { stk_emu_sync_count(at, 0); }

/* Whether all lanes of the mask have come; faults when one of them never will, or came for something else. */
static bool warp_complete(stk_emu_place at, const char *op, uint32_t mask) {
    uint32_t first = g.running / STK_EMU_WARP * STK_EMU_WARP, n = 0, expected = 0;
    for (uint32_t lane = 0; lane < STK_EMU_WARP; lane++) {
        if (!(mask >> lane & 1u)) continue;
        expected++;
        if (first + lane >= g.n_thread) {
            if (mask != ALL_LANES) stk_emu_fault(at, "%s: the mask %08x names lane %u, which does not exist", op, mask, lane);
            expected--; /* as on a GPU, a full mask is fine in a block that does not fill its last warp */
            continue;
        }
        const thread *t = &g.threads[first + lane];
        if (t->state == EXITED) stk_emu_fault(at, "%s: the mask %08x names lane %u, which has exited", op, mask, lane);
        if (t->state != AT_WARP) continue;
        bool same = t->mask == mask && strcmp(t->op, op) == 0;
        if (!same && !(t->mask >> g.running % STK_EMU_WARP & 1u)) continue; /* it has still to come */
        if (!same)
            stk_emu_fault(at, "%s with the mask %08x: lane %u waits for this one in %s with the mask %08x (%s:%d)", op, mask,
                          lane, t->op, t->mask, t->at.file, t->at.line);
        n++;
    }
    return n == expected;
}

static void run_combine(stk_emu_place at, uint32_t mask, stk_emu_combine_fn combine) {
    uint32_t first = g.running / STK_EMU_WARP * STK_EMU_WARP;
    const void *in[STK_EMU_WARP] = {0};
    void *out[STK_EMU_WARP] = {0};
    for (uint32_t lane = 0; lane < STK_EMU_WARP; lane++)
        if (mask >> lane & 1u && first + lane < g.n_thread) {
            in[lane] = g.threads[first + lane].in;
            out[lane] = g.threads[first + lane].out;
        }
    const char *wrong = combine(mask, in, out);
    if (wrong) stk_emu_fault(at, "%s", wrong);
}

/* Every lane learns what the others had seen, and begins a new count. */
static void merge_clocks(uint32_t mask) {
    uint32_t first = g.running / STK_EMU_WARP * STK_EMU_WARP, all[STK_EMU_WARP] = {0};
    for (uint32_t lane = 0; lane < STK_EMU_WARP; lane++) {
        if (!(mask >> lane & 1u) || first + lane >= g.n_thread) continue;
        uint32_t *clocks = g.threads[first + lane].clocks;
        clocks[lane]++;
        for (uint32_t i = 0; i < STK_EMU_WARP; i++) all[i] = STK_MAX(all[i], clocks[i]);
    }
    for (uint32_t lane = 0; lane < STK_EMU_WARP; lane++)
        if (mask >> lane & 1u && first + lane < g.n_thread) memcpy(g.threads[first + lane].clocks, all, sizeof all);
}

static void warp_meet(stk_emu_place at, const char *op, uint32_t mask, const void *in, void *out, stk_emu_combine_fn combine) {
    thread *me = &g.threads[g.running];
    uint32_t first = g.running / STK_EMU_WARP * STK_EMU_WARP;
    if (!(mask >> g.running % STK_EMU_WARP & 1u)) stk_emu_fault(at, "%s: the mask %08x lacks the calling lane", op, mask);
    me->state = AT_WARP;
    me->at = at;
    me->op = op;
    me->mask = mask;
    me->in = in;
    me->out = out;
    if (!warp_complete(at, op, mask)) {
        wait_for_others();
        return;
    }
    if (combine)
        run_combine(at, mask, combine);
    else
        merge_clocks(mask);
    for (uint32_t lane = 0; lane < STK_EMU_WARP; lane++)
        if (mask >> lane & 1u && first + lane < g.n_thread && first + lane != g.running) make_ready(first + lane);
    me->state = READY;
}

void stk_emu_warp_op(stk_emu_place at, const char *op, uint32_t mask, const void *in, void *out, stk_emu_combine_fn combine) {
    warp_meet(at, op, mask, in, out, combine);
}

void stk_emu_sync_warp(stk_emu_place at, uint32_t mask) { warp_meet(at, "__syncwarp", mask, NULL, NULL, NULL); }

/* ---- Shared memory ---- */

static stk_emu_now now(void) { return (stk_emu_now){g.running, g.epoch, g.threads[g.running].clocks}; }

void *stk_emu_shared_array(stk_emu_place at, size_t bytes, size_t *array_bytes) {
    void *array = NULL;
    const char *wrong = stk_emu_shared_find(at, bytes, &array, array_bytes);
    if (wrong) stk_emu_fault(at, "%s", wrong);
    return array;
}

static void access_shared(const void *p, size_t bytes, bool write, stk_emu_place at) {
    stk_emu_now n = now();
    const char *wrong = stk_emu_shared_check(p, bytes, write, &n);
    if (wrong) stk_emu_fault(at, "%s", wrong);
}

void stk_emu_shared_read(const void *p, size_t bytes, stk_emu_place at) { access_shared(p, bytes, false, at); }
void stk_emu_shared_write(void *p, size_t bytes, stk_emu_place at) { access_shared(p, bytes, true, at); }

/* ---- Blocks ---- */

static void thread_main(void *ctx) {
    (void)ctx;
    g.launch->run(g.launch->args);
    g.threads[g.running].state = EXITED;
    g.n_exited++;
    wait_for_others();
}

/* Nobody can run, and not all have exited. */
static void report_stuck(void) {
    for (uint32_t t = 0; t < g.n_thread; t++) {
        const thread *s = &g.threads[t];
        if (s->state == AT_BLOCK)
            report_of(s->at, t, "a barrier that %u of %u threads reach: %u have exited, the others wait elsewhere", g.n_at_block,
                      g.n_thread, g.n_exited);
    }
    for (uint32_t t = 0; t < g.n_thread; t++) {
        const thread *s = &g.threads[t];
        if (s->state == AT_WARP) report_of(s->at, t, "%s: lanes of the mask %08x never come", s->op, s->mask);
    }
}

static void set_thread_idx(uint32_t t) {
    stk_emu_dim d = g.launch->block;
    stk_emu_thread_idx = (stk_emu_dim){t % d.x, t / d.x % d.y, t / d.x / d.y};
    g.running = t;
}

static void run_block(void) {
    g.n_exited = g.n_at_block = g.n_ready = 0;
    g.epoch = 1;
    memset(g.threads, 0, g.n_thread * sizeof *g.threads);
    stk_emu_shared_begin(g.launch->dynamic_bytes);
    for (uint32_t t = 0; t < g.n_thread; t++) {
        g.threads[t].clocks[t % STK_EMU_WARP] = 1;
        stk_fiber_start(&g.fibers[t], thread_main, NULL);
        make_ready(t);
    }
    while (g.n_ready && !g.failed) {
        uint32_t i = draw(g.n_ready), t = g.ready[i];
        g.ready[i] = g.ready[--g.n_ready];
        set_thread_idx(t);
        stk_fiber_switch(&g.home, &g.fibers[t]);
    }
    if (!g.failed && g.n_exited < g.n_thread) report_stuck();
}

static int open_fibers(uint32_t n) {
    for (; g.n_fiber < n; g.n_fiber++)
        if (stk_fiber_open(&g.fibers[g.n_fiber]) < 0) return STK_EMU_MEMORY_ALLOCATION;
    return STK_EMU_SUCCESS;
}

static uint64_t gcd(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* All blocks in the order i -> (i * step + start) % n. */
static void run_blocks(void) {
    stk_emu_dim d = g.launch->grid;
    uint64_t n = (uint64_t)d.x * d.y * d.z, start = draw(UINT32_MAX) % n, step = 1 + draw(UINT32_MAX) % n;
    while (gcd(step, n) != 1) step = step % n + 1;
    for (uint64_t i = 0, b = start; i < n && !g.failed; i++, b = (b + step) % n) {
        stk_emu_block_idx = (stk_emu_dim){(uint32_t)(b % d.x), (uint32_t)(b / d.x % d.y), (uint32_t)(b / d.x / d.y)};
        run_block();
    }
}

int stk_emu_grid_run(const stk_emu_launch_info *launch, uint64_t seed, char *fault, size_t fault_bytes) {
    g.launch = launch;
    g.random = seed;
    g.n_thread = launch->block.x * launch->block.y * launch->block.z;
    g.fault = fault;
    g.fault_bytes = fault_bytes;
    g.failed = false;
    stk_emu_grid_dim = launch->grid;
    stk_emu_block_dim = launch->block;
    int rc = open_fibers(g.n_thread);
    if (rc) return rc;
    uint32_t mxcsr = _mm_getcsr(); /* a device does not know the host's rounding */
    _mm_setcsr(MXCSR_DEFAULT);
    stk_fiber_home(&g.home);
    run_blocks();
    _mm_setcsr(mxcsr);
    return g.failed ? STK_EMU_LAUNCH_FAILURE : STK_EMU_SUCCESS;
}

void stk_emu_grid_release(void) {
    for (uint32_t i = 0; i < g.n_fiber; i++) stk_fiber_close(&g.fibers[i]);
    g.n_fiber = 0;
}
