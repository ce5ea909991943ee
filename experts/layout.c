/*
 * layout: rows of a file to stripes and back.
 *
 * A stripe holds 16 rows. Everything in it is a transposition of what the file has, by dwords (a unit: one dword of each of the
 * 16 rows, 64 bytes) or by halves (16 rows x 2 bytes), so that packing is exact and reversible. Rows beyond n_rows are zero
 * bytes.
 *
 *     F32    unit k: 16 x w[k]
 *     F16, BF16
 *            unit u: 16 x { w[2u], w[2u+1] }, an odd row filled up with a zero
 *     Q8_0   for each block of 256 weights (g groups of 32; fewer than 8 in a last short block):
 *              d f16 [g][16], zeros up to a multiple of 64 bytes
 *              g x 8 code units, unit u of a group: q[4u..4u+3]
 *     Q4_0   the same with g x 4 code units: byte i of unit u has weights 4u+i (low nibble) and 16+4u+i
 *     Q4_K   for each block of 256 weights, 2,304 bytes:
 *              d f16 [16], dmin f16 [16]
 *              3 units: the 12 scale bytes
 *              32 code units, unit 8c+u: byte i has weights 64c+4u+i (low nibble) and 64c+32+4u+i
 *     Q5_K   as Q4_K, 2,816 bytes, with 8 units of fifth bits between scales and codes:
 *              bit g of byte i of unit u belongs to weight 32g+4u+i
 *     Q6_K   d f16 [n_block][16] of the whole stripe, zeros up to a multiple of 64 bytes; then for each block, 3,328 bytes:
 *              4 units: the 16 scales
 *              16 units of high bits, unit 8h+u: bits 2j and 2j+1 of byte i belong to weight 128h+32j+4u+i
 *              32 units of low bits, unit 16h+8j+u: byte i has weights 128h+32j+4u+i (low nibble) and 128h+64+32j+4u+i
 *
 * Why 16 rows and the row as the lane: the int32 sum of a (row, group) is complete in one lane, so no kernel adds across lanes
 * and 8 lanes, 16 lanes, an AMX tile and a scalar loop round alike; a unit is one zmm register, two ymm registers or one row of a
 * tile.
 */
#include "experts/layout.h"

#include <emmintrin.h>
#include <string.h>

/* How the bytes of a file's block are dealt out. */
typedef struct format {
    uint32_t span;       /* file blocks that share a header of halves; 0: all blocks of the row */
    uint32_t n_half;     /* halves of a file block in the header */
    uint32_t half_at[2]; /* their offsets in the file block */
    uint32_t n_run;      /* runs of dwords of a file block, in the order of the stripe */
    struct {
        uint32_t at, n_word;
    } run[3];
} format;

static const format q8_0 = {8, 1, {0}, 1, {{2, 8}}};
static const format q4_0 = {8, 1, {0}, 1, {{2, 4}}};
static const format q4_k = {1, 2, {0, 2}, 2, {{4, 3}, {16, 32}}};
static const format q5_k = {1, 2, {0, 2}, 3, {{4, 3}, {16, 8}, {48, 32}}};
static const format q6_k = {0, 1, {208}, 3, {{192, 4}, {128, 16}, {0, 32}}};

/* NULL for the float types, whose rows are one run of dwords. */
static const format *format_of(enum stk_type type) {
    switch (type) {
    case STK_TYPE_Q8_0: return &q8_0;
    case STK_TYPE_Q4_0: return &q4_0;
    case STK_TYPE_Q4_K: return &q4_k;
    case STK_TYPE_Q5_K: return &q5_k;
    case STK_TYPE_Q6_K: return &q6_k;
    default: return NULL;
    }
}

enum { MAX_BLOCK_BYTES = 210 };

static uint64_t row_bytes(enum stk_type type, uint64_t n_in) {
    const stk_type_info *info = stk_type_info_get(type);
    return n_in / info->block * info->block_bytes;
}

static uint64_t header_bytes(const format *f, uint64_t n_block) {
    return stk_align_up(f->n_half * n_block * STK_STRIPE * 2, STK_UNIT_BYTES);
}

static uint64_t block_units(const format *f) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < f->n_run; i++) n += f->run[i].n_word;
    return n;
}

static uint64_t span_bytes(const format *f, uint64_t n_block) {
    return header_bytes(f, n_block) + n_block * block_units(f) * STK_UNIT_BYTES;
}

