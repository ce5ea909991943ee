/* gguf: opening whole and split files, typed reads, text. Hostile files are in test_gguf_parse.c. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf_build.h"

static void assert_fails(const char *path, int code, const char *part1, const char *part2) {
    stk_gguf *g = NULL;
    int rc = stk_gguf_open(&g, path);
    cr_assert_eq(rc, code, "%s: %d, %s", path, rc, stk_error_detail());
    cr_assert_null(g);
    cr_assert(strstr(stk_error_detail(), part1), "no \"%s\" in: %s", part1, stk_error_detail());
    cr_assert(strstr(stk_error_detail(), part2), "no \"%s\" in: %s", part2, stk_error_detail());
}

static stk_gguf *open_ok(const char *path) {
    stk_gguf *g = NULL;
    cr_assert_eq(stk_gguf_open(&g, path), 0, "%s", stk_error_detail());
    return g;
}

/* Every type of value, five tensors. */
static gguf_build *sample(void) {
    gguf_build *b = gguf_build_open();
    const char *words[] = {"a", "", "\xc3\xa9", "line\nend"};
    const uint32_t counts[] = {4, 5, 6};
    int8_t i8 = -3;
    int16_t i16 = -300;
    int32_t i32 = -70000;
    int64_t i64 = -5000000000;
    uint8_t u8 = 200;
    uint16_t u16 = 60000;
    uint64_t u64 = 5000000000;
    double f64 = 1e300;
    gguf_build_str(b, "general.name", "tiny");
    gguf_build_raw(b, "i8", STK_GGUF_I8, &i8, sizeof i8);
    gguf_build_raw(b, "i16", STK_GGUF_I16, &i16, sizeof i16);
    gguf_build_raw(b, "i32", STK_GGUF_I32, &i32, sizeof i32);
    gguf_build_raw(b, "i64", STK_GGUF_I64, &i64, sizeof i64);
    gguf_build_raw(b, "u8", STK_GGUF_U8, &u8, sizeof u8);
    gguf_build_raw(b, "u16", STK_GGUF_U16, &u16, sizeof u16);
    gguf_build_u32(b, "u32", 4000000000u);
    gguf_build_raw(b, "u64", STK_GGUF_U64, &u64, sizeof u64);
    gguf_build_f32(b, "f32", 0.5f);
    gguf_build_raw(b, "f64", STK_GGUF_F64, &f64, sizeof f64);
    gguf_build_bool(b, "bool", true);
    gguf_build_array(b, "words", STK_GGUF_STRING, STK_ARRAY_LEN(words), words);
    gguf_build_array(b, "counts", STK_GGUF_U32, STK_ARRAY_LEN(counts), counts);
    gguf_build_array(b, "none", STK_GGUF_F32, 0, NULL);
    gguf_build_tensor(b, "a", 0, (uint64_t[4]){7, 3}, NULL);
    gguf_build_tensor(b, "b", 8, (uint64_t[4]){64, 2}, NULL);
    gguf_build_tensor(b, "c", 12, (uint64_t[4]){256, 2, 3}, NULL);
    gguf_build_tensor(b, "d", 1, (uint64_t[4]){5}, NULL);
    gguf_build_tensor(b, "e", 30, (uint64_t[4]){2, 2, 2, 2}, NULL);
    return b;
}

/* The tensors of `g` hold what the builder wrote into `whole`. */
static void assert_same_tensors(const stk_gguf *g, const stk_gguf *whole) {
    cr_assert_eq(stk_gguf_n_tensor(g), stk_gguf_n_tensor(whole));
    for (uint64_t i = 0; i < stk_gguf_n_tensor(g); i++) {
        const stk_gguf_tensor *t = stk_gguf_tensor_at(g, i), *w = stk_gguf_find_tensor(whole, t->name.text);
        cr_assert_not_null(w);
        cr_assert_eq(w, stk_gguf_tensor_at(whole, i));
        cr_assert_eq(t->bytes, w->bytes);
        cr_assert_arr_eq(t->dim, w->dim, sizeof t->dim);
        unsigned char *x = malloc(t->bytes), *y = malloc(t->bytes);
        FILE *fx = fopen(stk_gguf_path(g, t->file), "rb"), *fy = fopen(stk_gguf_path(whole, w->file), "rb");
        cr_assert_eq(pread(fileno(fx), x, t->bytes, (off_t)t->offset), (ssize_t)t->bytes);
        cr_assert_eq(pread(fileno(fy), y, t->bytes, (off_t)w->offset), (ssize_t)t->bytes);
        cr_assert_arr_eq(x, y, t->bytes);
        fclose(fx);
        fclose(fy);
        free(x);
        free(y);
    }
}

