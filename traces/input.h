/*
 * input: a file as a stream of bytes, unpacked on the way if it is packed (zstd and xz, known by their first bytes).
 *
 * Who may call it: the importers of traces/. Threads: one owner. Memory: two buffers of 64 KiB, the unpacker's window (128 MiB at
 * most, else an error) and the longest line. Errors: STK_EIO, STK_EFORMAT (damaged or cut off: names the byte), STK_ENOMEM.
 */
#ifndef STK_INPUT_H
#define STK_INPUT_H

#include "src/base.h"

typedef struct stk_input stk_input;

enum { STK_INPUT_PEEK_BYTES = 1 << 12, STK_INPUT_LINE_BYTES = 1 << 22 }; /* at most */

int stk_input_open(stk_input **out, const char *path) STK_CHECKED;
void stk_input_close(stk_input **in);
/* Back to the first byte. */
int stk_input_rewind(stk_input *in) STK_CHECKED;

/* Up to `bytes` bytes; fewer only at the end. Returns how many. */
int64_t stk_input_read(stk_input *in, void *out, size_t bytes) STK_CHECKED;
/* The first bytes of what is left, without taking them: at least STK_INPUT_PEEK_BYTES unless the end is nearer. */
int64_t stk_input_peek(stk_input *in, const uint8_t **data) STK_CHECKED;
/* *byte is the next one, -1 at the end. */
int stk_input_byte(stk_input *in, int *byte) STK_CHECKED;
/* The next line without its line end, 0-terminated, valid until the next call. 1, or 0 at the end. STK_EFORMAT: longer than
 * STK_INPUT_LINE_BYTES, or a 0 byte in it. */
int stk_input_line(stk_input *in, char **line, size_t *bytes) STK_CHECKED;

bool stk_input_is_packed(const stk_input *in);
/* Bytes of the unpacked stream before the next one; number of the latest line, from 1. */
uint64_t stk_input_offset(const stk_input *in);
uint64_t stk_input_line_number(const stk_input *in);
/* Of the file as it lies there, for progress. */
void stk_input_progress(const stk_input *in, uint64_t *done, uint64_t *total);

#endif
