/*
 * product_float: the products of float weights, for every vector width. Rules: ref.c; bytes of a stripe: experts/layout.c.
 *
 * Every sum of a row is one chain of fmas, so several vectors of rows, each from its own stripe or half, and several tokens go
 * side by side to hide the latency. With few tokens memory is what is waited for, and each vector's next block is prefetched;
 * more tokens go through the same rows in turn, while these are in the second cache. Private to the files that include lanes.h.
 */
#ifndef STK_CPU_PRODUCT_FLOAT_H
#define STK_CPU_PRODUCT_FLOAT_H

#include "cpu/float_pair.h"
#include "cpu/tiles.h"

enum { MAX_SIDE = 4 }; /* vectors of rows side by side */
/* Whether so few tokens wait for memory. */
#define WAITS(n_tok) ((n_tok) <= 2)

/* Bytes of k (even) weights of a stripe. */
INLINE uint64_t units_bytes(enum stk_type type, uint32_t k) {
    return (uint64_t)(type == STK_TYPE_F32 ? k : k / 2) * STK_UNIT_BYTES;
}

/* acc[s][t] = the products of weights [k, end) of one block. Where few tokens ask for it, what is as far behind ahead[s] is
 * prefetched beside each unit. */
INLINE void float_block(enum stk_type type, uint32_t n_side, uint32_t n_tok, const uint8_t *const *w, const uint8_t *const *ahead,
                        const float *const *x, uint32_t k, uint32_t end, vf (*acc)[MAX_TILE]) {
    const uint32_t begin = k;
    UNROLL
    for (uint32_t i = 0; i < n_side * n_tok; i++) acc[i / n_tok][i % n_tok] = vf_zero();
    for (; k + 1 < end; k += 2) {
        vf w0[MAX_SIDE], w1[MAX_SIDE];
        UNROLL
        for (uint32_t s = 0; s < n_side; s++) {
            load_pair(type, w[s], k, &w0[s], &w1[s]);
            if (WAITS(n_tok)) prefetch_part(ahead[s] + units_bytes(type, k - begin), (uint32_t)units_bytes(type, 2), 0);
        }
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) {
            vf x0 = vf_set1(x[t][k]), x1 = vf_set1(x[t][k + 1]);
            UNROLL
            for (uint32_t s = 0; s < n_side; s++) acc[s][t] = vf_fma(w1[s], x1, vf_fma(w0[s], x0, acc[s][t]));
        }
    }
    if (k == end) return;
    UNROLL
    for (uint32_t s = 0; s < n_side; s++) {
        vf w0 = load_last(type, w[s], k);
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) acc[s][t] = vf_fma(w0, vf_set1(x[t][k]), acc[s][t]);
    }
}

/* What each of the vectors of rows [v, v + n_side) reads after its block at k: its next one, the first of the vectors that
 * follow, or the head of what follows the call. */
INLINE void blocks_ahead(enum stk_type type, uint32_t n_side, const stk_matmul *m, uint32_t v, uint32_t k,
                         const uint8_t *const *w, const uint8_t **ahead) {
    const uint64_t block = units_bytes(type, STK_BLOCK);
    const bool last = m->n_in - k <= STK_BLOCK, last_rows = v + 2 * n_side > m->stripe_end * HALVES;
    UNROLL
    for (uint32_t s = 0; s < n_side; s++)
        ahead[s] = !last        ? w[s] + units_bytes(type, k) + block
                   : !last_rows ? w[s] + n_side / HALVES * stk_stripe_bytes(type, m->n_in)
                   : m->next    ? (const uint8_t *)m->next + s * block
                                : w[s];
}

