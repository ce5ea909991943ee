/*
 * Fuzz target: traces. The first byte chooses: odd, the rest is a file as it stands, which checksums guard; even, the rest is
 * u16 n, then the n bytes of a header and the bytes of records, which are framed here so that the fuzzer reaches their decoders.
 * Whatever the reader accepts must be accepted by the writer, and read back the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zstd.h>

#include "tests/trace_random.h"
#include "traces/trace_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_BYTES = 1 << 16, COPY_RECORD_BYTES = 1 << 20 }; /* at most */

static void put(int fd, const void *data, size_t bytes) {
    if (write(fd, data, bytes) != (ssize_t)bytes) abort();
}

static void put_frame(int fd, const uint8_t *raw, size_t raw_bytes) {
    static uint8_t packed[TRACE_HEAD_BYTES + ZSTD_COMPRESSBOUND(INPUT_BYTES)];
    size_t n = ZSTD_compress(packed + TRACE_HEAD_BYTES, sizeof packed - TRACE_HEAD_BYTES, raw, raw_bytes, 1);
    if (ZSTD_isError(n)) abort();
    const trace_head head = {(uint32_t)n, (uint32_t)raw_bytes, stk_trace_check(packed + TRACE_HEAD_BYTES, n)};
    stk_trace_head_put(packed, &head);
    put(fd, packed, TRACE_HEAD_BYTES + n);
}

static void put_framed(int fd, const uint8_t *data, size_t size) {
    uint8_t prefix[TRACE_PREFIX_BYTES];
    if (size < 2) return;
    size_t n = STK_MIN((size_t)(data[0] | data[1] << 8), size - 2);
    stk_trace_prefix_put(prefix);
    put(fd, prefix, sizeof prefix);
    put_frame(fd, data + 2, n);
    if (size - 2 - n) put_frame(fd, data + 2 + n, size - 2 - n);
}

/* Reads all of `from`; writes the records to w, or compares them with those of `same`. */
static void pass(const char *from, stk_trace_writer *w, const char *same) {
    stk_trace_reader *a, *b = NULL;
    stk_trace_record ra, rb;
    if (stk_trace_reader_open(&a, from) < 0) return;
    if (same && stk_trace_reader_open(&b, same) < 0) abort();
    if (b && !tr_same_header(stk_trace_reader_header(a), stk_trace_reader_header(b))) abort();
    while (stk_trace_read(a, &ra) == 1) {
        if (w && stk_trace_write(w, &ra) < 0) abort();
        if (b && (stk_trace_read(b, &rb) != 1 || !tr_same(&ra, &rb))) abort();
    }
    stk_trace_reader_close(&a);
    stk_trace_reader_close(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[32], copy[32];
    if (!size || size > INPUT_BYTES) return 0;
    int fd = memfd_create("trace", MFD_CLOEXEC), copy_fd = memfd_create("copy", MFD_CLOEXEC);
    if (fd < 0 || copy_fd < 0) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(copy, sizeof copy, "/proc/self/fd/%d", copy_fd);
    if (data[0] & 1)
        put(fd, data + 1, size - 1);
    else
        put_framed(fd, data + 1, size - 1);
    stk_trace_reader *r;
    if (stk_trace_reader_open(&r, path) == 0) {
        stk_trace_writer *w = NULL;
        bool small = stk_trace_record_bytes(stk_trace_reader_header(r)) <= COPY_RECORD_BYTES;
        if (small && stk_trace_writer_open(&w, copy, stk_trace_reader_header(r)) < 0) abort();
        stk_trace_reader_close(&r);
        pass(path, w, NULL);
        if (w && stk_trace_writer_close(&w) < 0) abort();
        if (small) pass(path, NULL, copy);
    }
    close(fd);
    close(copy_fd);
    return 0;
}
