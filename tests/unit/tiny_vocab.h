/*
 * tiny_vocab: GGUF files that hold a byte-level vocabulary alone: the 256 bytes, whose ids are their values, then the tokens
 * given, from 256.
 *
 * For tests alone: failures abort.
 */
#ifndef STK_TEST_TINY_VOCAB_H
#define STK_TEST_TINY_VOCAB_H

#include "gguf_build.h"
#include "src/text/tokenizer.h"

typedef struct tiny_token {
    const char *text; /* in the byte alphabet when normal */
    int32_t kind;
} tiny_token;

typedef struct tiny_vocab {
    const char *model; /* NULL: no such key, as with the next */
    const char *pre;
    const tiny_token *token;  /* ends with text NULL */
    const char *const *merge; /* ends with NULL */
} tiny_vocab;

/* Tokens a..e and merges among them, a word of each script size, control and user-defined tokens: enough for most tests. */
extern const tiny_vocab tiny_default;
enum {
    TINY_HE = 256,
    TINY_LL,
    TINY_HELL,
    TINY_HELLO,
    TINY_SPACE_HELLO,
    TINY_END,
    TINY_START,
    TINY_STOP,
    TINY_TOOL,
    TINY_TOOL_CALL,
    TINY_N
};

/* The open file, to which further keys may be added. */
gguf_build *tiny_vocab_build(const tiny_vocab *v);
/* Writes, closes and opens it. */
stk_gguf *tiny_vocab_open(gguf_build *b);
/* The tokenizer of `v` with another pre-tokenizer (NULL: its own). */
stk_tokenizer *tiny_tokenizer(const tiny_vocab *v, const char *pre);

#endif
