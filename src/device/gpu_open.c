/* gpu_open: the device's memory for layers, and its weights. */
#include <stdlib.h>
#include <string.h>

#include "src/engine/forward.h"

enum { ALIGN = 256 };

/* One list, walked to count and again to place; base NULL while counting. */
typedef struct placer {
    uint8_t *base;
    uint64_t bytes;
} placer;

static void *take(placer *p, uint64_t bytes) {
    void *at = p->base ? p->base + p->bytes : NULL;
    p->bytes += stk_align_up(bytes, ALIGN);
    return at;
}

/* ---- Buffers ---- */

static void take_rows(placer *p, stk_cuda_rows *r, uint64_t count, uint32_t n) {
    bool act = n % STK_GROUP == 0;
    r->f32_stride = (n + 15u) & ~15u;
    r->f32 = take(p, count * r->f32_stride * sizeof(float));
    r->act_stride = act ? stk_act_layout_of(n).bytes : 0;
    r->act = act ? take(p, count * r->act_stride) : NULL;
}

/* The three lists lie together, so that one copy brings them. */
static void place_event(const stk_gpu *g, placer *p, stk_gpu_event *e) {
    const stk_hparams *hp = &g->c.model->hp;
    uint64_t from = p->bytes;
    e->slot = take(p, hp->n_expert * sizeof *e->slot);
    e->first = take(p, (hp->n_expert + 1) * sizeof *e->first);
    e->pairs = take(p, (uint64_t)g->c.n_batch * hp->n_expert_used * sizeof *e->pairs);
    e->bytes = p->bytes - from;
}

static uint64_t routed_bytes(const stk_gpu *g) {
    uint64_t b = g->c.n_batch, k = g->c.model->hp.n_expert_used;
    return b * (k + g->c.n_top) * (sizeof(uint16_t) + sizeof(float)) + 4 * 64;
}

static void place_buffers(stk_gpu *g, placer *p) {
    const stk_hparams *hp = &g->c.model->hp;
    uint64_t b = g->c.n_batch, k = hp->n_expert_used, f4 = sizeof(float);
    bool layers = g->kv.n_layer > 0;
    uint64_t own = layers ? b : 0, looks = layers ? STK_MIN(b, STK_LOOKAHEAD_TOKENS) * STK_PREDICT_DEPTH_MAX : 0;
    take_rows(p, &g->norm, b, hp->n_embd);
    take_rows(p, &g->hidden, b * k, hp->n_ff_expert);
    g->gate = take(p, b * k * hp->n_ff_expert * f4);
    g->up = take(p, b * k * hp->n_ff_expert * f4);
    g->expert_out = take(p, 2 * b * k * hp->n_embd * f4);
    place_event(g, p, &g->event);
    g->x = take(p, own * hp->n_embd * f4);
    g->q = take(p, own * hp->n_head * hp->head_dim * f4);
    g->k = take(p, own * hp->n_head_kv * hp->head_dim * f4);
    g->v = take(p, own * hp->n_head_kv * hp->value_dim * f4);
    take_rows(p, &g->attn, own, hp->n_head * hp->value_dim);
    g->proj = take(p, own * hp->n_embd * f4);
    g->scores = take(p, own * hp->n_expert * f4);
    take_rows(p, &g->ahead, looks, hp->n_embd);
    g->ahead_scores = take(p, looks * hp->n_expert * f4);
    g->logits = take(p, (layers ? (uint64_t)g->c.n_logits : 0) * hp->n_vocab * f4);
    g->rope = take(p, (layers ? (uint64_t)g->c.n_ctx : 0) * hp->rope_dim * f4);
    g->state = take(p, layers ? stk_cuda_attend_bytes(g->c.n_batch, hp->n_head, hp->head_dim, g->c.n_ctx - 1) : 0);
    g->routed = take(p, layers ? routed_bytes(g) : 0);
    g->seq = take(p, own * sizeof *g->seq);
    g->pos = take(p, own * sizeof *g->pos);
    g->table = take(p, layers ? (uint64_t)g->kv.n_seq_max * g->n_page * sizeof *g->table : 0);
    g->rows = take(p, own * k * sizeof *g->rows);
    g->weights = take(p, own * k * sizeof *g->weights);
}

static void place_host(stk_gpu *g, placer *p) {
    const stk_hparams *hp = &g->c.model->hp;
    uint64_t b = g->c.n_batch, pairs = b * hp->n_expert_used;
    place_event(g, p, &g->host_event);
    g->host_routed = take(p, routed_bytes(g));
    g->host_seq = take(p, b * sizeof *g->host_seq);
    g->host_pos = take(p, b * sizeof *g->host_pos);
    g->host_table = take(p, (uint64_t)g->kv.n_seq_max * g->n_page * sizeof *g->host_table);
    g->host_rows = take(p, pairs * sizeof *g->host_rows);
    g->host_weights = take(p, pairs * sizeof *g->host_weights);
}

static int open_host(stk_gpu *g) {
    placer p = {0};
    place_host(g, &p);
    g->host = stk_device_take_pinned(g->c.device, p.bytes, "the device's lists");
    if (!g->host && !(g->host_map = aligned_alloc(ALIGN, p.bytes))) return stk_fail(STK_ENOMEM, "device: out of memory");
    p = (placer){g->host ? g->host : g->host_map, 0};
    memset(p.base, 0xff, g->host_event.bytes); /* nothing is known to be there: not even for a copy that reads beyond */
    place_host(g, &p);
    memset(g->host_table, 0xff, (size_t)g->kv.n_seq_max * g->n_page * sizeof *g->host_table);
    return STK_OK;
}

