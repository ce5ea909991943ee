/* ref: the specification against plain double arithmetic on dequantized weights, and its rules at their edges. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/tables.h"
#include "src/numeric.h"

static const stk_cpu_ops *ops = &stk_cpu_ops_ref;

static uint64_t seed = 1;

static uint32_t random_u32(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (uint32_t)(seed >> 32);
}

/* In (-1, 1). */
static float random_float(void) { return (float)(int32_t)random_u32() * 0x1p-31f; }

/* A file's row of random codes with f16 fields near `scale`. */
static void random_row(enum stk_type type, uint64_t n, uint8_t *row) {
    const stk_type_info *info = stk_type_info_get(type);
    for (uint64_t b = 0; b < n / info->block; b++, row += info->block_bytes) {
        uint16_t half[2] = {stk_f32_f16(0.01f * random_float()), stk_f32_f16(0.01f * random_float())};
        for (uint32_t i = 0; i < info->block_bytes; i++) row[i] = (uint8_t)random_u32();
        if (type == STK_TYPE_F32) memcpy(row, &(float){random_float()}, 4);
        if (type == STK_TYPE_F16) memcpy(row, &half[0], 2);
        if (type == STK_TYPE_BF16) memcpy(row, (uint8_t *)&(float){random_float()} + 2, 2);
        if (type == STK_TYPE_Q8_0 || type == STK_TYPE_Q4_0 || type == STK_TYPE_Q4_K || type == STK_TYPE_Q5_K)
            memcpy(row, half, 2);
        if (type == STK_TYPE_Q4_K || type == STK_TYPE_Q5_K) memcpy(row + 2, half + 1, 2);
        if (type == STK_TYPE_Q6_K) memcpy(row + 208, half, 2);
    }
}

/* out = W x in double, with the activation as the product sees it (dequantized), and the sum of |w x| for the tolerance. */
static double exact_row(enum stk_type type, uint32_t n_in, const uint8_t *row, const float *x, const uint8_t *act, double *size) {
    float *w = malloc(n_in * sizeof *w);
    stk_dequantize_row(type, row, n_in, w);
    double sum = 0;
    *size = 0;
    for (uint32_t k = 0; k < n_in; k++) {
        double xk = (double)x[k];
        if (act) {
            float d;
            memcpy(&d, act + stk_act_layout_of(n_in).scale_offset + k / 32 * 4, 4);
            xk = (double)d * (int8_t)act[k];
        }
        sum += (double)w[k] * xk;
        *size += fabs((double)w[k] * xk);
    }
    free(w);
    return sum;
}

static void check_product(enum stk_type type, uint32_t n_rows, uint32_t n_in) {
    uint64_t row_bytes;
    cr_assert_eq(stk_type_row_bytes(type, n_in, &row_bytes), 0);
    uint8_t *file = malloc(n_rows * row_bytes), *scratch = malloc(stk_layout_scratch_bytes(type, n_in));
    void *packed = aligned_alloc(64, stk_matrix_bytes(type, n_rows, n_in));
    for (uint32_t r = 0; r < n_rows; r++) random_row(type, n_in, file + r * row_bytes);
    stk_layout_pack(type, n_rows, n_in, file, packed, scratch);

    float *x = calloc(n_in + 1, sizeof *x), *out = calloc(n_rows, sizeof *out);
    for (uint32_t k = 0; k < n_in; k++) x[k] = random_float();
    bool quantized = stk_type_is_quantized(type);
    uint8_t *act = aligned_alloc(64, stk_act_layout_of(n_in).bytes);
    if (quantized) ops->quantize(x, n_in, act);
    stk_matmul m = {
        packed,          n_in, n_rows, 0, (uint32_t)stk_n_stripe(n_rows), 1, &(const void *){quantized ? (void *)act : x},
        &(float *){out}, NULL};
    stk_cpu_matmul(ops, type)(&m);
    for (uint32_t r = 0; r < n_rows; r++) {
        double size, want = exact_row(type, n_in, file + r * row_bytes, x, quantized ? act : NULL, &size);
        cr_assert_leq(fabs((double)out[r] - want), 1e-5 * size, "%s [%u, %u] row %u: %g, want %g", stk_type_info_get(type)->name,
                      n_rows, n_in, r, (double)out[r], want);
    }
    free(act);
    free(out);
    free(x);
    free(packed);
    free(scratch);
    free(file);
}

