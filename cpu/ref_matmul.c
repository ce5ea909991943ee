/*
 * ref_matmul: the reference of activation quantization and of the products. The rules are in ref.c, the bytes of a stripe in
 * experts/layout.c. A product reads one row's block at a time into plain codes and scales, which is slow and plain to see.
 */
#include "cpu/ref.h"
#include "src/numeric.h"

enum { GROUPS = STK_BLOCK / STK_GROUP, CODE_BYTES = 4 };

void stk_ref_quantize_groups(const float *x, uint32_t n, uint32_t g0, uint32_t g1, void *act) {
    stk_act_layout at = stk_act_layout_of(n);
    int8_t *codes = act;
    float *scale = (float *)((char *)act + at.scale_offset), *sum = (float *)((char *)act + at.sum_offset);
    int32_t *neg16 = (int32_t *)((char *)act + at.neg16_offset);
    for (uint32_t g = g0; g < g1; g++) {
        const float *xg = x + g * STK_GROUP;
        float amax = 0.0f;
        bool finite = true;
        for (uint32_t i = 0; i < STK_GROUP; i++) {
            finite = finite && isfinite(xg[i]);
            amax = fabsf(xg[i]) > amax ? fabsf(xg[i]) : amax;
        }
        bool zero = !finite || amax < 0x1p-100f;
        float id = zero ? 0.0f : 127.0f / amax;
        int32_t total[2] = {0, 0};
        for (uint32_t i = 0; i < STK_GROUP; i++) {
            int8_t q = zero ? 0 : (int8_t)rintf(xg[i] * id);
            codes[g * STK_GROUP + i] = q;
            total[i / 16] += q;
        }
        scale[g] = !finite ? NAN : zero ? 0.0f : amax / 127.0f;
        sum[g] = scale[g] * (float)(total[0] + total[1]);
        neg16[2 * g] = -total[0];
        neg16[2 * g + 1] = -total[1];
    }
}

void stk_ref_quantize(const float *x, uint32_t n, void *act) { stk_ref_quantize_groups(x, n, 0, n / STK_GROUP, act); }

/* Places in a stripe: the 16-bit value, or byte i of the unit, of one row. */
static uint16_t row_u16(const uint8_t *unit, uint32_t row) {
    uint16_t u;
    memcpy(&u, unit + 2 * row, sizeof u);
    return u;
}

static uint32_t row_byte(const uint8_t *units, uint32_t row, uint32_t byte) {
    return units[byte / CODE_BYTES * STK_UNIT_BYTES + row * CODE_BYTES + byte % CODE_BYTES];
}

/* ---- Float weights -------------------------------------------------------------------------------------------------------- */

static float weight_f32(const uint8_t *stripe, uint32_t row, uint32_t k) {
    float w;
    memcpy(&w, stripe + (uint64_t)k * STK_UNIT_BYTES + 4 * row, sizeof w);
    return w;
}

static uint16_t weight_16(const uint8_t *stripe, uint32_t row, uint32_t k) {
    return row_u16(stripe + (uint64_t)(k / 2) * STK_UNIT_BYTES, 2 * row + k % 2);
}

static float weight_f16(const uint8_t *stripe, uint32_t row, uint32_t k) { return stk_f16_f32(weight_16(stripe, row, k)); }

static float weight_bf16(const uint8_t *stripe, uint32_t row, uint32_t k) { return stk_bf16_f32(weight_16(stripe, row, k)); }

static void matmul_float(const stk_matmul *m, enum stk_type type, float (*weight)(const uint8_t *, uint32_t, uint32_t)) {
    uint64_t stripe_bytes = stk_stripe_bytes(type, m->n_in);
    uint32_t row_end = STK_MIN(m->stripe_end * STK_STRIPE, m->n_rows);
    for (uint32_t row = m->stripe_begin * STK_STRIPE; row < row_end; row++) {
        const uint8_t *stripe = (const uint8_t *)m->weights + row / STK_STRIPE * stripe_bytes;
        for (uint32_t tok = 0; tok < m->n_tok; tok++) {
            const float *x = m->x[tok];
            float sum = 0.0f;
            for (uint32_t block = 0; block < m->n_in; block += STK_BLOCK) {
                float t = 0.0f;
                for (uint32_t k = block; k < STK_MIN(block + STK_BLOCK, m->n_in); k++)
                    t = fmaf(weight(stripe, row % STK_STRIPE, k), x[k], t);
                sum += t;
            }
            m->out[tok][row] = sum;
        }
    }
}

