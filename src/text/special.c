/* special: a sorted array; the candidates at a position narrow by binary search with each byte, so that a thousand tokens that
 * begin alike cost little. */
#include "special.h"

#include <stdlib.h>
#include <string.h>

static int order(const void *a, const void *b) {
    const stk_special_token *x = a, *y = b;
    int c = memcmp(x->text, y->text, STK_MIN(x->bytes, y->bytes));
    if (c != 0) return c;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

int stk_special_init(stk_special_set *set, const stk_special_token *token, uint32_t n) {
    memset(set, 0, sizeof *set);
    if (n == 0) return 0;
    set->token = malloc((size_t)n * sizeof *token);
    if (!set->token) return stk_fail(STK_ENOMEM, "no memory for %u special tokens", n);
    memcpy(set->token, token, (size_t)n * sizeof *token);
    qsort(set->token, n, sizeof *token, order);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        const stk_special_token *t = &set->token[i], *last = &set->token[kept ? kept - 1 : 0];
        if (kept && t->bytes == last->bytes && memcmp(t->text, last->text, t->bytes) == 0) continue;
        set->token[kept++] = *t;
    }
    for (uint32_t i = 0; i < kept; i++) set->first[(uint8_t)set->token[i].text[0] + 1]++;
    for (int b = 0; b < 256; b++) set->first[b + 1] += set->first[b];
    return 0;
}

void stk_special_fini(stk_special_set *set) {
    free(set->token);
    memset(set, 0, sizeof *set);
}

/* The first of token[lo, hi), all longer than `depth` and equal before it, whose byte at `depth` is at least `byte`. */
static uint32_t lower(const stk_special_token *token, uint32_t lo, uint32_t hi, uint32_t depth, unsigned byte) {
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)token[mid].text[depth] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static const stk_special_token *longest_at(const stk_special_set *set, const char *text, size_t bytes) {
    const stk_special_token *found = NULL;
    uint32_t lo = set->first[(uint8_t)text[0]], hi = set->first[(uint8_t)text[0] + 1];
    for (uint32_t depth = 1; lo < hi; depth++) {
        /* The shortest comes first. */
        if (set->token[lo].bytes == depth) found = &set->token[lo++];
        if (depth == bytes) break;
        unsigned byte = (uint8_t)text[depth];
        lo = lower(set->token, lo, hi, depth, byte);
        hi = lower(set->token, lo, hi, depth, byte + 1);
    }
    return found;
}

size_t stk_special_find(const stk_special_set *set, const char *text, size_t bytes, const stk_special_token **token) {
    for (size_t at = 0; set->token && at < bytes; at++) {
        uint8_t b = (uint8_t)text[at];
        if (set->first[b] == set->first[b + 1]) continue;
        *token = longest_at(set, text + at, bytes - at);
        if (*token) return at;
    }
    return bytes;
}
