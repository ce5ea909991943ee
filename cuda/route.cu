/*
 * route: the router's softmax and top-k, a warp a token: probabilities in shared memory, then n_top rounds of finding the best
 * that is not taken. Each lane looks after the experts lane, lane + 32, ... 8 bytes of shared memory an expert, at most 4,096 of
 * them.
 */
#include "cuda/launch.cuh"
#include "cuda/sum.cuh"

struct stk_candidate {
    float score;
    uint32_t id;
};

/* Whether a ranks before b: NaN last, ties by id; ~0 as an id is nobody. */
STK_DEVICE bool before(const stk_candidate &a, const stk_candidate &b) {
    if (a.id == ~0u || b.id == ~0u) return b.id == ~0u && a.id != ~0u;
    if (a.score > b.score || (b.score != b.score && a.score == a.score)) return true;
    if (b.score > a.score || (a.score != a.score && b.score == b.score)) return false;
    return a.id < b.id;
}

STK_DEVICE stk_candidate best_of_warp(stk_candidate c) {
#pragma unroll
    for (int i = 16; i; i /= 2) {
        stk_candidate other = {__shfl_xor_sync(STK_ALL_LANES, c.score, i), __shfl_xor_sync(STK_ALL_LANES, c.id, i)};
        if (before(other, c)) c = other;
    }
    return c;
}

STK_DEVICE void softmax(const float *x, uint32_t n, stk_shared<float> p, uint32_t lane) {
    float max = __int_as_float(0xff800000), s = 0;
    for (uint32_t i = lane; i < n; i += 32) max = x[i] > max ? x[i] : max;
#pragma unroll
    for (int i = 16; i; i /= 2) {
        float other = __shfl_xor_sync(STK_ALL_LANES, max, i);
        max = other > max ? other : max;
    }
    for (uint32_t i = lane; i < n; i += 32) p[i] = stk_expf(x[i] - max);
    __syncwarp();
    if (lane < STK_LANES)
        for (uint32_t i = lane; i < n; i += STK_LANES) s += p[i];
    s = __shfl_sync(STK_ALL_LANES, stk_add_lanes(s), 0);
    __syncwarp();
    for (uint32_t i = lane; i < n; i += 32) p[i] = p[i] / s;
}

/* grid: tokens. */
static __global__ void __launch_bounds__(32) stk_route(const stk_cuda_route p) {
    STK_SHARED_DYNAMIC(float, prob);
    const stk_shared<uint32_t> taken = stk_shared_as<uint32_t>(prob + p.n_expert);
    const uint32_t t = blockIdx.x, lane = threadIdx.x;
    softmax(p.scores + (uint64_t)t * p.n_expert, p.n_expert, prob, lane);
    for (uint32_t e = lane; e < p.n_expert; e += 32) taken[e] = 0;
    float sum = 0;
    for (uint32_t i = 0; i < p.n_top; i++) {
        stk_candidate best = {0, ~0u};
        for (uint32_t e = lane; e < p.n_expert; e += 32) {
            stk_candidate c = {prob[e], e};
            if (!taken[e] && before(c, best)) best = c;
        }
        best = best_of_warp(best);
        if (best.id % 32 == lane) {
            taken[best.id] = 1;
            p.top_ids[(uint64_t)t * p.n_top + i] = (uint16_t)best.id;
            p.top_scores[(uint64_t)t * p.n_top + i] = best.score;
            if (i < p.k) p.ids[(uint64_t)t * p.k + i] = (uint16_t)best.id;
        }
        if (i < p.k) sum += best.score;
    }
    __syncwarp();
    for (uint32_t i = lane; i < p.k; i += 32) {
        const float score = prob[p.top_ids[(uint64_t)t * p.n_top + i]];
        p.weights[(uint64_t)t * p.k + i] = (p.renormalise ? score / sum : score) * p.scale;
    }
}

int STK_TARGET(route)(const stk_cuda_route *a, stk_cuda_stream *stream) {
    enum { MAX_EXPERT = 4096 };
    if (a->n_expert > MAX_EXPERT || a->n_top > a->n_expert || a->k > a->n_top)
        return stk_fail(STK_EUNSUPPORTED, "a router of %u experts, %u chosen, %u listed", a->n_expert, a->k, a->n_top);
    if (a->n_tok == 0) return STK_OK;
    size_t bytes = (size_t)a->n_expert * 8;
    return STK_TARGET(check)(STK_LAUNCH(dim3(a->n_tok), dim3(32), bytes, stk_stream_of(stream), *a, stk_route), "router");
}
