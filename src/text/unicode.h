/*
 * unicode: UTF-8 that may be broken, and characters newer than a PCRE2's tables.
 *
 * Who may call it: src/. Pure functions.
 */
#ifndef STK_UNICODE_H
#define STK_UNICODE_H

#include "src/base.h"

/*
 * Looks at the start of text[0, bytes), bytes >= 1.
 * > 0: a valid character of that many bytes, *cp is its code point.
 * 0: the text ends inside what may become a valid character.
 * < 0: invalid; the negated number of bytes (1 to 3) that one U+FFFD stands for: the longest part that begins a valid character,
 * or one byte (the Unicode Standard's "maximal subpart", also what WHATWG and Rust's from_utf8_lossy do).
 */
int stk_utf8_scan(const char *text, size_t bytes, uint32_t *cp);

/* Writes a code point below 0x110000; returns the number of bytes, 1 to 4. */
size_t stk_utf8_write(uint32_t cp, char out[4]);

/* For a character that Unicode 15 or 16 added, an older one of the same properties and the same length in UTF-8; else `cp`. */
uint32_t stk_unicode_stand_in(uint32_t cp);

#endif
