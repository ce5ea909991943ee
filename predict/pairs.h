/*
 * pairs: a table of how often one expert came after another: rows [n] of counts over `width` experts, each with its total.
 *
 * Who may call it: predict/.
 */
#ifndef STK_PAIRS_H
#define STK_PAIRS_H

#include "predict/part.h"

typedef struct stk_pairs {
    size_t n_row;
    uint32_t width, k;
    uint16_t *counts; /* [n_row, width] */
    uint16_t *totals; /* [n_row] tokens */
} stk_pairs;

int stk_pairs_init(stk_pairs *t, uint64_t n_row, uint32_t width, const char *name) STK_CHECKED;
void stk_pairs_fini(stk_pairs *t);
/* Experts `to` [k_to] came after each of `from` [k_from], whose rows begin at `first`. */
void stk_pairs_add(stk_pairs *t, size_t first, const uint16_t *from, uint32_t k_from, const uint16_t *to, uint32_t k_to);
/* The mean over `from` of the share of tokens that went on to each expert. False where no row has any. */
bool stk_pairs_score(const stk_pairs *t, size_t first, const uint16_t *from, uint32_t k_from, float *row);
uint32_t stk_pairs_blobs(const stk_pairs *t, stk_part_blob *blobs);

#endif
