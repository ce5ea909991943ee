/* forward: buffers, the stage and the world. */
#include "forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/numeric.h"

/* ---- Buffers: one list, walked to count and again to place ---- */

typedef struct placer {
    uint8_t *base; /* NULL while counting */
    uint64_t bytes;
} placer;

static void *take(placer *p, uint64_t bytes) {
    void *at = p->base ? p->base + p->bytes : NULL;
    p->bytes += stk_align_up(bytes, 64);
    return at;
}

/* Rows of which products read the quantized form, where that exists for their length, and the rounded one, where `fast`. */
static void take_rows(placer *p, stk_rows *r, uint64_t count, uint32_t n, bool fast) {
    const bool act = n % STK_GROUP == 0;
    r->n = n;
    r->f32_stride = (n + 15u) & ~15u;
    r->f32 = take(p, count * r->f32_stride * sizeof(float));
    r->act_stride = act ? stk_act_layout_of(n).bytes : 0;
    r->act = act ? take(p, count * r->act_stride) : NULL;
    r->bf16 = fast && act ? take(p, count * n * sizeof *r->bf16) : NULL;
}

static void take_worker(placer *p, const stk_forward *f, stk_worker *w) {
    const stk_hparams *hp = &f->c.model->hp;
    uint64_t state = (uint64_t)STK_QUERY_TILE * (2 + hp->value_dim) * sizeof(float);
    w->gate = take(p, STK_TILE * STK_EXPERT_ROWS * sizeof(float));
    w->up = take(p, STK_TILE * STK_EXPERT_ROWS * sizeof(float));
    w->scratch = take(p, stk_catalogue_scratch_bytes(f->c.model->experts));
    w->half = take(p, STK_MAX(hp->head_dim, hp->value_dim) * sizeof(uint16_t));
    w->state = take(p, state);
    w->merged = take(p, state);
    w->taken = take(p, hp->n_expert);
}

static void place(stk_forward *f, placer *p, uint32_t n_worker) {
    const stk_hparams *hp = &f->c.model->hp;
    uint64_t b = f->c.n_batch, k = hp->n_expert_used, f4 = sizeof(float);
    f->queries = hp->n_head / hp->n_head_kv;
    f->n_span = (uint32_t)stk_div_up(f->c.n_ctx, STK_SPAN);
    f->n_split_task = 2 * n_worker;
    f->blocks = take(p, b * sizeof *f->blocks);
    f->logit_row = take(p, b * sizeof *f->logit_row);
    f->x = take(p, b * hp->n_embd * f4);
    take_rows(p, &f->norm, b, hp->n_embd, f->c.fast);
    f->q = take(p, b * hp->n_head * hp->head_dim * f4);
    f->k = take(p, b * hp->n_head_kv * hp->head_dim * f4);
    f->v = take(p, b * hp->n_head_kv * hp->value_dim * f4);
    take_rows(p, &f->attn, b, hp->n_head * hp->value_dim, f->c.fast);
    f->proj = take(p, b * hp->n_embd * f4);
    f->scores = take(p, b * hp->n_expert * f4);
    uint64_t looks = STK_MIN(b, STK_LOOKAHEAD_TOKENS);
    take_rows(p, &f->ahead, looks, hp->n_embd, false);
    f->ahead_scores = take(p, looks * STK_PREDICT_DEPTH_MAX * hp->n_expert * f4);
    take_rows(p, &f->hidden, b * k, hp->n_ff_expert, f->c.fast);
    f->expert_out = take(p, b * k * hp->n_embd * f4);
    f->out_row = take(p, b * k * sizeof *f->out_row);
    f->logits = take(p, (uint64_t)f->c.n_logits * hp->n_vocab * f4);
    f->final_hidden = take(p, (uint64_t)f->c.n_logits * hp->n_embd * f4);
    f->rope = take(p, (uint64_t)f->c.n_ctx * hp->rope_dim * f4);
    f->split_state = take(p, (uint64_t)f->n_split_task * f->n_span * f->queries * (2 + hp->value_dim) * f4);
    f->all_ids = take(p, hp->n_layer * b * k * sizeof *f->all_ids);
    f->all_weights = take(p, hp->n_layer * b * k * f4);
    stk_stages_place(&f->stages, hp->n_layer, take(p, stk_stages_bytes(hp->n_layer)));
    stk_worker none;
    f->workers = take(p, n_worker * sizeof *f->workers);
    for (uint32_t i = 0; i < n_worker; i++) take_worker(p, f, f->workers ? &f->workers[i] : &none);
}

