/* broken_vectors: vector operations and attention that are wrong on purpose. */
#include <string.h>
#include <xmmintrin.h>

#include "broken.h"
#include "src/numeric.h"

static const stk_cpu_ops *const ref = &stk_cpu_ops_ref;

/* ---- exp ---- */

/* stk_expf where r^2 * p + r is scaled by 2^n and added to 2^n: the same number but for its last bit, in the range without ends.
 */
static float exp_other_nesting(float x) {
    if (!(fabsf(x) < 80.0f)) return stk_expf(x);
    float n = rintf(x * 0x1.715476p+0f), r = fmaf(n, -0x1.7f7d1cp-20f, fmaf(n, -0x1.62e400p-1f, x)), p = 0x1.6a4d14p-10f;
    p = fmaf(fmaf(p, r, 0x1.12398ap-7f), r, 0x1.5558b0p-5f);
    p = fmaf(fmaf(p, r, 0x1.555492p-3f), r, 0x1.fffffcp-2f);
    float scale = ldexpf(1.0f, (int)n);
    return fmaf(fmaf(p, r * r, r), scale, scale);
}

/* Horner's steps in the wrong order. */
static float exp_wrong_horner(float x) {
    float n = rintf(x * 0x1.715476p+0f), r = fmaf(n, -0x1.62e430p-1f, x);
    return fabsf(x) < 80.0f ? ldexpf(1.0f + r * (1.0f + (0x1.fffffcp-2f + r) * 0x1.555492p-3f), (int)n) : stk_expf(x);
}

static void silu_mul_by(const float *gate, const float *up, uint32_t begin, uint32_t end, float *out, float (*exp_fn)(float)) {
    for (uint32_t i = begin; i < end; i++) out[i] = gate[i] / (1.0f + exp_fn(-gate[i])) * up[i];
}

static void silu_mul_other_nesting(const float *gate, const float *up, uint32_t n, float *out) {
    silu_mul_by(gate, up, 0, n, out, exp_other_nesting);
}

static void silu_mul_wrong_horner(const float *gate, const float *up, uint32_t n, float *out) {
    silu_mul_by(gate, up, 0, n, out, exp_wrong_horner);
}

static void silu_mul_tail_of_libm(const float *gate, const float *up, uint32_t n, float *out) {
    silu_mul_by(gate, up, n / 16 * 16, n, out, expf);
    ref->silu_mul(gate, up, n / 16 * 16, out);
}

static void silu_mul_no_tail(const float *gate, const float *up, uint32_t n, float *out) {
    ref->silu_mul(gate, up, n > 16 ? n / 16 * 16 : n, out);
}

static void softmax_of_libm(const float *x, uint32_t n, float *p) {
    float max = -INFINITY, sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < n; i++) p[i] = expf(x[i] - max), sum += p[i];
    for (uint32_t i = 0; i < n; i++) p[i] /= sum;
}
INSTALL(silu_mul, silu_mul_other_nesting)
INSTALL(silu_mul, silu_mul_wrong_horner)
INSTALL(silu_mul, silu_mul_tail_of_libm)
INSTALL(silu_mul, silu_mul_no_tail)
INSTALL(softmax, softmax_of_libm)

/* ---- Sums and small operations ---- */

static void rmsnorm_in_order(const float *x, const float *w, uint32_t n, float eps, float *out) {
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) sum = fmaf(x[i], x[i], sum);
    float r = 1.0f / sqrtf(sum / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) out[i] = x[i] * r * w[i];
}

static void rmsnorm_other_product(const float *x, const float *w, uint32_t n, float eps, float *out) {
    float lane[16] = {0};
    for (uint32_t i = 0; i < n; i++) lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    for (uint32_t half = 8; half; half /= 2)
        for (uint32_t i = 0; i < half; i++) lane[i] += lane[i + half];
    float r = 1.0f / sqrtf(lane[0] / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) out[i] = x[i] * (r * w[i]);
}

