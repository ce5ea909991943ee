/*
 * tokenizer: text to tokens and back, from GGUF metadata: byte-level BPE with the pre-tokenizers of pretokenize_table.h (qwen2,
 * gpt-2, llama-bpe and others).
 *
 * Who may call it: src/. Threads: immutable after open; stk_tokenizer_encode may run in several threads at once. Source: Hugging
 * Face tokenizers is the oracle; regexes and rules are those of each model's tokenizer.json. What this library leaves out:
 * normalizers, which GGUF does not carry.
 */
#ifndef STK_TOKENIZER_H
#define STK_TOKENIZER_H

#include "src/model/gguf.h"

typedef struct stk_tokenizer stk_tokenizer;

/* Errors: STK_EUNSUPPORTED (model or pre-tokenizer, named), STK_EFORMAT (missing or inconsistent metadata), STK_ENOMEM.
 * n_vocab: rows of the embedding; tokens beyond the list print nothing. */
int stk_tokenizer_open(stk_tokenizer **out, const stk_gguf *g, uint32_t n_vocab) STK_CHECKED;
void stk_tokenizer_close(stk_tokenizer **t);

/* As stk_tokenize, stk_token_bytes, stk_token_is_end of stoker.h. Encoding allocates its scratch and fails with STK_ENOMEM, with
 * STK_EUNSUPPORTED for a byte that the vocabulary has no token for, and with STK_EINVAL for a piece of 4 GiB or an unknown flag.
 */
int64_t stk_tokenizer_encode(const stk_tokenizer *t, const char *text, size_t bytes, uint32_t flags, int32_t *ids,
                             size_t cap) STK_CHECKED;
int64_t stk_tokenizer_bytes(const stk_tokenizer *t, int32_t id, bool special, const char **bytes) STK_CHECKED;
bool stk_tokenizer_is_end(const stk_tokenizer *t, int32_t id);
/* The most bytes that one token prints. */
size_t stk_tokenizer_max_bytes(const stk_tokenizer *t);
/* The id of a control or user-defined token by its text, -1 when there is none. */
int32_t stk_tokenizer_find_special(const stk_tokenizer *t, const char *text);

#endif
