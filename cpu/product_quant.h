/*
 * product_quant: the products of quantized weights, for every vector width. Rules: ref.c; bytes of a stripe: experts/layout.c.
 *
 * A vector holds a dword of codes of LANES rows. For each group of 32 weights its 8 vectors of codes are unpacked one after another, and each is
 * multiplied with all tokens of the tile before the next: unpacking is shared, and the tokens' sums are independent chains.
 *
 * A sum becomes a float without a conversion: it starts at the bits of the float MAGIC = 1.5 * 2^23 (plus the correction for codes that are
 * stored with an offset), so it ends as the bits of F = MAGIC + S, exactly, as |S| < 2^22. Then fma(ws, F, -(ws * MAGIC)) is ws * S
 * rounded once, because ws * MAGIC is exact.
 *
 * Private to the *_avx2.c, *_avxvnni.c and *_avx512.c files.
 */
#ifndef STK_CPU_PRODUCT_QUANT_H
#define STK_CPU_PRODUCT_QUANT_H

#include "cpu/cpu.h"
#include "cpu/dot.h"
#include "cpu/tiles.h"

enum {
    MAGIC_BITS = 0x4b400000,
    HALVES = STK_STRIPE / LANES,    /* vectors side by side in a unit */
    GROUPS = STK_BLOCK / STK_GROUP, /* of a full block */
    UNITS = STK_GROUP / 4,          /* vectors of codes of a group */
    /* Where 255 * 127 does not saturate, high nibbles of Q4_K stay in place and the scale is divided by 16 instead. */
    NIBBLE_IN_PLACE = DOT_VNNI,
};
#define MAGIC 0x1.8p23f

/* What is subtracted from stored codes. */
INLINE int32_t code_offset(enum stk_type type) {
    switch (type) {
    case STK_TYPE_Q8_0: return DOT_VNNI ? 128 : 0; /* added by code_unit */
    case STK_TYPE_Q4_0: return 8;
    case STK_TYPE_Q6_K: return 32;
    default: return 0;
    }
}

INLINE bool has_mins(enum stk_type type) { return type == STK_TYPE_Q4_K || type == STK_TYPE_Q5_K; }

/* LANES rows of a block. */
typedef struct rows_block {
    const uint8_t *codes, *high; /* high: the fifth bits of Q5_K, the high bits of Q6_K */
    const uint8_t *d;            /* Q8_0, Q4_0: f16 [n_group][16] */
    float scale[16][LANES];      /* K-quants: of each group, or each 16 */
    float min[GROUPS][LANES];
} rows_block;

INLINE vi unit_at(const uint8_t *p, uint32_t u) { return vi_load(p + u * STK_UNIT_BYTES); }

/*
 * Unit u of group g: four codes of each row. How a group is unpacked depends on its place in a period of groups, `phase`, which is constant where
 * g may not be.
 */
INLINE vi code_unit(enum stk_type type, const rows_block *b, uint32_t g, uint32_t phase, uint32_t u) {
    const vi low4 = vi_set1(0x0f0f0f0f), low5 = vi_set1(0x1f1f1f1f), low6 = vi_set1(0x3f3f3f3f);
    const uint32_t first = g - phase; /* of the period */
    vi c, h;
    switch (type) {
    case STK_TYPE_Q8_0:
        c = unit_at(b->codes, g * 8 + u);
        return DOT_VNNI ? vi_xor(c, vi_set1((int32_t)0x80808080)) : c;
    case STK_TYPE_Q4_0:
        c = unit_at(b->codes, g * 4 + u % 4);
        return vi_and(u < 4 ? c : vi_shr(c, 4), low4);
    case STK_TYPE_Q4_K:
        c = unit_at(b->codes, first * 4 + u);
        if (phase == 0) return vi_and(c, low4);
        return NIBBLE_IN_PLACE ? vi_and(c, vi_set1((int32_t)0xf0f0f0f0)) : vi_and(vi_shr(c, 4), low4);
    case STK_TYPE_Q5_K:
        c = unit_at(b->codes, first * 4 + phase / 2 * 8 + u);
        h = vi_shr(vi_shl_by(unit_at(b->high, u), vi_set1(first ? 0 : 4)), phase);
        return vi_and(vi_select(low4, phase % 2 ? vi_shr(c, 4) : c, h), low5);
    default: /* Q6_K */
        c = unit_at(b->codes, first * 4 + phase % 2 * 8 + u);
        h = unit_at(b->high, first * 2 + u);
        h = phase < 3 ? vi_shl(h, 4 - 2 * phase) : vi_shr(h, 2);
        return vi_and(vi_select(low4, phase < 2 ? c : vi_shr(c, 4), h), low6);
    }
}

