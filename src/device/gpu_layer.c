/* gpu_layer: a layer of the device from the residual stream to the router's choice, the combination, and the output. */
#include <string.h>

#include "src/engine/forward.h"

static stk_cuda_stream *stream_of(const stk_gpu *g) { return g->c.device->compute; }

static int up(const stk_gpu *g, void *dst, const void *src, uint64_t bytes) {
    return stk_device_up(g->c.device, dst, src, bytes, stream_of(g));
}
static int down(const stk_gpu *g, void *dst, const void *src, uint64_t bytes) {
    return stk_device_down(g->c.device, dst, src, bytes, stream_of(g));
}

static int product(const stk_gpu *g, const stk_gpu_matrix *m, uint32_t n_tok, stk_cuda_rows x, float *out) {
    return g->ops->product(&(stk_cuda_product){.type = m->type,
                                               .weights = m->weights,
                                               .n_in = m->n_in,
                                               .n_rows = m->n_rows,
                                               .n_tok = n_tok,
                                               .x_per = 1,
                                               .x = x,
                                               .out = out,
                                               .out_stride = m->n_rows},
                           stream_of(g));
}

/* ---- The step ---- */

/* Positions, sequences, and the page table where it has changed. */
int stk_gpu_begin(stk_forward *f, const uint32_t *page_table) {
    stk_gpu *g = f->gpu;
    const stk_trace_step *s = f->step;
    size_t table_bytes = (size_t)g->kv.n_seq_max * g->n_page * sizeof *page_table;
    if (!stk_gpu_has_output(g) || s->n_tok == 0) return STK_OK;
    STK_TRY(g->ops->stream_sync(stream_of(g))); /* what a step that failed has left */
    for (uint32_t t = 0; t < s->n_tok; t++) {
        g->host_seq[t] = (uint32_t)s->seq[t];
        g->host_pos[t] = (uint32_t)s->pos[t];
    }
    STK_TRY(up(g, g->seq, g->host_seq, s->n_tok * sizeof *g->seq));
    STK_TRY(up(g, g->pos, g->host_pos, s->n_tok * sizeof *g->pos));
    if (memcmp(g->host_table, page_table, table_bytes) == 0) return STK_OK;
    memcpy(g->host_table, page_table, table_bytes);
    return up(g, g->table, g->host_table, table_bytes);
}

static uint32_t greatest_pos(const stk_trace_step *s) {
    uint32_t most = 0;
    for (uint32_t t = 0; t < s->n_tok; t++) most = STK_MAX(most, (uint32_t)s->pos[t]);
    return most;
}

static stk_cuda_kv kv_of(const stk_gpu *g, uint32_t layer) {
    stk_kv_tile_bytes tile = stk_kv_tile(&g->kv);
    uint64_t head_bytes = tile.k + tile.v, layer_bytes = head_bytes * g->kv.n_head_kv;
    return (stk_cuda_kv){.pages = g->pages,
                         .page_bytes = layer_bytes * g->kv.n_layer,
                         .layer_offset = layer_bytes * (layer - g->c.first_layer),
                         .k_tile_bytes = tile.k,
                         .head_bytes = head_bytes,
                         .table = g->table,
                         .table_stride = g->n_page,
                         .n_head_kv = g->kv.n_head_kv,
                         .head_dim = g->kv.head_dim_k,
                         .k_f16 = g->kv.k_f16,
                         .v_f16 = g->kv.v_f16};
}

/* norm | q, k, v | head norms, RoPE, KV | attention | output | residual, norm */
static int attention(const stk_forward *f, const stk_gpu_layer *w) {
    const stk_gpu *g = f->gpu;
    const stk_hparams *hp = &g->c.model->hp;
    uint32_t n = f->step->n_tok;
    stk_cuda_kv kv = kv_of(g, f->layer);
    STK_TRY(g->ops->rmsnorm(
        &(stk_cuda_norm){.x = g->x, .w = w->attn_norm, .out = g->norm, .n_row = n, .n = hp->n_embd, .eps = hp->rms_eps},
        stream_of(g)));
    STK_TRY(product(g, &w->q, n, g->norm, g->q));
    STK_TRY(product(g, &w->k, n, g->norm, g->k));
    STK_TRY(product(g, &w->v, n, g->norm, g->v));
    STK_TRY(g->ops->rotate(&(stk_cuda_rotate){.q = g->q,
                                              .k = g->k,
                                              .v = g->v,
                                              .q_bias = w->q_bias,
                                              .k_bias = w->k_bias,
                                              .v_bias = w->v_bias,
                                              .q_norm = w->q_norm,
                                              .k_norm = w->k_norm,
                                              .table = g->rope,
                                              .seq = g->seq,
                                              .pos = g->pos,
                                              .n_tok = n,
                                              .n_head = hp->n_head,
                                              .n_rot = hp->rope_dim,
                                              .eps = hp->rms_eps,
                                              .neox = g->c.model->family->rope == STK_ROPE_NEOX,
                                              .kv = kv},
                           stream_of(g)));
    STK_TRY(g->ops->attend(&(stk_cuda_attend){.q = g->q,
                                              .out = g->attn,
                                              .seq = g->seq,
                                              .pos = g->pos,
                                              .n_tok = n,
                                              .n_head = hp->n_head,
                                              .max_pos = greatest_pos(f->step),
                                              .scale = hp->attn_scale,
                                              .state = g->state,
                                              .kv = kv},
                           stream_of(g)));
    STK_TRY(product(g, &w->o, n, g->attn, g->proj));
    return g->ops->rmsnorm(&(stk_cuda_norm){.x = g->x,
                                            .y = g->proj,
                                            .bias = w->o_bias,
                                            .w = w->ffn_norm,
                                            .out = g->norm,
                                            .n_row = n,
                                            .n = hp->n_embd,
                                            .eps = hp->rms_eps},
                           stream_of(g));
}

