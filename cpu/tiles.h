/*
 * tiles: how a product's tokens and stripes are dealt to kernels of a fixed number of tokens. Private to the files that lanes.h names.
 */
#ifndef STK_CPU_TILES_H
#define STK_CPU_TILES_H

#include "cpu/cpu.h"
#include "cpu/lanes.h"

enum {
    MAX_TILE = 8,               /* tokens of a kernel */
    CACHED_BYTES = 512 * 1024,  /* activations that should stay in the second-level cache while the stripes pass */
};

/* Kernels for 1, 2, ..., MAX_TILE tokens from tok on. */
typedef void (*tile_fn)(const stk_matmul *m, uint32_t stripe, uint32_t tok);

/* Writes LANES rows from `row` on that the matrix has. */
INLINE void store_rows(const stk_matmul *m, uint32_t row, uint32_t tok, vf v) {
    float *out = m->out[tok] + row;
    if (row + LANES <= m->n_rows)
        vf_store(out, v);
    else if (row < m->n_rows)
        vf_store_n(out, v, m->n_rows - row);
}

/* All tokens of [tok, end) in as few and as even tiles as possible: 9 is 5 and 4. */
static void run_tokens(const stk_matmul *m, const tile_fn tile[MAX_TILE], uint32_t stripe, uint32_t tok, uint32_t end) {
    for (uint32_t n_tile = (end - tok + MAX_TILE - 1) / MAX_TILE; n_tile; n_tile--) {
        uint32_t n = (end - tok + n_tile - 1) / n_tile;
        tile[n - 1](m, stripe, tok);
        tok += n;
    }
}

static void run_tiles(const stk_matmul *m, const tile_fn tile[MAX_TILE], uint32_t act_bytes) {
    const uint32_t cached = STK_MAX(CACHED_BYTES / act_bytes / MAX_TILE, 1u) * MAX_TILE;
    for (uint32_t tok = 0, n; tok < m->n_tok; tok += n) {
        n = STK_MIN(m->n_tok - tok, cached);
        for (uint32_t s = m->stripe_begin; s < m->stripe_end; s++) run_tokens(m, tile, s, tok, tok + n);
    }
}

#endif