uint64_t stk_stripe_bytes(enum stk_type type, uint64_t n_in) {
    const format *f = format_of(type);
    if (!f) return stk_div_up(row_bytes(type, n_in), 4) * STK_UNIT_BYTES;
    uint64_t n_block = n_in / stk_type_info_get(type)->block, span = f->span ? f->span : n_block,
             rest = span ? n_block % span : 0;
    return (span ? n_block / span : 0) * span_bytes(f, span) + span_bytes(f, rest);
}

uint64_t stk_matrix_bytes(enum stk_type type, uint64_t n_rows, uint64_t n_in) {
    return stk_n_stripe(n_rows) * stk_stripe_bytes(type, n_in);
}

/* A row in scratch, filled up to whole lines; never a multiple of a page, where 16 rows would fight for the same cache lines. */
static uint64_t scratch_stride(enum stk_type type, uint64_t n_in) { return stk_align_up(row_bytes(type, n_in), 64) + 64; }

uint64_t stk_layout_scratch_bytes(enum stk_type type, uint64_t n_in) { return STK_STRIPE * scratch_stride(type, n_in); }

/* The stripes are at least as long as their rows, so with equal ends no stripe reaches the rows behind its own. */
uint64_t stk_layout_lead(enum stk_type type, uint64_t n_rows, uint64_t n_in) {
    return stk_matrix_bytes(type, n_rows, n_in) - n_rows * row_bytes(type, n_in);
}

/* Four dwords of four rows into four units. */
static void put_square(uint8_t *dst, const uint8_t *src, uint64_t stride) {
    __m128i a = _mm_loadu_si128((const __m128i *)src), b = _mm_loadu_si128((const __m128i *)(src + stride));
    __m128i c = _mm_loadu_si128((const __m128i *)(src + 2 * stride)), d = _mm_loadu_si128((const __m128i *)(src + 3 * stride));
    __m128i ab_low = _mm_unpacklo_epi32(a, b), ab_high = _mm_unpackhi_epi32(a, b);
    __m128i cd_low = _mm_unpacklo_epi32(c, d), cd_high = _mm_unpackhi_epi32(c, d);
    _mm_store_si128((__m128i *)dst, _mm_unpacklo_epi64(ab_low, cd_low));
    _mm_store_si128((__m128i *)(dst + STK_UNIT_BYTES), _mm_unpackhi_epi64(ab_low, cd_low));
    _mm_store_si128((__m128i *)(dst + 2 * STK_UNIT_BYTES), _mm_unpacklo_epi64(ab_high, cd_high));
    _mm_store_si128((__m128i *)(dst + 3 * STK_UNIT_BYTES), _mm_unpackhi_epi64(ab_high, cd_high));
}

/* n_word units from 16 rows `stride` bytes apart; returns the end of what it wrote. By squares of four: every read expert passes
 * here, beside which a drive may bring several GB a second. */
static uint8_t *put_words(uint8_t *dst, const uint8_t *src, uint64_t stride, uint64_t n_word) {
    uint64_t u = 0;
    for (; u + 4 <= n_word; u += 4, dst += 4 * STK_UNIT_BYTES)
        for (uint32_t r = 0; r < STK_STRIPE; r += 4) put_square(dst + 4 * r, src + r * stride + 4 * u, stride);
    for (; u < n_word; u++, dst += STK_UNIT_BYTES)
        for (uint32_t r = 0; r < STK_STRIPE; r++) memcpy(dst + 4 * r, src + r * stride + 4 * u, 4);
    return dst;
}

/* One span of n_block file blocks from 16 rows. */
static uint8_t *put_span(const format *f, uint64_t block_bytes, uint64_t n_block, const uint8_t *src, uint64_t stride,
                         uint8_t *dst) {
    uint8_t *end = dst + header_bytes(f, n_block);
    for (uint32_t h = 0; h < f->n_half; h++)
        for (uint64_t b = 0; b < n_block; b++)
            for (uint32_t r = 0; r < STK_STRIPE; r++, dst += 2)
                memcpy(dst, src + r * stride + b * block_bytes + f->half_at[h], 2);
    memset(dst, 0, (size_t)(end - dst));
    dst = end;
    for (uint64_t b = 0; b < n_block; b++)
        for (uint32_t i = 0; i < f->n_run; i++)
            dst = put_words(dst, src + b * block_bytes + f->run[i].at, stride, f->run[i].n_word);
    return dst;
}