static uint32_t top_scores(const stk_hparams *hp) { return STK_MIN(2 * hp->n_expert_used, hp->n_expert); }

uint64_t stk_forward_bytes(const stk_forward_config *config, uint32_t n_worker) {
    stk_forward f = {.c = *config};
    placer p = {0};
    place(&f, &p, n_worker);
    const stk_hparams *hp = &config->model->hp;
    return p.bytes + stk_routing_bytes(config->n_batch, hp->n_expert_used, top_scores(hp), hp->n_expert);
}

/* Angles as the model was trained with them: frequencies and products in float32. */
static void fill_rope(stk_forward *f) {
    const stk_hparams *hp = &f->c.model->hp;
    for (uint32_t i = 0; i < hp->rope_dim / 2; i++) {
        float freq = (float)(1.0 / pow((double)hp->rope_base, 2.0 * i / hp->rope_dim));
        if (f->c.dense->rope_freqs) freq /= f->c.dense->rope_freqs[i];
        for (uint32_t pos = 0; pos < f->c.n_ctx; pos++) {
            float angle = (float)pos / hp->rope_factor * freq;
            float *at = f->rope + (size_t)pos * hp->rope_dim + 2 * (size_t)i;
            at[0] = (float)cos((double)angle);
            at[1] = (float)sin((double)angle);
        }
    }
}

int stk_forward_check(const stk_hparams *hp) {
    enum { MAX_HEAD_DIM = 512, MAX_EXPERT = 4096 };
    if (hp->n_head / hp->n_head_kv > STK_QUERY_TILE)
        return stk_fail(STK_EUNSUPPORTED, "%u query heads share a KV head; at most %d can", hp->n_head / hp->n_head_kv,
                        STK_QUERY_TILE);
    if (hp->head_dim != hp->value_dim)
        return stk_fail(STK_EUNSUPPORTED, "heads with keys of %u and values of %u elements; both must have the same",
                        hp->head_dim, hp->value_dim);
    if (hp->head_dim % 8 || hp->head_dim > MAX_HEAD_DIM)
        return stk_fail(STK_EUNSUPPORTED, "heads of %u elements; multiples of 8 up to %d are possible", hp->head_dim,
                        MAX_HEAD_DIM);
    if (hp->n_expert > MAX_EXPERT)
        return stk_fail(STK_EUNSUPPORTED, "%u experts a layer; at most %d are possible", hp->n_expert, MAX_EXPERT);
    return STK_OK;
}

int stk_forward_open(stk_forward **out, const stk_forward_config *config, bool lock) {
    int rc;
    *out = NULL;
    const stk_hparams *hp = &config->model->hp;
    stk_forward *f = calloc(1, sizeof *f);
    if (!f) return stk_fail(STK_ENOMEM, "out of memory");
    f->c = *config;
    f->n_top = top_scores(hp);
    uint32_t n_worker = stk_pool_n_worker(config->pool);
    placer p = {0};
    place(f, &p, n_worker);
    STK_TRYGOTO(stk_map_open(&f->map, p.bytes, lock, "compute buffers"), rc, out);
    p = (placer){f->map.base, 0};
    place(f, &p, n_worker);
    STK_TRYGOTO(stk_routing_open(&f->routing, config->n_batch, hp->n_expert_used, f->n_top, hp->n_expert), rc, out);
    fill_rope(f);
    for (uint32_t i = 0; i < config->n_batch * hp->n_expert_used; i++) f->out_row[i] = i;
out:
    if (rc < 0) stk_forward_close(&f);
    *out = f;
    return rc;
}

