/*
 * machine: what stk_get_machine and stk_doctor look at. `root` stands for / in a test.
 *
 * Who may call it: src/. Threads: any.
 */
#ifndef STK_MACHINE_H
#define STK_MACHINE_H

#include "base.h"

/* As stk_doctor, with root in front of /sys and /proc. */
int stk_doctor_in(const char *root, const char *path, stk_finding_fn fn, void *user) STK_CHECKED;

#endif
