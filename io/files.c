/* files: opening, alignment, and the way back from direct reads. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x2000u
#endif

enum { DEFAULT_ALIGN = 4096 };

/* Opening a FIFO would wait for a writer, so what kind of file it is comes first. */
static int check_kind(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) return stk_fail_errno(errno, "%s: cannot open", path);
    if (S_ISDIR(st.st_mode)) return stk_fail(STK_EIO, "%s: is a directory; name a file", path);
    if (!S_ISREG(st.st_mode)) return stk_fail(STK_EIO, "%s: is not a regular file", path);
    if (st.st_size == 0) return stk_fail(STK_EIO, "%s: is empty", path);
    return 0;
}

/*
 * The alignment that direct reads of the file need, at most 4,096; 0 if it has none that we can keep. The two fields (memory,
 * then offset) are taken by their place in the kernel's struct: headers that do not have them yet are common, and they are zero
 * where the kernel does not know them.
 */
static uint32_t direct_align(int fd) {
    enum { DIO_AT = 0x98 };
    struct statx st = {0};
    uint32_t align[2];
    _Static_assert(sizeof st >= DIO_AT + sizeof align, "struct statx has room for later fields");
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) != 0 || !(st.stx_mask & STATX_DIOALIGN)) return DEFAULT_ALIGN;
    memcpy(align, (const char *)&st + DIO_AT, sizeof align);
    uint32_t most = STK_MAX(align[0], align[1]);
    bool usable = align[1] > 0 && most <= DEFAULT_ALIGN && (most & (most - 1)) == 0;
    return usable ? most : 0;
}

static void say_buffered(const stk_io_file *file, const char *why) {
    stk_log(STK_LOG_WARN, "%s: direct reads are refused (%s); reading through the page cache and dropping what was read",
            file->path, why);
    posix_fadvise(file->fd, 0, 0, POSIX_FADV_RANDOM); /* no readahead: it would stay in the cache */
}

static int open_fd(stk_io_file *file) {
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (file->fd >= 0) {
        file->align = direct_align(file->fd);
        file->direct = file->align != 0;
        if (file->direct) return 0;
        file->align = DEFAULT_ALIGN;
        return stk_io_file_end_direct(file, EINVAL);
    }
    if (errno != EINVAL && errno != EOPNOTSUPP) return stk_fail_errno(errno, "%s: cannot open", file->path);
    int errnum = errno;
    file->align = DEFAULT_ALIGN;
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (file->fd < 0) return stk_fail_errno(errno, "%s: cannot open", file->path);
    say_buffered(file, strerrordesc_np(errnum));
    return 0;
}

int stk_io_file_open(stk_io_file *file, const char *path) {
    *file = (stk_io_file){.fd = -1};
    if (!path) return stk_fail(STK_EINVAL, "io: a path is missing");
    STK_TRY(check_kind(path));
    file->path = strdup(path);
    if (!file->path) return stk_fail(STK_ENOMEM, "%s: no memory for the path", path);
    int rc = open_fd(file);
    struct stat st;
    if (rc == 0 && fstat(file->fd, &st) != 0) rc = stk_fail_errno(errno, "%s: fstat", path);
    if (rc < 0)
        stk_io_file_close(file);
    else
        file->bytes = (uint64_t)st.st_size;
    return rc;
}

void stk_io_file_close(stk_io_file *file) {
    if (file->fd >= 0) close(file->fd);
    free(file->path);
    *file = (stk_io_file){.fd = -1};
}

/* The flag of the open file is cleared, not the file opened again: the path may name another file by this time, and io_uring has
 * the descriptor registered. */
int stk_io_file_end_direct(stk_io_file *file, int errnum) {
    int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0 || fcntl(file->fd, F_SETFL, flags & ~O_DIRECT) != 0)
        return stk_fail_errno(errno, "%s: cannot end direct reads", file->path);
    file->direct = false;
    say_buffered(file, strerrordesc_np(errnum));
    return 0;
}

void stk_io_file_drop(const stk_io_file *file, uint64_t offset, uint64_t bytes) {
    if (file->direct) return;
    uint64_t from = offset & ~(uint64_t)(DEFAULT_ALIGN - 1),
             to = stk_align_up(offset + bytes, DEFAULT_ALIGN); /* parts of pages would stay */
    posix_fadvise(file->fd, (off_t)from, (off_t)(to - from), POSIX_FADV_DONTNEED);
}