Test(gguf, reads_metadata_of_every_type) {
    gguf_build *b = sample();
    gguf_build_write(b, test_path("s.gguf"));
    gguf_build_close(b);
    stk_gguf *g = open_ok(test_path("s.gguf"));
    cr_assert_eq(stk_gguf_n_value(g), 15);
    cr_assert_eq(stk_gguf_n_file(g), 1);
    cr_assert_str_eq(stk_gguf_value_at(g, 0)->key.text, "general.name");
    uint32_t u = 7;
    cr_assert_eq(stk_gguf_u32(g, "nothing", &u), 0);
    cr_assert_eq(u, 7);
    cr_assert_eq(stk_gguf_u32(g, "u8", &u), 1);
    cr_assert_eq(u, 200);
    cr_assert_eq(stk_gguf_u32(g, "u16", &u), 1);
    cr_assert_eq(u, 60000);
    cr_assert_eq(stk_gguf_u32(g, "u32", &u), 1);
    cr_assert_eq(u, 4000000000u);
    cr_assert_eq(stk_gguf_u32(g, "bool", &u), 1);
    cr_assert_eq(u, 1);
    const char *bad[] = {"i8", "i16", "i32", "i64", "u64", "f32", "f64", "words", "counts", "general.name"};
    for (size_t i = 0; i < STK_ARRAY_LEN(bad); i++) cr_assert_eq(stk_gguf_u32(g, bad[i], &u), STK_EFORMAT, "%s", bad[i]);
    cr_assert_eq(stk_gguf_u32_at(g, "counts", 2, &u), 1);
    cr_assert_eq(u, 6);
    cr_assert_eq(stk_gguf_u32_at(g, "counts", 3, &u), STK_EFORMAT);
    cr_assert_eq(stk_gguf_u32_at(g, "u8", 99, &u), 1);
    cr_assert_eq(u, 200);
    float f;
    cr_assert_eq(stk_gguf_f32(g, "f32", &f), 1);
    cr_assert_eq(f, 0.5f);
    cr_assert_eq(stk_gguf_f32(g, "i8", &f), 1);
    cr_assert_eq(f, -3.0f);
    cr_assert_eq(stk_gguf_f32(g, "f64", &f), STK_EFORMAT);
    cr_assert_eq(stk_gguf_f32(g, "words", &f), STK_EFORMAT);
    bool yes = false;
    cr_assert_eq(stk_gguf_bool(g, "bool", &yes), 1);
    cr_assert(yes);
    cr_assert_eq(stk_gguf_bool(g, "u8", &yes), STK_EFORMAT);
    stk_gguf_string s;
    cr_assert_eq(stk_gguf_str(g, "general.name", &s), 1);
    cr_assert_str_eq(s.text, "tiny");
    cr_assert_eq(stk_gguf_str(g, "words", &s), STK_EFORMAT);
    const stk_gguf_value *words = stk_gguf_find(g, "words");
    cr_assert_eq(words->n, 4);
    cr_assert_str_eq(((const stk_gguf_string *)words->data)[3].text, "line\nend");
    cr_assert_eq(((const stk_gguf_string *)words->data)[1].bytes, 0);
    stk_gguf_close(&g);
    cr_assert_null(g);
    stk_gguf_close(&g);
}

