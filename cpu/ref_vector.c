/* ref_vector: the reference of the operations on vectors. The rules are in ref.c. */
#include "cpu/ref.h"
#include "src/numeric.h"

enum { LANES = 16 };

static float add_lanes(float s[LANES]) {
    for (uint32_t half = LANES / 2; half; half /= 2)
        for (uint32_t i = 0; i < half; i++) s[i] += s[i + half];
    return s[0];
}

float stk_ref_sum(const float *x, uint32_t n) {
    float s[LANES] = {0};
    for (uint32_t i = 0; i < n; i++) s[i % LANES] += x[i];
    return add_lanes(s);
}

static float sum_of_squares(const float *x, uint32_t n) {
    float s[LANES] = {0};
    for (uint32_t i = 0; i < n; i++) s[i % LANES] = fmaf(x[i], x[i], s[i % LANES]);
    return add_lanes(s);
}

void stk_ref_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *out) {
    float mean = sum_of_squares(x, n) / (float)n;
    float r = 1.0f / sqrtf(mean + eps);
    for (uint32_t i = 0; i < n; i++) out[i] = (x[i] * r) * w[i];
}

void stk_ref_silu_mul(const float *gate, const float *up, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i++) out[i] = stk_siluf(gate[i]) * up[i];
}

void stk_ref_add(float *x, const float *y, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) x[i] += y[i];
}

void stk_ref_axpy(float *acc, float w, const float *y, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) acc[i] = fmaf(w, y[i], acc[i]);
}

void stk_ref_rope(float *x, uint32_t n_rot, const float *table, bool neox) {
    uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        float *a = neox ? x + i : x + 2 * i, *b = neox ? x + half + i : x + 2 * i + 1;
        float cos = table[2 * i], sin = table[2 * i + 1], a0 = *a, b0 = *b;
        *a = fmaf(a0, cos, -(b0 * sin));
        *b = fmaf(a0, sin, b0 * cos);
    }
}

void stk_ref_softmax(const float *x, uint32_t n, float *p) {
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < n; i++) p[i] = stk_expf(x[i] - max);
    float sum = stk_ref_sum(p, n);
    for (uint32_t i = 0; i < n; i++) p[i] /= sum;
}

void stk_ref_f32_to_f16(const float *x, uint32_t n, uint16_t *out) {
    for (uint32_t i = 0; i < n; i++) out[i] = stk_f32_f16_sat(x[i]);
}
