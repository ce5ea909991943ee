/* ref_attend: the reference of attention over one span. The rules are in ref.c. */
#include "cpu/ref.h"
#include "src/numeric.h"

enum { TILE = 64 };

/* Element i of a row or tile of f16 or f32. */
static float element(const void *p, bool f16, uint32_t i) {
    return f16 ? stk_f16_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

/* One tile of n visible positions; state is { m, l, o [head_dim] }. */
static void attend_tile(const stk_attend *a, const float *q, const void *k, const void *v, uint32_t n, float *state) {
    float p[TILE], max = state[0], *o = state + 2;
    for (uint32_t j = 0; j < n; j++) {
        float s = 0.0f;
        for (uint32_t d = 0; d < a->head_dim; d++) s = fmaf(q[d], element(k, a->k_f16, d * TILE + j), s);
        p[j] = s * a->scale;
        max = p[j] > max ? p[j] : max;
    }
    float c = stk_expf(state[0] - max);
    for (uint32_t j = 0; j < n; j++) p[j] = stk_expf(p[j] - max);
    state[0] = max;
    state[1] = fmaf(state[1], c, stk_ref_sum(p, n));
    for (uint32_t d = 0; d < a->head_dim; d++) {
        o[d] *= c;
        for (uint32_t j = 0; j < n; j++) o[d] = fmaf(p[j], element(v, a->v_f16, j * a->head_dim + d), o[d]);
    }
}

void stk_ref_attend(const stk_attend *a) {
    for (uint32_t i = 0; i < a->n_q; i++) {
        float *state = a->state[i];
        state[0] = -INFINITY;
        for (uint32_t d = 0; d <= a->head_dim; d++) state[1 + d] = 0.0f;
        for (uint32_t pos = 0; pos < a->n_pos[i]; pos += TILE)
            attend_tile(a, a->q[i], a->k[pos / TILE], a->v[pos / TILE], STK_MIN(a->n_pos[i] - pos, (uint32_t)TILE), state);
    }
}
