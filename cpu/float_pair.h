/* float_pair: reading float weights from a stripe (experts/layout.c). Private to the files that include lanes.h. */
#ifndef STK_CPU_FLOAT_PAIR_H
#define STK_CPU_FLOAT_PAIR_H

#include "cpu/cpu.h"
#include "cpu/lanes_math.h"

/* Weights k and k + 1 (k even) of LANES rows. */
INLINE void load_pair(enum stk_type type, const uint8_t *w, uint32_t k, vf *w0, vf *w1) {
    if (type == STK_TYPE_F32) {
        *w0 = vf_load((const float *)(w + k * STK_UNIT_BYTES));
        *w1 = vf_load((const float *)(w + (k + 1) * STK_UNIT_BYTES));
        return;
    }
    w += k / 2 * STK_UNIT_BYTES;
    if (type == STK_TYPE_F16) {
        vf rows0 = vf_from_f16(w), rows1 = vf_from_f16(w + 2 * LANES);
        *w0 = vf_even(rows0, rows1);
        *w1 = vf_odd(rows0, rows1);
    } else {
        vi pair = vi_load(w);
        *w0 = vf_bits(vi_shl(pair, 16));
        *w1 = vf_bits(vi_and(pair, vi_set1((int32_t)0xffff0000)));
    }
}

/* Weight k, the last one of an odd number. */
INLINE vf load_last(enum stk_type type, const uint8_t *w, uint32_t k) {
    vf w0, w1;
    if (type == STK_TYPE_F32) return vf_load((const float *)(w + k * STK_UNIT_BYTES));
    load_pair(type, w, k, &w0, &w1);
    return w0;
}

#endif
