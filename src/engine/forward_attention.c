/*
 * forward_attention: one layer from the residual stream to the router's scores, as one job of the pool:
 *
 *     norm | q, k, v | head norms, RoPE, KV | attention (| merge of spans) | output | residual, norm | router, routers ahead
 *
 * A task of attention is a block of tokens and a KV head, over all spans in turn; where there are too few tasks for the workers
 * (decode), each span is a task of its own and the states are merged after a barrier. Both ways merge the spans in ascending
 * order with the same operations.
 */
#include <math.h>
#include <string.h>

#include "forward.h"
#include "src/numeric.h"

/* Phases of the job. */
enum { NORM, QKV, ROTATE, ATTEND, MERGE, QUANTIZE, OUTPUT, ADD, ROUTER };

typedef struct job {
    stk_forward *f;
    const stk_dense_layer *w;
    bool split;
} job;

/* Stripes that a worker takes at a time: a few portions each, so that nobody waits long at the end. */
static uint32_t portion(uint32_t n_stripe, uint32_t n_worker) {
    uint32_t p = n_stripe / (n_worker * 6);
    return p < 1 ? 1 : p > 32 ? 32 : p;
}

static void norm_row(stk_forward *f, const float *weight, uint32_t t) {
    const stk_hparams *hp = &f->c.model->hp;
    f->c.ops->rmsnorm(f->x + (size_t)t * hp->n_embd, weight, hp->n_embd, hp->rms_eps,
                      f->norm.f32 + (size_t)t * f->norm.f32_stride);
    stk_forward_quantize(f, &f->norm, t);
}

/* The rows of several matrices as one range of stripes, to the end of the phase. */
static void products(stk_forward *f, const stk_matrix *const *m, float *const *out, uint32_t n_matrix, const stk_rows *x,
                     uint32_t worker, uint32_t phase, uint32_t stage) {
    uint32_t n_worker = stk_pool_n_worker(f->c.pool), total = 0;
    for (uint32_t i = 0; i < n_matrix; i++) total += (uint32_t)stk_n_stripe(m[i]->n_rows);
    uint32_t step = portion(total, n_worker);
    stk_fast_forget(f->c.fast, worker);
    uint32_t n_portion = (uint32_t)stk_div_up(total, step);
    for (uint32_t from; (from = stk_pool_take(f->c.pool, phase, worker, n_portion) * step) < total;) {
        if (f->prefetch && worker == 0 && f->poll_rc >= 0) f->poll_rc = stk_store_poll(f->c.store, false);
        uint32_t to = STK_MIN(from + step, total), base = 0;
        for (uint32_t i = 0; i < n_matrix; i++) {
            uint32_t n = (uint32_t)stk_n_stripe(m[i]->n_rows), s0 = STK_MAX(from, base), s1 = STK_MIN(to, base + n);
            if (s0 < s1)
                stk_forward_product(f, m[i], s0 - base, s1 - base, f->step->n_tok, x, out[i], m[i]->n_rows, &f->workers[worker]);
            base += n;
        }
    }
    stk_forward_finish(f, phase, worker, n_portion, stage);
}

static void head_pass(const stk_forward *f, float *heads, uint32_t n_head, const float *norm, const float *table) {
    const stk_hparams *hp = &f->c.model->hp;
    for (uint32_t h = 0; h < n_head; h++) {
        float *x = heads + (size_t)h * hp->head_dim;
        if (norm) f->c.ops->rmsnorm(x, norm, hp->head_dim, hp->rms_eps, x);
        f->c.ops->rope(x, hp->rope_dim, table, f->c.model->family->rope == STK_ROPE_NEOX);
    }
}

