/* base: error text and checked arithmetic. */
#include <criterion/criterion.h>
#include <errno.h>

#include "src/base.h"

Test(base, detail_is_kept_and_prefixed) {
    cr_assert_eq(stk_fail(STK_EFORMAT, "field %s", "x"), STK_EFORMAT);
    cr_assert_str_eq(stk_error_detail(), "field x");
    cr_assert_eq(stk_fail_in(STK_EFORMAT, "file %d", 3), STK_EFORMAT);
    cr_assert_str_eq(stk_error_detail(), "file 3: field x");
}

Test(base, errno_becomes_a_code) {
    cr_assert_eq(stk_fail_errno(ENOSPC, "write"), STK_ENOSPC);
    cr_assert_str_eq(stk_error_detail(), "write: No space left on device");
    cr_assert_eq(stk_fail_errno(ENOENT, "open"), STK_EIO);
}

Test(base, overflow_is_seen) {
    uint64_t r;
    cr_assert(stk_mul_overflow(UINT64_MAX / 2, 3, &r));
    cr_assert_not(stk_mul_overflow(3, 4, &r));
    cr_assert_eq(r, 12);
}
