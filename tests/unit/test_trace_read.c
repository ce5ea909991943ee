/* trace_read: cut, damaged and hostile files. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <zstd.h>

#include "tests/temp.h"
#include "tests/trace_random.h"
#include "traces/trace_format.h"

static trace_input t;

/* A small trace with all kinds of records in several frames. Returns its bytes, and where each frame ends. */
static size_t small_trace(uint8_t **data, size_t *ends, size_t *n_end) {
    stk_trace_writer *w;
    tr_header(&t, 5);
    t.header.n_expert = 3;
    t.header.k = 2;
    for (uint32_t frame = 0; frame < 4; frame++) {
        /* One frame a writer, since frames are large; joined below. */
        cr_assert_eq(stk_trace_writer_open(&w, tr_path(), &t.header), 0);
        stk_trace_record r = {.kind = STK_TRACE_STEP};
        tr_step(&t, frame, 2);
        r.step = t.step;
        cr_assert_eq(stk_trace_write(w, &r), 0);
        const uint16_t ids[4] = {0, 2, 1, 0}, distinct[3] = {0, 1, 2}, top[6] = {0, 2, 1, 1, 0, 2};
        const uint32_t counts[3] = {2, 1, 1};
        const float weights[4] = {0.6f, 0.4f, 0.7f, 0.3f}, scores[6] = {0.5f, 0.3f, 0.2f, 0.6f, 0.3f, 0.1f};
        r = (stk_trace_record){.kind = STK_TRACE_EVENT,
                               .event = {.step = frame,
                                         .n_tok = 2,
                                         .k = 2,
                                         .n_top = frame % 2 ? 3 : 0,
                                         .n_expert = 3,
                                         .ids = ids,
                                         .weights = weights,
                                         .top_ids = top,
                                         .top_scores = scores,
                                         .n_distinct = 3,
                                         .distinct = distinct,
                                         .counts = counts}};
        cr_assert_eq(stk_trace_write(w, &r), 0);
        r = (stk_trace_record){.kind = STK_TRACE_DROP, .drop_key = 7};
        cr_assert_eq(stk_trace_write(w, &r), 0);
        r = (stk_trace_record){.kind = STK_TRACE_ABORT, .abort_step = frame};
        cr_assert_eq(stk_trace_write(w, &r), 0);
        r = (stk_trace_record){.kind = STK_TRACE_COST, .cost = {1.5, frame}};
        cr_assert_eq(stk_trace_write(w, &r), 0);
        if (frame == 3) cr_assert_eq(stk_trace_write(w, tr_end(&t)), 0);
        cr_assert_eq(stk_trace_writer_close(&w), 0);

        uint8_t *part;
        size_t bytes = tr_load(tr_path(), &part), skip = 0;
        trace_head head;
        cr_assert(stk_trace_head_get(part + TRACE_PREFIX_BYTES, &head));
        if (frame == 0) {
            *data = malloc(1 << 16);
            *n_end = 0;
            ends[(*n_end)++] = TRACE_PREFIX_BYTES + TRACE_HEAD_BYTES + head.packed_bytes;
            ends[*n_end] = 0;
        } else
            skip = TRACE_PREFIX_BYTES + TRACE_HEAD_BYTES + head.packed_bytes;
        size_t at = frame ? ends[*n_end - 1] : 0;
        memcpy(*data + at, part + skip, bytes - skip);
        ends[(*n_end)++] = at + bytes - skip;
        free(part);
    }
    return ends[*n_end - 1];
}

/* Reads all: the number of records, and the code of the last call. */
static uint32_t read_all(const char *path, int *rc, bool *cut) {
    stk_trace_reader *r;
    stk_trace_record record;
    uint32_t n = 0;
    *cut = false;
    *rc = stk_trace_reader_open(&r, path);
    if (*rc < 0) {
        cr_assert_null(r);
        return 0;
    }
    while ((*rc = stk_trace_read(r, &record)) == 1) n++;
    *cut = stk_trace_reader_cut(r);
    if (*rc < 0) cr_assert_eq(stk_trace_read(r, &record), *rc, "a failure stays");
    stk_trace_reader_close(&r);
    cr_assert_null(r);
    return n;
}

Test(trace_read, a_file_cut_anywhere_is_read_up_to_its_last_whole_frame) {
    uint8_t *data;
    size_t ends[8], n_end, bytes = small_trace(&data, ends, &n_end);
    for (size_t at = 0; at <= bytes; at++) {
        int rc;
        bool cut;
        tr_store(tr_path(), data, at);
        uint32_t n = read_all(tr_path(), &rc, &cut), want = 0;
        for (size_t i = 1; i < n_end; i++) want += ends[i] <= at ? 5 : 0;
        if (at < ends[0]) {
            cr_assert_eq(rc, STK_EFORMAT, "cut at %zu", at);
            continue;
        }
        cr_assert_eq(rc, 0, "cut at %zu: %s", at, stk_error_detail());
        cr_assert_eq(n, want + (at == bytes), "cut at %zu: %u records", at, n);
        cr_assert_eq(cut, at < bytes);
    }
    free(data);
}

