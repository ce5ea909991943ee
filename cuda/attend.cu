/*
 * attend: attention in spans of 1,024 positions and the merge of the spans, with the arithmetic of cpu/ref.c for every query,
 * whichever others share its thread block.
 *
 * stk_attend: a thread block has NQ query vectors of one KV head (heads of the group, times consecutive tokens), one span, and 8
 * warps. In rounds of 8 tiles of 64 positions:
 *     1  warp = tile, lane = 2 positions: the scores of all NQ queries stay in registers; the maximum of each tile
 *     2  the running maximum up to the warp's tile, exp, the sum of the tile in the order of sums
 *     3  thread = dimension of the output (and a share of the queries): rescale and add the tiles in ascending order
 * Tokens of a thread block that belong to different sequences are done one sequence after another. Shared memory: NQ * (head_dim
 * + 512 + 24) * 4 bytes, at most 34 KiB.
 *
 * stk_merge: a thread block has a head of a token; thread = dimension.
 */
#include "cuda/kv.cuh"
#include "cuda/launch.cuh"
#include "cuda/quantize.cuh"
#include "cuda/sum.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, ROUND = WARPS * STK_KV_TILE, MAX_DIM = 512, TILES = STK_KV_SPAN / STK_KV_TILE };

struct stk_attend_args {
    stk_cuda_attend a;
    uint32_t n_span, heads; /* heads of a thread block */
};

/* The queries that a thread block is on: query i is head head0 + i % heads of token first + i / heads. */
struct stk_queries {
    uint32_t first, n, heads, head0, seq, head_kv;
    uint32_t most; /* positions of the span that any of them sees */
};

struct stk_attend_shared {
    stk_shared<float> q, p;            /* [NQ][head_dim], [NQ][ROUND] */
    stk_shared<float> top, scale, sum; /* [NQ][WARPS]: maximum, c and sum of each tile of the round */
    stk_shared<uint32_t> n_pos;        /* [NQ] visible positions of the span, 0 for none */
};

STK_DEVICE float2 two_keys(const uint8_t *tile, bool f16, uint32_t d, uint32_t lane) {
    if (f16) return __half22float2(*(const __half2 *)(tile + (d * STK_KV_TILE + 2 * lane) * 2));
    return *(const float2 *)(tile + (d * STK_KV_TILE + 2 * lane) * 4);
}

STK_DEVICE float value_at(const uint8_t *tile, bool f16, uint32_t i) {
    return f16 ? __half2float(__ushort_as_half(((const unsigned short *)tile)[i])) : ((const float *)tile)[i];
}

/* Scores of the lane's two positions of a tile. */
template <int NQ>
STK_DEVICE void scores(const uint8_t *tile, bool f16, stk_shared<float> q, uint32_t dim, float scale, float s[NQ][2]) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < NQ; i++) s[i][0] = s[i][1] = 0;
    for (uint32_t d = 0; d < dim; d += 4) {
        float2 k[4];
#pragma unroll
        for (int j = 0; j < 4; j++) k[j] = two_keys(tile, f16, d + j, lane);
#pragma unroll
        for (int i = 0; i < NQ; i++) {
            const float4 x = stk_shared_as<float4>(q + i * dim + d)[0];
            const float xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[i][0] = fmaf(xs[j], k[j].x, s[i][0]);
                s[i][1] = fmaf(xs[j], k[j].y, s[i][1]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < NQ; i++) {
        s[i][0] *= scale;
        s[i][1] *= scale;
    }
}

/* Visible positions of a tile that begins `base` positions into the span. */
STK_DEVICE uint32_t visible(uint32_t n_pos, uint32_t base) {
    return n_pos <= base ? 0 : min(n_pos - base, (uint32_t)STK_KV_TILE);
}

STK_DEVICE float max_of_warp(float m) {
#pragma unroll
    for (int i = 16; i; i /= 2) {
        float other = __shfl_xor_sync(STK_ALL_LANES, m, i);
        m = other > m ? other : m;
    }
    return m;
}

/* Steps 1 and 2 for one query; m: its maximum before the round. */
template <int NQ> STK_DEVICE void weights_of_tile(const stk_attend_shared &sh, int i, const float s[2], uint32_t n, float m) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const stk_shared<float> p = sh.p + i * ROUND + warp * STK_KV_TILE;
    float m2 = m, total = 0;
    for (uint32_t w = 0; w <= warp; w++) {
        float top = sh.top[i * WARPS + w];
        m = m2;
        m2 = top > m2 ? top : m2;
    }
    if (2 * lane < n) p[2 * lane] = stk_expf(s[0] - m2);
    if (2 * lane + 1 < n) p[2 * lane + 1] = stk_expf(s[1] - m2);
    __syncwarp();
    if (lane < STK_LANES)
        for (uint32_t j = lane; j < n; j += STK_LANES) total += p[j];
    total = stk_add_lanes(total);
    if (lane == 0) {
        sh.scale[i * WARPS + warp] = stk_expf(m - m2);
        sh.sum[i * WARPS + warp] = total;
    }
}

