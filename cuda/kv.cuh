/* kv: where a tile of the KV cache lies (src/engine/kv.h): K [head_dim][64], then V [64][head_dim]. */
#ifndef STK_CUDA_KV_CUH
#define STK_CUDA_KV_CUH

#include "cuda/cuda.h"
#include "cuda/prelude.cuh"

enum { STK_KV_TILE = 64, STK_KV_SPAN = 1024 };

STK_DEVICE uint8_t *stk_kv_tile(const stk_cuda_kv &kv, uint32_t seq, uint32_t page, uint32_t head) {
    return kv.pages + kv.table[(uint64_t)seq * kv.table_stride + page] * kv.page_bytes + kv.layer_offset + head * kv.head_bytes;
}

#endif
