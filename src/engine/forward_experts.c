/*
 * forward_experts: a batch of experts of one layer, as one job of the pool:
 *
 *     gate, up, silu, quantize | down
 *
 * Work is handed out in units of rows of one expert, a part of them to each worker (stk_pool_take); who is done early helps the
 * others. With few tokens a part is the same rows of every expert: those that the worker has packed a moment ago, which are still
 * in its cache. With many it is all rows of some experts, so that their tokens' activations stay there. Worker 0 looks for
 * completed reads between units, so that the drive never waits for the CPU.
 *
 * What has landed is brought into its layout by a job of its own, between batches (stk_forward_arrive).
 */
#include "forward.h"

enum { PHASE_UP, PHASE_DOWN };
enum { DOWN_STRIPES = 8, FEW_PAIRS = 64 };

typedef struct job {
    stk_forward *f;
    const stk_class *class;
    uint32_t n_up, n_down; /* units of an expert */
    bool by_rows;          /* the order of all units: by rows, then experts */
} job;

static stk_matrix part_matrix(const job *j, const stk_task *task, enum stk_part p) {
    const stk_part_shape *s = &j->class->part[p];
    const uint8_t *slot = task->weights ? task->weights : stk_store_slot(j->f->c.store, j->f->layer, task->decision);
    return (stk_matrix){
        s->type, s->n_rows, s->n_in, stk_type_is_quantized(s->type), slot + s->slot_offset, stk_cpu_matmul(j->f->c.ops, s->type)};
}

static void poll(const job *j, uint32_t worker) {
    if (worker == 0 && j->f->poll_rc >= 0) j->f->poll_rc = stk_store_poll(j->f->c.store, false);
    if (worker == 0 && j->f->gpu && j->f->gpu->link) stk_link_pump(j->f->gpu->link, false);
}

/* Beside a GPU's experts those of the CPU are exact, or which of the two computes one, a matter of what is cached, would show. */
static bool is_fast(const stk_forward *f, const stk_matrix *m, uint32_t n, const stk_rows *x) {
    return !f->gpu && stk_forward_is_fast(f, m, n, x);
}

/* Where the stripes of a matrix lie from row `row0` on. */
static const void *rows_at(const stk_matrix *m, uint32_t row0) {
    return (const uint8_t *)m->packed + row0 / STK_STRIPE * stk_stripe_bytes(m->type, m->n_in);
}

/* Unit u of all, of n for an expert. */
typedef struct unit {
    const stk_task *task;
    uint32_t i; /* of its expert */
} unit;

static unit unit_of(const job *j, uint32_t u, uint32_t n) {
    const stk_forward *f = j->f;
    return j->by_rows ? (unit){&f->tasks[u % f->n_task], u / f->n_task} : (unit){&f->tasks[u / n], u % n};
}

/* The first weights of a unit, for a prefetch: it may be one that is not computed in this batch. NULL behind the last. */
static const void *up_at(const job *j, uint32_t u) {
    if (u >= j->n_up * j->f->n_task) return NULL;
    unit x = unit_of(j, u, j->n_up);
    stk_matrix m = part_matrix(j, x.task, STK_GATE);
    return rows_at(&m, x.i * STK_EXPERT_ROWS);
}
static const void *down_at(const job *j, uint32_t u) {
    if (u >= j->n_down * j->f->n_task) return NULL;
    unit x = unit_of(j, u, j->n_down);
    stk_matrix m = part_matrix(j, x.task, STK_DOWN);
    return rows_at(&m, x.i * DOWN_STRIPES * STK_STRIPE);
}

