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

/* A struct as an older and as a newer caller was compiled, between two canaries. */
typedef struct own_options {
    uint32_t struct_bytes, a, b, c;
} own_options;

Test(base, defaults_end_where_the_callers_struct_does) {
    const own_options own = {.a = 1, .b = 2, .c = 3};
    for (size_t bytes = 0; bytes <= 2 * sizeof own; bytes += 4) {
        uint32_t theirs[2 * sizeof own / 4 + 1];
        memset(theirs, 0xee, sizeof theirs);
        stk_struct_give(theirs, bytes, &own, sizeof own);
        for (size_t i = 0; i < STK_ARRAY_LEN(theirs); i++) {
            uint32_t want = i == 0 ? (uint32_t)bytes : i < sizeof own / 4 ? (uint32_t)i : 0;
            cr_assert_eq(theirs[i], i < bytes / 4 ? want : 0xeeeeeeee, "%zu bytes, word %zu: %u", bytes, i, theirs[i]);
        }
    }
    stk_struct_give(NULL, sizeof own, &own, sizeof own);
}

Test(base, structs_of_older_callers_are_taken_and_larger_ones_refused) {
    own_options own = {.a = 1, .b = 2, .c = 3};
    const own_options old = {.struct_bytes = offsetof(own_options, b), .a = 7, .b = 8, .c = 9};
    cr_assert_eq(stk_struct_take(&own, sizeof own, &old, "options"), STK_OK);
    cr_assert(own.a == 7 && own.b == 2 && own.c == 3);
    for (uint32_t bytes = 0; bytes < 4; bytes++)
        cr_assert_eq(stk_struct_take(&own, sizeof own, &(own_options){.struct_bytes = bytes}, "options"), STK_EINVAL);
    cr_assert_eq(stk_struct_take(&own, sizeof own, &(own_options){.struct_bytes = sizeof own + 4}, "options"), STK_EINVAL);
    cr_assert_str_eq(stk_error_detail(), "options of 20 bytes; this library knows 16");
    cr_assert(own.a == 7 && own.b == 2);
}
