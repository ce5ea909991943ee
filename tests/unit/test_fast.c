/* fast: products in BF16 against the exact ones, by plain loops in oneDNN's place and, where this CPU has its units, by oneDNN.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/fast.h"
#include "cpu/round.h"
#include "src/numeric.h"

/* ---- Plain loops over what oneDNN is given ------------------------------------------------------------------------------- */

typedef struct plain_shape {
    uint32_t n_tok, n_rows, n_in, n_worker;
} plain_shape;

static bool fails;   /* products do */
static int n_open;   /* shapes */
static int n_refuse; /* shapes that can be opened before one cannot; -1: all can */

static int plain_open(void **shape, uint32_t n_tok, uint32_t n_rows, uint32_t n_in, uint32_t n_worker) {
    *shape = NULL;
    if (n_refuse >= 0 && n_refuse-- == 0) return stk_fail(STK_EUNSUPPORTED, "refused");
    plain_shape *s = malloc(sizeof *s);
    *s = (plain_shape){n_tok, n_rows, n_in, n_worker};
    *shape = s;
    n_open++;
    return STK_OK;
}
static void plain_close(void *shape) {
    n_open -= shape != NULL;
    free(shape);
}
static uint64_t plain_bytes(const void *shape) { return shape ? sizeof(plain_shape) : 0; }
static bool plain_run(void *shape, uint32_t worker, const uint16_t *a, const void *w, float *c) {
    const plain_shape *s = shape;
    const uint16_t *weights = w;
    if (fails || worker >= s->n_worker) return false;
    for (uint32_t t = 0; t < s->n_tok; t++)
        for (uint32_t r = 0; r < s->n_rows; r++) {
            const uint16_t *stripe = weights + (size_t)(r / STK_STRIPE) * s->n_in * STK_STRIPE;
            float sum = 0;
            for (uint32_t k = 0; k < s->n_in; k++)
                sum += stk_bf16_f32(a[(size_t)t * s->n_in + k]) *
                       stk_bf16_f32(stripe[(k / 2 * STK_STRIPE + r % STK_STRIPE) * 2 + k % 2]);
            c[(size_t)t * s->n_rows + r] = sum;
        }
    return true;
}
static const stk_fast_unit plain = {"plain", plain_open, plain_close, plain_bytes, plain_run};

static void each_unit(void (*check)(const stk_fast_unit *unit)) {
    n_refuse = -1;
    check(&plain);
    cr_assert_eq(n_open, 0, "%d shapes stay open", n_open);
    const uint32_t n_in = 64;
    stk_fast *f;
    if (stk_fast_open(&f, NULL, &n_in, 1, 1) < 0) {
        cr_log_info("oneDNN: %s\n", stk_error_detail());
        return;
    }
    stk_fast_close(&f);
    check(stk_fast_onednn());
}

/* ---- A matrix, its tokens, and both products ----------------------------------------------------------------------------- */

static uint64_t seed;
static float random_float(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (float)(int32_t)(seed >> 32) * 0x1p-31f;
}

enum { MOST_TOK = STK_FAST_TOKENS + 1 };
typedef struct product {
    enum stk_type type;
    uint32_t n_rows, n_in, n_tok;
    uint8_t *packed;
    float *x, *size; /* [n_tok, n_in]; [n_tok, n_rows] sum of |w x| */
    uint16_t *rounded;
    float *exact, *fast; /* [n_tok, n_rows] */
    const void *rows[MOST_TOK];
    float *out[MOST_TOK];
} product;

static void store_weight(enum stk_type type, float w, uint8_t *at) {
    uint16_t half = stk_f32_f16(w);
    if (type == STK_TYPE_F32) memcpy(at, &w, 4);
    if (type == STK_TYPE_F16) memcpy(at, &half, 2);
    if (type == STK_TYPE_BF16) memcpy(at, (uint8_t *)&w + 2, 2);
}

