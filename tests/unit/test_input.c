/* input: the same bytes plain, in zstd and in xz, and files that are cut or damaged. */
#include <criterion/criterion.h>
#include <lzma.h>
#include <zstd.h>

#include "tests/trace_random.h"
#include "traces/input.h"

enum { TEXT_BYTES = 300000 };
static char text[TEXT_BYTES];
static uint8_t packed[2 * TEXT_BYTES];

/* Lines of all lengths, hard to pack. */
static void make_text(void) {
    trace_input t = {.rng = 3};
    for (size_t i = 0; i < TEXT_BYTES; i++) text[i] = tr_below(&t, 90) ? (char)(' ' + tr_below(&t, 64)) : '\n';
    text[TEXT_BYTES - 1] = 'x';
}

static size_t pack_zstd(void) { return ZSTD_compress(packed, sizeof packed, text, TEXT_BYTES, 1); }

static size_t pack_xz(void) {
    size_t n = 0;
    cr_assert_eq(lzma_easy_buffer_encode(1, LZMA_CHECK_CRC32, NULL, (const uint8_t *)text, TEXT_BYTES, packed, &n, sizeof packed),
                 LZMA_OK);
    return n;
}

/* Lines joined again, then the file once more by reads of odd sizes. */
static void check_same(void) {
    static char got[TEXT_BYTES + 1];
    stk_input *in;
    char *line;
    size_t bytes, n = 0;
    uint64_t n_line = 0;
    int rc;
    cr_assert_eq(stk_input_open(&in, tr_path()), 0, "%s", stk_error_detail());
    while ((rc = stk_input_line(in, &line, &bytes)) == 1) {
        cr_assert_leq(n + bytes + 1, TEXT_BYTES + 1);
        memcpy(got + n, line, bytes);
        n += bytes;
        got[n++] = '\n';
        cr_assert_eq(stk_input_line_number(in), ++n_line);
    }
    cr_assert_eq(rc, 0);
    cr_assert_eq(n, TEXT_BYTES + 1);
    cr_assert_eq(memcmp(got, text, TEXT_BYTES), 0);
    cr_assert_eq(stk_input_rewind(in), 0);
    const uint8_t *first;
    int64_t got_bytes = stk_input_peek(in, &first);
    cr_assert(got_bytes >= STK_INPUT_PEEK_BYTES && memcmp(first, text, STK_INPUT_PEEK_BYTES) == 0);
    for (n = 0; (got_bytes = stk_input_read(in, got + n, STK_MIN(TEXT_BYTES - n, (size_t)7777))) > 0;) n += (size_t)got_bytes;
    cr_assert_eq(got_bytes, 0);
    cr_assert_eq(stk_input_offset(in), TEXT_BYTES);
    cr_assert(n == TEXT_BYTES && memcmp(got, text, n) == 0);
    stk_input_close(&in);
}

/* Reads to the end: 0, or the error. */
static int read_through(void) {
    static char sink[4096];
    stk_input *in;
    int64_t rc = stk_input_open(&in, tr_path());
    while (rc >= 0 && (rc = stk_input_read(in, sink, sizeof sink)) > 0) continue;
    stk_input_close(&in);
    return (int)rc;
}

Test(input, plain_and_packed_files_say_the_same) {
    make_text();
    tr_store(tr_path(), text, TEXT_BYTES);
    check_same();
    size_t n = pack_zstd();
    tr_store(tr_path(), packed, n);
    check_same();
    n = pack_xz();
    tr_store(tr_path(), packed, n);
    check_same();
}

Test(input, packed_files_that_are_cut_are_refused) {
    make_text();
    for (int which = 0; which < 2; which++) {
        size_t n = which ? pack_xz() : pack_zstd();
        for (size_t cut = 8; cut < n; cut += n / 40) {
            tr_store(tr_path(), packed, cut);
            cr_assert_eq(read_through(), STK_EFORMAT);
            cr_assert(strstr(stk_error_detail(), "cut off"), "%s", stk_error_detail());
        }
    }
}

Test(input, damage_to_xz_is_found) {
    make_text();
    size_t n = pack_xz();
    for (size_t at = 8; at < n; at += n / 40) {
        packed[at] ^= 0x20;
        tr_store(tr_path(), packed, n);
        cr_assert_eq(read_through(), STK_EFORMAT, "byte %zu", at);
        packed[at] ^= 0x20;
    }
}

Test(input, lines_that_are_none_are_refused) {
    size_t bytes = STK_INPUT_LINE_BYTES + 1;
    char *line, *long_line = malloc(bytes);
    stk_input *in;
    memset(long_line, 'a', bytes);
    tr_store(tr_path(), long_line, bytes);
    cr_assert_eq(stk_input_open(&in, tr_path()), 0);
    cr_assert_eq(stk_input_line(in, &line, &bytes), STK_EFORMAT);
    stk_input_close(&in);
    tr_store(tr_path(), "good\nb\0d\n", 9);
    cr_assert_eq(stk_input_open(&in, tr_path()), 0);
    cr_assert_eq(stk_input_line(in, &line, &bytes), 1);
    cr_assert_eq(stk_input_line(in, &line, &bytes), STK_EFORMAT);
    cr_assert_str_eq(stk_error_detail(), "line 2 has a 0 byte");
    stk_input_close(&in);
    free(long_line);
}

Test(input, what_is_no_regular_file_is_refused) {
    stk_input *in;
    cr_assert_eq(stk_input_open(&in, "/dev/null"), STK_EUNSUPPORTED);
    cr_assert_eq(stk_input_open(&in, "/nonexistent/file"), STK_EIO);
}
