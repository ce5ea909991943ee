/*
 * layout: how weights lie in memory: one layout for dense weights, RAM slots and VRAM slots, for every kernel width.
 *
 * A matrix of n_rows x n_in is cut into stripes of 16 rows (the last one filled up with zero rows). Inside a stripe the lane is
 * the row: four consecutive weights (int8 and 4-, 5-, 6-bit codes), two (16-bit floats) or one (32-bit floats) of each of the 16
 * rows stand side by side in units of 64 bytes:
 *
 *     unit u:  row 0: w[4u..4u+3] | row 1: w[4u..4u+3] | ... | row 15: w[4u..4u+3]
 *
 * which is at once a zmm register for vpdpbusd, two ymm registers, a row of an AMX B tile, and the A fragments of an integer mma.
 * (The exact bytes of each format are drawn in layout.c. The figures that led here are in the same place.)
 *
 * Who may call it: every folder. Pure functions, no state, no allocation.
 */
#ifndef STK_LAYOUT_H
#define STK_LAYOUT_H

#include "experts/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    STK_STRIPE = 16, /* rows of a stripe */
    STK_UNIT_BYTES = 64,
    STK_BLOCK = 256,        /* weights of a block of the addition tree (cpu/ref.c) */
    STK_GROUP = 32,         /* weights that share an activation scale */
    STK_SLOT_ALIGN = 256,   /* of a matrix in a slot */
    STK_DIRECT_ALIGN = 4096 /* largest alignment that direct reads are given room for */
};

/* Bytes of one stripe, a multiple of 64; and of the whole matrix. n_in must suit the type (stk_type_row_bytes has been asked). */
uint64_t stk_stripe_bytes(enum stk_type type, uint64_t n_in);
uint64_t stk_matrix_bytes(enum stk_type type, uint64_t n_rows, uint64_t n_in);
static inline uint64_t stk_n_stripe(uint64_t n_rows) { return (n_rows + STK_STRIPE - 1) / STK_STRIPE; }

/*
 * Rows as in a file -> stripes. dst is 64-byte aligned. src and dst may overlap if src - dst >= stk_layout_lead() (the stripes
 * are made in ascending order through a copy of one stripe's rows in `scratch`, stk_layout_scratch_bytes() bytes).
 */
void stk_layout_pack(enum stk_type type, uint64_t n_rows, uint64_t n_in, const void *src, void *dst, void *scratch);
/* The stripes [begin, end) of it alone; `rows` are those of stripe `begin`. */
void stk_layout_pack_stripes(enum stk_type type, uint64_t n_rows, uint64_t n_in, uint64_t begin, uint64_t end, const void *rows,
                             void *dst, void *scratch);
/* In place, with src - dst = shift: of how many stripes just before `at` packing from `at` on overwrites rows. Two workers may
 * pack the stripes before and from `at` on at the same time if the rows of these have been copied away. */
uint64_t stk_layout_behind(enum stk_type type, uint64_t n_in, uint64_t at, uint64_t shift);
uint64_t stk_layout_scratch_bytes(enum stk_type type, uint64_t n_in);
/* How many bytes before its source the destination of an in-place pack must start: what the stripes are longer than the rows. */
uint64_t stk_layout_lead(enum stk_type type, uint64_t n_rows, uint64_t n_in);

/* out [n_in] f32 = row `row` of a packed matrix (embedding lookup). */
void stk_layout_row(enum stk_type type, uint64_t n_in, const void *matrix, uint64_t row, float *out);

/*
 * An activation row as the products read it. For float weights: f32 [n_in rounded up to even], padding zero. For quantized
 * weights: groups of 32, one block of memory (n_in is a multiple of 32):
 *
 *     int8_t codes[n_in]       q, |q| <= 127
 *     float  scale[n_in/32]    d
 *     float  sum[n_in/32]      d * (float)(sum of q over the group)
 *     int32_t neg16[n_in/16]   minus the sum of q over 16
 *
 * each part starting at the next multiple of 64 bytes.
 */
typedef struct stk_act_layout {
    uint32_t scale_offset, sum_offset, neg16_offset, bytes;
} stk_act_layout;
static inline STK_ANYWHERE stk_act_layout stk_act_layout_of(uint32_t n_in) {
    stk_act_layout a;
    a.scale_offset = (n_in + 63u) & ~63u;
    a.sum_offset = (a.scale_offset + n_in / 32u * 4u + 63u) & ~63u;
    a.neg16_offset = (a.sum_offset + n_in / 32u * 4u + 63u) & ~63u;
    a.bytes = (a.neg16_offset + n_in / 16u * 4u + 63u) & ~63u;
    return a;
}
/* Whether products with this weight type read quantized activations. */
static inline STK_ANYWHERE bool stk_type_is_quantized(enum stk_type t) {
    return t != STK_TYPE_F32 && t != STK_TYPE_F16 && t != STK_TYPE_BF16;
}

#ifdef __cplusplus
}
#endif
#endif
