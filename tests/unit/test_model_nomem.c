/*
 * model: opening when memory runs out at the n-th allocation, for every n: STK_ENOMEM, and nothing lost (the address sanitizer
 * looks).
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "src/model/gguf.h"
#include "tests/alloc_fail.h"

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
