/*
 * kv: the keys and values of all sequences, in pages of 64 positions with a page table per sequence.
 *
 * A page holds 64 positions of every layer and KV head: K as [head_dim][64] (the position is the lane of a score), V as
 * [64][head_dim] (the dimension is the lane of an output), each f16 or f32. All memory is taken at open.
 *
 * Who may call it: src/. Threads: reserve, commit, trim by the owner; stk_kv_put and the getters by any worker during a step.
 */
#ifndef STK_KV_H
#define STK_KV_H

#include "src/mem.h"

enum { STK_PAGE = 64, STK_SPAN = 1024, STK_SPAN_PAGES = STK_SPAN / STK_PAGE };

typedef struct stk_kv_config {
    uint32_t n_layer, n_head_kv, head_dim_k, head_dim_v;
    uint32_t n_ctx; /* positions of all sequences together */
    uint32_t n_seq_max;
    bool k_f16, v_f16;
} stk_kv_config;

/* What a cache of these limits consists of: pages, and a tile of one head of one layer in a page, K and V behind it. */
typedef struct stk_kv_tile_bytes {
    uint64_t k, v;
} stk_kv_tile_bytes;
uint32_t stk_kv_n_page(const stk_kv_config *config);
stk_kv_tile_bytes stk_kv_tile(const stk_kv_config *config);

typedef struct stk_kv stk_kv;

/* Bytes that open will reserve; 0 where no layer's tiles are kept here. */
uint64_t stk_kv_bytes(const stk_kv_config *config);
int stk_kv_open(stk_kv **out, const stk_kv_config *config, bool lock) STK_CHECKED;
void stk_kv_close(stk_kv **kv);

void stk_kv_get_config(const stk_kv *kv, stk_kv_config *config);

/* Positions committed. */
uint32_t stk_kv_length(const stk_kv *kv, uint32_t seq);

/* [n_seq_max, stk_kv_n_page()] the page of each 64 positions, the same for every layer wherever its tiles are. */
const uint32_t *stk_kv_table(const stk_kv *kv);

/* Gives `seq` pages for positions up to n_pos, not yet counted in its length. Errors: STK_EFULL; pages of this call stay with the
 * sequence until stk_kv_trim. */
int stk_kv_reserve(stk_kv *kv, uint32_t seq, uint32_t n_pos) STK_CHECKED;
/* The length becomes n_pos. */
void stk_kv_commit(stk_kv *kv, uint32_t seq, uint32_t n_pos);
/* Forgets positions from n_pos on and pages reserved beyond. */
void stk_kv_trim(stk_kv *kv, uint32_t seq, uint32_t n_pos);

/* Stores one position's key [head_dim_k] and value [head_dim_v] of one head, f32, rounded to the cache's types; `half` has room
 * for the longer one. */
typedef void (*stk_f32_to_f16_fn)(const float *x, uint32_t n, uint16_t *out);
void stk_kv_put(stk_kv *kv, uint32_t layer, uint32_t head, uint32_t seq, uint32_t pos, const float *k, const float *v,
                stk_f32_to_f16_fn to_f16, uint16_t *half);

/* Tiles of pages [first, first + n) of `seq`, for one layer and head. */
void stk_kv_tiles(const stk_kv *kv, uint32_t layer, uint32_t head, uint32_t seq, uint32_t first, uint32_t n, const void **k,
                  const void **v);

#endif
