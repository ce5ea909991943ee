/*
 * out_file: a ring of buffers. The caller fills one while the others are being written; offsets and lengths are multiples of
 * 4 KiB but for the last write, which is filled up with zeros and cut off at the end.
 */
#include "out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "mem.h"

enum { N_BUFFER = 4, BUFFER_BYTES = 8 << 20, BLOCK_BYTES = 4096 };

typedef struct write_op {
    uint64_t offset;
    uint32_t bytes; /* 0: not in flight */
} write_op;

struct stk_out_file {
    int fd;
    int error; /* of the first failure */
    bool has_ring, committed;
    char *path, *temporary;
    uint64_t total_bytes, n_put;
    struct io_uring ring;
    uint8_t *buffers; /* [N_BUFFER][BUFFER_BYTES] */
    write_op ops[N_BUFFER];
    uint32_t current, fill; /* the buffer being filled, and how far */
};

/* ---- Calls that may meet a file-size limit ------------------------------------------------------------------------------- */

/* SIGXFSZ is held back between these two, and taken off where the call between them raised it. */
typedef struct quiet {
    sigset_t before;
    bool was_pending;
} quiet;

static void quiet_begin(quiet *q) {
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    sigpending(&pending);
    q->was_pending = sigismember(&pending, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &set, &q->before);
}

static void quiet_end(const quiet *q, int errnum) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    if (errnum == EFBIG && !q->was_pending)
        while (sigtimedwait(&set, NULL, &(struct timespec){0, 0}) < 0 && errno == EINTR) {
        }
    pthread_sigmask(SIG_SETMASK, &q->before, NULL);
}

/* Returns 0 or an errno. */
static int reserve(int fd, uint64_t bytes) {
    quiet q;
    int errnum;
    quiet_begin(&q);
    do errnum = fallocate(fd, 0, 0, (off_t)bytes) == 0 ? 0 : errno;
    while (errnum == EINTR);
    quiet_end(&q, errnum);
    return errnum == EOPNOTSUPP || errnum == ENOSYS ? 0 : errnum;
}

