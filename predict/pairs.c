/* pairs: counts are halved row by row, so that a row follows what came lately and 16 bits suffice. */
#include "predict/pairs.h"

#include <stdlib.h>
#include <string.h>

enum { TOTAL_MAX = 8192 };

void stk_pairs_fini(stk_pairs *t) {
    free(t->counts);
    free(t->totals);
    memset(t, 0, sizeof *t);
}

int stk_pairs_init(stk_pairs *t, uint64_t n_row, uint32_t width, const char *name) {
    memset(t, 0, sizeof *t);
    t->n_row = n_row;
    t->width = width;
    t->counts = calloc(n_row * width, sizeof *t->counts);
    t->totals = calloc(n_row, sizeof *t->totals);
    if (t->counts && t->totals) return 0;
    stk_pairs_fini(t);
    return stk_fail(STK_ENOMEM, "predictor %s: out of memory for %llu rows of %u experts", name, (unsigned long long)n_row,
                    width);
}

void stk_pairs_add(stk_pairs *t, size_t first, const uint16_t *from, uint32_t k_from, const uint16_t *to, uint32_t k_to) {
    for (uint32_t i = 0; i < k_from; i++) {
        if (from[i] == STK_NO_EXPERT) continue;
        uint16_t *row = t->counts + (first + from[i]) * t->width, *total = &t->totals[first + from[i]];
        if (*total == TOTAL_MAX) {
            *total /= 2;
            for (uint32_t e = 0; e < t->width; e++) row[e] /= 2;
        }
        ++*total;
        for (uint32_t j = 0; j < k_to; j++)
            if (to[j] != STK_NO_EXPERT && row[to[j]] < UINT16_MAX) row[to[j]]++;
    }
}

bool stk_pairs_score(const stk_pairs *t, size_t first, const uint16_t *from, uint32_t k_from, float *row) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < k_from; i++) n += from[i] != STK_NO_EXPERT && t->totals[first + from[i]] != 0;
    if (n == 0) return false;
    memset(row, 0, t->width * sizeof *row);
    for (uint32_t i = 0; i < k_from; i++) {
        if (from[i] == STK_NO_EXPERT || t->totals[first + from[i]] == 0) continue;
        float by = 1.0f / ((float)(t->totals[first + from[i]] + 1) * (float)n);
        stk_row_add_u16(row, t->counts + (first + from[i]) * t->width, by, t->width);
    }
    return true;
}

uint32_t stk_pairs_blobs(const stk_pairs *t, stk_part_blob *blobs) {
    blobs[0] = (stk_part_blob){t->counts, t->n_row * t->width, STK_BLOB_U16, TOTAL_MAX};
    blobs[1] = (stk_part_blob){t->totals, t->n_row, STK_BLOB_U16, TOTAL_MAX};
    return 2;
}