static void add_reads_too_far(float *x, const float *y, uint32_t n) {
    volatile float sink = y[(n + 7) / 8 * 8 - 1];
    (void)sink;
    ref->add(x, y, n);
}

static void add_leaves_mxcsr(float *x, const float *y, uint32_t n) {
    ref->add(x, y, n);
    _mm_setcsr(_mm_getcsr() | 0x8000u);
}

static void axpy_no_fma(float *acc, float w, const float *y, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) acc[i] = w * y[i] + acc[i];
}

static void rope_no_fma(float *x, uint32_t n_rot, const float *table, bool neox) {
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        float *a = neox ? x + i : x + 2 * i, *b = neox ? x + n_rot / 2 + i : x + 2 * i + 1, c = table[2 * i],
              s = table[2 * i + 1];
        float rotated = *a * c - *b * s;
        *b = *a * s + *b * c;
        *a = rotated;
    }
}

static void rope_wrong_pairs(float *x, uint32_t n_rot, const float *table, bool neox) {
    ref->rope(x, n_rot, table, neox && n_rot % 16 == 0);
}

static void half_infinite(const float *x, uint32_t n, uint16_t *out) {
    for (uint32_t i = 0; i < n; i++) out[i] = stk_f32_f16(x[i]);
}

static void half_no_subnormals(const float *x, uint32_t n, uint16_t *out) {
    ref->f32_to_f16(x, n, out);
    for (uint32_t i = 0; i < n; i++)
        if ((out[i] & 0x7c00u) == 0) out[i] &= 0x8000u;
}

static void half_truncates(const float *x, uint32_t n, uint16_t *out) {
    for (uint32_t i = 0; i < n; i++) out[i] = stk_f32_f16_sat(x[i] == x[i] ? stk_bits_f32(stk_f32_bits(x[i]) & ~0x1fffu) : x[i]);
}

INSTALL(rmsnorm, rmsnorm_in_order)
INSTALL(rmsnorm, rmsnorm_other_product)
INSTALL(add, add_reads_too_far)
INSTALL(add, add_leaves_mxcsr)
INSTALL(axpy, axpy_no_fma)
INSTALL(rope, rope_no_fma)
INSTALL(rope, rope_wrong_pairs)
INSTALL(f32_to_f16, half_infinite)
INSTALL(f32_to_f16, half_no_subnormals)
INSTALL(f32_to_f16, half_truncates)

/* ---- Attention: the reference with one flaw ---- */

enum { ALL_OF_TILE = 1, SCALED_QUERY = 2, SUM_IN_ORDER = 4, NO_RESCALE = 8, SAME_N_POS = 16, ONE_TILE_SUM = 32 };

