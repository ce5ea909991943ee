/* device: warp operations, the integer mma against the definition of a matrix product, and scalars of the emulated kernels. */
#include <criterion/criterion.h>
#include <string.h>

#include "emu_kernels.h"

Test(emu_device, shuffles_and_votes) {
    emu_warp_results r;
    cr_assert_eq(emu_run(emu_kernel_warp, &r, 32, 7), 0, "%s", stk_emu_detail());
    for (uint32_t i = 0; i < 32; i++) {
        cr_assert_eq(r.up[i], 10 * (i < 3 ? i : i - 3));
        cr_assert_eq(r.down[i], 10 * (i > 28 ? i : i + 3));
        cr_assert_eq(r.exclusive_or[i], 10 * (i ^ 5));
        cr_assert_eq(r.from_3[i], 30);
        cr_assert_eq(r.halves[i], 10 * (i % 16 < 8 ? i + 8 : i));
        cr_assert_eq(r.ballot[i], 0x49249249);
        cr_assert_eq(r.all[i], i < 16);
        cr_assert_eq(r.any[i], 1);
    }
}

Test(emu_device, mma_is_a_matrix_product) {
    static emu_mma m;
    int32_t want32[16][8], want16[16][8];
    uint32_t x = 12345;
    for (uint32_t i = 0; i < sizeof m.a + sizeof m.b; i++) ((int8_t *)&m)[i] = (int8_t)((x = x * 1664525 + 1013904223) >> 24);
    m.a[3][5] = m.a[15][31] = -128;
    m.b[5][2] = -128;
    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t j = 0; j < 8; j++) {
            m.c32[i][j] = m.c16[i][j] = want32[i][j] = want16[i][j] = (int32_t)(i * 1000 + j) - 7000;
            for (uint32_t k = 0; k < 32; k++) {
                want32[i][j] += m.a[i][k] * m.b[k][j];
                want16[i][j] += k < 16 ? m.a[i][k] * m.b[k][j] : 0;
            }
        }
    cr_assert_eq(emu_run(emu_kernel_mma, &m, 32, 1), 0, "%s", stk_emu_detail());
    cr_assert_arr_eq(m.c32, want32, sizeof want32);
    cr_assert_arr_eq(m.c16, want16, sizeof want16);
}

Test(emu_device, a_shuffle_reads_lanes_of_its_mask) {
    cr_assert_eq(emu_run(emu_kernel_shuffle_from_outside, NULL, 32, 1), STK_EMU_LAUNCH_FAILURE);
    cr_assert_not_null(strstr(stk_emu_detail(), "not in the mask"), "%s", stk_emu_detail());
}

Test(emu_device, an_mma_needs_a_whole_warp) {
    cr_assert_eq(emu_run(emu_kernel_mma_of_half_a_warp, NULL, 16, 1), STK_EMU_LAUNCH_FAILURE);
    cr_assert_not_null(strstr(stk_emu_detail(), "mma"), "%s", stk_emu_detail());
}