static void rotate_and_store(const job *j, uint32_t t, uint32_t worker) {
    stk_forward *f = j->f;
    const stk_hparams *hp = &f->c.model->hp;
    uint32_t nq = hp->n_head * hp->head_dim, nk = hp->n_head_kv * hp->head_dim, nv = hp->n_head_kv * hp->value_dim;
    float *q = f->q + (size_t)t * nq, *k = f->k + (size_t)t * nk, *v = f->v + (size_t)t * nv;
    uint32_t pos = (uint32_t)f->step->pos[t];
    const float *table = f->rope + (size_t)pos * hp->rope_dim;
    if (j->w->q_bias) f->c.ops->add(q, j->w->q_bias, nq);
    if (j->w->k_bias) f->c.ops->add(k, j->w->k_bias, nk);
    if (j->w->v_bias) f->c.ops->add(v, j->w->v_bias, nv);
    head_pass(f, q, hp->n_head, j->w->q_norm, table);
    head_pass(f, k, hp->n_head_kv, j->w->k_norm, table);
    for (uint32_t h = 0; h < hp->n_head_kv; h++)
        stk_kv_put(f->c.kv, f->layer, h, (uint32_t)f->step->seq[t], pos, k + (size_t)h * hp->head_dim,
                   v + (size_t)h * hp->value_dim, f->c.ops->f32_to_f16, f->workers[worker].half);
}

/* Adds a span's state to what has been merged so far: both rescaled to the common maximum. `merged` starts as {-inf, 0, 0...}. */
static void merge(const stk_cpu_ops *ops, float *merged, const float *state, uint32_t dim) {
    float m = merged[0] > state[0] ? merged[0] : state[0];
    float a = stk_expf(merged[0] - m), b = stk_expf(state[0] - m);
    merged[0] = m;
    merged[1] = fmaf(state[1], b, merged[1] * a);
    for (uint32_t d = 0; d < dim; d++) merged[2 + d] *= a;
    ops->axpy(merged + 2, b, state + 2, dim);
}

static void clear_state(float *state, uint32_t dim) {
    memset(state, 0, (dim + 2) * sizeof *state);
    state[0] = -INFINITY;
}

static void write_output(stk_forward *f, uint32_t token, uint32_t head, const float *merged) {
    uint32_t dim = f->c.model->hp.value_dim;
    float *out = f->attn.f32 + (size_t)token * f->attn.f32_stride + (size_t)head * dim;
    for (uint32_t d = 0; d < dim; d++) out[d] = merged[2 + d] / merged[1];
}

/* Runs the queries of a block and KV head over one span; returns how many of its queries see the span, the last ones of the
 * block. state row i belongs to the i-th query that does, *first says which it is. */
static uint32_t attend_span(stk_forward *f, const stk_block *b, uint32_t head_kv, uint32_t span, float *states, stk_worker *w,
                            uint32_t *first) {
    const stk_hparams *hp = &f->c.model->hp;
    uint32_t g = f->queries, n = 0, most = 0, begin = span * STK_SPAN, stride = 2 + hp->value_dim;
    *first = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        uint32_t end = (uint32_t)f->step->pos[b->first + i] + 1;
        if (end <= begin) {
            *first += g;
            continue;
        }
        uint32_t visible = STK_MIN(end - begin, (uint32_t)STK_SPAN);
        most = STK_MAX(most, visible);
        for (uint32_t h = 0; h < g; h++, n++) {
            w->q[n] = f->q + ((size_t)(b->first + i) * hp->n_head + head_kv * g + h) * hp->head_dim;
            w->n_pos[n] = visible;
            w->out[n] = states + (size_t)n * stride;
        }
    }
    if (n == 0) return 0;
    const void *k[STK_SPAN_PAGES], *v[STK_SPAN_PAGES];
    stk_kv_tiles(f->c.kv, f->layer, head_kv, b->seq, span * STK_SPAN_PAGES, (uint32_t)stk_div_up(most, STK_PAGE), k, v);
    stk_kv_config kv;
    stk_kv_get_config(f->c.kv, &kv);
    f->c.ops->attend(&(stk_attend){n, hp->head_dim, w->q, w->n_pos, kv.k_f16, kv.v_f16, k, v, hp->attn_scale, w->out});
    return n;
}