void stk_forward_close(stk_forward **f) {
    if (!*f) return;
    stk_routing_close(&(*f)->routing);
    stk_map_close(&(*f)->map);
    free(*f);
    *f = NULL;
}

/* ---- Shared by the parts ---- */

void stk_forward_quantize(const stk_forward *f, stk_rows *rows, uint32_t i) {
    if (rows->act)
        f->c.ops->quantize(rows->f32 + (size_t)i * rows->f32_stride, rows->n, rows->act + (size_t)i * rows->act_stride);
    if (rows->bf16)
        stk_fast_round(f->c.fast, rows->f32 + (size_t)i * rows->f32_stride, rows->n, rows->bf16 + (size_t)i * rows->n);
}

bool stk_forward_is_fast(const stk_forward *f, const stk_matrix *m, uint32_t n, const stk_rows *x) {
    return x->bf16 && stk_fast_serves(f->c.fast, m->type, m->n_in, n);
}

const void *stk_forward_row(const stk_matrix *m, bool fast, const stk_rows *x, uint32_t i) {
    if (fast) return x->bf16 + (size_t)i * x->n;
    return m->quantized ? (const void *)(x->act + (size_t)i * x->act_stride) : x->f32 + (size_t)i * x->f32_stride;
}

void stk_forward_multiply(const stk_forward *f, const stk_matrix *m, bool fast, const stk_matmul *product, const stk_worker *w) {
    if (fast)
        stk_fast_product(f->c.fast, (uint32_t)(w - f->workers), m->type, product);
    else
        m->product(product);
}

void stk_forward_product(const stk_forward *f, const stk_matrix *m, uint32_t s0, uint32_t s1, uint32_t n, const stk_rows *x,
                         float *out, uint32_t out_stride, stk_worker *w) {
    for (uint32_t at = 0; at < n; at += STK_TILE) {
        uint32_t tile = STK_MIN(n - at, (uint32_t)STK_TILE);
        bool fast = stk_forward_is_fast(f, m, tile, x);
        for (uint32_t i = 0; i < tile; i++) {
            w->x[i] = stk_forward_row(m, fast, x, at + i);
            w->out[i] = out + (size_t)(at + i) * out_stride;
        }
        const stk_matmul product = {.weights = m->packed,
                                    .next = m->quantized ? (const uint8_t *)m->packed + s1 * stk_stripe_bytes(m->type, m->n_in)
                                                         : NULL,
                                    .n_in = m->n_in,
                                    .n_rows = m->n_rows,
                                    .stripe_begin = s0,
                                    .stripe_end = s1,
                                    .n_tok = tile,
                                    .x = w->x,
                                    .out = w->out};
        stk_forward_multiply(f, m, fast, &product, w);
    }
}

void stk_forward_finish(stk_forward *f, uint32_t phase, uint32_t worker, uint32_t n, uint32_t stage) {
    stk_stages_mark(&f->stages, worker, stage);
    stk_pool_finish(f->c.pool, phase, worker, n);
    stk_stages_mark(&f->stages, worker, STK_STAGE_BARRIER);
}

/* A job of one phase whose items are the step's tokens. */
static uint32_t take_token(stk_forward *f, uint32_t worker) { return stk_pool_take(f->c.pool, 0, worker, f->step->n_tok); }

/* Runs such a job that is one stage, or ends with it. */
static void run_stage(stk_forward *f, stk_pool_fn fn, uint32_t stage) {
    stk_pool_share(f->c.pool, fn, f, f->step->n_tok);
    stk_stages_mark(&f->stages, 0, stage);
}

/* ---- The stage ---- */

