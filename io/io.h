/*
 * io: reading extents of files into memory, many at a time: io_uring, a pool of pread threads (the reference, and the fallback
 * where io_uring is not permitted), and a modelled drive for tests and experiments.
 *
 * Who may call it: src/, from the one thread that plans. Threads: one owner; the pread readers are the only threads inside.
 * Ownership: memory handed to stk_io_submit is borrowed until its completion has been reaped or the object is closed. Submit
 * never blocks; reap blocks only when asked to.
 *
 * Specifications (`--io`):
 *     auto     uring, or pread where the system refuses io_uring (one log line says so)
 *     uring    io_uring, registered files, registered buffers where RLIMIT_MEMLOCK allows
 *     pread    a pool of reader threads
 *     emu:BANDWIDTH,LATENCY[,reorder][,seed=N][,eio=N][,eio-ahead=N][,short=N][,blank=N]
 *              pread at once, with each completion held back until a drive of that bandwidth (bytes a second,
 *              suffixes k, M, G: powers of 1000) and latency (suffix us, ms) would be done.
 *     reorder  completions come in a seeded order
 *     eio=N    extent number N, counted from 1 as submitted, fails with EIO
 *     eio-ahead=N  the same, counting the reads ahead alone
 *     short=N  a read of extent number N is cut short once, and continued
 *     blank=N  pieces from number N on take their time and bring nothing: what lay there stays. A drive that costs the CPU
 *              and its memory nothing, for measuring the schedule alone (tests/bench/streaming.py); outputs are wrong
 * A read that is itself later than the model is counted in n_late.
 */
#ifndef STK_IO_H
#define STK_IO_H

#include "io/drive.h"

typedef struct stk_io stk_io;

typedef struct stk_io_options {
    const char *spec; /* NULL: "auto" */
    uint32_t n_file;
    const char *const *paths; /* [n_file], opened read-only, O_DIRECT where the file system allows it */
    uint32_t depth;           /* pieces in flight, up to 4,096; 0: STK_IO_DEPTH */
    uint32_t piece_bytes; /* reads are cut into pieces of this size; 0: STK_IO_PIECE_BYTES. A multiple of 4,096, up to 1 GiB */
    void *buffer;         /* memory that reads go to, for registration; NULL: none */
    uint64_t buffer_bytes;
    uint64_t seed;
} stk_io_options;

/*
 * One extent. offset, bytes and dst are multiples of stk_io_align(). bytes may pass the end of the file by less than that; what
 * lies beyond the end is zeroes.
 */
typedef struct stk_io_read {
    uint32_t file;
    uint64_t offset;
    uint64_t bytes;
    void *dst;
    uint64_t tag; /* comes back with the completion */
} stk_io_read;

typedef struct stk_io_done {
    uint64_t tag;
    int status;                /* 0, STK_EIO (the detail of this thread says which file and offset), STK_ECANCELED */
    uint64_t begin_ns, end_ns; /* when its first piece was handed to the drive, and its last was back; 0: none was */
} stk_io_done;

typedef struct stk_io_counters {
    uint64_t n_read;     /* extents completed */
    uint64_t read_bytes; /* asked of the drive, alignment included; what a short read asks for again counts again */
    uint64_t busy_ns;    /* time with at least one read in flight, until it is reaped */
    uint64_t n_late;     /* modelled drives: reads later than the model */
    double bytes_per_ns; /* at its best lately; 0: not known yet */
} stk_io_counters;

/*
 * Errors: STK_EIO (a path; a directory or an empty file among them), STK_EINVAL (spec, depth, piece_bytes), STK_ENOMEM,
 * STK_EUNSUPPORTED (uring asked for and refused).
 */
int stk_io_open(stk_io **out, const stk_io_options *options) STK_CHECKED;
/* Cancels or waits for what is in flight. */
void stk_io_close(stk_io **io);

/* "uring", "pread", "emu". */
const char *stk_io_name(const stk_io *io);
/* The alignment (bytes, a power of two <= 4,096) of file `file`: 4,096 unless statx says less. */
uint32_t stk_io_align(const stk_io *io, uint32_t file);
/* Whether file `file` is read with O_DIRECT; where not, pages are dropped from the page cache after each read. */
bool stk_io_direct(const stk_io *io, uint32_t file);

/*
 * Queues n reads, all or none; those beyond the depth wait inside, in order, demand before prefetch (drive.h). Errors: STK_EINVAL
 * (alignment, range), STK_ENOMEM (more reads than ever before, and no memory to list them).
 */
int stk_io_submit(stk_io *io, enum stk_io_class cls, const stk_io_read *reads, uint32_t n) STK_CHECKED;
/* Raises queued prefetches with this tag to demand, behind the demand that waits; no effect on what is under way or done. */
void stk_io_promote(stk_io *io, uint64_t tag);
/* Cancels what has this tag; its completion still comes, with STK_ECANCELED (dst is undefined) or as if nothing had happened. */
void stk_io_cancel(stk_io *io, uint64_t tag);

/*
 * Collects up to max completions; with wait, blocks until at least one is there. Returns their number; 0 when nothing is in
 * flight, or when a signal handler interrupted the wait; or an error of the queue itself. After several failures in one call the
 * detail text is that of the last one.
 */
int stk_io_reap(stk_io *io, stk_io_done *done, uint32_t max, bool wait) STK_CHECKED;
/*
 * Other memory that reads go to, for registration, in place of options.buffer; n 0: none. Memory that was registered is held by
 * the kernel: register anew, or none, before it is given back to the system. Errors: STK_ESTATE (reads are in flight).
 */
typedef struct stk_io_region {
    void *base;
    uint64_t bytes;
} stk_io_region;
int stk_io_set_buffers(stk_io *io, const stk_io_region *regions, uint32_t n) STK_CHECKED;
/* Bytes of each class that were asked for and have not come back. */
void stk_io_backlog(const stk_io *io, uint64_t bytes[STK_IO_PREFETCH + 1]);
/* Reads not yet reaped. */
uint32_t stk_io_in_flight(const stk_io *io);
void stk_io_get_counters(const stk_io *io, stk_io_counters *counters);

#endif
