/* routers: rows out of the packed weights, scaled, quantized and packed again. */
#include "routers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/numeric.h"

typedef struct job {
    const stk_model *model;
    const stk_dense *dense;
    stk_pool *pool;
    const stk_routers *routers;
    uint64_t each;    /* bytes of a copy */
    uint8_t *scratch; /* [n_worker, worker_bytes] a row in f32, a stripe of rows as in a file, and the scratch of packing */
    uint64_t worker_bytes, rows_offset, pack_offset;
} job;

enum stk_type stk_routers_type(const stk_hparams *hp) { return hp->n_embd % STK_GROUP == 0 ? STK_TYPE_Q8_0 : STK_TYPE_F32; }

static uint64_t copy_bytes(const stk_hparams *hp) {
    return stk_align_up(stk_matrix_bytes(stk_routers_type(hp), hp->n_expert, hp->n_embd), STK_SLOT_ALIGN);
}

uint64_t stk_routers_bytes(const stk_model *model) {
    const stk_hparams *hp = &model->hp;
    return hp->n_layer * copy_bytes(hp) + stk_align_up(hp->n_embd * sizeof(float), 64);
}

/* A row as a file has it: blocks of a scale in f16 and 32 codes. */
static void quantize_row(const float *row, uint32_t n, uint8_t *out) {
    for (uint32_t g = 0; g < n; g += STK_GROUP, out += 2 + STK_GROUP) {
        float most = 0;
        for (uint32_t i = 0; i < STK_GROUP; i++) most = fmaxf(most, fabsf(row[g + i]));
        uint16_t half = stk_f32_f16_sat(most / 127);
        float scale = stk_f16_f32(half);
        memcpy(out, &half, 2);
        for (uint32_t i = 0; i < STK_GROUP; i++) {
            float code = scale > 0 ? rintf(row[g + i] / scale) : 0;
            out[2 + i] = (uint8_t)(int8_t)fmaxf(fminf(code, 127), -127); /* NaN too: it ranks nowhere */
        }
    }
}

/* The stripe of a layer's router, 16 rows. */
static void copy_stripe(const job *j, uint32_t layer, uint32_t stripe, uint8_t *scratch) {
    const stk_dense_layer *from = &j->dense->layers[layer];
    const stk_matrix *to = &j->routers->layers[layer];
    uint32_t n = to->n_in, first = stripe * STK_STRIPE, end = STK_MIN(first + STK_STRIPE, to->n_rows);
    uint64_t row_bytes = to->quantized ? n / STK_GROUP * (2 + STK_GROUP) : n * sizeof(float);
    float *row = (float *)scratch;
    uint8_t *rows = scratch + j->rows_offset;
    for (uint32_t r = first; r < end; r++, rows += row_bytes) {
        stk_layout_row(from->router.type, n, from->router.packed, r, row);
        for (uint32_t i = 0; i < n; i++) row[i] *= from->ffn_norm[i];
        if (to->quantized)
            quantize_row(row, n, rows);
        else
            memcpy(rows, row, row_bytes);
    }
    uint8_t *packed = (uint8_t *)j->routers->map.base + layer * j->each;
    stk_layout_pack_stripes(to->type, to->n_rows, n, stripe, stripe + 1, scratch + j->rows_offset, packed,
                            scratch + j->pack_offset);
}

static void run(void *ctx, uint32_t worker) {
    const job *j = ctx;
    uint32_t each = (uint32_t)stk_n_stripe(j->model->hp.n_expert), n = j->model->hp.n_layer * each;
    for (uint32_t i; (i = stk_pool_take(j->pool, 0, worker, n)) < n;)
        if (j->routers->layers[i / each].n_rows) copy_stripe(j, i / each, i % each, j->scratch + worker * j->worker_bytes);
}

static int make(stk_routers *r, const stk_model *model, const stk_dense *dense, stk_pool *pool) {
    const stk_hparams *hp = &model->hp;
    job j = {.model = model, .dense = dense, .pool = pool, .routers = r, .each = copy_bytes(hp)};
    j.rows_offset = stk_align_up(hp->n_embd * sizeof(float), 64);
    j.pack_offset = 2 * j.rows_offset + j.rows_offset * STK_STRIPE; /* rows in f32 at most */
    j.worker_bytes = stk_align_up(j.pack_offset + stk_layout_scratch_bytes(stk_routers_type(hp), hp->n_embd), 64);
    j.scratch = aligned_alloc(64, j.worker_bytes * stk_pool_n_worker(pool));
    if (!j.scratch) return stk_fail(STK_ENOMEM, "out of memory for copies of the routers");
    stk_pool_share(pool, run, &j, UINT32_MAX);
    free(j.scratch);
    return STK_OK;
}

int stk_routers_open(stk_routers *r, const stk_model *model, const stk_dense *dense, const stk_cpu_ops *ops, stk_pool *pool,
                     bool lock) {
    int rc;
    const stk_hparams *hp = &model->hp;
    enum stk_type type = stk_routers_type(hp);
    memset(r, 0, sizeof *r);
    r->layers = calloc(hp->n_layer, sizeof *r->layers);
    if (!r->layers) return stk_fail(STK_ENOMEM, "out of memory for %u layers", hp->n_layer);
    STK_TRYGOTO(stk_map_open(&r->map, stk_routers_bytes(model), lock, "copies of the routers"), rc, out);
    uint8_t *base = r->map.base;
    for (uint32_t l = 0; l < hp->n_layer; l++)
        if (dense->layers[l].router.n_rows)
            r->layers[l] = (stk_matrix){type,
                                        hp->n_expert,
                                        hp->n_embd,
                                        stk_type_is_quantized(type),
                                        base + l * copy_bytes(hp),
                                        stk_cpu_matmul(ops, type)};
    r->ones = (float *)(base + hp->n_layer * copy_bytes(hp));
    for (uint32_t i = 0; i < hp->n_embd; i++) r->ones[i] = 1;
    rc = make(r, model, dense, pool);
out:
    if (rc < 0) stk_routers_close(r);
    return rc;
}

void stk_routers_close(stk_routers *r) {
    stk_map_close(&r->map);
    free(r->layers);
    memset(r, 0, sizeof *r);
}