static uint32_t spans_of(const stk_forward *f, const stk_block *b) {
    return (uint32_t)f->step->pos[b->first + b->n - 1] / STK_SPAN + 1;
}

/* A block and KV head over all spans. */
static void attend_whole(stk_forward *f, const stk_block *b, uint32_t head_kv, stk_worker *w) {
    uint32_t dim = f->c.model->hp.value_dim, stride = 2 + dim, g = f->queries;
    for (uint32_t i = 0; i < b->n * g; i++) clear_state(w->merged + (size_t)i * stride, dim);
    for (uint32_t span = 0; span < spans_of(f, b); span++) {
        uint32_t first, n = attend_span(f, b, head_kv, span, w->state, w, &first);
        for (uint32_t i = 0; i < n; i++)
            merge(f->c.ops, w->merged + (size_t)(first + i) * stride, w->state + (size_t)i * stride, dim);
    }
    for (uint32_t i = 0; i < b->n * g; i++)
        write_output(f, b->first + i / g, head_kv * g + i % g, w->merged + (size_t)i * stride);
}

static float *split_state_of(const stk_forward *f, uint32_t task, uint32_t span) {
    return f->split_state + ((size_t)task * f->n_span + span) * f->queries * (2 + f->c.model->hp.value_dim);
}

static void attend(const job *j, uint32_t worker) {
    stk_forward *f = j->f;
    uint32_t n_kv = f->c.model->hp.n_head_kv, n_span = j->split ? f->n_span : 1, n = f->n_block * n_kv * n_span;
    for (uint32_t i; (i = stk_pool_take(f->c.pool, ATTEND, worker, n)) < n;) {
        uint32_t task = i / n_span, first;
        const stk_block *b = &f->blocks[task / n_kv];
        if (!j->split)
            attend_whole(f, b, task % n_kv, &f->workers[worker]);
        else if (i % n_span < spans_of(f, b))
            attend_span(f, b, task % n_kv, i % n_span, split_state_of(f, task, i % n_span), &f->workers[worker], &first);
    }
    stk_forward_finish(f, ATTEND, worker, n, STK_STAGE_ATTEND);
}

/* Split blocks have one token. */
static void merge_splits(const job *j, uint32_t worker) {
    stk_forward *f = j->f;
    uint32_t n_kv = f->c.model->hp.n_head_kv, dim = f->c.model->hp.value_dim, g = f->queries, n = f->n_block * n_kv * g;
    float *merged = f->workers[worker].merged;
    for (uint32_t i; (i = stk_pool_take(f->c.pool, MERGE, worker, n)) < n;) {
        uint32_t task = i / g;
        const stk_block *b = &f->blocks[task / n_kv];
        clear_state(merged, dim);
        for (uint32_t span = 0; span < spans_of(f, b); span++)
            merge(f->c.ops, merged, split_state_of(f, task, span) + (size_t)(i % g) * (2 + dim), dim);
        write_output(f, b->first, task % n_kv * g + i % g, merged);
    }
    stk_forward_finish(f, MERGE, worker, n, STK_STAGE_ATTEND);
}

/* The residual stream takes in the attention's output, and is normed for the router, and for the copies of those ahead. */
static void add_projection(const job *j, uint32_t t) {
    stk_forward *f = j->f;
    uint32_t n_embd = f->c.model->hp.n_embd;
    float *proj = f->proj + (size_t)t * n_embd, *x = f->x + (size_t)t * n_embd;
    if (j->w->o_bias) f->c.ops->add(proj, j->w->o_bias, n_embd);
    f->c.ops->add(x, proj, n_embd);
    norm_row(f, j->w->ffn_norm, t);
    if (f->n_ahead == 0) return;
    f->c.ops->rmsnorm(x, f->c.routers->ones, n_embd, f->c.model->hp.rms_eps, f->ahead.f32 + (size_t)t * f->ahead.f32_stride);
    stk_forward_quantize(f, &f->ahead, t);
}

