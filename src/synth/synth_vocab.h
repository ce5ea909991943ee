/*
 * synth_vocab: a vocabulary that tokenizes every text, of any size from 257 tokens up: byte-level BPE in the manner of GPT-2, its
 * 256 bytes (printable ones first), the merges of a space or a letter with a letter, fillers, and <|endoftext|> as the last one.
 *
 * Who may call it: src/ and the tools of tests/.
 */
#ifndef STK_SYNTH_VOCAB_H
#define STK_SYNTH_VOCAB_H

#include "src/model/gguf_write.h"

enum { STK_SYNTH_MIN_VOCAB = 257 }; /* the bytes and <|endoftext|> */

/* Puts the tokenizer.ggml keys. n_vocab is at least STK_SYNTH_MIN_VOCAB. */
void stk_synth_put_vocab(stk_gguf_writer *w, uint32_t n_vocab);

#endif
