/* synth_route: orthogonal rows, the routing that a trace tells, and routers that read it out. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/synth/synth_route.h"
#include "tests/temp.h"
#include "traces/trace.h"

/* ---- Rows --------------------------------------------------------------------------------------------------------------- */

/* Every `stride`th row against all rows. */
static void expect_orthogonal(uint32_t order, uint32_t stride) {
    stk_synth_signs s;
    int8_t *rows = malloc((size_t)order * order);
    cr_assert_eq(stk_synth_signs_open(&s, order), STK_OK, "%s", stk_error_detail());
    for (uint32_t i = 0; i < order; i++) stk_synth_signs_row(&s, i, rows + (size_t)i * order);
    for (uint32_t i = 0; i < order; i += stride) {
        for (uint32_t k = 0; k < order; k++) {
            int32_t sum = 0;
            const int8_t *a = rows + (size_t)i * order, *b = rows + (size_t)k * order;
            for (uint32_t c = 0; c < order; c++) sum += a[c] * b[c];
            cr_assert_eq(sum, i == k ? (int32_t)order : 0, "order %u: rows %u and %u", order, i, k);
        }
    }
    stk_synth_signs_close(&s);
    free(rows);
}

Test(synth_route, rows_are_orthogonal) {
    static const uint32_t small[] = {1, 2, 4, 8, 12, 20, 24, 44, 224, 256, 352, 768};
    for (size_t i = 0; i < STK_ARRAY_LEN(small); i++) expect_orthogonal(small[i], 1);
    expect_orthogonal(2048, 97);
    expect_orthogonal(3584, 311);
    expect_orthogonal(4096, 499);
}

Test(synth_route, orders_without_rows) {
    static const uint32_t none[] = {0, 3, 6, 92, 1023};
    stk_synth_signs s;
    for (size_t i = 0; i < STK_ARRAY_LEN(none); i++) {
        cr_assert_eq(stk_synth_signs_open(&s, none[i]), STK_EUNSUPPORTED, "%u", none[i]);
        stk_synth_signs_close(&s);
    }
}

/* ---- Traces ------------------------------------------------------------------------------------------------------------- */

enum { N_LAYER = 2, N_EXPERT = 8, K = 3, MAX_TOK = 4 };

static const char *trace_path(void) {
    static char path[TEMP_PATH];
    return *path ? path : temp_file(path, "stoker-synth-route");
}

static stk_trace_writer *open_trace(void) {
    static const stk_trace_class classes[] = {{4096, 4096, 16, 0}};
    static const uint32_t layer_class[N_LAYER] = {0, 0}, model_layer[N_LAYER] = {0, 1};
    static const stk_trace_extent extents[N_LAYER * N_EXPERT];
    stk_trace_writer *w;
    cr_assert_eq(stk_trace_writer_open(&w, trace_path(),
                                       &(stk_trace_header){.n_layer = N_LAYER,
                                                           .n_expert = N_EXPERT,
                                                           .k = K,
                                                           .n_part = 1,
                                                           .n_class = 1,
                                                           .n_batch = MAX_TOK,
                                                           .classes = classes,
                                                           .layer_class = layer_class,
                                                           .model_layer = model_layer,
                                                           .extents = extents,
                                                           .model = "",
                                                           .policy = "lru",
                                                           .params = "",
                                                           .io = ""}),
                 STK_OK, "%s", stk_error_detail());
    return w;
}

static void put_step(stk_trace_writer *w, uint64_t number, uint32_t n_tok) {
    static const int32_t zeros[MAX_TOK];
    static const uint8_t logits[MAX_TOK];
    stk_trace_record r = {.kind = STK_TRACE_STEP, .step = {number, n_tok, zeros, zeros, zeros, logits}};
    cr_assert_eq(stk_trace_write(w, &r), STK_OK, "%s", stk_error_detail());
}

/* Token t of the step uses base + t and those after it. */
static void put_event(stk_trace_writer *w, uint64_t number, uint32_t layer, uint32_t n_tok, uint32_t base, const float *weights) {
    uint16_t ids[MAX_TOK * K];
    for (uint32_t i = 0; i < n_tok * K; i++) ids[i] = (uint16_t)((base + i / K + i % K) % N_EXPERT);
    stk_trace_record r = {
        .kind = STK_TRACE_EVENT,
        .event = {.step = number, .layer = layer, .n_tok = n_tok, .k = K, .n_expert = N_EXPERT, .ids = ids, .weights = weights}};
    cr_assert_eq(stk_trace_write(w, &r), STK_OK, "%s", stk_error_detail());
}

static void close_trace(stk_trace_writer *w, bool whole) {
    stk_trace_record end = {.kind = STK_TRACE_END};
    if (whole) cr_assert_eq(stk_trace_write(w, &end), STK_OK);
    cr_assert_eq(stk_trace_writer_close(&w), STK_OK);
}

static void expect_ids(const stk_synth_route *r, uint32_t layer, uint32_t token, uint32_t base) {
    const uint16_t *ids = stk_synth_route_ids(r, layer, token);
    for (uint32_t i = 0; i < K; i++) cr_assert_eq(ids[i], (base + i) % N_EXPERT, "layer %u, token %u, rank %u", layer, token, i);
}

static char logged[1024];
static void on_log(void *user, int level, const char *line) {
    (void)user;
    (void)level;
    strncat(logged, line, sizeof logged - strlen(logged) - 1);
}

