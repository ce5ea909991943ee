/* unicode: the scanner against the definition, for every code point and every short sequence of bytes. */
#include <criterion/criterion.h>
#include <string.h>

#include "src/text/unicode.h"

Test(unicode, every_code_point_is_scanned_as_written) {
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char text[4];
        size_t n = stk_utf8_write(cp, text);
        uint32_t back = ~0u;
        if (cp >= 0xd800 && cp <= 0xdfff) {
            cr_assert_eq(stk_utf8_scan(text, n, &back), -1, "surrogate %x", cp);
            continue;
        }
        cr_assert_eq(stk_utf8_scan(text, n, &back), (int)n);
        cr_assert_eq(back, cp);
        for (size_t cut = 1; cut < n; cut++) cr_assert_eq(stk_utf8_scan(text, cut, &back), 0);
    }
}

/* Whether some valid character begins with the n bytes, tried out: the definition of a maximal subpart. */
static bool begins_character(const unsigned char *p, int n) {
    static const unsigned char ends[][3] = {{0x80, 0x80, 0x80}, {0xa0, 0x80, 0x80}, {0x90, 0x80, 0x80}};
    for (int total = n; total <= 4; total++)
        for (size_t i = 0; i < STK_ARRAY_LEN(ends); i++) {
            unsigned char whole[4];
            memcpy(whole, p, (size_t)n);
            memcpy(whole + n, ends[i], (size_t)(total - n));
            uint32_t cp;
            if (stk_utf8_scan((char *)whole, (size_t)total, &cp) == total) return true;
        }
    return false;
}

Test(unicode, invalid_bytes_fall_into_maximal_subparts) {
    unsigned char p[4] = {0, 0, 0, 'x'};
    for (unsigned i = 0; i < 1u << 20; i++) {
        /* the bytes that matter: all leads, and continuations around the borders */
        static const unsigned char second[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0,
                                               0xbf, 0xc0, 0xc2, 0xe0, 0xed, 0xf0, 0xf4, 0xff};
        p[0] = (unsigned char)(i & 0xff);
        p[1] = second[i >> 8 & 15];
        p[2] = second[i >> 12 & 15];
        p[3] = second[i >> 16];
        uint32_t cp;
        int n = stk_utf8_scan((char *)p, 4, &cp);
        if (n > 0) continue;
        cr_assert_lt(n, 0, "four bytes are never too few");
        int longest = 1;
        for (int m = 2; m <= 3 && begins_character(p, m); m++) longest = m;
        cr_assert_eq(-n, longest, "%02x %02x %02x %02x", p[0], p[1], p[2], p[3]);
    }
}

Test(unicode, stand_ins_keep_their_length_and_are_old) {
    unsigned changed = 0;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        uint32_t old = stk_unicode_stand_in(cp);
        if (old == cp) continue;
        char a[4], b[4];
        cr_assert_eq(stk_utf8_write(cp, a), stk_utf8_write(old, b));
        cr_assert_eq(stk_unicode_stand_in(old), old);
        changed++;
    }
    cr_assert_eq(changed, 10294, "%u: assigned by Unicode 15.0, 15.1 and 16.0, format characters left out", changed);
}
