/* predict: opening when memory runs out at the n-th allocation, for every n: STK_ENOMEM, and nothing lost. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "predict/score.h"
#include "tests/alloc_fail.h"

static const stk_predictor_config config = {.n_layer = 3, .n_expert = 16, .k = 2};

Test(predict_nomem, every_allocation_of_a_predictor_may_fail) {
    for (const char *const *name = stk_predictor_names(); *name; name++) {
        const stk_predictor_ops *ops = stk_predictor_find(*name);
        for (int64_t n = 0;; n++) {
            stk_predictor *p = NULL;
            until_failure = n;
            n_failed = 0;
            int rc = ops->open(&p, &config);
            until_failure = -1;
            if (n_failed == 0) {
                cr_assert_eq(rc, 0);
                cr_assert_gt(n, 5);
                ops->close(p);
                break;
            }
            cr_assert_eq(rc, STK_ENOMEM, "%s at %d", *name, (int)n);
            cr_assert_null(p);
        }
    }
}

Test(predict_nomem, every_allocation_of_a_score_card_may_fail) {
    for (int64_t n = 0;; n++) {
        stk_score *s = NULL;
        until_failure = n;
        n_failed = 0;
        int rc = stk_score_open(&s, &config, 16);
        until_failure = -1;
        if (n_failed == 0) {
            cr_assert_eq(rc, 0);
            stk_score_close(&s);
            break;
        }
        cr_assert_eq(rc, STK_ENOMEM);
        cr_assert_null(s);
    }
}
