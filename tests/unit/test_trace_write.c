/* trace_write: what is written comes back; failures of the disk and of the caller. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/alloc_count.h"
#include "tests/temp.h"
#include "tests/trace_random.h"
#include "traces/trace_format.h"

static trace_input t, again;

static stk_trace_writer *open_writer(const char *path) {
    stk_trace_writer *w;
    cr_assert_eq(stk_trace_writer_open(&w, path, &t.header), 0, "%s", stk_error_detail());
    return w;
}

static void write_ok(stk_trace_writer *w, const stk_trace_record *record) {
    cr_assert_eq(stk_trace_write(w, record), 0, "%s", stk_error_detail());
}

Test(trace_write, random_records_come_back) {
    for (uint64_t seed = 1; seed <= 12; seed++) {
        enum { N = 400 };
        tr_header(&t, seed);
        tr_header(&again, seed);
        stk_trace_writer *w = open_writer(tr_path());
        for (uint32_t i = 0; i < N; i++) write_ok(w, tr_next(&t, i));
        write_ok(w, tr_end(&t));
        cr_assert_eq(stk_trace_writer_close(&w), 0);
        cr_assert_null(w);

        stk_trace_reader *r;
        stk_trace_record got;
        uint64_t done, total;
        cr_assert_eq(stk_trace_reader_open(&r, tr_path()), 0, "%s", stk_error_detail());
        cr_assert(tr_same_header(stk_trace_reader_header(r), &t.header));
        for (uint32_t i = 0; i < N; i++) {
            cr_assert_eq(stk_trace_read(r, &got), 1, "%s", stk_error_detail());
            cr_assert(tr_same(&got, tr_next(&again, i)), "seed %lu, record %u", (unsigned long)seed, i);
        }
        cr_assert_eq(stk_trace_read(r, &got), 1);
        cr_assert(tr_same(&got, tr_end(&again)));
        cr_assert_eq(stk_trace_read(r, &got), 0);
        cr_assert_eq(stk_trace_read(r, &got), 0);
        cr_assert_not(stk_trace_reader_cut(r));
        stk_trace_reader_progress(r, &done, &total);
        cr_assert(done == total && total > 10000);
        stk_trace_reader_close(&r);
    }
}

/* The events of a long step spread over several frames; each frame stands by itself. */
Test(trace_write, a_step_goes_on_in_the_next_frame) {
    tr_header(&t, 1);
    stk_trace_writer *w = open_writer(tr_path());
    tr_step(&t, 7, TR_BATCH);
    write_ok(w, &t.record);
    for (uint32_t i = 0; i < 40; i++) {
        tr_event(&t, i % TR_LAYER, TR_K, TR_TOP, TR_OTHER, false);
        write_ok(w, &t.record);
    }
    cr_assert_eq(stk_trace_writer_close(&w), 0);
    stk_trace_reader *r;
    stk_trace_record got;
    cr_assert_eq(stk_trace_reader_open(&r, tr_path()), 0);
    uint64_t done, total, n_frame = 0, last = 0;
    for (uint32_t i = 0; i < 41; i++) {
        cr_assert_eq(stk_trace_read(r, &got), 1);
        cr_assert_eq(got.kind, i ? STK_TRACE_EVENT : STK_TRACE_STEP);
        stk_trace_reader_progress(r, &done, &total);
        n_frame += done != last;
        last = done;
    }
    cr_assert(n_frame >= 3);
    cr_assert(tr_same(&got, &t.record));
    cr_assert_eq(stk_trace_read(r, &got), 0);
    cr_assert(stk_trace_reader_cut(r), "there is no END record");
    stk_trace_reader_close(&r);
}