/* ---- The router ---- */

/* The choice of n tokens, as it lies here and there. */
typedef struct routed {
    uint16_t *ids, *top_ids;
    float *weights, *top_scores;
    uint64_t bytes;
} routed;

static routed routed_at(const stk_gpu *g, uint8_t *base, uint32_t n_tok) {
    uint64_t k = (uint64_t)n_tok * g->c.model->hp.n_expert_used, top = (uint64_t)n_tok * g->c.n_top;
    uint64_t weights = stk_align_up(k * sizeof(uint16_t), 64), top_ids = stk_align_up(weights + k * sizeof(float), 64),
             top_scores = stk_align_up(top_ids + top * sizeof(uint16_t), 64);
    return (routed){(uint16_t *)base, (uint16_t *)(base + top_ids), (float *)(base + weights), (float *)(base + top_scores),
                    top_scores + top * sizeof(float)};
}

/* The routers of the layers ahead, on this layer's residual stream. */
static int look_ahead(stk_forward *f) {
    const stk_gpu *g = f->gpu;
    const stk_hparams *hp = &g->c.model->hp;
    uint32_t n = f->step->n_tok;
    for (uint32_t d = 0; d < f->n_ahead; d++) {
        const stk_gpu_layer *w = &g->layers[f->layer + d + 1];
        stk_cuda_rows rows = g->ahead;
        rows.f32 += (size_t)d * n * rows.f32_stride;
        if (rows.act) rows.act += (size_t)d * n * rows.act_stride;
        STK_TRY(g->ops->rmsnorm(
            &(stk_cuda_norm){.x = g->x, .w = w->ffn_norm, .out = rows, .n_row = n, .n = hp->n_embd, .eps = hp->rms_eps},
            stream_of(g)));
        STK_TRY(product(g, &w->router, n, rows, g->ahead_scores + (size_t)d * n * hp->n_expert));
    }
    return down(g, f->ahead_scores, g->ahead_scores, (uint64_t)f->n_ahead * n * hp->n_expert * sizeof(float));
}

/* What the CPU's experts of this layer read. */
static int bring_norm(stk_forward *f) {
    const stk_gpu *g = f->gpu;
    const stk_catalogue *cat = g->c.model->experts;
    const stk_class *cls = stk_catalogue_class(cat, stk_catalogue_layer_class(cat, f->layer));
    uint64_t n = f->step->n_tok;
    bool gate = stk_type_is_quantized(cls->part[STK_GATE].type), up_too = stk_type_is_quantized(cls->part[STK_UP].type);
    if (gate || up_too) STK_TRY(down(g, f->norm.act, g->norm.act, n * g->norm.act_stride));
    if (!gate || !up_too) STK_TRY(down(g, f->norm.f32, g->norm.f32, n * g->norm.f32_stride * sizeof(float)));
    return STK_OK;
}

