/* drive: the text that describes a drive, and its arithmetic. */
#include <criterion/criterion.h>
#include <string.h>

#include "io/drive.h"

static stk_drive parsed(const char *text) {
    stk_drive drive;
    cr_assert_eq(stk_drive_parse(&drive, text, 7), 0, "%s: %s", text, stk_error_detail());
    return drive;
}

Test(drive, text_is_understood) {
    stk_drive d = parsed("3.5G,80us");
    cr_assert_float_eq(d.bytes_per_ns, 3.5, 1e-12);
    cr_assert_eq(d.latency_ns, 80000);
    cr_assert_eq(d.seed, 7);
    cr_assert(!d.reorder && d.eio_at == 0 && d.short_at == 0 && d.blank_at == 0);
    cr_assert_eq(parsed("1G,1us,blank=9").blank_at, 9);

    d = parsed("500M,1.5ms,reorder,seed=42,eio=3,short=18446744073709551615");
    cr_assert_float_eq(d.bytes_per_ns, 0.5, 1e-12);
    cr_assert_eq(d.latency_ns, 1500000);
    cr_assert_eq(d.seed, 42);
    cr_assert(d.reorder && d.eio_at == 3 && d.eio_ahead_at == 0 && d.short_at == UINT64_MAX);
    cr_assert_eq(parsed("1G,1us,eio-ahead=4").eio_ahead_at, 4);

    cr_assert_float_eq(parsed("200k,0us").bytes_per_ns, 200e3 / 1e9, 1e-15);
    cr_assert_float_eq(parsed("1000000,0us").bytes_per_ns, 1e-3, 1e-15);
}

Test(drive, the_wrong_part_is_named) {
    static const struct {
        const char *text, *part;
    } cases[] = {{"", "bandwidth ''"},
                 {"G,80us", "bandwidth 'G'"},
                 {"3X,80us", "bandwidth '3X'"},
                 {"0,80us", "bandwidth '0'"},
                 {"-1G,80us", "bandwidth '-1G'"},
                 {"1.5.5G,80us", "bandwidth '1.5.5G'"},
                 {"999999999G,80us", "bandwidth '999999999G'"},
                 {"3G", "the latency is missing"},
                 {"3G,", "latency ''"},
                 {"3G,80", "latency '80'"},
                 {"3G,80s", "latency '80s'"},
                 {"3G,9999999999ms", "latency '9999999999ms'"},
                 {"3G,80us,", "option ''"},
                 {"3G,80us,reorderx", "option 'reorderx'"},
                 {"3G,80us,seed=", "option 'seed='"},
                 {"3G,80us,eio=0", "option 'eio=0'"},
                 {"3G,80us,eio=-1", "option 'eio=-1'"},
                 {"3G,80us,eio-ahead=0", "option 'eio-ahead=0'"},
                 {"3G,80us,short=18446744073709551616", "option 'short=18446744073709551616'"}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        stk_drive drive;
        cr_assert_eq(stk_drive_parse(&drive, cases[i].text, 0), STK_EINVAL, "'%s'", cases[i].text);
        cr_assert(strstr(stk_error_detail(), cases[i].part), "'%s': %s", cases[i].text, stk_error_detail());
    }
}

/* 1 byte a ns and 1,000 ns: reads that are submitted together share the latency and queue for the transfer. */
Test(drive, reads_share_latency_and_queue_for_the_transfer) {
    stk_drive d = parsed("1G,1us");
    cr_assert_eq(stk_drive_submit(&d, 0, 500), 1500);
    cr_assert_eq(stk_drive_submit(&d, 0, 500), 2000);
    cr_assert_eq(stk_drive_submit(&d, 1200, 100), 2300);
    cr_assert_eq(stk_drive_submit(&d, 10000, 100), 11100);
    cr_assert_eq(d.n_read, 4);
}

Test(drive, one_at_a_time_pays_the_latency_each_time) {
    stk_drive d = parsed("1G,1us");
    uint64_t now = 0;
    for (int i = 0; i < 10; i++) now = stk_drive_submit(&d, now, 500);
    cr_assert_eq(now, 15000);
}

Test(drive, order_follows_the_seed_and_leaves_the_bandwidth) {
    stk_drive a = parsed("1G,100us,reorder,seed=1"), b = a, c = parsed("1G,100us,reorder,seed=2"), plain = parsed("1G,100us");
    uint64_t last = 0;
    int n_overtaken = 0, n_other = 0;
    for (int i = 0; i < 100; i++) {
        uint64_t done = stk_drive_submit(&a, 0, 10000), base = stk_drive_submit(&plain, 0, 10000);
        cr_assert_eq(done, stk_drive_submit(&b, 0, 10000));
        cr_assert(done >= base && done < base + 4 * 110000);
        cr_assert_eq(a.free_at_ns, plain.free_at_ns);
        n_other += done != stk_drive_submit(&c, 0, 10000);
        n_overtaken += done < last;
        last = done;
    }
    cr_assert_gt(n_overtaken, 10);
    cr_assert_gt(n_other, 90);
}

Test(drive, demand_fills_the_depth_and_prefetches_leave_room) {
    cr_assert(stk_drive_takes(STK_IO_DEMAND, 4, 3) && !stk_drive_takes(STK_IO_DEMAND, 4, 4));
    cr_assert(stk_drive_takes(STK_IO_PREFETCH, 4, 1) && !stk_drive_takes(STK_IO_PREFETCH, 4, 2));
    cr_assert(!stk_drive_takes(STK_IO_PREFETCH, 1, 1), "a depth below that of prefetches holds for them too");
    cr_assert_eq(stk_drive_piece(STK_IO_DEMAND, STK_IO_PIECE_BYTES, 1 << 20, 0), STK_IO_PIECE_BYTES);
    cr_assert_eq(stk_drive_piece(STK_IO_DEMAND, STK_IO_PIECE_BYTES, 4096, 1), 4096);
    cr_assert_eq(stk_drive_piece(STK_IO_PREFETCH, STK_IO_PIECE_BYTES, 1 << 20, 0), 128 << 10, "a drive that is not known");
    for (double speed = 0.001; speed < 100; speed *= 1.7) { /* GB/s */
        uint32_t bytes = stk_drive_piece(STK_IO_PREFETCH, STK_IO_PIECE_BYTES, 1 << 20, speed);
        cr_assert(bytes % 4096 == 0 && bytes >= 16 << 10 && bytes <= 256 << 10);
        cr_assert(bytes / speed <= 100000 || bytes == 16 << 10, "0.1 ms of the drive");
        cr_assert_eq(stk_drive_ahead_bytes(speed), 2 * (uint64_t)bytes);
    }
    cr_assert_eq(stk_drive_piece(STK_IO_PREFETCH, STK_IO_PIECE_BYTES, 5000, 3), 5000);
    cr_assert_eq(stk_drive_piece(STK_IO_PREFETCH, 8192, 1 << 20, 3), 8192, "smaller pieces hold for them too");
}
