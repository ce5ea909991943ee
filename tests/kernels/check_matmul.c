/* check_matmul: activation quantization and the products. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "src/numeric.h"

enum { MAX_TOK = 33, MAX_ROWS = 100, MAX_IN = 2048, MAX_STRIPES = (MAX_ROWS + STK_STRIPE - 1) / STK_STRIPE };

/* ---- Quantization ---- */

/* Compares two quantized rows field by field; the bytes between the fields must be untouched. */
static bool equal_acts(const uint8_t *want, const uint8_t *got, uint32_t n) {
    stk_act_layout at = stk_act_layout_of(n);
    uint32_t scale_end = at.scale_offset + n / STK_GROUP * 4, sum_end = at.sum_offset + n / STK_GROUP * 4;
    for (uint32_t i = 0; i < at.bytes; i++) {
        bool is_float = (i >= at.scale_offset && i < scale_end) || (i >= at.sum_offset && i < sum_end);
        if (!is_float && want[i] != got[i])
            return check_fail("byte %u of %u is %02x, the reference has %02x (codes at 0, scales at %u, sums at %u, neg16 at %u)",
                              i, at.bytes, got[i], want[i], at.scale_offset, at.sum_offset, at.neg16_offset);
    }
    return check_floats("scale", (const float *)(want + at.scale_offset), (const float *)(got + at.scale_offset),
                        n / STK_GROUP) &&
           check_floats("sum", (const float *)(want + at.sum_offset), (const float *)(got + at.sum_offset), n / STK_GROUP);
}

static bool quantize_case(const stk_cpu_ops *ops, uint32_t style, uint32_t n, uint32_t g0, uint32_t g1, bool whole) {
    static guard x_guard, want_guard, got_guard;
    static uint32_t opened;
    if (!opened++) {
        guard_open(&x_guard, MAX_IN * 4 * 2);
        guard_open(&want_guard, stk_act_layout_of(MAX_IN).bytes * 2);
        guard_open(&got_guard, stk_act_layout_of(MAX_IN).bytes * 2);
    }
    uint32_t bytes = stk_act_layout_of(n).bytes;
    float *x = guard_place(&x_guard, n * sizeof *x, 64, 0, FILL_NAN);
    uint8_t *want = guard_place(&want_guard, bytes, 64, 0, FILL_CANARY),
            *got = guard_place(&got_guard, bytes, 64, 0, FILL_CANARY);
    check_fill_activations(style, x, n);
    guard_protect(&x_guard);
    check_case("n %u, groups [%u, %u), activations %s", n, g0, g1, check_style_name(style));
    stk_cpu_ops_ref.quantize_groups(x, n, g0, g1, want);
    if (whole)
        ops->quantize(x, n, got);
    else
        ops->quantize_groups(x, n, g0, g1, got);
    return equal_acts(want, got, n) && guard_intact(&got_guard, "act") && check_mxcsr();
}

static const uint32_t widths[] = {32, 64, 96, 160, 256, 288, 544, 768, 2048};

bool check_quantize(const stk_cpu_ops *ops) {
    check_begin(ops, "quantize");
    for (uint32_t style = 0; style < CHECK_N_STYLE; style++)
        for (uint32_t w = 0; w < STK_ARRAY_LEN(widths); w++)
            for (uint32_t i = 0; i < 8; i++)
                if (!quantize_case(ops, style, widths[w], 0, widths[w] / STK_GROUP, true)) return false;
    return true;
}

bool check_quantize_groups(const stk_cpu_ops *ops) {
    check_begin(ops, "quantize_groups");
    for (uint32_t i = 0; i < 600; i++) {
        uint32_t n = widths[check_below(STK_ARRAY_LEN(widths))], n_group = n / STK_GROUP;
        uint32_t g0 = check_below(n_group + 1), g1 = g0 + check_below(n_group - g0 + 1);
        if (!quantize_case(ops, i % CHECK_N_STYLE, n, g0, g1, false)) return false;
    }
    return true;
}

/* ---- Products ---- */

/* One matrix, 33 activation rows, and what the reference makes of them. */
typedef struct setup {
    guard weights, x[MAX_TOK], out[MAX_TOK];
    uint8_t rows[MAX_ROWS * MAX_IN * 4], scratch[STK_STRIPE * MAX_IN * 4];
    float want[MAX_TOK][MAX_ROWS];
    uint32_t style[MAX_TOK];
    enum stk_type type;
    uint32_t n_rows, n_in, flavour;
} setup;

static setup *open_setup(void) {
    static setup s;
    if (s.weights.begin) return &s;
    guard_open(&s.weights, (size_t)MAX_STRIPES * STK_STRIPE * MAX_IN * 4);
    for (uint32_t t = 0; t < MAX_TOK; t++) {
        guard_open(&s.x[t], MAX_IN * 4 + 4096);
        guard_open(&s.out[t], MAX_ROWS * 4 + 256);
    }
    return &s;
}