static float element(const void *p, bool f16, uint32_t i) {
    return f16 ? stk_f16_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static float score(const stk_attend *a, const float *q, const void *k, uint32_t j, bool scaled_query) {
    float s = 0.0f;
    for (uint32_t d = 0; d < a->head_dim; d++)
        s = fmaf(scaled_query ? q[d] * a->scale : q[d], element(k, a->k_f16, d * 64 + j), s);
    return scaled_query ? s : s * a->scale;
}

static void flawed_tile(const stk_attend *a, const float *q, const void *k, const void *v, uint32_t n, float *state,
                        uint32_t flaws) {
    float p[64] = {0}, max = state[0], *o = state + 2, sum = 0.0f;
    for (uint32_t j = 0; j < n; j++) {
        p[j] = score(a, q, k, j, flaws & SCALED_QUERY);
        max = p[j] > max ? p[j] : max;
    }
    float c = stk_expf(state[0] - max);
    for (uint32_t j = 0; j < n; j++) p[j] = stk_expf(p[j] - max);
    for (uint32_t j = 0; j < n; j++) sum += p[j];
    if (!(flaws & SUM_IN_ORDER)) sum = stk_ref_sum(p, n);
    state[0] = max;
    state[1] = fmaf(state[1], c, sum);
    for (uint32_t d = 0; d < a->head_dim; d++) {
        float t = 0.0f;
        if (!(flaws & NO_RESCALE)) o[d] *= c;
        for (uint32_t j = 0; j < (flaws & ALL_OF_TILE ? 64 : n); j++) {
            float *acc = flaws & ONE_TILE_SUM ? &t : &o[d];
            *acc = fmaf(p[j], element(v, a->v_f16, j * a->head_dim + d), *acc);
        }
        o[d] += t;
    }
}

static void attend_flawed(const stk_attend *a, uint32_t flaws) {
    for (uint32_t i = 0; i < a->n_q; i++) {
        uint32_t n_pos = a->n_pos[flaws & SAME_N_POS ? 0 : i];
        memset(a->state[i], 0, (2 + a->head_dim) * sizeof(float));
        a->state[i][0] = -INFINITY;
        for (uint32_t pos = 0; pos < n_pos; pos += 64)
            flawed_tile(a, a->q[i], a->k[pos / 64], a->v[pos / 64], STK_MIN(n_pos - pos, 64u), a->state[i], flaws);
    }
}

static void attend_all_of_tile(const stk_attend *a) { attend_flawed(a, ALL_OF_TILE); }
static void attend_scaled_query(const stk_attend *a) { attend_flawed(a, SCALED_QUERY); }
static void attend_sum_in_order(const stk_attend *a) { attend_flawed(a, SUM_IN_ORDER); }
static void attend_no_rescale(const stk_attend *a) { attend_flawed(a, NO_RESCALE); }
static void attend_same_n_pos(const stk_attend *a) { attend_flawed(a, SAME_N_POS); }
static void attend_one_tile_sum(const stk_attend *a) { attend_flawed(a, ONE_TILE_SUM); }
INSTALL(attend, attend_all_of_tile)
INSTALL(attend, attend_scaled_query)
INSTALL(attend, attend_sum_in_order)
INSTALL(attend, attend_no_rescale)
INSTALL(attend, attend_same_n_pos)
INSTALL(attend, attend_one_tile_sum)

const broken broken_vectors[] = {
    {"silu_mul", "exp nested in another way", install_silu_mul_other_nesting},
    {"silu_mul", "exp with Horner's steps in the wrong order", install_silu_mul_wrong_horner},
    {"silu_mul", "the tail uses the library's exp", install_silu_mul_tail_of_libm},
    {"silu_mul", "the tail is not written", install_silu_mul_no_tail},
    {"softmax", "the library's exp and a sum in order", install_softmax_of_libm},
    {"rmsnorm", "sum of squares in order", install_rmsnorm_in_order},
    {"rmsnorm", "x * (r * w) instead of (x * r) * w", install_rmsnorm_other_product},
    {"add", "reads whole vectors behind the end", install_add_reads_too_far},
    {"add", "leaves MXCSR changed", install_add_leaves_mxcsr},
    {"axpy", "product rounded before the addition", install_axpy_no_fma},
    {"rope", "products rounded before the addition", install_rope_no_fma},
    {"rope", "wrong pairs where n_rot is no multiple of 16", install_rope_wrong_pairs},
    {"f32_to_f16", "overflow to infinity", install_half_infinite},
    {"f32_to_f16", "subnormals flushed", install_half_no_subnormals},
    {"f32_to_f16", "truncates", install_half_truncates},
    {"attend", "NaN of invisible positions leaks in through zero weights", install_attend_all_of_tile},
    {"attend", "the query is scaled before the product", install_attend_scaled_query},
    {"attend", "sum of p in order", install_attend_sum_in_order},
    {"attend", "output not rescaled by a new maximum", install_attend_no_rescale},
    {"attend", "all queries see what the first sees", install_attend_same_n_pos},
    {"attend", "a tile is summed apart from the rest", install_attend_one_tile_sum},
};
const uint32_t n_broken_vectors = STK_ARRAY_LEN(broken_vectors);