void stk_ref_matmul_f32(const stk_matmul *m) { matmul_float(m, STK_TYPE_F32, weight_f32); }
void stk_ref_matmul_f16(const stk_matmul *m) { matmul_float(m, STK_TYPE_F16, weight_f16); }
void stk_ref_matmul_bf16(const stk_matmul *m) { matmul_float(m, STK_TYPE_BF16, weight_bf16); }

/* ---- Quantized weights ---------------------------------------------------------------------------------------------------- */

/* One block of one row. */
typedef struct block_row {
    uint32_t n_group;
    int32_t code[STK_BLOCK];     /* offset subtracted */
    float scale[STK_BLOCK / 16]; /* of each 16; formats with one per 32 have it twice */
    float min[GROUPS];
} block_row;

typedef void (*read_block_fn)(const uint8_t *stripe, uint32_t n_in, uint32_t block, uint32_t row, block_row *out);

/* Blocks of 8 groups, the last one shorter: halves [group][16], then the codes of each group. Returns the codes. */
static const uint8_t *read_halves_of_32(const uint8_t *stripe, uint32_t n_in, uint32_t block, uint32_t row, uint32_t group_units,
                                        block_row *out) {
    const uint8_t *at = stripe + (uint64_t)block * (GROUPS * 32 + GROUPS * group_units * STK_UNIT_BYTES);
    out->n_group = STK_MIN(n_in / STK_GROUP - block * GROUPS, (uint32_t)GROUPS);
    for (uint32_t g = 0; g < out->n_group; g++)
        out->scale[2 * g] = out->scale[2 * g + 1] = stk_f16_f32(row_u16(at + 32 * g, row));
    return at + stk_align_up(out->n_group * 32, STK_UNIT_BYTES);
}

static void read_q8_0(const uint8_t *stripe, uint32_t n_in, uint32_t block, uint32_t row, block_row *out) {
    const uint8_t *codes = read_halves_of_32(stripe, n_in, block, row, 8, out);
    for (uint32_t k = 0; k < out->n_group * STK_GROUP; k++) out->code[k] = (int8_t)row_byte(codes, row, k);
}

static void read_q4_0(const uint8_t *stripe, uint32_t n_in, uint32_t block, uint32_t row, block_row *out) {
    const uint8_t *codes = read_halves_of_32(stripe, n_in, block, row, 4, out);
    for (uint32_t g = 0; g < out->n_group; g++)
        for (uint32_t i = 0; i < 16; i++) {
            uint32_t byte = row_byte(codes, row, 16 * g + i);
            out->code[32 * g + i] = (int32_t)(byte & 15u) - 8;
            out->code[32 * g + 16 + i] = (int32_t)(byte >> 4) - 8;
        }
}

/* d, dmin and scales, the same in Q4_K and Q5_K. */
static void read_k_scales(const uint8_t *at, uint32_t row, block_row *out) {
    float d = stk_f16_f32(row_u16(at, row)), dmin = stk_f16_f32(row_u16(at + 32, row));
    uint8_t scales[12];
    for (uint32_t i = 0; i < 12; i++) scales[i] = (uint8_t)row_byte(at + 64, row, i);
    out->n_group = GROUPS;
    for (uint32_t g = 0; g < GROUPS; g++) {
        uint32_t scale, min;
        stk_k_scale_min(scales, g, &scale, &min);
        out->scale[2 * g] = out->scale[2 * g + 1] = d * (float)scale;
        out->min[g] = dmin * (float)min;
    }
}

static uint32_t k_nibble(const uint8_t *codes, uint32_t row, uint32_t g, uint32_t i) {
    return (row_byte(codes, row, 32 * (g / 2) + i) >> 4 * (g % 2)) & 15u;
}

static void read_q4_k(const uint8_t *stripe, uint32_t n_in, uint32_t block, uint32_t row, block_row *out) {
    (void)n_in;
    const uint8_t *at = stripe + (uint64_t)block * 2304;
    read_k_scales(at, row, out);
    for (uint32_t k = 0; k < STK_BLOCK; k++) out->code[k] = (int32_t)k_nibble(at + 256, row, k / 32, k % 32);
}

static void read_q5_k(const uint8_t *stripe, uint32_t n_in, uint32_t block, uint32_t row, block_row *out) {
    (void)n_in;
    const uint8_t *at = stripe + (uint64_t)block * 2816;
    read_k_scales(at, row, out);
    for (uint32_t k = 0; k < STK_BLOCK; k++) {
        uint32_t g = k / 32, i = k % 32, high = (row_byte(at + 256, row, i) >> g) & 1u;
        out->code[k] = (int32_t)(k_nibble(at + 256 + 512, row, g, i) | high << 4);
    }
}

