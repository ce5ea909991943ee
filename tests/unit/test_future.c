/* future: next uses against a search forwards, in memory and in a store, over blocks; cuts; and what is refused. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "cache/future.h"
#include "tests/cache_model.h"

enum { N_LAYER = 3, N_EXPERT = 20 };

/* A store in memory that can be told to fail. */
typedef struct store {
    uint32_t *entries;
    uint64_t n, cap;
    int fail_after;
} store;

static int store_write(void *user, uint64_t at, const uint32_t *from, uint32_t n) {
    store *s = user;
    if (s->fail_after-- == 0) return STK_EIO;
    cr_assert_leq(at, s->n, "entries are written without gaps");
    if (n == 0) return 0;
    if (at + n > s->cap) s->entries = realloc(s->entries, (s->cap = 2 * (at + n)) * sizeof *from);
    memcpy(s->entries + at, from, n * sizeof *from);
    s->n = STK_MAX(s->n, at + n);
    return 0;
}

static int store_read(void *user, uint64_t at, uint32_t *to, uint32_t n) {
    store *s = user;
    if (s->fail_after-- == 0) return STK_EIO;
    if (n == 0) return 0;
    cr_assert_leq(at + n, s->n, "only what was written is read");
    memcpy(to, s->entries + at, n * sizeof *to);
    return 0;
}

static uint32_t layer_of(uint32_t i) { return i % N_LAYER; }
static bool is_cut(uint32_t i) { return i % 997 == 500; }

static void make_event(model_input *in, uint64_t *rng) { model_random_event(in, rng, N_EXPERT, 4, model_random(rng, 5)); }

/* The event that uses `key` first after event i, before a cut; empty events have no number. */
static void check(uint32_t n_event, const stk_future_store *s) {
    static model_input in;
    stk_future *f;
    stk_future_cursor *c;
    uint64_t rng = 3;
    uint32_t *want = malloc(sizeof *want * n_event * N_EXPERT), n_want = 0, numbered = 0;
    uint32_t *latest = malloc(sizeof *latest * N_LAYER * N_EXPERT);
    memset(latest, 0xff, sizeof *latest * N_LAYER * N_EXPERT);
    cr_assert_eq(stk_future_open(&f, N_LAYER, N_EXPERT, s), 0);
    for (uint32_t i = 0; i < n_event; i++) {
        make_event(&in, &rng);
        if (is_cut(i)) {
            stk_future_cut(f);
            memset(latest, 0xff, sizeof *latest * N_LAYER * N_EXPERT);
        }
        cr_assert_eq(stk_future_add(f, layer_of(i), &in.event), 0);
        for (uint32_t j = 0; j < in.event.n_distinct; j++) {
            uint32_t *place = &latest[layer_of(i) * N_EXPERT + in.distinct[j]];
            if (*place != UINT32_MAX) want[*place] = numbered;
            *place = n_want;
            want[n_want++] = STK_FUTURE_NEVER;
        }
        numbered += in.event.n_distinct > 0;
    }
    cr_assert_eq(stk_future_end(f), 0);
    for (int pass = 0; pass < 2; pass++) { /* a future may be read again */
        uint32_t n_seen = 0;
        rng = 3;
        cr_assert_eq(stk_future_cursor_open(&c, f), 0);
        for (uint32_t i = 0; i < n_event; i++) {
            const uint32_t *next;
            make_event(&in, &rng);
            cr_assert_eq(stk_future_next(c, in.event.n_distinct, &next), 0, "%s", stk_error_detail());
            cr_assert_eq(memcmp(next, want + n_seen, in.event.n_distinct * sizeof *next), 0, "event %u", i);
            n_seen += in.event.n_distinct;
        }
        const uint32_t *next;
        cr_assert_eq(stk_future_next(c, 0, &next), 0);
        cr_assert_eq(stk_future_next(c, 1, &next), STK_ESTATE);
        stk_future_cursor_close(&c);
    }
    stk_future_close(&f);
    free(want);
    free(latest);
}

