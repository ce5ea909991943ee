/*
 * attend_lanes: attention over a span, for every vector width. Rules: ref.c.
 *
 * Scores and outputs are the same product: a few queries' coefficients (q_d, p_j) times rows of a tile (K [head_dim][64], V
 * [64][head_dim]), where each query's sums over a stretch of columns stay in registers and every sum is one chain of fma over
 * ascending rows. Queries are taken in blocks, up to MAX_Q at a time, so that a row is loaded, and converted from f16, once for
 * all of them. The queries of a block may see different numbers of a tile's positions: scores beyond are computed but not used,
 * and the output is summed up to the least number together and from there on for each query alone.
 *
 * Private to the files that lanes.h names.
 */
#ifndef STK_CPU_ATTEND_LANES_H
#define STK_CPU_ATTEND_LANES_H

#include "cpu/cpu.h"
#include "cpu/lanes_math.h"

enum {
    TILE_POS = 64,
    MAX_Q = LANES == 16 ? 8 : 6,
};

/* acc[i][c] = fma(coef[i][r], rows[r][c], acc[i][c]), rows r < n_row ascending, columns c < n_col, a multiple of 8. */
typedef struct tile_product {
    const void *rows;
    uint32_t stride, n_row, n_col; /* elements */
    const float *coef[MAX_Q];
    float *acc[MAX_Q];
    const float *scale; /* [n_q]: acc is first multiplied with it; NULL: it starts at 0 */
    const void *next;   /* the tile after this one: prefetched line by line, at the place that is being read here */
} tile_product;

/* Vectors of columns for n_q queries: as many sums as fill the multipliers, and registers left for a row and a coefficient. */
INLINE uint32_t column_vecs(uint32_t n_q) {
    if (LANES == 16) return n_q <= 6 ? 4 : 2;
    return n_q == 1 ? 8 : n_q <= 3 ? 4 : 2;
}

/* n columns from element `at` on: LANES, or 8. */
INLINE vf load_columns(const void *rows, uint64_t at, bool f16, uint32_t n) {
    const uint16_t *half = (const uint16_t *)rows + at;
    const float *whole = (const float *)rows + at;
    if (n == LANES) return f16 ? vf_from_f16(half) : vf_load(whole);
#if LANES == 16
    if (f16) return _mm512_cvtph_ps(_mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)half)));
#endif
    return load_part(whole, n);
}

