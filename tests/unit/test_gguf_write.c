/* gguf_write: what is put is what the reader of GGUF files finds. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/model/gguf_write.h"
#include "src/synth/synth_vocab.h"
#include "tests/temp.h"

static stk_gguf *write_and_open(stk_gguf_writer *w, uint32_t version) {
    static const uint8_t zeros[4096];
    char path[TEMP_PATH];
    const uint8_t *head;
    size_t bytes;
    int fd = open(temp_file(path, "stoker-gguf-write"), O_WRONLY);
    cr_assert_geq(fd, 0);
    cr_assert_eq(stk_gguf_write_head(w, version, &head, &bytes), STK_OK);
    cr_assert_eq(bytes % STK_GGUF_WRITE_ALIGN, 0);
    cr_assert_eq(write(fd, head, bytes), (ssize_t)bytes);
    cr_assert_leq(w->data_bytes, sizeof zeros);
    cr_assert_eq(write(fd, zeros, w->data_bytes), (ssize_t)w->data_bytes);
    close(fd);
    stk_gguf *g = NULL;
    int rc = stk_gguf_open(&g, path);
    unlink(path);
    cr_assert_eq(rc, STK_OK, "%s", stk_error_detail());
    return g;
}

Test(gguf_write, values_and_tensors_come_back) {
    for (uint32_t version = 2; version <= 3; version++) {
        stk_gguf_writer w = {0};
        stk_gguf_put_u16(&w, "a.u16", 65535);
        stk_gguf_put_u32(&w, "a.u32", UINT32_MAX);
        stk_gguf_put_i32(&w, "a.i32", 7);
        stk_gguf_put_f32(&w, "a.f32", 0.25f);
        stk_gguf_put_bool(&w, "a.bool", true);
        stk_gguf_put_str(&w, "a.str", "text");
        stk_gguf_put_array(&w, "a.texts", STK_GGUF_STRING, 2);
        stk_gguf_put_item_str(&w, "one");
        stk_gguf_put_item_str(&w, "");
        stk_gguf_put_array(&w, "a.numbers", STK_GGUF_I32, 2);
        stk_gguf_put_item_i32(&w, -1);
        stk_gguf_put_item_i32(&w, 2);
        stk_gguf_put_tensor(&w, "odd", 0, 2, (const uint64_t[]){3, 5}, 60);
        stk_gguf_put_tensor(&w, "next", 0, 1, (const uint64_t[]){8}, 32);
        stk_gguf *g = write_and_open(&w, version);
        uint32_t u;
        float x;
        bool b;
        stk_gguf_string s;
        cr_assert_eq(stk_gguf_n_value(g), 8);
        cr_assert(stk_gguf_u32(g, "a.u16", &u) == 1 && u == 65535);
        cr_assert(stk_gguf_u32(g, "a.u32", &u) == 1 && u == UINT32_MAX);
        cr_assert(stk_gguf_u32(g, "a.i32", &u) == 1 && u == 7);
        cr_assert(stk_gguf_f32(g, "a.f32", &x) == 1 && x == 0.25f);
        cr_assert(stk_gguf_bool(g, "a.bool", &b) == 1 && b);
        cr_assert(stk_gguf_str(g, "a.str", &s) == 1 && strcmp(s.text, "text") == 0);
        const stk_gguf_value *texts = stk_gguf_find(g, "a.texts"), *numbers = stk_gguf_find(g, "a.numbers");
        cr_assert(texts && texts->n == 2 && strcmp(((const stk_gguf_string *)texts->data)[0].text, "one") == 0);
        cr_assert(numbers && numbers->n == 2 && ((const int32_t *)numbers->data)[0] == -1);
        const stk_gguf_tensor *odd = stk_gguf_find_tensor(g, "odd"), *next = stk_gguf_find_tensor(g, "next");
        cr_assert(odd && odd->dim[0] == 3 && odd->dim[1] == 5 && odd->bytes == 60);
        cr_assert(next && next->offset == odd->offset + 64, "tensors start at multiples of 32");
        stk_gguf_close(&g);
        stk_gguf_write_fini(&w);
    }
}

Test(gguf_write, vocabularies_of_every_size_are_whole) {
    static const uint32_t sizes[] = {257, 258, 300, 959, 960, 5000};
    for (size_t i = 0; i < STK_ARRAY_LEN(sizes); i++) {
        stk_gguf_writer w = {0};
        stk_synth_put_vocab(&w, sizes[i]);
        stk_gguf *g = write_and_open(&w, 3);
        const stk_gguf_value *tokens = stk_gguf_find(g, "tokenizer.ggml.tokens"),
                             *types = stk_gguf_find(g, "tokenizer.ggml.token_type");
        cr_assert(tokens && tokens->n == sizes[i] && types && types->n == sizes[i]);
        const stk_gguf_string *text = tokens->data;
        cr_assert_str_eq(text[0].text, "!");
        cr_assert_str_eq(text[sizes[i] - 1].text, "<|endoftext|>");
        for (uint32_t a = 0; a < 257; a++)
            for (uint32_t b = a + 1; b < sizes[i]; b++)
                cr_assert(strcmp(text[a].text, text[b].text) != 0, "tokens %u and %u are both '%s'", a, b, text[a].text);
        stk_gguf_close(&g);
        stk_gguf_write_fini(&w);
    }
}