/* Rows [row0, row0 + n_row) of gate or up for a tile of tokens, into out [STK_TILE, STK_EXPERT_ROWS]; `next` is read then. */
static void rows_product(stk_forward *f, const stk_matrix *m, uint32_t row0, uint32_t n_row, const uint32_t *pairs, uint32_t n,
                         float *out, const void *next, stk_worker *w) {
    const bool fast = is_fast(f, m, n, &f->norm);
    for (uint32_t i = 0; i < n; i++) {
        w->x[i] = stk_forward_row(m, fast, &f->norm, pairs[i] / f->routing.k);
        w->out[i] = out + (size_t)i * STK_EXPERT_ROWS;
    }
    const stk_matmul product = {.weights = rows_at(m, row0),
                                .next = next,
                                .n_in = m->n_in,
                                .n_rows = n_row,
                                .stripe_end = (uint32_t)stk_n_stripe(n_row),
                                .n_tok = n,
                                .x = w->x,
                                .out = w->out};
    stk_forward_multiply(f, m, fast, &product, w);
}

static void gate_up(const job *j, const stk_task *task, uint32_t row0, const void *next, stk_worker *w) {
    stk_forward *f = j->f;
    stk_matrix gate = part_matrix(j, task, STK_GATE), up = part_matrix(j, task, STK_UP);
    uint32_t n_row = STK_MIN(gate.n_rows - row0, (uint32_t)STK_EXPERT_ROWS);
    uint32_t begin = f->routing.first[task->decision->expert], end = f->routing.first[task->decision->expert + 1];
    for (uint32_t at = begin; at < end; at += STK_TILE) {
        uint32_t n = STK_MIN(end - at, (uint32_t)STK_TILE);
        const uint32_t *pairs = f->routing.pairs + at;
        rows_product(f, &gate, row0, n_row, pairs, n, w->gate, rows_at(&up, row0), w);
        rows_product(f, &up, row0, n_row, pairs, n, w->up, at + n < end ? rows_at(&gate, row0) : next, w);
        for (uint32_t i = 0; i < n; i++) {
            float *hidden = f->hidden.f32 + (size_t)pairs[i] * f->hidden.f32_stride;
            f->c.ops->silu_mul(w->gate + (size_t)i * STK_EXPERT_ROWS, w->up + (size_t)i * STK_EXPERT_ROWS, n_row, hidden + row0);
            if (stk_type_is_quantized(j->class->part[STK_DOWN].type))
                f->c.ops->quantize_groups(hidden, f->hidden.n, row0 / STK_GROUP, (row0 + n_row) / STK_GROUP,
                                          f->hidden.act + (size_t)pairs[i] * f->hidden.act_stride);
            if (f->hidden.bf16)
                stk_fast_round(f->c.fast, hidden + row0, n_row, f->hidden.bf16 + (size_t)pairs[i] * f->hidden.n + row0);
        }
    }
}

static void down(const job *j, const stk_task *task, uint32_t s0, const void *next, stk_worker *w) {
    stk_forward *f = j->f;
    stk_matrix m = part_matrix(j, task, STK_DOWN);
    uint32_t s1 = STK_MIN(s0 + DOWN_STRIPES, (uint32_t)stk_n_stripe(m.n_rows));
    uint32_t begin = f->routing.first[task->decision->expert], end = f->routing.first[task->decision->expert + 1];
    for (uint32_t at = begin; at < end; at += STK_TILE) {
        uint32_t n = STK_MIN(end - at, (uint32_t)STK_TILE);
        const bool fast = is_fast(f, &m, n, &f->hidden);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t pair = f->routing.pairs[at + i];
            w->x[i] = stk_forward_row(&m, fast, &f->hidden, pair);
            w->out[i] = f->expert_out + (size_t)f->out_row[pair] * m.n_rows;
        }
        const stk_matmul product = {.weights = m.packed,
                                    .next = at + n < end ? rows_at(&m, s0 * STK_STRIPE) : next,
                                    .n_in = m.n_in,
                                    .n_rows = m.n_rows,
                                    .stripe_begin = s0,
                                    .stripe_end = s1,
                                    .n_tok = n,
                                    .x = w->x,
                                    .out = w->out};
        stk_forward_multiply(f, &m, fast, &product, w);
    }
}