Test(trace_write, what_a_reader_would_refuse_is_refused) {
    tr_header(&t, 1);
    stk_trace_writer *w = open_writer(tr_path());
    stk_trace_record bad;
    tr_event(&t, 0, TR_K, TR_TOP, TR_NORMED, false);
    cr_assert_eq(stk_trace_write(w, &t.record), STK_EINVAL, "an event before any step");
    bad = (stk_trace_record){.kind = STK_TRACE_STEP, .step = {.n_tok = TR_BATCH + 1}};
    cr_assert_eq(stk_trace_write(w, &bad), STK_EINVAL);
    bad.step.n_tok = 0;
    cr_assert_eq(stk_trace_write(w, &bad), STK_EINVAL);
    tr_step(&t, 3, 2);
    write_ok(w, &t.record);
    tr_event(&t, 0, TR_K, TR_TOP, TR_NORMED, false);
    const stk_trace_record good = t.record;
#define REFUSED(change)                                                                                                          \
    do {                                                                                                                         \
        bad = good;                                                                                                              \
        change;                                                                                                                  \
        cr_assert_eq(stk_trace_write(w, &bad), STK_EINVAL, #change);                                                             \
    } while (0)
    REFUSED(bad.event.step = 4);
    REFUSED(bad.event.n_tok = 1);
    REFUSED(bad.event.layer = TR_LAYER);
    REFUSED(bad.event.k = 0);
    REFUSED(bad.event.k = TR_K + 1);
    REFUSED(bad.event.n_expert = TR_EXPERT + 1);
    REFUSED(bad.event.n_top = TR_EXPERT + 1);
    REFUSED(bad.event.n_expert = good.event.ids[0]; bad.event.k = bad.event.n_top = 1);
    REFUSED(bad.kind = STK_TRACE_DROP; bad.drop_key = TR_LAYER * TR_EXPERT);
    REFUSED(bad.kind = (enum stk_trace_kind)77);
#undef REFUSED
    write_ok(w, &good);
    write_ok(w, tr_end(&t));
    cr_assert_eq(stk_trace_write(w, &good), STK_ESTATE);
    cr_assert_eq(stk_trace_writer_close(&w), 0);
    t.header.n_layer = 0;
    cr_assert_eq(stk_trace_writer_open(&w, tr_path(), &t.header), STK_EINVAL);
    cr_assert_null(w);
    cr_assert_not_null(strstr(stk_error_detail(), tr_path()));
    cr_assert_eq(stk_trace_writer_close(&w), 0);
}

/* ---- Failing disks ------------------------------------------------------------------------------------------------------ */

/* Writes until it fails, at most n events; the same error must come from every later call and from close. */
static int write_until_failure(stk_trace_writer *w, uint32_t n) {
    tr_step(&t, 1, TR_BATCH);
    int rc = stk_trace_write(w, &t.record);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        tr_event(&t, 0, TR_K, TR_TOP, TR_OTHER, false);
        rc = stk_trace_write(w, &t.record);
    }
    if (rc < 0) {
        char first[512];
        snprintf(first, sizeof first, "%s", stk_error_detail());
        cr_assert_eq(stk_trace_write(w, &t.record), rc);
        cr_assert_str_eq(stk_error_detail(), first);
    }
    int closed = stk_trace_writer_close(&w);
    cr_assert(rc == 0 || closed == rc);
    cr_assert_null(w);
    return closed;
}

Test(trace_write, a_full_device_is_reported) {
    tr_header(&t, 1);
    stk_trace_writer *w;
    cr_assert_eq(stk_trace_writer_open(&w, "/dev/full", &t.header), STK_ENOSPC);
    cr_assert_not_null(strstr(stk_error_detail(), "/dev/full"));
    cr_assert_null(w);
    cr_assert_eq(stk_trace_writer_open(&w, "/no/such/folder/trace", &t.header), STK_EIO);
    cr_assert_not_null(strstr(stk_error_detail(), "/no/such/folder/trace"));
}

Test(trace_write, a_file_size_limit_is_reported_and_raises_no_signal) {
    tr_header(&t, 1);
    stk_trace_writer *w = open_writer(tr_path());
    const struct rlimit limit = {300 << 10, RLIM_INFINITY};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(write_until_failure(w, 1000), STK_EIO);
    cr_assert_not_null(strstr(stk_error_detail(), "File too large"));
    stk_trace_reader *r;
    stk_trace_record got;
    uint32_t n = 0;
    cr_assert_eq(stk_trace_reader_open(&r, tr_path()), 0);
    while (stk_trace_read(r, &got) == 1) n++;
    cr_assert(n > 10 && stk_trace_reader_cut(r), "what was written before is readable");
    stk_trace_reader_close(&r);
}

