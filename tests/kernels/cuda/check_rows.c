/* check_rows: operations on rows, the router and the embedding. */
#include <stdlib.h>
#include <string.h>

#include "src/engine/router.h"
#include "src/numeric.h"
#include "tests/kernels/cuda/device.h"

enum { MAX_N = 5000, MAX_ROW = 4, MAX_EXPERT = 300 };

static float a[MAX_ROW * MAX_N], b[MAX_ROW * MAX_N], c[MAX_N], want[MAX_ROW * MAX_N];
static _Alignas(64) uint8_t want_act[MAX_ROW * 4 * MAX_N];

/* Quantizes `want`. */
static uint32_t quantize_want(uint32_t n_row, uint32_t n) {
    uint32_t bytes = stk_act_layout_of(n).bytes;
    for (uint32_t i = 0; i < n_row; i++) stk_ref_quantize(want + (size_t)i * n, n, want_act + (size_t)i * bytes);
    return bytes;
}

static stk_cuda_rows rows_of(device *d, uint32_t n_row, uint32_t n, uint32_t stride) {
    stk_cuda_rows r = {device_canary(d, (size_t)n_row * stride), NULL, stride, 0};
    if (n % STK_GROUP) return r;
    r.act_stride = stk_act_layout_of(n).bytes;
    r.act = device_take(d, (size_t)n_row * r.act_stride);
    return r;
}

static bool rows_equal(device *d, const stk_cuda_rows *r, uint32_t n_row, uint32_t n) {
    bool ok = device_rows_equal(d, "out", want, r->f32, n_row, n, r->f32_stride);
    if (ok && r->act) {
        quantize_want(n_row, n);
        ok = device_acts_equal(d, want_act, r->act, n_row, n, r->act_stride);
    }
    return ok;
}

bool check_cuda_rmsnorm(device *d) {
    static const uint32_t widths[] = {1, 7, 16, 17, 32, 64, 100, 256, 320, 2048, 4096, 4097, MAX_N};
    for (uint32_t i = 0; i < 2 * STK_ARRAY_LEN(widths); i++) {
        uint32_t n = widths[i / 2], n_row = 1 + check_below(MAX_ROW), adds = i % 3;
        check_case("%u rows of %u, %u added", n_row, n, adds);
        for (uint32_t r = 0; r < n_row; r++) check_fill_activations(i % CHECK_N_STYLE, a + (size_t)r * n, n);
        check_fill_activations(0, b, n_row * n);
        check_fill_activations(0, c, n);
        stk_cuda_norm p = {.x = device_copy(d, a, (size_t)n_row * n * 4),
                           .y = adds ? device_copy(d, b, (size_t)n_row * n * 4) : NULL,
                           .bias = adds == 2 ? device_copy(d, c, n * 4) : NULL,
                           .w = device_copy(d, c, n * 4),
                           .out = rows_of(d, n_row, n, n + i % 4),
                           .n_row = n_row,
                           .n = n,
                           .eps = 1e-6f};
        for (uint32_t r = 0; r < n_row; r++) {
            float *x = a + (size_t)r * n, *y = b + (size_t)r * n;
            if (adds == 2) stk_ref_add(y, c, n);
            if (adds) stk_ref_add(x, y, n);
            stk_ref_rmsnorm(x, c, n, 1e-6f, want + (size_t)r * n);
        }
        bool ok = device_call(d->ops->rmsnorm(&p, d->stream)) && rows_equal(d, &p.out, n_row, n) &&
                  device_rows_equal(d, "x", a, p.x, n_row, n, n);
        device_clear(d);
        if (!ok) return false;
    }
    return true;
}

