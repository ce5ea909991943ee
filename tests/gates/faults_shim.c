/*
 * faults_shim: a library for LD_PRELOAD that refuses what some systems refuse. STK_REFUSE is a list of words: direct (O_DIRECT at
 * open, as some file systems do), uring (io_uring, as some containers do).
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct io_uring;
struct io_uring_params;
int open(const char *path, int flags, ...);
int open64(const char *path, int flags, ...);
int openat(int dir, const char *path, int flags, ...);
int openat64(int dir, const char *path, int flags, ...);
int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int io_uring_queue_init_params(unsigned entries, struct io_uring *ring, struct io_uring_params *params);

static int refuses(const char *word) {
    const char *list = getenv("STK_REFUSE");
    return list && strstr(list, word) != NULL;
}

static int open_as(const char *name, int dir, const char *path, int flags, mode_t mode) {
    int (*real)(int, const char *, int, ...) = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, name);
    if ((flags & O_DIRECT) && refuses("direct")) {
        errno = EINVAL;
        return -1;
    }
    return real(dir, path, flags, mode);
}

#define MODE(mode, flags)                                                                                                        \
    mode_t mode = 0;                                                                                                             \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                                       \
        va_list args;                                                                                                            \
        va_start(args, flags);                                                                                                   \
        mode = va_arg(args, mode_t);                                                                                             \
        va_end(args);                                                                                                            \
    }

int open(const char *path, int flags, ...) {
    MODE(mode, flags)
    return open_as("openat", AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(mode, flags)
    return open_as("openat64", AT_FDCWD, path, flags, mode);
}
int openat(int dir, const char *path, int flags, ...) {
    MODE(mode, flags)
    return open_as("openat", dir, path, flags, mode);
}
int openat64(int dir, const char *path, int flags, ...) {
    MODE(mode, flags)
    return open_as("openat64", dir, path, flags, mode);
}

int io_uring_queue_init_params(unsigned entries, struct io_uring *ring, struct io_uring_params *params) {
    typedef int init(unsigned, struct io_uring *, struct io_uring_params *);
    if (refuses("uring")) return -EPERM;
    return ((init *)dlsym(RTLD_NEXT, "io_uring_queue_init_params"))(entries, ring, params);
}
int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags) {
    typedef int init(unsigned, struct io_uring *, unsigned);
    if (refuses("uring")) return -EPERM;
    return ((init *)dlsym(RTLD_NEXT, "io_uring_queue_init"))(entries, ring, flags);
}
