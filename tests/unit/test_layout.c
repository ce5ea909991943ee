/* layout: packed rows read back are the file's rows, for every type and ragged shapes; the documented bytes; in-place packing. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "experts/layout.h"
#include "src/numeric.h"

static const enum stk_type types[] = {STK_TYPE_F32,  STK_TYPE_F16,  STK_TYPE_BF16, STK_TYPE_Q8_0,
                                      STK_TYPE_Q4_0, STK_TYPE_Q4_K, STK_TYPE_Q5_K, STK_TYPE_Q6_K};

enum { GUARD = 64, CANARY = 0xa5 };

static uint64_t file_row_bytes(enum stk_type type, uint64_t n_in) {
    uint64_t bytes;
    cr_assert_eq(stk_type_row_bytes(type, n_in, &bytes), 0);
    return bytes;
}

static uint8_t *random_bytes(uint64_t n, uint32_t seed) {
    uint8_t *p = malloc(n ? n : 1);
    uint64_t s = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint64_t i = 0; i < n; i++) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        p[i] = (uint8_t)(s >> 32);
    }
    return p;
}

static void check_rows(enum stk_type type, uint64_t n_rows, uint64_t n_in, const uint8_t *file, const void *packed) {
    uint64_t bytes = file_row_bytes(type, n_in);
    float *want = malloc(n_in * sizeof *want), *got = malloc(n_in * sizeof *got);
    for (uint64_t r = 0; r < n_rows; r++) {
        stk_dequantize_row(type, file + r * bytes, n_in, want);
        stk_layout_row(type, n_in, packed, r, got);
        for (uint64_t k = 0; k < n_in; k++)
            cr_assert(stk_f32_bits(want[k]) == stk_f32_bits(got[k]) || (want[k] != want[k] && got[k] != got[k]),
                      "%s %llux%llu row %llu weight %llu: %a, want %a", stk_type_info_get(type)->name, (unsigned long long)n_rows,
                      (unsigned long long)n_in, (unsigned long long)r, (unsigned long long)k, (double)got[k], (double)want[k]);
    }
    free(want);
    free(got);
}

/* Packs into the middle of a guarded buffer, reads every row back, and looks at the guards. */
static void check_shape(enum stk_type type, uint64_t n_rows, uint64_t n_in) {
    uint64_t file_bytes = n_rows * file_row_bytes(type, n_in), bytes = stk_matrix_bytes(type, n_rows, n_in);
    uint64_t scratch_bytes = stk_layout_scratch_bytes(type, n_in);
    cr_assert_eq(stk_stripe_bytes(type, n_in) % STK_UNIT_BYTES, 0);
    uint8_t *file = random_bytes(file_bytes, (uint32_t)(n_rows * 7919 + n_in));
    uint8_t *packed = aligned_alloc(64, bytes + 2 * GUARD), *scratch = malloc(scratch_bytes + GUARD);
    memset(packed, CANARY, bytes + 2 * GUARD);
    memset(scratch, CANARY, scratch_bytes + GUARD);
    stk_layout_pack(type, n_rows, n_in, file, packed + GUARD, scratch);
    check_rows(type, n_rows, n_in, file, packed + GUARD);
    for (uint64_t i = 0; i < GUARD; i++)
        cr_assert(packed[i] == CANARY && packed[GUARD + bytes + i] == CANARY && scratch[scratch_bytes + i] == CANARY);

    /* Every byte of the stripes is defined: another canary leaves the same bytes. */
    uint8_t *again = aligned_alloc(64, bytes);
    memset(again, (uint8_t)~CANARY, bytes);
    stk_layout_pack(type, n_rows, n_in, file, again, scratch);
    cr_assert_eq(memcmp(again, packed + GUARD, bytes), 0);
    free(again);
    free(scratch);
    free(packed);
    free(file);
}

