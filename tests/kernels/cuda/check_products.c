/* check_products: the products of one matrix, of experts on scattered slots, and the fused gate and up. */
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/cuda/device.h"

enum { MAX_IN = 2048, MAX_ROWS = 100, MAX_TOK = 70, EXPERTS = 5, K = 2 };

typedef struct matrix {
    enum stk_type type;
    uint32_t n_rows, n_in;
    uint64_t bytes;
    uint8_t *packed; /* 64-byte aligned */
} matrix;

static void *aligned(size_t bytes) {
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!p) abort();
    return p;
}

static void matrix_open(matrix *m, enum stk_type type, uint32_t flavour, uint32_t n_rows, uint32_t n_in) {
    uint64_t row_bytes;
    if (stk_type_row_bytes(type, n_in, &row_bytes) < 0) abort();
    *m = (matrix){type, n_rows, n_in, stk_matrix_bytes(type, n_rows, n_in), NULL};
    uint8_t *rows = aligned(n_rows * row_bytes), *scratch = aligned(stk_layout_scratch_bytes(type, n_in));
    m->packed = aligned(m->bytes);
    check_fill_rows(type, flavour, n_rows, n_in, rows);
    stk_layout_pack(type, n_rows, n_in, rows, m->packed, scratch);
    free(rows);
    free(scratch);
}

/* Activations on both sides. */
typedef struct input {
    uint32_t n_row, n_in, act_bytes;
    float *f32;
    uint8_t *act;
    stk_cuda_rows dev;
} input;

static void input_open(input *x, device *d, enum stk_type type, uint32_t style, uint32_t n_row, uint32_t n_in) {
    *x = (input){.n_row = n_row, .n_in = n_in, .f32 = aligned((size_t)n_row * n_in * 4)};
    for (uint32_t i = 0; i < n_row; i++) check_fill_activations(style, x->f32 + (size_t)i * n_in, n_in);
    x->dev = (stk_cuda_rows){device_copy(d, x->f32, (size_t)n_row * n_in * 4), NULL, n_in, 0};
    if (!stk_type_is_quantized(type)) return;
    x->act_bytes = stk_act_layout_of(n_in).bytes;
    x->act = aligned((size_t)n_row * x->act_bytes);
    for (uint32_t i = 0; i < n_row; i++) stk_ref_quantize(x->f32 + (size_t)i * n_in, n_in, x->act + (size_t)i * x->act_bytes);
    x->dev.act = device_copy(d, x->act, (size_t)n_row * x->act_bytes);
    x->dev.act_stride = x->act_bytes;
}

static void input_close(input *x) {
    free(x->f32);
    free(x->act);
}

/* want [n_row of x, n_rows] */
static void reference(const matrix *m, const input *x, uint32_t row, float *want) {
    const void *in[1] = {x->act ? (const void *)(x->act + (size_t)row * x->act_bytes) : x->f32 + (size_t)row * x->n_in};
    stk_cpu_matmul(&stk_cpu_ops_ref, m->type)(&(stk_matmul){.weights = m->packed,
                                                            .n_in = m->n_in,
                                                            .n_rows = m->n_rows,
                                                            .stripe_end = (uint32_t)stk_n_stripe(m->n_rows),
                                                            .n_tok = 1,
                                                            .x = in,
                                                            .out = &want});
}

/* ---- One matrix ---- */

static bool product_case(device *d, enum stk_type type, uint32_t flavour, uint32_t style, uint32_t n_rows, uint32_t n_in,
                         uint32_t n_tok) {
    static float want[MAX_TOK * MAX_ROWS];
    matrix m;
    input x;
    matrix_open(&m, type, flavour, n_rows, n_in);
    input_open(&x, d, type, style, n_tok, n_in);
    check_case("%u rows of %u, %u tokens, weights %s, activations %s", n_rows, n_in, n_tok, check_flavour_name(flavour),
               check_style_name(style));
    for (uint32_t t = 0; t < n_tok; t++) reference(&m, &x, t, want + (size_t)t * n_rows);
    uint32_t stride = n_rows + check_below(5);
    float *out = device_canary(d, (size_t)n_tok * stride);
    stk_cuda_product p = {.type = type,
                          .weights = device_copy(d, m.packed, m.bytes),
                          .n_in = n_in,
                          .n_rows = n_rows,
                          .n_tok = n_tok,
                          .x = x.dev,
                          .out = out,
                          .out_stride = stride};
    bool ok = device_call(d->ops->product(&p, d->stream)) && device_rows_equal(d, "out", want, out, n_tok, n_rows, stride);
    input_close(&x);
    free(m.packed);
    device_clear(d);
    return ok;
}

