/*
 * rotate: between the products of q, k, v and attention: bias, head norm, RoPE, and the append to the KV cache. A warp has a head
 * of a token: heads of q, then of k, then of v. 2 KiB of shared memory a warp; head_dim at most 512.
 */
#include "cuda/kv.cuh"
#include "cuda/launch.cuh"
#include "cuda/sum.cuh"

enum { WARPS = 4, MAX_DIM = 512 };

/* The head in shared memory, normalised in place as cpu/ref.c says. */
STK_DEVICE void norm_head(stk_shared<float> x, const float *w, uint32_t n, float eps, uint32_t lane) {
    float s = 0;
    if (lane < STK_LANES)
        for (uint32_t i = lane; i < n; i += STK_LANES) {
            float v = x[i];
            s = fmaf(v, v, s);
        }
    s = __shfl_sync(STK_ALL_LANES, stk_add_lanes(s), 0);
    const float r = 1.0f / sqrtf(s / (float)n + eps);
    __syncwarp();
    for (uint32_t i = lane; i < n; i += 32) x[i] = (x[i] * r) * w[i];
    __syncwarp();
}

STK_DEVICE void rope_head(stk_shared<float> x, const float *table, uint32_t n_rot, bool neox, uint32_t lane) {
    for (uint32_t i = lane; i < n_rot / 2; i += 32) {
        const uint32_t ia = neox ? i : 2 * i, ib = neox ? n_rot / 2 + i : 2 * i + 1;
        const float cos = table[2 * i], sin = table[2 * i + 1], a = x[ia], b = x[ib];
        x[ia] = fmaf(a, cos, -(b * sin));
        x[ib] = fmaf(a, sin, b * cos);
    }
    __syncwarp();
}

STK_DEVICE void store_kv(void *tile, bool f16, uint32_t at, float x) {
    if (f16)
        ((uint16_t *)tile)[at] = stk_f32_f16_sat(x);
    else
        ((float *)tile)[at] = x;
}

/* grid: fours of heads, tokens. */
static __global__ void __launch_bounds__(WARPS * 32) stk_rotate(const stk_cuda_rotate p) {
    STK_SHARED(float, heads, WARPS *MAX_DIM);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = blockIdx.y, dim = p.kv.head_dim, n_kv = p.kv.n_head_kv;
    uint32_t head = blockIdx.x * WARPS + warp;
    if (head >= p.n_head + 2 * n_kv) return;
    const bool is_q = head < p.n_head, is_k = !is_q && head < p.n_head + n_kv;
    head -= is_q ? 0 : is_k ? p.n_head : p.n_head + n_kv;
    float *x = (is_q ? p.q : is_k ? p.k : p.v) + ((uint64_t)t * (is_q ? p.n_head : n_kv) + head) * dim;
    const float *bias = is_q ? p.q_bias : is_k ? p.k_bias : p.v_bias, *norm = is_q ? p.q_norm : is_k ? p.k_norm : nullptr;
    const stk_shared<float> h = heads + warp * MAX_DIM;
    for (uint32_t i = lane; i < dim; i += 32) h[i] = bias ? x[i] + bias[head * dim + i] : x[i];
    __syncwarp();
    if (norm) norm_head(h, norm, dim, p.eps, lane);
    if (is_q || is_k) rope_head(h, p.table + (uint64_t)p.pos[t] * p.n_rot, p.n_rot, p.neox, lane);
    uint8_t *tile = is_q ? nullptr : stk_kv_tile(p.kv, p.seq[t], p.pos[t] / STK_KV_TILE, head);
    const uint32_t pos = p.pos[t] % STK_KV_TILE;
    for (uint32_t i = lane; i < dim; i += 32) {
        x[i] = h[i];
        if (is_k) store_kv(tile, p.kv.k_f16, i * STK_KV_TILE + pos, h[i]);
        if (!is_q && !is_k) store_kv(tile + p.kv.k_tile_bytes, p.kv.v_f16, pos * dim + i, h[i]);
    }
}

int STK_TARGET(rotate)(const stk_cuda_rotate *a, stk_cuda_stream *stream) {
    if (a->kv.head_dim > MAX_DIM)
        return stk_fail(STK_EUNSUPPORTED, "heads of %u elements; at most %d are possible", a->kv.head_dim, MAX_DIM);
    if (a->n_tok == 0) return STK_OK;
    dim3 grid(stk_ceil(a->n_head + 2 * a->kv.n_head_kv, WARPS), a->n_tok);
    return STK_TARGET(check)(STK_LAUNCH(grid, dim3(WARPS * 32), 0, stk_stream_of(stream), *a, stk_rotate), "rotation");
}
