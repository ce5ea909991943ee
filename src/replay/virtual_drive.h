/*
 * virtual_drive: the replay's drive: reads of parts wait in two queues and are cut into pieces as io.c does it (io/drive.h), and
 * a piece takes what the model of the drive says, which io/emu holds a live run's pieces back by. Whoever reads looks for
 * completions all the time, as the engine does between portions of work.
 *
 * Who may call it: virtual.c and tests. Pure: time is what the caller says, and never goes back. Threads: one owner.
 */
#ifndef STK_VIRTUAL_DRIVE_H
#define STK_VIRTUAL_DRIVE_H

#include "io/drive.h"

/* A read, named by a number of the caller's. */
typedef struct stk_virtual_read {
    uint64_t bytes, issued_bytes; /* of it; handed out as pieces */
    uint64_t begin_ns;            /* when the first of these was */
    uint32_t next;                /* in its queue */
    uint16_t n_piece;             /* in flight */
    uint8_t cls;
    bool queued;
} stk_virtual_read;

typedef struct stk_virtual_piece {
    uint64_t due_ns;
    uint32_t read; /* or UINT32_MAX: nobody wants it any more */
    uint32_t bytes;
} stk_virtual_piece;

typedef struct stk_virtual_queue {
    uint32_t head, tail;
} stk_virtual_queue;

typedef struct stk_virtual_drive {
    stk_drive model;
    bool instant;            /* a read has landed when it is submitted */
    stk_virtual_read *reads; /* [n] */
    uint32_t *landed;        /* [n] reads that ended and are not taken, the first first */
    uint32_t n, n_landed, n_flying;
    stk_virtual_queue queue[STK_IO_PREFETCH + 1];
    stk_virtual_piece flying[STK_IO_DEPTH];
    uint64_t moved_bytes; /* of pieces that came back */
    /* Told of each read that has landed or was cancelled under way, and when its last piece was or will be back; NULL: nobody. */
    void (*ended)(void *user, uint32_t read, uint64_t end_ns);
    void *user;
} stk_virtual_drive;

/* n: reads that there may be, numbered from 0. The model is the caller's to set. STK_ENOMEM. */
int stk_virtual_drive_open(stk_virtual_drive *d, uint32_t n) STK_CHECKED;
void stk_virtual_drive_close(stk_virtual_drive *d);

/* Queues a read that is not under way. */
void stk_virtual_drive_submit(stk_virtual_drive *d, uint32_t read, enum stk_io_class cls, uint64_t bytes, uint64_t now_ns);
/* Whether some of it waits or flies. */
static inline bool stk_virtual_drive_reads(const stk_virtual_drive *d, uint32_t read) {
    return d->reads[read].queued || d->reads[read].n_piece;
}
/* What a prefetch has not handed out yet is demand from here on. */
void stk_virtual_drive_promote(stk_virtual_drive *d, uint32_t read);
/* Forgets a read, whether it waits, flies, has landed or is none. A piece in flight keeps its place until it is due. */
void stk_virtual_drive_cancel(stk_virtual_drive *d, uint32_t read);

/* Bytes of each class that were asked for and have not come back. */
void stk_virtual_drive_backlog(const stk_virtual_drive *d, uint64_t bytes[STK_IO_PREFETCH + 1]);

/* What comes back until then. */
void stk_virtual_drive_advance(stk_virtual_drive *d, uint64_t now_ns);
/* Waits until a read has landed; returns when, or now_ns where one has or none will. */
uint64_t stk_virtual_drive_wait(stk_virtual_drive *d, uint64_t now_ns);
/* Takes landed read i of n_landed out of the list. */
uint32_t stk_virtual_drive_take(stk_virtual_drive *d, uint32_t i);

#endif