static int write_plain(int fd, const uint8_t *data, uint64_t bytes, uint64_t offset) {
    while (bytes) {
        quiet q;
        quiet_begin(&q);
        ssize_t n = pwrite(fd, data, bytes, (off_t)offset);
        int errnum = n < 0 ? errno : 0;
        quiet_end(&q, errnum);
        if (errnum == EINTR) continue;
        if (errnum) return errnum;
        data += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* ---- Open --------------------------------------------------------------------------------------------------------------- */

static int find_target(stk_out_file *f, const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) {
        f->path = strdup(path);
        return f->path ? STK_OK : stk_fail(STK_ENOMEM, "%s: out of memory", path);
    }
    if (!S_ISREG(st.st_mode)) return stk_fail(STK_EINVAL, "%s: not a regular file; a file is to be written there", path);
    f->path = realpath(path, NULL);
    return f->path ? STK_OK : stk_fail_errno(errno, "%s", path);
}

/* Creates the temporary file: direct where the file system knows that. */
static int create(stk_out_file *f) {
    size_t n = strlen(f->path) + sizeof ".-2147483648.part";
    f->temporary = malloc(n);
    if (!f->temporary) return stk_fail(STK_ENOMEM, "%s: out of memory", f->path);
    snprintf(f->temporary, n, "%s.%d.part", f->path, (int)getpid());
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    f->fd = open(f->temporary, flags | O_DIRECT, 0666);
    if (f->fd < 0 && errno == EINVAL) {
        (void)unlink(f->temporary); /* some file systems create the file and then refuse the flag */
        f->fd = open(f->temporary, flags, 0666);
        if (f->fd >= 0) stk_log(STK_LOG_INFO, "%s: the file system takes no direct writes; the page cache will fill up", f->path);
    }
    if (f->fd >= 0) return STK_OK;
    int rc = stk_fail_errno(errno, "cannot create %s", f->temporary);
    free(f->temporary);
    f->temporary = NULL;
    return rc;
}

static int check_space(const stk_out_file *f) {
    struct statvfs vfs;
    char need[32], have[32];
    if (fstatvfs(f->fd, &vfs) != 0) return stk_fail_errno(errno, "%s", f->path);
    uint64_t free_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    if (f->total_bytes <= free_bytes) return STK_OK;
    return stk_fail(STK_ENOSPC, "%s: %s are needed, but only %s are free there", f->path, stk_bytes_text(f->total_bytes, need),
                    stk_bytes_text(free_bytes, have));
}

static int open_file(stk_out_file *f, const char *path) {
    if (f->total_bytes > INT64_MAX - BUFFER_BYTES) return stk_fail(STK_EINVAL, "%s: too many bytes for a file", path);
    STK_TRY(find_target(f, path));
    STK_TRY(create(f));
    STK_TRY(check_space(f));
    int errnum = f->total_bytes ? reserve(f->fd, f->total_bytes) : 0;
    if (errnum) return stk_fail_errno(errnum, "%s: reserving %" PRIu64 " bytes", f->path, f->total_bytes);
    f->buffers = aligned_alloc(BLOCK_BYTES, (size_t)N_BUFFER * BUFFER_BYTES);
    if (!f->buffers) return stk_fail(STK_ENOMEM, "%s: out of memory for buffers", f->path);
    f->has_ring = io_uring_queue_init(N_BUFFER, &f->ring, 0) == 0;
    return STK_OK;
}

int stk_out_file_open(stk_out_file **out, const char *path, uint64_t total_bytes) {
    stk_out_file *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return stk_fail(STK_ENOMEM, "%s: out of memory", path);
    f->fd = -1;
    f->total_bytes = total_bytes;
    int rc = open_file(f, path);
    if (rc < 0)
        stk_out_file_close(&f);
    else
        *out = f;
    return rc;
}

/* ---- Writing ------------------------------------------------------------------------------------------------------------ */

static int fail(stk_out_file *f, int errnum, uint64_t offset) {
    f->error = stk_fail_errno(errnum, "%s: writing at byte %" PRIu64, f->path, offset);
    return f->error;
}

static uint8_t *buffer_of(const stk_out_file *f, uint32_t i) { return f->buffers + (size_t)i * BUFFER_BYTES; }

/* Takes one completion; what a short write left over is written here. */
static int reap(stk_out_file *f) {
    struct io_uring_cqe *cqe;
    int rc;
    do rc = io_uring_wait_cqe(&f->ring, &cqe);
    while (rc == -EINTR);
    if (rc < 0) return fail(f, -rc, f->n_put);
    uint32_t i = (uint32_t)io_uring_cqe_get_data64(cqe);
    int res = cqe->res;
    io_uring_cqe_seen(&f->ring, cqe);
    write_op op = f->ops[i];
    f->ops[i].bytes = 0;
    if (res == -EINTR || res == -EAGAIN) res = 0;
    int errnum = res < 0 ? -res : 0;
    if (!errnum && (uint32_t)res < op.bytes)
        errnum = write_plain(f->fd, buffer_of(f, i) + res, op.bytes - (uint32_t)res, op.offset + (uint32_t)res);
    return errnum ? fail(f, errnum, op.offset) : STK_OK;
}

static int submit(stk_out_file *f, uint32_t i) {
    write_op *op = &f->ops[i];
    struct io_uring_sqe *sqe = f->has_ring ? io_uring_get_sqe(&f->ring) : NULL;
    if (sqe) {
        io_uring_prep_write(sqe, f->fd, buffer_of(f, i), op->bytes, op->offset);
        io_uring_sqe_set_data64(sqe, i);
        int rc;
        quiet q;
        quiet_begin(&q);
        do rc = io_uring_submit(&f->ring);
        while (rc == -EINTR || rc == -EAGAIN);
        quiet_end(&q, EFBIG); /* the write may have been tried at once */
        if (rc == 1) return STK_OK;
        op->bytes = 0;
        return fail(f, rc < 0 ? -rc : EIO, op->offset);
    }
    int errnum = write_plain(f->fd, buffer_of(f, i), op->bytes, op->offset);
    op->bytes = 0;
    return errnum ? fail(f, errnum, op->offset) : STK_OK;
}

/* Sends the current buffer on its way and makes the next one free. */
static int flush(stk_out_file *f) {
    uint32_t bytes = (uint32_t)stk_align_up(f->fill, BLOCK_BYTES);
    memset(buffer_of(f, f->current) + f->fill, 0, bytes - f->fill);
    f->ops[f->current] = (write_op){f->n_put - f->fill, bytes};
    STK_TRY(submit(f, f->current));
    f->current = (f->current + 1) % N_BUFFER;
    f->fill = 0;
    while (f->ops[f->current].bytes) STK_TRY(reap(f));
    return STK_OK;
}

static int drain(stk_out_file *f) {
    for (uint32_t i = 0; i < N_BUFFER; i++)
        while (f->ops[i].bytes) STK_TRY(reap(f));
    return STK_OK;
}

int stk_out_file_put(stk_out_file *f, const void *data, size_t bytes) {
    const uint8_t *p = data;
    if (f->error) return stk_fail(f->error, "%s: an earlier write failed", f->path);
    if (bytes > f->total_bytes - f->n_put)
        return stk_fail(STK_EINVAL, "%s: more is written than the %" PRIu64 " bytes announced", f->path, f->total_bytes);
    while (bytes) {
        uint32_t n = (uint32_t)STK_MIN(bytes, (size_t)(BUFFER_BYTES - f->fill));
        memcpy(buffer_of(f, f->current) + f->fill, p, n);
        f->fill += n;
        f->n_put += n;
        p += n;
        bytes -= n;
        if (f->fill == BUFFER_BYTES) STK_TRY(flush(f));
    }
    return STK_OK;
}

uint64_t stk_out_file_bytes(const stk_out_file *f) { return f->n_put; }

int stk_out_file_commit(stk_out_file *f) {
    if (f->error) return stk_fail(f->error, "%s: an earlier write failed", f->path);
    if (f->n_put != f->total_bytes)
        return stk_fail(STK_EINVAL, "%s: %" PRIu64 " bytes were put, not the %" PRIu64 " announced", f->path, f->n_put,
                        f->total_bytes);
    if (f->fill) STK_TRY(flush(f));
    STK_TRY(drain(f));
    if (ftruncate(f->fd, (off_t)f->total_bytes) != 0 || fsync(f->fd) != 0)
        return stk_fail_errno(errno, "%s: ending the file", f->path);
    if (rename(f->temporary, f->path) != 0) return stk_fail_errno(errno, "%s: renaming %s", f->path, f->temporary);
    f->committed = true;
    return STK_OK;
}

void stk_out_file_close(stk_out_file **file) {
    stk_out_file *f = *file;
    if (!f) return;
    /* The kernel still reads the buffers of writes in flight. What becomes of them does not matter here. */
    struct io_uring_cqe *cqe;
    for (uint32_t i = 0; f->has_ring && i < N_BUFFER; i++) {
        while (f->ops[i].bytes) {
            int rc = io_uring_wait_cqe(&f->ring, &cqe);
            if (rc == -EINTR) continue;
            if (rc < 0) break;
            f->ops[io_uring_cqe_get_data64(cqe)].bytes = 0;
            io_uring_cqe_seen(&f->ring, cqe);
        }
    }
    if (f->has_ring) io_uring_queue_exit(&f->ring);
    if (f->fd >= 0) close(f->fd);
    if (f->temporary && !f->committed) unlink(f->temporary);
    free(f->temporary);
    free(f->path);
    free(f->buffers);
    free(f);
    *file = NULL;
}