static product product_make(enum stk_type type, uint32_t n_rows, uint32_t n_in, uint32_t n_tok) {
    product p = {.type = type, .n_rows = n_rows, .n_in = n_in, .n_tok = n_tok};
    uint64_t row_bytes;
    cr_assert_eq(stk_type_row_bytes(type, n_in, &row_bytes), 0);
    uint8_t *file = malloc(n_rows * row_bytes), *scratch = malloc(stk_layout_scratch_bytes(type, n_in));
    float *w = malloc(n_in * sizeof *w);
    p.packed = aligned_alloc(64, stk_matrix_bytes(type, n_rows, n_in));
    p.x = malloc((size_t)n_tok * n_in * sizeof *p.x);
    p.rounded = malloc((size_t)n_tok * n_in * sizeof *p.rounded);
    p.size = malloc((size_t)n_tok * n_rows * sizeof *p.size);
    p.exact = malloc((size_t)n_tok * n_rows * sizeof *p.exact);
    p.fast = malloc((size_t)n_tok * n_rows * sizeof *p.fast);
    seed = 0x9e3779b97f4a7c15 ^ (n_rows * 1000003u + n_in * 1009u + n_tok);
    for (size_t i = 0; i < (size_t)n_tok * n_in; i++) p.x[i] = random_float();
    for (uint32_t r = 0; r < n_rows; r++) {
        uint8_t *row = file + r * row_bytes;
        for (uint32_t k = 0; k < n_in; k++) store_weight(type, random_float(), row + k * (row_bytes / n_in));
        stk_dequantize_row(type, row, n_in, w);
        for (uint32_t t = 0; t < n_tok; t++) {
            float sum = 0;
            for (uint32_t k = 0; k < n_in; k++) sum += fabsf(w[k] * p.x[(size_t)t * n_in + k]);
            p.size[(size_t)t * n_rows + r] = sum;
        }
    }
    stk_layout_pack(type, n_rows, n_in, file, p.packed, scratch);
    free(w);
    free(file);
    free(scratch);
    return p;
}

static void product_free(product *p) {
    free(p->packed);
    free(p->x);
    free(p->rounded);
    free(p->size);
    free(p->exact);
    free(p->fast);
}

static stk_matmul call(product *p, uint32_t begin, uint32_t end, float *out) {
    for (uint32_t t = 0; t < p->n_tok; t++) p->out[t] = out + (size_t)t * p->n_rows;
    return (stk_matmul){.weights = p->packed,
                        .n_in = p->n_in,
                        .n_rows = p->n_rows,
                        .stripe_begin = begin,
                        .stripe_end = end,
                        .n_tok = p->n_tok,
                        .x = p->rows,
                        .out = p->out};
}

static void compute_exact(product *p) {
    for (uint32_t t = 0; t < p->n_tok; t++) p->rows[t] = p->x + (size_t)t * p->n_in;
    stk_matmul m = call(p, 0, (uint32_t)stk_n_stripe(p->n_rows), p->exact);
    stk_cpu_matmul(stk_cpu_ops_get(NULL), p->type)(&m);
}

/* With the token's rows in their order, or in reverse, which is no matrix. */
static void compute_fast(stk_fast *f, product *p, uint32_t begin, uint32_t end, bool reverse) {
    stk_fast_round(f, p->x, p->n_tok * p->n_in, p->rounded);
    for (uint32_t t = 0; t < p->n_tok; t++) p->rows[t] = p->rounded + (size_t)(reverse ? p->n_tok - 1 - t : t) * p->n_in;
    stk_matmul m = call(p, begin, end, p->fast);
    if (reverse)
        for (uint32_t t = 0; t < p->n_tok; t++) p->out[t] = p->fast + (size_t)(p->n_tok - 1 - t) * p->n_rows;
    stk_fast_forget(f, 0);
    stk_fast_product(f, 0, p->type, &m);
    cr_assert_eq(stk_fast_check(f), 0);
}

/* Rounding to BF16 is off by at most 2^-9 of a number, of both factors 2^-8 of a product; the rest is for sums. */
static void check_near(const product *p, const char *what) {
    for (size_t i = 0; i < (size_t)p->n_tok * p->n_rows; i++)
        cr_assert_float_eq(p->fast[i], p->exact[i], 0x1.04p-8f * p->size[i], "%s, type %d, %u x %u, %u tokens: %g for %g at %zu",
                           what, (int)p->type, p->n_rows, p->n_in, p->n_tok, (double)p->fast[i], (double)p->exact[i], i);
}

static const enum stk_type types[] = {STK_TYPE_F32, STK_TYPE_F16, STK_TYPE_BF16};
static const uint32_t widths[] = {32, 96, 256, 800};

