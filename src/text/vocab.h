/*
 * vocab: the token list of a GGUF file: what each token prints, of what kind it is, which end generation.
 *
 * Token texts of the gpt2 model are in GPT-2's byte alphabet: bytes 0x21-0x7e, 0xa1-0xac and 0xae-0xff stand as the character of
 * that number, the other 68, ascending, as U+0100 and up. Tokens are kept here as the bytes that they stand for.
 *
 * Who may call it: src/text/tokenizer.c, src/text/bpe.c. Threads: immutable after init. Ownership: nothing of the stk_gguf is
 * referred to after init.
 */
#ifndef STK_VOCAB_H
#define STK_VOCAB_H

#include "src/model/gguf.h"

/* tokenizer.ggml.token_type */
enum stk_token_kind {
    STK_TOKEN_NORMAL = 1,
    STK_TOKEN_UNKNOWN,
    STK_TOKEN_CONTROL, /* prints nothing unless asked; recognised in text only when asked */
    STK_TOKEN_USER,    /* always printed, always recognised in text */
    STK_TOKEN_UNUSED,  /* prints nothing */
    STK_TOKEN_BYTE,
};

typedef struct stk_vocab_token {
    const char *text; /* in stk_vocab.text */
    uint32_t bytes;
    uint8_t kind;   /* enum stk_token_kind */
    uint8_t is_end; /* ends generation */
} stk_vocab_token;

typedef struct stk_vocab {
    uint32_t n;
    uint32_t max_bytes;     /* of the longest token */
    stk_vocab_token *token; /* [n] */
    char *text;
    int32_t *slot; /* [n_slot] open addressing, ids by their bytes, -1 for none */
    uint64_t n_slot;
    int32_t bos;     /* -1: none */
    int8_t adds_bos; /* -1: the file does not say */
} stk_vocab;

/* Errors: STK_EFORMAT (missing or inconsistent keys), STK_ENOMEM; nothing is left to free then. */
int stk_vocab_init(stk_vocab *v, const stk_gguf *g) STK_CHECKED;
void stk_vocab_fini(stk_vocab *v);

/* The id of the token whose bytes are a followed by b, a normal one before others; -1 when there is none. */
int32_t stk_vocab_find(const stk_vocab *v, const char *a, size_t a_bytes, const char *b, size_t b_bytes);
/* Bytes for a text in the byte alphabet: writes at most `bytes` bytes and returns their number, -1 when the text is not in it. */
int64_t stk_vocab_unmap(const char *text, size_t bytes, char *out);

#endif
