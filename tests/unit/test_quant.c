/* quant: sizes and dequantization against tests/data/quant.bin, made by the gguf Python package (tests/oracle/make_quant.py). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experts/quant.h"
#include "src/numeric.h"

static uint8_t *golden;
static size_t golden_bytes, at;

static void open_golden(void) {
    FILE *f = fopen(STK_TEST_DATA "/quant.bin", "rb");
    cr_assert_not_null(f, "tests/data/quant.bin is missing");
    cr_assert_eq(fseek(f, 0, SEEK_END), 0);
    golden_bytes = (size_t)ftell(f);
    rewind(f);
    golden = malloc(golden_bytes);
    cr_assert_eq(fread(golden, 1, golden_bytes, f), golden_bytes);
    fclose(f);
    at = 0;
}

static void close_golden(void) { free(golden); }

static const uint8_t *take(size_t n) {
    cr_assert_leq(n, golden_bytes - at);
    at += n;
    return golden + at - n;
}

static uint32_t take_u32(void) {
    uint32_t u;
    memcpy(&u, take(4), 4);
    return u;
}

Test(quant, rows_and_sizes_equal_the_gguf_package, .init = open_golden, .fini = close_golden) {
    cr_assert_arr_eq(take(4), "STKQ", 4);
    uint32_t n_case = take_u32();
    cr_assert_eq(n_case, 8);
    for (uint32_t c = 0; c < n_case; c++) {
        uint32_t type = take_u32(), n = take_u32(), bytes = take_u32();
        uint64_t row_bytes;
        cr_assert_eq(stk_type_row_bytes(type, n, &row_bytes), 0);
        cr_assert_eq(row_bytes, bytes);
        cr_assert(stk_type_info_get(type)->has_kernel);
        const uint8_t *row = take(bytes), *want = take(4 * (size_t)n);
        float *out = malloc(n * sizeof *out);
        stk_dequantize_row((enum stk_type)type, row, n, out);
        for (uint32_t k = 0; k < n; k++) {
            float w;
            memcpy(&w, want + 4 * (size_t)k, 4);
            cr_assert(stk_f32_bits(w) == stk_f32_bits(out[k]) || (w != w && out[k] != out[k]), "%s weight %u: %a, want %a",
                      stk_type_info_get(type)->name, k, (double)out[k], (double)w);
        }
        free(out);
    }

    cr_assert_arr_eq(take(4), "SIZE", 4);
    uint32_t n_type = take_u32(), n_known = 0;
    for (uint32_t i = 0; i < n_type; i++) {
        uint32_t type = take_u32(), block = take_u32(), block_bytes = take_u32();
        const stk_type_info *info = stk_type_info_get(type);
        cr_assert_not_null(info, "type %u", type);
        cr_assert_eq(info->block, block);
        cr_assert_eq(info->block_bytes, block_bytes);
    }
    cr_assert_eq(at, golden_bytes);
    for (uint32_t type = 0; type < 1000; type++) n_known += stk_type_info_get(type) != NULL;
    cr_assert_eq(n_known, n_type);
}

Test(quant, row_bytes_refuses_what_has_no_size) {
    uint64_t bytes;
    cr_assert_eq(stk_type_row_bytes(4, 32, &bytes), STK_EFORMAT);
    cr_assert_eq(stk_type_row_bytes(UINT32_MAX, 32, &bytes), STK_EFORMAT);
    cr_assert_eq(stk_type_row_bytes(STK_TYPE_Q4_K, 255, &bytes), STK_EFORMAT);
    cr_assert_not_null(strstr(stk_error_detail(), "Q4_K"));
    cr_assert_eq(stk_type_row_bytes(STK_TYPE_F32, UINT64_C(1) << 62, &bytes), STK_EFORMAT);
    cr_assert_eq(stk_type_row_bytes(STK_TYPE_Q8_0, 0, &bytes), 0);
    cr_assert_eq(bytes, 0);
}