Test(ref, products_equal_exact_ones_to_rounding) {
    static const enum stk_type types[] = {STK_TYPE_F32,  STK_TYPE_F16,  STK_TYPE_BF16, STK_TYPE_Q8_0,
                                          STK_TYPE_Q4_0, STK_TYPE_Q4_K, STK_TYPE_Q5_K, STK_TYPE_Q6_K};
    static const uint32_t widths[] = {32, 96, 256, 288, 512, 1024, 7, 301};
    for (uint32_t t = 0; t < STK_ARRAY_LEN(types); t++)
        for (uint32_t w = 0; w < STK_ARRAY_LEN(widths); w++)
            if (widths[w] % stk_type_info_get(types[t])->block == 0)
                for (uint32_t rows = 1; rows <= 33; rows += 16) check_product(types[t], rows, widths[w]);
}

typedef struct act32 {
    int8_t codes[64];
    float scale[16], sum[16];
    int32_t neg16[16];
} act32;

static act32 quantize32(const float x[32]) {
    act32 a;
    cr_assert_eq(stk_act_layout_of(32).bytes, sizeof a);
    ops->quantize(x, 32, &a);
    return a;
}

Test(ref, quantize_rounds_half_to_even_and_sums_exactly) {
    float x[32] = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -127.0f};
    act32 a = quantize32(x);
    static const int8_t want[7] = {127, 0, 2, 2, 0, -2, -127};
    cr_assert_arr_eq(a.codes, want, sizeof want);
    cr_assert(a.scale[0] == 1.0f && a.sum[0] == 2.0f && a.neg16[0] == -2 && a.neg16[1] == 0);
}

Test(ref, quantize_at_the_edges) {
    float x[32] = {0};
    act32 a = quantize32(x);
    cr_assert(a.scale[0] == 0 && a.sum[0] == 0 && a.neg16[0] == 0);
    x[31] = -0x1.fffffep-101f;
    a = quantize32(x);
    cr_assert(a.scale[0] == 0 && a.codes[31] == 0);
    x[31] = -0x1p-100f;
    a = quantize32(x);
    cr_assert(a.scale[0] == 0x1p-100f / 127.0f && a.codes[31] == -127 && a.neg16[1] == 127);
    x[0] = 3.4e38f;
    a = quantize32(x);
    cr_assert(a.codes[0] == 127 && isfinite(a.scale[0]));
    x[1] = INFINITY;
    a = quantize32(x);
    cr_assert(isnan(a.scale[0]) && isnan(a.sum[0]) && a.codes[0] == 0 && a.neg16[0] == 0);
    x[1] = NAN;
    a = quantize32(x);
    cr_assert(isnan(a.scale[0]) && isnan(a.sum[0]) && a.codes[0] == 0);
}

Test(ref, quantize_groups_fill_only_their_own) {
    float x[128];
    for (uint32_t i = 0; i < 128; i++) x[i] = random_float();
    uint8_t whole[512], parts[512];
    uint32_t bytes = stk_act_layout_of(128).bytes;
    cr_assert_leq(bytes, sizeof whole);
    memset(whole, 0x55, sizeof whole);
    memset(parts, 0x55, sizeof parts);
    ops->quantize(x, 128, whole);
    ops->quantize_groups(x, 128, 3, 4, parts);
    cr_assert_neq(memcmp(whole, parts, bytes), 0);
    ops->quantize_groups(x, 128, 0, 1, parts);
    ops->quantize_groups(x, 128, 1, 3, parts);
    cr_assert_arr_eq(whole, parts, bytes);
}

/* The documented tree, on values whose sum depends on the order. */
Test(ref, sums_follow_their_tree) {
    float x[19], w[19], out[19], lane[16] = {0};
    for (uint32_t i = 0; i < 19; i++) x[i] = random_float(), w[i] = 1.0f;
    for (uint32_t i = 0; i < 19; i++) lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    float s8[8], s4[4];
    for (uint32_t i = 0; i < 8; i++) s8[i] = lane[i] + lane[i + 8];
    for (uint32_t i = 0; i < 4; i++) s4[i] = s8[i] + s8[i + 4];
    float r = 1.0f / sqrtf(((s4[0] + s4[2]) + (s4[1] + s4[3])) / 19.0f + 1e-6f);
    ops->rmsnorm(x, w, 19, 1e-6f, out);
    for (uint32_t i = 0; i < 19; i++) cr_assert_eq(out[i], x[i] * r);
}

