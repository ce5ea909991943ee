/*
 * Fuzz target: traces of other tools. The input is a file as it stands. Whatever is read must fit its header, be taken by the
 * writer of Stoker's own format, and come back from it the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/trace_random.h"
#include "traces/source.h"
#include "traces/trace_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_BYTES = 1 << 16, COPY_RECORD_BYTES = 1 << 20, COPY_HEADER_BYTES = 1 << 20, MOST_RECORDS = 20000 };

static void check_event(const stk_trace_header *h, const stk_event *e) {
    uint64_t n_pair = 0, n_id = 0;
    if (e->layer >= h->n_layer || e->n_expert > h->n_expert || e->k > h->k || !e->n_tok || e->n_tok > h->n_batch) abort();
    for (size_t i = 0; i < (size_t)e->n_tok * e->k; i++) {
        if (e->ids[i] != STK_NO_EXPERT && e->ids[i] >= e->n_expert) abort();
        n_id += e->ids[i] != STK_NO_EXPERT;
    }
    for (uint32_t i = 0; i < e->n_distinct; i++) {
        if (e->distinct[i] >= e->n_expert || (i && e->distinct[i] <= e->distinct[i - 1]) || !e->counts[i]) abort();
        n_pair += e->counts[i];
    }
    if (n_pair != n_id) abort();
}

/* Reads all of `from`; writes the records to w, or compares them with those of `same`. */
static void pass(const char *from, stk_trace_writer *w, const char *same) {
    stk_source *s;
    stk_trace_reader *own = NULL;
    stk_trace_record a, b;
    if (stk_source_open(&s, &from, 1, NULL) < 0) abort();
    if (same && stk_trace_reader_open(&own, same) < 0) abort();
    for (uint32_t i = 0; i < MOST_RECORDS && stk_source_read(s, &a) == 1; i++) {
        if (a.kind == STK_TRACE_EVENT) check_event(stk_source_header(s), &a.event);
        if (w && stk_trace_write(w, &a) < 0) abort();
        if (own && (stk_trace_read(own, &b) != 1 || !tr_same(&a, &b))) abort();
    }
    stk_trace_reader_close(&own);
    stk_source_close(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[32], copy[32];
    if (size > INPUT_BYTES) return 0;
    int fd = memfd_create("import", MFD_CLOEXEC), copy_fd = memfd_create("copy", MFD_CLOEXEC);
    if (fd < 0 || copy_fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(copy, sizeof copy, "/proc/self/fd/%d", copy_fd);
    const char *from = path;
    stk_source *s;
    if (stk_source_open(&s, &from, 1, NULL) == 0) {
        const stk_trace_header *h = stk_source_header(s);
        bool small = stk_trace_record_bytes(h) <= COPY_RECORD_BYTES && stk_trace_header_bytes(h) <= COPY_HEADER_BYTES;
        stk_trace_writer *w = NULL;
        if (small && stk_trace_writer_open(&w, copy, h) < 0) abort();
        stk_source_close(&s);
        pass(path, w, NULL);
        if (w && stk_trace_writer_close(&w) < 0) abort();
        if (small) pass(path, NULL, copy);
    }
    close(fd);
    close(copy_fd);
    return 0;
}