static stk_fast *open_all(const stk_fast_unit *unit) {
    stk_fast *f;
    cr_assert_eq(stk_fast_open(&f, unit, widths, STK_ARRAY_LEN(widths), 2), 0, "%s", stk_error_detail());
    cr_assert_gt(stk_fast_bytes(f), 0);
    return f;
}

/* ---- Checks of a unit ---------------------------------------------------------------------------------------------------- */

static void near(const stk_fast_unit *unit) {
    static const uint32_t rows[] = {5, 16, 64, 70, 130};
    stk_fast *f = open_all(unit);
    for (size_t i = 0; i < STK_ARRAY_LEN(types); i++)
        for (size_t r = 0; r < STK_ARRAY_LEN(rows); r++)
            for (uint32_t n_tok = 1; n_tok <= STK_FAST_TOKENS; n_tok += n_tok < 10 ? 1 : 5) {
                product p = product_make(types[i], rows[r], widths[(r + n_tok) % STK_ARRAY_LEN(widths)], n_tok);
                compute_exact(&p);
                compute_fast(f, &p, 0, (uint32_t)stk_n_stripe(p.n_rows), false);
                check_near(&p, unit->name);
                compute_fast(f, &p, 0, (uint32_t)stk_n_stripe(p.n_rows), true);
                check_near(&p, "gathered rows");
                product_free(&p);
            }
    stk_fast_close(&f);
    cr_assert_null(f);
}
Test(fast, is_near_the_exact_product) { each_unit(near); }

/* The same again, in pieces, and from rows that had to be gathered. */
static void repeats(const stk_fast_unit *unit) {
    stk_fast *f = open_all(unit);
    for (size_t i = 0; i < STK_ARRAY_LEN(types); i++)
        for (uint32_t n_tok = STK_FAST_LEAST; n_tok <= STK_FAST_TOKENS; n_tok += 13) {
            product p = product_make(types[i], 150, 256, n_tok);
            size_t bytes = (size_t)p.n_tok * p.n_rows * sizeof(float);
            compute_fast(f, &p, 0, 10, false);
            float *first = malloc(bytes);
            memcpy(first, p.fast, bytes);
            for (int again = 0; again < 3; again++) {
                memset(p.fast, 0, bytes);
                compute_fast(f, &p, 0, 10, again == 1);
                cr_assert_arr_eq(p.fast, first, bytes, "%s, again", unit->name);
            }
            memset(p.fast, 0, bytes);
            compute_fast(f, &p, 0, 1, false);
            compute_fast(f, &p, 7, 10, true);
            compute_fast(f, &p, 1, 7, false);
            cr_assert_arr_eq(p.fast, first, bytes, "%s, in pieces", unit->name);
            free(first);
            product_free(&p);
        }
    stk_fast_close(&f);
}
Test(fast, computes_the_same_each_time) { each_unit(repeats); }

/* ---- What is around it --------------------------------------------------------------------------------------------------- */

Test(fast, gathers_again_what_has_changed) {
    n_refuse = -1;
    stk_fast *f = open_all(&plain);
    product p = product_make(STK_TYPE_BF16, 16, 32, 8);
    compute_fast(f, &p, 0, 1, true);
    float before = p.fast[0];
    for (uint32_t i = 0; i < p.n_tok * p.n_in; i++) p.x[i] = 0;
    compute_fast(f, &p, 0, 1, true);
    cr_assert_neq(before, 0);
    cr_assert_eq(p.fast[0], 0);
    product_free(&p);
    stk_fast_close(&f);
}

Test(fast, serves_what_it_can) {
    const uint32_t n_in[] = {64, 48, 64, 0, 1024};
    stk_fast *f;
    n_refuse = -1;
    cr_assert_eq(stk_fast_open(&f, &plain, n_in, STK_ARRAY_LEN(n_in), 1), 0);
    cr_assert(stk_fast_serves(f, STK_TYPE_BF16, 64, STK_FAST_LEAST));
    cr_assert(stk_fast_serves(f, STK_TYPE_F32, 1024, STK_FAST_TOKENS));
    cr_assert_not(stk_fast_serves(f, STK_TYPE_BF16, 64, STK_FAST_LEAST - 1), "memory is waited for");
    cr_assert_not(stk_fast_serves(f, STK_TYPE_BF16, 64, STK_FAST_TOKENS + 1));
    cr_assert_not(stk_fast_serves(f, STK_TYPE_BF16, 48, 8), "no whole blocks");
    cr_assert_not(stk_fast_serves(f, STK_TYPE_Q8_0, 64, 8));
    cr_assert_not(stk_fast_serves(NULL, STK_TYPE_BF16, 64, 8));
    stk_fast_close(&f);
    stk_fast_close(&f);
}

