/*
 * product: out = W x for one matrix or for the matrices of experts, by the number of tokens:
 *
 *     1          stk_product<T, 1>   a thread block has one stripe and one token; its warps share out the blocks of 256 weights
 *     2 .. 8     stk_product<T, 8>   the same with 8 tokens at a time (mma)
 *     more       stk_tile<T>         tile.cu
 *
 * A matrix of few columns has fewer warps a thread block instead of idle ones. 8 KiB of shared memory; any n_in.
 */
#include "cuda/launch.cuh"
#include "cuda/rows16.cuh"
#include "cuda/tile.cuh"

/* Blocks of 256 weights whose sums are kept until they are added up, and warps that compute them. */
template <int TOK> struct stk_round {
    enum { BLOCKS = TOK == 1 ? 64 : 16, WARPS = TOK == 1 ? 4 : 8 };
};

/* grid: stripes, tiles of TOK tokens, experts. Thread i < 16 TOK adds up row i % 16 of token i / 16. */
template <enum stk_type T, int TOK>
static __global__ void __launch_bounds__(stk_round<TOK>::WARPS * 32) stk_product(const stk_cuda_product p) {
    enum { BLOCKS = stk_round<TOK>::BLOCKS, VALUES = TOK * STK_STRIPE };
    STK_SHARED(float, part, BLOCKS *VALUES);
    const uint32_t stripe = blockIdx.x, warp = threadIdx.x / 32, n_warp = blockDim.x / 32, step = stk_rows16_blocks<T, TOK>();
    const uint32_t n_block = (p.n_in + STK_BLOCK - 1) / STK_BLOCK;
    stk_columns x;
    if (!stk_product_columns(p, blockIdx.z, blockIdx.y * TOK, TOK, x)) return;
    const uint8_t *w = stk_product_stripe<T>(p, blockIdx.z, stripe);
    /* A thread of a small thread block has several values. */
    float sum[2] = {0, 0};
    for (uint32_t begin = 0; begin < n_block; begin += BLOCKS) {
        uint32_t n = min(n_block - begin, (uint32_t)BLOCKS);
        for (uint32_t b = warp * step; b < n; b += n_warp * step) stk_rows16<T, TOK>(w, p.n_in, begin + b, x, part + b * VALUES);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t value = threadIdx.x + i * blockDim.x;
            for (uint32_t b = 0; value < VALUES && b < n; b++) sum[i] += part[b * VALUES + value];
        }
        if (begin + BLOCKS < n_block) __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t value = threadIdx.x + i * blockDim.x, column = value / STK_STRIPE,
                 row = stripe * STK_STRIPE + value % STK_STRIPE;
        if (value < VALUES && column < x.count && row < p.n_rows)
            p.out[(uint64_t)stk_product_out(p, x, column) * p.out_stride + row] = sum[i];
    }
}

template <enum stk_type T, int TOK> static int launch(const stk_cuda_product *p, stk_cuda_stream *stream) {
    uint32_t n_tok = p->group.n_expert ? p->group.max_tok : p->n_tok, n_expert = p->group.n_expert ? p->group.n_expert : 1;
    uint32_t n_item = stk_ceil(stk_ceil(p->n_in, STK_BLOCK), stk_rows16_blocks<T, TOK>());
    uint32_t least = TOK == 1 ? 1 : 2, warps = STK_MAX(STK_MIN(n_item, (uint32_t)stk_round<TOK>::WARPS), least);
    dim3 grid(stk_ceil(p->n_rows, STK_STRIPE), stk_ceil(n_tok, TOK), n_expert), block(32 * warps);
    return STK_TARGET(check)(STK_LAUNCH(grid, block, 0, stk_stream_of(stream), *p, stk_product<T, TOK>), "product");
}

template <enum stk_type T> static int launch_any(const stk_cuda_product *p, stk_cuda_stream *stream) {
    uint32_t n_tok = p->group.n_expert ? p->group.max_tok : p->n_tok;
    if (n_tok == 0 || p->n_rows == 0) return STK_OK;
    if (n_tok == 1) return launch<T, 1>(p, stream);
    if (n_tok <= 8 || !stk_reads_act(T)) return launch<T, 8>(p, stream);
    return STK_TARGET(product_tile)(p, stream);
}

int STK_TARGET(product)(const stk_cuda_product *p, stk_cuda_stream *stream) {
#define STK_CASE(T) return launch_any<T>(p, stream)
    STK_FOR_TYPE(p->type, STK_CASE,
                 return stk_fail(STK_EUNSUPPORTED, "no kernel of the GPU for weights of type %d", (int)p->type))
    return STK_OK;
}