/* Three tokens, a step that was aborted and repeated, and one whose second layer says nothing. */
static void write_trace(bool whole) {
    stk_trace_writer *w = open_trace();
    put_step(w, 0, 2);
    put_event(w, 0, 0, 2, 1, NULL);
    put_event(w, 0, 1, 2, 4, NULL);
    put_step(w, 1, 1);
    put_event(w, 1, 0, 1, 6, NULL);
    stk_trace_record aborted = {.kind = STK_TRACE_ABORT, .abort_step = 1};
    cr_assert_eq(stk_trace_write(w, &aborted), STK_OK);
    put_step(w, 2, 1);
    put_event(w, 2, 0, 1, 3, (const float[]){0.6f, 0.3f, 0.1f});
    put_event(w, 2, 1, 1, 5, NULL);
    put_step(w, 3, 1);
    put_event(w, 3, 0, 1, 7, NULL);
    close_trace(w, whole);
}

Test(synth_route, what_a_trace_tells) {
    for (int whole = 0; whole < 2; whole++) {
        stk_synth_route *r;
        logged[0] = 0;
        stk_log_set(on_log, NULL);
        write_trace(whole);
        cr_assert_eq(stk_synth_route_open(&r, trace_path(), 100, 1), STK_OK, "%s", stk_error_detail());
        unlink(trace_path());
        cr_assert_eq(stk_synth_route_n_token(r), 4);
        cr_assert(stk_synth_route_n_layer(r) == N_LAYER && stk_synth_route_n_expert(r) == N_EXPERT && stk_synth_route_k(r) == K);
        expect_ids(r, 0, 0, 1);
        expect_ids(r, 0, 1, 2);
        expect_ids(r, 1, 1, 5);
        expect_ids(r, 0, 2, 3);
        expect_ids(r, 1, 2, 5);
        expect_ids(r, 0, 3, 7);
        const uint16_t *drawn = stk_synth_route_ids(r, 1, 3);
        for (uint32_t i = 0; i < K; i++)
            for (uint32_t k = 0; k < K; k++) cr_assert(drawn[i] < N_EXPERT && (i == k || drawn[i] != drawn[k]));
        cr_assert(strstr(logged, "does not tell 3 of 24 experts"), "%s", logged);
        cr_assert_eq(strstr(logged, "cut off") != NULL, !whole, "%s", logged);
        cr_assert_null(strstr(logged, "starts over"));
        stk_synth_route_close(&r);
        cr_assert_null(r);
    }
}

Test(synth_route, more_tokens_than_fit) {
    stk_synth_route *r;
    logged[0] = 0;
    stk_log_set(on_log, NULL);
    write_trace(true);
    cr_assert_eq(stk_synth_route_open(&r, trace_path(), 3, 1), STK_OK, "%s", stk_error_detail());
    unlink(trace_path());
    cr_assert_eq(stk_synth_route_n_token(r), 3);
    expect_ids(r, 0, 2, 3);
    cr_assert(strstr(logged, "the first 3 of 4 tokens fit"), "%s", logged);
    stk_synth_route_close(&r);
}

Test(synth_route, no_trace) {
    stk_synth_route *r;
    cr_assert_eq(stk_synth_route_open(&r, "/nowhere", 3, 1), STK_EIO);
    cr_assert_null(r);
    close_trace(open_trace(), true);
    cr_assert_eq(stk_synth_route_open(&r, trace_path(), 3, 1), STK_EFORMAT);
    unlink(trace_path());
    cr_assert(strstr(stk_error_detail(), "without tokens"), "%s", stk_error_detail());
    cr_assert_null(r);
}

/* The scores of a token are those of its own experts in rank order, 0 for all others, and the weights that the trace has. */
Test(synth_route, routers_read_the_rows_out) {
    enum { N_EMBD = 8 };
    stk_synth_route *r;
    stk_synth_signs s;
    int8_t rows[4 * N_EMBD];
    float w[N_EXPERT * N_EMBD];
    write_trace(true);
    cr_assert_eq(stk_synth_route_open(&r, trace_path(), N_EMBD, 1), STK_OK, "%s", stk_error_detail());
    unlink(trace_path());
    cr_assert_eq(stk_synth_signs_open(&s, N_EMBD), STK_OK);
    for (uint32_t t = 0; t < 4; t++) stk_synth_signs_row(&s, t, rows + t * N_EMBD);
    for (uint32_t layer = 0; layer < N_LAYER; layer++) {
        stk_synth_route_router(r, layer, rows, N_EMBD, w);
        for (uint32_t t = 0; t < 4; t++) {
            double score[N_EXPERT] = {0}, last = INFINITY;
            for (uint32_t e = 0; e < N_EXPERT; e++)
                for (uint32_t c = 0; c < N_EMBD; c++) score[e] += (double)w[e * N_EMBD + c] * rows[t * N_EMBD + c];
            const uint16_t *ids = stk_synth_route_ids(r, layer, t);
            double first = score[ids[0]], second = score[ids[1]], third = score[ids[2]];
            for (uint32_t i = 0; i < K; i++) {
                cr_assert_lt(score[ids[i]], last - 0.015);
                last = score[ids[i]];
                score[ids[i]] = 0;
            }
            cr_assert_gt(last, 3.99);
            for (uint32_t e = 0; e < N_EXPERT; e++) cr_assert_lt(fabs(score[e]), 1e-5);
            if (layer == 0 && t == 2) { /* weights 0.6, 0.3, 0.1 */
                cr_assert_lt(fabs(exp(first - second) - 2), 1e-4);
                cr_assert_lt(fabs(exp(second - third) - 3), 1e-4);
            }
        }
    }
    stk_synth_signs_close(&s);
    stk_synth_route_close(&r);
}
