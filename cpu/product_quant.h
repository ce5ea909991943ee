/*
 * product_quant: the products of quantized weights, for every vector width. Rules: ref.c; bytes of a stripe: experts/layout.c.
 *
 * A vector holds a dword of codes of LANES rows. The 256 weights of a block are unpacked once for up to PASS tokens, to bytes and
 * float scales on the stack; then kernels for exact numbers of tokens multiply each vector of codes with all tokens of their tile
 * before the next, so that the tokens' sums are independent chains.
 *
 * A sum becomes a float without a conversion: it starts at the bits of the float MAGIC = 1.5 * 2^23 (plus the correction for
 * codes that are stored with an offset), so it ends as the bits of F = MAGIC + S, exactly, as |S| < 2^22. Then
 * fma(ws, F, -(ws * MAGIC)) is ws * S rounded once, because ws * MAGIC is exact.
 *
 * Private to the files that include lanes.h.
 */
#ifndef STK_CPU_PRODUCT_QUANT_H
#define STK_CPU_PRODUCT_QUANT_H

#include "cpu/cpu.h"
#include "cpu/dot.h"
#include "cpu/tiles.h"

enum {
    MAGIC_BITS = 0x4b400000,
    GROUPS = STK_BLOCK / STK_GROUP, /* of a full block */
    UNITS = STK_GROUP / 4,          /* vectors of codes of a group */
    /* Where 240 * 127 does not saturate, high nibbles of Q4_K stay in place, and their scale is divided by 16 instead. */
    NIBBLE_IN_PLACE = DOT_VNNI,
    SUM_TILE = 16 * STK_STRIPE, /* sums that tiles make at a time: of 16 tokens (simd_amx.c) */
};
#define MAGIC 0x1.8p23f

/* What is subtracted from codes as they are unpacked. */
INLINE int32_t code_offset(enum stk_type type) {
    switch (type) {
    case STK_TYPE_Q8_0: return DOT_VNNI ? 128 : 0;
    case STK_TYPE_Q4_0: return 8;
    case STK_TYPE_Q6_K: return 32;
    default: return 0;
    }
}

INLINE bool has_mins(enum stk_type type) { return type == STK_TYPE_Q4_K || type == STK_TYPE_Q5_K; }
INLINE bool is_k_quant(enum stk_type type) { return type != STK_TYPE_Q8_0 && type != STK_TYPE_Q4_0; }

/* LANES rows of a block, unpacked. */
typedef struct rows_block {
    vi code[GROUPS][UNITS];
    vf scale[2 * GROUPS]; /* of each group at 2g; of each 16 for Q6_K */
    vf min[GROUPS];
} rows_block;

/* One token's part of a block. */
typedef struct token_block {
    int32_t start[2 * GROUPS]; /* of the integer sums: of group g at 2g; of each 16 for Q6_K */
    float d[GROUPS], sum[GROUPS];
} token_block;

/* ---- Unpacking ------------------------------------------------------------------------------------------------------------ */

INLINE vi unit_at(const uint8_t *p, uint32_t u) { return vi_load(p + u * STK_UNIT_BYTES); }

/* Q8_0 and Q4_0: f16 scales [n_group][16], then codes. */
INLINE void unpack_q8_0(const uint8_t *d, const uint8_t *codes, uint32_t n_group, rows_block *b) {
    const vi flip = vi_set1(DOT_VNNI ? (int32_t)0x80808080 : 0);
    for (uint32_t g = 0; g < n_group; g++) {
        b->scale[2 * g] = vf_from_f16(d + g * 2 * STK_STRIPE);
        UNROLL
        for (uint32_t u = 0; u < UNITS; u++) b->code[g][u] = vi_xor(unit_at(codes, g * UNITS + u), flip);
    }
}