/* Step 3 for one tile: o[r] of query q0 + r * step, dimension d. */
template <int NQ>
STK_DEVICE void add_tile(const stk_attend_shared &sh, const uint8_t *tile, bool f16, uint32_t dim, uint32_t w, uint32_t base,
                         uint32_t d, uint32_t q0, uint32_t step, float o[NQ]) {
    uint32_t n[NQ], most = 0;
#pragma unroll
    for (int r = 0; r < NQ; r++) {
        const uint32_t q = q0 + r * step;
        n[r] = q < NQ ? visible(sh.n_pos[q], base) : 0;
        if (n[r]) o[r] *= sh.scale[q * WARPS + w];
        most = max(most, n[r]);
    }
    for (uint32_t j = 0; j < most; j++) {
        const float v = value_at(tile, f16, j * dim + d);
#pragma unroll
        for (int r = 0; r < NQ; r++)
            if (j < n[r]) o[r] = fmaf(sh.p[(q0 + r * step) * ROUND + w * STK_KV_TILE + j], v, o[r]);
    }
}

template <int NQ>
STK_DEVICE void load_queries(const stk_attend_args &p, const stk_attend_shared &sh, const stk_queries &q, uint32_t begin) {
    const uint32_t dim = p.a.kv.head_dim;
    for (uint32_t i = threadIdx.x; i < NQ * dim; i += THREADS) {
        const uint32_t query = i / dim < q.n ? i / dim : 0;
        sh.q[i] = p.a.q[((uint64_t)(q.first + query / q.heads) * p.a.n_head + q.head0 + query % q.heads) * dim + i % dim];
    }
    if (threadIdx.x < NQ) {
        const uint32_t end = threadIdx.x < q.n ? p.a.pos[q.first + threadIdx.x / q.heads] + 1 : 0;
        sh.n_pos[threadIdx.x] = end <= begin ? 0 : min(end - begin, (uint32_t)STK_KV_SPAN);
    }
}

/* Where the state of a query of the thread block goes. */
STK_DEVICE float *state_of(const stk_attend_args &p, const stk_queries &q, uint32_t query, uint32_t span) {
    const uint64_t row = (uint64_t)(q.first + query / q.heads) * p.a.n_head + q.head0 + query % q.heads;
    return p.a.state + (row * p.n_span + span) * (2 + p.a.kv.head_dim);
}

/* m, l and o of each query that sees the span. Every thread has all m; thread i has l of query i. */
template <int NQ, int DIMS>
STK_DEVICE void store_states(const stk_attend_args &p, const stk_attend_shared &sh, const stk_queries &q, uint32_t span,
                             uint32_t d0, uint32_t q0, uint32_t step, uint32_t wide, const float m[NQ], float l,
                             const float o[DIMS][NQ]) {
#pragma unroll
    for (int r = 0; r < NQ; r++) {
        const uint32_t query = q0 + r * step;
        if (q0 >= step || query >= q.n || sh.n_pos[query] == 0) continue;
        float *state = state_of(p, q, query, span);
#pragma unroll
        for (int i = 0; i < DIMS; i++)
            if (d0 + i * wide < p.a.kv.head_dim) state[2 + d0 + i * wide] = o[i][r];
    }
#pragma unroll
    for (int i = 0; i < NQ; i++) {
        if (threadIdx.x != (uint32_t)i || (uint32_t)i >= q.n || sh.n_pos[i] == 0) continue;
        float *state = state_of(p, q, (uint32_t)i, span);
        state[0] = m[i];
        state[1] = l;
    }
}