static void read_q6_k(const uint8_t *stripe, uint32_t n_in, uint32_t block, uint32_t row, block_row *out) {
    const uint8_t *scales = stripe + stk_align_up(n_in / STK_BLOCK * 32, STK_UNIT_BYTES) + (uint64_t)block * 3328;
    const uint8_t *high = scales + 4 * STK_UNIT_BYTES, *low = high + 16 * STK_UNIT_BYTES;
    float d = stk_f16_f32(row_u16(stripe + (uint64_t)block * 32, row));
    out->n_group = GROUPS;
    for (uint32_t i = 0; i < 16; i++) out->scale[i] = d * (float)(int8_t)row_byte(scales, row, i);
    for (uint32_t k = 0; k < STK_BLOCK; k++) {
        uint32_t half = k / 128, j = k / 32 % 4, i = k % 32;
        uint32_t l = (row_byte(low, row, 64 * half + 32 * (j % 2) + i) >> 4 * (j / 2)) & 15u;
        uint32_t h = (row_byte(high, row, 32 * half + i) >> 2 * j) & 3u;
        out->code[k] = (int32_t)(l | h << 4) - 32;
    }
}

static int32_t dot(const int32_t *code, const int8_t *q, uint32_t n) {
    int32_t s = 0;
    for (uint32_t i = 0; i < n; i++) s += code[i] * q[i];
    return s;
}

/*
 * ws * s in one rounding. Written so that a kernel may sum in an int32 that starts at the bits of the float 1.5 * 2^23 (|s| <
 * 2^22 holds for every format), and so have 1.5 * 2^23 + s as a float without a conversion. It differs from ws * s for an
 * infinite ws alone: NaN.
 */
static float scaled(float ws, int32_t s) {
    const float magic = 12582912.0f;
    return fmaf(ws, magic + (float)s, -(ws * magic));
}

/* t of one block of one row. */
static float block_product(enum stk_type type, const block_row *w, const int8_t *q, const float *d, const float *sum) {
    float t = 0.0f;
    for (uint32_t g = 0; g < w->n_group; g++, q += STK_GROUP) {
        const int32_t *code = w->code + g * STK_GROUP;
        float u;
        if (type == STK_TYPE_Q6_K)
            u = fmaf(w->scale[2 * g + 1], (float)dot(code + 16, q + 16, 16), scaled(w->scale[2 * g], dot(code, q, 16)));
        else
            u = scaled(w->scale[2 * g], dot(code, q, 32));
        t = fmaf(u, d[g], t);
        if (type == STK_TYPE_Q4_K || type == STK_TYPE_Q5_K) t = fmaf(-w->min[g], sum[g], t);
    }
    return t;
}

static void matmul_quantized(const stk_matmul *m, enum stk_type type, read_block_fn read_block) {
    uint64_t stripe_bytes = stk_stripe_bytes(type, m->n_in);
    stk_act_layout at = stk_act_layout_of(m->n_in);
    uint32_t row_end = STK_MIN(m->stripe_end * STK_STRIPE, m->n_rows);
    for (uint32_t row = m->stripe_begin * STK_STRIPE; row < row_end; row++) {
        const uint8_t *stripe = (const uint8_t *)m->weights + row / STK_STRIPE * stripe_bytes;
        for (uint32_t tok = 0; tok < m->n_tok; tok++) m->out[tok][row] = 0.0f;
        for (uint32_t block = 0; block * STK_BLOCK < m->n_in; block++) {
            block_row w;
            read_block(stripe, m->n_in, block, row % STK_STRIPE, &w);
            for (uint32_t tok = 0; tok < m->n_tok; tok++) {
                const char *x = m->x[tok];
                const float *d = (const float *)(x + at.scale_offset) + block * GROUPS;
                const float *sum = (const float *)(x + at.sum_offset) + block * GROUPS;
                m->out[tok][row] += block_product(type, &w, (const int8_t *)x + block * STK_BLOCK, d, sum);
            }
        }
    }
}

void stk_ref_matmul_q8_0(const stk_matmul *m) { matmul_quantized(m, STK_TYPE_Q8_0, read_q8_0); }
void stk_ref_matmul_q4_0(const stk_matmul *m) { matmul_quantized(m, STK_TYPE_Q4_0, read_q4_0); }
void stk_ref_matmul_q4_k(const stk_matmul *m) { matmul_quantized(m, STK_TYPE_Q4_K, read_q4_k); }
void stk_ref_matmul_q5_k(const stk_matmul *m) { matmul_quantized(m, STK_TYPE_Q5_K, read_q5_k); }
void stk_ref_matmul_q6_k(const stk_matmul *m) { matmul_quantized(m, STK_TYPE_Q6_K, read_q6_k); }
