/* bpe: against merging by the definition, on words and on long pieces; broken merge lists. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/text/bpe.h"
#include "tiny_vocab.h"

enum { N_PAIR = 200 };

static char texts[N_PAIR][64], pairs[N_PAIR][128];
static tiny_token tokens[N_PAIR + 5];
static const char *merges[N_PAIR + 1];
static int32_t left[N_PAIR], right[N_PAIR];
static uint32_t n_pair;

/* Random merges over the letters a to d, longer tokens from shorter ones. */
static void grow_vocabulary(void) {
    const char *known[N_PAIR + 4] = {"a", "b", "c", "d"};
    int32_t known_id[N_PAIR + 4] = {'a', 'b', 'c', 'd'};
    uint32_t n_known = 4;
    n_pair = 0;
    for (int tries = 0; n_pair < N_PAIR && tries < 100000; tries++) {
        uint32_t l = (uint32_t)rand() % n_known, r = (uint32_t)rand() % n_known;
        if (strlen(known[l]) + strlen(known[r]) > 24) continue;
        snprintf(texts[n_pair], sizeof texts[0], "%s%s", known[l], known[r]);
        bool seen = false;
        for (uint32_t i = 0; i < n_known; i++) seen |= strcmp(known[i], texts[n_pair]) == 0;
        if (seen) continue; /* one way to make each token is enough here */
        snprintf(pairs[n_pair], sizeof pairs[0], "%s %s", known[l], known[r]);
        left[n_pair] = known_id[l];
        right[n_pair] = known_id[r];
        tokens[n_pair] = (tiny_token){texts[n_pair], 1};
        merges[n_pair] = pairs[n_pair];
        known_id[n_known] = 256 + (int32_t)n_pair;
        known[n_known++] = texts[n_pair++];
    }
    tokens[n_pair] = (tiny_token){NULL, 0};
    merges[n_pair] = NULL;
}

/* The definition: always the first listed merge that applies anywhere, at its leftmost place. */
static size_t slow_merge(const char *piece, size_t n, int32_t *ids) {
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)piece[i];
    for (uint32_t rank = 0; rank < n_pair;) {
        size_t at = 0;
        while (at + 1 < n && !(ids[at] == left[rank] && ids[at + 1] == right[rank])) at++;
        if (at + 1 >= n) {
            rank++;
            continue;
        }
        ids[at] = 256 + (int32_t)rank;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
        rank = 0; /* the new neighbours may merge by an earlier rule */
    }
    return n;
}

static void open_all(stk_vocab *v, stk_bpe **b, gguf_build *build) {
    stk_gguf *g = tiny_vocab_open(build);
    cr_assert_eq(stk_vocab_init(v, g), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_bpe_open(b, v, g), 0, "%s", stk_error_detail());
    stk_gguf_close(&g);
}

Test(bpe, merges_as_defined) {
    srand(3);
    for (int round = 0; round < 20; round++) {
        grow_vocabulary();
        stk_vocab v;
        stk_bpe *b;
        stk_bpe_work work = {0};
        open_all(&v, &b, tiny_vocab_build(&(tiny_vocab){"gpt2", "qwen2", tokens, merges}));
        for (int i = 0; i < 60; i++) {
            char piece[400];
            int32_t expected[400];
            size_t bytes = 1 + (size_t)rand() % (i % 3 ? 40 : sizeof piece); /* both sides of the short pieces' limit */
            for (size_t j = 0; j < bytes; j++) piece[j] = "abcd"[rand() % 4];
            size_t n = slow_merge(piece, bytes, expected);
            cr_assert_eq(stk_bpe_merge(b, &work, piece, bytes), (int64_t)n);
            cr_assert_eq(memcmp(work.id, expected, n * sizeof *expected), 0, "%.*s", (int)bytes, piece);
        }
        stk_bpe_work_fini(&work);
        stk_bpe_close(&b);
        stk_vocab_fini(&v);
    }
}

/* Quadratic time would be hours. */
Test(bpe, a_piece_of_megabytes, .timeout = 60) {
    enum { N = 4 << 20 };
    stk_vocab v;
    stk_bpe *b;
    stk_bpe_work work = {0};
    open_all(&v, &b, tiny_vocab_build(&tiny_default));
    char *piece = malloc(N);
    for (size_t i = 0; i < N; i++) piece[i] = "hello"[i % 5];
    cr_assert_eq(stk_bpe_merge(b, &work, piece, N), N / 5 + 1); /* the last one is cut to "hell" */
    free(piece);
    stk_bpe_work_fini(&work);
    stk_bpe_close(&b);
    stk_vocab_fini(&v);
}

static int open_with(const char *merge) {
    const char *const list[] = {"h e", merge, NULL};
    stk_gguf *g = tiny_vocab_open(tiny_vocab_build(&(tiny_vocab){"gpt2", "qwen2", tiny_default.token, list}));
    stk_vocab v;
    stk_bpe *b;
    cr_assert_eq(stk_vocab_init(&v, g), 0);
    int rc = stk_bpe_open(&b, &v, g);
    if (rc < 0) cr_assert_null(b);
    stk_bpe_close(&b);
    stk_vocab_fini(&v);
    stk_gguf_close(&g);
    return rc;
}

Test(bpe, broken_merges_are_named) {
    cr_assert_eq(open_with("l l"), 0);
    static const char *const broken[] = {"", " ", "l", "ll", "l ", " l", "l x", "x l", "zz l", "l l l", "\u4e2d l"};
    for (size_t i = 0; i < STK_ARRAY_LEN(broken); i++) {
        cr_assert_eq(open_with(broken[i]), STK_EFORMAT, "\"%s\"", broken[i]);
        cr_assert_not_null(strstr(stk_error_detail(), "merges: entry 1"), "%s", stk_error_detail());
    }
}
