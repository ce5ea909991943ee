/* files: what can be opened, alignment, and the way back from direct reads. */
#include <errno.h>
#include <sys/stat.h>

#include "io_fixture.h"

static void expect_refusal(const char *path, int code, const char *why) {
    stk_io_file file;
    cr_assert_eq(stk_io_file_open(&file, path), code, "%s", path ? path : "NULL");
    cr_assert(strstr(stk_error_detail(), why), "%s", stk_error_detail());
    if (path) cr_assert(strstr(stk_error_detail(), path), "%s", stk_error_detail());
    cr_assert_eq(file.fd, -1);
    cr_assert_null(file.path);
}

Test(files, what_is_no_file_is_named) {
    char path[TEMP_PATH];
    make_file(path, temp_dir(), 0);
    expect_refusal(path, STK_EIO, "is empty");
    unlink(path);
    expect_refusal(path, STK_EIO, "No such file");
    cr_assert_eq(mkfifo(path, 0600), 0);
    expect_refusal(path, STK_EIO, "not a regular file"); /* and does not wait for a writer */
    unlink(path);
    expect_refusal(temp_dir(), STK_EIO, "is a directory");
    expect_refusal(NULL, STK_EINVAL, "path is missing");
}

Test(files, permission_is_named) {
    if (getuid() == 0) cr_skip_test("root may read everything");
    char path[TEMP_PATH];
    make_file(path, temp_dir(), 10);
    chmod(path, 0);
    expect_refusal(path, STK_EIO, "Permission denied");
    unlink(path);
}

Test(files, alignment_allows_a_direct_read) {
    char path[TEMP_PATH];
    make_file(path, temp_dir(), 10000);
    stk_io_file file;
    cr_assert_eq(stk_io_file_open(&file, path), 0);
    cr_assert_eq(file.bytes, 10000);
    cr_assert(file.align >= 1 && file.align <= 4096 && (file.align & (file.align - 1)) == 0);
    guarded g = guarded_open(8192);
    cr_assert_eq(pread(file.fd, g.data, file.align, file.align), (ssize_t)file.align);
    cr_assert(is_content(g.data, file.align, file.align, 10000));
    guarded_close(&g);
    stk_io_file_close(&file);
    unlink(path);
}

Test(files, direct_reads_can_be_ended) {
    char path[TEMP_PATH];
    make_file(path, temp_dir(), 100000);
    log_lines lines = {0};
    stk_log_set(count_line, &lines);
    stk_io_file file;
    cr_assert_eq(stk_io_file_open(&file, path), 0);
    if (!file.direct) {
        stk_io_file_close(&file);
        unlink(path);
        cr_skip_test("TMPDIR has no direct reads");
    }
    uint32_t align = file.align;
    cr_assert_eq(stk_io_file_end_direct(&file, EINVAL), 0);
    cr_assert_not(file.direct);
    cr_assert_eq(file.align, align);
    cr_assert_eq(lines.n, 1);
    cr_assert(strstr(lines.last, path) && strstr(lines.last, "direct reads are refused (Invalid argument)"), "%s", lines.last);

    guarded g = guarded_open(777);
    cr_assert_eq(pread(file.fd, g.data, 777, 333), 777); /* of no alignment at all */
    cr_assert(is_content(g.data, 333, 777, 100000));
    cr_assert_gt(cached_pages(path, 100000), 0);
    stk_io_file_drop(&file, 333, 777);
    cr_assert_eq(cached_pages(path, 100000), 0);
    guarded_close(&g);
    stk_io_file_close(&file);
    unlink(path);
}