INLINE void unpack_q4_0(const uint8_t *d, const uint8_t *codes, uint32_t n_group, rows_block *b) {
    const vi low4 = vi_set1(0x0f0f0f0f);
    for (uint32_t g = 0; g < n_group; g++) {
        b->scale[2 * g] = vf_from_f16(d + g * 2 * STK_STRIPE);
        UNROLL
        for (uint32_t u = 0; u < UNITS / 2; u++) {
            vi c = unit_at(codes, g * UNITS / 2 + u);
            b->code[g][u] = vi_and(c, low4);
            b->code[g][u + UNITS / 2] = vi_and(vi_shr(c, 4), low4);
        }
    }
}

/* Byte i of each dword as a float. */
#define BYTE_F32(v, i) vf_from_i32(vi_and(vi_shr(v, 8 * (i)), vi_set1(0xff)))

/* d, dmin and 12 bytes of scales of Q4_K and Q5_K: 6 bits each, the upper ones in two parts (experts/quant.c). */
INLINE void unpack_k_scales(const uint8_t *d_at, const uint8_t *units, bool in_place, rows_block *b) {
    const vi low4 = vi_set1(0x0f0f0f0f), low6 = vi_set1(0x3f3f3f3f);
    vi s0 = unit_at(units, 0), s1 = unit_at(units, 1), s2 = unit_at(units, 2);
    vi sc[2] = {vi_and(s0, low6), vi_and(vi_select(low4, s2, vi_shr(s0, 2)), low6)};
    vi mn[2] = {vi_and(s1, low6), vi_and(vi_select(low4, vi_shr(s2, 4), vi_shr(s1, 2)), low6)};
    vf d = vf_from_f16(d_at), dmin = vf_from_f16(d_at + 2 * STK_STRIPE);
    vf d_odd = in_place ? vf_mul(d, vf_set1(0x1p-4f)) : d;
    UNROLL
    for (uint32_t g = 0; g < GROUPS; g++) {
        b->scale[2 * g] = vf_mul(g % 2 ? d_odd : d, BYTE_F32(sc[g / 4], g % 4));
        b->min[g] = vf_mul(dmin, BYTE_F32(mn[g / 4], g % 4));
    }
}

INLINE void unpack_q4_k(const uint8_t *codes, rows_block *b) {
    const vi low4 = vi_set1(0x0f0f0f0f);
    for (uint32_t g = 0; g < GROUPS; g += 2) {
        UNROLL
        for (uint32_t u = 0; u < UNITS; u++) {
            vi c = unit_at(codes, g * UNITS / 2 + u);
            b->code[g][u] = vi_and(c, low4);
            b->code[g + 1][u] = NIBBLE_IN_PLACE ? vi_and(c, vi_set1((int32_t)0xf0f0f0f0)) : vi_and(vi_shr(c, 4), low4);
        }
    }
}

INLINE void unpack_q5_k(const uint8_t *high, const uint8_t *codes, rows_block *b) {
    const vi low4 = vi_set1(0x0f0f0f0f), low5 = vi_set1(0x1f1f1f1f);
    for (uint32_t u = 0; u < UNITS; u++) {
        vi h = unit_at(high, u);
        UNROLL
        for (uint32_t g = 0; g < GROUPS; g += 2) {
            vi c = unit_at(codes, g * UNITS / 2 + u);
            vi h0 = g < 4 ? vi_shl(h, (4 - g) & 7) : vi_shr(h, (g - 4) & 7);
            vi h1 = g < 3 ? vi_shl(h, (3 - g) & 7) : vi_shr(h, (g - 3) & 7);
            b->code[g][u] = vi_and(vi_select(low4, c, h0), low5);
            b->code[g + 1][u] = vi_and(vi_select(low4, vi_shr(c, 4), h1), low5);
        }
    }
}

