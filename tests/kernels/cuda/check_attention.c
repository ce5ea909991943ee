/* check_attention: what goes into the KV cache, and attention over it: whole batches of several sequences, some at their start
 * and some after thousands of positions. Bytes of the cache that no position has written are NaN. */
#include <stdlib.h>
#include <string.h>

#include "src/numeric.h"
#include "tests/kernels/cuda/device.h"

enum { TILE = 64, SPAN = 1024, LAYERS = 2, LAYER = 1, SEQS = 3, MAX_DIM = 512, MAX_TOK = 16 };

/* The same cache here and on the device. */
typedef struct cache {
    uint32_t n_page, dim, n_kv;
    size_t bytes;
    uint8_t *pages;
    uint32_t *table; /* [SEQS, n_page] */
    stk_cuda_kv kv;
} cache;

static void cache_open(cache *c, device *d, uint32_t n_ctx, uint32_t n_kv, uint32_t dim, bool k_f16, bool v_f16) {
    uint64_t k_tile = (uint64_t)dim * TILE * (k_f16 ? 2 : 4), v_tile = (uint64_t)dim * TILE * (v_f16 ? 2 : 4);
    *c = (cache){.n_page = (n_ctx + TILE - 1) / TILE, .dim = dim, .n_kv = n_kv};
    c->kv = (stk_cuda_kv){.page_bytes = (k_tile + v_tile) * n_kv * LAYERS,
                          .layer_offset = LAYER * n_kv * (k_tile + v_tile),
                          .k_tile_bytes = k_tile,
                          .head_bytes = k_tile + v_tile,
                          .table_stride = c->n_page,
                          .n_head_kv = n_kv,
                          .head_dim = dim,
                          .k_f16 = k_f16,
                          .v_f16 = v_f16};
    c->bytes = c->kv.page_bytes * c->n_page * SEQS;
    c->pages = aligned_alloc(64, c->bytes);
    c->table = calloc((size_t)SEQS * c->n_page, sizeof *c->table);
    memset(c->pages, 0xff, c->bytes);
    for (uint32_t i = 0; i < SEQS * c->n_page; i++) { /* a random permutation */
        uint32_t j = check_below(i + 1);
        c->table[i] = c->table[j];
        c->table[j] = i;
    }
    c->kv.table = device_copy(d, c->table, (size_t)SEQS * c->n_page * sizeof *c->table);
}

static void cache_close(cache *c) {
    free(c->pages);
    free(c->table);
}

static uint8_t *tile_of(const cache *c, uint32_t seq, uint32_t page, uint32_t head) {
    return c->pages + c->table[seq * c->n_page + page] * c->kv.page_bytes + c->kv.layer_offset + head * c->kv.head_bytes;
}

static void put(uint8_t *tile, bool f16, uint32_t at, float x) {
    uint16_t half = stk_f32_f16_sat(x);
    memcpy(tile + at * (f16 ? 2 : 4), f16 ? (void *)&half : (void *)&x, f16 ? 2 : 4);
}

static void cache_put(const cache *c, uint32_t seq, uint32_t pos, uint32_t head, const float *k, const float *v) {
    uint8_t *tile = tile_of(c, seq, pos / TILE, head);
    for (uint32_t i = 0; i < c->dim; i++) {
        if (k) put(tile, c->kv.k_f16, i * TILE + pos % TILE, k[i]);
        if (v) put(tile + c->kv.k_tile_bytes, c->kv.v_f16, pos % TILE * c->dim + i, v[i]);
    }
}

/* ---- Rotation ---- */

typedef struct rotation {
    uint32_t n_tok, n_head, n_kv, dim, n_rot;
    bool bias, norm, neox;
} rotation;

static void rotate_head(const rotation *r, float *x, const float *bias, const float *norm, const float *table) {
    if (bias) stk_ref_add(x, bias, r->dim);
    if (!table) return;
    if (norm) stk_ref_rmsnorm(x, norm, r->dim, 1e-6f, x);
    stk_ref_rope(x, r->n_rot, table, r->neox);
}

