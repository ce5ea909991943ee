/*
 * ref: the specification of all kernels. Every other table returns the same bits, where all NaNs count as one value. Round to
 * nearest even, no flush to zero, no contraction: each operation named here is one rounding, and fma(a, b, c) = a * b + c is one.
 *
 * Activations of quantized products, by groups of 32 (ref_matmul.c):
 *     any x not finite:  d = NaN, q = 0, sum = NaN
 *     amax < 2^-100:     d = 0,   q = 0, sum = 0            (amax = max |x|)
 *     else:              d = amax / 127, id = 127 / amax, q = rint(x * id) half to even, sum = d * (float)(sum of q)
 *     neg16 = -(sum of q) over each 16
 * |q| <= 127, so that int16 sums of 256 and u8 x s8 pairs of codes below 128 are exact.
 *
 * Products, row by row; rows, tokens and stripes are independent of one another and of how they are dealt out:
 *     row = +0; for each block of 256 weights, ascending (the last may be shorter): t = +0; ... ; row += t
 *     float weights:     t = fma(w, x, t), k ascending
 *     quantized, for each group of 32, ascending, S = the exact sum of (code - offset) * q:
 *         Q8_0, Q4_0:    t = fma(d_w * S, d, t)                                   offset 0, 8
 *         Q4_K, Q5_K:    t = fma((d_w * sc) * S, d, t); t = fma(-(dmin * m), sum, t)
 *         Q6_K:          t = fma(fma(d_w * sc1, S1, (d_w * sc0) * S0), d, t)      offset 32, a scale and an S per 16
 *     Here ws * S (d_w * S, (d_w * sc) * S, (d_w * sc0) * S0) stands for fma(ws, M + S, -(ws * M)), M = 1.5 * 2^23: the same
 * number for every finite ws (M + S and ws * M are exact), NaN for an infinite one; with it no sum needs a conversion from
 * integer to float.
 *
 * Sum of n (ref_vector.c): 16 lanes from +0; lane i adds elements i, i + 16, ... ascending (s + x; squares: fma(x, x, s)); lanes
 * beyond n add nothing; then lanes i += i + 8, i += i + 4, i += i + 2, i += i + 1. Max: a > b ? a : b, in any order.
 *     rmsnorm:           r = 1 / sqrt(sum of squares / n + eps); (x * r) * w
 *     softmax:           p = exp(x - max); p / sum of p
 *     silu_mul:          silu(gate) * up; exp and silu as in src/numeric.h
 *     rope:              (a, b) -> (fma(a, cos, -(b * sin)), fma(a, sin, b * cos))
 *
 * Attention of one query over a span (ref_attend.c):
 *     m = -inf, l = +0, o = +0; for each tile of 64 positions, ascending, over the n of them that the query sees:
 *         s_j = (fma over d ascending from +0 of q_d * k_dj) * scale
 *         m2 = max(m, max s_j); c = exp(m - m2); p_j = exp(s_j - m2)
 *         l = fma(l, c, sum of p); o_d = o_d * c, then o_d = fma(p_j, v_jd, o_d), j ascending; m = m2
 * What a query does not see has no influence, whatever bytes lie there. Where l is NaN, m may be anything: o is NaN, too.
 */
#include "cpu/ref.h"

#include "cpu/tables.h"

const stk_cpu_ops stk_cpu_ops_ref = {
    .name = "ref",
    .quantize = stk_ref_quantize,
    .quantize_groups = stk_ref_quantize_groups,
    .matmul_f32 = stk_ref_matmul_f32,
    .matmul_f16 = stk_ref_matmul_f16,
    .matmul_bf16 = stk_ref_matmul_bf16,
    .matmul_q8_0 = stk_ref_matmul_q8_0,
    .matmul_q4_0 = stk_ref_matmul_q4_0,
    .matmul_q4_k = stk_ref_matmul_q4_k,
    .matmul_q5_k = stk_ref_matmul_q5_k,
    .matmul_q6_k = stk_ref_matmul_q6_k,
    .rmsnorm = stk_ref_rmsnorm,
    .silu_mul = stk_ref_silu_mul,
    .add = stk_ref_add,
    .axpy = stk_ref_axpy,
    .rope = stk_ref_rope,
    .softmax = stk_ref_softmax,
    .f32_to_f16 = stk_ref_f32_to_f16,
    .attend = stk_ref_attend,
};