Test(layout, every_row_reads_back) {
    static const uint64_t widths[] = {32, 64, 96, 160, 224, 256, 288, 512, 544, 768, 2048}, odd[] = {1, 2, 3, 7, 31, 33, 257};
    for (uint32_t t = 0; t < STK_ARRAY_LEN(types); t++) {
        uint32_t block = stk_type_info_get(types[t])->block;
        for (uint64_t n_rows = 1; n_rows <= 33; n_rows++)
            for (uint32_t w = 0; w < STK_ARRAY_LEN(widths); w++)
                if (widths[w] % block == 0 && (n_rows % 8 < 2 || widths[w] < 300)) check_shape(types[t], n_rows, widths[w]);
        if (block == 1)
            for (uint32_t w = 0; w < STK_ARRAY_LEN(odd); w++)
                for (uint64_t n_rows = 1; n_rows <= 33; n_rows += 4) check_shape(types[t], n_rows, odd[w]);
    }
}

/* Rows that do not exist are zero bytes: with a file of 0xff bytes, exactly the bytes of the 5 rows are set. */
Test(layout, missing_rows_are_zero_bytes) {
    for (uint32_t t = 0; t < STK_ARRAY_LEN(types); t++) {
        uint64_t bytes = stk_matrix_bytes(types[t], 5, 256), file_bytes = 5 * file_row_bytes(types[t], 256), n_set = 0;
        uint8_t *file = malloc(file_bytes), *packed = aligned_alloc(64, bytes),
                *scratch = malloc(stk_layout_scratch_bytes(types[t], 256));
        memset(file, 0xff, file_bytes);
        stk_layout_pack(types[t], 5, 256, file, packed, scratch);
        for (uint64_t i = 0; i < bytes; i++) n_set += packed[i] != 0;
        cr_assert_eq(n_set, file_bytes, "%s", stk_type_info_get(types[t])->name);
        free(scratch);
        free(packed);
        free(file);
    }
}

/* dst so close before src that both end together: the closest that the contract allows. */
Test(layout, packs_in_place_at_the_lead) {
    static const uint64_t rows[] = {1, 15, 16, 17, 40, 64}, widths[] = {256, 768, 1792, 2048}, short_blocks[] = {32, 288, 544};
    for (uint32_t t = 0; t < STK_ARRAY_LEN(types); t++)
        for (uint32_t i = 0; i < STK_ARRAY_LEN(rows); i++)
            for (uint32_t w = 0; w < STK_ARRAY_LEN(widths) + STK_ARRAY_LEN(short_blocks); w++) {
                enum stk_type type = types[t];
                uint64_t n_in = w < 4 ? widths[w] : short_blocks[w - 4], n_rows = rows[i];
                if (n_in % stk_type_info_get(type)->block) continue;
                uint64_t file_bytes = n_rows * file_row_bytes(type, n_in), bytes = stk_matrix_bytes(type, n_rows, n_in);
                uint64_t lead = stk_layout_lead(type, n_rows, n_in);
                cr_assert_eq(lead + file_bytes, bytes);
                uint8_t *file = random_bytes(file_bytes, (uint32_t)n_in), *slot = aligned_alloc(64, bytes + GUARD);
                uint8_t *scratch = malloc(stk_layout_scratch_bytes(type, n_in));
                memset(slot, CANARY, bytes + GUARD);
                memcpy(slot + lead, file, file_bytes);
                stk_layout_pack(type, n_rows, n_in, slot + lead, slot, scratch);
                check_rows(type, n_rows, n_in, file, slot);
                for (uint64_t g = 0; g < GUARD; g++) cr_assert_eq(slot[bytes + g], CANARY);
                free(scratch);
                free(slot);
                free(file);
            }
}

static void pack_one_row(enum stk_type type, uint64_t n_in, const uint8_t *row, uint8_t *packed) {
    uint8_t scratch[16 * 1024];
    cr_assert_leq(stk_layout_scratch_bytes(type, n_in), sizeof scratch);
    stk_layout_pack(type, 1, n_in, row, packed, scratch);
}

