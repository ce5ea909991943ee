/* io/emu: pieces that bring nothing. */
#include "io_fixture.h"

enum { SLOT = 8192, N_SLOT = 4 };

/* Two pieces an extent: the first extent comes, of the second none does, in the drive's time all the same. */
Test(io_emu, blank_reads_take_their_time_and_bring_nothing) {
    char path[TEMP_PATH];
    make_file(path, temp_dir(), N_SLOT * SLOT);
    stk_io *io = open_one("emu:1M,1ms,blank=3", path, 1, SLOT / 2);
    unsigned char *arena = aligned_alloc(4096, 2 * SLOT);
    memset(arena, 0x5a, 2 * SLOT);
    uint64_t begin = stk_now_ns();
    for (uint64_t i = 0; i < 2; i++) {
        stk_io_read read = {.offset = i * SLOT, .bytes = SLOT, .dst = arena + i * SLOT, .tag = i};
        cr_assert_eq(stk_io_submit(io, STK_IO_DEMAND, &read, 1), 0);
    }
    cr_assert_eq(reap_all(io, 0), 2);
    cr_assert_geq(stk_now_ns() - begin, 2 * SLOT * UINT64_C(1000));
    cr_assert(is_content(arena, 0, SLOT, N_SLOT * SLOT));
    for (uint32_t i = SLOT; i < 2 * SLOT; i++) cr_assert_eq(arena[i], 0x5a);
    stk_io_close(&io);
    free(arena);
    unlink(path);
}
