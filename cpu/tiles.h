/*
 * tiles: how a product's tokens and stripes are dealt to kernels of a fixed number of tokens. Private to the files that include
 * lanes.h.
 */
#ifndef STK_CPU_TILES_H
#define STK_CPU_TILES_H

#include "cpu/cpu.h"
#include "cpu/lanes.h"

enum {
    MAX_TILE = 8,                /* tokens of a kernel */
    PASS = 32,                   /* tokens that share the unpacking of a block */
    HALVES = STK_STRIPE / LANES, /* vectors of rows in a stripe */
    AHEAD = 8192, /* bytes to prefetch ahead: a few times what a core reads in a memory's latency, a small part of its cache */
};

/* The stripes of m times tokens [tok, tok + n_tok), n_tok <= PASS. */
typedef void (*pass_fn)(const stk_matmul *m, uint32_t tok, uint32_t n_tok);

/* The first of as few and as even parts of n as possible, none above max: 9 is 5 and 4. */
static inline uint32_t even_part(uint32_t n, uint32_t max) {
    uint32_t n_part = (n + max - 1) / max;
    return (n + n_part - 1) / n_part;
}

static void run_passes(const stk_matmul *m, pass_fn pass) {
    for (uint32_t tok = 0, n; tok < m->n_tok; tok += n) {
        n = even_part(m->n_tok - tok, PASS);
        pass(m, tok, n);
    }
}

/* What lies AHEAD of `at` in the weights of this call, which end at `end`, or in what is read next; NULL for nothing. */
INLINE const uint8_t *ahead_of(const stk_matmul *m, const uint8_t *at, const uint8_t *end) {
    const size_t left = (size_t)(end - at);
    if (left > AHEAD) return at + AHEAD;
    return m->next ? (const uint8_t *)m->next + (AHEAD - left) : NULL;
}

/* Line by line, part i of a memory area that is cut into parts of `bytes`, rounded up. */
INLINE void prefetch_part(const uint8_t *p, uint32_t bytes, uint32_t i) {
    const uint32_t lines = (bytes + 63) / 64;
    UNROLL
    for (uint32_t k = 0; k < lines; k++) _mm_prefetch((const char *)p + (i * lines + k) * 64, _MM_HINT_T1);
}

/* Writes those of LANES rows from `row` on that the matrix has. */
INLINE void store_rows(const stk_matmul *m, uint32_t row, uint32_t tok, vf v) {
    float *out = m->out[tok] + row;
    if (row + LANES <= m->n_rows)
        vf_store(out, v);
    else if (row < m->n_rows)
        vf_store_n(out, v, m->n_rows - row);
}

#endif
