/*
 * base: what every folder shares: error codes and their detail text, the two error macros, logging, small integer helpers.
 *
 * Who may call it: every folder. Threads: the detail text is kept per thread; the log sink is set once, before other threads
 * start. Ownership: nothing here allocates.
 */
#ifndef STK_BASE_H
#define STK_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stoker.h"

/* Marks functions that kernels of a GPU may call, too. */
#ifdef __CUDACC__
#define STK_ANYWHERE __host__ __device__
#else
#define STK_ANYWHERE
#endif

#define STK_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define STK_CHECKED           __attribute__((warn_unused_result))
#define STK_ARRAY_LEN(a)      (sizeof(a) / sizeof((a)[0]))
#define STK_MIN(a, b)         ((a) < (b) ? (a) : (b))
#define STK_MAX(a, b)         ((a) > (b) ? (a) : (b))

#ifdef __cplusplus
extern "C" {
#endif

/* Return the code of a failed call at once. */
#define STK_TRY(call)                                                                                                            \
    do {                                                                                                                         \
        int stk_try_rc_ = (call);                                                                                                \
        if (stk_try_rc_ < 0) return stk_try_rc_;                                                                                 \
    } while (0)

/* Keep the code of a failed call in `rc` and go to the function's one label, `out`. */
#define STK_TRYGOTO(call, rc, out)                                                                                               \
    do {                                                                                                                         \
        (rc) = (call);                                                                                                           \
        if ((rc) < 0) goto out;                                                                                                  \
    } while (0)

/* Sets the calling thread's detail text (what, where, what to do) and returns `code`. */
int stk_fail(int code, const char *fmt, ...) STK_PRINTF(2, 3);

/* As stk_fail, with ": strerror(errnum)" at the end; the code follows from errnum (ENOMEM, ENOSPC, ... or STK_EIO). */
int stk_fail_errno(int errnum, const char *fmt, ...) STK_PRINTF(2, 3);

/* Puts "context: " in front of the detail text; returns `code` unchanged. For adding where a failure happened. */
int stk_fail_in(int code, const char *fmt, ...) STK_PRINTF(2, 3);

/* Sends one line (no newline) to the sink of stk_log_set; dropped when there is none. Levels: STK_LOG_*. */
void stk_log(int level, const char *fmt, ...) STK_PRINTF(2, 3);

/* Drops the calling thread's lines until it is called with false. */
void stk_log_hush(bool hush);

/* Structs of stoker.h that begin with struct_bytes: `own` is as this library was compiled, `theirs` as its caller was. */
/* Fills the caller's, of `bytes` bytes: as much of `own` as fits, zeros behind it; its struct_bytes becomes `bytes`. */
void stk_struct_give(void *theirs, size_t bytes, const void *own, size_t own_bytes);
/* Overwrites as much of `own` as the caller's has. Errors: STK_EINVAL (its struct_bytes is not set, or beyond `own`). */
int stk_struct_take(void *own, size_t own_bytes, const void *theirs, const char *what) STK_CHECKED;

/* Checked arithmetic on sizes: true when the result does not fit. */
static inline bool stk_mul_overflow(uint64_t a, uint64_t b, uint64_t *out) { return __builtin_mul_overflow(a, b, out); }
static inline bool stk_add_overflow(uint64_t a, uint64_t b, uint64_t *out) { return __builtin_add_overflow(a, b, out); }

/* Rounds up to a multiple of `align`, a power of two; the caller makes sure that it fits. */
static inline uint64_t stk_align_up(uint64_t x, uint64_t align) { return (x + align - 1) & ~(align - 1); }
static inline uint64_t stk_div_up(uint64_t x, uint64_t by) { return (x + by - 1) / by; }

/* Goes on from h with the bytes; against damage, not against malice. Files hold the result: it does not change. */
uint64_t stk_hash(uint64_t h, const void *data, size_t bytes);

/* Monotonic time in nanoseconds. */
uint64_t stk_now_ns(void);

#ifdef __cplusplus
}
#endif
#endif
