/*
 * model: opening when memory runs out at the n-th allocation, for every n: STK_ENOMEM, and nothing lost (the address sanitizer
 * looks). The linker sends the allocations of this program here (tests/CMakeLists.txt); those inside libraries are not counted.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "src/gguf.h"

static int64_t until_failure = -1; /* allocations that still succeed; -1: all */
static unsigned n_failed;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);

static bool fails(void) {
    if (until_failure < 0) return false;
    if (until_failure > 0) {
        until_failure--;
        return false;
    }
    n_failed++;
    return true;
}

void *__wrap_malloc(size_t n) { return fails() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return fails() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t n) { return fails() ? NULL : __real_realloc(p, n); }
char *__wrap_strdup(const char *s) { return fails() ? NULL : __real_strdup(s); }

static void check(const char *path) {
    for (int64_t n = 0;; n++) {
        stk_model *m = NULL;
        until_failure = n;
        n_failed = 0;
        int rc = stk_model_open(&m, path);
        until_failure = -1;
        if (n_failed == 0) {
            cr_assert_eq(rc, 0, "%s", stk_error_detail());
            cr_assert_gt(n, 10);
            stk_model_close(&m);
            return;
        }
        cr_assert_eq(rc, STK_ENOMEM, "at %d: %d, %s", (int)n, rc, stk_error_detail());
        cr_assert_null(m);
    }
}

Test(model_nomem, every_allocation_may_fail) {
    check(STK_TEST_DATA "/../fuzz/corpus_gguf/model_qwen3moe_q4_0_tokenizer.gguf");
    check(STK_TEST_DATA "/../fuzz/corpus_gguf/model_llama_q4_0_single.gguf");
}
