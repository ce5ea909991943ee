/* tokenizer against Hugging Face tokenizers: the data of tests/oracle/make_tokenizer.py, which describes the format. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "src/model/model.h"
#include "src/text/tokenizer.h"

enum { N_VOCABULARY = 2, SAME = 0xffff, MAX_IDS = 8192 };

typedef struct text {
    const char *bytes;
    uint32_t n;
} text;

static unsigned char *data;
static size_t data_bytes, at;
static text *strings;
static uint32_t n_string;
static stk_gguf *files[N_VOCABULARY];

static const void *take(size_t bytes) {
    cr_assert(bytes <= data_bytes - at, "the golden file ends early");
    at += bytes;
    return data + at - bytes;
}

static uint32_t take_u32(void) {
    uint32_t x;
    memcpy(&x, take(sizeof x), sizeof x);
    return x;
}

static uint16_t take_u16(void) {
    uint16_t x;
    memcpy(&x, take(sizeof x), sizeof x);
    return x;
}

static uint8_t take_u8(void) { return *(const uint8_t *)take(1); }

static void unpack(const char *path) {
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "%s is missing", path);
    static unsigned char packed[1 << 20];
    size_t n = fread(packed, 1, sizeof packed, f);
    fclose(f);
    data_bytes = (size_t)ZSTD_getFrameContentSize(packed, n);
    cr_assert(data_bytes < 1 << 26);
    data = malloc(data_bytes);
    cr_assert_eq(ZSTD_decompress(data, data_bytes, packed, n), data_bytes);
}

static void setup(void) {
    static const char *const paths[N_VOCABULARY] = {STK_TEST_DATA "/ember-q4_k_m.gguf", STK_TEST_DATA "/tokenizer-mini.gguf"};
    for (int i = 0; i < N_VOCABULARY; i++) cr_assert_eq(stk_gguf_open(&files[i], paths[i]), 0, "%s", stk_error_detail());
    unpack(STK_TEST_DATA "/tokenizer-golden.zst");
    cr_assert_eq(memcmp(take(8), "STKTOK01", 8), 0);
    n_string = take_u32();
    cr_assert_geq(n_string, 2000);
    strings = malloc(n_string * sizeof *strings);
    for (uint32_t i = 0; i < n_string; i++) {
        uint32_t n = take_u32();
        strings[i] = (text){take(n), n};
    }
}

static void teardown(void) {
    for (int i = 0; i < N_VOCABULARY; i++) stk_gguf_close(&files[i]);
    free(strings);
    free(data);
}

/* The vocabulary with another pre-tokenizer than its file names. */
static stk_tokenizer *open_as(uint8_t vocabulary, const char *pre) {
    const stk_gguf *g = files[vocabulary];
    stk_gguf_string *name = (stk_gguf_string *)stk_gguf_find(g, "tokenizer.ggml.pre")->data;
    *name = (stk_gguf_string){pre, strlen(pre)};
    stk_tokenizer *t;
    cr_assert_eq(stk_tokenizer_open(&t, g, 4096), 0, "%s: %s", pre, stk_error_detail());
    return t;
}

static uint32_t fnv(const int32_t *ids, int64_t n) {
    uint32_t h = 0x811c9dc5u;
    for (int64_t i = 0; i < n; i++)
        for (int byte = 0; byte < 4; byte++) h = (h ^ ((uint32_t)ids[i] >> 8 * byte & 0xff)) * 0x01000193u;
    return h;
}

/* The tokens print the text that they were made of. */
static void check_round_trip(const stk_tokenizer *t, const int32_t *ids, int64_t n, text s) {
    size_t done = 0;
    for (int64_t i = 0; i < n; i++) {
        const char *bytes;
        int64_t m = stk_tokenizer_bytes(t, ids[i], true, &bytes);
        cr_assert(m >= 0 && (size_t)m <= s.n - done && memcmp(s.bytes + done, bytes, (size_t)m) == 0);
        done += (size_t)m;
    }
    cr_assert_eq(done, s.n);
}