/* All queries of one sequence over the span that begins at position `begin`. DIMS: dimensions of a thread. */
template <int NQ, int DIMS, bool F16>
STK_DEVICE void attend_span(const stk_attend_args &p, const stk_attend_shared &sh, const stk_queries &q, uint32_t begin) {
    const stk_cuda_kv &kv = p.a.kv;
    const bool k_f16 = F16 || kv.k_f16, v_f16 = F16 || kv.v_f16;
    const uint32_t dim = kv.head_dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t wide = 8; /* a power of two that a row of dimensions fits into: threads of a share of the queries */
    while (wide < dim && wide < THREADS) wide *= 2;
    const uint32_t step = min((uint32_t)THREADS / wide, (uint32_t)NQ), d0 = threadIdx.x % wide, q0 = threadIdx.x / wide;
    float m[NQ], l = 0, o[DIMS][NQ] = {};
    load_queries<NQ>(p, sh, q, begin);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < NQ; i++) m[i] = __int_as_float(0xff800000);
    for (uint32_t round = 0; round < q.most; round += ROUND) {
        const uint32_t base = round + warp * STK_KV_TILE;
        float s[NQ][2] = {};
        if (base < q.most)
            scores<NQ>(stk_kv_tile(kv, q.seq, (begin + base) / STK_KV_TILE, q.head_kv), k_f16, sh.q, dim, p.a.scale, s);
#pragma unroll
        for (int i = 0; i < NQ; i++) {
            const uint32_t n = visible(sh.n_pos[i], base);
            float top = __int_as_float(0xff800000);
            if (2 * lane < n) top = s[i][0] > top ? s[i][0] : top;
            if (2 * lane + 1 < n) top = s[i][1] > top ? s[i][1] : top;
            top = max_of_warp(top);
            if (lane == 0) sh.top[i * WARPS + warp] = top;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < NQ; i++) weights_of_tile<NQ>(sh, i, s[i], visible(sh.n_pos[i], base), m[i]);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < NQ; i++)
            for (uint32_t w = 0; w < WARPS; w++) {
                float top = sh.top[i * WARPS + w];
                m[i] = top > m[i] ? top : m[i];
            }
        for (uint32_t w = 0; w < WARPS && round + w * STK_KV_TILE < q.most; w++) {
            const uint32_t at = round + w * STK_KV_TILE;
            const uint8_t *tile = stk_kv_tile(kv, q.seq, (begin + at) / STK_KV_TILE, q.head_kv) + kv.k_tile_bytes;
            if (threadIdx.x < NQ && visible(sh.n_pos[threadIdx.x], at))
                l = fmaf(l, sh.scale[threadIdx.x * WARPS + w], sh.sum[threadIdx.x * WARPS + w]);
#pragma unroll
            for (int i = 0; i < DIMS; i++)
                if (q0 < step && d0 + i * wide < dim) add_tile<NQ>(sh, tile, v_f16, dim, w, at, d0 + i * wide, q0, step, o[i]);
        }
        __syncthreads();
    }
    store_states<NQ, DIMS>(p, sh, q, begin / STK_KV_SPAN, d0, q0, step, wide, m, l, o);
    __syncthreads();
}

/* grid: tiles of NQ / heads tokens, n_head / heads, spans. */
template <int NQ, int DIMS, bool F16> static __global__ void __launch_bounds__(THREADS) stk_attend(const stk_attend_args p) {
    STK_SHARED_DYNAMIC(float, q);
    STK_SHARED(float, weights, NQ *ROUND);
    STK_SHARED(float, top, NQ *WARPS);
    STK_SHARED(float, scale, NQ *WARPS);
    STK_SHARED(float, sum, NQ *WARPS);
    STK_SHARED(uint32_t, n_pos, NQ);
    const stk_attend_shared sh = {q, weights, top, scale, sum, n_pos};
    const uint32_t tokens = NQ / p.heads, group = p.a.n_head / p.a.kv.n_head_kv, begin = blockIdx.z * STK_KV_SPAN;
    const uint32_t end = min((blockIdx.x + 1) * tokens, p.a.n_tok);
    for (uint32_t t = blockIdx.x * tokens, next; t < end; t = next) {
        stk_queries queries = {t, 0, p.heads, blockIdx.y * p.heads, p.a.seq[t], blockIdx.y * p.heads / group, 0};
        for (next = t; next < end && p.a.seq[next] == queries.seq; next++) queries.most = max(queries.most, p.a.pos[next] + 1);
        queries.n = (next - t) * p.heads;
        if (queries.most <= begin) continue;
        queries.most = min(queries.most - begin, (uint32_t)STK_KV_SPAN);
        attend_span<NQ, DIMS, F16>(p, sh, queries, begin);
    }
}

