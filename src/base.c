/* base: error text, logging, time. */
#include "base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { DETAIL_BYTES = 1024 };

static _Thread_local char detail[DETAIL_BYTES];

/* Written by stk_log_set before threads start, read by all. */
static stk_log_fn log_sink;
static void *log_user;

int stk_fail(int code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    return code;
}

static int code_of_errno(int errnum) {
    switch (errnum) {
    case ENOMEM: return STK_ENOMEM;
    case ENOSPC:
    case EDQUOT: return STK_ENOSPC;
    case EINVAL: return STK_EINVAL;
    default: return STK_EIO;
    }
}

int stk_fail_errno(int errnum, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof detail) {
        char text[128];
        snprintf(detail + n, sizeof detail - (size_t)n, ": %s", strerror_r(errnum, text, sizeof text));
    }
    return code_of_errno(errnum);
}

int stk_fail_in(int code, const char *fmt, ...) {
    char before[DETAIL_BYTES];
    memcpy(before, detail, sizeof before);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof detail) snprintf(detail + n, sizeof detail - (size_t)n, ": %s", before);
    return code;
}

const char *stk_error_detail(void) { return detail; }

const char *stk_strerror(int code) {
    switch (code) {
    case STK_OK: return "success";
    case STK_EINVAL: return "invalid argument";
    case STK_ENOMEM: return "out of memory";
    case STK_EIO: return "input/output error";
    case STK_EFORMAT: return "malformed file";
    case STK_EUNSUPPORTED: return "not supported";
    case STK_EBUDGET: return "memory budget too small";
    case STK_EFULL: return "context full";
    case STK_ECANCELED: return "canceled";
    case STK_ENOSPC: return "no space left on device";
    case STK_ESTATE: return "wrong state";
    case STK_ELOST: return "the device is lost";
    default: return "unknown error";
    }
}

void stk_log_set(stk_log_fn fn, void *user) {
    log_sink = fn;
    log_user = user;
}

static _Thread_local bool log_hushed;

void stk_log_hush(bool hush) { log_hushed = hush; }

void stk_log(int level, const char *fmt, ...) {
    if (!log_sink || log_hushed) return;
    char line[DETAIL_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    log_sink(log_user, level, line);
}

void stk_struct_give(void *theirs, size_t bytes, const void *own, size_t own_bytes) {
    uint32_t struct_bytes = (uint32_t)bytes;
    if (!theirs || bytes < sizeof struct_bytes) return;
    memset(theirs, 0, bytes);
    memcpy(theirs, own, STK_MIN(bytes, own_bytes));
    memcpy(theirs, &struct_bytes, sizeof struct_bytes);
}

int stk_struct_take(void *own, size_t own_bytes, const void *theirs, const char *what) {
    uint32_t bytes;
    memcpy(&bytes, theirs, sizeof bytes);
    if (bytes < sizeof bytes || bytes > own_bytes)
        return stk_fail(STK_EINVAL, "%s of %u bytes; this library knows %zu", what, bytes, own_bytes);
    memcpy(own, theirs, bytes);
    return STK_OK;
}

uint64_t stk_hash(uint64_t h, const void *data, size_t bytes) {
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, p + i, STK_MIN(bytes - i, (size_t)8));
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

uint64_t stk_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint32_t stk_abi_version(void) { return STK_ABI_VERSION; }

const char *stk_version(void) { return STK_VERSION; }
