/* pread: the pool of readers as a backend. What all backends share is in test_io.c. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/time.h>

#include "io_fixture.h"

static stk_io_backend pool_open(uint32_t depth) {
    stk_io_backend pool;
    cr_assert_eq(stk_io_pread_open(&pool, &(stk_io_setup){.depth = depth}), 0, "%s", stk_error_detail());
    return pool;
}

static uint32_t count_threads(const char *name) {
    DIR *dir = opendir("/proc/self/task");
    uint32_t n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[300], comm[64] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        if (fgets(comm, sizeof comm, f)) n += strncmp(comm, name, strlen(name)) == 0;
        fclose(f);
    }
    closedir(dir);
    return n;
}

Test(pread, readers_are_few_and_named_and_end) {
    stk_io_backend pool = pool_open(128);
    cr_assert_eq(count_threads("stk-read-"), 8);
    pool.ops->close(pool.state);
    cr_assert_eq(count_threads("stk-read-"), 0);
    pool = pool_open(3);
    cr_assert_eq(count_threads("stk-read-"), 3);
    pool.ops->close(pool.state);
}

Test(pread, a_result_comes_back_as_it_is) {
    char path[TEMP_PATH];
    make_file(path, temp_dir(), 1000);
    int fd = open(path, O_RDONLY);
    unsigned char data[100];
    stk_io_piece good = {.fd = fd, .dst = (char *)data, .offset = 950, .bytes = 100},
                 bad = {.fd = -1, .dst = (char *)data, .bytes = 1};
    stk_io_backend pool = pool_open(2);
    pool.ops->submit(pool.state, (stk_io_piece *[]){&good, &bad}, 2);
    stk_io_piece *done[2];
    for (int n = 0, got; n < 2; n += got) cr_assert_gt(got = pool.ops->reap(pool.state, done, true), 0);
    cr_assert_eq(good.res, 50);
    cr_assert_eq(bad.res, -EBADF);
    cr_assert(is_content(data, 950, 50, 1000));
    pool.ops->close(pool.state);
    close(fd);
    unlink(path);
}

static void ignore(int sig) { (void)sig; }

/* With nothing submitted, only the signal can end the wait; the handler asks for restarting, which a wait must not do. */
Test(pread, a_signal_ends_the_wait, .timeout = 20) {
    stk_io_backend pool = pool_open(4);
    struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_usec = 50000}}, NULL);
    stk_io_piece *done[4];
    cr_assert_eq(pool.ops->reap(pool.state, done, true), 0);
    pool.ops->close(pool.state);
}

Test(pread, a_limited_wait_ends, .timeout = 20) {
    stk_io_backend pool = pool_open(4);
    stk_io_piece *done[4];
    uint64_t before = stk_now_ns();
    cr_assert_eq(stk_io_pread_reap(pool.state, done, 20000000), 0);
    cr_assert_geq(stk_now_ns() - before, 20000000);
    pool.ops->close(pool.state);
}
