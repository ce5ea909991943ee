/* synth_vocab: tokens, their types, merges. */
#include "synth_vocab.h"

#include <inttypes.h>
#include <stdio.h>

enum { N_BYTE = 256, N_LETTER = 26, N_MERGE = 27 * N_LETTER, TEXT_BYTES = 32 };
enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_UNUSED = 5 };

static bool is_printable(uint32_t byte) { return (byte >= 33 && byte < 127) || (byte >= 161 && byte != 173); }

/* The character that stands for a byte: printable ones for themselves, the others are U+0100 and up, in order. */
static uint32_t character_of(uint32_t byte) {
    uint32_t n = 0;
    if (is_printable(byte)) return byte;
    for (uint32_t b = 0; b < byte; b++) n += !is_printable(b);
    return N_BYTE + n;
}

/* Token i < 256 as a character: the printable bytes ascending, then the others. */
static uint32_t character_at(uint32_t i) {
    uint32_t n = 0;
    for (uint32_t b = 0; b < N_BYTE; b++)
        if (is_printable(b) && n++ == i) return b;
    return N_BYTE + i - n;
}

/* UTF-8 of a character below U+0800. */
static char *put_character(char *p, uint32_t c) {
    if (c >= 0x80) {
        *p++ = (char)(0xc0 | c >> 6);
        c = 0x80 | (c & 63);
    }
    *p++ = (char)c;
    *p = 0;
    return p;
}

/* Merge i: its two halves with `between` in the middle. */
static void merge_text(uint32_t i, const char *between, char out[TEXT_BYTES]) {
    uint32_t first = i / N_LETTER;
    char *p = put_character(out, first ? 'a' + first - 1 : character_of(' '));
    if (*between) *p++ = *between;
    put_character(p, 'a' + i % N_LETTER);
}

static void token_text(uint32_t id, uint32_t n_merge, char out[TEXT_BYTES]) {
    if (id < N_BYTE)
        put_character(out, character_at(id));
    else if (id < N_BYTE + n_merge)
        merge_text(id - N_BYTE, "", out);
    else
        snprintf(out, TEXT_BYTES, "<|unused_%" PRIu32 "|>", id);
}

void stk_synth_put_vocab(stk_gguf_writer *w, uint32_t n_vocab) {
    uint32_t end = n_vocab - 1, n_merge = STK_MIN(end - N_BYTE, (uint32_t)N_MERGE);
    char text[TEXT_BYTES];
    stk_gguf_put_str(w, "tokenizer.ggml.model", "gpt2");
    stk_gguf_put_str(w, "tokenizer.ggml.pre", "qwen2");
    stk_gguf_put_array(w, "tokenizer.ggml.tokens", STK_GGUF_STRING, n_vocab);
    for (uint32_t id = 0; id < end; id++) {
        token_text(id, n_merge, text);
        stk_gguf_put_item_str(w, text);
    }
    stk_gguf_put_item_str(w, "<|endoftext|>");
    stk_gguf_put_array(w, "tokenizer.ggml.token_type", STK_GGUF_I32, n_vocab);
    for (uint32_t id = 0; id < end; id++) stk_gguf_put_item_i32(w, id < N_BYTE + n_merge ? TOKEN_NORMAL : TOKEN_UNUSED);
    stk_gguf_put_item_i32(w, TOKEN_CONTROL);
    stk_gguf_put_array(w, "tokenizer.ggml.merges", STK_GGUF_STRING, n_merge);
    for (uint32_t i = 0; i < n_merge; i++) {
        merge_text(i, " ", text);
        stk_gguf_put_item_str(w, text);
    }
    stk_gguf_put_u32(w, "tokenizer.ggml.bos_token_id", end);
    stk_gguf_put_u32(w, "tokenizer.ggml.eos_token_id", end);
    stk_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", false);
}
