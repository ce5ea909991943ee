/* routers: the copies say what the float routers say behind their norm, to within the rounding of their codes. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "src/ahead/routers.h"

enum { N_LAYER = 3 };

typedef struct fixture {
    stk_model model;
    stk_dense dense;
    stk_dense_layer layers[N_LAYER];
    float *weights[N_LAYER], *norm; /* [n_expert, n_embd] as in a file; [n_embd] */
    stk_pool *pool;
    const stk_cpu_ops *ops;
    stk_routers routers;
} fixture;

static float draw(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1;
}

/* The router of layer 1 is missing, as that of a dense layer is. */
static void begin(fixture *t, uint32_t n_expert, uint32_t n_embd) {
    uint32_t rng = 7;
    *t = (fixture){.ops = stk_cpu_ops_get(NULL)};
    t->model.hp = (stk_hparams){.n_layer = N_LAYER, .n_expert = n_expert, .n_embd = n_embd};
    t->dense.layers = t->layers;
    cr_assert_eq(stk_pool_open(&t->pool, 2), 0);
    t->norm = malloc(n_embd * sizeof(float));
    for (uint32_t i = 0; i < n_embd; i++) t->norm[i] = 1 + draw(&rng);
    void *scratch = malloc(stk_layout_scratch_bytes(STK_TYPE_F32, n_embd));
    for (uint32_t l = 0; l < N_LAYER; l += 2) {
        t->weights[l] = malloc((size_t)n_expert * n_embd * sizeof(float));
        for (size_t i = 0; i < (size_t)n_expert * n_embd; i++) t->weights[l][i] = 0.02f * draw(&rng);
        void *packed = aligned_alloc(64, stk_matrix_bytes(STK_TYPE_F32, n_expert, n_embd));
        stk_layout_pack(STK_TYPE_F32, n_expert, n_embd, t->weights[l], packed, scratch);
        t->layers[l] =
            (stk_dense_layer){.router = {STK_TYPE_F32, n_expert, n_embd, false, packed, t->ops->matmul_f32}, .ffn_norm = t->norm};
    }
    free(scratch);
    cr_assert_eq(stk_routers_open(&t->routers, &t->model, &t->dense, t->ops, t->pool, false), 0, "%s", stk_error_detail());
    cr_assert_eq(t->routers.map.bytes >= stk_routers_bytes(&t->model), 1);
}

static void end(fixture *t) {
    stk_routers_close(&t->routers);
    cr_assert_null(t->routers.layers);
    stk_routers_close(&t->routers);
    stk_pool_close(&t->pool);
    for (uint32_t l = 0; l < N_LAYER; l++) {
        free((void *)(uintptr_t)t->layers[l].router.packed);
        free(t->weights[l]);
    }
    free(t->norm);
}

/* What layer l would score for x [n_embd], by its copy. */
static void ask(const fixture *t, uint32_t l, const float *x, float *out) {
    const stk_matrix *m = &t->routers.layers[l];
    uint32_t n = m->n_in;
    float *normed = aligned_alloc(64, ((n + 16u) & ~15u) * sizeof(float));
    void *act = aligned_alloc(64, stk_act_layout_of(n + 32).bytes);
    memset(normed, 0, ((n + 16u) & ~15u) * sizeof(float));
    t->ops->rmsnorm(x, t->routers.ones, n, 1e-6f, normed);
    if (m->quantized) t->ops->quantize(normed, n, act);
    const void *row = m->quantized ? act : (void *)normed;
    m->product(&(stk_matmul){.weights = m->packed,
                             .n_in = n,
                             .n_rows = m->n_rows,
                             .stripe_end = (uint32_t)stk_n_stripe(m->n_rows),
                             .n_tok = 1,
                             .x = &row,
                             .out = &out});
    free(normed);
    free(act);
}

static void check(uint32_t n_expert, uint32_t n_embd, bool quantized) {
    fixture t;
    uint32_t rng = 11;
    begin(&t, n_expert, n_embd);
    float *x = malloc(n_embd * sizeof(float)), *got = malloc((n_expert + 16) * sizeof(float));
    cr_assert_eq(t.routers.layers[1].n_rows, 0);
    for (uint32_t l = 0; l < N_LAYER; l += 2) {
        double square = 0, error = 0, scale = 0;
        cr_assert_eq(t.routers.layers[l].quantized, quantized);
        for (uint32_t i = 0; i < n_embd; i++) x[i] = 3 * draw(&rng);
        for (uint32_t i = 0; i < n_embd; i++) square += (double)x[i] * (double)x[i];
        ask(&t, l, x, got);
        for (uint32_t e = 0; e < n_expert; e++) {
            double want = 0;
            for (uint32_t i = 0; i < n_embd; i++)
                want += (double)t.weights[l][(size_t)e * n_embd + i] * (double)t.norm[i] * (double)x[i] /
                        sqrt(square / n_embd + 1e-6);
            error += fabs((double)got[e] - want);
            scale += fabs(want);
        }
        cr_assert_lt(error, (quantized ? 0.02 : 1e-4) * scale, "layer %u: off by %g of %g", l, error, scale);
    }
    free(x);
    free(got);
    end(&t);
}

Test(routers, copies_say_what_the_routers_say) {
    check(128, 256, true);
    check(20, 96, true); /* a stripe that is not full, a block that is not */
}

Test(routers, what_is_no_multiple_of_a_group_stays_in_float) { check(17, 40, false); }

Test(routers, zeros_and_what_no_half_holds) {
    fixture t;
    begin(&t, 16, 64);
    float x[64], got[32];
    memset(t.weights[0], 0, 16 * 64 * sizeof(float));
    for (uint32_t i = 0; i < 64; i++) t.weights[0][64 + i] = 1e30f, x[i] = 1;
    void *scratch = malloc(stk_layout_scratch_bytes(STK_TYPE_F32, 64));
    stk_layout_pack(STK_TYPE_F32, 16, 64, t.weights[0], (void *)(uintptr_t)t.layers[0].router.packed, scratch);
    free(scratch);
    stk_routers_close(&t.routers);
    cr_assert_eq(stk_routers_open(&t.routers, &t.model, &t.dense, t.ops, t.pool, false), 0);
    ask(&t, 0, x, got);
    cr_assert(got[0] == 0 && got[1] > 1e6f && isfinite(got[1]) && got[2] == 0);
    end(&t);
}
