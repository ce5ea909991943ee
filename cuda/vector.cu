/*
 * vector: operations on rows: norm, activation, quantization, embedding, combination. A thread block has a row, or a piece of
 * one; a warp has an activation group of 32 at a time wherever something is quantized.
 */
#include "cuda/launch.cuh"
#include "cuda/quantize.cuh"
#include "cuda/rows16.cuh"
#include "cuda/sum.cuh"
#include "cuda/tile.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, CHUNK = 4096 };

/* ---- Norm ---- */

/* Adds to element i what is to be added. */
STK_DEVICE float norm_input(const stk_cuda_norm &p, uint64_t row, uint32_t i) {
    float x = p.x[row * p.n + i];
    if (!p.y) return x;
    float y = p.y[row * p.n + i];
    if (p.bias) y += p.bias[i];
    x += y;
    p.x[row * p.n + i] = x;
    return x;
}

/* grid: rows. The 16 sums of squares are chains in 16 lanes of the first warp, from chunks in shared memory. 16 KiB. */
static __global__ void __launch_bounds__(THREADS) stk_rmsnorm(const stk_cuda_norm p) {
    STK_SHARED(float, chunk, CHUNK);
    STK_SHARED(float, factor, 1);
    const uint32_t row = blockIdx.x, lane = threadIdx.x % 32;
    float s = 0;
    for (uint32_t begin = 0; begin < p.n; begin += CHUNK) {
        const uint32_t n = min(p.n - begin, (uint32_t)CHUNK);
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) chunk[i] = norm_input(p, row, begin + i);
        __syncthreads();
        if (threadIdx.x < STK_LANES) {
#pragma unroll 8
            for (uint32_t i = threadIdx.x; i < n; i += STK_LANES) {
                float x = chunk[i];
                s = fmaf(x, x, s);
            }
        }
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        s = stk_add_lanes(s);
        if (lane == 0) factor[0] = 1.0f / sqrtf(s / (float)p.n + p.eps);
    }
    __syncthreads();
    const float r = factor[0];
    for (uint32_t g = threadIdx.x / 32; g * STK_GROUP < p.n; g += WARPS) {
        const uint32_t i = g * STK_GROUP + lane;
        float v = 0;
        if (i < p.n) {
            v = (p.x[(uint64_t)row * p.n + i] * r) * p.w[i];
            if (p.out.f32) p.out.f32[(uint64_t)row * p.out.f32_stride + i] = v;
        }
        if (p.out.act) stk_quantize_group(v, lane, g, p.out.act + (uint64_t)row * p.out.act_stride, p.n);
    }
}

int STK_TARGET(rmsnorm)(const stk_cuda_norm *a, stk_cuda_stream *stream) {
    if (a->n_row == 0) return STK_OK;
    return STK_TARGET(check)(STK_LAUNCH(dim3(a->n_row), dim3(THREADS), 0, stk_stream_of(stream), *a, stk_rmsnorm), "rmsnorm");
}

/* ---- Activation, quantization: grid: eighths of 256 elements of a row, rows ---- */

static __global__ void __launch_bounds__(THREADS) stk_silu_mul(const stk_cuda_silu p) {
    const uint32_t row = blockIdx.y, g = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, i = g * STK_GROUP + lane;
    if (g * STK_GROUP >= p.n) return;
    float v = 0;
    if (i < p.n) {
        v = stk_siluf(p.gate[(uint64_t)row * p.n + i]) * p.up[(uint64_t)row * p.n + i];
        if (p.out.f32) p.out.f32[(uint64_t)row * p.out.f32_stride + i] = v;
    }
    if (p.out.act) stk_quantize_group(v, lane, g, p.out.act + (uint64_t)row * p.out.act_stride, p.n);
}

int STK_TARGET(silu_mul)(const stk_cuda_silu *a, stk_cuda_stream *stream) {
    if (a->n_row == 0) return STK_OK;
    dim3 grid(stk_ceil(a->n, THREADS), a->n_row);
    return STK_TARGET(check)(STK_LAUNCH(grid, dim3(THREADS), 0, stk_stream_of(stream), *a, stk_silu_mul), "silu");
}

static __global__ void __launch_bounds__(THREADS) stk_quantize(const stk_cuda_quantize p) {
    const uint32_t row = blockIdx.y, g = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (g * STK_GROUP >= p.n) return;
    const float x = p.rows.f32[(uint64_t)row * p.rows.f32_stride + g * STK_GROUP + lane];
    stk_quantize_group(x, lane, g, p.rows.act + (uint64_t)row * p.rows.act_stride, p.n);
}

