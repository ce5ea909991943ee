/* promote: copies in order, yielding; and that promotion stops where it does not pay. */
#include <criterion/criterion.h>

#include "src/device/promote.h"

Test(promote, copies_go_on_where_they_stopped) {
    stk_promote p;
    double ran;
    cr_assert_eq(stk_promote_open(&p, 2, 4), 0);
    stk_promote_begin(&p, 1, UINT32_MAX, 1000);
    stk_promote_begin(&p, 2, UINT32_MAX, 500);
    ran = stk_promote_run(&p, 2.0, 300);
    cr_assert_float_eq(ran, 300, 1e-9);
    cr_assert_float_eq(stk_promote_left(&p, 1), 400, 1e-9);
    cr_assert_float_eq(stk_promote_left(&p, 2), 500, 1e-9);
    ran = stk_promote_run(&p, 1.0, 500);
    cr_assert_float_eq(ran, 500, 1e-9);
    cr_assert_float_eq(stk_promote_left(&p, 1), 0, 1e-9);
    cr_assert_float_eq(stk_promote_left(&p, 2), 400, 1e-9);
    ran = stk_promote_run(&p, 1.0, 1000);
    cr_assert_float_eq(ran, 400, 1e-9, "no longer than there is something to copy");
    ran = stk_promote_run(&p, 1.0, 1000);
    cr_assert_float_eq(ran, 0, 1e-9);
    /* A victim that was still coming is not copied any more. */
    stk_promote_begin(&p, 3, UINT32_MAX, 100);
    stk_promote_begin(&p, 4, 3, 100);
    cr_assert_float_eq(stk_promote_left(&p, 3), 0, 1e-9);
    cr_assert_eq(p.n, 1);
    stk_promote_end(&p, 4);
    cr_assert_eq(p.n, 0);
    stk_promote_close(&p);
}

static uint32_t wanted(stk_promote *p, uint32_t n) {
    uint32_t yes = 0;
    for (uint32_t i = 0; i < n; i++) yes += stk_promote_wanted(p);
    return yes;
}

Test(promote, it_stops_where_it_does_not_pay_and_comes_back) {
    stk_promote p;
    cr_assert_eq(stk_promote_open(&p, 2, 4), 0);
    stk_promote_first(&p, 0);
    stk_promote_used(&p, 0, 1, true, 100); /* as ever: no gain */
    cr_assert_eq(wanted(&p, 64), 64);
    stk_promote_spent(&p, 1e6);
    cr_assert_eq(wanted(&p, 640), 10, "a few, to tell when it would");
    for (int i = 0; i < 20000; i++) stk_promote_used(&p, 1, 1, true, 100); /* hits that were none at first */
    cr_assert_eq(wanted(&p, 64), 64);
    for (int i = 0; i < 20000; i++) stk_promote_used(&p, 0, 1, false, 100); /* misses that were hits */
    cr_assert_eq(wanted(&p, 640), 10);
    for (uint32_t i = 0; i < STK_PROMOTE_MAX; i++) stk_promote_begin(&p, i, UINT32_MAX, 1);
    cr_assert_eq(wanted(&p, 640), 0, "no place");
    stk_promote_close(&p);
}
