/*
 * pretokenize: cuts text into the pieces that byte-pair merging works on, by the rules of one `tokenizer.ggml.pre`.
 *
 * Who may call it: src/text/tokenizer.c. Threads: a stk_pretokenizer is immutable after open and may be shared; a stk_splitter is
 * one call's state. Text that is not UTF-8: each longest run of invalid bytes is a piece, and the valid text on either side is
 * cut as a text of its own.
 */
#ifndef STK_PRETOKENIZE_H
#define STK_PRETOKENIZE_H

#include "src/base.h"

typedef struct stk_pretokenizer stk_pretokenizer;
typedef struct stk_splitter stk_splitter;

/* `name` need not end in 0. Errors: STK_EUNSUPPORTED (names the name), STK_ENOMEM. */
int stk_pretokenizer_open(stk_pretokenizer **out, const char *name, size_t bytes) STK_CHECKED;
void stk_pretokenizer_close(stk_pretokenizer **p);

/* Whether a piece that is in the vocabulary as a whole skips the merges. */
bool stk_pretokenizer_ignores_merges(const stk_pretokenizer *p);
/* Whether the models of this group want BOS where their metadata does not say. */
bool stk_pretokenizer_adds_bos(const stk_pretokenizer *p);

/* Receives each piece in order; a negative return ends the splitting with it. */
typedef int (*stk_piece_fn)(void *user, const char *piece, size_t bytes);

/* `p` must outlive the splitter. Errors: STK_ENOMEM. */
int stk_splitter_open(stk_splitter **out, const stk_pretokenizer *p, stk_piece_fn fn, void *user) STK_CHECKED;
void stk_splitter_close(stk_splitter **s);
/* Together the pieces are the text, none is empty. Errors: STK_ENOMEM, and what the callback returns. */
int stk_splitter_run(stk_splitter *s, const char *text, size_t bytes) STK_CHECKED;

#endif