/* A stripe of the router of the layer d ahead (0: this one), on this layer's residual stream. */
static void route_stripe(const job *j, uint32_t d, uint32_t stripe, uint32_t worker) {
    stk_forward *f = j->f;
    uint32_t n_tok = f->step->n_tok;
    if (d == 0) {
        stk_rows exact = f->norm; /* which experts a token gets is no matter of rounding */
        exact.bf16 = NULL;
        stk_forward_product(f, &j->w->router, stripe, stripe + 1, n_tok, &exact, f->scores, j->w->router.n_rows,
                            &f->workers[worker]);
        return;
    }
    const stk_matrix *m = &f->c.routers->layers[f->layer + d];
    stk_forward_product(f, m, stripe, stripe + 1, n_tok, &f->ahead, f->ahead_scores + (size_t)(d - 1) * n_tok * m->n_rows,
                        m->n_rows, &f->workers[worker]);
}

static void run(void *ctx, uint32_t worker) {
    const job *j = ctx;
    stk_forward *f = j->f;
    stk_pool *pool = f->c.pool;
    uint32_t n_tok = f->step->n_tok, n_stripe = (uint32_t)stk_n_stripe(j->w->router.n_rows),
             n_route = (1 + f->n_ahead) * n_stripe;

    for (uint32_t t; (t = stk_pool_take(pool, NORM, worker, n_tok)) < n_tok;) norm_row(f, j->w->attn_norm, t);
    stk_forward_finish(f, NORM, worker, n_tok, STK_STAGE_NORM);
    products(f, (const stk_matrix *[]){&j->w->q, &j->w->k, &j->w->v}, (float *[]){f->q, f->k, f->v}, 3, &f->norm, worker, QKV,
             STK_STAGE_QKV);
    for (uint32_t t; (t = stk_pool_take(pool, ROTATE, worker, n_tok)) < n_tok;) rotate_and_store(j, t, worker);
    stk_forward_finish(f, ROTATE, worker, n_tok, STK_STAGE_ROPE);
    attend(j, worker);
    if (j->split) merge_splits(j, worker);
    for (uint32_t t; (t = stk_pool_take(pool, QUANTIZE, worker, n_tok)) < n_tok;) stk_forward_quantize(f, &f->attn, t);
    stk_forward_finish(f, QUANTIZE, worker, n_tok, STK_STAGE_ATTN_OUT);
    products(f, (const stk_matrix *[]){&j->w->o}, (float *[]){f->proj}, 1, &f->attn, worker, OUTPUT, STK_STAGE_ATTN_OUT);
    for (uint32_t t; (t = stk_pool_take(pool, ADD, worker, n_tok)) < n_tok;) add_projection(j, t);
    stk_forward_finish(f, ADD, worker, n_tok, STK_STAGE_NORM);
    for (uint32_t i; (i = stk_pool_take(pool, ROUTER, worker, n_route)) < n_route;)
        route_stripe(j, i / n_stripe, i % n_stripe, worker);
    stk_stages_mark(&f->stages, worker, STK_STAGE_ROUTER);
}

void stk_forward_attention(stk_forward *f) {
    uint32_t tasks = f->n_block * f->c.model->hp.n_head_kv, longest = 0;
    bool single = true;
    for (uint32_t i = 0; i < f->n_block; i++) {
        single = single && f->blocks[i].n == 1;
        longest = STK_MAX(longest, spans_of(f, &f->blocks[i]));
    }
    job j = {f, &f->c.dense->layers[f->layer], single && longest > 1 && tasks <= f->n_split_task};
    stk_pool_share(f->c.pool, run, &j, UINT32_MAX);
    stk_stages_mark(&f->stages, 0, STK_STAGE_BARRIER);
}