/* The places that the head of layout.c names, byte for byte, seen by the kernels. */
Test(layout, bytes_lie_where_the_drawing_says) {
    uint8_t row[1024], p[16 * 1024] __attribute__((aligned(64)));
    for (uint32_t i = 0; i < sizeof row; i++) row[i] = (uint8_t)(i % 251 + 1);

    cr_assert_eq(stk_stripe_bytes(STK_TYPE_Q4_K, 512), 2 * 2304);
    pack_one_row(STK_TYPE_Q4_K, 512, row, p);
    for (uint32_t b = 0; b < 2; b++) {
        const uint8_t *q = p + 2304 * b, *f = row + 144 * b;
        cr_assert(q[0] == f[0] && q[1] == f[1] && q[32] == f[2] && q[33] == f[3]);
        for (uint32_t i = 0; i < 12; i++) cr_assert_eq(q[64 + 64 * (i / 4) + i % 4], f[4 + i]);
        for (uint32_t i = 0; i < 128; i++) cr_assert_eq(q[64 + 192 + 64 * (i / 4) + i % 4], f[16 + i]);
    }

    cr_assert_eq(stk_stripe_bytes(STK_TYPE_Q5_K, 256), 2816);
    pack_one_row(STK_TYPE_Q5_K, 256, row, p);
    for (uint32_t i = 0; i < 32; i++) cr_assert_eq(p[256 + 64 * (i / 4) + i % 4], row[16 + i]);
    for (uint32_t i = 0; i < 128; i++) cr_assert_eq(p[256 + 512 + 64 * (i / 4) + i % 4], row[48 + i]);

    cr_assert_eq(stk_stripe_bytes(STK_TYPE_Q6_K, 768), 128 + 3 * 3328);
    pack_one_row(STK_TYPE_Q6_K, 768, row, p);
    for (uint32_t b = 0; b < 3; b++) {
        const uint8_t *q = p + 128 + 3328 * b, *f = row + 210 * b;
        cr_assert(p[32 * b] == f[208] && p[32 * b + 1] == f[209]);
        for (uint32_t i = 0; i < 16; i++) cr_assert_eq(q[64 * (i / 4) + i % 4], f[192 + i]);
        for (uint32_t i = 0; i < 64; i++) cr_assert_eq(q[256 + 64 * (i / 4) + i % 4], f[128 + i]);
        for (uint32_t i = 0; i < 128; i++) cr_assert_eq(q[256 + 1024 + 64 * (i / 4) + i % 4], f[i]);
    }

    /* 288 weights: a block of 8 groups, then one of a single group whose header is filled up to 64 bytes. */
    cr_assert_eq(stk_stripe_bytes(STK_TYPE_Q8_0, 288), 256 + 64 * 64 + 64 + 8 * 64);
    pack_one_row(STK_TYPE_Q8_0, 288, row, p);
    for (uint32_t g = 0; g < 9; g++) {
        const uint8_t *header = g < 8 ? p + 32 * g : p + 256 + 4096, *codes = g < 8 ? p + 256 + 512 * g : p + 256 + 4096 + 64;
        cr_assert(header[0] == row[34 * g] && header[1] == row[34 * g + 1]);
        for (uint32_t i = 0; i < 32; i++) cr_assert_eq(codes[64 * (i / 4) + i % 4], row[34 * g + 2 + i]);
    }

    cr_assert_eq(stk_stripe_bytes(STK_TYPE_Q4_0, 96), 128 + 3 * 4 * 64);
    pack_one_row(STK_TYPE_Q4_0, 96, row, p);
    for (uint32_t g = 0; g < 3; g++)
        for (uint32_t i = 0; i < 16; i++) cr_assert_eq(p[128 + 256 * g + 64 * (i / 4) + i % 4], row[18 * g + 2 + i]);

    cr_assert_eq(stk_stripe_bytes(STK_TYPE_BF16, 3), 128);
    pack_one_row(STK_TYPE_BF16, 3, row, p);
    cr_assert(p[0] == row[0] && p[3] == row[3] && p[64] == row[4] && p[65] == row[5] && p[66] == 0 && p[67] == 0);
    cr_assert_eq(stk_stripe_bytes(STK_TYPE_F32, 3), 192);
}
