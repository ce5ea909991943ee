/*
 * learned_lanes: what policy `learned` does to all experts of a layer, or to all tokens that it looks back at, once for each
 * width of vectors (learned_lanes_loops.h). The tables give the same bits: sums of floats are taken element by element, or by 16
 * lanes and then halves onto halves, without fused multiply-add; all else is integers. So decisions are the same on every CPU.
 *
 * Who may call it: recall.c, learned_model.c, learned.c. Rows have a length n that is a multiple of STK_LANES_PAD. Pure.
 */
#ifndef STK_LANES_H
#define STK_LANES_H

#include "src/base.h"

enum {
    STK_LANES_PAD = 64,      /* experts of a word of 64 bits */
    STK_LANES_WINDOW = 4096, /* tokens that are looked back at, by place in a ring */
    STK_LANES_AHEAD = 8,     /* tokens that follow a match */
    STK_LANES_LAGS = 4,      /* groups of these: the next, the one after, 3 to 4, 5 to 8 */
    STK_LANES_FADING = 6,    /* rows of a layer that fade */
    STK_LANES_VOTES = 63     /* votes of all matches together, so that four tokens of each fit a byte */
};

typedef struct stk_lanes {
    const char *name;
    /* The first of the lowest x[i] + bar[i]; what that is: *least. n > 0; infinities are fine. */
    uint32_t (*lowest)(const float *x, const float *bar, uint32_t n, float *least);
    /* fading[f][e] += add[f] [FADING] for each e that has its bit in set; fading [FADING, n], add[f] of 0 leaves a row alone. */
    void (*fade)(float *fading, const uint64_t *set, const float *add, uint32_t n);
    /* out[e] = the rows' values by their weights: `fading` [FADING, n], then `votes` [LAGS, n]; w [FADING + LAGS]. */
    void (*weigh)(float *out, const float *fading, const uint8_t *votes, const float *w, uint32_t n);
    /* Sum of a[i] * b[i]: 16 sums side by side, then halves onto halves. */
    float (*dot)(const float *a, const float *b, uint32_t n);
    /* like[q] loses a quarter and gains 4 for each of the n_used rows of `used` that has bit q; n_used <= 15. */
    void (*resemble)(uint8_t *like, const uint64_t *const *used, uint32_t n_used);
    /* Lists the places with like[] of *least or more, in order: *least > 0 is about as high as it can be for `want` of them,
     * where there are as many. Returns how many. list [WINDOW]. */
    uint32_t (*likest)(const uint8_t *like, uint32_t want, uint16_t *list, uint8_t *least);
    /* shared[i] = how many bits past[i] [n_word] has in common with set [n_word]; at most 255. */
    void (*share)(uint8_t *shared, const uint64_t *set, const uint64_t *const *past, uint32_t n, uint32_t n_word);
    /* votes[lag][e] = the sum of of[i] for each of the 8 rows [n_word] of bits from rows[i] on that has bit e; votes [LAGS, 64
     * n_word]. */
    void (*vote)(uint8_t *votes, const uint64_t *const *rows, const uint8_t *of, uint32_t n, uint32_t n_word);
} stk_lanes;

extern const stk_lanes stk_lanes_base, stk_lanes_avx2, stk_lanes_avx512;
/* Table i, narrowest first, of those that this CPU can run; NULL beyond the last. */
const stk_lanes *stk_lanes_table(uint32_t i);
/* The widest. */
const stk_lanes *stk_lanes_best(void);

#endif
