/* memory: limits, contents and bounds of the emulated device's memory. */
#include <criterion/criterion.h>
#include <string.h>

#include "cuda/emu/memory.h"
#include "emu_fixture.h"

Test(emu_memory, the_limit_is_kept_and_running_out_is_no_disaster) {
    emu_start(1, 1 << 20);
    void *p[3] = {0};
    size_t free_bytes, total;
    cr_assert_eq(stk_emu_malloc(&p[0], 600 << 10), 0);
    cr_assert_eq(stk_emu_malloc(&p[1], 600 << 10), STK_EMU_MEMORY_ALLOCATION);
    cr_assert_null(p[1]);
    cr_assert_eq(stk_emu_malloc(&p[1], 1), 0);
    cr_assert_eq(stk_emu_mem_get_info(&free_bytes, &total), 0);
    cr_assert_eq(total, 1 << 20);
    cr_assert_eq(free_bytes, (1 << 20) - (600 << 10) - 512);
    cr_assert_eq(stk_emu_free(p[0]), 0);
    cr_assert_eq(stk_emu_malloc(&p[2], 1000 << 10), 0);
    stk_emu_stats stats;
    stk_emu_stats_get(&stats);
    cr_assert_eq(stats.vram_peak_bytes, (1000 << 10) + 512);
    cr_assert_eq(stats.n_alloc, 2);
    cr_assert_eq(stk_emu_free(p[0]), STK_EMU_INVALID_VALUE);
    cr_assert_eq(stk_emu_free(NULL), 0);
}

Test(emu_memory, sizes_that_nobody_has_are_refused) {
    emu_start(1, 0);
    void *p = &p;
    cr_assert_eq(stk_emu_malloc(&p, SIZE_MAX), STK_EMU_MEMORY_ALLOCATION);
    cr_assert_null(p);
    cr_assert_eq(stk_emu_malloc(&p, SIZE_MAX / 2 - 4096), STK_EMU_MEMORY_ALLOCATION);
    cr_assert_eq(stk_emu_malloc(&p, 0), 0);
    cr_assert_null(p);
}

Test(emu_memory, memory_is_aligned_and_holds_nothing_useful) {
    emu_start(1, 0);
    for (size_t n = 1; n < 9000; n += 777) {
        uint8_t *p;
        cr_assert_eq(stk_emu_malloc((void **)&p, n), 0);
        cr_assert_eq((uintptr_t)p % 256, 0);
        cr_assert(p[0] == 0xff && p[n - 1] == 0xff);
    }
}

Test(emu_memory, pinned_memory_has_its_own_limit) {
    stk_emu_config config = stk_emu_config_default();
    static uint8_t buffer[5000];
    void *p = NULL;
    config.pin_bytes = 6000;
    stk_emu_reset(&config);
    cr_assert_eq(stk_emu_host_register(buffer, sizeof buffer, 0), 0);
    cr_assert_eq(stk_emu_host_register(buffer + 100, 10, 0), STK_EMU_HOST_ALREADY_REGISTERED);
    cr_assert_eq(stk_emu_host_alloc(&p, 2000, 0), STK_EMU_MEMORY_ALLOCATION);
    cr_assert_eq(stk_emu_memory_where(buffer + 4000, 1000), STK_EMU_PINNED);
    cr_assert_eq(stk_emu_memory_where(buffer + 4000, 1001), STK_EMU_PARTLY);
    cr_assert_eq(stk_emu_host_unregister(buffer), 0);
    cr_assert_eq(stk_emu_host_unregister(buffer), STK_EMU_HOST_NOT_REGISTERED);
    cr_assert_eq(stk_emu_host_alloc(&p, 2000, 0), 0);
    cr_assert_eq(stk_emu_free(p), STK_EMU_INVALID_VALUE);
    cr_assert_eq(stk_emu_free_host(p), 0);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(SANITIZED)
static void one_too_many(const void *args) {
    const emu_args *a = args;
    ((uint8_t *)a->p)[a->n] = 1;
}

/* The address sanitizer ends the program at the write itself. */
Test(emu_memory, writing_beyond_an_end_loses_the_device) {
    stk_emu_stream *s = emu_start(1, 0);
    emu_args a = {NULL, 1000};
    cr_assert_eq(stk_emu_malloc(&a.p, a.n), 0);
    cr_assert_eq(stk_emu_launch("k", (stk_emu_dim){1, 1, 1}, (stk_emu_dim){1, 1, 1}, 0, s, one_too_many, &a, sizeof a), 0);
    cr_assert_eq(stk_emu_stream_synchronize(s), STK_EMU_ILLEGAL_ADDRESS);
    cr_assert_not_null(strstr(stk_emu_detail(), "beyond the end of an allocation of 1000 bytes"), "%s", stk_emu_detail());
}
#endif
