#include "tests/tools/blocks.h"

#include <string.h>

#include "src/numeric.h"

void rng_seed(rng *r, uint64_t seed) {
    for (int i = 0; i < 2; i++) { /* splitmix64 */
        seed += 0x9e3779b97f4a7c15u;
        uint64_t z = seed;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        r->s[i] = z ^ (z >> 31);
    }
}

uint64_t rng_next(rng *r) { /* xoroshiro128+ */
    uint64_t a = r->s[0], b = r->s[1], sum = a + b;
    b ^= a;
    r->s[0] = (a << 24 | a >> 40) ^ b ^ (b << 16);
    r->s[1] = b << 37 | b >> 27;
    return sum;
}

float rng_normal(rng *r) {
    uint64_t u = rng_next(r);
    int32_t sum = (int32_t)((u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48)) - 2 * 0xffff;
    return (float)sum * (1.0f / 37837.2f); /* 65536 * sqrt(4 / 12) */
}

static uint32_t below(rng *r, uint32_t n) { return (uint32_t)((rng_next(r) >> 32) * n >> 32); }

static void put16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }

/* A scale of this size times 0.8 to 1.2, as f16; returned as rounded. */
static float put_scale(rng *r, uint8_t *p, float scale) {
    uint16_t h = stk_f32_f16(scale * (0.8f + 0.4f * (float)below(r, 1024) / 1024.0f));
    put16(p, h);
    return stk_f16_f32(h);
}

static void put_random(rng *r, uint8_t *p, size_t bytes) { /* bytes is a multiple of 8 */
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t u = rng_next(r);
        memcpy(p + i, &u, 8);
    }
}

/* The 12 bytes of 6-bit scales and mins that Q4_K and Q5_K share: mins near the scales, so that weights have a mean near 0. */
static void put_k_scales(rng *r, uint8_t *p) {
    uint8_t sc[8], m[8];
    for (int i = 0; i < 8; i++) {
        sc[i] = (uint8_t)(24 + below(r, 40));
        int v = sc[i] + (int)below(r, 7) - 3;
        m[i] = (uint8_t)(v > 63 ? 63 : v);
    }
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(sc[i] | (sc[i + 4] >> 4) << 6);
        p[4 + i] = (uint8_t)(m[i] | (m[i + 4] >> 4) << 6);
        p[8 + i] = (uint8_t)((sc[i + 4] & 15) | (m[i + 4] & 15) << 4);
    }
}

/* code_std, code_mean: of codes uniform over 16 or 32 values; 44 is the mean of the scales. */
static void fill_k(rng *r, float std, uint8_t *p, float code_std, float code_mean, size_t code_bytes) {
    float d = put_scale(r, p, std / (code_std * 44.0f));
    put16(p + 2, stk_f32_f16(code_mean * d));
    put_k_scales(r, p + 4);
    put_random(r, p + 16, code_bytes);
}

static void fill_q6_k(rng *r, float std, uint8_t *p) {
    put_random(r, p, 192);
    for (int i = 0; i < 16; i++) {
        uint32_t u = below(r, 100);
        p[192 + i] = (uint8_t)(int8_t)(u < 50 ? 40 + (int)u : -40 - (int)(u - 50));
    }
    (void)put_scale(r, p + 208, std / (18.5f * 64.0f));
}

static void fill_q8_0(rng *r, float std, uint8_t *p) {
    (void)put_scale(r, p, std / 73.0f);
    put_random(r, p + 2, 32);
    for (int i = 0; i < 32; i++) {
        if (p[2 + i] == 0x80) p[2 + i] = 0x81; /* quantizers write -127 to 127 */
    }
}

static void fill_q4_0(rng *r, float std, uint8_t *p) {
    (void)put_scale(r, p, std / 4.61f);
    p[1] |= (uint8_t)(below(r, 2) << 7); /* the scale has either sign */
    put_random(r, p + 2, 16);
}

static void fill_block(rng *r, enum stk_type type, float std, uint8_t *p) {
    switch (type) {
    case STK_TYPE_Q4_0: fill_q4_0(r, std, p); break;
    case STK_TYPE_Q8_0: fill_q8_0(r, std, p); break;
    case STK_TYPE_Q4_K: fill_k(r, std, p, 4.61f, 7.5f, 128); break;
    case STK_TYPE_Q5_K: fill_k(r, std, p, 9.23f, 15.5f, 160); break;
    case STK_TYPE_Q6_K: fill_q6_k(r, std, p); break;
    case STK_TYPE_F32: {
        float x = rng_normal(r) * std;
        memcpy(p, &x, 4);
        break;
    }
    case STK_TYPE_F16: put16(p, stk_f32_f16(rng_normal(r) * std)); break;
    case STK_TYPE_BF16: put16(p, (uint16_t)((stk_f32_bits(rng_normal(r) * std) + 0x8000u) >> 16)); break;
    }
}

void blocks_size(enum stk_type type, uint32_t *block, uint32_t *block_bytes) {
    switch (type) {
    case STK_TYPE_F32: *block = 1, *block_bytes = 4; break;
    case STK_TYPE_F16:
    case STK_TYPE_BF16: *block = 1, *block_bytes = 2; break;
    case STK_TYPE_Q4_0: *block = 32, *block_bytes = 18; break;
    case STK_TYPE_Q8_0: *block = 32, *block_bytes = 34; break;
    case STK_TYPE_Q4_K: *block = 256, *block_bytes = 144; break;
    case STK_TYPE_Q5_K: *block = 256, *block_bytes = 176; break;
    case STK_TYPE_Q6_K: *block = 256, *block_bytes = 210; break;
    }
}

void blocks_fill(rng *r, enum stk_type type, float std, uint64_t n, uint8_t *out) {
    uint32_t block, block_bytes;
    blocks_size(type, &block, &block_bytes);
    for (uint64_t i = 0; i < n; i += block, out += block_bytes) fill_block(r, type, std, out);
}