Test(fast, says_what_failed) {
    n_refuse = -1;
    stk_fast *f = open_all(&plain);
    cr_assert_eq(stk_fast_check(f), 0);
    cr_assert_eq(stk_fast_check(NULL), 0);
    product p = product_make(STK_TYPE_BF16, 16, 32, 8);
    for (uint32_t t = 0; t < p.n_tok; t++) p.rows[t] = p.rounded + (size_t)t * p.n_in;
    memset(p.rounded, 0, (size_t)p.n_tok * p.n_in * 2);
    stk_matmul m = call(&p, 0, 1, p.fast);
    fails = true;
    stk_fast_product(f, 1, p.type, &m);
    cr_assert_eq(stk_fast_check(f), STK_EIO);
    cr_assert(strstr(stk_error_detail(), "plain failed"), "%s", stk_error_detail());
    product_free(&p);
    stk_fast_close(&f);
    for (int n = 0; n < 9; n++) {
        n_refuse = n;
        cr_assert_eq(stk_fast_open(&f, &plain, widths, STK_ARRAY_LEN(widths), 1), STK_EUNSUPPORTED);
        cr_assert_null(f);
        cr_assert_eq(n_open, 0);
    }
}

Test(fast, onednn_is_there_or_says_why_not) {
    const uint32_t n_in = 64;
    const char *name = stk_fast_onednn_name();
    stk_fast *f;
    int rc = stk_fast_open(&f, NULL, &n_in, 1, 1);
    if (rc < 0) {
        cr_assert_eq(rc, STK_EUNSUPPORTED, "%s", stk_error_detail());
        cr_assert(strstr(stk_error_detail(), "oneDNN") || strstr(stk_error_detail(), "libdnnl"), "%s", stk_error_detail());
        cr_skip_test("%s", stk_error_detail());
    }
    cr_assert_not_null(name);
    stk_fast_close(&f);
}

Test(fast, rounds_half_to_even) {
    const float x[] = {0, -0.0f, 1, 0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, -0x1.feffp3f, INFINITY, -INFINITY, 3e38f, 3.4e38f};
    const uint16_t want[] = {0, 0x8000, 0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xc17f, 0x7f80, 0xff80, 0x7f62, 0x7f80};
    uint16_t out[STK_ARRAY_LEN(x)], nan;
    stk_round_plain.row(x, STK_ARRAY_LEN(x), out);
    cr_assert_arr_eq(out, want, sizeof want);
    stk_round_plain.row(&(float){NAN}, 1, &nan);
    cr_assert(isnan(stk_bf16_f32(nan)));
}

Test(fast, rounds_the_same_by_the_cpus_instructions) {
    enum { N_IN = 70 };
    if (!__builtin_cpu_supports("avx512bf16")) cr_skip_test("this CPU has no AVX512-BF16");
    float x[N_IN * STK_STRIPE];
    uint16_t half[N_IN * STK_STRIPE], plainly[N_IN * STK_STRIPE], out[N_IN * STK_STRIPE];
    seed = 1;
    for (uint32_t i = 0; i < STK_ARRAY_LEN(x); i++) {
        x[i] = random_float() * powf(2, 40 * random_float());
        half[i] = stk_f32_f16(1 + random_float());
    }
    stk_round_plain.row(x, STK_ARRAY_LEN(x) - 3, plainly);
    stk_round_bf16.row(x, STK_ARRAY_LEN(x) - 3, out);
    cr_assert_arr_eq(out, plainly, sizeof out - 3 * sizeof *out);
    stk_round_plain.stripe_f16(half, N_IN, plainly);
    stk_round_bf16.stripe_f16(half, N_IN, out);
    cr_assert_arr_eq(out, plainly, sizeof out);
    stk_round_plain.stripe_f32(x, N_IN, plainly);
    stk_round_bf16.stripe_f32(x, N_IN, out);
    cr_assert_arr_eq(out, plainly, sizeof out);
}
