/*
 * vector_lanes: the operations on vectors, for every vector width. Rules: ref.c.
 *
 * Each operation is a loop over whole vectors and one over what is left, both over the same inlined part; its n is the constant
 * LANES in the first, where loads and stores then need no mask.
 *
 * Private to the files that lanes.h names.
 */
#ifndef STK_CPU_VECTOR_LANES_H
#define STK_CPU_VECTOR_LANES_H

#include "cpu/cpu.h"
#include "cpu/lanes_math.h"

/* Runs a part for elements [i, i + m), m = LANES, then for the m < LANES that are left. */
#define FOR_PARTS(n, i, m, part)                                                                                                 \
    do {                                                                                                                         \
        uint32_t i = 0;                                                                                                          \
        for (; (n)-i >= LANES; i += LANES) {                                                                                     \
            const uint32_t m = LANES;                                                                                            \
            part;                                                                                                                \
        }                                                                                                                        \
        if (i < (n)) {                                                                                                           \
            const uint32_t m = (n)-i;                                                                                            \
            part;                                                                                                                \
        }                                                                                                                        \
    } while (0)

/* ---- Quantization of activations ------------------------------------------------------------------------------------------ */

enum { GROUP_VECS = STK_GROUP / LANES };

/* 32 integers of at most 8 bits as bytes. */
INLINE __m256i pack_codes(const vi q[GROUP_VECS]) {
#if LANES == 16
    return _mm256_set_m128i(_mm512_cvtepi32_epi8(q[1]), _mm512_cvtepi32_epi8(q[0]));
#else
    __m256i p = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(p, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#endif
}

/* The bits of the largest |x|; as integers, infinities and NaN are larger than what is finite. */
INLINE uint32_t largest_bits(const vf x[GROUP_VECS]) {
    const vi magnitude = vi_set1(INT32_MAX);
    vi v = vi_and(vi_bits(x[0]), magnitude);
    UNROLL
    for (uint32_t i = 1; i < GROUP_VECS; i++) v = vi_max(v, vi_and(vi_bits(x[i]), magnitude));
#if LANES == 16
    __m256i a = _mm256_max_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
#else
    __m256i a = v;
#endif
    __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}

/* Minus the sum of each 16 codes. */
INLINE void store_neg16(__m256i codes, int32_t neg16[2]) {
    __m256i s = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(-1));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
    neg16[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(s));
    neg16[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(s, 1));
}

INLINE void quantize_group(const float *x, int8_t *codes, float *scale, float *sum, int32_t neg16[2]) {
    vf v[GROUP_VECS];
    vi q[GROUP_VECS];
    UNROLL
    for (uint32_t i = 0; i < GROUP_VECS; i++) v[i] = vf_load(x + i * LANES);
    uint32_t amax_bits = largest_bits(v);
    float amax;
    memcpy(&amax, &amax_bits, sizeof amax);
    bool finite = amax_bits < 0x7f800000u;
    if (!finite || amax < 0x1p-100f) {
        memset(codes, 0, STK_GROUP);
        neg16[0] = neg16[1] = 0;
        *scale = *sum = finite ? 0.0f : NAN;
        return;
    }
    vf id = vf_set1(127.0f / amax);
    UNROLL
    for (uint32_t i = 0; i < GROUP_VECS; i++) q[i] = vi_from_f32(vf_mul(v[i], id));
    __m256i bytes = pack_codes(q);
    _mm256_storeu_si256((__m256i *)codes, bytes);
    store_neg16(bytes, neg16);
    *scale = amax / 127.0f;
    *sum = *scale * (float)-(neg16[0] + neg16[1]);
}

static void quantize_groups(const float *x, uint32_t n, uint32_t g0, uint32_t g1, void *act) {
    stk_act_layout at = stk_act_layout_of(n);
    int8_t *codes = act;
    float *scale = (float *)((char *)act + at.scale_offset), *sum = (float *)((char *)act + at.sum_offset);
    int32_t *neg16 = (int32_t *)((char *)act + at.neg16_offset);
    for (uint32_t g = g0; g < g1; g++)
        quantize_group(x + g * STK_GROUP, codes + g * STK_GROUP, scale + g, sum + g, neg16 + 2 * g);
}

static void quantize(const float *x, uint32_t n, void *act) { quantize_groups(x, n, 0, n / STK_GROUP, act); }

/* ---- Sums and elements ---------------------------------------------------------------------------------------------------- */

/* What is left of n after the last whole 16, in vector i of SUM_VECS. */
INLINE uint32_t left_in_vec(uint32_t n, uint32_t i) { return n % 16 > i * LANES ? STK_MIN(n % 16 - i * LANES, LANES) : 0; }

INLINE vf add_square(const float *x, vf s, uint32_t n) {
    vf a = load_part(x, n);
    return vf_fma(a, a, s);
}

/* Lanes beyond n add +0, which changes no lane: none is ever -0. */
static float sum_of_squares(const float *x, uint32_t n) {
    vf s[SUM_VECS];
    UNROLL
    for (uint32_t v = 0; v < SUM_VECS; v++) s[v] = vf_zero();
    uint32_t i = 0;
    for (; n - i >= 16; i += 16) {
        UNROLL
        for (uint32_t v = 0; v < SUM_VECS; v++) s[v] = add_square(x + i + v * LANES, s[v], LANES);
    }
    UNROLL
    for (uint32_t v = 0; v < SUM_VECS; v++)
        if (left_in_vec(n, v)) s[v] = add_square(x + i + v * LANES, s[v], left_in_vec(n, v));
    return sum_lanes(s);
}