static void fill_setup(setup *s) {
    check_fill_rows(s->type, s->flavour, s->n_rows, s->n_in, s->rows);
    void *weights = guard_place(&s->weights, stk_matrix_bytes(s->type, s->n_rows, s->n_in), 64, 0, FILL_NAN);
    stk_layout_pack(s->type, s->n_rows, s->n_in, s->rows, weights, s->scratch);
    guard_protect(&s->weights);

    uint32_t first_style = check_random();
    static float x[MAX_IN];
    for (uint32_t t = 0; t < MAX_TOK; t++) {
        s->style[t] = (first_style + t) % CHECK_N_STYLE;
        check_fill_activations(s->style[t], x, s->n_in);
        if (stk_type_is_quantized(s->type)) {
            stk_cpu_ops_ref.quantize(x, s->n_in, guard_place(&s->x[t], stk_act_layout_of(s->n_in).bytes, 64, 0, FILL_NAN));
        } else {
            float *row = guard_place(&s->x[t], (s->n_in + 1) / 2 * 8, 64, 0, FILL_NAN);
            memcpy(row, x, s->n_in * sizeof *x);
            if (s->n_in % 2) row[s->n_in] = 0.0f;
        }
        guard_protect(&s->x[t]);
    }
    const void *xs[MAX_TOK];
    float *outs[MAX_TOK];
    for (uint32_t t = 0; t < MAX_TOK; t++) xs[t] = s->x[t].at, outs[t] = s->want[t];
    stk_matmul m = {weights, s->n_in, s->n_rows, 0, (uint32_t)stk_n_stripe(s->n_rows), MAX_TOK, xs, outs, NULL};
    stk_cpu_matmul(&stk_cpu_ops_ref, s->type)(&m);
}

/* Rows of [stripe_begin, stripe_end) must be the reference's, all others as they were. */
static bool equal_out(const setup *s, const guard *out, uint32_t tok, uint32_t stripe_begin, uint32_t stripe_end) {
    uint32_t begin = STK_MIN(stripe_begin * STK_STRIPE, s->n_rows), end = STK_MIN(stripe_end * STK_STRIPE, s->n_rows);
    for (uint32_t i = 0; i < s->n_rows * 4; i++)
        if ((i / 4 < begin || i / 4 >= end) && out->at[i] != FILL_CANARY)
            return check_fail("wrote row %u, outside of its stripes", i / 4);
    char what[96];
    snprintf(what, sizeof what, "activations %s: out from row %u", check_style_name(s->style[tok]), begin);
    return check_floats(what, s->want[tok] + begin, (const float *)out->at + begin, end - begin) && guard_intact(out, "out");
}

/* Tokens [first, first + n_tok) over stripes [begin, end), cut into n_part calls as threads would. */
static bool product_case(const stk_cpu_ops *ops, setup *s, uint32_t first, uint32_t n_tok, uint32_t begin, uint32_t end,
                         uint32_t n_part) {
    const void *xs[MAX_TOK];
    float *outs[MAX_TOK];
    uint32_t slack = check_below(2) ? 0 : 4 * check_below(16);
    for (uint32_t t = 0; t < n_tok; t++) {
        xs[t] = s->x[first + t].at;
        outs[t] = guard_place(&s->out[t], s->n_rows * sizeof(float), 4, slack, FILL_CANARY);
    }
    check_case("weights %s, %u rows of %u, tokens %u from %u, stripes [%u, %u) in %u parts, out %u bytes before the guard",
               check_flavour_name(s->flavour), s->n_rows, s->n_in, n_tok, first, begin, end, n_part, slack);
    for (uint32_t p = 0; p < n_part; p++) {
        stk_matmul m = {
            s->weights.at, s->n_in, s->n_rows, begin + (end - begin) * p / n_part,    begin + (end - begin) * (p + 1) / n_part,
            n_tok,         xs,      outs,      check_below(2) ? s->weights.end : NULL};
        stk_cpu_matmul(ops, s->type)(&m);
    }
    for (uint32_t t = 0; t < n_tok; t++)
        if (!equal_out(s, &s->out[t], first + t, begin, end)) return false;
    return check_mxcsr();
}

static bool check_shape(const stk_cpu_ops *ops, setup *s) {
    static const uint32_t n_toks[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 32, 33};
    uint32_t n_stripe = (uint32_t)stk_n_stripe(s->n_rows);
    for (s->flavour = 0; s->flavour < CHECK_N_FLAVOUR; s->flavour++) {
        fill_setup(s);
        for (uint32_t i = 0; i < STK_ARRAY_LEN(n_toks); i++) {
            uint32_t n_tok = n_toks[i], begin = check_below(n_stripe + 1), end = begin + check_below(n_stripe - begin + 1);
            uint32_t first = check_below(MAX_TOK - n_tok + 1);
            if (!product_case(ops, s, first, n_tok, 0, n_stripe, 1)) return false;
            if (n_stripe > 1 && !product_case(ops, s, first, n_tok, begin, end, 1)) return false;
            if (n_stripe > 1 && !product_case(ops, s, first, n_tok, 0, n_stripe, 1 + check_below(n_stripe + 3))) return false;
        }
    }
    return true;
}

bool check_matmul(const stk_cpu_ops *ops, enum stk_type type) {
    static const uint32_t n_rows[] = {1, 15, 16, 17, 33, MAX_ROWS},
                          float_widths[] = {1, 2, 3, 13, 31, 33, 127, 255, 257, 509, 1021};
    setup *s = open_setup();
    bool is_ref = ops == &stk_cpu_ops_ref; /* slow, and equal to itself: small shapes show that it keeps to its memory */
    s->type = type;
    for (uint32_t r = 0; r < STK_ARRAY_LEN(n_rows); r++)
        for (uint32_t w = 0; w < STK_ARRAY_LEN(widths) + STK_ARRAY_LEN(float_widths); w++) {
            s->n_rows = n_rows[r];
            s->n_in = w < STK_ARRAY_LEN(widths) ? widths[w] : float_widths[w - STK_ARRAY_LEN(widths)];
            if (is_ref && s->n_rows * s->n_in > 8192) continue;
            if (s->n_in % stk_type_info_get(type)->block == 0 && !check_shape(ops, s)) return false;
        }
    return true;
}
