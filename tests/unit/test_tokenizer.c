/* tokenizer: what is cut out of the text, BOS, arbitrary bytes, errors. Ids against the oracle: test_tokenizer_golden. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tiny_vocab.h"

enum { MAX_IDS = 64 };

static void expect_ids(const stk_tokenizer *t, const char *text, uint32_t flags, const int32_t *ids, size_t n) {
    int32_t got[MAX_IDS];
    int64_t m = stk_tokenizer_encode(t, text, strlen(text), flags, got, MAX_IDS);
    cr_assert_eq(m, (int64_t)n, "\"%s\": %lld tokens", text, (long long)m);
    if (m == (int64_t)n) cr_assert_eq(memcmp(got, ids, n * sizeof *ids), 0, "\"%s\"", text);
}

#define EXPECT(t, text, flags, ...)                                                                                              \
    expect_ids(t, text, flags, (int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

Test(tokenizer, special_tokens_are_cut_out_first) {
    stk_tokenizer *t = tiny_tokenizer(&tiny_default, NULL);
    EXPECT(t, "hello hello", 0, TINY_HELLO, TINY_SPACE_HELLO);
    EXPECT(t, "<|im_start|>hello<|im_end|>", STK_TOKENIZE_SPECIAL, TINY_START, TINY_HELLO, TINY_STOP);
    EXPECT(t, "<|im_end|>", 0, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    EXPECT(t, "<tool<tool_call><tool_call", 0, TINY_TOOL, TINY_TOOL_CALL, TINY_TOOL, '_', 'c', 'a', TINY_LL);
    stk_tokenizer_close(&t);
    cr_assert_null(t);
    stk_tokenizer_close(&t);
}

Test(tokenizer, a_whole_piece_skips_merges_where_the_group_says_so) {
    static const tiny_token token[] = {{"abc", 1}, {"xyz", 3}, {"<|x|>", 3}, {NULL, 0}};
    static const tiny_vocab v = {"gpt2", "qwen2", token, NULL};
    stk_tokenizer *t = tiny_tokenizer(&v, NULL), *ignoring = tiny_tokenizer(&v, "llama-bpe");
    EXPECT(t, "abc", 0, 'a', 'b', 'c');
    EXPECT(ignoring, "abc", 0, 256);
    EXPECT(ignoring, "xyz", 0, 'x', 'y', 'z'); /* plain text never becomes a control token */
    EXPECT(ignoring, "xyz", STK_TOKENIZE_SPECIAL, 257);
    stk_tokenizer_close(&t);
    stk_tokenizer_close(&ignoring);
}

static stk_tokenizer *with_bos(const char *pre, int key, int32_t id) {
    tiny_vocab v = tiny_default;
    v.pre = pre;
    gguf_build *b = tiny_vocab_build(&v);
    if (key >= 0) gguf_build_bool(b, "tokenizer.ggml.add_bos_token", key);
    if (id >= 0) gguf_build_u32(b, "tokenizer.ggml.bos_token_id", (uint32_t)id);
    stk_gguf *g = tiny_vocab_open(b);
    stk_tokenizer *t;
    cr_assert_eq(stk_tokenizer_open(&t, g, 300), 0, "%s", stk_error_detail());
    stk_gguf_close(&g);
    return t;
}

Test(tokenizer, bos_by_key_by_group_and_never_twice) {
    static const struct {
        const char *pre;
        int key;
        int32_t id;
        bool added;
    } cases[] = {{"qwen2", -1, TINY_END, false}, {"qwen2", 0, TINY_END, false},     {"qwen2", 1, TINY_END, true},
                 {"qwen2", 1, -1, false},        {"llama-bpe", -1, TINY_END, true}, {"llama-bpe", 0, TINY_END, false}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        stk_tokenizer *t = with_bos(cases[i].pre, cases[i].key, cases[i].id);
        EXPECT(t, "hello", 0, TINY_HELLO);
        EXPECT(t, "<|endoftext|>hello", STK_TOKENIZE_BOS | STK_TOKENIZE_SPECIAL, TINY_END, TINY_HELLO);
        if (cases[i].added) {
            EXPECT(t, "hello", STK_TOKENIZE_BOS, TINY_END, TINY_HELLO);
            EXPECT(t, "", STK_TOKENIZE_BOS, TINY_END);
            EXPECT(t, "hello<|endoftext|>", STK_TOKENIZE_BOS | STK_TOKENIZE_SPECIAL, TINY_END, TINY_HELLO, TINY_END);
        } else {
            EXPECT(t, "hello", STK_TOKENIZE_BOS, TINY_HELLO);
            cr_assert_eq(stk_tokenizer_encode(t, "", 0, STK_TOKENIZE_BOS, NULL, 0), 0);
        }
        stk_tokenizer_close(&t);
    }
}

