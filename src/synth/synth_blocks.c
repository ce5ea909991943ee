/* synth_blocks: the generator, and one function a block format (drawn in experts/quant.c). */
#include "synth_blocks.h"

#include <string.h>

#include "src/numeric.h"

void stk_synth_seed(stk_synth_rng *r, uint64_t seed) {
    for (int i = 0; i < 2; i++) { /* splitmix64 */
        seed += 0x9e3779b97f4a7c15u;
        uint64_t z = seed;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        r->s[i] = z ^ (z >> 31);
    }
}

uint64_t stk_synth_next(stk_synth_rng *r) { /* xoroshiro128+ */
    uint64_t a = r->s[0], b = r->s[1], sum = a + b;
    b ^= a;
    r->s[0] = (a << 24 | a >> 40) ^ b ^ (b << 16);
    r->s[1] = b << 37 | b >> 27;
    return sum;
}

float stk_synth_normal(stk_synth_rng *r) {
    uint64_t u = stk_synth_next(r);
    int32_t sum = (int32_t)((u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48)) - 2 * 0xffff;
    return (float)sum * (1.0f / 37837.2f); /* 65536 * sqrt(4 / 12) */
}

uint32_t stk_synth_below(stk_synth_rng *r, uint32_t n) { return (uint32_t)((stk_synth_next(r) >> 32) * n >> 32); }

uint64_t stk_synth_seed_of(uint64_t seed, const char *name) { /* FNV-1a */
    for (const char *c = name; *c; c++) seed = (seed ^ (uint8_t)*c) * 0x100000001b3u;
    return seed;
}

static void put16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }

/* A scale of this size times 0.8 to 1.2, as f16; returned as rounded. */
static float put_scale(stk_synth_rng *r, uint8_t *p, float scale) {
    uint16_t h = stk_f32_f16(scale * (0.8f + 0.4f * (float)stk_synth_below(r, 1024) / 1024.0f));
    put16(p, h);
    return stk_f16_f32(h);
}

static void put_random(stk_synth_rng *r, uint8_t *p, size_t bytes) { /* bytes is a multiple of 8 */
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t u = stk_synth_next(r);
        memcpy(p + i, &u, 8);
    }
}

/* The 12 bytes of 6-bit scales and mins that Q4_K and Q5_K share: mins near the scales, so that weights have a mean near 0. */
static void put_k_scales(stk_synth_rng *r, uint8_t *p) {
    uint8_t sc[8], m[8];
    for (int i = 0; i < 8; i++) {
        sc[i] = (uint8_t)(24 + stk_synth_below(r, 40));
        int v = sc[i] + (int)stk_synth_below(r, 7) - 3;
        m[i] = (uint8_t)(v > 63 ? 63 : v);
    }
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(sc[i] | (sc[i + 4] >> 4) << 6);
        p[4 + i] = (uint8_t)(m[i] | (m[i + 4] >> 4) << 6);
        p[8 + i] = (uint8_t)((sc[i + 4] & 15) | (m[i + 4] & 15) << 4);
    }
}

/* code_std, code_mean: of codes uniform over 16 or 32 values; 44 is the mean of the scales. */
static void fill_k(stk_synth_rng *r, float std, uint8_t *p, float code_std, float code_mean, size_t code_bytes) {
    float d = put_scale(r, p, std / (code_std * 44.0f));
    put16(p + 2, stk_f32_f16(code_mean * d));
    put_k_scales(r, p + 4);
    put_random(r, p + 16, code_bytes);
}

static void fill_q6_k(stk_synth_rng *r, float std, uint8_t *p) {
    put_random(r, p, 192);
    for (int i = 0; i < 16; i++) {
        uint32_t u = stk_synth_below(r, 100);
        p[192 + i] = (uint8_t)(int8_t)(u < 50 ? 40 + (int)u : -40 - (int)(u - 50));
    }
    (void)put_scale(r, p + 208, std / (18.5f * 64.0f));
}

static void fill_q8_0(stk_synth_rng *r, float std, uint8_t *p) {
    (void)put_scale(r, p, std / 73.0f);
    put_random(r, p + 2, 32);
    for (int i = 0; i < 32; i++) {
        if (p[2 + i] == 0x80) p[2 + i] = 0x81; /* quantizers write -127 to 127 */
    }
}

static void fill_q4_0(stk_synth_rng *r, float std, uint8_t *p) {
    (void)put_scale(r, p, std / 4.61f);
    p[1] |= (uint8_t)(stk_synth_below(r, 2) << 7); /* the scale has either sign */
    put_random(r, p + 2, 16);
}

/* Q5_0: f16 d | u32 fifth bits | 16 bytes of nibbles, w = d * (code - 16). Q5_1 has an f16 min m after d: w = d * code + m. */
static void fill_q5(stk_synth_rng *r, float std, uint8_t *p, bool has_min) {
    float d = put_scale(r, p, std / 9.23f);
    if (has_min)
        put16(p + 2, stk_f32_f16(-15.5f * d));
    else
        p[1] |= (uint8_t)(stk_synth_below(r, 2) << 7);
    uint64_t high = stk_synth_next(r);
    memcpy(p + (has_min ? 4 : 2), &high, 4);
    put_random(r, p + (has_min ? 8 : 6), 16);
}