/* Widths that the type allows, the greatest with more blocks than one round of sums holds only for vectors. */
static uint32_t width(enum stk_type type, uint32_t i) {
    static const uint32_t any[] = {33, 256, 1, 511, 1024, 768}, of_32[] = {32, 256, 288, 544, 768, 1024},
                          of_256[] = {256, 512, 768, 1024, 256, 2048};
    uint32_t block = stk_type_info_get(type)->block;
    return block == 1 ? any[i % 6] : block == 32 ? of_32[i % 6] : of_256[i % 6];
}

bool check_cuda_product(device *d, enum stk_type type) {
    static const uint32_t rows[] = {1, 16, 17, 33, 100}, tokens[] = {1, 2, 5, 8, 9, 31, 33, 70};
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t n_tok = tokens[i % STK_ARRAY_LEN(tokens)], n_rows = rows[i % STK_ARRAY_LEN(rows)];
        if (!product_case(d, type, i % CHECK_N_FLAVOUR, i % CHECK_N_STYLE, n_rows, width(type, i / 4), n_tok)) return false;
    }
    /* More blocks than are kept at a time: 64 with one token, 16 with eight. */
    return product_case(d, type, 0, 0, 16, 66 * 256, 1) && product_case(d, type, 0, 0, 16, 18 * 256, 3) &&
           product_case(d, type, 4, 0, 16, 18 * 256, 12);
}

/* ---- Experts ---- */

typedef struct routes {
    uint32_t n_tok, first[EXPERTS + 1], pairs[MAX_TOK * K], max_tok;
    stk_cuda_group dev;
} routes;

/* Every expert gets up to `most` tokens, pairs ascending; some get none. */
static void routes_open(routes *r, device *d, const void *const slot[EXPERTS], uint32_t n_tok, uint32_t most) {
    uint32_t n = 0;
    r->n_tok = n_tok;
    r->max_tok = 0;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        r->first[e] = n;
        uint32_t begin = n, want = e == 1 ? 0 : 1 + check_below(most);
        for (uint32_t pair = e % K; pair < n_tok * K && n - begin < want && n < MAX_TOK * K; pair += K) r->pairs[n++] = pair;
        r->max_tok = STK_MAX(r->max_tok, n - begin);
    }
    r->first[EXPERTS] = n;
    r->dev = (stk_cuda_group){.slot = device_copy(d, slot, EXPERTS * sizeof *slot),
                              .first = device_copy(d, r->first, sizeof r->first),
                              .pairs = device_copy(d, r->pairs, STK_MAX(n, 1) * sizeof *r->pairs),
                              .n_expert = EXPERTS,
                              .max_tok = r->max_tok,
                              .k = K};
}

/* Two experts may name the same pair here, so each is compared on its own output. */
static bool experts_case(device *d, enum stk_type type, uint32_t n_tok, uint32_t most, uint32_t n_rows, uint32_t n_in,
                         bool by_pair) {
    static float want[MAX_ROWS];
    matrix m[EXPERTS];
    const void *slot[EXPERTS];
    enum { OFFSET = 512 };
    input x;
    routes r;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        matrix_open(&m[e], type, 0, n_rows, n_in);
        uint8_t *at = device_take(d, m[e].bytes + OFFSET);
        slot[e] = at;
        if (!device_call(d->ops->to_device(at + OFFSET, m[e].packed, m[e].bytes, d->stream))) return false;
    }
    input_open(&x, d, type, 0, by_pair ? n_tok * K : n_tok, n_in);
    routes_open(&r, d, slot, n_tok, most);
    check_case("experts of %u rows of %u, %u tokens, at most %u each, x by %s", n_rows, n_in, n_tok, r.max_tok,
               by_pair ? "pair" : "token");
    float *out = device_canary(d, (size_t)n_tok * K * n_rows), *got = aligned((size_t)n_tok * K * n_rows * 4);
    bool ok = true;
    for (uint32_t e = 0; e < EXPERTS && ok; e++) {
        uint32_t first[2] = {r.first[e], r.first[e + 1]};
        stk_cuda_product p = {type, NULL, OFFSET, n_in, n_rows, 0, by_pair ? 1 : K, x.dev, out, n_rows, r.dev};
        p.group.first = device_copy(d, first, sizeof first);
        p.group.slot += e;
        p.group.n_expert = 1;
        ok = device_call(d->ops->product(&p, d->stream)) && device_read(d, got, out, (size_t)n_tok * K * n_rows * 4);
        for (uint32_t i = r.first[e]; i < r.first[e + 1] && ok; i++) {
            reference(&m[e], &x, by_pair ? r.pairs[i] : r.pairs[i] / K, want);
            ok = check_floats("out", want, got + (size_t)r.pairs[i] * n_rows, n_rows);
        }
    }
    for (uint32_t e = 0; e < EXPERTS; e++) free(m[e].packed);
    free(got);
    input_close(&x);
    device_clear(d);
    return ok;
}

