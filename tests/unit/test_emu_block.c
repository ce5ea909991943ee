/* block: what a kernel may do runs, whatever the order of its threads; what it may not do is reported and never hangs. */
#include <criterion/criterion.h>
#include <string.h>

#include "emu_fixture.h"

enum { N = 96, SEEDS = 10 };

static void expect_fault(void (*kernel)(const void *), uint32_t n, const char *text) {
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        int rc = emu_run(kernel, NULL, n, seed);
        cr_assert_eq(rc, STK_EMU_LAUNCH_FAILURE, "seed %d: %d", (int)seed, rc);
        cr_assert_not_null(strstr(stk_emu_detail(), text), "%s lacks \"%s\"", stk_emu_detail(), text);
        cr_assert_not_null(strstr(stk_emu_detail(), "kernel a test, block (0, 0, 0)"), "%s", stk_emu_detail());
        cr_assert(stk_emu_lost());
    }
}

/* ---- What works ---- */

static void neighbours(const void *args) {
    const emu_args *a = args;
    uint32_t *x = emu_shared(EMU_HERE, N), t = stk_emu_thread_idx.x;
    emu_write(x + t, t * t, EMU_HERE);
    stk_emu_sync_block(EMU_HERE);
    ((uint32_t *)a->p)[t] = emu_read(x + (t + 1) % a->n, EMU_HERE);
}

Test(emu_block, a_barrier_orders_shared_memory) {
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        uint32_t got[N] = {0};
        cr_assert_eq(emu_run(neighbours, got, N, seed), 0, "%s", stk_emu_detail());
        for (uint32_t t = 0; t < N; t++) cr_assert_eq(got[t], (t + 1) % N * ((t + 1) % N));
    }
}

static void in_turn(const void *args) {
    const emu_args *a = args;
    uint32_t *order = a->p, i = order[N]++;
    order[i] = stk_emu_thread_idx.x;
}

Test(emu_block, the_seed_decides_the_order_of_threads) {
    uint32_t a[N + 1] = {0}, b[N + 1] = {0}, c[N + 1] = {0};
    cr_assert_eq(emu_run(in_turn, a, N, 1), 0);
    cr_assert_eq(emu_run(in_turn, b, N, 1), 0);
    cr_assert_eq(emu_run(in_turn, c, N, 2), 0);
    cr_assert_arr_eq(a, b, sizeof a);
    cr_assert_neq(memcmp(a, c, sizeof a), 0);
}

static const char *add_up(uint32_t mask, const void *const in[STK_EMU_WARP], void *const out[STK_EMU_WARP]) {
    (void)mask;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < STK_EMU_WARP; i++) sum += in[i] ? *(const uint32_t *)in[i] : 0;
    for (uint32_t i = 0; i < STK_EMU_WARP; i++)
        if (out[i]) *(uint32_t *)out[i] = sum;
    return NULL;
}

static void parts_of_warps(const void *args) {
    const emu_args *a = args;
    uint32_t t = stk_emu_thread_idx.x, sum = 0, mask = t % 32 < 5 ? 0x1fu : ~0x1fu;
    stk_emu_warp_op(EMU_HERE, "sum", mask, &t, &sum, add_up);
    ((uint32_t *)a->p)[t] = sum;
}

Test(emu_block, parts_of_a_warp_meet_by_their_masks) {
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        uint32_t got[64] = {0};
        cr_assert_eq(emu_run(parts_of_warps, got, 64, seed), 0, "%s", stk_emu_detail());
        for (uint32_t t = 0; t < 64; t++) cr_assert_eq(got[t], t % 32 < 5 ? 10 + t / 32 * 160 : 486 + t / 32 * 864);
    }
}

static void through_syncwarp(const void *args) {
    const emu_args *a = args;
    uint32_t *x = emu_shared(EMU_HERE, N), t = stk_emu_thread_idx.x;
    emu_write(x + t, t, EMU_HERE);
    stk_emu_sync_warp(EMU_HERE, UINT32_MAX);
    ((uint32_t *)a->p)[t] = emu_read(x + (t ^ 1), EMU_HERE);
}

Test(emu_block, syncwarp_orders_the_memory_of_its_warp) {
    uint32_t got[N];
    cr_assert_eq(emu_run(through_syncwarp, got, N, 3), 0, "%s", stk_emu_detail());
    for (uint32_t t = 0; t < N; t++) cr_assert_eq(got[t], t ^ 1);
}

static void exits_early(const void *args) {
    const emu_args *a = args;
    uint32_t t = stk_emu_thread_idx.x, sum = 0;
    if (t % 32 >= 16) return;
    stk_emu_warp_op(EMU_HERE, "sum", 0xffff, &t, &sum, add_up);
    ((uint32_t *)a->p)[t] = sum;
}

Test(emu_block, lanes_may_exit_before_an_operation_that_does_not_name_them) {
    uint32_t got[32] = {0};
    cr_assert_eq(emu_run(exits_early, got, 32, 4), 0, "%s", stk_emu_detail());
    cr_assert_eq(got[3], 120);
}

/* ---- What is reported ---- */

static void without_barrier(const void *args) {
    (void)args;
    uint32_t *x = emu_shared(EMU_HERE, N), t = stk_emu_thread_idx.x;
    emu_write(x + t, t, EMU_HERE);
    emu_read(x + (t + 32) % N, EMU_HERE);
}

/* Either thread may come first: then it is a race, or a word that is read before anybody wrote it. */
Test(emu_block, a_missing_barrier_is_reported) { expect_fault(without_barrier, N, "shared memory"); }