static void run(void *ctx, uint32_t worker) {
    const job *j = ctx;
    stk_forward *f = j->f;
    stk_worker *w = &f->workers[worker];
    uint32_t n_up = j->n_up * f->n_task, n_down = j->n_down * f->n_task, begin, end;
    stk_pool_part(f->c.pool, worker, n_down, &begin, &end);
    stk_fast_forget(f->c.fast, worker);
    for (uint32_t u; (u = stk_pool_take(f->c.pool, PHASE_UP, worker, n_up)) < n_up;) {
        unit x = unit_of(j, u, j->n_up);
        const void *next = up_at(j, u + 1);
        if (x.task->phases & STK_PHASE_UP) gate_up(j, x.task, x.i * STK_EXPERT_ROWS, next ? next : down_at(j, begin), w);
        poll(j, worker);
    }
    stk_forward_finish(f, PHASE_UP, worker, n_up, STK_STAGE_GATE_UP);
    for (uint32_t u; (u = stk_pool_take(f->c.pool, PHASE_DOWN, worker, n_down)) < n_down;) {
        unit x = unit_of(j, u, j->n_down);
        if (x.task->phases & STK_PHASE_DOWN) down(j, x.task, x.i * DOWN_STRIPES, down_at(j, u + 1), w);
        poll(j, worker);
    }
    stk_stages_mark(&f->stages, worker, STK_STAGE_DOWN);
}

/* Tells the cost table what the batch took, in experts; half an expert counts by its bytes. */
static void learn(stk_forward *f, const job *j, uint64_t ns) {
    double predicted = 0, tokens = 0;
    uint64_t down = j->class->part[STK_DOWN].file_bytes, all = j->class->payload_bytes;
    for (uint32_t i = 0; i < f->n_task; i++) {
        const stk_task *t = &f->tasks[i];
        uint64_t bytes = (t->phases & STK_PHASE_UP ? all - down : 0) + (t->phases & STK_PHASE_DOWN ? down : 0);
        tokens += t->decision->n_tok;
        predicted += stk_cost_expert_ns(f->cost, bytes, t->decision->n_tok);
    }
    stk_cost_learn_experts(f->cost, (uint32_t)(tokens / f->n_task + 0.5), predicted, (double)ns);
}

int stk_forward_experts(stk_forward *f) {
    const stk_catalogue *cat = f->c.model->experts;
    const stk_class *class = stk_catalogue_class(cat, stk_catalogue_layer_class(cat, f->layer));
    job j = {.f = f,
             .class = class,
             .n_up = (uint32_t)stk_div_up(class->part[STK_GATE].n_rows, STK_EXPERT_ROWS),
             .n_down = (uint32_t)stk_div_up(stk_n_stripe(class->part[STK_DOWN].n_rows), DOWN_STRIPES),
             .by_rows = f->step->n_tok * f->routing.k <= FEW_PAIRS};
    f->poll_rc = STK_OK;
    uint64_t start = stk_now_ns();
    stk_pool_share(f->c.pool, run, &j, UINT32_MAX);
    stk_stages_mark(&f->stages, 0, STK_STAGE_BARRIER);
    if (f->stages.on) stk_forward_count_experts(f, j.class);
    if (f->cost) learn(f, &j, stk_now_ns() - start);
    STK_TRY(stk_fast_check(f->c.fast));
    return f->poll_rc;
}

/* ---- Arrivals ------------------------------------------------------------------------------------------------------------ */

static void arrive(void *ctx, uint32_t worker) {
    stk_forward *f = ctx;
    for (uint32_t i; (i = stk_pool_take(f->c.pool, 0, worker, f->n_share)) < f->n_share;)
        stk_store_pack(f->c.store, i, f->workers[worker].scratch);
}

void stk_forward_arrive(stk_forward *f, bool idle) {
    f->n_share = stk_store_pick(f->c.store, idle);
    if (f->n_share == 0) return;
    uint64_t start = stk_now_ns();
    stk_pool_share(f->c.pool, arrive, f, f->n_share);
    uint64_t bytes = stk_store_settle(f->c.store), ns = stk_now_ns() - start;
    f->arrive_ns += ns;
    stk_stages_mark(&f->stages, 0, STK_STAGE_PACK);
    if (f->cost && bytes) stk_cost_learn_arrive(f->cost, bytes, (double)ns);
}
