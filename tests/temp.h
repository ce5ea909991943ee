/*
 * temp: where tests and benchmarks keep their files: in $TMPDIR, or /tmp where that is not set. Who makes a file removes it.
 */
#ifndef STK_TESTS_TEMP_H
#define STK_TESTS_TEMP_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TEMP_PATH = 256 }; /* bytes of a path, some room behind a directory's for names in it included */

static inline const char *temp_dir(void) {
    const char *dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/tmp";
}

/* DIR/name in `path` [TEMP_PATH], which is returned. */
static inline char *temp_path(char *path, const char *name) {
    int n = snprintf(path, TEMP_PATH, "%s/%s", temp_dir(), name);
    if (n > 0 && n < TEMP_PATH - 64) return path;
    fprintf(stderr, "TMPDIR is too long: %s\n", temp_dir());
    abort();
}

/* An empty file of its own, called stem-XXXXXX. */
static inline char *temp_file(char *path, const char *stem) {
    char name[64];
    snprintf(name, sizeof name, "%s-XXXXXX", stem);
    int fd = mkstemp(temp_path(path, name));
    if (fd >= 0 && close(fd) == 0) return path;
    perror(path);
    abort();
}

/* An empty directory of its own, called stem-XXXXXX. */
static inline char *temp_make_dir(char *path, const char *stem) {
    char name[64];
    snprintf(name, sizeof name, "%s-XXXXXX", stem);
    if (mkdtemp(temp_path(path, name))) return path;
    perror(path);
    abort();
}

#endif
