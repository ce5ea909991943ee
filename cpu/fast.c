/* fast: tiles of float products, and what they are made of. */
#include "cpu/fast.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/round.h"
#include "src/mem.h"
#include "src/numeric.h"

enum {
    TOKEN_STEP = 8, /* shapes have multiples of so many tokens; rows that are not there are zero */
    N_STEP = STK_FAST_TOKENS / TOKEN_STEP,
    EVEN_WIDTH = 32, /* oneDNN's blocks of K */
    KEPT = 4,        /* sets of gathered rows that a worker remembers: those of an expert of up to 128 tokens */
};

/* Rows that do not follow one another, beside one another. */
typedef struct gathered {
    const void *rows[STK_FAST_TOKENS];
    uint32_t n, n_in; /* n 0: nothing */
    uint16_t *x;      /* [STK_FAST_TOKENS, n_in] */
} gathered;

typedef struct worker {
    gathered kept[KEPT];
    uint32_t oldest;
    uint16_t *w; /* [STK_FAST_STRIPES, stripe] rounded weights */
    float *out;  /* [STK_FAST_TOKENS, STK_FAST_STRIPES * STK_STRIPE] */
} worker;

typedef struct width {
    uint32_t n_in;
    void *one[N_STEP], *more[N_STEP]; /* for one stripe and for STK_FAST_STRIPES, of (i + 1) * TOKEN_STEP tokens */
} width;

struct stk_fast {
    const stk_fast_unit *unit;
    const stk_round_ops *round;
    uint32_t n_width, n_worker;
    width widths[STK_FAST_WIDTHS];
    worker *workers; /* [n_worker] */
    stk_map map;
    _Atomic bool failed; /* relaxed: read when the job has ended, whose barrier orders it */
};

/* ---- Rounding ------------------------------------------------------------------------------------------------------------ */

static uint16_t round_one(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40); /* NaN stays one */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void plain_row(const float *x, uint32_t n, uint16_t *out) {
    for (uint32_t i = 0; i < n; i++) out[i] = round_one(x[i]);
}

static void plain_stripe_f16(const void *stripe, uint32_t n_in, uint16_t *out) {
    const uint16_t *w = stripe;
    for (uint32_t i = 0; i < n_in * STK_STRIPE; i++) out[i] = round_one(stk_f16_f32(w[i]));
}

static void plain_stripe_f32(const void *stripe, uint32_t n_in, uint16_t *out) {
    const float *w = stripe;
    for (uint32_t k = 0; k < n_in; k++)
        for (uint32_t r = 0; r < STK_STRIPE; r++)
            out[(k / 2 * STK_STRIPE + r) * 2 + k % 2] = round_one(w[(size_t)k * STK_STRIPE + r]);
}

const stk_round_ops stk_round_plain = {plain_row, plain_stripe_f16, plain_stripe_f32};

static const stk_round_ops *best_round(void) {
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl") ? &stk_round_bf16 : &stk_round_plain;
}

void stk_fast_round(const stk_fast *fast, const float *x, uint32_t n, uint16_t *out) { fast->round->row(x, n, out); }

/* ---- Opening ------------------------------------------------------------------------------------------------------------- */

static int open_width(stk_fast *f, uint32_t n_in) {
    width *w = &f->widths[f->n_width++];
    w->n_in = n_in;
    for (uint32_t i = 0; i < N_STEP; i++) {
        uint32_t n_tok = (i + 1) * TOKEN_STEP;
        STK_TRY(f->unit->open(&w->one[i], n_tok, STK_STRIPE, n_in, f->n_worker));
        STK_TRY(f->unit->open(&w->more[i], n_tok, STK_FAST_STRIPES * STK_STRIPE, n_in, f->n_worker));
    }
    return STK_OK;
}

static const width *find(const stk_fast *f, uint32_t n_in) {
    for (uint32_t i = 0; i < f->n_width; i++)
        if (f->widths[i].n_in == n_in) return &f->widths[i];
    return NULL;
}

static int open_workers(stk_fast *f, uint32_t most) {
    const uint64_t x = (uint64_t)STK_FAST_TOKENS * most * 2, w = STK_FAST_STRIPES * stk_stripe_bytes(STK_TYPE_BF16, most),
                   out = (uint64_t)STK_FAST_TOKENS * STK_FAST_STRIPES * STK_STRIPE * sizeof(float), each = KEPT * x + w + out;
    f->workers = calloc(f->n_worker, sizeof *f->workers);
    if (!f->workers) return stk_fail(STK_ENOMEM, "out of memory");
    STK_TRY(stk_map_open(&f->map, f->n_worker * each, false, "tiles of float products"));
    for (uint32_t i = 0; i < f->n_worker; i++) {
        uint8_t *at = (uint8_t *)f->map.base + i * each;
        for (uint32_t k = 0; k < KEPT; k++) f->workers[i].kept[k].x = (uint16_t *)(at + k * x);
        f->workers[i].w = (uint16_t *)(at + KEPT * x);
        f->workers[i].out = (float *)(at + KEPT * x + w);
    }
    return STK_OK;
}

