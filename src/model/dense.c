/*
 * dense: loading. Every weight gets a region of the arena in which its rows land by an aligned read and are then packed in place,
 * unless they lie so in the file; vectors become f32. All reads are queued at once; the workers pack what has arrived while the
 * rest is being read.
 */
#include "dense.h"

#include <stdlib.h>
#include <string.h>

/* One weight on its way in. */
typedef struct item {
    const stk_weight *weight;
    stk_matrix *matrix;   /* where a matrix goes, or NULL */
    const float **vector; /* where a vector goes, or NULL */
    uint64_t region;      /* offset in the arena */
    uint64_t land;        /* of the aligned read, in the region */
    uint64_t rows;        /* of the rows, in the region */
} item;

typedef struct loader {
    stk_dense *dense;
    item *items;
    uint32_t n_item, cap;
    uint64_t bytes; /* of the arena */
    stk_pool *pool;
    uint32_t *ready; /* [n_item] arrived, to be packed */
    uint32_t n_ready;
    void **scratch; /* [n_worker] */
} loader;

static uint64_t vector_bytes(const stk_weight *w) { return stk_align_up((uint64_t)w->n_in * sizeof(float), 64); }

/* Adds a weight; absent ones are left out. Vectors are unpacked behind their landing place. */
static void add(loader *l, const stk_weight *w, stk_matrix *matrix, const float **vector) {
    if (w->n_rows == 0) return;
    uint64_t lead = !matrix ? vector_bytes(w) : w->in_stripes ? 0 : stk_layout_lead(w->type, w->n_rows, w->n_in);
    if (l->items) {
        item *it = &l->items[l->n_item];
        it->weight = w;
        it->matrix = matrix;
        it->vector = vector;
        it->region = l->bytes;
        it->land = stk_align_up(lead, STK_DIRECT_ALIGN);
    }
    l->n_item++;
    uint64_t packed = matrix ? stk_matrix_bytes(w->type, w->n_rows, w->n_in) : vector_bytes(w);
    uint64_t read = stk_align_up(w->bytes, STK_DIRECT_ALIGN) + STK_DIRECT_ALIGN;
    l->bytes += stk_align_up(STK_MAX(packed, stk_align_up(lead, STK_DIRECT_ALIGN) + read), STK_DIRECT_ALIGN);
}

/* Lists all weights; twice: to count, and to place them. */
static void list_weights(loader *l, const stk_model *m, stk_dense *d) {
    l->n_item = 0;
    l->bytes = 0;
    add(l, &m->token_embd, &d->token_embd, NULL);
    if (!m->tied) add(l, &m->output, &d->output, NULL);
    add(l, &m->output_norm, NULL, &d->output_norm);
    add(l, &m->rope_freqs, NULL, &d->rope_freqs);
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        const stk_layer *w = &m->layers[i];
        stk_dense_layer none = {0}, *o = d->layers ? &d->layers[i] : &none;
        add(l, &w->attn_norm, NULL, &o->attn_norm);
        add(l, &w->attn_q, &o->q, NULL);
        add(l, &w->attn_k, &o->k, NULL);
        add(l, &w->attn_v, &o->v, NULL);
        add(l, &w->attn_output, &o->o, NULL);
        add(l, &w->attn_q_bias, NULL, &o->q_bias);
        add(l, &w->attn_k_bias, NULL, &o->k_bias);
        add(l, &w->attn_v_bias, NULL, &o->v_bias);
        add(l, &w->attn_output_bias, NULL, &o->o_bias);
        add(l, &w->attn_q_norm, NULL, &o->q_norm);
        add(l, &w->attn_k_norm, NULL, &o->k_norm);
        add(l, &w->ffn_norm, NULL, &o->ffn_norm);
        add(l, &w->router, &o->router, NULL);
    }
}

uint64_t stk_dense_bytes(const stk_model *model) {
    loader l = {0};
    stk_dense none = {0};
    list_weights(&l, model, &none);
    return l.bytes;
}

static void pack_job(void *ctx, uint32_t worker) {
    loader *l = ctx;
    for (uint32_t i; (i = stk_pool_take(l->pool, 0, worker, l->n_ready)) < l->n_ready;) {
        item *it = &l->items[l->ready[i]];
        const stk_weight *w = it->weight;
        uint8_t *base = (uint8_t *)l->dense->map.base + it->region;
        if (it->matrix && w->in_stripes) {
            it->matrix->packed = base + it->rows;
        } else if (it->matrix) {
            stk_layout_pack(w->type, w->n_rows, w->n_in, base + it->rows, base, l->scratch[worker]);
            it->matrix->packed = base;
        } else {
            stk_dequantize_row(w->type, base + it->rows, w->n_in, (float *)base);
            *it->vector = (const float *)base;
        }
    }
}

static int submit_all(loader *l, stk_io *io) {
    for (uint32_t i = 0; i < l->n_item; i++) {
        item *it = &l->items[i];
        const stk_weight *w = it->weight;
        uint64_t align = stk_io_align(io, w->file), from = w->offset & ~(align - 1);
        it->rows = it->land + (w->offset - from);
        stk_io_read r = {w->file, from, stk_align_up(w->offset - from + w->bytes, align),
                         (uint8_t *)l->dense->map.base + it->region + it->land, i};
        STK_TRY(stk_io_submit(io, STK_IO_DEMAND, &r, 1));
    }
    return STK_OK;
}

