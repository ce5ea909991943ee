/*
 * uring: io_uring with registered files and, where RLIMIT_MEMLOCK allows it, registered buffers.
 *
 * The ring has room for every piece and as many cancellations, so that a submission always finds an entry. What the kernel does
 * not take at once (it may be short of memory) stays in the ring and goes out with the next reap, which also reports if the ring
 * itself fails.
 */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/backend.h"
#include "src/mem.h"

enum { MAX_CHUNK = 16384 };
static const uint64_t CHUNK_BYTES = 1u << 30; /* the kernel's limit of one registered buffer */

typedef struct uring {
    struct io_uring ring;
    uint32_t depth;
    bool fixed_files;
    struct iovec *chunks; /* [n_chunk] registered, of CHUNK_BYTES at most */
    uint32_t n_chunk;
} uring;

static int refused(int errnum) {
    if (errnum == ENOMEM)
        return stk_fail(STK_EUNSUPPORTED,
                        "io_uring finds no memory for its ring; raise RLIMIT_MEMLOCK (ulimit -l), of which it takes some");
    if (errnum == EMFILE || errnum == ENFILE)
        return stk_fail(STK_EUNSUPPORTED, "no file descriptor is left for io_uring (%s); raise RLIMIT_NOFILE (ulimit -n)",
                        strerrordesc_np(errnum));
    return stk_fail(STK_EUNSUPPORTED,
                    "io_uring is refused (%s) by an old kernel, kernel.io_uring_disabled, or a container's seccomp filter",
                    strerrordesc_np(errnum));
}

/* Cuts regions into chunks; NULL: none, too many, or no memory for the list. */
static struct iovec *cut(const stk_io_region *regions, uint32_t n, uint32_t *n_chunk) {
    uint64_t all = 0, at = 0;
    for (uint32_t i = 0; i < n; i++) all += stk_div_up(regions[i].bytes, CHUNK_BYTES);
    struct iovec *chunks = all && all <= MAX_CHUNK ? calloc(all, sizeof *chunks) : NULL;
    *n_chunk = (uint32_t)all;
    for (uint32_t i = 0; chunks && i < n; i++)
        for (uint64_t from = 0; from < regions[i].bytes; from += CHUNK_BYTES)
            chunks[at++] = (struct iovec){(char *)regions[i].base + from, STK_MIN(CHUNK_BYTES, regions[i].bytes - from)};
    return chunks;
}

/* Pinning memory needs RLIMIT_MEMLOCK; plain reads do without. The kernel would pin all of it before it counts, so the limit is
 * looked at first. */
static void uring_set_buffers(void *state, const stk_io_region *regions, uint32_t n) {
    uring *u = state;
    if (u->chunks) (void)io_uring_unregister_buffers(&u->ring);
    free(u->chunks);
    u->chunks = NULL;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) bytes += regions[i].bytes;
    if (bytes > stk_mem_lockable()) return;
    u->chunks = cut(regions, n, &u->n_chunk);
    if (!u->chunks) return;
    int rc = io_uring_register_buffers(&u->ring, u->chunks, u->n_chunk);
    if (rc == 0) return;
    stk_log(STK_LOG_DEBUG, "io_uring: buffers are not registered (%s)", strerrordesc_np(-rc));
    free(u->chunks);
    u->chunks = NULL;
}

static void register_files(uring *u, const stk_io_setup *setup) {
    int *fds = calloc(setup->n_file, sizeof *fds);
    if (!fds) return;
    for (uint32_t i = 0; i < setup->n_file; i++) fds[i] = setup->files[i].fd;
    u->fixed_files = io_uring_register_files(&u->ring, fds, setup->n_file) == 0;
    free(fds);
}

static void uring_close(void *state) {
    uring *u = state;
    io_uring_queue_exit(&u->ring);
    free(u->chunks);
    free(u);
}

/* Index of the registered chunk that holds the whole of the piece, or -1. */
static int chunk_of(const uring *u, const stk_io_piece *piece) {
    for (uint32_t i = 0; u->chunks && i < u->n_chunk; i++) {
        uintptr_t base = (uintptr_t)u->chunks[i].iov_base, at = (uintptr_t)piece->dst;
        if (at >= base && at - base < u->chunks[i].iov_len) return at - base + piece->bytes <= u->chunks[i].iov_len ? (int)i : -1;
    }
    return -1;
}