int stk_fast_open(stk_fast **out, const stk_fast_unit *unit, const uint32_t *n_in, uint32_t n, uint32_t n_worker) {
    int rc = STK_OK;
    *out = NULL;
    if (!unit) unit = stk_fast_onednn();
    if (!unit) return STK_EUNSUPPORTED;
    stk_fast *f = calloc(1, sizeof *f);
    if (!f) return stk_fail(STK_ENOMEM, "out of memory");
    f->unit = unit;
    f->round = best_round();
    f->n_worker = n_worker;
    uint32_t most = EVEN_WIDTH;
    for (uint32_t i = 0; i < n; i++) {
        if (n_in[i] == 0 || n_in[i] % EVEN_WIDTH || find(f, n_in[i]) || f->n_width == STK_FAST_WIDTHS) continue;
        STK_TRYGOTO(open_width(f, n_in[i]), rc, out);
        most = STK_MAX(most, n_in[i]);
    }
    STK_TRYGOTO(open_workers(f, most), rc, out);
out:
    if (rc < 0) stk_fast_close(&f);
    *out = f;
    return rc;
}

void stk_fast_close(stk_fast **fast) {
    stk_fast *f = *fast;
    if (!f) return;
    for (uint32_t i = 0; i < f->n_width; i++)
        for (uint32_t k = 0; k < N_STEP; k++) {
            f->unit->close(f->widths[i].one[k]);
            f->unit->close(f->widths[i].more[k]);
        }
    stk_map_close(&f->map);
    free(f->workers);
    free(f);
    *fast = NULL;
}

uint64_t stk_fast_bytes(const stk_fast *f) {
    uint64_t bytes = f->map.bytes;
    for (uint32_t i = 0; i < f->n_width; i++)
        for (uint32_t k = 0; k < N_STEP; k++) bytes += f->unit->bytes(f->widths[i].one[k]) + f->unit->bytes(f->widths[i].more[k]);
    return bytes;
}

bool stk_fast_serves(const stk_fast *f, enum stk_type type, uint32_t n_in, uint32_t n_tok) {
    return f && !stk_type_is_quantized(type) && n_tok >= STK_FAST_LEAST && n_tok <= STK_FAST_TOKENS && find(f, n_in);
}

int stk_fast_check(const stk_fast *f) {
    if (!f || !atomic_load_explicit(&f->failed, memory_order_relaxed)) return STK_OK;
    return stk_fail(STK_EIO, "%s failed in a product; without --float fast it is not used", f->unit->name);
}

/* ---- Products ------------------------------------------------------------------------------------------------------------ */

void stk_fast_forget(stk_fast *f, uint32_t worker_idx) {
    for (uint32_t k = 0; f && k < KEPT; k++) f->workers[worker_idx].kept[k].n = 0;
}

/* The tokens' rows as a matrix of n_row rows, those behind n_tok zero: where they lie, or gathered, perhaps by an earlier call.
 */
static const uint16_t *gather(worker *w, const stk_matmul *m, uint32_t n_row) {
    const size_t row_bytes = (size_t)m->n_in * 2;
    uint32_t t = 1;
    while (t < m->n_tok && (const uint8_t *)m->x[t] == (const uint8_t *)m->x[0] + t * row_bytes) t++;
    if (t == n_row) return m->x[0];
    for (uint32_t k = 0; k < KEPT; k++) {
        const gathered *g = &w->kept[k];
        if (g->n == m->n_tok && g->n_in == m->n_in && memcmp(g->rows, m->x, g->n * sizeof g->rows[0]) == 0) return g->x;
    }
    gathered *g = &w->kept[w->oldest++ % KEPT];
    g->n = m->n_tok;
    g->n_in = m->n_in;
    memcpy(g->rows, m->x, g->n * sizeof g->rows[0]);
    for (t = 0; t < m->n_tok; t++) memcpy(g->x + (size_t)t * m->n_in, m->x[t], row_bytes);
    memset(g->x + (size_t)t * m->n_in, 0, (n_row - t) * row_bytes);
    return g->x;
}

/* Stripes [s, s + n) as BF16. */
static const void *weights_of(const stk_fast *f, worker *w, enum stk_type type, const stk_matmul *m, uint32_t s, uint32_t n) {
    const uint64_t from_bytes = stk_stripe_bytes(type, m->n_in), to_bytes = stk_stripe_bytes(STK_TYPE_BF16, m->n_in);
    const uint8_t *from = (const uint8_t *)m->weights + s * from_bytes;
    if (type == STK_TYPE_BF16) return from;
    for (uint32_t i = 0; i < n; i++) {
        uint16_t *to = w->w + i * (to_bytes / 2);
        (type == STK_TYPE_F16 ? f->round->stripe_f16 : f->round->stripe_f32)(from + i * from_bytes, m->n_in, to);
    }
    return w->w;
}

void stk_fast_product(stk_fast *f, uint32_t worker_idx, enum stk_type type, const stk_matmul *m) {
    worker *w = &f->workers[worker_idx];
    const width *shapes = find(f, m->n_in);
    const uint32_t step = (m->n_tok - 1) / TOKEN_STEP;
    const uint16_t *x = gather(w, m, (step + 1) * TOKEN_STEP);
    for (uint32_t s = m->stripe_begin, n; s < m->stripe_end; s += n) {
        n = m->stripe_end - s >= STK_FAST_STRIPES ? STK_FAST_STRIPES : 1;
        void *shape = n == 1 ? shapes->one[step] : shapes->more[step];
        if (!f->unit->run(shape, worker_idx, x, weights_of(f, w, type, m, s, n), w->out))
            atomic_store_explicit(&f->failed, true, memory_order_relaxed);
        uint32_t row = s * STK_STRIPE, n_row = STK_MIN(n * STK_STRIPE, m->n_rows - row);
        for (uint32_t t = 0; t < m->n_tok; t++)
            memcpy(m->out[t] + row, w->out + (size_t)t * n * STK_STRIPE, n_row * sizeof(float));
    }
}