INLINE void unpack_q6_k(const uint8_t *d_at, const uint8_t *scales, const uint8_t *high, const uint8_t *codes, rows_block *b) {
    const vi low4 = vi_set1(0x0f0f0f0f), low6 = vi_set1(0x3f3f3f3f);
    vf d = vf_from_f16(d_at);
    UNROLL
    for (uint32_t i = 0; i < 2 * GROUPS; i++) {
        vi bytes = unit_at(scales, i / 4);
        b->scale[i] = vf_mul(d, vf_from_i32(vi_sar(vi_shl(bytes, 24 - 8 * (i % 4)), 24)));
    }
    for (uint32_t g = 0; g < GROUPS; g += 4) {
        UNROLL
        for (uint32_t u = 0; u < UNITS; u++) {
            vi c0 = unit_at(codes, g * 4 + u), c1 = unit_at(codes, g * 4 + UNITS + u), h = unit_at(high, g * 2 + u);
            b->code[g][u] = vi_and(vi_select(low4, c0, vi_shl(h, 4)), low6);
            b->code[g + 1][u] = vi_and(vi_select(low4, c1, vi_shl(h, 2)), low6);
            b->code[g + 2][u] = vi_and(vi_select(low4, vi_shr(c0, 4), h), low6);
            b->code[g + 3][u] = vi_and(vi_select(low4, vi_shr(c1, 4), vi_shr(h, 2)), low6);
        }
    }
}

/* A position in a stripe. */
typedef struct cursor {
    const uint8_t *at, *d; /* d: the header of Q6_K */
} cursor;

INLINE cursor stripe_begin(enum stk_type type, const stk_matmul *m, uint32_t stripe) {
    const uint8_t *at = (const uint8_t *)m->weights + stripe * stk_stripe_bytes(type, m->n_in);
    const uint64_t header = type == STK_TYPE_Q6_K ? stk_align_up(m->n_in / STK_BLOCK * 2 * STK_STRIPE, STK_UNIT_BYTES) : 0;
    return (cursor){at + header, at};
}

INLINE uint32_t block_bytes(enum stk_type type, uint32_t n_group) {
    const uint32_t halves = (n_group + 1) / 2;
    switch (type) {
    case STK_TYPE_Q8_0: return (halves + n_group * UNITS) * STK_UNIT_BYTES;
    case STK_TYPE_Q4_0: return (halves + n_group * UNITS / 2) * STK_UNIT_BYTES;
    case STK_TYPE_Q4_K: return (4 + 32) * STK_UNIT_BYTES;
    case STK_TYPE_Q5_K: return (4 + 8 + 32) * STK_UNIT_BYTES;
    default: return (4 + 16 + 32) * STK_UNIT_BYTES;
    }
}

/* The rows from half * LANES on of a block. */
INLINE void unpack(enum stk_type type, cursor c, uint32_t n_group, uint32_t half, rows_block *b) {
    const uint8_t *d = c.at + half * 2 * LANES, *units = c.at + half * 4 * LANES;
    const uint32_t header = (n_group + 1) / 2 * STK_UNIT_BYTES;
    switch (type) {
    case STK_TYPE_Q8_0: unpack_q8_0(d, units + header, n_group, b); break;
    case STK_TYPE_Q4_0: unpack_q4_0(d, units + header, n_group, b); break;
    case STK_TYPE_Q4_K:
        unpack_k_scales(d, units + STK_UNIT_BYTES, NIBBLE_IN_PLACE, b);
        unpack_q4_k(units + 4 * STK_UNIT_BYTES, b);
        break;
    case STK_TYPE_Q5_K:
        unpack_k_scales(d, units + STK_UNIT_BYTES, false, b);
        unpack_q5_k(units + 4 * STK_UNIT_BYTES, units + 12 * STK_UNIT_BYTES, b);
        break;
    default: unpack_q6_k(c.d + half * 2 * LANES, units, units + 4 * STK_UNIT_BYTES, units + 20 * STK_UNIT_BYTES, b);
    }
}

/* ---- Kernels -------------------------------------------------------------------------------------------------------------- */

