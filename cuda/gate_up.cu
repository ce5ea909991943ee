/*
 * gate_up: hidden = silu(gate x) * up x of all experts of a launch, and its quantized form for the down product.
 *
 * A thread block has 32 rows of gate and of up, which are one activation group of the result, of one expert, for TOK tokens. Its
 * warps share out the blocks of 256 weights of the four stripes; then a warp a token does the rest of the group. 16 KiB of shared
 * memory; any n_in and n_ff.
 */
#include "cuda/launch.cuh"
#include "cuda/quantize.cuh"
#include "cuda/tile.cuh"

enum { WARPS = 8, STRIPES = 4 /* two of gate, two of up */ };

template <int TOK> struct stk_up_round {
    enum { BLOCKS = TOK == 1 ? 32 : 4 };
};

/* The group of 32 hidden values of one token, by a warp. sums [4][TOK][16]. */
template <int TOK>
STK_DEVICE void stk_finish_group(const stk_cuda_gate_up &p, stk_shared<float> sums, uint32_t column, uint32_t pair) {
    const uint32_t lane = threadIdx.x % 32, row = blockIdx.x * STK_GROUP + lane, at = lane / 16;
    float h = 0;
    if (row < p.n_ff) {
        float gate = sums[(at * TOK + column) * STK_STRIPE + lane % 16],
              up = sums[((2 + at) * TOK + column) * STK_STRIPE + lane % 16];
        h = stk_siluf(gate) * up;
        if (p.hidden.f32) p.hidden.f32[(uint64_t)pair * p.hidden.f32_stride + row] = h;
    }
    if (p.hidden.act) stk_quantize_group(h, lane, blockIdx.x, p.hidden.act + (uint64_t)pair * p.hidden.act_stride, p.n_ff);
}

/* grid: groups of 32 rows, tiles of TOK tokens, experts. */
template <enum stk_type T, int TOK> static __global__ void __launch_bounds__(WARPS * 32) stk_gate_up(const stk_cuda_gate_up p) {
    enum { BLOCKS = stk_up_round<TOK>::BLOCKS, VALUES = TOK * STK_STRIPE, ALL = STRIPES * VALUES };
    STK_SHARED(float, part, STRIPES *BLOCKS *VALUES); /* [stripe][block][token][row] */
    STK_SHARED(float, sums, ALL);
    const uint32_t warp = threadIdx.x / 32, n_block = (p.n_in + STK_BLOCK - 1) / STK_BLOCK;
    const uint32_t n_stripe = (p.n_ff + STK_STRIPE - 1) / STK_STRIPE;
    const uint32_t step = stk_rows16_blocks<T, TOK>();
    const uint8_t *slot = (const uint8_t *)p.group.slot[blockIdx.z];
    stk_columns x;
    if (!stk_group_columns(p.group, blockIdx.z, blockIdx.y * TOK, TOK, p.group.k, p.x, x)) return;
    float sum[2] = {0, 0};
    for (uint32_t begin = 0; begin < n_block; begin += BLOCKS) {
        const uint32_t n = min(n_block - begin, (uint32_t)BLOCKS), n_item = (n + step - 1) / step;
        for (uint32_t i = warp; i < STRIPES * n_item; i += WARPS) {
            const uint32_t s = i / n_item, b = i % n_item * step, stripe = 2 * blockIdx.x + s % 2;
            if (stripe >= n_stripe) continue;
            const uint8_t *w = slot + (s / 2 ? p.up_offset : p.gate_offset) + stripe * stk_stripe_size<T>(p.n_in);
            stk_rows16<T, TOK>(w, p.n_in, begin + b, x, part + (s * BLOCKS + b) * VALUES);
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t value = threadIdx.x + j * WARPS * 32, s = value / VALUES;
            if (value < ALL && 2 * blockIdx.x + s % 2 < n_stripe)
                for (uint32_t b = 0; b < n; b++) sum[j] += part[(s * BLOCKS + b) * VALUES + value % VALUES];
        }
        if (begin + BLOCKS < n_block) __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 2; j++)
        if (threadIdx.x + j * WARPS * 32 < ALL) sums[threadIdx.x + j * WARPS * 32] = sum[j];
    __syncthreads();
    if (warp < x.count) stk_finish_group<TOK>(p, sums, warp, x.pairs[warp]);
}

template <enum stk_type T, int TOK> static int launch(const stk_cuda_gate_up *p, stk_cuda_stream *stream) {
    dim3 grid(stk_ceil(p->n_ff, STK_GROUP), stk_ceil(p->group.max_tok, TOK), p->group.n_expert), block(WARPS * 32);
    return STK_TARGET(check)(STK_LAUNCH(grid, block, 0, stk_stream_of(stream), *p, stk_gate_up<T, TOK>), "gate and up");
}

template <enum stk_type T> static int launch_any(const stk_cuda_gate_up *p, stk_cuda_stream *stream) {
    return p->group.max_tok == 1 ? launch<T, 1>(p, stream) : launch<T, 8>(p, stream);
}

int STK_TARGET(gate_up)(const stk_cuda_gate_up *p, stk_cuda_stream *stream) {
    if (p->group.n_expert == 0 || p->group.max_tok == 0) return STK_OK;
    if (p->gate_type != p->up_type)
        return stk_fail(STK_EUNSUPPORTED, "gate of type %d and up of type %d need a product each", (int)p->gate_type,
                        (int)p->up_type);
#define STK_CASE(T) return launch_any<T>(p, stream)
    STK_FOR_TYPE(p->gate_type, STK_CASE,
                 return stk_fail(STK_EUNSUPPORTED, "no kernel of the GPU for weights of type %d", (int)p->gate_type))
    return STK_OK;
}