/* Cuts the step into runs of one sequence, short enough for an attention task. */
static void make_blocks(stk_forward *f) {
    const stk_trace_step *s = f->step;
    uint32_t most = STK_QUERY_TILE / f->queries;
    f->n_block = 0;
    for (uint32_t t = 0; t < s->n_tok; t++) {
        stk_block *b = f->n_block ? &f->blocks[f->n_block - 1] : NULL;
        if (b && b->n < most && b->seq == (uint32_t)s->seq[t])
            b->n++;
        else
            f->blocks[f->n_block++] = (stk_block){t, 1, (uint32_t)s->seq[t]};
    }
}

static void embed_job(void *ctx, uint32_t worker) {
    stk_forward *f = ctx;
    const stk_matrix *m = &f->c.dense->token_embd;
    for (uint32_t t; (t = take_token(f, worker)) < f->step->n_tok;)
        stk_layout_row(m->type, m->n_in, m->packed, (uint64_t)f->step->token[t], f->x + (size_t)t * m->n_in);
}

static int begin(void *stage, const stk_trace_step *step) {
    stk_forward *f = stage;
    stk_stages_begin(&f->stages, step->n_tok);
    f->step = step;
    f->n_logit_row = 0;
    for (uint32_t t = 0; t < step->n_tok; t++) f->logit_row[t] = step->logits[t] ? f->n_logit_row++ : UINT32_MAX;
    make_blocks(f);
    run_stage(f, embed_job, STK_STAGE_EMBED);
    return f->gpu ? stk_gpu_begin(f, stk_kv_table(f->c.kv)) : STK_OK;
}

void stk_forward_force(stk_forward *f, uint32_t token) {
    size_t k = f->routing.k;
    if (!f->forced || !f->forced_layers[f->layer]) return;
    for (size_t i = 0; i < k; i++) {
        f->routing.ids[token * k + i] = f->forced[f->layer * k + i];
        f->routing.weights[token * k + i] = 1.0f / (float)k;
    }
}

static void choose_job(void *ctx, uint32_t worker) {
    stk_forward *f = ctx;
    const stk_hparams *hp = &f->c.model->hp;
    stk_router router = {hp->n_expert, hp->n_expert_used, f->c.model->family->router == STK_ROUTER_SOFTMAX_RENORM,
                         hp->router_scale};
    for (uint32_t t; (t = take_token(f, worker)) < f->step->n_tok;) {
        float *p = f->scores + (size_t)t * hp->n_expert;
        size_t k = router.k;
        f->c.ops->softmax(p, hp->n_expert, p);
        for (uint32_t d = 0; d < f->n_ahead; d++) {
            float *next = f->ahead_scores + ((size_t)d * f->step->n_tok + t) * hp->n_expert;
            f->c.ops->softmax(next, hp->n_expert, next);
        }
        stk_router_choose(&router, p, f->n_top, f->routing.ids + t * k, f->routing.weights + t * k,
                          f->routing.top_ids + (size_t)t * f->n_top, f->routing.top_scores + (size_t)t * f->n_top,
                          f->workers[worker].taken);
        stk_forward_force(f, t);
    }
}

static int route(void *stage, uint32_t layer, stk_event *event) {
    stk_forward *f = stage;
    size_t pairs = (size_t)f->step->n_tok * f->routing.k, at = (size_t)layer * f->c.n_batch * f->routing.k;
    f->layer = layer;
    f->n_ahead = f->prefetch ? stk_prefetch_lookahead(f->prefetch, layer, f->step->n_tok) : 0;
    f->poll_rc = STK_OK;
    stk_stages_layer(&f->stages, layer);
    if (f->stages.on) stk_forward_count_ahead(f);
    if (stk_gpu_has_layer(f->gpu, layer)) {
        STK_TRY(stk_gpu_route(f));
        for (uint32_t t = 0; t < f->step->n_tok; t++) stk_forward_force(f, t);
        stk_stages_mark(&f->stages, 0, STK_STAGE_DEVICE);
    } else {
        stk_forward_attention(f);
        STK_TRY(f->poll_rc);
        STK_TRY(stk_fast_check(f->c.fast));
        stk_pool_share(f->c.pool, choose_job, f, f->step->n_tok);
    }
    f->n_out_row = (uint32_t)pairs;
    for (uint32_t i = 0; f->gpu && i < pairs; i++) f->out_row[i] = i;
    stk_routing_group(&f->routing, f->step->n_tok, event);
    event->layer = layer;
    memcpy(f->all_ids + at, f->routing.ids, pairs * sizeof *f->all_ids);
    memcpy(f->all_weights + at, f->routing.weights, pairs * sizeof *f->all_weights);
    stk_stages_mark(&f->stages, 0, STK_STAGE_ROUTER);
    return 1;
}