bool check_cuda_experts(device *d, enum stk_type type) {
    static const uint32_t most[] = {1, 7, 40};
    for (uint32_t i = 0; i < STK_ARRAY_LEN(most); i++)
        if (!experts_case(d, type, i == 2 ? 50 : 10, most[i], 24, width(type, 1 + i), i % 2)) return false;
    return true;
}

/* ---- Gate and up ---- */

static void gate_up_reference(const matrix *gate, const matrix *up, const input *x, uint32_t row, float *hidden) {
    float g[MAX_ROWS], u[MAX_ROWS];
    reference(gate, x, row, g);
    reference(up, x, row, u);
    stk_ref_silu_mul(g, u, gate->n_rows, hidden);
}

static bool gate_up_case(device *d, enum stk_type type, uint32_t n_tok, uint32_t most, uint32_t n_ff, uint32_t n_in) {
    matrix gate[EXPERTS], up[EXPERTS];
    const void *slot[EXPERTS];
    input x;
    routes r;
    uint64_t up_offset = stk_align_up(stk_matrix_bytes(type, n_ff, n_in), STK_SLOT_ALIGN);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        matrix_open(&gate[e], type, 0, n_ff, n_in);
        matrix_open(&up[e], type, 0, n_ff, n_in);
        uint8_t *at = device_take(d, up_offset + up[e].bytes);
        slot[e] = at;
        if (!device_call(d->ops->to_device(at, gate[e].packed, gate[e].bytes, d->stream)) ||
            !device_call(d->ops->to_device(at + up_offset, up[e].packed, up[e].bytes, d->stream)))
            return false;
    }
    bool act = n_ff % STK_GROUP == 0;
    uint32_t act_bytes = act ? stk_act_layout_of(n_ff).bytes : 0, n_pair = n_tok * K;
    input_open(&x, d, type, 0, n_tok, n_in);
    routes_open(&r, d, slot, n_tok, most);
    check_case("%u rows of %u, %u tokens, at most %u each", n_ff, n_in, n_tok, r.max_tok);
    float *hidden = device_canary(d, (size_t)n_pair * n_ff);
    uint8_t *acts = act ? device_take(d, (size_t)n_pair * act_bytes) : NULL;
    bool ok = true;
    for (uint32_t e = 0; e < EXPERTS && ok; e++) {
        uint32_t first[2] = {r.first[e], r.first[e + 1]};
        stk_cuda_gate_up p = {type, type, 0, up_offset, n_in, n_ff, x.dev, {hidden, acts, n_ff, act_bytes}, r.dev};
        p.group.first = device_copy(d, first, sizeof first);
        p.group.slot += e;
        p.group.n_expert = 1;
        ok = device_call(d->ops->gate_up(&p, d->stream));
        for (uint32_t i = r.first[e]; i < r.first[e + 1] && ok; i++) {
            float want[MAX_ROWS];
            _Alignas(64) uint8_t want_act[4096];
            uint32_t pair = r.pairs[i];
            gate_up_reference(&gate[e], &up[e], &x, pair / K, want);
            ok = device_rows_equal(d, "hidden", want, hidden + (size_t)pair * n_ff, 1, n_ff, n_ff);
            if (!act || !ok) continue;
            stk_ref_quantize(want, n_ff, want_act);
            ok = device_acts_equal(d, want_act, acts + (size_t)pair * act_bytes, 1, n_ff, act_bytes);
        }
    }
    for (uint32_t e = 0; e < EXPERTS; e++) {
        free(gate[e].packed);
        free(up[e].packed);
    }
    input_close(&x);
    device_clear(d);
    return ok;
}

bool check_cuda_gate_up(device *d, enum stk_type type) {
    return gate_up_case(d, type, 10, 1, 64, width(type, 1)) && gate_up_case(d, type, 10, 8, 96, width(type, 2)) &&
           gate_up_case(d, type, 12, 11, 40, width(type, 4)) && gate_up_case(d, type, 4, 1, 17, width(type, 3)) &&
           gate_up_case(d, type, 3, 1, 32, 34 * 256);
}