/* sum[t] += units [u, u + n) of the codes of a group times each token's. */
INLINE void add_units(enum stk_type type, const vi *code, uint32_t u, uint32_t n, uint32_t n_tok, const int8_t *const *q,
                      uint32_t q_at, vi *sum) {
#if DOT_VNNI
    (void)type;
    UNROLL
    for (uint32_t i = u; i < u + n; i++) {
        vi c = code[i];
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) sum[t] = dot4(sum[t], c, load_i32(q[t] + q_at + 4 * i));
    }
#else
    const uint32_t span = type == STK_TYPE_Q8_0 ? 1 : type == STK_TYPE_Q6_K ? 2 : type == STK_TYPE_Q5_K ? 4 : 8;
    UNROLL
    for (uint32_t s = u; s < u + n; s += span) {
        vi pairs[MAX_TILE];
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) pairs[t] = dot4_pairs(code[s], load_i32(q[t] + q_at + 4 * s), type == STK_TYPE_Q8_0);
        UNROLL
        for (uint32_t i = s + 1; i < s + span; i++) {
            vi c = code[i];
            UNROLL
            for (uint32_t t = 0; t < n_tok; t++)
                pairs[t] = _mm256_add_epi16(pairs[t], dot4_pairs(c, load_i32(q[t] + q_at + 4 * i), type == STK_TYPE_Q8_0));
        }
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) sum[t] = vi_add(sum[t], _mm256_madd_epi16(pairs[t], _mm256_set1_epi16(1)));
    }
#endif
}

/* sum[t] = the bits of MAGIC + the integer sum of token t in group g; in its first or second half for Q6_K. made: NULL, or the
 * sums of codes as tiles have made them, which still lack their start. */
INLINE void integer_sums(enum stk_type type, const rows_block *b, uint32_t g, uint32_t half, uint32_t n_tok, bool tiled,
                         const int8_t *const *q, const token_block *x, const int32_t *made, vi *sum) {
    const bool by16 = type == STK_TYPE_Q6_K, offset = code_offset(type) != 0;
    UNROLL
    for (uint32_t t = 0; t < n_tok; t++) sum[t] = vi_set1(offset ? x[t].start[2 * g + half] : MAGIC_BITS);
    if (!tiled) {
        add_units(type, b->code[g], half * UNITS / 2, by16 ? UNITS / 2 : UNITS, n_tok, q, g * STK_GROUP, sum);
        return;
    }
    made += (by16 ? 2 * g + half : g) * SUM_TILE;
    UNROLL
    for (uint32_t t = 0; t < n_tok; t++) sum[t] = vi_add(sum[t], vi_load(made + t * STK_STRIPE));
}

/* row[t * HALVES] += the block's product with n_tok tokens. The block at `ahead`, if any, is prefetched meanwhile. tiled: the
 * sums of codes are in `made`, and q is not needed. */
INLINE void add_block(enum stk_type type, uint32_t n_tok, bool tiled, const rows_block *b, uint32_t n_group,
                      const int8_t *const *q, uint32_t q_at, const int32_t *made, const token_block *x, vf *row,
                      const uint8_t *ahead) {
    const int8_t *qt[MAX_TILE];
    vf acc[MAX_TILE];
    UNROLL
    for (uint32_t t = 0; t < n_tok; t++) {
        if (!tiled) qt[t] = q[t] + q_at;
        acc[t] = vf_zero();
    }
    for (uint32_t g = 0; g < n_group; g++) {
        if (ahead) prefetch_part(ahead, block_bytes(type, GROUPS) / GROUPS, g);
        vf ws = b->scale[2 * g], ws_magic = vf_mul(ws, vf_set1(-MAGIC)), u[MAX_TILE];
        vi sum[MAX_TILE];
        integer_sums(type, b, g, 0, n_tok, tiled, qt, x, made, sum);
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) u[t] = vf_fma(ws, vf_bits(sum[t]), ws_magic);
        if (type == STK_TYPE_Q6_K) {
            integer_sums(type, b, g, 1, n_tok, tiled, qt, x, made, sum);
            UNROLL
            for (uint32_t t = 0; t < n_tok; t++)
                u[t] = vf_fma(b->scale[2 * g + 1], vf_sub(vf_bits(sum[t]), vf_set1(MAGIC)), u[t]);
        }
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) {
            acc[t] = vf_fma(u[t], vf_set1(x[t].d[g]), acc[t]);
            if (has_mins(type)) acc[t] = vf_fnma(b->min[g], vf_set1(x[t].sum[g]), acc[t]);
        }
    }
    UNROLL
    for (uint32_t t = 0; t < n_tok; t++) row[t * HALVES] = vf_add(row[t * HALVES], acc[t]);
}

