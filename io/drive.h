/*
 * drive: a model of a drive as arithmetic: when would a read be done? Pure, no clock of its own: io/emu holds completions back by
 * it in real time, the replay's queues use it on the virtual clock.
 *
 * A drive moves bytes one after another at its bandwidth; each read also waits its latency, which overlaps with the transfer of
 * others (deep queues hide it, single reads feel it). done = max(now + latency, end of the previous transfer) + bytes /
 * bandwidth. With `reorder` a seeded delay comes on top, up to four times the latency and transfer of the read (at least 100 us),
 * which does not hold up the drive: reads overtake each other.
 */
#ifndef STK_DRIVE_H
#define STK_DRIVE_H

#include "src/base.h"

typedef struct stk_drive {
    double bytes_per_ns;
    uint64_t latency_ns;
    uint64_t free_at_ns; /* end of the last transfer */
    uint64_t seed;       /* state of the generator of delays and order */
    bool reorder;
    uint64_t eio_at;       /* number of the read that fails, from 1, in the order of stk_io_submit; 0: none. io.c injects it */
    uint64_t eio_ahead_at; /* of the reads ahead alone, likewise */
    uint64_t short_at;     /* number of the read that is cut short once, likewise */
    uint64_t n_read;       /* reads taken by stk_drive_submit */
    uint64_t blank_at;     /* io/emu: pieces from this number on, from 1, take their time and bring nothing; 0: none */
} stk_drive;

/*
 * How reads reach a drive, whichever it is (io.c), and the replay's (src/replay/virtual_drive.h): they are cut into pieces, few
 * of which are in flight. Reads in flight together end together, so that with many of them the first part of an expert would land
 * as late as the last; 2 MiB keep a drive of 5 GB/s busy for 0.4 ms, more than its latency. Demand goes first. A prefetch is cut
 * into pieces that the drive moves in 0.1 ms each, two of which are in flight: enough to keep it busy through its latency, and
 * demand does not wait longer than 0.2 ms for what is under way (drives below 160 MB/s: than for 32 KiB).
 */
enum stk_io_class { STK_IO_DEMAND, STK_IO_PREFETCH };
enum { STK_IO_DEPTH = 4, STK_IO_PIECE_BYTES = 512 << 10 };

/* Whether one more piece of a class may be handed out with n_flying in flight, at most `depth` of them. */
bool stk_drive_takes(enum stk_io_class cls, uint32_t depth, uint32_t n_flying);
/* Bytes of the next piece of a read that has left_bytes to be handed out, by a drive of that speed; 0: not known yet. */
uint32_t stk_drive_piece(enum stk_io_class cls, uint32_t piece_bytes, uint64_t left_bytes, double bytes_per_ns);
/* The most that prefetches have in flight. */
uint64_t stk_drive_ahead_bytes(double bytes_per_ns);

/* Parses what follows "emu:"; bandwidth suffixes are powers of 1000. `seed` holds unless the text has one. Errors: STK_EINVAL
 * naming the part. */
int stk_drive_parse(stk_drive *drive, const char *text, uint64_t seed) STK_CHECKED;
/* Takes a read of `bytes` at `now_ns`; returns when it will be done. */
uint64_t stk_drive_submit(stk_drive *drive, uint64_t now_ns, uint64_t bytes);

#endif