Test(gguf, typed_errors_name_file_offset_and_key) {
    gguf_build *b = sample();
    gguf_build_write(b, test_path("s.gguf"));
    gguf_build_close(b);
    stk_gguf *g = open_ok(test_path("s.gguf"));
    uint32_t u;
    /* The header has 24 bytes, "general.name" = "tiny" 8 + 12 + 4 + 8 + 4. */
    cr_assert_eq(stk_gguf_u32(g, "i8", &u), STK_EFORMAT);
    cr_assert(strstr(stk_error_detail(), "s.gguf: offset 60: i8: is -3, expected 0 or more"), "%s", stk_error_detail());
    stk_gguf_close(&g);
}

Test(gguf, version_2_and_any_alignment) {
    for (uint32_t version = 2; version <= 3; version++) {
        static const uint32_t alignments[] = {1, 3, 4, 8, 24, 40, 64, 1000, 4096};
        for (size_t a = 0; a < STK_ARRAY_LEN(alignments); a++) {
            uint32_t alignment = alignments[a];
            gguf_build *b = sample();
            gguf_build_version(b, version);
            gguf_build_alignment(b, alignment);
            gguf_build_write(b, test_path("s.gguf"));
            gguf_build_close(b);
            stk_gguf *g = open_ok(test_path("s.gguf"));
            for (uint64_t i = 0; i < 5; i++) cr_assert_eq(stk_gguf_tensor_at(g, i)->offset % alignment, 0);
            const stk_gguf_tensor *c = stk_gguf_find_tensor(g, "c");
            cr_assert_eq(c->bytes, 6 * 144);
            cr_assert_eq(c->n_dim, 3);
            cr_assert_eq(c->dim[2], 3);
            cr_assert_eq(c->dim[3], 1);
            cr_assert_null(stk_gguf_find_tensor(g, "cc"));
            cr_assert_null(stk_gguf_find_tensor(g, ""));
            stk_gguf_close(&g);
        }
    }
}

Test(gguf, split_files_equal_the_whole_from_any_part) {
    gguf_build *b = sample();
    gguf_build_alignment(b, 64);
    gguf_build_write(b, test_path("whole.gguf"));
    stk_gguf *whole = open_ok(test_path("whole.gguf"));
    for (uint32_t n_part = 2; n_part <= 7; n_part++) { /* some parts without tensors */
        gguf_build_write_split(b, test_path("s"), n_part);
        for (uint32_t part = 0; part < n_part; part++) {
            char name[64];
            snprintf(name, sizeof name, "s-%05u-of-%05u.gguf", part + 1, n_part);
            stk_gguf *g = open_ok(test_path(name));
            cr_assert_eq(stk_gguf_n_file(g), n_part);
            cr_assert_not_null(stk_gguf_find(g, "words"));
            assert_same_tensors(g, whole);
            stk_gguf_close(&g);
        }
    }
    stk_gguf_close(&whole);
    gguf_build_close(b);
}

Test(gguf, broken_splits) {
    gguf_build *b = sample();
    gguf_build_write_split(b, test_path("s"), 3);
    /* A part under another name, a part that is another part, one of another model, one that is missing. */
    rename(test_path("s-00002-of-00003.gguf"), test_path("odd.gguf"));
    assert_fails(test_path("odd.gguf"), STK_EFORMAT, "odd.gguf", "-00002-of-00003.gguf");
    assert_fails(test_path("s-00001-of-00003.gguf"), STK_EIO, "part 2 of 3", "s-00002-of-00003.gguf");
    cr_assert_eq(link(test_path("s-00003-of-00003.gguf"), test_path("s-00002-of-00003.gguf")), 0);
    assert_fails(test_path("s-00001-of-00003.gguf"), STK_EFORMAT, "s-00002-of-00003.gguf", "expected part 2 of 3");
    gguf_build *other = gguf_build_open();
    gguf_build_tensor(other, "x", 0, (uint64_t[4]){1}, NULL);
    gguf_build_tensor(other, "a", 0, (uint64_t[4]){1}, NULL);
    gguf_build_tensor(other, "y", 0, (uint64_t[4]){1}, NULL);
    gguf_build_write_split(other, test_path("t"), 3);
    rename(test_path("t-00002-of-00003.gguf"), test_path("s-00002-of-00003.gguf"));
    /* Its one tensor takes the place of two. */
    assert_fails(test_path("s-00001-of-00003.gguf"), STK_EFORMAT, "s-00001-of-00003.gguf", "split.tensors.count is 5");
    gguf_build_close(other);
    gguf_build_close(b);
}

