/*
 * backend: what a way of reading does for io.c. Internal to io/ (and to its tests, for the faults).
 *
 * io.c cuts extents into pieces, and decides alone what the result of a piece means: short reads, retries, refused direct reads,
 * the end of the file, injected faults. A backend makes one attempt at a piece and brings back its result, like pread(2); so
 * every backend behaves the same.
 *
 * Threads: all calls come from the owner of the stk_io. Ownership: a piece and the memory it points to belong to the backend from
 * submit to reap.
 */
#ifndef STK_IO_BACKEND_H
#define STK_IO_BACKEND_H

#include "io/files.h"
#include "io/io.h"

typedef struct stk_io_piece {
    struct stk_io_piece *next; /* of a list of whoever holds the piece */
    char *dst;
    uint64_t offset;
    uint32_t bytes;
    uint32_t want; /* of these, bytes before the end of the file; the rest is alignment */
    uint32_t file;
    uint32_t read; /* index of its extent in io.c */
    int fd;
    uint16_t n_try; /* attempts that got nowhere */
    bool flying;    /* submitted and not reaped */
    bool direct;    /* submitted as a direct read */
    bool late;      /* emu: later than the model */
    int res;        /* bytes read, or -errno */
    uint64_t due_ns;
    uint64_t done_ns; /* pread, emu: when the read itself was done */
} stk_io_piece;

typedef struct stk_io_ops {
    const char *name;
    /* Every piece has been reaped. */
    void (*close)(void *state);
    /* Takes at most `depth` pieces less those not reaped. Does not block; failures come with the pieces. */
    void (*submit)(void *state, stk_io_piece *const *pieces, uint32_t n);
    /* Returns how many pieces came back in done[depth]; wait: at least one, or 0 when a signal interrupted. Errors are those of
     * the queue itself. */
    int (*reap)(void *state, stk_io_piece **done, bool wait);
    /* Asks that a submitted piece come back soon, as it is (res -ECANCELED) or read. */
    void (*cancel)(void *state, stk_io_piece *piece);
    /* Registers memory that reads go to, in place of what was. Nothing is in flight. NULL: of no use here. */
    void (*set_buffers)(void *state, const stk_io_region *regions, uint32_t n);
} stk_io_ops;

typedef struct stk_io_backend {
    const stk_io_ops *ops;
    void *state;
} stk_io_backend;

typedef struct stk_io_setup {
    const stk_io_file *files;
    uint32_t n_file;
    uint32_t depth;
    void *buffer; /* to register, or NULL */
    uint64_t buffer_bytes;
} stk_io_setup;

/* STK_EUNSUPPORTED: the system refuses io_uring; STK_ENOMEM. */
int stk_io_uring_open(stk_io_backend *out, const stk_io_setup *setup) STK_CHECKED;
/* STK_ENOMEM, STK_EIO. */
int stk_io_pread_open(stk_io_backend *out, const stk_io_setup *setup) STK_CHECKED;
int stk_io_emu_open(stk_io_backend *out, const stk_io_setup *setup, const stk_drive *drive) STK_CHECKED;

/* reap of pread for at most wait_ns (UINT64_MAX: no limit). Returns 0 when the time is over or a signal interrupted. */
int stk_io_pread_reap(void *state, stk_io_piece **done, uint64_t wait_ns) STK_CHECKED;

/* Faults that io.c injects into the first result of the extent of that number, counted from 1 in the order of stk_io_submit; 0:
 * none. */
typedef struct stk_io_faults {
    uint64_t eio_at;
    uint64_t eio_ahead_at; /* counted among those submitted as STK_IO_PREFETCH */
    uint64_t short_at;     /* cut to about half, and not to a multiple of the alignment */
    uint64_t again_at;     /* EAGAIN */
    uint64_t refuse_at;    /* EINVAL, as from a file system that does no direct reads; only while the file is read directly */
} stk_io_faults;
void stk_io_set_faults(stk_io *io, const stk_io_faults *faults);

#endif