static bool rotate_case(device *d, const rotation *r, bool k_f16, bool v_f16) {
    enum { N_CTX = 200 };
    static float q[MAX_TOK * 1024], k[MAX_TOK * 1024], v[MAX_TOK * 1024], bias[1024], norm[MAX_DIM], table[N_CTX * MAX_DIM];
    uint32_t seq[MAX_TOK], pos[MAX_TOK], nq = r->n_head * r->dim, nk = r->n_kv * r->dim;
    cache c;
    cache_open(&c, d, N_CTX, r->n_kv, r->dim, k_f16, v_f16);
    c.kv.pages = device_copy(d, c.pages, c.bytes);
    check_fill_activations(0, q, r->n_tok * nq);
    check_fill_activations(0, k, r->n_tok * nk);
    check_fill_activations(2, v, r->n_tok * nk); /* beyond the range of a half, too */
    check_fill_activations(0, bias, STK_MAX(nq, nk));
    check_fill_activations(0, norm, r->dim);
    check_fill_activations(0, table, N_CTX * r->n_rot);
    for (uint32_t t = 0; t < r->n_tok; t++) {
        seq[t] = t % SEQS;
        pos[t] = (t * 37 + 11) % N_CTX;
    }
    check_case("%u tokens, %u heads over %u of %u, %u rotated, k %s, v %s%s%s%s", r->n_tok, r->n_head, r->n_kv, r->dim, r->n_rot,
               k_f16 ? "f16" : "f32", v_f16 ? "f16" : "f32", r->bias ? ", bias" : "", r->norm ? ", norm" : "",
               r->neox ? ", neox" : "");
    const float *dev_bias = r->bias ? device_copy(d, bias, STK_MAX(nq, nk) * 4) : NULL;
    const float *dev_norm = r->norm ? device_copy(d, norm, r->dim * 4) : NULL;
    stk_cuda_rotate p = {.q = device_copy(d, q, (size_t)r->n_tok * nq * 4),
                         .k = device_copy(d, k, (size_t)r->n_tok * nk * 4),
                         .v = device_copy(d, v, (size_t)r->n_tok * nk * 4),
                         .q_bias = dev_bias,
                         .k_bias = dev_bias,
                         .v_bias = dev_bias,
                         .q_norm = dev_norm,
                         .k_norm = dev_norm,
                         .table = device_copy(d, table, (size_t)N_CTX * r->n_rot * 4),
                         .seq = device_copy(d, seq, sizeof seq),
                         .pos = device_copy(d, pos, sizeof pos),
                         .n_tok = r->n_tok,
                         .n_head = r->n_head,
                         .n_rot = r->n_rot,
                         .eps = 1e-6f,
                         .neox = r->neox,
                         .kv = c.kv};
    for (uint32_t t = 0; t < r->n_tok; t++) {
        const float *angles = table + (size_t)pos[t] * r->n_rot;
        for (uint32_t h = 0; h < r->n_head; h++)
            rotate_head(r, q + (size_t)t * nq + h * r->dim, r->bias ? bias + h * r->dim : NULL, r->norm ? norm : NULL, angles);
        for (uint32_t h = 0; h < r->n_kv; h++) {
            float *kh = k + (size_t)t * nk + h * r->dim, *vh = v + (size_t)t * nk + h * r->dim;
            rotate_head(r, kh, r->bias ? bias + h * r->dim : NULL, r->norm ? norm : NULL, angles);
            rotate_head(r, vh, r->bias ? bias + h * r->dim : NULL, NULL, NULL);
            cache_put(&c, seq[t], pos[t], h, kh, vh);
        }
    }
    uint8_t *got = malloc(c.bytes);
    bool ok = device_call(d->ops->rotate(&p, d->stream)) && device_rows_equal(d, "q", q, p.q, r->n_tok, nq, nq) &&
              device_rows_equal(d, "k", k, p.k, r->n_tok, nk, nk) && device_rows_equal(d, "v", v, p.v, r->n_tok, nk, nk) &&
              device_read(d, got, c.kv.pages, c.bytes);
    if (ok && memcmp(got, c.pages, c.bytes)) ok = check_fail("the cache differs");
    free(got);
    cache_close(&c);
    device_clear(d);
    return ok;
}

