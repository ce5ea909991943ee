/* unicode: one scanner of UTF-8 for splitting and for streaming, and the stand-ins of newer characters. */
#include "unicode.h"

#include "unicode_table.h"

int stk_utf8_scan(const char *text, size_t bytes, uint32_t *cp) {
    const uint8_t *p = (const uint8_t *)text;
    uint8_t lead = p[0];
    *cp = lead;
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return -1;
    int n = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    /* The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF. */
    uint8_t least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    uint32_t c = lead & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if ((size_t)i == bytes) return 0;
        if (p[i] < least || p[i] > most) return -i;
        c = c << 6 | (p[i] & 0x3fu);
        least = 0x80;
        most = 0xbf;
    }
    *cp = c;
    return n;
}

size_t stk_utf8_write(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | cp);
    return n;
}

uint32_t stk_unicode_stand_in(uint32_t cp) {
    if (cp < newer[0].first) return cp;
    size_t lo = 0, hi = STK_ARRAY_LEN(newer);
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (newer[mid].first <= cp)
            lo = mid;
        else
            hi = mid;
    }
    return cp <= newer[lo].last ? newer[lo].stand_in : cp;
}