/* Takes what arrives until all has been packed. A failed read ends it. */
static int pack_all(loader *l, stk_io *io, stk_progress_fn progress, void *user) {
    uint64_t done = 0, total = 0;
    for (uint32_t i = 0; i < l->n_item; i++) total += l->items[i].weight->bytes;
    for (uint32_t left = l->n_item; left > 0;) {
        stk_io_done got[64];
        int n = stk_io_reap(io, got, STK_ARRAY_LEN(got), true);
        if (n < 0) return n;
        l->n_ready = 0;
        for (int i = 0; i < n; i++) {
            if (got[i].status < 0) return stk_fail_in(got[i].status, "reading %s", l->items[got[i].tag].weight->name);
            l->ready[l->n_ready++] = (uint32_t)got[i].tag;
            done += l->items[got[i].tag].weight->bytes;
        }
        stk_pool_share(l->pool, pack_job, l, l->n_ready);
        left -= l->n_ready;
        if (progress && progress(user, "dense weights", done, total)) return stk_fail(STK_ECANCELED, "loading was cancelled");
    }
    return STK_OK;
}

static int bind_products(const loader *l, const stk_cpu_ops *ops) {
    for (uint32_t i = 0; i < l->n_item; i++) {
        stk_matrix *m = l->items[i].matrix;
        if (!m) continue;
        const stk_weight *w = l->items[i].weight;
        m->type = w->type;
        m->n_rows = w->n_rows;
        m->n_in = w->n_in;
        m->quantized = stk_type_is_quantized(w->type);
        m->product = stk_cpu_matmul(ops, w->type);
        if (!m->product)
            return stk_fail(STK_EUNSUPPORTED, "tensor %s: type %s has no kernel", w->name, stk_type_info_get(w->type)->name);
    }
    return STK_OK;
}

static int open_loader(loader *l, const stk_model *model) {
    uint64_t scratch = 64;
    list_weights(l, model, l->dense);
    l->cap = l->n_item;
    l->items = calloc(l->cap, sizeof *l->items);
    l->ready = calloc(l->cap, sizeof *l->ready);
    l->scratch = calloc(stk_pool_n_worker(l->pool), sizeof *l->scratch);
    if (!l->items || !l->ready || !l->scratch) return stk_fail(STK_ENOMEM, "out of memory for loading");
    list_weights(l, model, l->dense);
    for (uint32_t i = 0; i < l->n_item; i++) {
        const stk_weight *w = l->items[i].weight;
        scratch = STK_MAX(scratch, stk_align_up(stk_layout_scratch_bytes(w->type, w->n_in), 64));
    }
    for (uint32_t i = 0; i < stk_pool_n_worker(l->pool); i++)
        if (!(l->scratch[i] = aligned_alloc(64, scratch))) return stk_fail(STK_ENOMEM, "out of memory for loading");
    return STK_OK;
}

static void close_loader(loader *l) {
    for (uint32_t i = 0; l->scratch && i < stk_pool_n_worker(l->pool); i++) free(l->scratch[i]);
    free(l->scratch);
    free(l->ready);
    free(l->items);
}

/* After a failure: nothing may write into the arena once it is gone. */
static void drain(stk_io *io, uint32_t n_tag) {
    for (uint32_t i = 0; i < n_tag; i++) stk_io_cancel(io, i);
    stk_io_done got[64];
    while (stk_io_in_flight(io) > 0 && stk_io_reap(io, got, STK_ARRAY_LEN(got), true) >= 0) {
    }
}

int stk_dense_load(stk_dense *dense, const stk_model *model, const stk_cpu_ops *ops, stk_pool *pool, stk_io *io, bool lock,
                   stk_progress_fn progress, void *progress_user) {
    int rc;
    loader l = {.dense = dense, .pool = pool};
    memset(dense, 0, sizeof *dense);
    dense->layers = calloc(model->hp.n_layer, sizeof *dense->layers);
    if (!dense->layers) return stk_fail(STK_ENOMEM, "out of memory for %u layers", model->hp.n_layer);
    STK_TRYGOTO(open_loader(&l, model), rc, out);
    STK_TRYGOTO(stk_map_open(&dense->map, l.bytes, lock, "dense weights"), rc, out);
    STK_TRYGOTO(bind_products(&l, ops), rc, out);
    rc = submit_all(&l, io);
    if (rc >= 0) rc = pack_all(&l, io, progress, progress_user);
    if (rc < 0) drain(io, l.n_item);
    if (model->tied) dense->output = dense->token_embd;
out:
    close_loader(&l);
    if (rc < 0) stk_dense_close(dense);
    return rc;
}

void stk_dense_close(stk_dense *dense) {
    stk_map_close(&dense->map);
    free(dense->layers);
    memset(dense, 0, sizeof *dense);
}