static void combine_job(void *ctx, uint32_t worker) {
    stk_forward *f = ctx;
    uint32_t n_embd = f->c.model->hp.n_embd, k = f->routing.k;
    for (uint32_t t; (t = take_token(f, worker)) < f->step->n_tok;) {
        float *sum = f->proj + (size_t)t * n_embd;
        memset(sum, 0, n_embd * sizeof *sum);
        for (uint32_t r = 0; r < k; r++) {
            size_t pair = (size_t)t * k + r;
            f->c.ops->axpy(sum, f->routing.weights[pair], f->expert_out + pair * n_embd, n_embd);
        }
        f->c.ops->add(f->x + (size_t)t * n_embd, sum, n_embd);
    }
}

/* What the predictor says of the layers ahead, from what their routers say. */
static int ahead(void *stage, const stk_event *event, const stk_gain_now *now, stk_ahead **list) {
    stk_forward *f = stage;
    if (!f->prefetch) return 0;
    stk_lookahead look = {f->n_ahead, event->n_tok, f->c.model->hp.n_expert, f->ahead_scores};
    stk_stages_mark(&f->stages, 0, STK_STAGE_CACHE);
    int n = stk_prefetch_choose(f->prefetch, event, &look, now, list);
    stk_stages_mark(&f->stages, 0, STK_STAGE_ROUTER);
    return n;
}

static bool may_evict(void *stage, uint32_t i, uint32_t victim) {
    return stk_prefetch_may_evict(((stk_forward *)stage)->prefetch, i, victim);
}

static int combine(void *stage, uint32_t layer) {
    stk_forward *f = stage;
    stk_stages_mark(&f->stages, 0, STK_STAGE_CACHE);
    if (stk_gpu_has_layer(f->gpu, layer)) {
        STK_TRY(stk_gpu_combine(f));
        stk_stages_mark(&f->stages, 0, STK_STAGE_COMBINE);
        return STK_OK;
    }
    run_stage(f, combine_job, STK_STAGE_COMBINE);
    return STK_OK;
}

static void output_job(void *ctx, uint32_t worker) {
    stk_forward *f = ctx;
    const stk_hparams *hp = &f->c.model->hp;
    uint32_t n_worker = stk_pool_n_worker(f->c.pool);
    for (uint32_t t; (t = take_token(f, worker)) < f->step->n_tok;) {
        uint32_t row = f->logit_row[t];
        if (row == UINT32_MAX) continue;
        const float *x = f->x + (size_t)t * hp->n_embd;
        memcpy(f->final_hidden + (size_t)row * hp->n_embd, x, hp->n_embd * sizeof *x);
        f->c.ops->rmsnorm(x, f->c.dense->output_norm, hp->n_embd, hp->rms_eps, f->norm.f32 + (size_t)row * f->norm.f32_stride);
        stk_forward_quantize(f, &f->norm, row);
    }
    stk_forward_finish(f, 0, worker, f->step->n_tok, STK_STAGE_OUTPUT);
    const stk_matrix *m = &f->c.dense->output;
    uint32_t total = (uint32_t)stk_n_stripe(m->n_rows), step = STK_MIN(STK_MAX(total / (n_worker * 8), 1u), 32u);
    uint32_t n = (uint32_t)stk_div_up(total, step);
    stk_fast_forget(f->c.fast, worker);
    for (uint32_t s; (s = stk_pool_take(f->c.pool, 1, worker, n) * step) < total;)
        stk_forward_product(f, m, s, STK_MIN(s + step, total), f->n_logit_row, &f->norm, f->logits, hp->n_vocab,
                            &f->workers[worker]);
    stk_stages_mark(&f->stages, worker, STK_STAGE_OUTPUT);
}

