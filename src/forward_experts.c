/*
 * forward_experts: a batch of experts of one layer, as one job of the pool:
 *
 *     gate, up, silu, quantize | down
 *
 * Work is handed out by a counter in units of rows of one expert, whichever expert that is, so that heavy and light experts level
 * out. Worker 0 looks for completed reads between units, so that the drive never waits for the CPU.
 *
 * What has landed is brought into its layout by a job of its own, between batches (stk_forward_arrive).
 */
#include "forward.h"

enum { COUNT_UP, COUNT_DOWN };
enum { DOWN_STRIPES = 8 };

typedef struct job {
    stk_forward *f;
    const stk_class *class;
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

static const void *row_of(const stk_rows *rows, bool quantized, uint32_t i) {
    return quantized ? (const void *)(rows->act + (size_t)i * rows->act_stride) : rows->f32 + (size_t)i * rows->f32_stride;
}

/* Rows [row0, row0 + n_row) of gate or up for a tile of tokens, into out [STK_TILE, STK_EXPERT_ROWS]. */
static void rows_product(stk_forward *f, const stk_matrix *m, uint32_t row0, uint32_t n_row, const uint32_t *pairs, uint32_t n,
                         float *out, stk_worker *w) {
    for (uint32_t i = 0; i < n; i++) {
        w->x[i] = row_of(&f->norm, m->quantized, pairs[i] / f->routing.k);
        w->out[i] = out + (size_t)i * STK_EXPERT_ROWS;
    }
    const uint8_t *weights = (const uint8_t *)m->packed + row0 / STK_STRIPE * stk_stripe_bytes(m->type, m->n_in);
    m->product(&(stk_matmul){.weights = weights,
                             .n_in = m->n_in,
                             .n_rows = n_row,
                             .stripe_end = (uint32_t)stk_n_stripe(n_row),
                             .n_tok = n,
                             .x = w->x,
                             .out = w->out});
}

static void gate_up(const job *j, const stk_task *task, uint32_t row0, stk_worker *w) {
    stk_forward *f = j->f;
    stk_matrix gate = part_matrix(j, task, STK_GATE), up = part_matrix(j, task, STK_UP);
    uint32_t n_row = STK_MIN(gate.n_rows - row0, (uint32_t)STK_EXPERT_ROWS);
    uint32_t begin = f->routing.first[task->decision->expert], end = f->routing.first[task->decision->expert + 1];
    for (uint32_t at = begin; at < end; at += STK_TILE) {
        uint32_t n = STK_MIN(end - at, (uint32_t)STK_TILE);
        const uint32_t *pairs = f->routing.pairs + at;
        rows_product(f, &gate, row0, n_row, pairs, n, w->gate, w);
        rows_product(f, &up, row0, n_row, pairs, n, w->up, w);
        for (uint32_t i = 0; i < n; i++) {
            float *hidden = f->hidden.f32 + (size_t)pairs[i] * f->hidden.f32_stride;
            f->c.ops->silu_mul(w->gate + (size_t)i * STK_EXPERT_ROWS, w->up + (size_t)i * STK_EXPERT_ROWS, n_row, hidden + row0);
            if (stk_type_is_quantized(j->class->part[STK_DOWN].type))
                f->c.ops->quantize_groups(hidden, f->hidden.n, row0 / STK_GROUP, (row0 + n_row) / STK_GROUP,
                                          f->hidden.act + (size_t)pairs[i] * f->hidden.act_stride);
        }
    }
}

static void down(const job *j, const stk_task *task, uint32_t s0, stk_worker *w) {
    stk_forward *f = j->f;
    stk_matrix m = part_matrix(j, task, STK_DOWN);
    uint32_t s1 = STK_MIN(s0 + DOWN_STRIPES, (uint32_t)stk_n_stripe(m.n_rows));
    uint32_t begin = f->routing.first[task->decision->expert], end = f->routing.first[task->decision->expert + 1];
    for (uint32_t at = begin; at < end; at += STK_TILE) {
        uint32_t n = STK_MIN(end - at, (uint32_t)STK_TILE);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t pair = f->routing.pairs[at + i];
            w->x[i] = row_of(&f->hidden, m.quantized, pair);
            w->out[i] = f->expert_out + (size_t)f->out_row[pair] * m.n_rows;
        }
        m.product(&(stk_matmul){.weights = m.packed,
                                .n_in = m.n_in,
                                .n_rows = m.n_rows,
                                .stripe_begin = s0,
                                .stripe_end = s1,
                                .n_tok = n,
                                .x = w->x,
                                .out = w->out});
    }
}

static void run(void *ctx, uint32_t worker) {
    const job *j = ctx;
    stk_forward *f = j->f;
    stk_worker *w = &f->workers[worker];
    uint32_t up_units = (uint32_t)stk_div_up(j->class->part[STK_GATE].n_rows, STK_EXPERT_ROWS);
    uint32_t down_units = (uint32_t)stk_div_up(stk_n_stripe(j->class->part[STK_DOWN].n_rows), DOWN_STRIPES);
    for (uint32_t u; (u = stk_pool_next(f->c.pool, COUNT_UP)) < f->n_task * up_units;) {
        const stk_task *t = &f->tasks[u / up_units];
        if (t->phases & STK_PHASE_UP) gate_up(j, t, u % up_units * STK_EXPERT_ROWS, w);
        poll(j, worker);
    }
    stk_forward_meet(f, worker, STK_STAGE_GATE_UP);
    for (uint32_t u; (u = stk_pool_next(f->c.pool, COUNT_DOWN)) < f->n_task * down_units;) {
        const stk_task *t = &f->tasks[u / down_units];
        if (t->phases & STK_PHASE_DOWN) down(j, t, u % down_units * DOWN_STRIPES, w);
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
    job j = {f, stk_catalogue_class(cat, stk_catalogue_layer_class(cat, f->layer))};
    f->poll_rc = STK_OK;
    uint64_t start = stk_now_ns();
    stk_pool_run(f->c.pool, run, &j);
    stk_stages_mark(&f->stages, 0, STK_STAGE_BARRIER);
    if (f->stages.on) stk_forward_count_experts(f, j.class);
    if (f->cost) learn(f, &j, stk_now_ns() - start);
    return f->poll_rc;
}

/* ---- Arrivals ------------------------------------------------------------------------------------------------------------ */

static void arrive(void *ctx, uint32_t worker) {
    stk_forward *f = ctx;
    for (uint32_t i; (i = stk_pool_next(f->c.pool, 0)) < f->n_share;) stk_store_pack(f->c.store, i, f->workers[worker].scratch);
}

void stk_forward_arrive(stk_forward *f, bool idle) {
    f->n_share = stk_store_pick(f->c.store, idle);
    if (f->n_share == 0) return;
    uint64_t start = stk_now_ns();
    stk_pool_run(f->c.pool, arrive, f);
    uint64_t bytes = stk_store_settle(f->c.store), ns = stk_now_ns() - start;
    f->arrive_ns += ns;
    stk_stages_mark(&f->stages, 0, STK_STAGE_PACK);
    if (f->cost && bytes) stk_cost_learn_arrive(f->cost, bytes, (double)ns);
}
