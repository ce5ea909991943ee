/* emu: completions keep to the drive model in real time. Only lower bounds are asserted: a loaded machine may be late, never
 * early. */
#include <signal.h>
#include <sys/time.h>

#include "io_fixture.h"

enum { SLOT = 65536, N = 16 };

typedef struct fixture {
    char path[TEMP_PATH];
    stk_io *io;
    unsigned char *arena;
} fixture;

static fixture emu_open(const char *spec, uint32_t depth) {
    fixture f;
    make_file(f.path, temp_dir(), N * SLOT);
    f.io = open_one(spec, f.path, depth, 0);
    f.arena = aligned_alloc(4096, N * SLOT);
    cr_assert_str_eq(stk_io_name(f.io), "emu");
    return f;
}

static void emu_close(fixture *f) {
    stk_io_close(&f->io);
    free(f->arena);
    unlink(f->path);
}

static void submit_all(fixture *f) {
    for (uint64_t i = 0; i < N; i++) {
        stk_io_read read = {.offset = i * SLOT, .bytes = SLOT, .dst = f->arena + i * SLOT, .tag = i};
        cr_assert_eq(stk_io_submit(f->io, STK_IO_DEMAND, &read, 1), 0);
    }
}

Test(emu, completions_are_not_early) {
    fixture f = emu_open("emu:20M,30ms", N); /* 30 ms, then 3.28 ms each */
    uint64_t start = stk_now_ns();
    submit_all(&f);
    stk_io_done done;
    cr_assert_eq(stk_io_reap(f.io, &done, 1, false), 0);
    for (uint64_t i = 0; i < N; i++) {
        cr_assert_eq(stk_io_reap(f.io, &done, 1, true), 1);
        cr_assert_eq(done.tag, i);
        cr_assert_geq(stk_now_ns() - start, 30000000 + (i + 1) * 3276800);
    }
    stk_io_counters counters;
    stk_io_get_counters(f.io, &counters);
    cr_assert_geq(counters.busy_ns, 30000000 + N * 3276800);
    cr_assert(is_content(f.arena, 0, N * SLOT, N * SLOT));
    emu_close(&f);
}

/* A drive of a TB/s without latency is quicker than any real read. */
Test(emu, reads_later_than_the_model_are_counted) {
    fixture f = emu_open("emu:1000G,0us", N);
    submit_all(&f);
    cr_assert_eq(reap_all(f.io, 0), N);
    stk_io_counters counters;
    stk_io_get_counters(f.io, &counters);
    cr_assert_eq(counters.n_late, N);
    emu_close(&f);
}

/* Reads are spread over 400 ms of model time, so that neither load nor sleep can change their order. */
static void order_of(const char *spec, uint64_t *tags) {
    fixture f = emu_open(spec, N);
    submit_all(&f);
    for (uint64_t i = 0; i < N; i++) {
        stk_io_done done;
        cr_assert_eq(stk_io_reap(f.io, &done, 1, true), 1);
        tags[i] = done.tag;
    }
    emu_close(&f);
}

Test(emu, reorder_is_seeded) {
    uint64_t a[N], b[N], c[N];
    order_of("emu:2G,100ms,reorder,seed=1", a);
    order_of("emu:2G,100ms,reorder,seed=1", b);
    order_of("emu:2G,100ms,reorder,seed=2", c);
    cr_assert_arr_eq(a, b, sizeof a);
    cr_assert_neq(memcmp(a, c, sizeof a), 0);
    uint32_t n_moved = 0;
    for (uint64_t i = 0; i < N; i++) n_moved += a[i] != i;
    cr_assert_gt(n_moved, N / 2);
}

Test(emu, faults_of_the_text_are_injected) {
    fixture f = emu_open("emu:2G,20us,eio=5,short=9", 4);
    submit_all(&f);
    uint32_t n_ok = 0;
    while (stk_io_in_flight(f.io)) {
        stk_io_done done;
        cr_assert_eq(stk_io_reap(f.io, &done, 1, true), 1);
        cr_assert_eq(done.status, done.tag == 4 ? STK_EIO : 0);
        n_ok += done.status == 0;
    }
    cr_assert_eq(n_ok, N - 1);
    cr_assert(is_content(f.arena, 0, 4 * SLOT, N * SLOT) && is_content(f.arena + 5 * SLOT, 5 * SLOT, (N - 5) * SLOT, N * SLOT));
    emu_close(&f);
}

/* Every second read is a prefetch, the third of which fails. */
Test(emu, a_read_ahead_can_be_the_one_that_fails) {
    fixture f = emu_open("emu:2G,20us,eio-ahead=3", 4);
    for (uint64_t i = 0; i < N; i++) {
        stk_io_read read = {.offset = i * SLOT, .bytes = SLOT, .dst = f.arena + i * SLOT, .tag = i};
        cr_assert_eq(stk_io_submit(f.io, i % 2 ? STK_IO_PREFETCH : STK_IO_DEMAND, &read, 1), 0);
    }
    while (stk_io_in_flight(f.io)) {
        stk_io_done done;
        cr_assert_eq(stk_io_reap(f.io, &done, 1, true), 1);
        cr_assert_eq(done.status, done.tag == 5 ? STK_EIO : 0);
    }
    emu_close(&f);
}

static void ignore(int sig) { (void)sig; }

Test(emu, a_signal_ends_the_wait_and_close_does_not_wait_for_the_model, .timeout = 30) {
    fixture f = emu_open("emu:1G,3000000ms", N);
    submit_all(&f);
    struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_usec = 100000}}, NULL);
    stk_io_done done;
    cr_assert_eq(stk_io_reap(f.io, &done, 1, true), 0);
    cr_assert_eq(stk_io_in_flight(f.io), N);
    emu_close(&f);
}
