/*
 * export: a trace as CSV, in the columns of traces/README.md; import_csv.c reads it back.
 *
 * Who may call it: src/. Threads: one owner. Errors: STK_EIO, STK_ENOSPC, STK_ENOMEM.
 */
#ifndef STK_EXPORT_H
#define STK_EXPORT_H

#include "traces/trace.h"

typedef struct stk_export stk_export;
int stk_export_open(stk_export **out, const char *path, const stk_trace_header *header) STK_CHECKED;
/* STEP and EVENT; other records have no rows. */
int stk_export_write(stk_export *x, const stk_trace_record *record) STK_CHECKED;
/* Frees in any case; returns the first error. NULL is fine. */
int stk_export_close(stk_export **x) STK_CHECKED;

#endif