/* Groups of a period. */
INLINE uint32_t period_of(enum stk_type type) {
    return type == STK_TYPE_Q5_K || type == STK_TYPE_Q6_K ? 4 : type == STK_TYPE_Q4_K ? 2 : 1;
}

/* Adds the products of units [u, u + n) of group g to the sums of all tokens. */
INLINE void add_units(enum stk_type type, const rows_block *b, uint32_t g, uint32_t phase, uint32_t u, uint32_t n, uint32_t n_tok,
                      const int8_t *const *q, vi *sum) {
#if DOT_VNNI
    UNROLL
    for (uint32_t i = u; i < u + n; i++) {
        vi c = code_unit(type, b, g, phase, i);
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) sum[t] = dot4(sum[t], c, load_i32(q[t] + g * STK_GROUP + 4 * i));
    }
#else
    const uint32_t span = type == STK_TYPE_Q8_0 ? 1 : type == STK_TYPE_Q6_K ? 2 : type == STK_TYPE_Q5_K ? 4 : 8;
    UNROLL
    for (uint32_t s = u; s < u + n; s += span) {
        vi pairs[MAX_TILE];
        UNROLL
        for (uint32_t i = s; i < s + span; i++) {
            vi c = code_unit(type, b, g, phase, i);
            UNROLL
            for (uint32_t t = 0; t < n_tok; t++) {
                vi p = dot4_pairs(c, load_i32(q[t] + g * STK_GROUP + 4 * i), type == STK_TYPE_Q8_0);
                pairs[t] = i == s ? p : _mm256_add_epi16(pairs[t], p);
            }
        }
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) sum[t] = vi_add(sum[t], _mm256_madd_epi16(pairs[t], _mm256_set1_epi16(1)));
    }
#endif
}

/* The activations of a tile at one block. */
typedef struct tile_x {
    const int8_t *q[MAX_TILE];
    const float *d[MAX_TILE], *sum[MAX_TILE];
    int32_t start[MAX_TILE][STK_BLOCK / 16]; /* of the integer sums: of each 16 for Q6_K, else of group g at 2g */
} tile_x;

/* t[i] += group g of the block. */
INLINE void add_group(enum stk_type type, const rows_block *b, uint32_t g, uint32_t phase, uint32_t n_tok, const tile_x *x, vf *acc) {
    const bool by16 = type == STK_TYPE_Q6_K, offset = code_offset(type) != 0;
    vf ws = type == STK_TYPE_Q8_0 || type == STK_TYPE_Q4_0 ? vf_from_f16(b->d + g * 32) : vf_load(b->scale[by16 ? 2 * g : g]);
    vf ws_magic = vf_mul(ws, vf_set1(-MAGIC));
    vi sum[MAX_TILE];
    vf u[MAX_TILE];
    UNROLL
    for (uint32_t t = 0; t < n_tok; t++) sum[t] = vi_set1(offset ? x->start[t][2 * g] : MAGIC_BITS);
    add_units(type, b, g, phase, 0, by16 ? UNITS / 2 : UNITS, n_tok, x->q, sum);
    UNROLL
    for (uint32_t t = 0; t < n_tok; t++) u[t] = vf_fma(ws, vf_bits(sum[t]), ws_magic);
    if (by16) {
        vf ws1 = vf_load(b->scale[2 * g + 1]);
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) sum[t] = vi_set1(x->start[t][2 * g + 1]);
        add_units(type, b, g, phase, UNITS / 2, UNITS / 2, n_tok, x->q, sum);
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) u[t] = vf_fma(ws1, vf_sub(vf_bits(sum[t]), vf_set1(MAGIC)), u[t]);
    }
    UNROLL
    for (uint32_t t = 0; t < n_tok; t++) {
        acc[t] = vf_fma(u[t], vf_set1(x->d[t][g]), acc[t]);
        if (has_mins(type)) acc[t] = vf_fnma(vf_load(b->min[g]), vf_set1(x->sum[t][g]), acc[t]);
    }
}

/* Byte i of each dword, as a float. */
#define BYTE_F32(v, i) vf_from_i32(vi_and(vi_shr(v, 8 * (i)), vi_set1(0xff)))

