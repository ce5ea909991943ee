/* special: against a search that tries every token at every place. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "src/text/special.h"

static size_t slow_find(const stk_special_token *t, uint32_t n, const char *text, size_t bytes, const stk_special_token **found) {
    for (size_t at = 0; at < bytes; at++) {
        *found = NULL;
        for (uint32_t i = 0; i < n; i++)
            if (t[i].bytes <= bytes - at && memcmp(t[i].text, text + at, t[i].bytes) == 0 &&
                (!*found || t[i].bytes > (*found)->bytes))
                *found = &t[i];
        if (*found) return at;
    }
    return bytes;
}

Test(special, leftmost_and_longest_as_a_slow_search) {
    srand(5);
    for (int round = 0; round < 3000; round++) {
        char pool[40][6], text[40];
        stk_special_token list[40];
        uint32_t n = (uint32_t)rand() % 40;
        for (uint32_t i = 0; i < n; i++) {
            list[i] = (stk_special_token){pool[i], 1 + (uint32_t)rand() % 6, (int32_t)i};
            for (uint32_t j = 0; j < list[i].bytes; j++) pool[i][j] = "a\xff\0<"[rand() % 4];
        }
        size_t bytes = (size_t)rand() % sizeof text;
        for (size_t i = 0; i < bytes; i++) text[i] = "a\xff\0<"[rand() % 4];
        stk_special_set set;
        cr_assert_eq(stk_special_init(&set, list, n), 0);
        const stk_special_token *a = NULL, *b = NULL;
        size_t at = stk_special_find(&set, text, bytes, &a);
        cr_assert_eq(at, slow_find(list, n, text, bytes, &b));
        if (at < bytes) cr_assert_eq(a->id, b->id, "of equal texts the first is kept");
        stk_special_fini(&set);
    }
}

Test(special, an_empty_set_finds_nothing) {
    stk_special_set set;
    const stk_special_token *t;
    cr_assert_eq(stk_special_init(&set, NULL, 0), 0);
    cr_assert_eq(stk_special_find(&set, "abc", 3, &t), 3);
    stk_special_fini(&set);
}