Test(tokenizer, counts_beyond_the_room_given) {
    stk_tokenizer *t = tiny_tokenizer(&tiny_default, NULL);
    int32_t ids[3] = {-1, -1, -1};
    cr_assert_eq(stk_tokenizer_encode(t, "hello he x", 10, 0, ids, 2), 5);
    cr_assert_eq(ids[0], TINY_HELLO);
    cr_assert_eq(ids[1], ' ');
    cr_assert_eq(ids[2], -1);
    cr_assert_eq(stk_tokenizer_encode(t, "hello he x", 10, 0, NULL, 0), 5);
    cr_assert_eq(stk_tokenizer_encode(t, NULL, 0, 0, NULL, 0), 0);
    cr_assert_eq(stk_tokenizer_encode(t, NULL, 1, 0, NULL, 0), STK_EINVAL);
    cr_assert_eq(stk_tokenizer_encode(t, "a", 1, 0, NULL, 1), STK_EINVAL);
    cr_assert_eq(stk_tokenizer_encode(t, "a", 1, 64, NULL, 0), STK_EINVAL);
    stk_tokenizer_close(&t);
}

Test(tokenizer, any_bytes_come_back) {
    stk_tokenizer *t = tiny_tokenizer(&tiny_default, NULL);
    srand(9);
    for (int round = 0; round < 2000; round++) {
        char text[120], back[120];
        int32_t ids[256];
        size_t bytes = (size_t)rand() % sizeof text, n = 0;
        for (size_t i = 0; i < bytes; i++) text[i] = (char)rand();
        if (bytes > 30) memcpy(text + 5, "hello<tool<|im_end|>", 20);
        int64_t m = stk_tokenizer_encode(t, text, bytes, round % 2 ? STK_TOKENIZE_SPECIAL : 0, ids, 256);
        cr_assert(m >= 0 && m <= (int64_t)bytes);
        for (int64_t i = 0; i < m; i++) {
            const char *piece;
            int64_t k = stk_tokenizer_bytes(t, ids[i], true, &piece);
            cr_assert(k > 0 && n + (size_t)k <= bytes);
            memcpy(back + n, piece, (size_t)k);
            n += (size_t)k;
        }
        cr_assert(n == bytes && memcmp(text, back, n) == 0);
    }
    stk_tokenizer_close(&t);
}

static void *encode_often(void *user) {
    static const char text[] = "hello <tool_call>hello\xff 123 \u4e2d\U00031350 hello<|im_end|>  \n";
    int32_t first[MAX_IDS], ids[MAX_IDS];
    int64_t n = stk_tokenizer_encode(user, text, sizeof text, STK_TOKENIZE_SPECIAL, first, MAX_IDS), differ = n <= 0;
    for (int i = 0; i < 300; i++) {
        int64_t m = stk_tokenizer_encode(user, text, sizeof text, STK_TOKENIZE_SPECIAL, ids, MAX_IDS);
        differ += m != n || memcmp(ids, first, (size_t)n * sizeof *ids) != 0;
    }
    return differ ? user : NULL;
}

Test(tokenizer, threads_share_one) {
    stk_tokenizer *t = tiny_tokenizer(&tiny_default, NULL);
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) cr_assert_eq(pthread_create(&thread[i], NULL, encode_often, t), 0);
    for (int i = 0; i < 4; i++) {
        void *result = t;
        pthread_join(thread[i], &result);
        cr_assert_null(result);
    }
    stk_tokenizer_close(&t);
}

Test(tokenizer, what_tokens_print) {
    static const tiny_token token[] = {{"<u>", 2}, {"<c>", 3}, {"<user>", 4}, {"[PAD0]", 5}, {"\u0120a", 1}, {NULL, 0}};
    static const tiny_vocab v = {"gpt2", "qwen2", token, NULL};
    stk_tokenizer *t = tiny_tokenizer(&v, NULL);
    static const char *const plain[] = {"", "", "<user>", "", " a"}, *const special[] = {"<u>", "<c>", "<user>", "", " a"};
    for (int32_t i = 0; i < 5; i++)
        for (int asked = 0; asked < 2; asked++) {
            const char *bytes, *expected = asked ? special[i] : plain[i];
            cr_assert_eq(stk_tokenizer_bytes(t, 256 + i, asked, &bytes), (int64_t)strlen(expected));
            cr_assert_eq(memcmp(bytes, expected, strlen(expected)), 0);
        }
    const char *bytes;
    cr_assert_eq(stk_tokenizer_bytes(t, 1023, true, &bytes), 0, "a row of the embedding beyond the list");
    cr_assert_eq(stk_tokenizer_bytes(t, 1024, true, &bytes), STK_EINVAL);
    cr_assert_eq(stk_tokenizer_bytes(t, -1, true, &bytes), STK_EINVAL);
    cr_assert_eq(stk_tokenizer_max_bytes(t), 6);
    stk_tokenizer_close(&t);
}

