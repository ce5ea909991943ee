/*
 * probe steady: a decode step allocates nothing. The program's own malloc family and mmap stand before those of the C library
 * (whose implementation is reached under its internal names), so that calls from every library and thread are seen.
 */
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/gates/probe.h"

static atomic_bool armed;
static atomic_uint_fast64_t n_call;

void probe_count_allocations(bool on) {
    if (on) atomic_store(&n_call, 0);
    atomic_store(&armed, on);
}

uint64_t probe_allocations(void) { return atomic_load(&n_call); }

#ifndef STK_TESTS_SANITIZED
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static void count(void) {
    if (atomic_load_explicit(&armed, memory_order_relaxed)) atomic_fetch_add(&n_call, 1);
}

void *malloc(size_t bytes) { return count(), __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) { return count(), __libc_calloc(n, bytes); }
void *realloc(void *p, size_t bytes) { return count(), __libc_realloc(p, bytes); }
void *memalign(size_t align, size_t bytes) { return count(), __libc_memalign(align, bytes); }
void *aligned_alloc(size_t align, size_t bytes) { return count(), __libc_memalign(align, bytes); }
int posix_memalign(void **p, size_t align, size_t bytes) {
    count();
    *p = __libc_memalign(align, bytes);
    return *p ? 0 : 12;
}
void free(void *p) {
    if (p) count();
    __libc_free(p);
}
void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset) {
    count();
    return (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset); /* errno is set by syscall; MAP_FAILED is -1 */
}
int munmap(void *at, size_t bytes) {
    count();
    return (int)syscall(SYS_munmap, at, bytes);
}
#endif

int probe_steady(probe *p) {
    enum { WARM_UP = 16 };
    probe_open(p);
    probe_prefill(p);
    for (uint32_t i = 0; i < WARM_UP + p->n; i++) {
        int32_t id = probe_argmax(probe_logits(p), p->info.n_vocab);
        if (i == WARM_UP) probe_count_allocations(true);
        probe_must(probe_step(p, &id, 1), "step");
    }
    probe_count_allocations(false);
    stk_stats s = probe_get_stats(p);
    printf("allocations %llu\nn_miss %llu\n", (unsigned long long)probe_allocations(), (unsigned long long)s.n_miss);
    probe_count_allocations(true); /* the hooks do see what the library allocates */
    stk_sampler *sampler = NULL;
    stk_sampler_options o;
    stk_sampler_options_default(&o, sizeof o);
    probe_must(stk_sampler_open(&sampler, &o, p->info.n_vocab), "sampler");
    stk_sampler_close(&sampler);
    probe_count_allocations(false);
    printf("seen %llu\n", (unsigned long long)probe_allocations());
    probe_close(p);
    return 0;
}