Test(future, next_uses_as_a_search_finds_them) {
    static const uint32_t n_events[] = {0, 1, 2, 3000, 60000}; /* the last: several blocks */
    for (size_t i = 0; i < STK_ARRAY_LEN(n_events); i++) {
        store s = {.fail_after = -1};
        const stk_future_store ops = {store_write, store_read, &s};
        check(n_events[i], NULL);
        check(n_events[i], &ops);
        free(s.entries);
    }
}

Test(future, a_failing_store_is_passed_on) {
    static model_input in;
    for (int fail_after = 0; fail_after < 9; fail_after++) {
        store s = {.fail_after = fail_after};
        const stk_future_store ops = {store_write, store_read, &s};
        stk_future *f;
        stk_future_cursor *c = NULL;
        uint64_t rng = 3;
        int rc = 0;
        cr_assert_eq(stk_future_open(&f, N_LAYER, N_EXPERT, &ops), 0);
        for (uint32_t i = 0; rc == 0 && i < 30000; i++) {
            make_event(&in, &rng);
            rc = stk_future_add(f, layer_of(i), &in.event);
        }
        if (rc == 0) rc = stk_future_end(f);
        if (rc == 0) rc = stk_future_cursor_open(&c, f);
        rng = 3;
        for (uint32_t i = 0; rc == 0 && i < 30000; i++) {
            const uint32_t *next;
            make_event(&in, &rng);
            rc = stk_future_next(c, in.event.n_distinct, &next);
        }
        cr_assert_eq(rc, STK_EIO, "after %d calls", fail_after);
        stk_future_cursor_close(&c);
        stk_future_close(&f);
        free(s.entries);
    }
}

Test(future, what_does_not_fit_is_refused) {
    stk_future *f;
    stk_future_cursor *c;
    const uint16_t id = N_EXPERT;
    const stk_event bad = {.n_distinct = 1, .distinct = &id};
    cr_assert_eq(stk_future_open(&f, 1 << 15, 1 << 15, NULL), STK_EINVAL);
    cr_assert_eq(stk_future_open(&f, 0, 1, NULL), STK_EINVAL);
    cr_assert_eq(stk_future_open(&f, N_LAYER, N_EXPERT, NULL), 0);
    cr_assert_eq(stk_future_add(f, N_LAYER, &bad), STK_EINVAL);
    cr_assert_eq(stk_future_add(f, 0, &bad), STK_EINVAL);
    cr_assert_eq(stk_future_cursor_open(&c, f), STK_ESTATE);
    cr_assert_eq(stk_future_end(f), 0);
    cr_assert_eq(stk_future_add(f, 0, &(stk_event){0}), STK_EINVAL);
    stk_future_close(&f);
}

Test(future, other_events_than_those_of_the_first_pass_are_noticed) {
    const uint16_t ids[2] = {1, 2};
    const stk_event two = {.n_distinct = 2, .distinct = ids}, single = {.n_distinct = 1, .distinct = ids};
    const uint32_t *next;
    stk_future *f;
    stk_future_cursor *c;
    cr_assert_eq(stk_future_open(&f, 1, 4, NULL), 0);
    cr_assert_eq(stk_future_add(f, 0, &two), 0);
    cr_assert_eq(stk_future_add(f, 0, &single), 0);
    cr_assert_eq(stk_future_add(f, 0, &two), 0);
    cr_assert_eq(stk_future_end(f), 0);
    cr_assert_eq(stk_future_cursor_open(&c, f), 0);
    for (int i = 0; i < 2; i++) cr_assert_eq(stk_future_next(c, 1, &next), 0);
    cr_assert_eq(stk_future_next(c, 1, &next), STK_ESTATE, "the third lookup is said to be used at event 2");
    stk_future_cursor_close(&c);
    stk_future_close(&f);
}