/* ---- Weights ---- */

/* Counts what a weight takes, or places it and uploads it from the host's copy. */
typedef struct loader {
    const stk_device *device;
    placer to;
    int rc;
} loader;

static const void *upload(loader *l, const void *from, uint64_t bytes) {
    void *at = take(&l->to, bytes);
    if (at && l->rc >= 0) l->rc = stk_device_up(l->device, at, from, bytes, l->device->compute);
    return at;
}

static void load_matrix(loader *l, const stk_weight *w, const stk_matrix *from, stk_gpu_matrix *to) {
    if (w->n_rows == 0) return;
    *to = (stk_gpu_matrix){w->type, w->n_rows, w->n_in, NULL};
    to->weights = upload(l, from ? from->packed : NULL, stk_matrix_bytes(w->type, w->n_rows, w->n_in));
}

static void load_vector(loader *l, const stk_weight *w, const float *from, const float **to) {
    if (w->n_rows == 0) return;
    *to = upload(l, from, (uint64_t)w->n_in * sizeof(float));
}

static void load_layer(loader *l, const stk_layer *w, const stk_dense_layer *from, stk_gpu_layer *to) {
    load_matrix(l, &w->attn_q, &from->q, &to->q);
    load_matrix(l, &w->attn_k, &from->k, &to->k);
    load_matrix(l, &w->attn_v, &from->v, &to->v);
    load_matrix(l, &w->attn_output, &from->o, &to->o);
    load_matrix(l, &w->router, &from->router, &to->router);
    load_vector(l, &w->attn_norm, from->attn_norm, &to->attn_norm);
    load_vector(l, &w->ffn_norm, from->ffn_norm, &to->ffn_norm);
    load_vector(l, &w->attn_q_norm, from->q_norm, &to->q_norm);
    load_vector(l, &w->attn_k_norm, from->k_norm, &to->k_norm);
    load_vector(l, &w->attn_q_bias, from->q_bias, &to->q_bias);
    load_vector(l, &w->attn_k_bias, from->k_bias, &to->k_bias);
    load_vector(l, &w->attn_v_bias, from->v_bias, &to->v_bias);
    load_vector(l, &w->attn_output_bias, from->o_bias, &to->o_bias);
}

/* dense NULL: counts. */
static void load_all(stk_gpu *g, loader *l, const stk_dense *dense) {
    const stk_model *m = g->c.model;
    const stk_dense_layer none = {0};
    stk_gpu_layer unused = {0};
    for (uint32_t i = g->c.first_layer; i < m->hp.n_layer; i++)
        load_layer(l, &m->layers[i], dense ? &dense->layers[i] : &none, g->layers ? &g->layers[i] : &unused);
    if (!stk_gpu_has_output(g)) return;
    load_matrix(l, &m->output, dense ? &dense->output : NULL, &g->output);
    load_vector(l, &m->output_norm, dense ? dense->output_norm : NULL, &g->output_norm);
}

/* ---- Opening ---- */

static void measure(stk_gpu *g, const stk_gpu_config *config) {
    g->c = *config;
    g->kv = *config->kv;
    g->kv.n_layer = config->model->hp.n_layer - config->first_layer;
    g->n_page = stk_kv_n_page(&g->kv);
    loader l = {0};
    load_all(g, &l, NULL);
    placer p = {0};
    place_buffers(g, &p);
    g->dense_bytes = l.to.bytes;
    g->kv_bytes = stk_kv_bytes(&g->kv);
    g->buffer_bytes = p.bytes;
}

void stk_gpu_measure(stk_gpu *g, const stk_gpu_config *config) {
    *g = (stk_gpu){0};
    measure(g, config);
}

static int open_parts(stk_gpu *g, const stk_dense *dense, const stk_forward *f) {
    stk_device *d = g->c.device;
    void *weights, *buffers, *pages;
    g->layers = calloc(g->c.model->hp.n_layer, sizeof *g->layers);
    if (!g->layers) return stk_fail(STK_ENOMEM, "device: out of memory");
    STK_TRY(stk_device_take(d, &weights, g->dense_bytes, "dense weights"));
    STK_TRY(stk_device_take(d, &pages, g->kv_bytes, "KV cache"));
    STK_TRY(stk_device_take(d, &buffers, g->buffer_bytes, "compute buffers"));
    STK_TRY(open_host(g));
    loader l = {d, {weights, 0}, STK_OK};
    if (weights) load_all(g, &l, dense);
    STK_TRY(l.rc);
    placer p = {buffers, 0};
    place_buffers(g, &p);
    g->pages = pages;
    if (g->kv.n_layer) {
        uint64_t bytes = (uint64_t)g->c.n_ctx * g->c.model->hp.rope_dim * sizeof(float);
        STK_TRY(stk_device_up(d, g->rope, f->rope, bytes, d->compute));
    }
    return d->ops->stream_sync(d->compute);
}

int stk_gpu_open(stk_gpu **out, const stk_gpu_config *config, const stk_dense *dense, const stk_forward *f) {
    *out = NULL;
    stk_gpu *g = calloc(1, sizeof *g);
    if (!g) return stk_fail(STK_ENOMEM, "device: out of memory");
    g->ops = config->device->ops;
    measure(g, config);
    g->c.kv = NULL; /* the caller's, copied */
    int rc = open_parts(g, dense, f);
    if (rc < 0) stk_gpu_close(&g);
    *out = g;
    return rc;
}

void stk_gpu_close(stk_gpu **g) {
    if (!*g) return;
    free((*g)->layers);
    free((*g)->host_map);
    free(*g);
    *g = NULL;
}