/* Compares one set. `before`: [n_string, MAX_IDS] ids of the set before, replaced by those of this one. Returns mismatches. */
static unsigned check_set(uint16_t (*before)[MAX_IDS], uint16_t *n_before) {
    uint8_t vocabulary = take_u8(), special = take_u8(), hashed = take_u8();
    take(1);
    const char *pre = take(20);
    stk_tokenizer *t = open_as(vocabulary, pre);
    static int32_t ids[MAX_IDS];
    unsigned wrong = 0;
    for (uint32_t i = 0; i < n_string; i++) {
        text s = strings[i];
        int64_t n = stk_tokenizer_encode(t, s.bytes, s.n, special ? STK_TOKENIZE_SPECIAL : 0, ids, MAX_IDS);
        cr_assert(n >= 0 && n <= MAX_IDS, "%s", stk_error_detail());
        check_round_trip(t, ids, n, s);
        bool same;
        if (hashed) {
            same = take_u32() == fnv(ids, n);
        } else {
            uint16_t expected = take_u16();
            if (expected != SAME) {
                n_before[i] = expected;
                memcpy(before[i], take(2 * (size_t)expected), 2 * (size_t)expected);
            }
            same = n == n_before[i];
            for (int64_t j = 0; j < n && same; j++) same = ids[j] == before[i][j];
        }
        if (!same && wrong++ < 5)
            fprintf(stderr, "%s, vocabulary %d, special %d, string %u: \"%.*s\"\n", pre, vocabulary, special, i, (int)s.n,
                    s.bytes);
    }
    stk_tokenizer_close(&t);
    return wrong;
}

Test(tokenizer_golden, ids_equal_the_oracle, .init = setup, .fini = teardown) {
    uint16_t(*before)[MAX_IDS] = calloc(n_string, sizeof *before);
    uint16_t *n_before = calloc(n_string, sizeof *n_before);
    unsigned wrong = 0;
    uint32_t n_set = take_u32();
    cr_assert_geq(n_set, 8);
    for (uint32_t i = 0; i < n_set; i++) wrong += check_set(before, n_before);
    cr_assert_eq(wrong, 0, "%u differences", wrong);
    free(before);
    free(n_before);
}

/* Passes the sets by. */
static void skip_sets(void) {
    for (uint32_t n_set = take_u32(); n_set > 0; n_set--) {
        bool hashed = ((const uint8_t *)take(24))[2];
        for (uint32_t i = 0; i < n_string; i++) {
            uint16_t n = hashed ? (take(4), SAME) : take_u16();
            if (n != SAME) take(2 * (size_t)n);
        }
    }
}

Test(tokenizer_golden, streamed_text_equals_the_oracle, .init = setup, .fini = teardown) {
    skip_sets();
    stk_tokenizer *t[N_VOCABULARY] = {open_as(0, "qwen2"), open_as(1, "qwen2")};
    uint32_t n_decode = take_u32();
    cr_assert_geq(n_decode, 200);
    for (uint32_t i = 0; i < n_decode; i++) {
        stk_model model = {.tokenizer = t[take_u8()]};
        uint8_t special = take_u8();
        uint16_t n_id = take_u16();
        uint32_t bytes = take_u32();
        const unsigned char *ids = take(2 * (size_t)n_id);
        const char *expected = take(bytes), *piece;
        stk_decoder *d;
        cr_assert_eq(stk_decoder_open(&d, &model, special), 0);
        uint32_t done = 0;
        for (uint32_t j = 0; j <= n_id; j++) {
            int64_t n = j < n_id ? stk_decoder_put(d, ids[2 * j] | ids[2 * j + 1] << 8, &piece) : stk_decoder_flush(d, &piece);
            cr_assert(n >= 0 && n <= bytes - done && memcmp(expected + done, piece, (size_t)n) == 0, "decoding %u", i);
            done += (uint32_t)n;
        }
        cr_assert_eq(done, bytes);
        stk_decoder_close(&d);
    }
    cr_assert_eq(at, data_bytes);
    for (int i = 0; i < N_VOCABULARY; i++) stk_tokenizer_close(&t[i]);
}
