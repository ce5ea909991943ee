/*
 * special: finds the tokens that are cut out of raw text before anything else, leftmost first and of those the longest, as
 * Hugging Face tokenizers does.
 *
 * Who may call it: src/text/tokenizer.c. Threads: immutable after init. Ownership: the texts are borrowed.
 */
#ifndef STK_SPECIAL_H
#define STK_SPECIAL_H

#include "src/base.h"

typedef struct stk_special_token {
    const char *text;
    uint32_t bytes; /* >= 1 */
    int32_t id;
} stk_special_token;

/* A set of texts, sorted bytewise; those that begin with byte b are token[first[b]] up to token[first[b + 1]]. */
typedef struct stk_special_set {
    stk_special_token *token;
    uint32_t first[257];
} stk_special_set;

/* Copies `token`, sorts it and drops all but the lowest id of a text. Errors: STK_ENOMEM. */
int stk_special_init(stk_special_set *set, const stk_special_token *token, uint32_t n) STK_CHECKED;
void stk_special_fini(stk_special_set *set);

/* The first token of the set in text[0, bytes): its offset, and *token; `bytes` when there is none. */
size_t stk_special_find(const stk_special_set *set, const char *text, size_t bytes, const stk_special_token **token);

#endif
