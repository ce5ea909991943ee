/*
 * tile: products of many tokens with quantized weights, on the integer tensor cores.
 *
 * A thread block has 8 stripes, a warp each, and 32 tokens. For every block of 256 weights the tokens' codes, scales and sums go
 * to shared memory once; a warp reads its weights once from global memory straight into the fragments of the mma and uses each of
 * them for 4 tiles of 8 tokens. The sums stay in registers: a warp has all blocks of its rows, in ascending order. 14 KiB of
 * shared memory.
 */
#include "cuda/tile.cuh"

enum { WARPS = 8, TILES = 4, TOKENS = 8 * TILES };

/* Of TOKENS tokens and one block. Rows of codes are 68 words so that the 32 lanes of a fragment hit 32 banks. */
enum { CODE_WORDS = STK_BLOCK / 4 + 4 };

struct stk_stage {
    stk_shared<uint32_t> codes; /* [TOKENS][CODE_WORDS] */
    stk_shared<float> d, sum;   /* [STK_GROUPS][TOKENS] */
    stk_shared<int> neg;        /* [2 * STK_GROUPS][TOKENS] */
};

template <class F>
STK_DEVICE void stage(const stk_stage &s, const stk_columns &x, uint32_t n_in, uint32_t block, uint32_t n_group) {
    /* 8 threads a token: each has a group. */
    const uint32_t token = threadIdx.x / STK_GROUPS, g = threadIdx.x % STK_GROUPS;
    if (g >= n_group) return;
    const stk_act act(x.act(token), n_in);
    const uint32_t at = block * STK_GROUPS + g;
    const uint4 *q = (const uint4 *)(act.q + at * STK_GROUP);
    const stk_shared<uint4> codes = stk_shared_as<uint4>(s.codes + token * CODE_WORDS + g * 8);
    codes[0] = q[0];
    codes[1] = q[1];
    s.d[g * TOKENS + token] = act.d[at];
    if (F::MINS) s.sum[g * TOKENS + token] = act.sum[at];
    if (F::OFFSET) {
        s.neg[2 * g * TOKENS + token] = act.neg16[2 * at];
        s.neg[(2 * g + 1) * TOKENS + token] = act.neg16[2 * at + 1];
    }
}

/* The fold of one group of a tile of 8 tokens; column: of this lane's first token. */
template <class F>
STK_DEVICE void tile_group(const stk_stage &s, int g, uint32_t tile, const uint32_t a[4], const float ws[2][2], const float wm[2],
                           float t[4]) {
    const uint32_t lane = threadIdx.x % 32, token = tile * 8 + lane / 4, column = tile * 8 + lane % 4 * 2;
    const uint32_t code = token * CODE_WORDS + g * 8 + lane % 4;
    const uint32_t b[2] = {s.codes[code], s.codes[code + 4]};
    int sums[2][4], neg[2][2] = {{0, 0}, {0, 0}};
    if (F::OFFSET) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            neg[0][i] = s.neg[(2 * g + i) * TOKENS + column];
            neg[1][i] = s.neg[(2 * g + i) * TOKENS + column + 1];
        }
    }
    stk_group_sums<F>(sums, a, b, neg);
    const float2 d = stk_shared_as<float2>(s.d + g * TOKENS + column)[0];
    float2 sum = make_float2(0, 0);
    if (F::MINS) sum = stk_shared_as<float2>(s.sum + g * TOKENS + column)[0];
#pragma unroll
    for (int i = 0; i < 4; i++)
        t[i] = stk_fold<F>(t[i], sums[0][i], sums[1][i], ws[i / 2][0], ws[i / 2][1], wm[i / 2], i % 2 ? d.y : d.x,
                           i % 2 ? sum.y : sum.x);
}

/* out += the sums of one block. */
template <class F> STK_DEVICE void tile_block(const F &w, const stk_stage &s, float out[TILES][4]) {
    const uint32_t lane = threadIdx.x % 32, row = lane / 4 * 2;
    const typename F::row_scales s0 = w.scales(row), s1 = w.scales(row + 1);
    float t[TILES][4];
#pragma unroll
    for (int j = 0; j < TILES; j++) t[j][0] = t[j][1] = t[j][2] = t[j][3] = 0;
#pragma unroll
    for (int g = 0; g < STK_GROUPS; g++) {
        if ((uint32_t)g >= w.n_group) break;
        uint32_t a[4];
        stk_load_a(w, g, lane % 4, row, a);
        const float ws[2][2] = {{s0.ws(2 * g), s0.ws(2 * g + 1)}, {s1.ws(2 * g), s1.ws(2 * g + 1)}};
        const float wm[2] = {s0.wm(g), s1.wm(g)};
#pragma unroll
        for (int j = 0; j < TILES; j++) tile_group<F>(s, g, j, a, ws, wm, t[j]);
    }
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) out[j][i] += t[j][i];
}

/* grid: groups of 8 stripes, tiles of 32 tokens, experts. Warps beyond the last stripe help with staging alone. */
template <enum stk_type T> static __global__ void __launch_bounds__(WARPS * 32) stk_tile(const stk_cuda_product p) {
    typedef typename stk_format<T>::block F;
    STK_SHARED(uint32_t, codes, TOKENS * CODE_WORDS);
    STK_SHARED(float, d, STK_GROUPS *TOKENS);
    STK_SHARED(float, sum, STK_GROUPS *TOKENS);
    STK_SHARED(int, neg, 2 * STK_GROUPS * TOKENS);
    const stk_stage s = {codes, d, sum, neg};
    const uint32_t lane = threadIdx.x % 32, stripe = blockIdx.x * WARPS + threadIdx.x / 32, n_group = p.n_in / STK_GROUP;
    const bool has_rows = stripe * STK_STRIPE < p.n_rows;
    stk_columns x;
    if (!stk_product_columns(p, blockIdx.z, blockIdx.y * TOKENS, TOKENS, x)) return;
    const uint8_t *w = stk_product_stripe<T>(p, blockIdx.z, has_rows ? stripe : 0);
    float out[TILES][4] = {};
    for (uint32_t b = 0; b * STK_GROUPS < n_group; b++) {
        if (b) __syncthreads();
        stage<F>(s, x, p.n_in, b, n_group - b * STK_GROUPS);
        __syncthreads();
        if (has_rows) tile_block(F(w, p.n_in, b), s, out);
    }
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t column = j * 8 + lane % 4 * 2 + i % 2, row = stripe * STK_STRIPE + lane / 4 * 2 + i / 2;
            if (column < x.count && row < p.n_rows)
                p.out[(uint64_t)stk_product_out(p, x, column) * p.out_stride + row] = out[j][i];
        }
}

template <enum stk_type T> static int launch(const stk_cuda_product *p, stk_cuda_stream *stream) {
    uint32_t n_tok = p->group.n_expert ? p->group.max_tok : p->n_tok, n_expert = p->group.n_expert ? p->group.n_expert : 1;
    dim3 grid(stk_ceil(p->n_rows, WARPS * STK_STRIPE), stk_ceil(n_tok, TOKENS), n_expert), block(WARPS * 32);
    return STK_TARGET(check)(STK_LAUNCH(grid, block, 0, stk_stream_of(stream), *p, stk_tile<T>), "product of many tokens");
}

int STK_TARGET(product_tile)(const stk_cuda_product *p, stk_cuda_stream *stream) {
#define STK_CASE(T) return launch<T>(p, stream)
    STK_FOR_QUANTIZED(p->type, STK_CASE, return stk_fail(STK_EUNSUPPORTED, "no such kernel for weights of type %d", (int)p->type))
    return STK_OK;
}
