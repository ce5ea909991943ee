/*
 * pieces: reading a list of pieces of files in order, several ahead: who takes one in finds the next ones on their way. For work
 * that goes once over a whole model.
 *
 * Who may call it: src/. Threads: one, which also calls the hooks. Memory: at most STK_PIECES_BYTES, or two pieces.
 */
#ifndef STK_PIECES_H
#define STK_PIECES_H

#include "io/io.h"
#include "model.h"

enum { STK_PIECES_BYTES = 64 << 20, STK_PIECES_AHEAD = 16 };

/* One read of a piece: n bytes from `offset` on, to buffer + `at`, both multiples of the file's alignment. */
typedef struct stk_piece_read {
    uint32_t file;
    uint64_t offset, bytes, at;
} stk_piece_read;

typedef struct stk_pieces {
    uint64_t n;
    uint64_t buffer_bytes; /* most that a piece takes, room for what `take` makes of it included */
    void *user;
    /* What piece i reads: returns how many of reads [STK_N_PART], at least one. */
    uint32_t (*reads)(void *user, uint64_t i, const stk_io *io, stk_piece_read *reads);
    /* Piece i, which is in `buffer` (4,096-byte aligned). Pieces come in order. A result below 0 ends it. */
    int (*take)(void *user, uint64_t i, const stk_io *io, uint8_t *buffer);
} stk_pieces;

/* io: as in stk_engine_options. Errors: those of stk_io_open and of reading; STK_ENOMEM; what `take` returned. */
int stk_pieces_run(const stk_pieces *pieces, const stk_gguf *files, const char *io) STK_CHECKED;

/* The aligned read that brings bytes [offset, offset + bytes) of a file; they then start at buffer + the result. */
uint64_t stk_piece_cut(const stk_io *io, uint32_t file, uint64_t offset, uint64_t bytes, stk_piece_read *read);

#endif
