/* tile: which rows a thread block of a product works on; shared by product.cu and tile.cu. */
#ifndef STK_CUDA_TILE_CUH
#define STK_CUDA_TILE_CUH

#include "cuda/launch.cuh"
#include "cuda/rows16.cuh"

/* Tokens [first, first + n) of expert e, or of the one matrix; false where there are none. */
STK_DEVICE bool stk_group_columns(const stk_cuda_group &g, uint32_t e, uint32_t first, uint32_t n, uint32_t per,
                                  const stk_cuda_rows &rows, stk_columns &x) {
    uint32_t begin = g.first[e] + first, end = g.first[e + 1];
    if (begin >= end) return false;
    x.rows = rows;
    x.pairs = g.pairs + begin;
    x.first = 0;
    x.count = min(end - begin, n);
    x.per = per;
    return true;
}

STK_DEVICE bool stk_product_columns(const stk_cuda_product &p, uint32_t e, uint32_t first, uint32_t n, stk_columns &x) {
    if (p.group.n_expert) return stk_group_columns(p.group, e, first, n, p.x_per, p.x, x);
    x.rows = p.x;
    x.pairs = nullptr;
    x.first = first;
    x.count = min(p.n_tok - first, n);
    x.per = 1;
    return true;
}

/* The row of `out` that a column goes to. */
STK_DEVICE uint32_t stk_product_out(const stk_cuda_product &, const stk_columns &x, uint32_t column) {
    return x.pairs ? x.pairs[column] : x.first + column;
}

/* Bytes of a stripe, as stk_stripe_bytes has them. */
template <enum stk_type T> STK_DEVICE uint64_t stk_stripe_size(uint32_t n_in) {
    uint32_t groups = n_in / STK_GROUP, block = n_in / STK_BLOCK, rest = groups % STK_GROUPS;
    switch (T) {
    case STK_TYPE_F32: return (uint64_t)n_in * STK_UNIT_BYTES;
    case STK_TYPE_F16:
    case STK_TYPE_BF16: return (uint64_t)(n_in / 2 + n_in % 2) * STK_UNIT_BYTES;
    case STK_TYPE_Q8_0: return (uint64_t)block * (68 * STK_UNIT_BYTES) + ((rest + 1) / 2 + 8 * rest) * STK_UNIT_BYTES;
    case STK_TYPE_Q4_0: return (uint64_t)block * (36 * STK_UNIT_BYTES) + ((rest + 1) / 2 + 4 * rest) * STK_UNIT_BYTES;
    case STK_TYPE_Q4_K: return (uint64_t)block * (36 * STK_UNIT_BYTES);
    case STK_TYPE_Q5_K: return (uint64_t)block * (44 * STK_UNIT_BYTES);
    default: return (uint64_t)block * (52 * STK_UNIT_BYTES) + (block + 1) / 2 * STK_UNIT_BYTES; /* Q6_K */
    }
}

template <enum stk_type T> STK_DEVICE const uint8_t *stk_product_stripe(const stk_cuda_product &p, uint32_t e, uint32_t stripe) {
    const uint8_t *matrix = p.group.n_expert ? (const uint8_t *)p.group.slot[e] + p.slot_offset : (const uint8_t *)p.weights;
    return matrix + stripe * stk_stripe_size<T>(p.n_in);
}

extern "C" int STK_TARGET(product_tile)(const stk_cuda_product *p, stk_cuda_stream *stream);

#endif
