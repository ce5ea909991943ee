/* peak: every table's loops do what they say they do. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/peak.h"

enum { BYTES = 64 * 1024 };

Test(peak, every_table_of_kernels_has_one) {
    const char *names[8];
    uint32_t n = stk_cpu_ops_list(names);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_not_null(stk_peak_get(names[i]), "%s", names[i]);
        cr_assert_str_eq(stk_peak_get(names[i])->name, names[i]);
    }
    cr_assert_null(stk_peak_get("sse9"));
}

Test(peak, reading_reads_every_word_once) {
    const char *names[8];
    uint32_t n = stk_cpu_ops_list(names);
    uint64_t *memory = aligned_alloc(64, BYTES), want = 0, x = 1;
    for (size_t i = 0; i < BYTES / sizeof x; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        memory[i] = x;
        want ^= x;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t n_stream = 1; n_stream <= 8; n_stream *= 2)
            for (int ahead = 0; ahead < 2; ahead++)
                cr_assert_eq(stk_peak_get(names[i])->read(memory, BYTES, n_stream, ahead), want, "%s, %u streams", names[i],
                             n_stream);
    free(memory);
}

Test(peak, operations_are_counted_and_take_time) {
    const char *names[8];
    uint32_t n = stk_cpu_ops_list(names);
    for (uint32_t i = 0; i < n; i++) {
        const stk_peak_ops *peak = stk_peak_get(names[i]);
        cr_assert_eq(peak->int8(20), 2 * peak->int8(10));
        cr_assert_eq(peak->f32(20), 2 * peak->f32(10));
        uint64_t begin = stk_now_ns(), ops = peak->int8(1000000), middle = stk_now_ns(), flops = peak->f32(1000000);
        double int8 = (double)ops / (double)(middle - begin), f32 = (double)flops / (double)(stk_now_ns() - middle);
        /* No core does more than 4 instructions of 64 codes (with tiles 1 of 1,024), or 4 fused multiply-adds of 16, in each of 6
         * cycles a nanosecond: more means that the compiler has left the loop out. */
        double codes = strcmp(names[i], "amx") == 0 ? 1024 : 4 * 64;
        cr_assert(int8 > 0.01 && int8 < 6 * codes * 2, "%s: %g operations a nanosecond", names[i], int8);
        cr_assert(f32 > 0.01 && f32 < 6 * 4 * 16 * 2, "%s: %g operations a nanosecond", names[i], f32);
    }
}