bool check_cuda_rotate(device *d) {
    static const rotation cases[] = {{3, 4, 2, 64, 64, false, false, true},  {2, 6, 2, 128, 128, false, true, true},
                                     {1, 2, 2, 40, 24, true, false, false},  {5, 8, 1, 8, 8, true, true, false},
                                     {2, 2, 1, 512, 256, false, true, true}, {4, 3, 3, 96, 96, true, true, true}};
    for (uint32_t i = 0; i < STK_ARRAY_LEN(cases); i++)
        for (uint32_t kinds = 0; kinds < 4; kinds++)
            if (!rotate_case(d, &cases[i], kinds & 1u, kinds >> 1)) return false;
    return true;
}

/* ---- Attention ---- */

static void merge(float *merged, const float *state, uint32_t dim) {
    float m = merged[0] > state[0] ? merged[0] : state[0];
    float a = stk_expf(merged[0] - m), b = stk_expf(state[0] - m);
    merged[0] = m;
    merged[1] = fmaf(state[1], b, merged[1] * a);
    for (uint32_t i = 0; i < dim; i++) merged[2 + i] = fmaf(b, state[2 + i], merged[2 + i] * a);
}

/* One query, span by span, as src/engine/forward_attention.c does it. */
static void reference(const cache *c, const float *q, uint32_t seq, uint32_t pos, uint32_t head, float *out) {
    float merged[2 + MAX_DIM] = {-INFINITY}, state[2 + MAX_DIM], *states[1] = {state};
    for (uint32_t begin = 0; begin <= pos; begin += SPAN) {
        const void *k[SPAN / TILE], *v[SPAN / TILE];
        uint32_t n = STK_MIN(pos + 1 - begin, (uint32_t)SPAN);
        for (uint32_t i = 0; i * TILE < n; i++) {
            k[i] = tile_of(c, seq, begin / TILE + i, head);
            v[i] = (const uint8_t *)k[i] + c->kv.k_tile_bytes;
        }
        stk_cpu_ops_ref.attend(
            &(stk_attend){1, c->dim, &q, &n, c->kv.k_f16, c->kv.v_f16, k, v, 1.0f / sqrtf((float)c->dim), states});
        merge(merged, state, c->dim);
    }
    for (uint32_t i = 0; i < c->dim; i++) out[i] = merged[2 + i] / merged[1];
}

typedef struct batch {
    uint32_t n_tok, seq[MAX_TOK], pos[MAX_TOK], max_pos;
} batch;

/* Runs of consecutive positions of the sequences, which have `length` positions or, the last one, one. */
static void batch_fill(batch *b, uint32_t n_tok, uint32_t length) {
    *b = (batch){.n_tok = n_tok};
    for (uint32_t t = 0, seq = check_below(SEQS), left = 0; t < n_tok; t++) {
        if (left == 0) {
            left = 1 + check_below(5);
            seq = (seq + 1) % SEQS;
        }
        left--;
        b->seq[t] = seq;
        b->pos[t] = seq == SEQS - 1 ? 0 : length - 1 - check_below(STK_MIN(length, 3));
        b->max_pos = STK_MAX(b->max_pos, b->pos[t]);
    }
}