INLINE void rmsnorm_part(const float *x, const float *w, vf r, float *out, uint32_t n) {
    store_part(out, vf_mul(vf_mul(load_part(x, n), r), load_part(w, n)), n);
}

static void rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *out) {
    float mean = sum_of_squares(x, n) / (float)n;
    vf r = vf_set1(1.0f / sqrtf(mean + eps));
    FOR_PARTS(n, i, m, rmsnorm_part(x + i, w + i, r, out + i, m));
}

INLINE void silu_mul_part(const float *gate, const float *up, float *out, uint32_t n) {
    vf g = load_part(gate, n);
    vf silu = vf_div(g, vf_add(vf_set1(1.0f), vf_exp(vf_neg(g))));
    store_part(out, vf_mul(silu, load_part(up, n)), n);
}

static void silu_mul(const float *gate, const float *up, uint32_t n, float *out) {
    FOR_PARTS(n, i, m, silu_mul_part(gate + i, up + i, out + i, m));
}

INLINE void add_part(float *x, const float *y, uint32_t n) { store_part(x, vf_add(load_part(x, n), load_part(y, n)), n); }

static void add(float *x, const float *y, uint32_t n) { FOR_PARTS(n, i, m, add_part(x + i, y + i, m)); }

INLINE void axpy_part(float *acc, vf w, const float *y, uint32_t n) {
    store_part(acc, vf_fma(w, load_part(y, n), load_part(acc, n)), n);
}

static void axpy(float *acc, float w, const float *y, uint32_t n) {
    vf wide = vf_set1(w);
    FOR_PARTS(n, i, m, axpy_part(acc + i, wide, y + i, m));
}

INLINE void f32_to_f16_part(const float *x, uint16_t *out, uint32_t n) {
    const vf limit = vf_set1(65504.0f);
    vf a = vf_max(vf_neg(limit), vf_min(limit, load_part(x, n))); /* NaN stays */
    if (n == LANES) {
        vf_store_f16(out, a);
    } else {
        uint16_t half[LANES];
        vf_store_f16(half, a);
        memcpy(out, half, n * sizeof *out);
    }
}

static void f32_to_f16(const float *x, uint32_t n, uint16_t *out) { FOR_PARTS(n, i, m, f32_to_f16_part(x + i, out + i, m)); }

/* ---- Rope ----------------------------------------------------------------------------------------------------------------- */

/* Pairs (a[i], b[i]), i < n. */
INLINE void rope_halves_part(float *a, float *b, const float *table, uint32_t n) {
    const uint32_t n0 = n >= LANES / 2 ? LANES : 2 * n;
    vf t0 = load_part(table, n0), t1 = n0 < LANES ? vf_zero() : load_part(table + LANES, 2 * n - LANES);
    vf cos = vf_even(t0, t1), sin = vf_odd(t0, t1), a0 = load_part(a, n), b0 = load_part(b, n);
    store_part(a, vf_fma(a0, cos, vf_neg(vf_mul(b0, sin))), n);
    store_part(b, vf_fma(a0, sin, vf_mul(b0, cos)), n);
}

/* Pairs (x[2i], x[2i + 1]) of n floats; fmaddsub subtracts in even lanes: a * cos - b * sin beside a * sin' + b * cos'. */
INLINE void rope_pairs_part(float *x, const float *table, uint32_t n) {
    vf v = load_part(x, n), t = load_part(table, n);
    vf a = V(moveldup_ps)(v), b = V(movehdup_ps)(v), swapped = V(permute_ps)(t, 0xb1);
    store_part(x, V(fmaddsub_ps)(a, t, vf_mul(b, swapped)), n);
}

static void rope(float *x, uint32_t n_rot, const float *table, bool neox) {
    const uint32_t half = n_rot / 2;
    if (neox)
        FOR_PARTS(half, i, m, rope_halves_part(x + i, x + half + i, table + 2 * i, m));
    else
        FOR_PARTS(n_rot, i, m, rope_pairs_part(x + i, table + i, m));
}

/* ---- Softmax -------------------------------------------------------------------------------------------------------------- */

INLINE vf max_part(const float *x, vf max, uint32_t n) {
    return vf_max(n == LANES ? vf_load(x) : vf_first_n(vf_load_n(x, n), n, vf_set1(-INFINITY)), max);
}

/* p = exp(x - max), and 0 in lanes beyond n. */
INLINE vf exp_part(const float *x, vf max, float *p, uint32_t n) {
    vf e = vf_exp(vf_sub(load_part(x, n), max));
    store_part(p, e, n);
    return n == LANES ? e : vf_first_n(e, n, vf_zero());
}

INLINE void div_part(float *p, vf by, uint32_t n) { store_part(p, vf_div(load_part(p, n), by), n); }

static void softmax(const float *x, uint32_t n, float *p) {
    vf max = vf_set1(-INFINITY), s[SUM_VECS];
    FOR_PARTS(n, i, m, max = max_part(x + i, max, m));
    max = vf_set1(max_lanes(max));
    UNROLL
    for (uint32_t v = 0; v < SUM_VECS; v++) s[v] = vf_zero();
    uint32_t i = 0;
    for (; n - i >= 16; i += 16) {
        UNROLL
        for (uint32_t v = 0; v < SUM_VECS; v++) s[v] = vf_add(s[v], exp_part(x + i + v * LANES, max, p + i + v * LANES, LANES));
    }
    UNROLL
    for (uint32_t v = 0; v < SUM_VECS; v++)
        if (left_in_vec(n, v)) s[v] = vf_add(s[v], exp_part(x + i + v * LANES, max, p + i + v * LANES, left_in_vec(n, v)));
    vf sum = vf_set1(sum_lanes(s));
    FOR_PARTS(n, j, m, div_part(p + j, sum, m));
}

#endif
