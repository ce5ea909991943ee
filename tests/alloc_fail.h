/*
 * alloc_fail: makes the n-th allocation of a program fail. Include in the one file of a test whose name ends in _nomem: the
 * linker sends the allocations of such a program here (tests/CMakeLists.txt); those inside shared libraries are not counted.
 */
#ifndef STK_TEST_ALLOC_FAIL_H
#define STK_TEST_ALLOC_FAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static int64_t until_failure = -1; /* allocations that still succeed; -1: all */
static unsigned n_failed;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);

static bool fails(void) {
    if (until_failure < 0) return false;
    if (until_failure > 0) {
        until_failure--;
        return false;
    }
    n_failed++;
    return true;
}

void *__wrap_malloc(size_t n) { return fails() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return fails() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t n) { return fails() ? NULL : __real_realloc(p, n); }
char *__wrap_strdup(const char *s) { return fails() ? NULL : __real_strdup(s); }

#endif