#if !DOT_VNNI
/* A block of Q4_K for one token: unpack and add_block in one, since storing and loading codes once more costs as much as
 * multiplying them. The same sums in the same order. */
INLINE void add_q4_k_block(cursor c, uint32_t half, const int8_t *q, const token_block *x, vf *row, const uint8_t *ahead) {
    const vi low4 = vi_set1(0x0f0f0f0f), one = _mm256_set1_epi16(1);
    const uint8_t *units = c.at + half * 4 * LANES, *codes = units + 4 * STK_UNIT_BYTES;
    rows_block b;
    vf acc = vf_zero();
    unpack_k_scales(c.at + half * 2 * LANES, units + STK_UNIT_BYTES, false, &b);
    for (uint32_t g = 0; g < GROUPS; g += 2) {
        vi pairs[2];
        if (ahead) prefetch_part(ahead, block_bytes(STK_TYPE_Q4_K, GROUPS) / (GROUPS / 2), g / 2);
        UNROLL
        for (uint32_t u = 0; u < UNITS; u++) {
            const vi code = unit_at(codes, g * UNITS / 2 + u);
            const int8_t *at = q + g * STK_GROUP + 4 * u;
            vi low = dot4_pairs(vi_and(code, low4), load_i32(at), false);
            vi high = dot4_pairs(vi_and(vi_shr(code, 4), low4), load_i32(at + STK_GROUP), false);
            pairs[0] = u ? _mm256_add_epi16(pairs[0], low) : low;
            pairs[1] = u ? _mm256_add_epi16(pairs[1], high) : high;
        }
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const vf ws = b.scale[2 * (g + i)];
            vi sum = vi_add(vi_set1(MAGIC_BITS), _mm256_madd_epi16(pairs[i], one));
            acc = vf_fma(vf_fma(ws, vf_bits(sum), vf_mul(ws, vf_set1(-MAGIC))), vf_set1(x->d[g + i]), acc);
            acc = vf_fnma(b.min[g + i], vf_set1(x->sum[g + i]), acc);
        }
    }
    *row = vf_add(*row, acc);
}
#endif

/* One for each number of tokens. */
typedef void (*block_fn)(const rows_block *b, uint32_t n_group, const int8_t *const *q, uint32_t q_at, const token_block *x,
                         vf *row, const uint8_t *ahead);

/* ---- Passes --------------------------------------------------------------------------------------------------------------- */

/* A token's part of the block at group g. Its parts are readable to the next 64 bytes. */
INLINE void load_token(enum stk_type type, const uint8_t *act, stk_act_layout at, uint32_t g, token_block *x) {
    memcpy(x->d, act + at.scale_offset + 4 * g, sizeof x->d);
    if (has_mins(type)) memcpy(x->sum, act + at.sum_offset + 4 * g, sizeof x->sum);
    if (!code_offset(type)) return;
    const uint8_t *neg16 = act + at.neg16_offset + 8 * g;
    UNROLL
    for (uint32_t h = 0; h < HALVES; h++) {
        vi n = vi_load(neg16 + h * sizeof n);
        if (type != STK_TYPE_Q6_K) n = vi_add(n, V(srli_epi64)(n, 32));
        n = vi_shl(n, (uint32_t)__builtin_ctz((uint32_t)code_offset(type)));
        vi_store(x->start + h * LANES, vi_add(vi_set1(MAGIC_BITS), n));
    }
}