bool check_cuda_silu_mul(device *d) {
    static const uint32_t widths[] = {1, 31, 32, 96, 256, 300, 768};
    for (uint32_t i = 0; i < STK_ARRAY_LEN(widths) * CHECK_N_STYLE; i++) {
        uint32_t n = widths[i % STK_ARRAY_LEN(widths)], n_row = 1 + check_below(MAX_ROW), style = i / STK_ARRAY_LEN(widths);
        check_case("%u rows of %u, %s", n_row, n, check_style_name(style));
        check_fill_activations(style, a, n_row * n);
        check_fill_activations(0, b, n_row * n);
        for (uint32_t j = 0; style == 0 && j < n_row * n; j++) a[j] *= 120;
        stk_ref_silu_mul(a, b, n_row * n, want);
        stk_cuda_silu p = {device_copy(d, a, (size_t)n_row * n * 4), device_copy(d, b, (size_t)n_row * n * 4),
                           rows_of(d, n_row, n, n + i % 3), n_row, n};
        bool ok = device_call(d->ops->silu_mul(&p, d->stream)) && rows_equal(d, &p.out, n_row, n);
        device_clear(d);
        if (!ok) return false;
    }
    return true;
}

bool check_cuda_quantize(device *d) {
    static const uint32_t widths[] = {32, 64, 288, 768, 2048};
    for (uint32_t i = 0; i < STK_ARRAY_LEN(widths) * CHECK_N_STYLE; i++) {
        uint32_t n = widths[i % STK_ARRAY_LEN(widths)], n_row = 1 + check_below(MAX_ROW), style = i / STK_ARRAY_LEN(widths);
        check_case("%u rows of %u, %s", n_row, n, check_style_name(style));
        for (uint32_t r = 0; r < n_row; r++) check_fill_activations(style, want + (size_t)r * n, n);
        uint32_t bytes = quantize_want(n_row, n);
        stk_cuda_quantize p = {
            {device_copy(d, want, (size_t)n_row * n * 4), device_take(d, (size_t)n_row * bytes), n, bytes}, n_row, n};
        bool ok = device_call(d->ops->quantize(&p, d->stream)) && device_acts_equal(d, want_act, p.rows.act, n_row, n, bytes);
        device_clear(d);
        if (!ok) return false;
    }
    return true;
}

bool check_cuda_embed(device *d) {
    static const enum stk_type types[] = {STK_TYPE_F32,  STK_TYPE_F16,  STK_TYPE_BF16, STK_TYPE_Q8_0,
                                          STK_TYPE_Q4_0, STK_TYPE_Q4_K, STK_TYPE_Q5_K, STK_TYPE_Q6_K};
    enum { ROWS = 37, N_IN = 512, N_TOK = 4 };
    for (uint32_t i = 0; i < STK_ARRAY_LEN(types); i++)
        for (uint32_t flavour = 0; flavour < CHECK_N_FLAVOUR; flavour++) {
            uint64_t row_bytes, bytes = stk_matrix_bytes(types[i], ROWS, N_IN);
            const int32_t token[N_TOK] = {0, ROWS - 1, 17, 17};
            if (stk_type_row_bytes(types[i], N_IN, &row_bytes) < 0) return check_fail("no rows of this type");
            uint8_t *rows = malloc(ROWS * row_bytes), *packed = aligned_alloc(64, bytes);
            uint8_t *scratch = aligned_alloc(64, stk_align_up(stk_layout_scratch_bytes(types[i], N_IN), 64));
            check_fill_rows(types[i], flavour, ROWS, N_IN, rows);
            stk_layout_pack(types[i], ROWS, N_IN, rows, packed, scratch);
            check_case("%s, %s", stk_type_info_get(types[i])->name, check_flavour_name(flavour));
            for (uint32_t t = 0; t < N_TOK; t++)
                stk_layout_row(types[i], N_IN, packed, (uint64_t)token[t], want + (size_t)t * N_IN);
            stk_cuda_embed p = {types[i], device_copy(d, packed, bytes),       N_IN,
                                N_TOK,    device_copy(d, token, sizeof token), device_canary(d, N_TOK * N_IN)};
            bool ok = device_call(d->ops->embed(&p, d->stream)) && device_rows_equal(d, "out", want, p.out, N_TOK, N_IN, N_IN);
            free(rows);
            free(packed);
            free(scratch);
            device_clear(d);
            if (!ok) return false;
        }
    return true;
}