Test(ref, softmax_and_rope_are_what_they_say) {
    float x[5] = {1, 2, 3, -INFINITY, 0}, p[5];
    ops->softmax(x, 5, p);
    double sum = exp(-2) + exp(-1) + 1 + exp(-3);
    cr_assert_float_eq(p[0], (float)(exp(-2) / sum), 1e-6f);
    cr_assert_float_eq(p[2], (float)(1 / sum), 1e-6f);
    cr_assert_eq(p[3], 0);

    float table[4] = {0.6f, 0.8f, 0, 1}, a[5] = {1, 2, 3, 4, 9}, b[5] = {1, 2, 3, 4, 9};
    ops->rope(a, 4, table, true); /* (1, 3) by the first angle, (2, 4) by the second */
    cr_assert_float_eq(a[0], -1.8f, 1e-6f);
    cr_assert_float_eq(a[2], 2.6f, 1e-6f);
    cr_assert(a[1] == -4 && a[3] == 2 && a[4] == 9);
    ops->rope(b, 4, table, false); /* (1, 2), (3, 4) */
    cr_assert_float_eq(b[0], -1.0f, 1e-6f);
    cr_assert_float_eq(b[1], 2.0f, 1e-6f);
    cr_assert(b[2] == -4 && b[3] == 3 && b[4] == 9);
}

/* 150 positions in three tiles, f32 and f16, against the plain definition in double. */
Test(ref, attend_equals_the_definition_to_rounding) {
    enum { D = 24, N = 150, TILES = 3 };
    static float k[TILES][D * 64], v[TILES][64 * D];
    static uint16_t kh[TILES][D * 64], vh[TILES][64 * D];
    float q[D], state[2 + D];
    for (uint32_t d = 0; d < D; d++) q[d] = 3 * random_float();
    for (uint32_t t = 0; t < TILES; t++)
        for (uint32_t i = 0; i < 64 * D; i++) {
            kh[t][i] = stk_f32_f16(random_float());
            vh[t][i] = stk_f32_f16(random_float());
            k[t][i] = stk_f16_f32(kh[t][i]);
            v[t][i] = stk_f16_f32(vh[t][i]);
        }
    double l = 0, o[D] = {0}, max = -INFINITY, s[N];
    for (uint32_t j = 0; j < N; j++) {
        s[j] = 0;
        for (uint32_t d = 0; d < D; d++) s[j] += (double)q[d] * (double)k[j / 64][d * 64 + j % 64];
        s[j] *= 0.25;
        max = s[j] > max ? s[j] : max;
    }
    for (uint32_t j = 0; j < N; j++) {
        l += exp(s[j] - max);
        for (uint32_t d = 0; d < D; d++) o[d] += exp(s[j] - max) * (double)v[j / 64][j % 64 * D + d];
    }
    for (uint32_t half = 0; half < 2; half++) {
        const void *kp[TILES], *vp[TILES];
        for (uint32_t t = 0; t < TILES; t++) kp[t] = half ? (void *)kh[t] : k[t], vp[t] = half ? (void *)vh[t] : v[t];
        stk_attend a = {1, D, &(const float *){q}, &(uint32_t){N}, half, half, kp, vp, 0.25f, &(float *){state}};
        ops->attend(&a);
        cr_assert_float_eq((double)state[0], max, 1e-5);
        cr_assert_float_eq((double)state[1], l, 1e-5 * l);
        for (uint32_t d = 0; d < D; d++) cr_assert_float_eq((double)state[2 + d], o[d], 1e-5 * l);
    }
}

Test(ref, table_is_complete_and_found) {
    const char *names[8];
    uint32_t n = stk_cpu_ops_list(names);
    cr_assert_geq(n, 1);
    cr_assert_str_eq(names[0], "ref");
    for (uint32_t i = 0; i < n; i++) cr_assert_str_eq(stk_cpu_ops_get(names[i])->name, names[i]);
    cr_assert_eq(stk_cpu_ops_get(NULL), stk_cpu_ops_get(names[n - 1]));
    cr_assert_eq(stk_cpu_ops_get(""), stk_cpu_ops_get(names[n - 1]));
    cr_assert_null(stk_cpu_ops_get("sse9"));
    /* As an upper bound every known name gives some table, none better than it. */
    cr_assert_str_eq(stk_cpu_ops_at_most("ref")->name, "ref");
    cr_assert_not_null(stk_cpu_ops_at_most("avxvnni"));
    cr_assert_str_neq(stk_cpu_ops_at_most("avxvnni")->name, "avx512");
    cr_assert_eq(stk_cpu_ops_at_most("avx512"), stk_cpu_ops_get(NULL));
    cr_assert_eq(stk_cpu_ops_at_most(NULL), stk_cpu_ops_get(NULL));
    cr_assert_null(stk_cpu_ops_at_most("sse9"));
    cr_assert_null(stk_cpu_matmul(ops, (enum stk_type)3));
}
