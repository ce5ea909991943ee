/* tiny_vocab: see the header. */
#include "tiny_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/text/unicode.h"

enum { MAX_TOKENS = 1024 };

static const tiny_token tokens[] = {
    {"he", 1},           {"ll", 1},         {"hell", 1},  {"hello", 1},       {"\u0120hello", 1}, {"<|endoftext|>", 3},
    {"<|im_start|>", 3}, {"<|im_end|>", 3}, {"<tool", 4}, {"<tool_call>", 4}, {NULL, 0}};
static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\u0120 hello", NULL};
const tiny_vocab tiny_default = {"gpt2", "qwen2", tokens, merges};

static void *need(void *p) {
    if (!p) abort();
    return p;
}

/* The character that stands for a byte in GPT-2's alphabet. */
static char *mapped(unsigned byte) {
    bool plain = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    uint32_t cp = plain ? byte : byte <= 0x20 ? 0x100 + byte : byte <= 0xa0 ? 0x121 + byte - 0x7f : 0x143;
    char *text = need(calloc(1, 5));
    stk_utf8_write(cp, text);
    return text;
}

gguf_build *tiny_vocab_build(const tiny_vocab *v) {
    gguf_build *b = gguf_build_open();
    char *bytes[256];
    const char *text[MAX_TOKENS];
    int32_t kind[MAX_TOKENS];
    uint32_t n = 0, n_merge = 0;
    for (; n < 256; n++) {
        text[n] = bytes[n] = mapped(n);
        kind[n] = 1;
    }
    for (; v->token && v->token[n - 256].text && n < MAX_TOKENS; n++) {
        text[n] = v->token[n - 256].text;
        kind[n] = v->token[n - 256].kind;
    }
    while (v->merge && v->merge[n_merge]) n_merge++;
    if (v->model) gguf_build_str(b, "tokenizer.ggml.model", v->model);
    if (v->pre) gguf_build_str(b, "tokenizer.ggml.pre", v->pre);
    gguf_build_array(b, "tokenizer.ggml.tokens", STK_GGUF_STRING, n, text);
    gguf_build_array(b, "tokenizer.ggml.token_type", STK_GGUF_I32, n, kind);
    gguf_build_array(b, "tokenizer.ggml.merges", STK_GGUF_STRING, n_merge, v->merge);
    for (int i = 0; i < 256; i++) free(bytes[i]);
    return b;
}

stk_gguf *tiny_vocab_open(gguf_build *b) {
    const char *path = test_path("tiny.gguf");
    gguf_build_write(b, path);
    gguf_build_close(b);
    stk_gguf *g;
    if (stk_gguf_open(&g, path) < 0) {
        fprintf(stderr, "tiny_vocab: %s\n", stk_error_detail());
        abort();
    }
    return g;
}

stk_tokenizer *tiny_tokenizer(const tiny_vocab *v, const char *pre) {
    tiny_vocab other = *v;
    if (pre) other.pre = pre;
    stk_gguf *g = tiny_vocab_open(tiny_vocab_build(&other));
    stk_tokenizer *t;
    if (stk_tokenizer_open(&t, g, MAX_TOKENS) < 0) {
        fprintf(stderr, "tiny_vocab: %s\n", stk_error_detail());
        abort();
    }
    stk_gguf_close(&g);
    return t;
}
