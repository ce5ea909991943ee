/*
 * out_file: a large file that appears whole or not at all, written at the drive's speed. Its bytes go to "PATH.PID.part" beside
 * the target, which takes the target's name once everything is on the drive; until then a file of that name stays as it was.
 *
 * Writes are direct (O_DIRECT) and 8 MiB long, several of them in flight through io_uring: the page cache keeps its contents, and
 * the caller makes the next bytes meanwhile. Where the kernel has no io_uring for us they go one by one; where the file system
 * refuses direct writes, buffered.
 *
 * Who may call it: src/. Threads: one owner. Memory: 32 MiB. Errors: STK_EINVAL (the target is no regular file), STK_ENOSPC
 * (names what is needed and what is free), STK_EIO, STK_ENOMEM. A file-size limit is an error and no signal.
 */
#ifndef STK_OUT_FILE_H
#define STK_OUT_FILE_H

#include "base.h"

typedef struct stk_out_file stk_out_file;

/* Creates the file and reserves `total_bytes` for it, all that will be put. Links at `path` are followed. */
int stk_out_file_open(stk_out_file **out, const char *path, uint64_t total_bytes) STK_CHECKED;
/* Appends. After a failure every later call fails alike. */
int stk_out_file_put(stk_out_file *f, const void *data, size_t bytes) STK_CHECKED;
uint64_t stk_out_file_bytes(const stk_out_file *f);
/* Waits until all of it is on the drive and gives it its name. */
int stk_out_file_commit(stk_out_file *f) STK_CHECKED;
/* Without a commit before, leaves nothing behind. */
void stk_out_file_close(stk_out_file **f);

#endif
