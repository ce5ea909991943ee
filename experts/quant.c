/*
 * quant: the size table and the dequantization of the formats with kernels.
 *
 * Blocks as they lie in a file, all little-endian, no padding between blocks:
 *
 *     Q8_0   32 weights,  34 bytes: f16 d | s8 q[32]
 *            w = q * d
 *     Q4_0   32 weights,  18 bytes: f16 d | u8 q[16]
 *            w = d * (nibble - 8); the low nibbles are weights 0..15, the high ones 16..31
 *     Q4_K  256 weights, 144 bytes: f16 d | f16 dmin | u8 scales[12] | u8 q[128]
 *            w = (d * sc) * nibble - (dmin * m); a 6-bit sc and m per 32
 *     Q5_K  256 weights, 176 bytes: f16 d | f16 dmin | u8 scales[12] | u8 qh[32] | u8 q[128]
 *            as Q4_K; bit g of qh[i] is the fifth bit of weight i of group g
 *     Q6_K  256 weights, 210 bytes: u8 ql[128] | u8 qh[64] | s8 scales[16] | f16 d
 *            w = (d * sc) * (code - 32); an sc per 16
 *
 * Q4_K and Q5_K: the low nibbles of q[32c..32c+31] are group 2c of 32 weights, the high ones group 2c + 1.
 */
#include "experts/quant.h"

#include <string.h>

#include "src/numeric.h"

static const stk_type_info types[] = {
    [0] = {"F32", 1, 4, true},          [1] = {"F16", 1, 2, true},          [2] = {"Q4_0", 32, 18, true},
    [3] = {"Q4_1", 32, 20, false},      [6] = {"Q5_0", 32, 22, false},      [7] = {"Q5_1", 32, 24, false},
    [8] = {"Q8_0", 32, 34, true},       [9] = {"Q8_1", 32, 40, false},      [10] = {"Q2_K", 256, 84, false},
    [11] = {"Q3_K", 256, 110, false},   [12] = {"Q4_K", 256, 144, true},    [13] = {"Q5_K", 256, 176, true},
    [14] = {"Q6_K", 256, 210, true},    [15] = {"Q8_K", 256, 292, false},   [16] = {"IQ2_XXS", 256, 66, false},
    [17] = {"IQ2_XS", 256, 74, false},  [18] = {"IQ3_XXS", 256, 98, false}, [19] = {"IQ1_S", 256, 50, false},
    [20] = {"IQ4_NL", 32, 18, false},   [21] = {"IQ3_S", 256, 110, false},  [22] = {"IQ2_S", 256, 82, false},
    [23] = {"IQ4_XS", 256, 136, false}, [24] = {"I8", 1, 1, false},         [25] = {"I16", 1, 2, false},
    [26] = {"I32", 1, 4, false},        [27] = {"I64", 1, 8, false},        [28] = {"F64", 1, 8, false},
    [29] = {"IQ1_M", 256, 56, false},   [30] = {"BF16", 1, 2, true},        [34] = {"TQ1_0", 256, 54, false},
    [35] = {"TQ2_0", 256, 66, false},   [39] = {"MXFP4", 32, 17, false},    [40] = {"NVFP4", 64, 36, false},
    [41] = {"Q1_0", 128, 18, false},
};

const stk_type_info *stk_type_info_get(uint32_t type) {
    return type < STK_ARRAY_LEN(types) && types[type].block ? &types[type] : NULL;
}

int stk_type_row_bytes(uint32_t type, uint64_t n, uint64_t *bytes) {
    const stk_type_info *info = stk_type_info_get(type);
    if (!info) return stk_fail(STK_EFORMAT, "%u is no ggml type", type);
    if (n % info->block)
        return stk_fail(STK_EFORMAT, "a row of %llu weights is no multiple of the %s block of %u", (unsigned long long)n,
                        info->name, info->block);
    if (stk_mul_overflow(n / info->block, info->block_bytes, bytes))
        return stk_fail(STK_EFORMAT, "a row of %llu %s weights does not fit into memory", (unsigned long long)n, info->name);
    return 0;
}

