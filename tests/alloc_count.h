/*
 * alloc_count: counts the calls of malloc, calloc and realloc of the whole program, shared libraries included, for tests that
 * show that a steady state allocates nothing. Include in one file of a program. Under a sanitizer, which has its own malloc,
 * ALLOC_COUNTED is 0 and the count stays 0.
 */
#ifndef STK_TEST_ALLOC_COUNT_H
#define STK_TEST_ALLOC_COUNT_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

static _Atomic uint64_t alloc_count; /* relaxed: a tally, orders nothing */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ALLOC_COUNTED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ALLOC_COUNTED 0
#endif
#endif

#ifndef ALLOC_COUNTED
#define ALLOC_COUNTED 1

/* Seen by shared libraries too, which hidden ones would not be. */
#define ALLOC_SEEN __attribute__((visibility("default")))

/* glibc's own entry points. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);

ALLOC_SEEN void *malloc(size_t bytes) {
    atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
    return __libc_malloc(bytes);
}
ALLOC_SEEN void *calloc(size_t n, size_t bytes) {
    atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
    return __libc_calloc(n, bytes);
}
ALLOC_SEEN void *realloc(void *p, size_t bytes) {
    atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
    return __libc_realloc(p, bytes);
}
#endif

#endif