/* Columns [col, col + n), n = n_vec * LANES, or less for n_vec = 1. */
INLINE void add_columns(const tile_product *t, bool f16, uint32_t n_q, uint32_t n_vec, uint32_t col, uint32_t n) {
    const uint32_t part = n_vec > 1 ? LANES : n, element = f16 ? 2 : 4, bytes = n_vec * LANES * element;
    const float *coef[MAX_Q];
    vf acc[MAX_Q][8];
    UNROLL
    for (uint32_t i = 0; i < n_q; i++) {
        coef[i] = t->coef[i];
        UNROLL
        for (uint32_t v = 0; v < n_vec; v++) {
            const float *at = t->acc[i] + col + v * LANES;
            acc[i][v] = !t->scale ? vf_zero() : vf_mul(load_part(at, part), vf_set1(t->scale[i]));
        }
    }
    uint64_t at = col;
    for (uint32_t r = 0; r < t->n_row; r++, at += t->stride) {
        vf row[8];
        UNROLL
        for (uint32_t i = 0; i < (bytes + 63) / 64; i++) _mm_prefetch((const char *)t->next + at * element + i * 64, _MM_HINT_T0);
        UNROLL
        for (uint32_t v = 0; v < n_vec; v++) row[v] = load_columns(t->rows, at + v * LANES, f16, part);
        UNROLL
        for (uint32_t i = 0; i < n_q; i++) {
            vf x = vf_set1(coef[i][r]);
            UNROLL
            for (uint32_t v = 0; v < n_vec; v++) acc[i][v] = vf_fma(x, row[v], acc[i][v]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < n_q; i++) {
        UNROLL
        for (uint32_t v = 0; v < n_vec; v++) store_part(t->acc[i] + col + v * LANES, acc[i][v], part);
    }
}

INLINE void add_product(const tile_product *t, bool f16, uint32_t n_q) {
    const uint32_t n_vec = column_vecs(n_q), step = n_vec * LANES;
    uint32_t col = 0;
    for (; t->n_col - col >= step; col += step) add_columns(t, f16, n_q, n_vec, col, step);
    for (; t->n_col - col >= LANES; col += LANES) add_columns(t, f16, n_q, 1, col, LANES);
    if (LANES > 8 && col < t->n_col) add_columns(t, f16, n_q, 1, col, 8);
}

#define TILE_PRODUCT(n)                                                                                                          \
    static void product_f32_##n(const tile_product *t) { add_product(t, false, n); }                                             \
    static void product_f16_##n(const tile_product *t) { add_product(t, true, n); }
TILE_PRODUCT(1)
TILE_PRODUCT(2)
TILE_PRODUCT(3)
TILE_PRODUCT(4)
TILE_PRODUCT(5)
TILE_PRODUCT(6)
#if LANES == 16
TILE_PRODUCT(7)
TILE_PRODUCT(8)
#endif

static void run_product(const tile_product *t, bool f16, uint32_t n_q) {
    static void (*const products[2][MAX_Q])(const tile_product *) = {
        {product_f32_1, product_f32_2, product_f32_3, product_f32_4, product_f32_5, product_f32_6,
#if LANES == 16
         product_f32_7, product_f32_8
#endif
        },
        {product_f16_1, product_f16_2, product_f16_3, product_f16_4, product_f16_5, product_f16_6,
#if LANES == 16
         product_f16_7, product_f16_8
#endif
        },
    };
    products[f16][n_q - 1](t);
}

/* Queries of one call with the positions of a tile that each sees, at least one. */
typedef struct query_block {
    uint32_t n_q, idx[MAX_Q], n_pos[MAX_Q];
} query_block;

/* s[0..64) * scale, -inf beyond n, into v; returns the largest of them and m. */
INLINE float scale_scores(const float *s, uint32_t n, float scale, float m, vf v[TILE_POS / LANES]) {
    vf max = vf_set1(m);
    UNROLL
    for (uint32_t i = 0; i < TILE_POS / LANES; i++) {
        v[i] = vf_mul(vf_load(s + i * LANES), vf_set1(scale));
        if (n < (i + 1) * LANES) v[i] = vf_first_n(v[i], n > i * LANES ? n - i * LANES : 0, vf_set1(-INFINITY));
        max = vf_max(v[i], max);
    }
    return max_lanes(max);
}

/* p = exp(v - max), 0 beyond n; returns their sum. */
INLINE float exp_scores(const vf v[TILE_POS / LANES], uint32_t n, float max, float *p) {
    vf sum[SUM_VECS];
    UNROLL
    for (uint32_t i = 0; i < SUM_VECS; i++) sum[i] = vf_zero();
    UNROLL
    for (uint32_t i = 0; i < TILE_POS / LANES; i++) {
        if (n <= i * LANES) break;
        vf e = vf_exp(vf_sub(v[i], vf_set1(max)));
        if (n < (i + 1) * LANES) e = vf_first_n(e, n - i * LANES, vf_zero());
        vf_store(p + i * LANES, e);
        sum[i % SUM_VECS] = vf_add(sum[i % SUM_VECS], e);
    }
    return sum_lanes(sum);
}

/* From sums of q * k to p in place; c as in ref.c, by query of the block. */
static void block_softmax(const stk_attend *a, const query_block *b, float s[MAX_Q][TILE_POS], float c[LANES]) {
    float sum[MAX_Q];
    for (uint32_t i = 0; i < LANES; i++) c[i] = 0.0f;
    for (uint32_t i = 0; i < b->n_q; i++) {
        float *state = a->state[b->idx[i]];
        vf v[TILE_POS / LANES];
        float max = scale_scores(s[i], b->n_pos[i], a->scale, state[0], v);
        sum[i] = exp_scores(v, b->n_pos[i], max, s[i]);
        c[i] = state[0] - max;
        state[0] = max;
    }
    vf_store(c, vf_exp(vf_load(c)));
    for (uint32_t i = 0; i < b->n_q; i++) {
        float *state = a->state[b->idx[i]];
        state[1] = fmaf(state[1], c[i], sum[i]);
    }
}

/* One page for a block of queries. */
static void attend_block(const stk_attend *a, const query_block *b, uint32_t page, const void *next) {
    static const float one[MAX_Q] = {1.0f};
    float s[MAX_Q][TILE_POS] __attribute__((aligned(64))), c[LANES];
    uint32_t n_min = TILE_POS;
    tile_product scores = {.rows = a->k[page], .stride = TILE_POS, .n_row = a->head_dim, .n_col = TILE_POS, .next = a->v[page]};
    for (uint32_t i = 0; i < b->n_q; i++) {
        scores.coef[i] = a->q[b->idx[i]];
        scores.acc[i] = s[i];
        n_min = STK_MIN(n_min, b->n_pos[i]);
    }
    run_product(&scores, a->k_f16, b->n_q);
    block_softmax(a, b, s, c);
    tile_product out = {
        .rows = a->v[page], .stride = a->head_dim, .n_row = n_min, .n_col = a->head_dim, .scale = c, .next = next};
    for (uint32_t i = 0; i < b->n_q; i++) {
        out.coef[i] = s[i];
        out.acc[i] = a->state[b->idx[i]] + 2;
    }
    run_product(&out, a->v_f16, b->n_q);
    for (uint32_t i = 0; i < b->n_q; i++) {
        if (b->n_pos[i] == n_min) continue;
        const uint64_t seen = (uint64_t)n_min * a->head_dim * (a->v_f16 ? sizeof(uint16_t) : sizeof(float));
        tile_product rest = {.rows = (const char *)a->v[page] + seen,
                             .stride = a->head_dim,
                             .n_row = b->n_pos[i] - n_min,
                             .n_col = a->head_dim,
                             .coef = {s[i] + n_min},
                             .acc = {out.acc[i]},
                             .scale = one,
                             .next = next};
        run_product(&rest, a->v_f16, 1);
    }
}

/* One page for the queries that see any of it, in as few and as even blocks as possible. */
static void attend_page(const stk_attend *a, uint32_t page, const void *next) {
    const uint32_t begin = page * TILE_POS;
    uint32_t n_left = 0, i = 0;
    for (uint32_t k = 0; k < a->n_q; k++) n_left += a->n_pos[k] > begin;
    for (uint32_t n_block = (n_left + MAX_Q - 1) / MAX_Q; n_block; n_block--) {
        query_block b = {.n_q = 0};
        for (const uint32_t n = (n_left + n_block - 1) / n_block; b.n_q < n; i++) {
            if (a->n_pos[i] <= begin) continue;
            b.idx[b.n_q] = i;
            b.n_pos[b.n_q++] = STK_MIN(a->n_pos[i] - begin, (uint32_t)TILE_POS);
        }
        n_left -= b.n_q;
        attend_block(a, &b, page, next);
    }
}

static void attend(const stk_attend *a) {
    uint32_t n_pos = 0;
    for (uint32_t i = 0; i < a->n_q; i++) {
        float *state = a->state[i];
        state[0] = -INFINITY;
        for (uint32_t d = 0; d <= a->head_dim; d++) state[1 + d] = 0.0f;
        n_pos = STK_MAX(n_pos, a->n_pos[i]);
    }
    const uint32_t n_page = (n_pos + TILE_POS - 1) / TILE_POS;
    for (uint32_t page = 0; page < n_page; page++) attend_page(a, page, page + 1 < n_page ? a->k[page + 1] : a->v[page]);
}

#endif