/* Vectors [v, v + n_side) of rows times tokens [tok, tok + n_tok). Vector v is half v % HALVES of stripe v / HALVES. */
INLINE void float_tile(enum stk_type type, uint32_t n_side, uint32_t n_tok, const stk_matmul *m, uint32_t v, uint32_t tok) {
    const uint64_t stripe_bytes = stk_stripe_bytes(type, m->n_in);
    const uint8_t *w[MAX_SIDE], *ahead[MAX_SIDE];
    const float *x[MAX_TILE];
    vf row[MAX_SIDE][MAX_TILE], acc[MAX_SIDE][MAX_TILE];
    UNROLL
    for (uint32_t t = 0; t < n_tok; t++) x[t] = m->x[tok + t];
    UNROLL
    for (uint32_t s = 0; s < n_side; s++)
        w[s] = (const uint8_t *)m->weights + (v + s) / HALVES * stripe_bytes + (v + s) % HALVES * 4 * LANES;
    UNROLL
    for (uint32_t i = 0; i < n_side * n_tok; i++) row[i / n_tok][i % n_tok] = vf_zero();
    for (uint32_t k = 0; k < m->n_in; k += STK_BLOCK) {
        if (WAITS(n_tok)) blocks_ahead(type, n_side, m, v, k, w, ahead);
        float_block(type, n_side, n_tok, w, ahead, x, k, STK_MIN(k + STK_BLOCK, m->n_in), acc);
        UNROLL
        for (uint32_t i = 0; i < n_side * n_tok; i++)
            row[i / n_tok][i % n_tok] = vf_add(row[i / n_tok][i % n_tok], acc[i / n_tok][i % n_tok]);
    }
    UNROLL
    for (uint32_t i = 0; i < n_side * n_tok; i++)
        store_rows(m, (v + i / n_tok) * LANES, tok + i % n_tok, row[i / n_tok][i % n_tok]);
}

typedef void (*float_fn)(const stk_matmul *m, uint32_t v, uint32_t tok);

/* Vectors of rows side by side in a kernel: as many chains as the latency needs and the registers hold. */
#define SIDE(n_tok) ((n_tok) <= 2 ? MAX_SIDE : LANES == 16 || (n_tok) <= 4 ? 2 : 1)

/* The stripes of m times tokens [tok, tok + n_tok), n_tok <= PASS. side and single: kernels of SIDE vectors and of one, for each
 * number of tokens. All parts of a pass take as many vectors as its first, the largest one. */
INLINE void float_pass(const float_fn *side, const float_fn *single, const stk_matmul *m, uint32_t tok, uint32_t n_tok) {
    const uint32_t n_side = SIDE(even_part(n_tok, MAX_TILE)), end = m->stripe_end * HALVES;
    for (uint32_t v = m->stripe_begin * HALVES, n_v; v < end; v += n_v) {
        n_v = v + n_side <= end ? n_side : 1;
        const float_fn *fn = n_v > 1 ? side : single;
        for (uint32_t t = 0, n; t < n_tok; t += n) {
            n = even_part(n_tok - t, MAX_TILE);
            fn[n - 1](m, v, tok + t);
        }
    }
}

#define FLOAT_TILE(type, n)                                                                                                      \
    static void type##_side_##n(const stk_matmul *m, uint32_t v, uint32_t tok) {                                                 \
        float_tile(STK_TYPE_##type, SIDE(n), n, m, v, tok);                                                                      \
    }                                                                                                                            \
    static void type##_single_##n(const stk_matmul *m, uint32_t v, uint32_t tok) { float_tile(STK_TYPE_##type, 1, n, m, v, tok); }
#define FLOAT_PRODUCT(type, name)                                                                                                \
    FLOAT_TILE(type, 1)                                                                                                          \
    FLOAT_TILE(type, 2)                                                                                                          \
    FLOAT_TILE(type, 3)                                                                                                          \
    FLOAT_TILE(type, 4)                                                                                                          \
    FLOAT_TILE(type, 5)                                                                                                          \
    FLOAT_TILE(type, 6)                                                                                                          \
    FLOAT_TILE(type, 7)                                                                                                          \
    FLOAT_TILE(type, 8)                                                                                                          \
    static void pass_##name(const stk_matmul *m, uint32_t tok, uint32_t n_tok) {                                                 \
        static const float_fn side[MAX_TILE] = {type##_side_1, type##_side_2, type##_side_3, type##_side_4,                      \
                                                type##_side_5, type##_side_6, type##_side_7, type##_side_8},                     \
                              single[MAX_TILE] = {type##_single_1, type##_single_2, type##_single_3, type##_single_4,            \
                                                  type##_single_5, type##_single_6, type##_single_7, type##_single_8};           \
        float_pass(side, single, m, tok, n_tok);                                                                                 \
    }                                                                                                                            \
    static void matmul_##name(const stk_matmul *m) { run_passes(m, pass_##name); }

FLOAT_PRODUCT(F32, f32)
FLOAT_PRODUCT(F16, f16)
FLOAT_PRODUCT(BF16, bf16)

#endif
