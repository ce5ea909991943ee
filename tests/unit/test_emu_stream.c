/* stream: order within a stream, none between streams but by events, when memory is read, and how failures show. */
#include <criterion/criterion.h>
#include <string.h>

#include "emu_fixture.h"

enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3 };

static void add_one(const void *args) {
    const emu_args *a = args;
    ++*(uint32_t *)a->p;
}
static void triple(const void *args) {
    const emu_args *a = args;
    *(uint32_t *)a->p *= 3;
}

static int launch(stk_emu_stream *s, void (*kernel)(const void *), void *p) {
    emu_args a = {p, 1};
    return stk_emu_launch("k", (stk_emu_dim){1, 1, 1}, (stk_emu_dim){1, 1, 1}, 0, s, kernel, &a, sizeof a);
}

static stk_emu_stream *another(void) {
    stk_emu_stream *s = NULL;
    cr_assert_eq(stk_emu_stream_create_with_priority(&s, 0, 0), 0);
    return s;
}

static void *device_word(void) {
    void *p = NULL;
    cr_assert_eq(stk_emu_malloc(&p, 4), 0);
    memset(p, 0, 4);
    return p;
}

Test(emu_stream, work_waits_until_somebody_asks_and_keeps_its_order) {
    stk_emu_stream *s = emu_start(1, 0);
    uint32_t *x = device_word();
    for (uint32_t i = 0; i < 5; i++) cr_assert_eq(launch(s, i % 2 ? triple : add_one, x), 0);
    cr_assert_eq(*x, 0);
    cr_assert_eq(stk_emu_stream_synchronize(s), 0);
    cr_assert_eq(*x, 13);
}

/* 0 -> (0 + 1) * 3 or 0 * 3 + 1. */
static uint32_t two_streams(uint64_t seed, bool with_event) {
    stk_emu_stream *a = emu_start(seed, 0), *b = another();
    stk_emu_event *e = NULL;
    uint32_t *x = device_word();
    cr_assert_eq(stk_emu_event_create_with_flags(&e, 0), 0);
    cr_assert_eq(launch(a, add_one, x), 0);
    cr_assert_eq(stk_emu_event_record(e, a), 0);
    if (with_event) cr_assert_eq(stk_emu_stream_wait_event(b, e, 0), 0);
    cr_assert_eq(launch(b, triple, x), 0);
    cr_assert_eq(stk_emu_event_destroy(e), 0);
    cr_assert_eq(stk_emu_device_synchronize(), 0);
    return *x;
}

Test(emu_stream, only_events_order_streams) {
    uint32_t n[4] = {0};
    for (uint64_t seed = 1; seed <= 20; seed++) {
        n[two_streams(seed, false)]++;
        cr_assert_eq(two_streams(seed, true), 3);
    }
    cr_assert(n[1] > 0 && n[3] > 0 && n[1] + n[3] == 20);
}

Test(emu_stream, pinned_memory_is_read_late_and_other_memory_at_once) {
    stk_emu_stream *s = emu_start(1, 0);
    uint32_t *dev = device_word(), *pinned = NULL, plain = 5;
    cr_assert_eq(stk_emu_host_alloc((void **)&pinned, 4, 0), 0);
    *pinned = 5;
    cr_assert_eq(stk_emu_memcpy_async(dev, &plain, 4, TO_DEVICE, s), 0);
    plain = 6;
    cr_assert_eq(stk_emu_stream_synchronize(s), 0);
    cr_assert_eq(*dev, 5);
    cr_assert_eq(stk_emu_memcpy_async(dev, pinned, 4, TO_DEVICE, s), 0);
    *pinned = 6;
    cr_assert_eq(stk_emu_stream_synchronize(s), 0);
    cr_assert_eq(*dev, 6);
    *dev = 7;
    cr_assert_eq(stk_emu_memcpy_async(pinned, dev, 4, TO_HOST, s), 0);
    cr_assert_eq(*pinned, 6);
    cr_assert_eq(stk_emu_memcpy_async(&plain, dev, 4, TO_HOST, s), 0);
    cr_assert_eq(plain, 7);
    cr_assert_eq(*pinned, 7); /* it was queued before */
}

Test(emu_stream, copies_know_where_memory_is) {
    stk_emu_stream *s = emu_start(1, 0);
    uint32_t *dev = device_word(), host = 0;
    cr_assert_eq(stk_emu_memcpy_async(dev, &host, 4, TO_HOST, s), STK_EMU_INVALID_VALUE);
    cr_assert_eq(stk_emu_memcpy_async(dev, &host, 8, TO_DEVICE, s), STK_EMU_INVALID_VALUE);
    cr_assert_eq(stk_emu_memset_async(&host, 0, 4, s), STK_EMU_INVALID_VALUE);
    cr_assert_eq(stk_emu_get_last_error(), STK_EMU_INVALID_VALUE);
    cr_assert_eq(stk_emu_get_last_error(), 0);
}

