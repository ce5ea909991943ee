/* kv: pages, capacity, and where positions land. */
#include <criterion/criterion.h>

#include "src/engine/kv.h"
#include "src/numeric.h"

static void to_f16(const float *x, uint32_t n, uint16_t *out) {
    for (uint32_t i = 0; i < n; i++) out[i] = stk_f32_f16(x[i]);
}

static stk_kv *open_kv(uint32_t n_ctx, uint32_t n_seq, bool f16) {
    stk_kv *kv;
    stk_kv_config c = {2, 3, 8, 16, n_ctx, n_seq, f16, f16};
    cr_assert_eq(stk_kv_open(&kv, &c, false), 0, "%s", stk_error_detail());
    return kv;
}

static float key_of(uint32_t l, uint32_t h, uint32_t s, uint32_t p, uint32_t d) {
    return (float)(l * 1000 + h * 100 + s * 50 + p % 64) + (float)d * 0.125f;
}

static void fill(stk_kv *kv, uint32_t seq, uint32_t from, uint32_t to) {
    uint16_t half[16];
    float k[8], v[16];
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t h = 0; h < 3; h++)
            for (uint32_t p = from; p < to; p++) {
                for (uint32_t d = 0; d < 8; d++) k[d] = key_of(l, h, seq, p, d);
                for (uint32_t d = 0; d < 16; d++) v[d] = -key_of(l, h, seq, p, d);
                stk_kv_put(kv, l, h, seq, p, k, v, to_f16, half);
            }
}

static void check(const stk_kv *kv, uint32_t seq, uint32_t n, bool f16) {
    const void *kt[8], *vt[8];
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t h = 0; h < 3; h++) {
            stk_kv_tiles(kv, l, h, seq, 0, (n + 63) / 64, kt, vt);
            for (uint32_t p = 0; p < n; p++)
                for (uint32_t d = 0; d < 16; d++) {
                    uint32_t ki = d * 64 + p % 64, vi = p % 64 * 16 + d;
                    float k = 0, v = f16 ? stk_f16_f32(((const uint16_t *)vt[p / 64])[vi]) : ((const float *)vt[p / 64])[vi];
                    if (d < 8) k = f16 ? stk_f16_f32(((const uint16_t *)kt[p / 64])[ki]) : ((const float *)kt[p / 64])[ki];
                    float want = key_of(l, h, seq, p, d);
                    if (f16) want = stk_f16_f32(stk_f32_f16(want));
                    cr_assert(v == -want && (d >= 8 || k == want), "layer %u head %u position %u element %u", l, h, p, d);
                }
        }
}

Test(kv, two_sequences_interleaved) {
    for (int f16 = 0; f16 < 2; f16++) {
        stk_kv *kv = open_kv(256, 2, f16);
        for (uint32_t p = 0; p < 100; p += 10)
            for (uint32_t s = 0; s < 2; s++) {
                cr_assert_eq(stk_kv_reserve(kv, s, p + 10), 0);
                fill(kv, s, p, p + 10);
                stk_kv_commit(kv, s, p + 10);
            }
        check(kv, 0, 100, f16);
        check(kv, 1, 100, f16);
        stk_kv_close(&kv);
    }
}

Test(kv, the_whole_context_can_be_used_however_it_is_shared) {
    for (uint32_t first = 0; first <= 256; first += 1) {
        stk_kv *kv = open_kv(256, 3, false);
        uint32_t n[3] = {first, (256 - first) / 2, 256 - first - (256 - first) / 2};
        for (uint32_t s = 0; s < 3; s++) {
            if (n[s]) cr_assert_eq(stk_kv_reserve(kv, s, n[s]), 0, "%s", stk_error_detail());
            stk_kv_commit(kv, s, n[s]);
        }
        cr_assert_eq(stk_kv_reserve(kv, 0, first + 1), STK_EFULL);
        stk_kv_close(&kv);
    }
}

Test(kv, trimmed_pages_are_used_again) {
    stk_kv *kv = open_kv(128, 2, false);
    cr_assert_eq(stk_kv_reserve(kv, 0, 128), 0);
    stk_kv_commit(kv, 0, 128);
    cr_assert_eq(stk_kv_reserve(kv, 1, 1), STK_EFULL);
    stk_kv_trim(kv, 0, 60);
    cr_assert_eq(stk_kv_length(kv, 0), 60);
    cr_assert_eq(stk_kv_reserve(kv, 1, 68), 0);
    stk_kv_commit(kv, 1, 68);
    fill(kv, 0, 0, 60);
    fill(kv, 1, 0, 68);
    check(kv, 0, 60, false);
    check(kv, 1, 68, false);
    stk_kv_close(&kv);
}

Test(kv, a_reserve_that_is_not_committed_is_taken_back_by_trim) {
    stk_kv *kv = open_kv(128, 2, false);
    cr_assert_eq(stk_kv_reserve(kv, 0, 128), 0);
    stk_kv_trim(kv, 0, stk_kv_length(kv, 0));
    cr_assert_eq(stk_kv_reserve(kv, 1, 128), 0);
    stk_kv_close(&kv);
}