/* The stripes of m times tokens [tok, tok + n_tok), n_tok <= PASS. */
INLINE void quant_pass(enum stk_type type, const block_fn *block, const stk_matmul *m, uint32_t tok, uint32_t n_tok) {
    const stk_act_layout at = stk_act_layout_of(m->n_in);
    const int8_t *const *q = (const int8_t *const *)m->x + tok;
    const uint8_t *end = stripe_begin(type, m, m->stripe_end).d;
    rows_block b;
    token_block x[PASS];
    vf row[PASS * HALVES];
    for (uint32_t stripe = m->stripe_begin; stripe < m->stripe_end; stripe++) {
        cursor c = stripe_begin(type, m, stripe);
        for (uint32_t i = 0; i < n_tok * HALVES; i++) row[i] = vf_zero();
        for (uint32_t k = 0; k < m->n_in; k += STK_BLOCK) {
            const uint32_t n_group = is_k_quant(type) ? GROUPS : STK_MIN(m->n_in - k, (uint32_t)STK_BLOCK) / STK_GROUP;
            for (uint32_t t = 0; t < n_tok; t++) load_token(type, m->x[tok + t], at, k / STK_GROUP, &x[t]);
            for (uint32_t half = 0; half < HALVES; half++) {
#if !DOT_VNNI
                if (type == STK_TYPE_Q4_K && n_tok == 1) {
                    add_q4_k_block(c, half, q[0] + k, x, row + half, half ? NULL : ahead_of(m, c.at, end));
                    continue;
                }
#endif
                unpack(type, c, n_group, half, &b);
                for (uint32_t t = 0, n; t < n_tok; t += n) {
                    n = even_part(n_tok - t, MAX_TILE);
                    block[n - 1](&b, n_group, q + t, k, x + t, row + t * HALVES + half, t + half ? NULL : ahead_of(m, c.at, end));
                }
            }
            c.at += block_bytes(type, n_group);
            c.d += 2 * STK_STRIPE;
        }
        for (uint32_t i = 0; i < n_tok * HALVES; i++)
            store_rows(m, stripe * STK_STRIPE + i % HALVES * LANES, tok + i / HALVES, row[i]);
    }
}

/* The kernels of a type; simd_table.h makes them. */
#define QUANT_BLOCK(type, n)                                                                                                     \
    static void type##_##n(const rows_block *b, uint32_t n_group, const int8_t *const *q, uint32_t q_at, const token_block *x,   \
                           vf *row, const uint8_t *ahead) {                                                                      \
        add_block(STK_TYPE_##type, n, false, b, n_group, q, q_at, NULL, x, row, ahead);                                          \
    }
#define QUANT_PRODUCT(type, name)                                                                                                \
    QUANT_BLOCK(type, 1)                                                                                                         \
    QUANT_BLOCK(type, 2)                                                                                                         \
    QUANT_BLOCK(type, 3)                                                                                                         \
    QUANT_BLOCK(type, 4)                                                                                                         \
    QUANT_BLOCK(type, 5)                                                                                                         \
    QUANT_BLOCK(type, 6)                                                                                                         \
    QUANT_BLOCK(type, 7)                                                                                                         \
    QUANT_BLOCK(type, 8)                                                                                                         \
    static void pass_##name(const stk_matmul *m, uint32_t tok, uint32_t n_tok) {                                                 \
        static const block_fn block[MAX_TILE] = {                                                                                \
            type##_1, type##_2, type##_3, type##_4, type##_5, type##_6, type##_7, type##_8};                                     \
        quant_pass(STK_TYPE_##type, block, m, tok, n_tok);                                                                       \
    }                                                                                                                            \
    static void matmul_##name(const stk_matmul *m) { run_passes(m, pass_##name); }

#endif