Test(emu_stream, an_event_that_waits_for_itself_is_reported) {
    stk_emu_stream *a = emu_start(1, 0), *b = another();
    stk_emu_event *e = NULL, *f = NULL;
    cr_assert_eq(stk_emu_event_create_with_flags(&e, 0) + stk_emu_event_create_with_flags(&f, 0), 0);
    cr_assert_eq(stk_emu_stream_wait_event(a, e, 0), 0); /* never recorded: no reason to wait */
    cr_assert_eq(stk_emu_stream_synchronize(a), 0);
    cr_assert_eq(stk_emu_event_record(f, b), 0);
    cr_assert_eq(stk_emu_event_record(e, a), 0);
    cr_assert_eq(stk_emu_device_synchronize(), 0);
    cr_assert_eq(stk_emu_event_query(e), 0);
}

static void count_up(void *ctx) { ++*(int *)ctx; }
static void calls_back(void *ctx) { *(int *)ctx = stk_emu_device_synchronize(); }

Test(emu_stream, host_functions_run_in_order_and_may_not_call_the_runtime) {
    stk_emu_stream *s = emu_start(1, 0);
    int n = 0, rc = 0;
    cr_assert_eq(stk_emu_launch_host_func(s, count_up, &n), 0);
    cr_assert_eq(stk_emu_launch_host_func(s, calls_back, &rc), 0);
    cr_assert_eq(n, 0);
    cr_assert_eq(stk_emu_stream_query(s), STK_EMU_NOT_READY); /* asking is progress */
    cr_assert_eq(n, 1);
    cr_assert_eq(stk_emu_stream_query(s), 0);
    cr_assert_eq(rc, STK_EMU_NOT_PERMITTED);
}

Test(emu_stream, injected_failures_come_when_asked_for_and_go) {
    stk_emu_stream *s = emu_start(1, 0), *t = NULL;
    stk_emu_event *e = NULL;
    void *p = NULL, *dev = device_word();
    stk_emu_fail_next(STK_EMU_FAIL_MALLOC, 1, 1, STK_EMU_MEMORY_ALLOCATION);
    cr_assert_eq(stk_emu_malloc(&p, 8), 0);
    cr_assert_eq(stk_emu_malloc(&p, 8), STK_EMU_MEMORY_ALLOCATION);
    cr_assert_null(p);
    cr_assert_eq(stk_emu_malloc(&p, 8), 0);
    stk_emu_fail_next(STK_EMU_FAIL_HOST_ALLOC, 0, 1, STK_EMU_MEMORY_ALLOCATION);
    cr_assert_eq(stk_emu_host_alloc(&p, 8, 0), STK_EMU_MEMORY_ALLOCATION);
    stk_emu_fail_next(STK_EMU_FAIL_COPY, 0, 2, STK_EMU_INVALID_VALUE);
    cr_assert_eq(stk_emu_memset_async(dev, 0, 4, s), STK_EMU_INVALID_VALUE);
    cr_assert_eq(stk_emu_memset_async(dev, 0, 4, s), STK_EMU_INVALID_VALUE);
    cr_assert_eq(stk_emu_memset_async(dev, 0, 4, s), 0);
    stk_emu_fail_next(STK_EMU_FAIL_LAUNCH, 0, 1, STK_EMU_INVALID_CONFIGURATION);
    cr_assert_eq(launch(s, add_one, dev), STK_EMU_INVALID_CONFIGURATION);
    stk_emu_fail_next(STK_EMU_FAIL_STREAM, 0, 1, STK_EMU_MEMORY_ALLOCATION);
    cr_assert_eq(stk_emu_stream_create_with_priority(&t, 0, 0), STK_EMU_MEMORY_ALLOCATION);
    stk_emu_fail_next(STK_EMU_FAIL_EVENT, 0, 1, STK_EMU_MEMORY_ALLOCATION);
    cr_assert_eq(stk_emu_event_create_with_flags(&e, 0), STK_EMU_MEMORY_ALLOCATION);
    cr_assert_eq(stk_emu_device_synchronize(), 0);
    cr_assert_not(stk_emu_lost());
}

Test(emu_stream, a_lost_device_stays_lost) {
    stk_emu_stream *s = emu_start(1, 0);
    void *p = NULL, *dev = device_word();
    stk_emu_fail_next(STK_EMU_FAIL_LOST, 0, 1, STK_EMU_ILLEGAL_ADDRESS);
    cr_assert_eq(launch(s, add_one, dev), 0);
    cr_assert_eq(stk_emu_stream_synchronize(s), STK_EMU_ILLEGAL_ADDRESS);
    cr_assert_eq(stk_emu_malloc(&p, 8), STK_EMU_ILLEGAL_ADDRESS);
    cr_assert_eq(stk_emu_get_last_error(), STK_EMU_ILLEGAL_ADDRESS);
    cr_assert_eq(stk_emu_get_last_error(), STK_EMU_ILLEGAL_ADDRESS);
    cr_assert(stk_emu_lost());
}