static bool attend_case(device *d, uint32_t n_tok, uint32_t length, uint32_t n_head, uint32_t n_kv, uint32_t dim,
                        uint32_t kinds) {
    static float q[MAX_TOK * 2048], want[MAX_TOK * 2048], k[MAX_DIM], v[MAX_DIM];
    cache c;
    batch b;
    uint32_t n = n_head * dim, act_bytes = stk_act_layout_of(n).bytes;
    cache_open(&c, d, length, n_kv, dim, kinds & 1u, kinds >> 1 & 1u);
    for (uint32_t seq = 0; seq < SEQS; seq++)
        for (uint32_t pos = 0; pos < (seq == SEQS - 1 ? 1 : length); pos++)
            for (uint32_t h = 0; h < n_kv; h++) {
                for (uint32_t i = 0; i < dim; i++) {
                    k[i] = (kinds & 4u ? 8.0f : 1.0f) * check_uniform();
                    v[i] = check_uniform();
                }
                cache_put(&c, seq, pos, h, k, v);
            }
    c.kv.pages = device_copy(d, c.pages, c.bytes);
    batch_fill(&b, n_tok, length);
    for (uint32_t i = 0; i < n_tok * n; i++) q[i] = 2.0f * check_uniform();
    check_case("%u tokens, %u positions, %u heads over %u of %u, k %s, v %s", n_tok, length, n_head, n_kv, dim,
               kinds & 1u ? "f16" : "f32", kinds & 2u ? "f16" : "f32");
    for (uint32_t t = 0; t < n_tok; t++)
        for (uint32_t h = 0; h < n_head; h++)
            reference(&c, q + (size_t)t * n + h * dim, b.seq[t], b.pos[t], h / (n_head / n_kv), want + (size_t)t * n + h * dim);
    stk_cuda_attend p = {.q = device_copy(d, q, (size_t)n_tok * n * 4),
                         .out = {device_canary(d, (size_t)n_tok * n), NULL, n, 0},
                         .seq = device_copy(d, b.seq, sizeof b.seq),
                         .pos = device_copy(d, b.pos, sizeof b.pos),
                         .n_tok = n_tok,
                         .n_head = n_head,
                         .max_pos = b.max_pos,
                         .scale = 1.0f / sqrtf((float)dim),
                         .state = device_take(d, stk_cuda_attend_bytes(n_tok, n_head, dim, b.max_pos)),
                         .kv = c.kv};
    if (n % STK_GROUP == 0) {
        p.out.act = device_take(d, (size_t)n_tok * act_bytes);
        p.out.act_stride = act_bytes;
    }
    bool ok = device_call(d->ops->attend(&p, d->stream)) && device_rows_equal(d, "out", want, p.out.f32, n_tok, n, n);
    if (ok && p.out.act) {
        uint8_t *act = aligned_alloc(64, (size_t)n_tok * act_bytes);
        for (uint32_t t = 0; t < n_tok; t++) stk_ref_quantize(want + (size_t)t * n, n, act + (size_t)t * act_bytes);
        ok = device_acts_equal(d, act, p.out.act, n_tok, n, act_bytes);
        free(act);
    }
    cache_close(&c);
    device_clear(d);
    return ok;
}

bool check_cuda_attend(device *d) {
    static const uint32_t dims[] = {8, 64, 40, 128, 96, 256, 512}, lengths[] = {1, 2, 63, 64, 65, 130, 200, 513};
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t dim = dims[i % STK_ARRAY_LEN(dims)], group = 1u << i % 4, n_kv = dim > 128 ? 1 : 2;
        if (dim > 128) group = STK_MIN(group, 4);
        if (!attend_case(d, i % 3 ? 1 + i % 7 : 1, lengths[i % STK_ARRAY_LEN(lengths)], n_kv * group, n_kv, dim, i % 8))
            return false;
    }
    /* Three heads a KV head; more than one span. */
    return attend_case(d, 5, 100, 6, 2, 32, 3) && attend_case(d, 1, 1100, 4, 1, 32, 3) && attend_case(d, 9, 2050, 2, 1, 16, 1);
}