Test(trace_write, two_runs_do_not_share_a_file) {
    char path[TEMP_PATH];
    stk_trace_writer *second;
    tr_header(&t, 1);
    stk_trace_writer *first = open_writer(temp_file(path, "stoker-trace"));
    struct stat before, after;
    stat(path, &before);
    cr_assert_eq(stk_trace_writer_open(&second, path, &t.header), STK_ESTATE);
    cr_assert(strstr(stk_error_detail(), "another run is writing it"), "%s", stk_error_detail());
    stat(path, &after);
    cr_assert(before.st_size == after.st_size && after.st_size > 0, "the first one's file was touched");
    cr_assert_eq(stk_trace_writer_close(&first), 0);
    first = open_writer(path);
    cr_assert_eq(stk_trace_writer_close(&first), 0);
    unlink(path);
}

Test(trace_write, a_full_disk_is_reported) {
    char dir[TEMP_PATH], path[TEMP_PATH + 8];
    tr_header(&t, 1);
    if (mount("none", temp_make_dir(dir, "stoker-full"), "tmpfs", 0, "size=256k") < 0) {
        rmdir(dir);
        cr_skip_test("a tmpfs cannot be mounted here");
    }
    snprintf(path, sizeof path, "%s/trace", dir);
    int rc = write_until_failure(open_writer(path), 1000);
    umount(dir);
    rmdir(dir);
    cr_assert_eq(rc, STK_ENOSPC);
    cr_assert_not_null(strstr(stk_error_detail(), path));
}

Test(trace_write, a_closed_pipe_is_reported_and_raises_no_signal) {
    int fd[2];
    char path[64];
    signal(SIGPIPE, SIG_DFL);
    cr_assert_eq(pipe(fd), 0);
    fcntl(fd[1], F_SETPIPE_SZ, 1 << 20);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd[1]);
    tr_header(&t, 1);
    stk_trace_writer *w = open_writer(path);
    close(fd[0]);
    cr_assert_eq(write_until_failure(w, 100), STK_EIO);
    cr_assert_not_null(strstr(stk_error_detail(), "Broken pipe"));
    sigset_t pending;
    sigpending(&pending);
    cr_assert_not(sigismember(&pending, SIGPIPE));
    close(fd[1]);
}

/* A frame is written at the latest with the first record that comes a second after it was begun. */
Test(trace_write, a_slow_run_is_on_disk_after_a_second) {
    tr_header(&t, 1);
    stk_trace_writer *w = open_writer(tr_path());
    struct stat before, after;
    stat(tr_path(), &before);
    tr_step(&t, 1, 1);
    write_ok(w, &t.record);
    write_ok(w, &t.record);
    stat(tr_path(), &after);
    cr_assert_eq(after.st_size, before.st_size);
    usleep(1010000);
    write_ok(w, &t.record);
    stat(tr_path(), &after);
    cr_assert_gt(after.st_size, before.st_size);
    cr_assert_eq(stk_trace_writer_close(&w), 0);
}

Test(trace_write, a_steady_run_allocates_nothing) {
    if (!ALLOC_COUNTED) cr_skip_test("the sanitizer has its own malloc");
    tr_header(&t, 1);
    stk_trace_writer *w = open_writer(tr_path());
    int rc = 0;
    uint64_t before = atomic_load_explicit(&alloc_count, memory_order_relaxed);
    for (uint32_t i = 0; i < 3000; i++) rc |= stk_trace_write(w, tr_next(&t, i)); /* frames of many sizes */
    rc |= stk_trace_write(w, tr_end(&t));
    uint64_t after = atomic_load_explicit(&alloc_count, memory_order_relaxed);
    cr_assert_eq(rc, 0);
    cr_assert_gt(before, 0);
    cr_assert_eq(after, before);
    cr_assert_eq(stk_trace_writer_close(&w), 0);
}