Test(trace_read, every_flipped_bit_is_found_and_its_frame_named) {
    uint8_t *data;
    size_t ends[8], n_end, bytes = small_trace(&data, ends, &n_end);
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        int rc;
        bool cut;
        char where[64];
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        tr_store(tr_path(), data, bytes);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        uint32_t n = read_all(tr_path(), &rc, &cut), frame = 0;
        cr_assert_eq(rc, STK_EFORMAT, "bit %zu", bit);
        cr_assert_not_null(strstr(stk_error_detail(), tr_path()));
        while (ends[frame] <= bit / 8) frame++;
        cr_assert_eq(n, frame ? (frame - 1) * 5 : 0);
        snprintf(where, sizeof where, "byte %zu",
                 frame       ? ends[frame - 1]
                 : bit < 128 ? bit / 64 * 8
                             : (size_t)TRACE_PREFIX_BYTES);
        if (bit < 8 * TRACE_PREFIX_BYTES) snprintf(where, sizeof where, "byte %d", bit < 64 ? 0 : 8);
        cr_assert_not_null(strstr(stk_error_detail(), where), "bit %zu: %s", bit, stk_error_detail());
    }
    free(data);
}

Test(trace_read, what_is_no_trace_is_refused) {
    int rc;
    bool cut;
    read_all(temp_dir(), &rc, &cut);
    cr_assert_eq(rc, STK_EIO);
    read_all("/dev/null", &rc, &cut);
    cr_assert_eq(rc, STK_EFORMAT);
    read_all("/no/such/file", &rc, &cut);
    cr_assert_eq(rc, STK_EIO);
    cr_assert_not_null(strstr(stk_error_detail(), "/no/such/file"));
    tr_store(tr_path(), "GGUF and a few more bytes", 25);
    read_all(tr_path(), &rc, &cut);
    cr_assert_eq(rc, STK_EFORMAT);
}

Test(trace_read, bytes_after_the_end_are_reported) {
    uint8_t *data;
    size_t ends[8], n_end, bytes = small_trace(&data, ends, &n_end);
    int rc;
    bool cut;
    data[bytes] = 0;
    tr_store(tr_path(), data, bytes + 1);
    cr_assert_eq(read_all(tr_path(), &rc, &cut), 21);
    cr_assert_eq(rc, STK_EFORMAT);
    free(data);
}

/* ---- Hostile content in frames whose checksums are right ---------------------------------------------------------------- */

/* A file of the good header and one frame of these bytes. */
static void forge(const uint8_t *raw, size_t raw_bytes, uint32_t claimed_raw_bytes) {
    static uint8_t file[1 << 20];
    stk_trace_writer *w;
    uint8_t *data;
    tr_header(&t, 5);
    cr_assert_eq(stk_trace_writer_open(&w, tr_path(), &t.header), 0);
    cr_assert_eq(stk_trace_writer_close(&w), 0);
    size_t at = tr_load(tr_path(), &data);
    memcpy(file, data, at);
    free(data);
    size_t packed = ZSTD_compress(file + at + TRACE_HEAD_BYTES, sizeof file - at - TRACE_HEAD_BYTES, raw, raw_bytes, 1);
    const trace_head head = {(uint32_t)packed, claimed_raw_bytes, stk_trace_check(file + at + TRACE_HEAD_BYTES, packed)};
    stk_trace_head_put(file + at, &head);
    tr_store(tr_path(), file, at + TRACE_HEAD_BYTES + packed);
}

static void expect_refusal(const uint8_t *raw, const uint8_t *end, const char *why) {
    int rc;
    bool cut;
    forge(raw, (size_t)(end - raw), (uint32_t)(end - raw));
    read_all(tr_path(), &rc, &cut);
    cr_assert_eq(rc, STK_EFORMAT, "%s", why);
    cr_assert_not_null(strstr(stk_error_detail(), why), "%s instead of %s", stk_error_detail(), why);
}

static uint8_t *one_token_step(uint8_t *p) {
    const uint8_t step[] = {TRACE_TAG_STEP, 0, 1, 0, 0, 0, 1};
    return put_bytes(p, step, sizeof step);
}

static uint8_t *event(uint8_t *p, uint8_t flags, uint64_t layer, uint64_t n_expert, uint64_t k, uint64_t n_top) {
    *p++ = TRACE_TAG_EVENT;
    *p++ = flags;
    p = put_varint(p, layer);
    p = put_varint(p, n_expert);
    p = put_varint(p, k);
    return put_varint(p, n_top);
}