static void uring_submit(void *state, stk_io_piece *const *pieces, uint32_t n) {
    uring *u = state;
    for (uint32_t i = 0; i < n; i++) {
        stk_io_piece *piece = pieces[i];
        struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
        int fd = u->fixed_files ? (int)piece->file : piece->fd, chunk = chunk_of(u, piece);
        if (chunk >= 0)
            io_uring_prep_read_fixed(sqe, fd, piece->dst, piece->bytes, piece->offset, chunk);
        else
            io_uring_prep_read(sqe, fd, piece->dst, piece->bytes, piece->offset);
        if (u->fixed_files) sqe->flags |= IOSQE_FIXED_FILE;
        io_uring_sqe_set_data(sqe, piece);
    }
    io_uring_submit(&u->ring);
}

/* Takes what has completed; cancellations (no piece) are dropped. */
static int take_cqes(uring *u, stk_io_piece **done) {
    struct io_uring_cqe *cqes[64];
    uint32_t n = 0;
    while (n < u->depth) {
        unsigned want = STK_MIN(u->depth - n, (uint32_t)STK_ARRAY_LEN(cqes));
        unsigned got = io_uring_peek_batch_cqe(&u->ring, cqes, want);
        for (unsigned i = 0; i < got; i++) {
            stk_io_piece *piece = io_uring_cqe_get_data(cqes[i]);
            if (!piece) continue;
            piece->res = cqes[i]->res;
            done[n++] = piece;
        }
        io_uring_cq_advance(&u->ring, got);
        if (got < want) break;
    }
    return (int)n;
}

static int uring_reap(void *state, stk_io_piece **done, bool wait) {
    uring *u = state;
    for (;;) {
        int n = take_cqes(u, done);
        if (n > 0 || (!wait && io_uring_sq_ready(&u->ring) == 0)) return n;
        int rc = io_uring_submit_and_wait(&u->ring, wait ? 1 : 0);
        if (rc == -EINTR) return take_cqes(u, done);
        if (rc == -EAGAIN || rc == -EBUSY) { /* the kernel is short of memory, or completions must be taken first */
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
            return take_cqes(u, done);
        }
        if (rc < 0) return stk_fail_errno(-rc, "io_uring: submitting and waiting");
        n = take_cqes(u, done);
        if (n > 0 || !wait || rc > 0) return n; /* a signal after a submission shows as its count alone */
    }
}

static void uring_cancel(void *state, stk_io_piece *piece) {
    uring *u = state;
    if (io_uring_sq_space_left(&u->ring) <= u->depth) return;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    io_uring_prep_cancel(sqe, piece, 0);
    io_uring_sqe_set_data(sqe, NULL);
    io_uring_submit(&u->ring);
}

static const stk_io_ops uring_ops = {"uring", uring_close, uring_submit, uring_reap, uring_cancel, uring_set_buffers};

/* COOP_TASKRUN (Linux 5.19): completions wait for our next call instead of interrupting the computing thread. */
static int init_ring(uring *u) {
    unsigned entries = 2 * u->depth;
    int rc = io_uring_queue_init(entries, &u->ring, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (rc == -EINVAL) rc = io_uring_queue_init(entries, &u->ring, 0);
    return rc;
}

/* A filter may let the setup pass and refuse the rest, and kernels before 5.6 (of which the feature bit is) have no plain read.
 */
static int check_ring(uring *u) {
    if (!(u->ring.features & IORING_FEAT_RW_CUR_POS)) return -ENOSYS;
    io_uring_prep_nop(io_uring_get_sqe(&u->ring));
    int rc;
    do rc = io_uring_submit_and_wait(&u->ring, 1);
    while (rc == -EINTR);
    if (rc < 0) return rc;
    struct io_uring_cqe *cqe;
    do rc = io_uring_wait_cqe(&u->ring, &cqe);
    while (rc == -EINTR);
    if (rc == 0) io_uring_cqe_seen(&u->ring, cqe);
    return rc;
}

int stk_io_uring_open(stk_io_backend *out, const stk_io_setup *setup) {
    uring *u = calloc(1, sizeof *u);
    if (!u) return stk_fail(STK_ENOMEM, "io: no memory for io_uring");
    u->depth = setup->depth;
    int rc = init_ring(u);
    if (rc < 0) {
        free(u);
        return refused(-rc);
    }
    rc = check_ring(u);
    if (rc < 0) {
        uring_close(u);
        return refused(-rc);
    }
    register_files(u, setup);
    uring_set_buffers(u, &(stk_io_region){setup->buffer, setup->buffer_bytes}, setup->buffer ? 1 : 0);
    *out = (stk_io_backend){&uring_ops, u};
    return 0;
}
