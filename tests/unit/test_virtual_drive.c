/* virtual_drive: pieces, order and times of the replay's drive, at 1 byte a ns and without latency unless said. */
#include <criterion/criterion.h>

#include "src/replay/virtual_drive.h"

enum { KIB = 1024, N = 8, DEMAND_PIECE = 512 * KIB, AHEAD_PIECE = 96 * KIB /* 0.1 ms */ };

static stk_virtual_drive opened(void) {
    stk_virtual_drive d;
    cr_assert_eq(stk_virtual_drive_open(&d, N), 0);
    cr_assert_eq(stk_drive_parse(&d.model, "1G,0us", 0), 0);
    return d;
}

Test(virtual_drive, reads_land_in_order_when_their_last_piece_is_back) {
    stk_virtual_drive d = opened();
    stk_virtual_drive_submit(&d, 3, STK_IO_DEMAND, 3 * DEMAND_PIECE, 0);
    stk_virtual_drive_submit(&d, 1, STK_IO_DEMAND, 2 * DEMAND_PIECE, 0);
    cr_assert_eq(d.n_flying, STK_IO_DEPTH);
    stk_virtual_drive_advance(&d, 3 * DEMAND_PIECE - 1);
    cr_assert_eq(d.n_landed, 0);
    cr_assert_eq(d.moved_bytes, 2 * DEMAND_PIECE);
    cr_assert_eq(stk_virtual_drive_wait(&d, 3 * DEMAND_PIECE - 1), 3 * DEMAND_PIECE);
    cr_assert_eq(stk_virtual_drive_take(&d, 0), 3);
    cr_assert_eq(stk_virtual_drive_wait(&d, 3 * DEMAND_PIECE), 5 * DEMAND_PIECE);
    cr_assert_eq(stk_virtual_drive_take(&d, 0), 1);
    cr_assert_eq(stk_virtual_drive_wait(&d, 6 * DEMAND_PIECE), 6 * DEMAND_PIECE, "there is nothing to wait for");
    stk_virtual_drive_close(&d);
}

Test(virtual_drive, demand_overtakes_what_of_a_prefetch_is_not_under_way) {
    stk_virtual_drive d = opened();
    stk_virtual_drive_submit(&d, 0, STK_IO_PREFETCH, 8 * AHEAD_PIECE, 0);
    cr_assert_eq(d.n_flying, 2, "room is left for demand");
    stk_virtual_drive_submit(&d, 1, STK_IO_DEMAND, DEMAND_PIECE, 0);
    cr_assert_eq(stk_virtual_drive_wait(&d, 0), 2 * AHEAD_PIECE + DEMAND_PIECE);
    cr_assert_eq(stk_virtual_drive_take(&d, 0), 1);
    stk_virtual_drive_close(&d);
}

Test(virtual_drive, a_promoted_prefetch_goes_behind_demand_and_before_prefetches) {
    stk_virtual_drive d = opened();
    stk_virtual_drive_submit(&d, 0, STK_IO_DEMAND, 4 * DEMAND_PIECE, 0);
    stk_virtual_drive_submit(&d, 1, STK_IO_PREFETCH, AHEAD_PIECE, 0);
    stk_virtual_drive_submit(&d, 2, STK_IO_PREFETCH, AHEAD_PIECE, 0);
    stk_virtual_drive_submit(&d, 3, STK_IO_DEMAND, DEMAND_PIECE, 0);
    stk_virtual_drive_promote(&d, 2);
    stk_virtual_drive_advance(&d, UINT64_MAX);
    static const uint32_t order[] = {0, 3, 2, 1};
    cr_assert_eq(d.n_landed, 4);
    for (uint32_t i = 0; i < 4; i++) cr_assert_eq(d.landed[i], order[i]);
    stk_virtual_drive_close(&d);
}

Test(virtual_drive, a_cancelled_read_never_lands_and_keeps_its_pieces_on_the_drive) {
    stk_virtual_drive d = opened();
    stk_virtual_drive_submit(&d, 0, STK_IO_DEMAND, 8 * DEMAND_PIECE, 0);
    stk_virtual_drive_cancel(&d, 0);
    stk_virtual_drive_submit(&d, 0, STK_IO_DEMAND, DEMAND_PIECE, 0);
    cr_assert_eq(stk_virtual_drive_wait(&d, 0), 5 * DEMAND_PIECE, "behind the four that were in flight");
    cr_assert_eq(d.n_landed, 1);
    stk_virtual_drive_cancel(&d, 0);
    cr_assert_eq(d.n_landed, 0);
    cr_assert(d.queue[STK_IO_DEMAND].head == UINT32_MAX && d.n_flying == 0);
    stk_virtual_drive_close(&d);
}

Test(virtual_drive, without_time_a_read_has_landed_at_once) {
    stk_virtual_drive d = opened();
    d.instant = true;
    stk_virtual_drive_submit(&d, 5, STK_IO_PREFETCH, DEMAND_PIECE, 0);
    cr_assert(d.n_landed == 1 && d.landed[0] == 5);
    stk_virtual_drive_close(&d);
}

Test(virtual_drive, tells_what_it_still_has_to_bring) {
    stk_virtual_drive d = opened();
    uint64_t bytes[STK_IO_PREFETCH + 1];
    stk_virtual_drive_submit(&d, 0, STK_IO_PREFETCH, 5 * AHEAD_PIECE, 0);
    stk_virtual_drive_submit(&d, 1, STK_IO_DEMAND, 3 * DEMAND_PIECE, 0);
    stk_virtual_drive_backlog(&d, bytes);
    cr_assert(bytes[STK_IO_DEMAND] == 3 * DEMAND_PIECE && bytes[STK_IO_PREFETCH] == 5 * AHEAD_PIECE);
    stk_virtual_drive_advance(&d, 2 * AHEAD_PIECE + DEMAND_PIECE);
    stk_virtual_drive_backlog(&d, bytes);
    cr_assert(bytes[STK_IO_DEMAND] == 2 * DEMAND_PIECE && bytes[STK_IO_PREFETCH] == 3 * AHEAD_PIECE);
    cr_assert(stk_virtual_drive_reads(&d, 0) && stk_virtual_drive_reads(&d, 1) && !stk_virtual_drive_reads(&d, 2));
    stk_virtual_drive_cancel(&d, 1);
    cr_assert(!stk_virtual_drive_reads(&d, 1));
    stk_virtual_drive_backlog(&d, bytes);
    cr_assert_eq(bytes[STK_IO_DEMAND], 2 * DEMAND_PIECE, "what is under way is in the way, whoever asked for it");
    stk_virtual_drive_advance(&d, UINT64_MAX / 2);
    stk_virtual_drive_backlog(&d, bytes);
    cr_assert(bytes[STK_IO_DEMAND] == 0 && bytes[STK_IO_PREFETCH] == 0 && !stk_virtual_drive_reads(&d, 0));
    stk_virtual_drive_close(&d);
}