static void same_word(const void *args) {
    (void)args;
    emu_write(emu_shared(EMU_HERE, 1), 7, EMU_HERE);
}
Test(emu_block, two_writers_of_a_word_are_a_race) { expect_fault(same_word, 2, "two threads write"); }

static void shuffle_is_no_barrier(const void *args) {
    (void)args;
    uint32_t *x = emu_shared(EMU_HERE, 32), t = stk_emu_thread_idx.x, sum;
    emu_write(x + t, t, EMU_HERE);
    stk_emu_warp_op(EMU_HERE, "sum", UINT32_MAX, &t, &sum, add_up);
    emu_read(x + (t ^ 1), EMU_HERE);
}
Test(emu_block, a_shuffle_does_not_order_memory) { expect_fault(shuffle_is_no_barrier, 32, "a race"); }

static void overwrites_what_is_read(const void *args) {
    (void)args;
    uint32_t *x = emu_shared(EMU_HERE, 64), t = stk_emu_thread_idx.x;
    emu_write(x + t, t, EMU_HERE);
    stk_emu_sync_block(EMU_HERE);
    emu_read(x + (t + 1) % 64, EMU_HERE);
    emu_write(x + t, t, EMU_HERE);
}
Test(emu_block, writing_what_another_thread_reads_is_a_race) { expect_fault(overwrites_what_is_read, 64, "a race"); }

static void unwritten(const void *args) {
    (void)args;
    emu_read(emu_shared(EMU_HERE, 4) + 2, EMU_HERE);
}
Test(emu_block, reading_what_nobody_wrote_is_reported) { expect_fault(unwritten, 1, "nobody has written"); }

static void beyond_the_end(const void *args) {
    (void)args;
    emu_write(emu_shared(EMU_HERE, 4) + 4, 1, EMU_HERE);
}
Test(emu_block, an_array_has_an_end) { expect_fault(beyond_the_end, 1, "outside of any shared array"); }

static void too_much(const void *args) {
    (void)args;
    emu_shared(EMU_HERE, 8000);
    emu_shared(EMU_HERE, 8000);
}
Test(emu_block, shared_memory_is_48_kib) { expect_fault(too_much, 1, "48 KiB"); }

static void two_places(const void *args) {
    (void)args;
    if (stk_emu_thread_idx.x < 10)
        stk_emu_sync_block(EMU_HERE);
    else
        stk_emu_sync_block(EMU_HERE);
}
Test(emu_block, a_divergent_barrier_is_reported) { expect_fault(two_places, N, "divergent barrier"); }

static void some_leave(const void *args) {
    (void)args;
    if (stk_emu_thread_idx.x % 7) stk_emu_sync_block(EMU_HERE);
}
Test(emu_block, a_barrier_that_some_never_reach_is_reported) { expect_fault(some_leave, N, "have exited"); }

static void not_in_mask(const void *args) {
    (void)args;
    stk_emu_sync_warp(EMU_HERE, 1);
}
Test(emu_block, a_mask_must_have_the_caller) { expect_fault(not_in_mask, 2, "lacks the calling lane"); }

static void waits_for_exited(const void *args) {
    (void)args;
    if (stk_emu_thread_idx.x) stk_emu_sync_warp(EMU_HERE, UINT32_MAX);
}
/* The one that exits may do so before or after the others have come. */
Test(emu_block, a_mask_that_names_an_exited_lane_is_reported) { expect_fault(waits_for_exited, 32, "__syncwarp"); }

static void different_masks(const void *args) {
    (void)args;
    stk_emu_sync_warp(EMU_HERE, stk_emu_thread_idx.x ? 3 : 7);
}
Test(emu_block, lanes_must_agree_on_the_mask) { expect_fault(different_masks, 3, "the mask"); }

static void block_against_warp(const void *args) {
    (void)args;
    if (stk_emu_thread_idx.x < 32)
        stk_emu_sync_block(EMU_HERE);
    else if (stk_emu_thread_idx.x != 40)
        stk_emu_sync_warp(EMU_HERE, UINT32_MAX);
    else
        stk_emu_sync_block(EMU_HERE);
}
Test(emu_block, waiting_for_each_other_is_reported) { expect_fault(block_against_warp, 64, "barrier"); }

Test(emu_block, impossible_launches_are_refused) {
    stk_emu_stream *s = emu_start(1, 0);
    const stk_emu_dim one = {1, 1, 1};
    emu_args a = {0};
    cr_assert_eq(stk_emu_launch("k", one, (stk_emu_dim){1025, 1, 1}, 0, s, same_word, &a, sizeof a),
                 STK_EMU_INVALID_CONFIGURATION);
    cr_assert_eq(stk_emu_launch("k", one, (stk_emu_dim){0, 1, 1}, 0, s, same_word, &a, sizeof a), STK_EMU_INVALID_CONFIGURATION);
    cr_assert_eq(stk_emu_launch("k", (stk_emu_dim){1, 65536, 1}, one, 0, s, same_word, &a, sizeof a),
                 STK_EMU_INVALID_CONFIGURATION);
    cr_assert_eq(stk_emu_launch("k", one, one, STK_EMU_SHARED_BYTES + 1, s, same_word, &a, sizeof a),
                 STK_EMU_INVALID_CONFIGURATION);
    cr_assert_eq(stk_emu_launch("k", one, one, 0, NULL, same_word, &a, sizeof a), STK_EMU_INVALID_HANDLE);
    cr_assert_eq(stk_emu_launch("k", one, one, 0, s, same_word, &a, sizeof a), 0);
    cr_assert_eq(stk_emu_stream_synchronize(s), 0);
}
