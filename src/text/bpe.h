/*
 * bpe: byte-pair merging of one piece of text, by the merge list of a vocabulary.
 *
 * Who may call it: src/text/tokenizer.c. Threads: a stk_bpe is immutable after open; a stk_bpe_work is one call's state.
 */
#ifndef STK_BPE_H
#define STK_BPE_H

#include "vocab.h"

typedef struct stk_bpe stk_bpe;

/* Scratch of merging; starts zeroed, grows to the longest piece. */
typedef struct stk_bpe_work {
    int32_t *id;    /* [cap] tokens of the piece; the result stands here */
    uint32_t *rank; /* [cap] of the merge of a token with the next */
    uint32_t *prev; /* [cap] */
    uint32_t *next; /* [cap] */
    uint64_t *heap; /* [2 cap] rank and position */
    size_t cap;
} stk_bpe_work;

/* `v` must outlive the object. Errors: STK_EFORMAT (a merge that is no merge of listed tokens), STK_ENOMEM. */
int stk_bpe_open(stk_bpe **out, const stk_vocab *v, const stk_gguf *g) STK_CHECKED;
void stk_bpe_close(stk_bpe **b);

/*
 * Merges piece[0, bytes): of all neighbours that may merge those of the lowest rank, of these the leftmost, until none may.
 * Returns the number of tokens, in work->id. Time O(n log n). Errors: STK_EUNSUPPORTED (no token for a byte), STK_EINVAL (4 GiB
 * or more), STK_ENOMEM.
 */
int64_t stk_bpe_merge(const stk_bpe *b, stk_bpe_work *work, const char *piece, size_t bytes) STK_CHECKED;
void stk_bpe_work_fini(stk_bpe_work *work);

#endif
