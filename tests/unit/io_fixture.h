/* What the tests of io/ share: files of known content, buffers between guard pages, a log that is counted. */
#ifndef STK_IO_FIXTURE_H
#define STK_IO_FIXTURE_H

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/backend.h"
#include "tests/temp.h"

#ifdef __has_feature
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
    x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44du;
    return x ^ (x >> 33);
}

/* The byte that every test file has at an offset. */
static inline unsigned char byte_at(uint64_t offset) { return (unsigned char)(mix(offset / 8 + 1) >> (8 * (offset % 8))); }

static inline void fill(unsigned char *out, uint64_t offset, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i++) out[i] = byte_at(offset + i);
}

/* Makes a file of `bytes` bytes in `dir`, on disk and not in the page cache. `path` has 64 bytes. */
/* path: [TEMP_PATH] */
static inline void make_file(char *path, const char *dir, uint64_t bytes) {
    snprintf(path, TEMP_PATH, "%s/stoker-io-XXXXXX", dir);
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0, "%s", path);
    unsigned char *chunk = malloc(1 << 20);
    for (uint64_t at = 0; at < bytes; at += 1 << 20) {
        size_t n = STK_MIN(bytes - at, 1u << 20);
        fill(chunk, at, n);
        cr_assert_eq(write(fd, chunk, n), (ssize_t)n);
    }
    free(chunk);
    cr_assert_eq(fsync(fd), 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* Pages of a file that the page cache holds. */
static inline uint64_t cached_pages(const char *path, uint64_t bytes) {
    int fd = open(path, O_RDONLY);
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    cr_assert_neq(map, MAP_FAILED);
    size_t n = stk_div_up(bytes, 4096);
    unsigned char *vec = malloc(n);
    cr_assert_eq(mincore(map, bytes, vec), 0);
    uint64_t cached = 0;
    for (size_t i = 0; i < n; i++) cached += vec[i] & 1;
    free(vec);
    munmap(map, bytes);
    close(fd);
    return cached;
}

/* A buffer that ends at a page that cannot be touched, and begins at most 4,095 bytes behind another; filled with 0xa5. */
typedef struct guarded {
    unsigned char *data;
    uint64_t bytes;
    char *map;
    uint64_t map_bytes;
} guarded;

static inline guarded guarded_open(uint64_t bytes) {
    uint64_t inner = stk_align_up(bytes, 4096);
    guarded g = {.bytes = bytes, .map_bytes = inner + 8192};
    g.map = mmap(NULL, g.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(g.map, MAP_FAILED);
    cr_assert_eq(mprotect(g.map + 4096, inner, PROT_READ | PROT_WRITE), 0);
    g.data = (unsigned char *)g.map + 4096 + inner - bytes;
    memset(g.map + 4096, 0xa5, inner);
    return g;
}

static inline void guarded_close(guarded *g) { munmap(g->map, g->map_bytes); }

/* Whether `data` is what a read of a file of file_bytes must bring: its bytes, then zeroes. */
static inline bool is_content(const unsigned char *data, uint64_t offset, uint64_t bytes, uint64_t file_bytes) {
    for (uint64_t i = 0; i < bytes; i++)
        if (data[i] != (offset + i < file_bytes ? byte_at(offset + i) : 0)) return false;
    return true;
}

typedef struct log_lines {
    uint32_t n;
    char last[1024];
} log_lines;

/* Counts lines that a user sees by default. */
static inline void count_line(void *user, int level, const char *line) {
    log_lines *lines = user;
    if (level == STK_LOG_DEBUG) return;
    lines->n++;
    snprintf(lines->last, sizeof lines->last, "%s", line);
}

/* Opens `path` by `spec`. Without io_uring, a test of it is skipped. */
static inline stk_io *open_one(const char *spec, const char *path, uint32_t depth, uint32_t piece_bytes) {
    stk_io *io = NULL;
    int rc = stk_io_open(
        &io, &(stk_io_options){.spec = spec, .n_file = 1, .paths = &path, .depth = depth, .piece_bytes = piece_bytes});
    if (rc == STK_EUNSUPPORTED) {
        unlink(path);
        cr_skip_test("%s", stk_error_detail());
    }
    cr_assert_eq(rc, 0, "%s", stk_error_detail());
    return io;
}

/* Reaps until nothing is in flight; returns the number of completions with `status`. */
static inline uint32_t reap_all(stk_io *io, int status) {
    uint32_t n_match = 0;
    stk_io_done done[16];
    while (stk_io_in_flight(io)) {
        int n = stk_io_reap(io, done, 16, true);
        cr_assert_geq(n, 0, "%s", stk_error_detail());
        for (int i = 0; i < n; i++) n_match += done[i].status == status;
    }
    return n_match;
}

#endif