static void fill_block(stk_synth_rng *r, uint32_t type, float std, uint8_t *p) {
    switch (type) {
    case STK_TYPE_Q4_0: fill_q4_0(r, std, p); break;
    case STK_TYPE_Q8_0: fill_q8_0(r, std, p); break;
    case STK_SYNTH_Q5_0: fill_q5(r, std, p, false); break;
    case STK_SYNTH_Q5_1: fill_q5(r, std, p, true); break;
    case STK_TYPE_Q4_K: fill_k(r, std, p, 4.61f, 7.5f, 128); break;
    case STK_TYPE_Q5_K: fill_k(r, std, p, 9.23f, 15.5f, 160); break;
    case STK_TYPE_Q6_K: fill_q6_k(r, std, p); break;
    case STK_TYPE_F32: {
        float x = stk_synth_normal(r) * std;
        memcpy(p, &x, 4);
        break;
    }
    case STK_TYPE_F16: put16(p, stk_f32_f16(stk_synth_normal(r) * std)); break;
    default: put16(p, (uint16_t)((stk_f32_bits(stk_synth_normal(r) * std) + 0x8000u) >> 16)); break; /* BF16 */
    }
}

bool stk_synth_can_fill(uint32_t type) {
    const stk_type_info *info = stk_type_info_get(type);
    return info && (info->has_kernel || type == STK_SYNTH_Q5_0 || type == STK_SYNTH_Q5_1);
}

void stk_synth_fill(stk_synth_rng *r, uint32_t type, float std, uint64_t n, uint8_t *out) {
    const stk_type_info *info = stk_type_info_get(type);
    for (uint64_t i = 0; i < n; i += info->block, out += info->block_bytes) fill_block(r, type, std, out);
}

/* ---- Rows of two values ------------------------------------------------------------------------------------------------- */

/* Codes of 4 bits, as Q4_K and Q5_K order them: the low nibbles of 32 bytes, then the high ones. */
static void put_k_nibbles(uint8_t *p, const int8_t *signs, uint8_t minus, uint8_t plus) {
    for (uint32_t i = 0; i < 128; i++) {
        const int8_t *s = signs + i / 32 * 64 + i % 32;
        p[i] = (uint8_t)((s[0] > 0 ? plus : minus) | (s[32] > 0 ? plus : minus) << 4);
    }
}

/* d = dmin = c, all scales and mins 1: codes 2 and 0 are +c and -c. `q` is where the nibbles start. */
static void signs_k(uint16_t c, const int8_t *signs, uint8_t *p, uint32_t q) {
    memset(p, 0, q);
    put16(p, c);
    put16(p + 2, c);
    memset(p + 4, 1, 8);     /* groups 0 to 3, scales and then mins */
    memset(p + 12, 0x11, 4); /* groups 4 to 7, both */
    put_k_nibbles(p + q, signs, 0, 2);
}

/* Scales 1; codes 33 and 31: 6 bits, of which the upper two lie in qh. */
static void signs_q6_k(uint16_t c, const int8_t *signs, uint8_t *p) {
    memset(p, 0, 192);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t code = signs[i] > 0 ? 33 : 31, half = i / 128, part = i % 128 / 32, at = i % 32;
        p[half * 64 + part % 2 * 32 + at] |= (uint8_t)((code & 15) << (part / 2 * 4));
        p[128 + half * 32 + at] |= (uint8_t)((code >> 4) << (part * 2));
    }
    memset(p + 192, 1, 16);
    put16(p + 208, c);
}

static void signs_block(enum stk_type type, float c, const int8_t *signs, uint8_t *p) {
    uint16_t half = stk_f32_f16(c);
    float x = c * (float)signs[0];
    switch (type) {
    case STK_TYPE_F32: memcpy(p, &x, 4); break;
    case STK_TYPE_F16: put16(p, stk_f32_f16(x)); break;
    case STK_TYPE_BF16: put16(p, (uint16_t)((stk_f32_bits(x) + 0x8000u) >> 16)); break;
    case STK_TYPE_Q8_0:
        put16(p, half);
        memcpy(p + 2, signs, 32);
        break;
    case STK_TYPE_Q4_0:
        put16(p, half);
        for (uint32_t i = 0; i < 16; i++) p[2 + i] = (uint8_t)((8 + signs[i]) | (8 + signs[16 + i]) << 4);
        break;
    case STK_TYPE_Q4_K: signs_k(half, signs, p, 16); break;
    case STK_TYPE_Q5_K: signs_k(half, signs, p, 48); break;
    case STK_TYPE_Q6_K: signs_q6_k(half, signs, p); break;
    }
}

void stk_synth_fill_signs(enum stk_type type, float c, const int8_t *signs, uint64_t n, uint8_t *out) {
    const stk_type_info *info = stk_type_info_get(type);
    for (uint64_t i = 0; i < n; i += info->block, out += info->block_bytes) signs_block(type, c, signs + i, out);
}