static int choose(stk_forward *f) {
    const stk_gpu *g = f->gpu;
    const stk_hparams *hp = &g->c.model->hp;
    uint32_t n = f->step->n_tok;
    routed there = routed_at(g, g->routed, n), here = routed_at(g, g->host_routed, n);
    STK_TRY(g->ops->route(&(stk_cuda_route){.scores = g->scores,
                                            .n_tok = n,
                                            .n_expert = hp->n_expert,
                                            .k = hp->n_expert_used,
                                            .n_top = g->c.n_top,
                                            .renormalise = g->c.model->family->router == STK_ROUTER_SOFTMAX_RENORM,
                                            .scale = hp->router_scale,
                                            .ids = there.ids,
                                            .top_ids = there.top_ids,
                                            .weights = there.weights,
                                            .top_scores = there.top_scores},
                          stream_of(g)));
    STK_TRY(down(g, here.ids, there.ids, here.bytes));
    STK_TRY(bring_norm(f));
    STK_TRY(g->ops->stream_sync(stream_of(g)));
    stk_routing *r = &f->routing;
    memcpy(r->ids, here.ids, (size_t)n * r->k * sizeof *r->ids);
    memcpy(r->weights, here.weights, (size_t)n * r->k * sizeof *r->weights);
    memcpy(r->top_ids, here.top_ids, (size_t)n * f->n_top * sizeof *r->top_ids);
    memcpy(r->top_scores, here.top_scores, (size_t)n * f->n_top * sizeof *r->top_scores);
    for (uint32_t i = 0; i < f->n_ahead * n; i++) {
        float *p = f->ahead_scores + (size_t)i * hp->n_expert;
        f->c.ops->softmax(p, hp->n_expert, p);
    }
    return STK_OK;
}

int stk_gpu_route(stk_forward *f) {
    const stk_gpu *g = f->gpu;
    const stk_gpu_layer *w = &g->layers[f->layer];
    uint32_t n = f->step->n_tok;
    if (n == 0) return STK_OK;
    if (f->layer == g->c.first_layer) STK_TRY(up(g, g->x, f->x, (uint64_t)n * g->c.model->hp.n_embd * sizeof(float)));
    STK_TRY(attention(f, w));
    STK_TRY(product(g, &w->router, n, g->norm, g->scores));
    if (f->n_ahead) STK_TRY(look_ahead(f));
    return choose(f);
}

/* ---- Combination and output ---- */

/* The outputs that the CPU computed come by one copy, behind those of the device. */
int stk_gpu_combine(stk_forward *f) {
    const stk_gpu *g = f->gpu;
    const stk_hparams *hp = &g->c.model->hp;
    uint32_t n = f->step->n_tok, k = f->routing.k, n_pair = n * k;
    if (n == 0) return STK_OK;
    for (uint32_t p = 0; p < n_pair; p++) g->host_rows[p] = f->out_row[p] == STK_ON_DEVICE ? p : n_pair + f->out_row[p];
    memcpy(g->host_weights, f->routing.weights, n_pair * sizeof *g->host_weights);
    STK_TRY(up(g, g->rows, g->host_rows, n_pair * sizeof *g->rows));
    STK_TRY(up(g, g->weights, g->host_weights, n_pair * sizeof *g->weights));
    STK_TRY(
        up(g, g->expert_out + (size_t)n_pair * hp->n_embd, f->expert_out, (uint64_t)f->n_out_row * hp->n_embd * sizeof(float)));
    return g->ops->combine(
        &(stk_cuda_combine){
            .x = g->x, .out = g->expert_out, .weights = g->weights, .n_tok = n, .n = hp->n_embd, .k = k, .row = g->rows},
        stream_of(g));
}

/* Final norm of the tokens that ask for logits, whose rows follow one another. */
static int final_norms(stk_forward *f) {
    const stk_gpu *g = f->gpu;
    const stk_hparams *hp = &g->c.model->hp;
    for (uint32_t t = 0, run; t < f->step->n_tok; t += run) {
        for (run = 0; t + run < f->step->n_tok && f->logit_row[t + run] != UINT32_MAX;) run++;
        if (run == 0) {
            run = 1;
            continue;
        }
        uint32_t row = f->logit_row[t];
        stk_cuda_rows out = g->norm;
        out.f32 += (size_t)row * out.f32_stride;
        if (out.act) out.act += (size_t)row * out.act_stride;
        STK_TRY(g->ops->rmsnorm(&(stk_cuda_norm){.x = g->x + (size_t)t * hp->n_embd,
                                                 .w = g->output_norm,
                                                 .out = out,
                                                 .n_row = run,
                                                 .n = hp->n_embd,
                                                 .eps = hp->rms_eps},
                                stream_of(g)));
        STK_TRY(down(g, f->final_hidden + (size_t)row * hp->n_embd, g->x + (size_t)t * hp->n_embd,
                     (uint64_t)run * hp->n_embd * sizeof(float)));
    }
    return STK_OK;
}

int stk_gpu_output(stk_forward *f) {
    const stk_gpu *g = f->gpu;
    uint32_t n_vocab = g->c.model->hp.n_vocab;
    if (f->n_logit_row) {
        STK_TRY(final_norms(f));
        STK_TRY(product(g, &g->output, f->n_logit_row, g->norm, g->logits));
        STK_TRY(down(g, f->logits, g->logits, (uint64_t)f->n_logit_row * n_vocab * sizeof(float)));
    }
    return g->ops->stream_sync(stream_of(g));
}
