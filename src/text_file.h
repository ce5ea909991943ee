/*
 * text_file: small files that are read whole, and written whole or not at all.
 *
 * Who may call it: src/. Threads: none.
 */
#ifndef STK_TEXT_FILE_H
#define STK_TEXT_FILE_H

#include "base.h"

/* Writes `text` to a file that appears whole or not at all; `what` names it in errors.
 * STK_EINVAL (something else than a regular file stands there), STK_EIO, STK_ENOSPC, STK_ENOMEM. */
int stk_text_file_save(const char *path, const char *what, const char *text, size_t bytes) STK_CHECKED;
/* Whether a file can be made there, known before the work whose results it is for; leaves nothing behind. Errors as save. */
int stk_text_file_try(const char *path, const char *what) STK_CHECKED;
/* Reads a file of at most `most` bytes; *text is the caller's to free, 0-terminated. STK_EIO, STK_EFORMAT (larger), STK_ENOMEM.
 */
int stk_text_file_load(const char *path, const char *what, size_t most, char **text, size_t *bytes) STK_CHECKED;

#endif