Test(gguf, names_twice) {
    gguf_build *b = sample();
    gguf_build_tensor(b, "c", 0, (uint64_t[4]){1}, NULL);
    gguf_build_write(b, test_path("s.gguf"));
    assert_fails(test_path("s.gguf"), STK_EFORMAT, "s.gguf: offset ", ": c: a tensor of this name is there twice");
    gguf_build_write_split(b, test_path("p"), 2);
    assert_fails(test_path("p-00001-of-00002.gguf"), STK_EFORMAT, "p-00002-of-00002.gguf: offset ", ": c: ");
    gguf_build_close(b);
    b = sample();
    gguf_build_u32(b, "u8", 1);
    gguf_build_write(b, test_path("s.gguf"));
    assert_fails(test_path("s.gguf"), STK_EFORMAT, "s.gguf: offset ", ": u8: this metadata key is there twice");
    gguf_build_close(b);
}

Test(gguf, text_of_values) {
    gguf_build *b = sample();
    uint32_t many[20] = {0};
    gguf_build_array(b, "many", STK_GGUF_U32, 20, many);
    gguf_build_str(b, "escape", "\x1b[31m\xc2\x9bx\xff\t\xe2\x82\xac\xe2\x82");
    gguf_build_write(b, test_path("s.gguf"));
    gguf_build_close(b);
    stk_gguf *g = open_ok(test_path("s.gguf"));
    const struct {
        const char *key, *text;
    } cases[] = {
        {"i64", "-5000000000"},
        {"u64", "5000000000"},
        {"f32", "0.5"},
        {"bool", "true"},
        {"words", "[\"a\", \"\", \"\xc3\xa9\", \"line\\nend\"]"},
        {"counts", "[4, 5, 6]"},
        {"none", "[]"},
        {"many", "[0, 0, 0, 0, 0, 0, 0, 0, ... 20 items]"},
        {"escape", "\\x1b[31m\\xc2\\x9bx\\xff\\t\xe2\x82\xac\\xe2\\x82"},
    };
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        char text[128];
        stk_gguf_format(stk_gguf_find(g, cases[i].key), text, sizeof text);
        cr_assert_str_eq(text, cases[i].text);
    }
    /* Cut anywhere it stays inside its buffer and 0-terminated. */
    for (size_t cap = 1; cap < 64; cap++) {
        char text[65];
        memset(text, 'X', sizeof text);
        stk_gguf_format(stk_gguf_find(g, "escape"), text, cap);
        cr_assert_lt(strlen(text), cap);
        cr_assert_eq(text[cap], 'X');
    }
    cr_assert_str_eq(stk_gguf_type_name(STK_GGUF_F64), "f64");
    stk_gguf_close(&g);
}

Test(gguf, trained_model) {
    const char *path = STK_SHARED "/model/ember-q4_k_m.gguf";
    if (access(path, R_OK) != 0) cr_skip_test("no %s", path);
    stk_gguf *g = open_ok(path);
    uint32_t u = 0;
    cr_assert_eq(stk_gguf_u32(g, "qwen3moe.expert_count", &u), 1);
    cr_assert_eq(u, 32);
    cr_assert_eq(stk_gguf_n_tensor(g), 75);
    cr_assert_eq(stk_gguf_find(g, "tokenizer.ggml.tokens")->n, 4096);
    cr_assert_eq(stk_gguf_find_tensor(g, "blk.5.ffn_up_exps.weight")->dim[2], 32);
    stk_gguf_close(&g);
}
