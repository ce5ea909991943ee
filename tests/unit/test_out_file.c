/* out_file: the bytes arrive, and whatever goes wrong leaves the directory as it was. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/out_file.h"
#include "tests/temp.h"

static char directory[TEMP_PATH], target[TEMP_PATH + 32];

static void setup(void) { snprintf(target, sizeof target, "%s/target", temp_make_dir(directory, "stoker-out-file")); }

static void teardown(void) {
    char path[TEMP_PATH + 260];
    DIR *d = opendir(directory);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(directory);
}

static int n_file(void) {
    int n = 0;
    DIR *d = opendir(directory);
    cr_assert_not_null(d);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void put_old(void) {
    FILE *f = fopen(target, "w");
    cr_assert_not_null(f);
    fputs("old", f);
    fclose(f);
}

static void expect_old(void) {
    char text[8] = "";
    FILE *f = fopen(target, "r");
    cr_assert_not_null(f);
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    cr_assert(n == 3 && memcmp(text, "old", 3) == 0, "the file that was there has changed");
    cr_assert_eq(n_file(), 1);
}

/* Byte i of a file is a function of i. */
static uint8_t byte_at(uint64_t i) { return (uint8_t)(i * 0x9e3779b97f4a7c15u >> 56); }

static int put_pattern(stk_out_file *f, uint64_t n, size_t piece) {
    uint8_t *buffer = malloc(piece);
    int rc = STK_OK;
    for (uint64_t done = 0; done < n && rc == STK_OK; done += piece) {
        size_t now = (size_t)STK_MIN(n - done, (uint64_t)piece);
        for (size_t i = 0; i < now; i++) buffer[i] = byte_at(done + i);
        rc = stk_out_file_put(f, buffer, now);
    }
    free(buffer);
    return rc;
}

static void expect_pattern(uint64_t n) {
    static uint8_t block[1 << 16];
    struct stat st;
    int fd = open(target, O_RDONLY);
    cr_assert(fd >= 0 && fstat(fd, &st) == 0);
    cr_assert_eq((uint64_t)st.st_size, n);
    uint64_t at = 0;
    for (ssize_t got; (got = read(fd, block, sizeof block)) > 0; at += (uint64_t)got)
        for (ssize_t i = 0; i < got; i++)
            if (block[i] != byte_at(at + (uint64_t)i))
                cr_assert_fail("byte %llu differs", (unsigned long long)(at + (uint64_t)i));
    cr_assert_eq(at, n);
    close(fd);
}

Test(out_file, bytes_arrive, .init = setup, .fini = teardown) {
    static const uint64_t sizes[] = {0, 1, 4096, 4097, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, (50 << 20) + 12345};
    static const size_t pieces[] = {1 << 20, 777777, 9 << 20};
    for (size_t i = 0; i < STK_ARRAY_LEN(sizes); i++) {
        stk_out_file *f;
        cr_assert_eq(stk_out_file_open(&f, target, sizes[i]), STK_OK, "%s", stk_error_detail());
        cr_assert_eq(put_pattern(f, sizes[i], pieces[i % 3]), STK_OK, "%s", stk_error_detail());
        cr_assert_eq(stk_out_file_bytes(f), sizes[i]);
        cr_assert_eq(stk_out_file_commit(f), STK_OK, "%s", stk_error_detail());
        stk_out_file_close(&f);
        cr_assert_null(f);
        expect_pattern(sizes[i]);
        cr_assert_eq(n_file(), 1);
    }
}

Test(out_file, without_commit_the_old_file_stays, .init = setup, .fini = teardown) {
    stk_out_file *f;
    put_old();
    cr_assert_eq(stk_out_file_open(&f, target, 40 << 20), STK_OK);
    cr_assert_eq(put_pattern(f, 30 << 20, 1 << 20), STK_OK);
    stk_out_file_close(&f);
    expect_old();
    stk_out_file_close(&f);
}

Test(out_file, other_than_announced, .init = setup, .fini = teardown) {
    stk_out_file *f;
    put_old();
    cr_assert_eq(stk_out_file_open(&f, target, 10), STK_OK);
    cr_assert_eq(stk_out_file_put(f, "12345", 5), STK_OK);
    cr_assert_eq(stk_out_file_commit(f), STK_EINVAL, "too little");
    cr_assert_eq(stk_out_file_put(f, "123456", 6), STK_EINVAL, "too much");
    stk_out_file_close(&f);
    expect_old();
}

Test(out_file, no_room, .init = setup, .fini = teardown) {
    stk_out_file *f;
    put_old();
    cr_assert_eq(stk_out_file_open(&f, target, UINT64_C(1) << 60), STK_ENOSPC);
    cr_assert(strstr(stk_error_detail(), "1 EiB are needed, but only"), "%s", stk_error_detail());
    cr_assert_null(f);
    expect_old();
}

static void limit_files(uint64_t bytes) { cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, RLIM_INFINITY}), 0); }

Test(out_file, file_size_limit, .init = setup, .fini = teardown) {
    stk_out_file *f;
    put_old();
    limit_files(1 << 20);
    cr_assert_eq(stk_out_file_open(&f, target, 40 << 20), STK_EIO, "and no SIGXFSZ");
    cr_assert(strstr(stk_error_detail(), "File too large"), "%s", stk_error_detail());
    limit_files(RLIM_INFINITY);
    expect_old();
}

/* As a drive that fails or fills up while it is written to. */
Test(out_file, failed_writes, .init = setup, .fini = teardown) {
    stk_out_file *f;
    put_old();
    cr_assert_eq(stk_out_file_open(&f, target, 100 << 20), STK_OK);
    limit_files(20 << 20);
    cr_assert_eq(put_pattern(f, 100 << 20, 1 << 20), STK_EIO);
    cr_assert(strstr(stk_error_detail(), "writing at byte") && strstr(stk_error_detail(), "File too large"), "%s",
              stk_error_detail());
    cr_assert_eq(stk_out_file_put(f, "x", 1), STK_EIO, "the failure stays");
    cr_assert_eq(stk_out_file_commit(f), STK_EIO);
    stk_out_file_close(&f);
    limit_files(RLIM_INFINITY);
    expect_old();
}

Test(out_file, targets, .init = setup, .fini = teardown) {
    stk_out_file *f;
    char link[TEMP_PATH + 32], path[TEMP_PATH + 32];
    cr_assert_eq(stk_out_file_open(&f, directory, 1), STK_EINVAL);
    cr_assert_eq(stk_out_file_open(&f, "/dev/null", 1), STK_EINVAL);
    snprintf(path, sizeof path, "%s/none/target", directory);
    cr_assert_eq(stk_out_file_open(&f, path, 1), STK_EIO);
    put_old();
    snprintf(link, sizeof link, "%s/link", directory);
    cr_assert_eq(symlink(target, link), 0);
    cr_assert_eq(stk_out_file_open(&f, link, 1), STK_OK);
    cr_assert_eq(put_pattern(f, 1, 1), STK_OK);
    cr_assert_eq(stk_out_file_commit(f), STK_OK);
    stk_out_file_close(&f);
    struct stat st;
    cr_assert(lstat(link, &st) == 0 && S_ISLNK(st.st_mode), "the link stays a link");
    expect_pattern(1);
}
