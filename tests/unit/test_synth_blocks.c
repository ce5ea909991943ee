/* synth_blocks: every format's random weights are finite, centred and of the size asked for; rows of two values are exact. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/numeric.h"
#include "src/synth/synth_blocks.h"

static const uint32_t types[] = {STK_TYPE_F32,  STK_TYPE_F16,  STK_TYPE_BF16, STK_TYPE_Q8_0,  STK_TYPE_Q4_0,
                                 STK_TYPE_Q4_K, STK_TYPE_Q5_K, STK_TYPE_Q6_K, STK_SYNTH_Q5_0, STK_SYNTH_Q5_1};
enum { N = 1 << 18 };

static float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return stk_f16_f32(h);
}

/* The two formats that Stoker itself does not read. */
static void dequantize_q5(bool has_min, const uint8_t *b, uint64_t n, float *out) {
    for (uint64_t i = 0; i < n; i += 32, b += has_min ? 24 : 22) {
        float d = half_at(b), m = has_min ? half_at(b + 2) : -16.0f * d;
        const uint8_t *q = b + (has_min ? 8 : 6);
        uint32_t high;
        memcpy(&high, q - 4, 4);
        for (uint32_t k = 0; k < 32; k++) {
            uint32_t code = (k < 16 ? q[k] & 15u : (uint32_t)q[k - 16] >> 4) | (high >> k & 1) << 4;
            out[i + k] = d * (float)code + m;
        }
    }
}

static float *weights_of(uint32_t type, const uint8_t *blocks, uint64_t n) {
    float *out = malloc(n * sizeof *out);
    if (type == STK_SYNTH_Q5_0 || type == STK_SYNTH_Q5_1)
        dequantize_q5(type == STK_SYNTH_Q5_1, blocks, n, out);
    else
        stk_dequantize_row((enum stk_type)type, blocks, n, out);
    return out;
}

static uint8_t *fill(uint32_t type, uint64_t seed, float std, uint64_t n, uint64_t *bytes) {
    stk_synth_rng r;
    cr_assert(stk_synth_can_fill(type));
    cr_assert_eq(stk_type_row_bytes(type, n, bytes), STK_OK);
    uint8_t *out = malloc(*bytes);
    stk_synth_seed(&r, seed);
    stk_synth_fill(&r, type, std, n, out);
    return out;
}

Test(synth_blocks, weights_have_the_size_asked_for) {
    static const float sizes[] = {1.0f, 0.0221f, 0.0084f};
    for (size_t i = 0; i < STK_ARRAY_LEN(types); i++) {
        for (size_t k = 0; k < STK_ARRAY_LEN(sizes); k++) {
            uint64_t bytes;
            uint8_t *blocks = fill(types[i], 1, sizes[k], N, &bytes);
            float *w = weights_of(types[i], blocks, N);
            double sum = 0, squares = 0;
            for (uint64_t n = 0; n < N; n++) {
                cr_assert(isfinite(w[n]), "type %u", types[i]);
                sum += w[n];
                squares += (double)w[n] * w[n];
            }
            double mean = sum / N, std = sqrt(squares / N - mean * mean);
            cr_assert(fabs(mean) < 0.03 * sizes[k], "type %u: mean %g of %g", types[i], mean, (double)sizes[k]);
            cr_assert(fabs(std / sizes[k] - 1) < 0.06, "type %u: %g, not %g", types[i], std, (double)sizes[k]);
            free(w);
            free(blocks);
        }
    }
}

Test(synth_blocks, size_0_is_zeros_under_random_codes) {
    for (size_t i = 0; i < STK_ARRAY_LEN(types); i++) {
        uint64_t bytes, n_other = 0;
        uint8_t *blocks = fill(types[i], 1, 0.0f, 4096, &bytes);
        float *w = weights_of(types[i], blocks, 4096);
        for (uint64_t n = 0; n < 4096; n++) cr_assert_eq(w[n], 0.0f, "type %u", types[i]);
        for (uint64_t n = 0; n < bytes; n++) n_other += blocks[n] != 0;
        if (stk_type_info_get(types[i])->block > 1) cr_assert_gt(n_other, bytes / 2, "type %u: codes are not random", types[i]);
        free(w);
        free(blocks);
    }
}

Test(synth_blocks, seeds) {
    for (size_t i = 0; i < STK_ARRAY_LEN(types); i++) {
        uint64_t bytes;
        uint8_t *a = fill(types[i], 1, 1.0f, 1024, &bytes), *b = fill(types[i], 1, 1.0f, 1024, &bytes),
                *c = fill(types[i], 2, 1.0f, 1024, &bytes);
        cr_assert_arr_eq(a, b, bytes);
        cr_assert(memcmp(a, c, bytes) != 0, "type %u", types[i]);
        free(a);
        free(b);
        free(c);
    }
    cr_assert_neq(stk_synth_seed_of(1, "blk.0"), stk_synth_seed_of(1, "blk.1"));
    cr_assert_neq(stk_synth_seed_of(1, "blk.0"), stk_synth_seed_of(2, "blk.0"));
    cr_assert_not(stk_synth_can_fill(10), "Q2_K");
    cr_assert_not(stk_synth_can_fill(1000));
}

Test(synth_blocks, below_covers_its_range) {
    stk_synth_rng r;
    uint32_t seen[7] = {0};
    stk_synth_seed(&r, 3);
    for (int i = 0; i < 7000; i++) {
        uint32_t x = stk_synth_below(&r, 7);
        cr_assert_lt(x, 7);
        seen[x]++;
    }
    for (int i = 0; i < 7; i++) cr_assert(seen[i] > 800 && seen[i] < 1200, "%u of 7,000", seen[i]);
}

Test(synth_blocks, signs_are_exact) {
    enum { ROW = 1024 };
    int8_t signs[ROW];
    stk_synth_rng r;
    stk_synth_seed(&r, 5);
    for (int i = 0; i < ROW; i++) signs[i] = stk_synth_below(&r, 2) ? 1 : -1;
    static const float sizes[] = {1.0f, 1.0f / 64.0f};
    for (size_t i = 0; i < STK_ARRAY_LEN(types); i++) {
        if (!stk_type_info_get(types[i])->has_kernel) continue;
        for (size_t k = 0; k < STK_ARRAY_LEN(sizes); k++) {
            uint64_t bytes;
            cr_assert_eq(stk_type_row_bytes(types[i], ROW, &bytes), STK_OK);
            uint8_t *blocks = malloc(bytes);
            stk_synth_fill_signs((enum stk_type)types[i], sizes[k], signs, ROW, blocks);
            float *w = weights_of(types[i], blocks, ROW);
            for (int n = 0; n < ROW; n++) cr_assert_eq(w[n], sizes[k] * (float)signs[n], "type %u, weight %d", types[i], n);
            free(w);
            free(blocks);
        }
    }
}