bool check_cuda_combine(device *d) {
    enum { N_TOK = 3, K = 4 };
    static float out[N_TOK * K * 600];
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t n = 1 + check_below(600), row[N_TOK * K];
        bool scattered = i % 2;
        float weights[N_TOK * K];
        check_case("%u tokens of %u, rows %s", N_TOK, n, scattered ? "elsewhere" : "in order");
        for (uint32_t j = 0; j < N_TOK * K; j++) row[j] = scattered ? (j * 5 + 1) % (N_TOK * K) : j;
        check_fill_activations(0, a, N_TOK * n);
        check_fill_activations(i, out, N_TOK * K * n);
        check_fill_activations(0, weights, N_TOK * K);
        stk_cuda_combine p = {device_copy(d, a, N_TOK * n * 4),
                              device_copy(d, out, (size_t)N_TOK * K * n * 4),
                              device_copy(d, weights, sizeof weights),
                              N_TOK,
                              n,
                              K,
                              scattered ? device_copy(d, row, sizeof row) : NULL};
        for (uint32_t t = 0; t < N_TOK; t++) {
            memset(b, 0, n * sizeof *b);
            for (uint32_t r = 0; r < K; r++) stk_ref_axpy(b, weights[t * K + r], out + (size_t)row[t * K + r] * n, n);
            stk_ref_add(a + (size_t)t * n, b, n);
        }
        bool ok = device_call(d->ops->combine(&p, d->stream)) && device_rows_equal(d, "x", a, p.x, N_TOK, n, n);
        device_clear(d);
        if (!ok) return false;
    }
    return true;
}

/* Scores: ordinary, many equal, with NaN and infinities, all equal. */
static void fill_scores(float *x, uint32_t n, uint32_t style) {
    for (uint32_t i = 0; i < n; i++) {
        x[i] = style == 1 ? (float)check_below(4) : style == 3 ? 0.25f : 8.0f * check_uniform();
        if (style == 2 && check_below(8) == 0) x[i] = check_below(2) ? NAN : -INFINITY;
    }
}

bool check_cuda_route(device *d) {
    static const uint32_t experts[] = {2, 8, 31, 60, 128, MAX_EXPERT};
    for (uint32_t i = 0; i < 4 * STK_ARRAY_LEN(experts); i++) {
        uint32_t n = experts[i / 4], most = 1 + check_below(8), k = STK_MIN(most, n), n_top = STK_MIN(2 * k, n), n_tok = MAX_ROW;
        stk_router router = {n, k, check_below(2), check_below(2) ? 1.0f : 2.5f};
        uint16_t ids[MAX_ROW * 16], top[MAX_ROW * 16], got[MAX_ROW * 16];
        float weights[MAX_ROW * 16], scores[MAX_ROW * 16];
        uint8_t taken[MAX_EXPERT];
        check_case("%u experts, %u of them, style %u", n, k, i % 4);
        for (uint32_t t = 0; t < n_tok; t++) fill_scores(a + (size_t)t * n, n, i % 4);
        float *ws = device_canary(d, n_tok * k), *ts = device_canary(d, n_tok * n_top);
        stk_cuda_route p = {device_copy(d, a, (size_t)n_tok * n * 4),
                            n_tok,
                            n,
                            k,
                            n_top,
                            router.renormalise,
                            router.scale,
                            device_take(d, n_tok * k * 2),
                            device_take(d, n_tok * n_top * 2),
                            ws,
                            ts};
        for (uint32_t t = 0; t < n_tok; t++) {
            stk_ref_softmax(a + (size_t)t * n, n, b);
            stk_router_choose(&router, b, n_top, ids + t * k, weights + t * k, top + t * n_top, scores + t * n_top, taken);
        }
        bool ok = device_call(d->ops->route(&p, d->stream)) && device_rows_equal(d, "weights", weights, ws, n_tok, k, k) &&
                  device_rows_equal(d, "scores", scores, ts, n_tok, n_top, n_top) && device_read(d, got, p.ids, n_tok * k * 2);
        if (ok && memcmp(got, ids, n_tok * k * 2)) ok = check_fail("the chosen experts differ");
        ok = ok && device_read(d, got, p.top_ids, n_tok * n_top * 2);
        if (ok && memcmp(got, top, n_tok * n_top * 2)) ok = check_fail("the best experts differ");
        device_clear(d);
        if (!ok) return false;
    }
    return true;
}
