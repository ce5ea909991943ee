/* warm: the file that warms the next run: what comes back, what is refused, and what a damaged one does. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/engine/warm.h"
#include "tests/temp.h"

#define MODEL STK_TEST_DATA "/tiny/qwen3moe-f32.gguf"

static char path[TEMP_PATH];

static void set_up(void) { temp_file(path, "stoker-warm"); }
static void tear_down(void) { unlink(path); }

static void put(const uint8_t *data, size_t bytes) {
    int fd = open(path, O_WRONLY | O_TRUNC);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, data, bytes), (ssize_t)bytes);
    close(fd);
}

static uint8_t *get(size_t *bytes) {
    struct stat st;
    int fd = open(path, O_RDONLY);
    cr_assert(fd >= 0 && fstat(fd, &st) == 0);
    uint8_t *data = malloc((size_t)st.st_size + 1);
    *bytes = (size_t)st.st_size;
    cr_assert_eq(read(fd, data, *bytes), st.st_size);
    close(fd);
    return data;
}

static void write_one(void) {
    stk_warm w = {.predictor = "history:keep=0.9",
                  .cache = "cache state",
                  .cache_bytes = 11,
                  .predictor_state = "abc",
                  .predictor_bytes = 3};
    cr_assert_eq(stk_warm_write(&w, path, 42, "a model"), 0, "%s", stk_error_detail());
}

Test(warm, comes_back_as_it_was, .init = set_up, .fini = tear_down) {
    stk_warm w;
    write_one();
    cr_assert_eq(stk_warm_read(&w, path, 42), 1, "%s", stk_error_detail());
    cr_assert_str_eq(w.predictor, "history:keep=0.9");
    cr_assert_eq(w.cache_bytes, 11);
    cr_assert_arr_eq(w.cache, "cache state", 11);
    cr_assert_eq(w.predictor_bytes, 3);
    cr_assert_arr_eq(w.predictor_state, "abc", 3);
    stk_warm_close(&w);
    cr_assert_eq(stk_warm_write(&(stk_warm){.cache = "x", .cache_bytes = 1}, path, 7, ""), 0);
    cr_assert_eq(stk_warm_read(&w, path, 7), 1);
    cr_assert_eq(w.predictor_bytes, 0);
    stk_warm_close(&w);
}

Test(warm, what_is_not_there_or_empty_is_cold, .init = set_up, .fini = tear_down) {
    stk_warm w;
    cr_assert_eq(stk_warm_read(&w, path, 42), 0);
    unlink(path);
    cr_assert_eq(stk_warm_read(&w, path, 42), 0);
    cr_assert_eq(stk_warm_read(&w, temp_dir(), 42), STK_EFORMAT);
}

Test(warm, another_model_and_other_files_are_refused_by_name, .init = set_up, .fini = tear_down) {
    stk_warm w;
    write_one();
    cr_assert_eq(stk_warm_read(&w, path, 43), STK_EINVAL);
    cr_assert(strstr(stk_error_detail(), "a model") && strstr(stk_error_detail(), path), "%s", stk_error_detail());
    stk_warm_close(&w);
    cr_assert_eq(stk_warm_read(&w, MODEL, 42), STK_EFORMAT);
    cr_assert(strstr(stk_error_detail(), "name another"), "%s", stk_error_detail());
    stk_warm_close(&w);
}

Test(warm, every_cut_and_every_changed_byte_is_noticed, .init = set_up, .fini = tear_down) {
    stk_warm w;
    size_t bytes;
    write_one();
    uint8_t *data = get(&bytes);
    for (size_t n = 0; n < bytes; n++) {
        put(data, n);
        int rc = stk_warm_read(&w, path, 42);
        cr_assert_eq(rc, 0, "cut to %zu bytes: %d", n, rc);
        stk_warm_close(&w);
    }
    for (size_t i = 0; i < bytes; i++) {
        data[i] ^= 0x41;
        put(data, bytes);
        int rc = stk_warm_read(&w, path, 42);
        cr_assert_eq(rc, i < 8 ? STK_EFORMAT : 0, "byte %zu: %d", i, rc);
        stk_warm_close(&w);
        data[i] ^= 0x41;
    }
    free(data);
}

Test(warm, a_model_is_told_by_its_tensors_and_routers) {
    uint64_t a, again, b;
    stk_model *one, *other;
    cr_assert_eq(stk_model_open(&one, MODEL), 0);
    cr_assert_eq(stk_model_open(&other, STK_TEST_DATA "/ember-q4_k_m.gguf"), 0);
    cr_assert_eq(stk_warm_model_id(one, &a), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_warm_model_id(one, &again), 0);
    cr_assert_eq(stk_warm_model_id(other, &b), 0);
    cr_assert_eq(a, again);
    cr_assert_neq(a, b);
    stk_model_close(&one);
    stk_model_close(&other);
}