Test(trace_read, hostile_records_are_refused) {
    uint8_t raw[512], *p;
    expect_refusal(raw, put_bytes(raw, (const uint8_t[]){0}, 1), "no known kind");
    expect_refusal(raw, put_bytes(raw, (const uint8_t[]){99}, 1), "no known kind");
    expect_refusal(raw, event(raw, 0, 0, 1, 1, 0), "without its step");
    p = put_bytes(raw, (const uint8_t[]){TRACE_TAG_STEP, 0}, 2);
    expect_refusal(raw, put_varint(p, 0), "too many tokens");
    expect_refusal(raw, put_varint(p, TR_BATCH + 1), "too many tokens");
    expect_refusal(raw, put_varint(p, TR_BATCH), "too many tokens");
    expect_refusal(raw, put_varint(p, UINT64_MAX), "too many tokens");
    p = put_varint(put_bytes(raw, (const uint8_t[]){TRACE_TAG_STEP, 0, 1, 0, 0}, 5), zigzag((uint64_t)INT32_MAX + 1));
    expect_refusal(raw, put_varint(p, 0), "32 bits");
    expect_refusal(raw, one_token_step(raw) - 1, "cut short");
    p = one_token_step(raw);
    memset(p, 0, 100);
    memcpy(p, raw, (size_t)(p - raw));
    *p = TRACE_TAG_STEP_AGAIN;
    p[1] = 1;
    expect_refusal(raw, p + 7, "not the latest");
    expect_refusal(p, p + 7, "not the latest");
    memset(p, 0, 100);
    expect_refusal(raw, event(p, 0, TR_LAYER, 3, 1, 0) + 50, "does not fit");
    expect_refusal(raw, event(p, 0, 0, TR_EXPERT + 1, 1, 0) + 50, "does not fit");
    expect_refusal(raw, event(p, 0, 0, 3, 0, 0) + 50, "does not fit");
    expect_refusal(raw, event(p, 0, 0, 3, 4, 0) + 50, "does not fit");
    expect_refusal(raw, event(p, 0, 0, 3, 1, 4) + 50, "does not fit");
    expect_refusal(raw, event(p, 0, 0, 0, 0, 0) + 50, "does not fit");
    expect_refusal(raw, event(p, 8, 0, 3, 1, 0) + 50, "does not fit");
    expect_refusal(raw, event(p, TRACE_IDS_ARE_TOP, 0, 3, 2, 1) + 50, "does not fit");
    expect_refusal(raw, event(p, TRACE_WEIGHTS_NORMED, 0, 3, 1, 3) + 50, "does not fit");
    expect_refusal(raw, event(p, 0, 0, 300, 1, 300) + 50, "cut short");
    expect_refusal(raw, event(p, TRACE_WEIGHTS_STORED, 0, 300, 8, 0) + 30, "cut short");
    uint8_t *ids = event(p, 0, 0, 3, 1, 0);
    *ids = 4;
    expect_refusal(raw, ids + 1, "does not exist");
    p = put_bytes(raw, (const uint8_t[]){TRACE_TAG_DROP}, 1);
    expect_refusal(raw, put_varint(p, TR_LAYER * TR_EXPERT), "out of range");
    raw[0] = TRACE_TAG_COST;
    expect_refusal(raw, raw + 400, "cut short");
    raw[0] = TRACE_TAG_END;
    memset(raw + 1, 0, 20);
    expect_refusal(raw, raw + 10, "cut short");
    expect_refusal(raw, raw + 12, "after the end");
}

Test(trace_read, a_frame_must_be_as_long_as_its_head_says) {
    static const uint8_t raw[64] = {TRACE_TAG_DROP, 0};
    static const uint32_t claims[] = {0, 1, 63, 65, 1 << 20, TRACE_MAX_HEADER_BYTES, UINT32_MAX};
    for (size_t i = 0; i < STK_ARRAY_LEN(claims); i++) {
        int rc;
        bool cut;
        forge(raw, sizeof raw, claims[i]);
        cr_assert_eq(read_all(tr_path(), &rc, &cut), 0);
        cr_assert_eq(rc, STK_EFORMAT, "%u", claims[i]);
    }
}

/* ---- Pipes -------------------------------------------------------------------------------------------------------------- */

static void *copy_to(void *fifo) {
    uint8_t *data;
    size_t bytes = tr_load(tr_path(), &data);
    tr_store(fifo, data, bytes);
    free(data);
    return NULL;
}

Test(trace_read, a_pipe_is_read_like_a_file) {
    stk_trace_writer *w;
    char dir[TEMP_PATH], fifo[TEMP_PATH + 8];
    tr_header(&t, 2);
    cr_assert_eq(stk_trace_writer_open(&w, tr_path(), &t.header), 0);
    for (uint32_t i = 0; i < 500; i++) cr_assert_eq(stk_trace_write(w, tr_next(&t, i)), 0);
    cr_assert_eq(stk_trace_write(w, tr_end(&t)), 0);
    cr_assert_eq(stk_trace_writer_close(&w), 0);
    snprintf(fifo, sizeof fifo, "%s/fifo", temp_make_dir(dir, "stoker-fifo"));
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    pthread_t thread;
    int rc;
    bool cut;
    cr_assert_eq(pthread_create(&thread, NULL, copy_to, fifo), 0);
    cr_assert_eq(read_all(fifo, &rc, &cut), 501);
    cr_assert(rc == 0 && !cut);
    pthread_join(thread, NULL);
    unlink(fifo);
    rmdir(dir);
}