/* d, dmin and the 12 bytes of scales of Q4_K and Q5_K (the bit layout is in experts/quant.c). */
INLINE void read_scales_mins(enum stk_type type, const uint8_t *at, uint32_t half, rows_block *b) {
    const vi low4 = vi_set1(0x0f0f0f0f), low6 = vi_set1(0x3f3f3f3f);
    const uint8_t *units = at + STK_UNIT_BYTES + half * 4 * LANES;
    vi s0 = vi_load(units), s1 = vi_load(units + STK_UNIT_BYTES), s2 = vi_load(units + 2 * STK_UNIT_BYTES);
    vi sc[2] = {vi_and(s0, low6), vi_and(vi_select(low4, s2, vi_shr(s0, 2)), low6)};
    vi mn[2] = {vi_and(s1, low6), vi_and(vi_select(low4, vi_shr(s2, 4), vi_shr(s1, 2)), low6)};
    vf d = vf_from_f16(at + half * 2 * LANES), dmin = vf_from_f16(at + 2 * STK_STRIPE + half * 2 * LANES);
    vf d_odd = type == STK_TYPE_Q4_K && NIBBLE_IN_PLACE ? vf_mul(d, vf_set1(0x1p-4f)) : d;
    UNROLL
    for (uint32_t g = 0; g < GROUPS; g++) {
        vf_store(b->scale[g], vf_mul(g % 2 ? d_odd : d, BYTE_F32(sc[g / 4], g % 4)));
        vf_store(b->min[g], vf_mul(dmin, BYTE_F32(mn[g / 4], g % 4)));
    }
}

/* The 16 int8 scales of Q6_K. */
INLINE void read_scales16(const uint8_t *units, const uint8_t *d_at, uint32_t half, rows_block *b) {
    vf d = vf_from_f16(d_at);
    UNROLL
    for (uint32_t i = 0; i < 16; i++) {
        vi v = vi_load(units + i / 4 * STK_UNIT_BYTES + half * 4 * LANES);
        vf_store(b->scale[i], vf_mul(d, vf_from_i32(vi_sar(vi_shl(v, 24 - 8 * (i % 4)), 24))));
    }
}

/* A position in a stripe. */
typedef struct cursor {
    const uint8_t *at, *d; /* d: the header of Q6_K */
} cursor;

INLINE uint32_t block_bytes(enum stk_type type, uint32_t n_group) {
    switch (type) {
    case STK_TYPE_Q8_0: return (n_group + 1) / 2 * STK_UNIT_BYTES + n_group * 8 * STK_UNIT_BYTES;
    case STK_TYPE_Q4_0: return (n_group + 1) / 2 * STK_UNIT_BYTES + n_group * 4 * STK_UNIT_BYTES;
    case STK_TYPE_Q4_K: return (4 + 32) * STK_UNIT_BYTES;
    case STK_TYPE_Q5_K: return (4 + 8 + 32) * STK_UNIT_BYTES;
    default: return (4 + 16 + 32) * STK_UNIT_BYTES;
    }
}

INLINE void read_rows(enum stk_type type, cursor c, uint32_t n_group, uint32_t half, rows_block *b) {
    const uint8_t *at = c.at + half * 4 * LANES;
    switch (type) {
    case STK_TYPE_Q8_0:
    case STK_TYPE_Q4_0:
        b->d = c.at + half * 2 * LANES;
        b->codes = at + (n_group + 1) / 2 * STK_UNIT_BYTES;
        break;
    case STK_TYPE_Q4_K:
    case STK_TYPE_Q5_K:
        read_scales_mins(type, c.at, half, b);
        b->high = at + 4 * STK_UNIT_BYTES;
        b->codes = b->high + (type == STK_TYPE_Q5_K ? 8 * STK_UNIT_BYTES : 0);
        break;
    default:
        read_scales16(c.at, c.d + half * 2 * LANES, half, b);
        b->high = at + 4 * STK_UNIT_BYTES;
        b->codes = b->high + 16 * STK_UNIT_BYTES;
    }
}

/* Where the integer sums of a block start: MAGIC - offset * (sum of q). A row of activations is readable to the next 64 bytes. */
INLINE void set_start(enum stk_type type, const int32_t *neg16, int32_t start[STK_BLOCK / 16]) {
    UNROLL
    for (uint32_t h = 0; h < HALVES; h++) {
        vi n = vi_load(neg16 + h * LANES);
        if (type != STK_TYPE_Q6_K) n = vi_add(n, V(srli_epi64)(n, 32));
        vi offset = vi_shl(n, (uint32_t)__builtin_ctz((uint32_t)code_offset(type)));
        vi_store(start + h * LANES, vi_add(vi_set1(MAGIC_BITS), offset));
    }
}

