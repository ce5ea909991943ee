/* check: random numbers, descriptions, comparison and guarded memory of the kernel checker. */
#include "check.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "cpu/pool.h"
#include "src/numeric.h"

enum { PAGE = 4096, MXCSR_FLAGS = 0x3f };

static uint64_t seed, state, n_case;
static char title[64], description[512];

void check_seed(uint64_t s) { seed = s; }

uint64_t check_seed_get(void) { return seed; }

/* splitmix64 */
uint32_t check_random(void) {
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ z >> 31) >> 32);
}

uint32_t check_below(uint32_t n) { return (uint32_t)((uint64_t)check_random() * n >> 32); }

float check_uniform(void) { return (float)(int32_t)(check_random() | 1u) * 0x1p-31f * 0.999f; }

/* Each operation has its own stream, the same for every table and whichever others are checked. */
void check_begin(const stk_cpu_ops *ops, const char *op) {
    state = seed;
    for (const char *c = op; *c; c++) state = state * 31 + (uint8_t)*c;
    snprintf(title, sizeof title, "%s %s", ops->name, op);
    description[0] = 0;
    n_case = 0;
    stk_mxcsr_set();
}

void check_case(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(description, sizeof description, fmt, ap);
    va_end(ap);
    n_case++;
}

uint64_t check_n_case(void) { return n_case; }

bool check_fail(const char *fmt, ...) {
    fprintf(stderr, "FAIL %s: %s: ", title, description);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, " (case %llu, --seed %llu)\n", (unsigned long long)n_case, (unsigned long long)seed);
    return false;
}

static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)context;
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "FAIL %s: %s: signal %d at address %p, which is outside of what the call may touch (--seed %llu)\n", title,
                     description, sig, info->si_addr, (unsigned long long)seed);
    if (n > 0 && write(STDERR_FILENO, text, STK_MIN((size_t)n, sizeof text - 1)) < 0) _exit(CHECK_FAULT);
    _exit(CHECK_FAULT);
}

void check_catch_faults(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    for (uint32_t i = 0; i < STK_ARRAY_LEN(signals); i++) sigaction(signals[i], &action, NULL);
}

bool check_floats(const char *what, const float *want, const float *got, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        float w, g;
        memcpy(&w, want + i, sizeof w); /* outputs may be misaligned */
        memcpy(&g, got + i, sizeof g);
        if (stk_f32_bits(w) == stk_f32_bits(g) || (w != w && g != g)) continue;
        return check_fail("%s[%u] of %u is %a (%08x), the reference has %a (%08x)", what, i, n, (double)g, stk_f32_bits(g),
                          (double)w, stk_f32_bits(w));
    }
    return true;
}

bool check_mxcsr(void) {
    uint32_t mxcsr = _mm_getcsr() & ~(uint32_t)MXCSR_FLAGS;
    return mxcsr == 0x1f80 || check_fail("left MXCSR at %04x", mxcsr);
}

/* ---- Memory ---- */

void guard_open(guard *g, size_t bytes) {
    size_t size = stk_align_up(bytes + PAGE, PAGE);
    uint8_t *base = mmap(NULL, size + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base, PAGE, PROT_NONE) || mprotect(base + PAGE + size, PAGE, PROT_NONE)) {
        perror("checkkernels: guard pages");
        exit(2);
    }
    *g = (guard){.begin = base + PAGE, .end = base + PAGE + size};
}

static void guard_set(const guard *g, int prot) {
    if (mprotect(g->begin, (size_t)(g->end - g->begin), prot)) {
        perror("checkkernels: mprotect");
        exit(2);
    }
}

void *guard_place(guard *g, size_t bytes, size_t align, size_t slack, uint8_t fill) {
    guard_set(g, PROT_READ | PROT_WRITE);
    if (bytes + align + slack > (size_t)(g->end - g->begin)) {
        fprintf(stderr, "checkkernels: %zu bytes do not fit into %zu\n", bytes + slack, (size_t)(g->end - g->begin));
        exit(2);
    }
    g->at = (uint8_t *)((uintptr_t)(g->end - bytes - slack) & ~(uintptr_t)(align - 1));
    g->bytes = bytes;
    g->fill = fill;
    memset(g->begin, fill, (size_t)(g->end - g->begin));
    return g->at;
}

void guard_protect(guard *g) { guard_set(g, PROT_READ); }

bool guard_intact(const guard *g, const char *what) {
    for (const uint8_t *p = g->begin; p < g->end; p++) {
        if (p == g->at) p += g->bytes;
        if (p < g->end && *p != g->fill)
            return check_fail("wrote %td bytes from the begin of %s, which has %zu bytes", p - g->at, what, g->bytes);
    }
    return true;
}
