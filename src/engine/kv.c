/* kv: pages of keys and values. */
#include "kv.h"

#include <stdlib.h>
#include <string.h>

struct stk_kv {
    stk_kv_config config;
    stk_map map;
    uint64_t k_tile_bytes, v_tile_bytes; /* of one head of one layer in one page */
    uint64_t page_bytes;
    uint32_t n_page, n_free;
    uint32_t *free_pages; /* [n_page] the first n_free are free */
    uint32_t *table;      /* [n_seq_max, n_page] page numbers */
    uint32_t *n_table;    /* [n_seq_max] pages held */
    uint32_t *length;     /* [n_seq_max] */
};

uint32_t stk_kv_n_page(const stk_kv_config *c) {
    /* Every sequence may leave part of its last page unused. */
    return (c->n_ctx + STK_PAGE - 1) / STK_PAGE + c->n_seq_max - 1;
}

static uint64_t tile_bytes(uint32_t head_dim, bool f16) { return (uint64_t)head_dim * STK_PAGE * (f16 ? 2 : 4); }

stk_kv_tile_bytes stk_kv_tile(const stk_kv_config *c) {
    return (stk_kv_tile_bytes){tile_bytes(c->head_dim_k, c->k_f16), tile_bytes(c->head_dim_v, c->v_f16)};
}

uint64_t stk_kv_bytes(const stk_kv_config *c) {
    stk_kv_tile_bytes tile = stk_kv_tile(c);
    return (tile.k + tile.v) * c->n_head_kv * c->n_layer * stk_kv_n_page(c);
}

int stk_kv_open(stk_kv **out, const stk_kv_config *config, bool lock) {
    int rc = STK_OK;
    *out = NULL;
    stk_kv *kv = calloc(1, sizeof *kv);
    if (!kv) return stk_fail(STK_ENOMEM, "KV cache: out of memory");
    kv->config = *config;
    kv->n_page = stk_kv_n_page(config);
    kv->k_tile_bytes = tile_bytes(config->head_dim_k, config->k_f16);
    kv->v_tile_bytes = tile_bytes(config->head_dim_v, config->v_f16);
    kv->page_bytes = (kv->k_tile_bytes + kv->v_tile_bytes) * config->n_head_kv * config->n_layer;
    kv->free_pages = calloc(kv->n_page, sizeof *kv->free_pages);
    kv->table = calloc((size_t)kv->n_page * config->n_seq_max, sizeof *kv->table);
    kv->n_table = calloc(config->n_seq_max, sizeof *kv->n_table);
    kv->length = calloc(config->n_seq_max, sizeof *kv->length);
    if (!kv->free_pages || !kv->table || !kv->n_table || !kv->length) {
        rc = stk_fail(STK_ENOMEM, "KV cache: out of memory for the page table");
        goto out;
    }
    STK_TRYGOTO(stk_map_open(&kv->map, stk_kv_bytes(config), lock, "KV cache"), rc, out);
    kv->n_free = kv->n_page;
    for (uint32_t i = 0; i < kv->n_page; i++) kv->free_pages[i] = kv->n_page - 1 - i;
out:
    if (rc < 0) stk_kv_close(&kv);
    *out = kv;
    return rc;
}

void stk_kv_close(stk_kv **kv) {
    if (!*kv) return;
    stk_map_close(&(*kv)->map);
    free((*kv)->free_pages);
    free((*kv)->table);
    free((*kv)->n_table);
    free((*kv)->length);
    free(*kv);
    *kv = NULL;
}

void stk_kv_get_config(const stk_kv *kv, stk_kv_config *config) { *config = kv->config; }

const uint32_t *stk_kv_table(const stk_kv *kv) { return kv->table; }

uint32_t stk_kv_length(const stk_kv *kv, uint32_t seq) { return kv->length[seq]; }

int stk_kv_reserve(stk_kv *kv, uint32_t seq, uint32_t n_pos) {
    uint32_t *table = kv->table + (size_t)seq * kv->n_page;
    uint32_t want = (uint32_t)stk_div_up(n_pos, STK_PAGE);
    uint32_t have = kv->n_table[seq];
    uint32_t held = 0;
    for (uint32_t s = 0; s < kv->config.n_seq_max; s++) held += s == seq ? 0 : kv->length[s];
    if ((uint64_t)held + n_pos > kv->config.n_ctx || (want > have && want - have > kv->n_free))
        return stk_fail(STK_EFULL,
                        "the context is full: sequence %u would hold %u positions beside %u of others, of %u in all; raise -c",
                        seq, n_pos, held, kv->config.n_ctx);
    for (; have < want; have++) table[have] = kv->free_pages[--kv->n_free];
    kv->n_table[seq] = have;
    return STK_OK;
}

void stk_kv_commit(stk_kv *kv, uint32_t seq, uint32_t n_pos) { kv->length[seq] = n_pos; }

void stk_kv_trim(stk_kv *kv, uint32_t seq, uint32_t n_pos) {
    uint32_t *table = kv->table + (size_t)seq * kv->n_page;
    uint32_t keep = (uint32_t)stk_div_up(n_pos, STK_PAGE);
    while (kv->n_table[seq] > keep) kv->free_pages[kv->n_free++] = table[--kv->n_table[seq]];
    if (kv->length[seq] > n_pos) kv->length[seq] = n_pos;
}

static uint8_t *head_base(const stk_kv *kv, uint32_t layer, uint32_t head, uint32_t page) {
    uint64_t tile = (uint64_t)layer * kv->config.n_head_kv + head;
    return (uint8_t *)kv->map.base + page * kv->page_bytes + tile * (kv->k_tile_bytes + kv->v_tile_bytes);
}

void stk_kv_put(stk_kv *kv, uint32_t layer, uint32_t head, uint32_t seq, uint32_t pos, const float *k, const float *v,
                stk_f32_to_f16_fn to_f16, uint16_t *half) {
    uint32_t page = kv->table[(size_t)seq * kv->n_page + pos / STK_PAGE], at = pos % STK_PAGE;
    uint8_t *base = head_base(kv, layer, head, page);
    uint32_t dk = kv->config.head_dim_k, dv = kv->config.head_dim_v;
    if (kv->config.k_f16) {
        uint16_t *tile = (uint16_t *)base;
        to_f16(k, dk, half);
        for (uint32_t d = 0; d < dk; d++) tile[d * STK_PAGE + at] = half[d];
    } else {
        float *tile = (float *)base;
        for (uint32_t d = 0; d < dk; d++) tile[d * STK_PAGE + at] = k[d];
    }
    base += kv->k_tile_bytes;
    if (kv->config.v_f16) {
        to_f16(v, dv, half);
        memcpy((uint16_t *)base + (size_t)at * dv, half, dv * sizeof *half);
    } else {
        memcpy((float *)base + (size_t)at * dv, v, dv * sizeof *v);
    }
}

void stk_kv_tiles(const stk_kv *kv, uint32_t layer, uint32_t head, uint32_t seq, uint32_t first, uint32_t n, const void **k,
                  const void **v) {
    const uint32_t *table = kv->table + (size_t)seq * kv->n_page + first;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *base = head_base(kv, layer, head, table[i]);
        k[i] = base;
        v[i] = base + kv->k_tile_bytes;
    }
}