/* row[half][t] += the block's product. The groups of a period are unpacked differently, so that loop is unrolled. */
INLINE void add_block(enum stk_type type, cursor c, uint32_t n_group, uint32_t n_tok, const tile_x *x, vf row[HALVES][MAX_TILE]) {
    UNROLL
    for (uint32_t half = 0; half < HALVES; half++) {
        rows_block b;
        vf acc[MAX_TILE];
        read_rows(type, c, n_group, half, &b);
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) acc[t] = vf_zero();
        for (uint32_t g = 0; g < n_group; g += period_of(type)) {
            UNROLL
            for (uint32_t i = 0; i < period_of(type); i++) add_group(type, &b, g + i, i, n_tok, x, acc);
        }
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) row[half][t] = vf_add(row[half][t], acc[t]);
    }
}

/* One stripe times n_tok tokens from tok on. */
INLINE void stripe_product(enum stk_type type, uint32_t n_tok, const stk_matmul *m, uint32_t stripe, uint32_t tok) {
    const bool k_quant = type != STK_TYPE_Q8_0 && type != STK_TYPE_Q4_0;
    const stk_act_layout act = stk_act_layout_of(m->n_in);
    const uint32_t n_group = m->n_in / STK_GROUP;
    const uint8_t *at = (const uint8_t *)m->weights + stripe * stk_stripe_bytes(type, m->n_in);
    cursor c = {type == STK_TYPE_Q6_K ? at + stk_align_up(n_group / GROUPS * 2 * STK_STRIPE, STK_UNIT_BYTES) : at, at};
    vf row[HALVES][MAX_TILE];
    tile_x x;
    UNROLL
    for (uint32_t h = 0; h < HALVES; h++) {
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) row[h][t] = vf_zero();
    }
    for (uint32_t g = 0; g < n_group; g += GROUPS) {
        const uint32_t n = k_quant ? GROUPS : STK_MIN(n_group - g, (uint32_t)GROUPS);
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) {
            const uint8_t *a = m->x[tok + t];
            x.q[t] = (const int8_t *)a + g * STK_GROUP;
            x.d[t] = (const float *)(a + act.scale_offset) + g;
            x.sum[t] = (const float *)(a + act.sum_offset) + g;
            if (code_offset(type)) set_start(type, (const int32_t *)(a + act.neg16_offset) + 2 * g, x.start[t]);
        }
        add_block(type, c, n, n_tok, &x, row);
        c.at += block_bytes(type, n);
        c.d += 2 * STK_STRIPE;
    }
    UNROLL
    for (uint32_t h = 0; h < HALVES; h++) {
        UNROLL
        for (uint32_t t = 0; t < n_tok; t++) store_rows(m, stripe * STK_STRIPE + h * LANES, tok + t, row[h][t]);
    }
}

#define QUANT_TILE(type, n)                                                                                                      \
    static void type##_##n(const stk_matmul *m, uint32_t stripe, uint32_t tok) { stripe_product(STK_TYPE_##type, n, m, stripe, tok); }
#define QUANT_PRODUCT(type, name)                                                                                                \
    QUANT_TILE(type, 1)                                                                                                          \
    QUANT_TILE(type, 2)                                                                                                          \
    QUANT_TILE(type, 3)                                                                                                          \
    QUANT_TILE(type, 4)                                                                                                          \
    QUANT_TILE(type, 5)                                                                                                          \
    QUANT_TILE(type, 6)                                                                                                          \
    QUANT_TILE(type, 7)                                                                                                          \
    QUANT_TILE(type, 8)                                                                                                          \
    static void matmul_##name(const stk_matmul *m) {                                                                             \
        static const tile_fn tile[MAX_TILE] = {type##_1, type##_2, type##_3, type##_4, type##_5, type##_6, type##_7, type##_8};  \
        run_tiles(m, tile, stk_act_layout_of(m->n_in).bytes);                                                                    \
    }

QUANT_PRODUCT(Q8_0, q8_0)
QUANT_PRODUCT(Q4_0, q4_0)
QUANT_PRODUCT(Q4_K, q4_k)
QUANT_PRODUCT(Q5_K, q5_k)
QUANT_PRODUCT(Q6_K, q6_k)

#endif