static int finish(void *stage) {
    stk_forward *f = stage;
    stk_stages_layer(&f->stages, f->stages.n_layer);
    if (f->stages.on) stk_forward_count_dense(f);
    if (stk_gpu_has_output(f->gpu)) {
        STK_TRY(stk_gpu_output(f));
        stk_stages_mark(&f->stages, 0, STK_STAGE_DEVICE);
    } else if (f->n_logit_row) {
        stk_pool_share(f->c.pool, output_job, f, UINT32_MAX);
        STK_TRY(stk_fast_check(f->c.fast));
    }
    stk_stages_mark(&f->stages, 0, STK_STAGE_BARRIER);
    return STK_OK;
}

static uint64_t now_ns(void *stage) {
    (void)stage;
    return stk_now_ns();
}

const stk_stage_ops stk_forward_stage = {begin, route, ahead, may_evict, combine, finish, now_ns};

/* ---- The world ---- */

static int world_read(void *world, uint32_t layer, const stk_decision *d, uint32_t index) {
    stk_forward *f = world;
    stk_stages_mark(&f->stages, 0, STK_STAGE_CACHE);
    int rc = stk_store_read(f->c.store, layer, d, index);
    stk_stages_mark(&f->stages, 0, STK_STAGE_IO);
    return rc;
}
static int world_prefetch(void *world, uint32_t layer, const stk_decision *d) {
    stk_forward *f = world;
    stk_stages_mark(&f->stages, 0, STK_STAGE_CACHE);
    int rc = stk_store_prefetch(f->c.store, layer, d);
    stk_stages_mark(&f->stages, 0, STK_STAGE_IO);
    return rc;
}
static int world_want(void *world, const stk_decision *d, uint32_t index) {
    return stk_store_want(((stk_forward *)world)->c.store, d, index);
}
static int world_reap(void *world, stk_arrival *out, uint32_t max, bool wait) {
    stk_forward *f = world;
    stk_stages_mark(&f->stages, 0, STK_STAGE_CACHE);
    STK_TRY(stk_store_poll(f->c.store, wait));
    stk_stages_mark(&f->stages, 0, STK_STAGE_IO);
    stk_forward_arrive(f, wait);
    return (int)stk_store_take(f->c.store, out, max);
}
static int world_compute(void *world, uint32_t layer, const stk_event *event, const stk_task *tasks, uint32_t n) {
    stk_forward *f = world;
    (void)event; /* its routing is f->routing, grouped by expert */
    f->layer = layer;
    f->tasks = tasks;
    f->n_task = n;
    stk_stages_mark(&f->stages, 0, STK_STAGE_CACHE);
    return stk_forward_experts(f);
}
static uint32_t world_drain(void *world, const uint32_t **keys) { return stk_store_drain(((stk_forward *)world)->c.store, keys); }
static void world_sizes(void *world, uint32_t layer, uint32_t expert, uint64_t *payload_bytes, uint64_t *read_bytes) {
    stk_store_sizes(((stk_forward *)world)->c.store, layer, expert, payload_bytes, read_bytes);
}
static uint64_t world_arrive_ns(void *world) { return ((stk_forward *)world)->arrive_ns; }
static void world_backlog(void *world, uint64_t *demand_bytes, uint64_t *ahead_bytes) {
    stk_store_backlog(((stk_forward *)world)->c.store, demand_bytes, ahead_bytes);
}
static void world_stale(void *world, uint32_t key) { stk_store_stale(((stk_forward *)world)->c.store, key); }

const stk_world_ops stk_forward_world = {now_ns,      world_read,  world_prefetch,  world_want,    world_reap, world_compute,
                                         world_drain, world_sizes, world_arrive_ns, world_backlog, world_stale};
