/*
 * files: the files that io reads. Internal to io/. A file is opened for direct reads; where the file system refuses that at once,
 * or with the first read, it is read through the page cache, and what was read is dropped from there.
 */
#ifndef STK_IO_FILES_H
#define STK_IO_FILES_H

#include "src/base.h"

typedef struct stk_io_file {
    char *path;
    uint64_t bytes; /* size when opened */
    int fd;
    uint32_t align; /* of offsets, lengths and memory; stays as it is when direct reads end */
    bool direct;
} stk_io_file;

/* STK_EIO names the path: missing, a directory or another special file, empty; STK_EINVAL (no path), STK_ENOMEM. */
int stk_io_file_open(stk_io_file *file, const char *path) STK_CHECKED;
void stk_io_file_close(stk_io_file *file);
/* Ends direct reads, which the system refused with errnum. Reads in flight are not touched. STK_EIO. */
int stk_io_file_end_direct(stk_io_file *file, int errnum) STK_CHECKED;
/* Drops a range from the page cache; nothing to do for direct reads. */
void stk_io_file_drop(const stk_io_file *file, uint64_t offset, uint64_t bytes);

#endif
