/* decoder: text in whole characters for any cut of it into tokens. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "src/model/model.h"
#include "src/text/unicode.h"
#include "tests/alloc_count.h"
#include "tiny_vocab.h"

static stk_tokenizer *tokenizer;
static stk_model model;

static void setup(void) {
    tokenizer = tiny_tokenizer(&tiny_default, NULL);
    model.tokenizer = tokenizer;
}
static void teardown(void) { stk_tokenizer_close(&tokenizer); }

/* The whole text with U+FFFD for each invalid sequence, from the scanner alone. */
static size_t repaired(const char *text, size_t bytes, char *out) {
    size_t n = 0;
    for (size_t at = 0; at < bytes;) {
        uint32_t cp;
        int step = stk_utf8_scan(text + at, bytes - at, &cp);
        n += stk_utf8_write(step > 0 ? cp : 0xfffd, out + n);
        at += step > 0 ? (size_t)step : step < 0 ? (size_t)-step : bytes - at;
    }
    return n;
}

static bool is_whole(const char *text, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        uint32_t cp;
        int step = stk_utf8_scan(text + at, bytes - at, &cp);
        if (step <= 0) return false;
        at += (size_t)step;
    }
    return true;
}

Test(decoder, every_cut_gives_the_same_text, .init = setup, .fini = teardown) {
    srand(17);
    stk_decoder *d;
    cr_assert_eq(stk_decoder_open(&d, &model, 1), 0);
    for (int round = 0; round < 4000; round++) {
        char text[64], expected[200], got[200];
        size_t bytes = 0, n = 0;
        while (bytes < 40) {
            if (rand() % 3 == 0)
                text[bytes++] = (char)rand();
            else
                bytes += stk_utf8_write((uint32_t)rand() % (rand() % 2 ? 0xd800 : 0x900), text + bytes);
        }
        bytes = (size_t)rand() % bytes;
        const char *piece;
        for (size_t i = 0; i < bytes; i++) { /* a token a byte: the finest cut */
            int64_t k = stk_decoder_put(d, (unsigned char)text[i], &piece);
            cr_assert(k >= 0 && is_whole(piece, (size_t)k));
            memcpy(got + n, piece, (size_t)k);
            n += (size_t)k;
        }
        int64_t k = stk_decoder_flush(d, &piece);
        memcpy(got + n, piece, (size_t)k);
        n += (size_t)k;
        cr_assert_eq(n, repaired(text, bytes, expected));
        cr_assert_eq(memcmp(got, expected, n), 0);
    }
    stk_decoder_close(&d);
}

static void expect_put(stk_decoder *d, int32_t id, const char *expected) {
    const char *text;
    int64_t n = stk_decoder_put(d, id, &text);
    cr_assert_eq(n, (int64_t)strlen(expected), "token %d", id);
    cr_assert_eq(memcmp(text, expected, strlen(expected)), 0, "token %d", id);
}

Test(decoder, characters_wait_for_their_last_byte, .init = setup, .fini = teardown) {
    stk_decoder *d;
    const char *text;
    cr_assert_eq(stk_decoder_open(&d, &model, 0), 0);
    expect_put(d, 0xf0, "");
    expect_put(d, 0x9f, "");
    expect_put(d, TINY_STOP, ""); /* prints nothing, breaks nothing */
    expect_put(d, 0x98, "");
    expect_put(d, 0x80, "\U0001f600");
    expect_put(d, 0xe4, "");
    expect_put(d, TINY_HELLO, "\ufffdhello");
    expect_put(d, TINY_TOOL, "<tool");
    expect_put(d, 0xc3, "");
    cr_assert_eq(stk_decoder_flush(d, &text), 3);
    cr_assert_eq(memcmp(text, "\ufffd", 3), 0);
    cr_assert_eq(stk_decoder_flush(d, &text), 0);
    expect_put(d, 0xa9, "\ufffd"); /* begins anew */
    expect_put(d, 0xc3, "");
    cr_assert_eq(stk_decoder_put(d, 1 << 20, &text), STK_EINVAL);
    expect_put(d, 0xa9, "\u00e9"); /* an error changes nothing */
    stk_decoder_close(&d);
    cr_assert_null(d);
    stk_decoder_close(&d);
    stk_decoder_close(NULL);
}

Test(decoder, shows_control_tokens_when_asked, .init = setup, .fini = teardown) {
    stk_decoder *d;
    cr_assert_eq(stk_decoder_open(&d, &model, 1), 0);
    expect_put(d, TINY_STOP, "<|im_end|>");
    stk_decoder_close(&d);
}

Test(decoder, allocates_at_open_alone, .init = setup, .fini = teardown) {
    if (!ALLOC_COUNTED) cr_skip_test("allocations are not counted under a sanitizer");
    stk_decoder *d;
    const char *text;
    cr_assert_eq(stk_decoder_open(&d, &model, 1), 0);
    uint64_t before = atomic_load(&alloc_count);
    cr_assert_gt(before, 0);
    for (int32_t id = 0; id < TINY_N; id++) (void)stk_decoder_put(d, id, &text);
    (void)stk_decoder_flush(d, &text);
    cr_assert_eq(atomic_load(&alloc_count), before);
    stk_decoder_close(&d);
}

Test(decoder, arguments) {
    stk_decoder *d;
    cr_assert_eq(stk_decoder_open(NULL, &model, 0), STK_EINVAL);
    cr_assert_eq(stk_decoder_open(&d, NULL, 0), STK_EINVAL);
    stk_model none = {.tokenizer_rc = STK_EUNSUPPORTED, .tokenizer_error = "no tokenizer here"};
    cr_assert_eq(stk_decoder_open(&d, &none, 0), STK_EUNSUPPORTED);
    cr_assert_str_eq(stk_error_detail(), "no tokenizer here");
    const char *text;
    cr_assert_eq(stk_decoder_put(NULL, 0, &text), STK_EINVAL);
    cr_assert_eq(stk_decoder_flush(NULL, &text), STK_EINVAL);
}