static void put_stripe(enum stk_type type, uint64_t n_in, const uint8_t *src, uint64_t stride, uint8_t *dst) {
    const format *f = format_of(type);
    if (!f) {
        put_words(dst, src, stride, stk_div_up(row_bytes(type, n_in), 4));
        return;
    }
    const stk_type_info *info = stk_type_info_get(type);
    uint64_t n_block = n_in / info->block, span = f->span ? f->span : n_block;
    for (uint64_t b = 0; b < n_block; b += span)
        dst = put_span(f, info->block_bytes, STK_MIN(span, n_block - b), src + b * info->block_bytes, stride, dst);
}

void stk_layout_pack_stripes(enum stk_type type, uint64_t n_rows, uint64_t n_in, uint64_t begin, uint64_t end, const void *rows,
                             void *dst, void *scratch) {
    const uint8_t *from = rows;
    uint8_t *copy = scratch;
    uint64_t bytes = row_bytes(type, n_in), stride = scratch_stride(type, n_in), stripe_bytes = stk_stripe_bytes(type, n_in);
    uint8_t *to = (uint8_t *)dst + begin * stripe_bytes;
    for (uint64_t s = begin; s < end; s++, to += stripe_bytes) {
        uint64_t n = STK_MIN(n_rows - s * STK_STRIPE, STK_STRIPE);
        for (uint64_t r = 0; r < n; r++, from += bytes) {
            memcpy(copy + r * stride, from, bytes);
            memset(copy + r * stride + bytes, 0, stride - bytes);
        }
        memset(copy + n * stride, 0, (STK_STRIPE - n) * stride);
        put_stripe(type, n_in, copy, stride, to);
    }
}

void stk_layout_pack(enum stk_type type, uint64_t n_rows, uint64_t n_in, const void *src, void *dst, void *scratch) {
    stk_layout_pack_stripes(type, n_rows, n_in, 0, stk_n_stripe(n_rows), src, dst, scratch);
}

uint64_t stk_layout_behind(enum stk_type type, uint64_t n_in, uint64_t at, uint64_t shift) {
    uint64_t rows = STK_STRIPE * row_bytes(type, n_in), source = shift + at * rows, target = at * stk_stripe_bytes(type, n_in);
    return source > target ? stk_div_up(source - target, rows) : 0;
}

/* Block b of a span of n_block as the file has it. */
static void get_block(const format *f, uint64_t n_block, uint64_t b, const uint8_t *span, uint32_t row, uint8_t *block) {
    for (uint32_t h = 0; h < f->n_half; h++) memcpy(block + f->half_at[h], span + ((h * n_block + b) * STK_STRIPE + row) * 2, 2);
    const uint8_t *unit = span + header_bytes(f, n_block) + b * block_units(f) * STK_UNIT_BYTES;
    for (uint32_t i = 0; i < f->n_run; i++)
        for (uint32_t w = 0; w < f->run[i].n_word; w++, unit += STK_UNIT_BYTES)
            memcpy(block + f->run[i].at + 4 * w, unit + 4 * row, 4);
}

static void get_float_row(enum stk_type type, uint64_t n_in, const uint8_t *stripe, uint32_t row, float *out) {
    uint64_t per_word = 4 / stk_type_info_get(type)->block_bytes;
    for (uint64_t k = 0; k < n_in; k += per_word, stripe += STK_UNIT_BYTES)
        stk_dequantize_row(type, stripe + 4 * row, STK_MIN(per_word, n_in - k), out + k);
}

void stk_layout_row(enum stk_type type, uint64_t n_in, const void *matrix, uint64_t row, float *out) {
    const uint8_t *at = (const uint8_t *)matrix + row / STK_STRIPE * stk_stripe_bytes(type, n_in);
    const format *f = format_of(type);
    uint32_t lane = (uint32_t)(row % STK_STRIPE);
    if (!f) {
        get_float_row(type, n_in, at, lane, out);
        return;
    }
    const stk_type_info *info = stk_type_info_get(type);
    uint8_t block[MAX_BLOCK_BYTES];
    uint64_t n_block = n_in / info->block, span = f->span ? f->span : n_block;
    for (uint64_t first = 0; first < n_block; first += span) {
        uint64_t n = STK_MIN(span, n_block - first);
        for (uint64_t b = 0; b < n; b++, out += info->block) {
            get_block(f, n, b, at, lane, block);
            stk_dequantize_row(type, block, info->block, out);
        }
        at += span_bytes(f, n);
    }
}
