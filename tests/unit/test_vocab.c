/* vocab: the byte alphabet, lookup, which tokens end generation, broken metadata. */
#include <criterion/criterion.h>
#include <string.h>

#include "src/text/vocab.h"
#include "tiny_vocab.h"

static void open_vocab(stk_vocab *v, const tiny_token *token, const char *key, uint32_t id) {
    gguf_build *b = tiny_vocab_build(&(tiny_vocab){"gpt2", "qwen2", token, NULL});
    if (key) gguf_build_u32(b, key, id);
    stk_gguf *g = tiny_vocab_open(b);
    cr_assert_eq(stk_vocab_init(v, g), 0, "%s", stk_error_detail());
    stk_gguf_close(&g); /* nothing of it is needed further on */
}

Test(vocab, tokens_are_the_bytes_they_stand_for) {
    stk_vocab v;
    open_vocab(&v, tiny_default.token, NULL, 0);
    for (int i = 0; i < 256; i++) {
        cr_assert_eq(v.token[i].bytes, 1);
        cr_assert_eq((unsigned char)v.token[i].text[0], i);
        cr_assert_eq(stk_vocab_find(&v, &(char){(char)i}, 1, "", 0), i);
    }
    cr_assert_eq(stk_vocab_find(&v, " hel", 4, "lo", 2), TINY_SPACE_HELLO);
    cr_assert_eq(stk_vocab_find(&v, "<|im_end|>", 10, "", 0), TINY_STOP);
    cr_assert_eq(stk_vocab_find(&v, "hel", 3, "", 0), -1);
    cr_assert_eq(stk_vocab_find(&v, "", 0, "", 0), -1);
    cr_assert_eq(v.max_bytes, 13);
    cr_assert_eq(v.bos, -1);
    cr_assert_eq(v.adds_bos, -1);
    stk_vocab_fini(&v);
}

Test(vocab, texts_outside_the_alphabet_print_as_they_are_and_are_not_found) {
    static const tiny_token token[] = {{"\u4e2d", 1}, {"a b", 1}, {"a b", 4}, {"", 1}, {NULL, 0}};
    stk_vocab v;
    open_vocab(&v, token, NULL, 0);
    cr_assert_eq(v.token[256].bytes, 3);
    cr_assert_eq(memcmp(v.token[256].text, "\u4e2d", 3), 0);
    cr_assert_eq(stk_vocab_find(&v, "\u4e2d", 3, "", 0), -1);
    cr_assert_eq(stk_vocab_find(&v, "a b", 3, "", 0), 258, "user-defined texts are plain");
    cr_assert_eq(v.token[259].bytes, 0);
    stk_vocab_fini(&v);
}

Test(vocab, normal_tokens_are_found_before_special_ones) {
    static const tiny_token token[] = {{"xyz", 3}, {"xyz", 1}, {NULL, 0}};
    stk_vocab v;
    open_vocab(&v, token, NULL, 0);
    cr_assert_eq(stk_vocab_find(&v, "xyz", 3, "", 0), 257);
    stk_vocab_fini(&v);
}

/* Ends of `token`, a bit each. */
static unsigned ends(const tiny_token *token, const char *key, uint32_t id) {
    stk_vocab v;
    open_vocab(&v, token, key, id);
    unsigned bits = 0;
    for (uint32_t i = 256; i < v.n; i++) bits |= (unsigned)v.token[i].is_end << (i - 256);
    for (uint32_t i = 0; i < 256; i++) cr_assert(!v.token[i].is_end || i == id);
    stk_vocab_fini(&v);
    return bits;
}

Test(vocab, ends_of_generation) {
    static const tiny_token chatml[] = {{"<|endoftext|>", 3}, {"<|im_start|>", 3}, {"<|im_end|>", 3}, {"x", 3}, {NULL, 0}};
    cr_assert_eq(ends(chatml, NULL, 0), 5);
    cr_assert_eq(ends(chatml, "tokenizer.ggml.eot_token_id", 259), 13);
    cr_assert_eq(ends(chatml, "tokenizer.ggml.eos_token_id", 7), 5);
    /* as text of a normal token only where it looks like a control token */
    static const tiny_token normal[] = {{"</s>", 1}, {"<|eot_id|>", 1}, {"</s>", 4}, {"<|im_end|>", 5}, {NULL, 0}};
    cr_assert_eq(ends(normal, NULL, 0), 6);
    static const tiny_token harmony[] = {{"<|end|>", 3}, {"<|return|>", 3}, {"<|call|>", 3}, {"<|message|>", 3}, {NULL, 0}};
    cr_assert_eq(ends(harmony, NULL, 0), 6);
    cr_assert_eq(ends(harmony + 2, NULL, 0), 1, "only <|call|>");
    static const tiny_token phi[] = {{"<|end|>", 3}, {NULL, 0}};
    cr_assert_eq(ends(phi, NULL, 0), 1);
    static const tiny_token gemma[] = {{"</s>", 3}, {"<|tool_response>", 4}, {NULL, 0}};
    cr_assert_eq(ends(gemma, NULL, 0), 2);
    static const tiny_token deepseek[] = {{"<\uff5cend\u2581of\u2581sentence\uff5c>", 3}, {NULL, 0}};
    cr_assert_eq(ends(deepseek, NULL, 0), 1);
}

