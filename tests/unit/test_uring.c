/* uring: registration, refusal by the system, interruption. What all backends share is in test_io.c. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "io_fixture.h"
#include "src/mem.h"

enum { BYTES = 200000 };

/* Makes a system call fail in this process, as the filter of a container does. */
static bool forbid(uint32_t syscall_number, uint32_t errnum) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, syscall_number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | errnum),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {STK_ARRAY_LEN(code), code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Reads the whole file by `spec`; 0 when all is well, else a number that says what is not. */
static int read_file(const char *spec, const char *path, const char *name, void *buffer, uint64_t buffer_bytes,
                     unsigned char *dst) {
    stk_io *io = NULL;
    stk_io_options options = {
        .spec = spec, .n_file = 1, .paths = &path, .piece_bytes = 16384, .buffer = buffer, .buffer_bytes = buffer_bytes};
    if (stk_io_open(&io, &options) != 0) return 20;
    bool named = strcmp(stk_io_name(io), name) == 0;
    stk_io_read read = {.bytes = stk_align_up(BYTES, stk_io_align(io, 0)), .dst = dst};
    bool ok = stk_io_submit(io, STK_IO_DEMAND, &read, 1) == 0;
    while (ok && stk_io_in_flight(io)) {
        stk_io_done done;
        ok = stk_io_reap(io, &done, 1, true) == 1 && done.status == 0;
    }
    stk_io_close(&io);
    if (!named) return 21;
    return ok && is_content(dst, 0, read.bytes, BYTES) ? 0 : 22;
}

/* Runs `body` in a child, where limits and filters may be set that cannot be taken back. */
static void in_child(int (*body)(const char *path)) {
    char path[TEMP_PATH];
    make_file(path, temp_dir(), BYTES);
    chmod(path, 0644);
    pid_t pid = fork();
    if (pid == 0) _exit(body(path));
    int status = 0;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    unlink(path);
    cr_assert(WIFEXITED(status), "child died of signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) == 77) cr_skip_test("seccomp filters are not allowed here");
    cr_assert_eq(WEXITSTATUS(status), 0, "child says %d", WEXITSTATUS(status));
}

static void skip_if_refused(void) {
    stk_io_backend ring;
    if (stk_io_uring_open(&ring, &(stk_io_setup){.depth = 1}) != 0) cr_skip_test("%s", stk_error_detail());
    ring.ops->close(ring.state);
}

/* auto reads all the same and says so once; uring is an error that tells why. */
static int expect_fallback(const char *path, const char *why) {
    log_lines lines = {0};
    stk_log_set(count_line, &lines);
    unsigned char *dst = aligned_alloc(4096, 204800);
    int rc = read_file("auto", path, "pread", dst, 204800, dst);
    free(dst);
    if (rc) return rc;
    if (lines.n != 1 || !strstr(lines.last, "reading with pread") || !strstr(lines.last, why)) return 11;
    stk_io *io = NULL;
    if (stk_io_open(&io, &(stk_io_options){.spec = "uring", .n_file = 1, .paths = &path}) != STK_EUNSUPPORTED || io) return 12;
    return strstr(stk_error_detail(), why) && strstr(stk_error_detail(), "seccomp") ? 0 : 13;
}

static int setup_refused(const char *path) {
    return forbid(SYS_io_uring_setup, EPERM) ? expect_fallback(path, "Operation not permitted") : 77;
}

static int setup_unknown(const char *path) {
    return forbid(SYS_io_uring_setup, ENOSYS) ? expect_fallback(path, "Function not implemented") : 77;
}

static int enter_refused(const char *path) {
    return forbid(SYS_io_uring_enter, EPERM) ? expect_fallback(path, "Operation not permitted") : 77;
}

Test(uring, a_filter_on_setup_makes_auto_fall_back) { in_child(setup_refused); }
Test(uring, a_kernel_without_it_makes_auto_fall_back) { in_child(setup_unknown); }
Test(uring, a_filter_on_enter_makes_auto_fall_back) {
    skip_if_refused();
    in_child(enter_refused);
}

static int register_refused(const char *path) {
    if (!forbid(SYS_io_uring_register, EPERM)) return 77;
    unsigned char *dst = aligned_alloc(4096, 204800);
    int rc = read_file("uring", path, "uring", dst, 204800, dst);
    free(dst);
    return rc;
}

Test(uring, nothing_needs_to_be_registered) {
    skip_if_refused();
    in_child(register_refused);
}

static int little_lockable_memory(const char *path) {
    struct rlimit little = {128 << 10, 128 << 10}; /* enough for a ring, not for the buffer */
    if (setrlimit(RLIMIT_MEMLOCK, &little) != 0 || (getuid() == 0 && setuid(65534) != 0)) return 10;
    log_lines lines = {0};
    stk_log_set(count_line, &lines);
    unsigned char *dst = aligned_alloc(4096, 204800);
    int rc = read_file("uring", path, "uring", dst, 204800, dst);
    free(dst);
    return rc ? rc : lines.n ? 11 : 0;
}

Test(uring, without_lockable_memory_it_is_quiet_and_reads) {
    skip_if_refused();
    in_child(little_lockable_memory);
}

/* Inside the registered buffer, outside of it, and across its end. */
Test(uring, memory_in_and_out_of_the_registered_buffer) {
    skip_if_refused();
    char path[TEMP_PATH];
    make_file(path, temp_dir(), BYTES);
    unsigned char *arena = aligned_alloc(4096, 3 * 204800);
    memset(arena, 0, 3 * 204800);
    for (uint64_t at = 0; at <= 2 * 204800; at += 4096 * 5)
        cr_assert_eq(read_file("uring", path, "uring", arena + 204800, 204800, arena + at), 0, "at %lu", at);
    free(arena);
    unlink(path);
}

/* More than one chunk of 1 GiB: pieces in the second, and one across both. */
Test(uring, a_buffer_of_several_chunks) {
    skip_if_refused();
    if (stk_mem_available() < 4ull << 30) cr_skip_test("less than 4 GiB of memory are available");
    if (SANITIZED) cr_skip_test("too much memory for a sanitizer");
    char path[TEMP_PATH];
    make_file(path, temp_dir(), BYTES);
    stk_map map;
    cr_assert_eq(stk_map_open(&map, (1u << 30) + (2u << 20), false, "buffer"), 0, "%s", stk_error_detail());
    unsigned char *second = (unsigned char *)map.base + (1u << 30);
    cr_assert_eq(read_file("uring", path, "uring", map.base, map.bytes, second), 0);
    cr_assert_eq(read_file("uring", path, "uring", map.base, map.bytes, second - 8192), 0);
    stk_map_close(&map);
    unlink(path);
}

static void ignore(int sig) { (void)sig; }

/* A read of an empty pipe never ends by itself: a signal ends the wait, a cancellation the read. */
Test(uring, a_signal_ends_the_wait_and_a_cancel_the_read, .timeout = 20) {
    skip_if_refused();
    int fds[2];
    cr_assert_eq(pipe(fds), 0);
    stk_io_file file = {.fd = fds[0]};
    stk_io_backend ring;
    cr_assert_eq(stk_io_uring_open(&ring, &(stk_io_setup){.files = &file, .n_file = 1, .depth = 4}), 0);
    char data[16];
    stk_io_piece piece = {.fd = fds[0], .dst = data, .bytes = 16}, *done[4];
    ring.ops->submit(ring.state, (stk_io_piece *[]){&piece}, 1);
    cr_assert_eq(ring.ops->reap(ring.state, done, false), 0);

    struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_usec = 50000}}, NULL);
    cr_assert_eq(ring.ops->reap(ring.state, done, true), 0);

    ring.ops->cancel(ring.state, &piece);
    cr_assert_eq(ring.ops->reap(ring.state, done, true), 1);
    cr_assert_eq(done[0], &piece);
    cr_assert_eq(piece.res, -ECANCELED);
    ring.ops->close(ring.state);
    close(fds[0]);
    close(fds[1]);
}
