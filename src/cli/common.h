/*
 * common: what all verbs share: messages, stdout that is checked, signals, the progress bar, files.
 *
 * One process, one thread, one verb: state is static. Text for a machine or a reader of the result goes to stdout through
 * cli_write, everything else to stderr.
 */
#ifndef STK_CLI_COMMON_H
#define STK_CLI_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"
#include "src/stoker.h"

#define CLI_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* ---- Messages ------------------------------------------------------------------------------------------------------------ */

/* Prints "stoker: what: detail" on stderr and returns `exit_code`. */
int cli_fail(int exit_code, const char *what, const char *fmt, ...) CLI_PRINTF(3, 4);
/* As cli_fail for a failed call of the library: prints its detail. An interrupted call says nothing and returns the signal's exit
 * code. */
int cli_fail_stk(int stk_code, const char *what);
/* Prints a line on stderr. */
void cli_say(const char *fmt, ...) CLI_PRINTF(1, 2);
/* As cli_say, but nothing if quiet. */
void cli_note(const char *fmt, ...) CLI_PRINTF(1, 2);
/* Sends the library's log to stderr: debug lines if verbose, no more than warnings if quiet. Quiet also takes progress and notes
 * away. */
void cli_log_open(bool verbose, bool quiet);

/* ---- stdout -------------------------------------------------------------------------------------------------------------- */

/* Writes and flushes. CLI_OK, or an exit code after a message (a closed pipe, a full disk); later writes then do nothing and fail
 * in silence. */
int cli_write(const void *data, size_t bytes);
int cli_print(const char *fmt, ...) CLI_PRINTF(1, 2);

/* ---- Signals ------------------------------------------------------------------------------------------------------------- */

/* The first SIGINT or SIGTERM asks the verb to end; a second one ends the process at once. */
void cli_signals_open(void);
/* The engine whose step a signal cancels; NULL before it is closed. */
void cli_signals_watch(stk_engine *engine);
/* The signal that came, 0 for none. */
int cli_signal(void);
/* CLI_OK, or 128 + the signal's number. */
int cli_signal_exit(void);

/* ---- Progress ------------------------------------------------------------------------------------------------------------ */

/* An stk_progress_fn: a bar on stderr if that is a terminal; cancels after a signal. */
int cli_progress(void *user, const char *what, uint64_t done, uint64_t total);
/* Replaces the bar by a line of text, at most ten times a second, on a terminal; elsewhere prints it at most every ten seconds.
 */
void cli_progress_text(const char *fmt, ...) CLI_PRINTF(1, 2);
/* Takes the bar away. */
void cli_progress_clear(void);

/* ---- Texts and files ----------------------------------------------------------------------------------------------------- */

/* A growing buffer; zero it to start, free `data` at the end. */
typedef struct cli_buffer {
    char *data;
    size_t bytes, cap;
} cli_buffer;
/* CLI_OK or CLI_FAILED (out of memory) after a message. */
int cli_buffer_add(cli_buffer *buffer, const void *data, size_t bytes);

/* Reads a file whole; path NULL: stdin. CLI_OK, or an exit code after a message. */
int cli_read_file(cli_buffer *buffer, const char *path);

/* Whether cli_write_file could write there, known before the work whose results it is for; leaves nothing behind. */
int cli_try_file(const char *path, const char *what);
/* Writes a file whole or not at all: beside it first, then under its name (a device is written to directly). `what` is for
 * messages. CLI_OK, or CLI_FAILED after a message. */
int cli_write_file(const char *path, const char *what, const void *data, size_t bytes);

/* Whether two paths, either of which may be NULL, name one file. */
bool cli_same_file(const char *a, const char *b);

/* Makes the directories above a file that is to be written. CLI_OK, or CLI_FAILED after a message. */
int cli_make_directories(char *path);

/* "1.5 GiB"; `out` has 32 bytes and is returned. */
char *cli_bytes_text(uint64_t bytes, char *out);

/* Seconds of a monotonic clock. */
double cli_now(void);

#endif
