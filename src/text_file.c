/* text_file: small files that are read whole, and written whole or not at all. */
#include "text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes all, to the disk as well: a name must never stand for a file that is not there yet. */
static int write_all(int fd, const char *text, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        text += n;
        bytes -= (size_t)n;
    }
    return fchmod(fd, 0644) < 0 || fsync(fd) < 0 ? errno : 0;
}

/* Creates a file beside `path`, *name, which is the caller's to free: *fd, or -1 and *error. */
static int open_beside(const char *path, const char *what, char **name, int *fd, int *error) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) return stk_fail(STK_EINVAL, "%s %s: that is no regular file", what, path);
    if (asprintf(name, "%s.XXXXXX", path) < 0) return stk_fail(STK_ENOMEM, "%s %s: out of memory", what, path);
    *fd = mkstemp(*name);
    *error = *fd < 0 ? errno : 0;
    return STK_OK;
}

int stk_text_file_try(const char *path, const char *what) {
    char *name;
    int fd, error;
    STK_TRY(open_beside(path, what, &name, &fd, &error));
    if (fd >= 0) close(fd);
    if (fd >= 0) unlink(name);
    free(name);
    return error ? stk_fail_errno(error, "%s %s", what, path) : STK_OK;
}

int stk_text_file_save(const char *path, const char *what, const char *text, size_t bytes) {
    char *name;
    int fd, error;
    STK_TRY(open_beside(path, what, &name, &fd, &error));
    if (!error) error = write_all(fd, text, bytes);
    if (fd >= 0 && close(fd) < 0 && !error) error = errno;
    if (!error && rename(name, path) < 0) error = errno;
    if (error && fd >= 0) unlink(name);
    free(name);
    return error ? stk_fail_errno(error, "%s %s", what, path) : STK_OK;
}

int stk_text_file_load(const char *path, const char *what, size_t most, char **text, size_t *bytes) {
    *text = NULL;
    *bytes = 0;
    FILE *in = fopen(path, "rbe");
    if (!in) return stk_fail_errno(errno, "%s %s", what, path);
    char *all = malloc(most + 1);
    int rc = all ? STK_OK : stk_fail(STK_ENOMEM, "%s %s: out of memory", what, path);
    if (rc == STK_OK) {
        *bytes = fread(all, 1, most + 1, in);
        if (ferror(in))
            rc = stk_fail_errno(errno, "%s %s", what, path);
        else if (*bytes > most)
            rc = stk_fail(STK_EFORMAT, "%s %s is larger than %zu bytes: that is no such file", what, path, most);
    }
    fclose(in);
    if (rc < 0) {
        free(all);
        return rc;
    }
    all[*bytes] = 0;
    *text = all;
    return STK_OK;
}
