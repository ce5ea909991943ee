/* What the tests of packed models share: a tiny model packed into a file of this test's directory. */
#ifndef STK_PACK_FIXTURE_H
#define STK_PACK_FIXTURE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/model/packed.h"
#include "tiny_model.h"

static inline stk_model *open_ok(const char *path) {
    stk_model *m = NULL;
    cr_assert_eq(stk_model_open(&m, path), 0, "%s", stk_error_detail());
    return m;
}

static inline stk_model *tiny_open(const tiny_model *t, const char *name) {
    gguf_build *b = tiny_model_build(t);
    gguf_build_write(b, test_path(name));
    gguf_build_close(b);
    return open_ok(test_path(name));
}

static inline void pack_ok(const stk_model *m, const char *path) {
    cr_assert_eq(stk_pack(m, path, NULL), 0, "%s", stk_error_detail());
}

/* The bytes of a file; free them. */
static inline unsigned char *contents(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    struct stat st;
    cr_assert(f && fstat(fileno(f), &st) == 0, "%s", path);
    unsigned char *data = malloc((size_t)st.st_size);
    cr_assert_eq(fread(data, 1, (size_t)st.st_size, f), (size_t)st.st_size);
    fclose(f);
    *bytes = (size_t)st.st_size;
    return data;
}

#endif
