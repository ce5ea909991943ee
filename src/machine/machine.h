/*
 * machine: what stk_get_machine and stk_doctor look at. `root` stands for / in a test.
 *
 * Who may call it: src/. Threads: any.
 */
#ifndef STK_MACHINE_H
#define STK_MACHINE_H

#include "src/base.h"

/* As stk_doctor, with root in front of /sys and /proc. */
int stk_doctor_in(const char *root, const char *path, stk_finding_fn fn, void *user) STK_CHECKED;

/* Its parts in machine_parts.c. The drive is read for at most a second or so. Errors: STK_EIO (the file), STK_ENOMEM. */
void stk_machine_cards(const char *root, stk_finding_fn fn, void *user);
int stk_machine_file_system(const char *root, const char *path, stk_finding_fn fn, void *user) STK_CHECKED;
int stk_machine_drive(const char *path, stk_finding_fn fn, void *user) STK_CHECKED;

#endif