int STK_TARGET(quantize)(const stk_cuda_quantize *a, stk_cuda_stream *stream) {
    if (a->n_row == 0) return STK_OK;
    dim3 grid(stk_ceil(a->n, THREADS), a->n_row);
    return STK_TARGET(check)(STK_LAUNCH(grid, dim3(THREADS), 0, stk_stream_of(stream), *a, stk_quantize), "quantize");
}

/* ---- Embedding: a thread an element; as stk_dequantize_row rounds ---- */

template <enum stk_type T, bool ACT> struct stk_embed_impl;

template <enum stk_type T> struct stk_embed_impl<T, false> {
    static __device__ __forceinline__ float run(const uint8_t *stripe, uint32_t, uint32_t k, uint32_t row) {
        if (T == STK_TYPE_F32 || k % 2 == 0) return stk_format<T>::block::one(stripe, k, row);
        return stk_format<T>::block::pair(stripe, k - 1, row).y;
    }
};

template <enum stk_type T> struct stk_embed_impl<T, true> {
    static __device__ __forceinline__ float run(const uint8_t *stripe, uint32_t n_in, uint32_t k, uint32_t row) {
        typedef typename stk_format<T>::block F;
        const F w(stripe, n_in, k / STK_BLOCK);
        const int g = (int)(k % STK_BLOCK / STK_GROUP);
        const uint32_t u = k % STK_GROUP / 4;
        const uint32_t high = F::HIGH ? stk_word_at(w.high, F::high_unit(g, u), row) : 0;
        const uint32_t codes = F::decode(g, u, stk_word_at(w.low, F::low_unit(g, u), row), high);
        const int code = (int)(int8_t)(codes >> k % 4 * 8) - F::OFFSET;
        const typename F::row_scales s = w.scales(row);
        const float v = s.ws((int)(2 * g + (F::SIXTEENS ? k % STK_GROUP / 16 : 0))) * (float)code;
        return F::MINS ? v - s.wm(g) : v;
    }
};

template <enum stk_type T> static __global__ void __launch_bounds__(THREADS) stk_embed(const stk_cuda_embed p) {
    const uint32_t t = blockIdx.y, k = blockIdx.x * THREADS + threadIdx.x, row = (uint32_t)p.token[t];
    if (k >= p.n_in) return;
    const uint8_t *stripe = (const uint8_t *)p.weights + row / STK_STRIPE * stk_stripe_size<T>(p.n_in);
    p.out[(uint64_t)t * p.n_in + k] = stk_embed_impl<T, stk_reads_act(T)>::run(stripe, p.n_in, k, row % STK_STRIPE);
}

template <enum stk_type T> static int embed(const stk_cuda_embed *a, stk_cuda_stream *stream) {
    if (a->n_tok == 0) return STK_OK;
    dim3 grid(stk_ceil(a->n_in, THREADS), a->n_tok);
    return STK_TARGET(check)(STK_LAUNCH(grid, dim3(THREADS), 0, stk_stream_of(stream), *a, stk_embed<T>), "embedding");
}

int STK_TARGET(embed)(const stk_cuda_embed *a, stk_cuda_stream *stream) {
#define STK_CASE(T) return embed<T>(a, stream)
    STK_FOR_TYPE(a->type, STK_CASE,
                 return stk_fail(STK_EUNSUPPORTED, "no kernel of the GPU for an embedding of type %d", (int)a->type))
    return STK_OK;
}

/* ---- Combination: a thread an element ---- */

static __global__ void __launch_bounds__(THREADS) stk_combine(const stk_cuda_combine p) {
    const uint32_t t = blockIdx.y, i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= p.n) return;
    float sum = 0;
    for (uint32_t r = 0; r < p.k; r++) {
        const uint64_t pair = (uint64_t)t * p.k + r;
        const uint64_t row = p.row ? p.row[pair] : pair;
        sum = fmaf(p.weights[pair], p.out[row * p.n + i], sum);
    }
    p.x[(uint64_t)t * p.n + i] += sum;
}

int STK_TARGET(combine)(const stk_cuda_combine *a, stk_cuda_stream *stream) {
    if (a->n_tok == 0) return STK_OK;
    dim3 grid(stk_ceil(a->n, THREADS), a->n_tok);
    return STK_TARGET(check)(STK_LAUNCH(grid, dim3(THREADS), 0, stk_stream_of(stream), *a, stk_combine), "combination");
}