/* grid: heads, tokens. */
static __global__ void __launch_bounds__(MAX_DIM) stk_merge(const stk_attend_args p) {
    const uint32_t head = blockIdx.x, t = blockIdx.y, d = threadIdx.x, dim = p.a.kv.head_dim,
                   n_span = p.a.pos[t] / STK_KV_SPAN + 1;
    const float *state = p.a.state + ((uint64_t)t * p.a.n_head + head) * p.n_span * (2 + dim);
    float m = __int_as_float(0xff800000), l = 0, o = 0;
    for (uint32_t span = 0; span < n_span; span++, state += 2 + dim) {
        const float m2 = m > state[0] ? m : state[0], a = stk_expf(m - m2), b = stk_expf(state[0] - m2);
        m = m2;
        l = fmaf(state[1], b, l * a);
        o = fmaf(b, d < dim ? state[2 + d] : 0, o * a);
    }
    const float out = o / l;
    if (d < dim) p.a.out.f32[(uint64_t)t * p.a.out.f32_stride + head * dim + d] = out;
    if (p.a.out.act && dim % STK_GROUP == 0)
        stk_quantize_group(out, d % 32, (head * dim + d) / STK_GROUP, p.a.out.act + (uint64_t)t * p.a.out.act_stride,
                           p.a.n_head * dim);
}

template <int NQ, int DIMS, bool F16> static int launch(const stk_attend_args *p, stk_cuda_stream *stream) {
    dim3 grid(stk_ceil(p->a.n_tok, NQ / p->heads), p->a.n_head / p->heads, p->n_span);
    size_t bytes = (size_t)NQ * p->a.kv.head_dim * sizeof(float);
    return STK_TARGET(check)(STK_LAUNCH(grid, dim3(THREADS), bytes, stk_stream_of(stream), *p, stk_attend<NQ, DIMS, F16>),
                             "attention");
}

template <bool F16> static int launch_any(stk_attend_args *p, stk_cuda_stream *stream) {
    const uint32_t group = p->a.n_head / p->a.kv.n_head_kv;
    const uint32_t most = p->a.n_tok > 1 && p->a.kv.head_dim <= THREADS ? 8 : 4;
    p->heads = most;
    while (group % p->heads) p->heads /= 2;
    if (p->a.kv.head_dim > THREADS) return launch<4, 2, F16>(p, stream);
    return most == 8 ? launch<8, 1, F16>(p, stream) : launch<4, 1, F16>(p, stream);
}

int STK_TARGET(attend)(const stk_cuda_attend *a, stk_cuda_stream *stream) {
    const uint32_t dim = a->kv.head_dim;
    if (dim % 8 || dim > MAX_DIM || a->n_head % a->kv.n_head_kv)
        return stk_fail(STK_EUNSUPPORTED, "attention of %u heads of %u elements over %u KV heads", a->n_head, dim,
                        a->kv.n_head_kv);
    if (a->n_tok == 0) return STK_OK;
    stk_attend_args args = {*a, a->max_pos / STK_KV_SPAN + 1, 1};
    STK_TRY(a->kv.k_f16 && a->kv.v_f16 ? launch_any<true>(&args, stream) : launch_any<false>(&args, stream));
    dim3 grid(a->n_head, a->n_tok), block(stk_ceil(dim, 32) * 32);
    STK_TRY(STK_TARGET(check)(STK_LAUNCH(grid, block, 0, stk_stream_of(stream), args, stk_merge), "merge of attention"));
    if (!a->out.act || dim % STK_GROUP == 0) return STK_OK;
    const stk_cuda_quantize rows = {a->out, a->n_tok, a->n_head * dim};
    return STK_TARGET(quantize)(&rows, stream);
}