Test(tokenizer, ends_and_specials_by_text) {
    stk_tokenizer *t = tiny_tokenizer(&tiny_default, NULL);
    cr_assert(stk_tokenizer_is_end(t, TINY_END) && stk_tokenizer_is_end(t, TINY_STOP));
    cr_assert(!stk_tokenizer_is_end(t, TINY_START) && !stk_tokenizer_is_end(t, -1) && !stk_tokenizer_is_end(t, 1 << 30));
    cr_assert_eq(stk_tokenizer_find_special(t, "<|im_start|>"), TINY_START);
    cr_assert_eq(stk_tokenizer_find_special(t, "<tool"), TINY_TOOL);
    cr_assert_eq(stk_tokenizer_find_special(t, "<|im_start|>x"), -1);
    cr_assert_eq(stk_tokenizer_find_special(t, "hello"), -1);
    cr_assert_eq(stk_tokenizer_find_special(t, ""), -1);
    stk_tokenizer_close(&t);
}

static int warnings;
static void count_warnings(void *user, int level, const char *line) {
    (void)user, (void)line;
    warnings += level == STK_LOG_WARN;
}

static int open_rc(const tiny_vocab *v, uint32_t n_vocab, const char *word) {
    stk_gguf *g = tiny_vocab_open(tiny_vocab_build(v));
    stk_tokenizer *t;
    int rc = stk_tokenizer_open(&t, g, n_vocab);
    if (rc < 0) cr_assert_null(t);
    if (rc < 0) cr_assert_not_null(strstr(stk_error_detail(), word), "%s", stk_error_detail());
    stk_tokenizer_close(&t);
    stk_gguf_close(&g);
    return rc;
}

Test(tokenizer, what_it_refuses) {
    tiny_vocab v = tiny_default;
    cr_assert_eq(open_rc(&v, TINY_N, ""), 0);
    cr_assert_eq(open_rc(&v, TINY_N - 1, "265 rows"), STK_EFORMAT);
    v.model = "llama";
    cr_assert_eq(open_rc(&v, 300, "\"llama\""), STK_EUNSUPPORTED);
    v.model = NULL;
    cr_assert_eq(open_rc(&v, 300, "tokenizer.ggml.model"), STK_EFORMAT);
    v = tiny_default;
    v.pre = "superbpe";
    cr_assert_eq(open_rc(&v, 300, "\"superbpe\""), STK_EUNSUPPORTED);
    v = tiny_default;
    v.merge = (const char *const[]){"q q", NULL};
    cr_assert_eq(open_rc(&v, 300, "merges"), STK_EFORMAT);
    stk_log_set(count_warnings, NULL);
    v = tiny_default;
    v.pre = NULL;
    cr_assert_eq(open_rc(&v, 300, ""), 0);
    cr_assert_eq(warnings, 1);
}

Test(tokenizer, a_byte_without_a_token_is_an_error_not_a_loss) {
    static const char *const texts[] = {"a", "b"};
    gguf_build *b = gguf_build_open();
    gguf_build_str(b, "tokenizer.ggml.model", "gpt2");
    gguf_build_str(b, "tokenizer.ggml.pre", "qwen2");
    gguf_build_array(b, "tokenizer.ggml.tokens", STK_GGUF_STRING, 2, texts);
    gguf_build_array(b, "tokenizer.ggml.merges", STK_GGUF_STRING, 0, texts);
    stk_gguf *g = tiny_vocab_open(b);
    stk_tokenizer *t;
    cr_assert_eq(stk_tokenizer_open(&t, g, 2), 0, "%s", stk_error_detail());
    EXPECT(t, "abba", 0, 0, 1, 1, 0);
    cr_assert_eq(stk_tokenizer_encode(t, "abc", 3, 0, NULL, 0), STK_EUNSUPPORTED);
    cr_assert_not_null(strstr(stk_error_detail(), "0x63"));
    stk_tokenizer_close(&t);
    stk_gguf_close(&g);
}