static uint16_t load_u16(const uint8_t *p) {
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

static float load_f16(const uint8_t *p) { return stk_f16_f32(load_u16(p)); }

void stk_k_scale_min(const uint8_t scales[12], uint32_t g, uint32_t *scale, uint32_t *min) {
    if (g < 4) {
        *scale = scales[g] & 63u;
        *min = scales[g + 4] & 63u;
    } else {
        *scale = (scales[g + 4] & 15u) | (uint32_t)(scales[g - 4] >> 6) << 4;
        *min = (uint32_t)(scales[g + 4] >> 4) | (uint32_t)(scales[g] >> 6) << 4;
    }
}

static void block_q8_0(const uint8_t *b, float *out) {
    float d = load_f16(b);
    for (uint32_t i = 0; i < 32; i++) out[i] = (float)(int8_t)b[2 + i] * d;
}

static void block_q4_0(const uint8_t *b, float *out) {
    float d = load_f16(b);
    for (uint32_t i = 0; i < 16; i++) {
        out[i] = d * (float)((b[2 + i] & 15) - 8);
        out[16 + i] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

/* Q4_K, and with qh, the plane of fifth bits, Q5_K. */
static void block_q45_k(const uint8_t *b, const uint8_t *qh, const uint8_t *q, float *out) {
    float d = load_f16(b), dmin = load_f16(b + 2);
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t scale, min;
        stk_k_scale_min(b + 4, g, &scale, &min);
        float ws = d * (float)scale, wm = dmin * (float)min;
        for (uint32_t i = 0; i < 32; i++) {
            uint32_t code = (q[32 * (g / 2) + i] >> 4 * (g & 1)) & 15u;
            if (qh) code |= ((qh[i] >> g) & 1u) << 4;
            out[32 * g + i] = ws * (float)code - wm;
        }
    }
}

static void block_q4_k(const uint8_t *b, float *out) { block_q45_k(b, NULL, b + 16, out); }

static void block_q5_k(const uint8_t *b, float *out) { block_q45_k(b, b + 16, b + 48, out); }

/* A half of 128 weights is four groups of 32 over 64 bytes of ql and 32 of qh: weight i of group g has nibble g / 2 of
 * ql[32 (g % 2) + i] and the two bits from 2g on of qh[i]. */
static void block_q6_k(const uint8_t *b, float *out) {
    const uint8_t *ql = b, *qh = b + 128, *scales = b + 192;
    float d = load_f16(b + 208);
    for (uint32_t k = 0; k < 256; k++) {
        uint32_t half = k / 128, g = k / 32 % 4, i = k % 32;
        uint32_t low = (ql[64 * half + 32 * (g % 2) + i] >> 4 * (g / 2)) & 15u;
        uint32_t high = (qh[32 * half + i] >> 2 * g) & 3u;
        float ws = d * (float)(int8_t)scales[k / 16];
        out[k] = ws * (float)((int32_t)(low | high << 4) - 32);
    }
}

static void dequantize_blocks(void (*block)(const uint8_t *, float *), enum stk_type type, const uint8_t *row, uint64_t n,
                              float *out) {
    const stk_type_info *info = &types[type];
    for (uint64_t k = 0; k < n; k += info->block, row += info->block_bytes) block(row, out + k);
}

void stk_dequantize_row(enum stk_type type, const void *row, uint64_t n, float *out) {
    const uint8_t *p = row;
    switch (type) {
    case STK_TYPE_F32: memcpy(out, row, n * sizeof *out); break;
    case STK_TYPE_F16:
        for (uint64_t k = 0; k < n; k++) out[k] = load_f16(p + 2 * k);
        break;
    case STK_TYPE_BF16:
        for (uint64_t k = 0; k < n; k++) out[k] = stk_bf16_f32(load_u16(p + 2 * k));
        break;
    case STK_TYPE_Q8_0: dequantize_blocks(block_q8_0, type, p, n, out); break;
    case STK_TYPE_Q4_0: dequantize_blocks(block_q4_0, type, p, n, out); break;
    case STK_TYPE_Q4_K: dequantize_blocks(block_q4_k, type, p, n, out); break;
    case STK_TYPE_Q5_K: dequantize_blocks(block_q5_k, type, p, n, out); break;
    case STK_TYPE_Q6_K: dequantize_blocks(block_q6_k, type, p, n, out); break;
    }
}