Test(vocab, kinds_that_converters_write_wrong) {
    static const tiny_token token[] = {{"<|eot_id|>", 1}, {"<|return|>", 3}, {"<|call|>", 3}, {"<|channel|>", 3}, {NULL, 0}};
    stk_vocab v;
    open_vocab(&v, token, NULL, 0);
    cr_assert_eq(v.token[256].kind, STK_TOKEN_CONTROL);
    cr_assert_eq(v.token[259].kind, STK_TOKEN_USER);
    stk_vocab_fini(&v);
}

static int init_rc(gguf_build *b) {
    stk_gguf *g = tiny_vocab_open(b);
    stk_vocab v;
    int rc = stk_vocab_init(&v, g);
    if (rc == 0) stk_vocab_fini(&v);
    stk_gguf_close(&g);
    return rc;
}

#define EXPECT_FORMAT(b, word)                                                                                                   \
    do {                                                                                                                         \
        cr_assert_eq(init_rc(b), STK_EFORMAT);                                                                                   \
        cr_assert_not_null(strstr(stk_error_detail(), word), "%s", stk_error_detail());                                          \
    } while (0)

Test(vocab, broken_metadata) {
    EXPECT_FORMAT(gguf_build_open(), "tokens is missing");
    gguf_build *b = gguf_build_open();
    gguf_build_str(b, "tokenizer.ggml.tokens", "a");
    EXPECT_FORMAT(b, "not an array");
    b = gguf_build_open();
    gguf_build_array(b, "tokenizer.ggml.tokens", STK_GGUF_I32, 1, &(int32_t){1});
    EXPECT_FORMAT(b, "not an array of strings");
    const char *const two[] = {"a", "b"};
    b = gguf_build_open();
    gguf_build_array(b, "tokenizer.ggml.tokens", STK_GGUF_STRING, 0, two);
    EXPECT_FORMAT(b, "empty");
    b = gguf_build_open();
    gguf_build_array(b, "tokenizer.ggml.tokens", STK_GGUF_STRING, 2, two);
    gguf_build_array(b, "tokenizer.ggml.token_type", STK_GGUF_I32, 1, &(int32_t){1});
    EXPECT_FORMAT(b, "1 entries for 2 tokens");
    b = gguf_build_open();
    gguf_build_array(b, "tokenizer.ggml.tokens", STK_GGUF_STRING, 2, two);
    gguf_build_array(b, "tokenizer.ggml.token_type", STK_GGUF_F32, 2, (float[]){1, 1});
    EXPECT_FORMAT(b, "32-bit integers");
    b = gguf_build_open();
    gguf_build_array(b, "tokenizer.ggml.tokens", STK_GGUF_STRING, 2, two);
    gguf_build_array(b, "tokenizer.ggml.token_type", STK_GGUF_I32, 2, (int32_t[]){1, 7});
    EXPECT_FORMAT(b, "token 1 has the unknown type 7");
    b = tiny_vocab_build(&tiny_default);
    gguf_build_u32(b, "tokenizer.ggml.bos_token_id", TINY_N);
    EXPECT_FORMAT(b, "bos_token_id is 266");
    b = tiny_vocab_build(&tiny_default);
    gguf_build_u32(b, "tokenizer.ggml.eom_token_id", UINT32_MAX);
    EXPECT_FORMAT(b, "eom_token_id");
    b = tiny_vocab_build(&tiny_default);
    gguf_build_str(b, "tokenizer.ggml.add_bos_token", "yes");
    EXPECT_FORMAT(b, "add_bos_token");
}

Test(vocab, types_may_be_missing) {
    gguf_build *b = gguf_build_open();
    gguf_build_array(b, "tokenizer.ggml.tokens", STK_GGUF_STRING, 1, &(const char *){"a"});
    cr_assert_eq(init_rc(b), 0);
}
