/* pretokenize: names, pieces of text in and out of UTF-8. That pieces are the right ones is test_tokenizer_golden's matter. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "src/text/pretokenize.h"

typedef struct pieces {
    char text[4096]; /* the pieces, each followed by '|' */
    size_t n;
    int stop_after; /* pieces; 0: never */
} pieces;

static int collect(void *user, const char *piece, size_t bytes) {
    pieces *p = user;
    cr_assert(bytes > 0 && p->n + bytes + 1 < sizeof p->text);
    memcpy(p->text + p->n, piece, bytes);
    p->n += bytes;
    p->text[p->n++] = '|';
    return p->stop_after && --p->stop_after == 0 ? STK_ECANCELED : 0;
}

static int split(const char *pre, const char *text, size_t bytes, pieces *out) {
    stk_pretokenizer *p;
    stk_splitter *s;
    cr_assert_eq(stk_pretokenizer_open(&p, pre, strlen(pre)), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_splitter_open(&s, p, collect, out), 0);
    int rc = stk_splitter_run(s, text, bytes);
    out->text[out->n] = 0;
    stk_splitter_close(&s);
    stk_pretokenizer_close(&p);
    return rc;
}

#define EXPECT(pre, in, out)                                                                                                     \
    do {                                                                                                                         \
        pieces got = {.n = 0};                                                                                                   \
        cr_assert_eq(split(pre, in, sizeof(in) - 1, &got), 0);                                                                   \
        cr_assert_str_eq(got.text, out, "%s: %s", pre, got.text);                                                                \
    } while (0)

Test(pretokenize, the_three_main_rules_differ_where_they_should) {
    EXPECT("qwen2", "I'LL pay 1234  dollars!\r\n\n x", "I|'LL| pay| |1|2|3|4| | dollars|!\r\n\n| x|");
    EXPECT("llama-bpe", "I'LL pay 1234  dollars!\r\n\n x", "I|'LL| pay| |123|4| | dollars|!\r\n\n| x|");
    EXPECT("gpt-2", "I'LL pay 1234  dollars!\r\n\n x", "I|'|LL| pay| 1234| | dollars|!|\r\n\n| x|");
    EXPECT("default", "pay 1234, y", "pay| |123|4|,| y|");
    EXPECT("gpt-4o", "HTTPServer'sX camelCase", "HTTPServer's|X| camel|Case|");
}

Test(pretokenize, white_space_and_new_letters_do_not_follow_pcre2) {
    EXPECT("qwen2", "a\u180e\u180eb", "a|\u180e\u180e|b|"); /* was a space once */
    EXPECT("qwen2",
           "a \xc2\x85"
           "b",
           "a| |\xc2\x85"
           "b|");
    EXPECT("qwen2", "\U00031350\U00031351 \U000105c0x", "\U00031350\U00031351| \U000105c0x|"); /* Unicode 15 and 16 */
}

Test(pretokenize, runs_of_invalid_bytes_are_pieces) {
    EXPECT("qwen2", "ab\xff\xc3(\xe2\x82 cd", "ab|\xff\xc3|(|\xe2\x82| cd|");
    EXPECT("qwen2", "\xf0\x9f\x98", "\xf0\x9f\x98|");
    EXPECT("qwen2", "a  \xff  b", "a|  |\xff| | b|"); /* no rule looks across */
    EXPECT("qwen2", "", "");
}

Test(pretokenize, every_group_gives_the_text_back_and_passes_errors_on) {
    static const char *const groups[] = {"default", "gpt-2",      "starcoder",    "llama-bpe",      "dbrx",
                                         "qwen2",   "qwen35",     "deepseek-llm", "deepseek-coder", "deepseek-v3",
                                         "gpt-4o",  "tekken",     "kimi-k2",      "bailingmoe2",    "seed-coder",
                                         "falcon",  "exaone-moe", "laguna",       "minicpm5"};
    srand(11);
    for (size_t g = 0; g < STK_ARRAY_LEN(groups); g++)
        for (int round = 0; round < 50; round++) {
            char text[200];
            size_t bytes = (size_t)rand() % sizeof text;
            for (size_t i = 0; i < bytes; i++) text[i] = (char)(rand() % 3 ? rand() % 128 : rand());
            pieces got = {.n = 0}, cut = {.stop_after = 2};
            cr_assert_eq(split(groups[g], text, bytes, &got), 0);
            size_t n = 0, at = 0;
            for (size_t i = 0; i < got.n; i++) {
                if (at < bytes && got.text[i] == text[at])
                    at++;
                else
                    n++;
            }
            cr_assert_eq(at, bytes, "%s lost bytes", groups[g]);
            cr_assert_leq(n, bytes + 1);
            if (split(groups[g], text, bytes, &cut) == 0) cr_assert_gt(cut.stop_after, 0);
        }
}

Test(pretokenize, names) {
    stk_pretokenizer *p;
    static const char *const refused[] = {"", "qwen", "qwen2 ", "qwen2 deepseek-r1-qwen", "QWEN2", "superbpe"};
    for (size_t i = 0; i < STK_ARRAY_LEN(refused); i++) {
        cr_assert_eq(stk_pretokenizer_open(&p, refused[i], strlen(refused[i])), STK_EUNSUPPORTED);
        cr_assert_null(p);
        cr_assert_not_null(strstr(stk_error_detail(), refused[i]));
    }
    static const struct {
        const char *name;
        bool ignores, bos;
    } known[] = {{"llama3", true, true},
                 {"pixtral", true, true},
                 {"hunyuan", false, false},
                 {"granite-docling", false, false},
                 {"minicpm5", true, false}};
    for (size_t i = 0; i < STK_ARRAY_LEN(known); i++) {
        cr_assert_eq(stk_pretokenizer_open(&p, known[i].name, strlen(known[i].name)), 0);
        cr_assert_eq(stk_pretokenizer_ignores_merges(p), known[i].ignores);
        cr_assert_eq(stk_pretokenizer_adds_bos(p), known[i].bos);
        stk_pretokenizer_close(&p);
    }
}

static int count(void *user, const char *piece, size_t bytes) {
    (void)piece;
    *(size_t *)user += bytes;
    return 0;
}

/* Quadratic time would be minutes. */
Test(pretokenize, long_runs_take_linear_time, .timeout = 60) {
    static const char *const groups[] = {"qwen2", "gpt-2", "deepseek-llm", "deepseek-v3", "gpt-4o", "kimi-k2", "exaone-moe"};
    enum { N = 1 << 20 };
    static char text[N + 3];
    for (size_t g = 0; g < STK_ARRAY_LEN(groups); g++)
        for (const char *fill = " a A1!\n\x01"; *fill; fill++) {
            memset(text, *fill, N);
            memcpy(text + N, "\u4e2d", 3);
            stk_pretokenizer *p;
            stk_splitter *s;
            size_t n = 0;
            cr_assert_eq(stk_pretokenizer_open(&p, groups[g], strlen(groups[g])), 0);
            cr_assert_eq(stk_splitter_open(&s, p, count, &n), 0);
            cr_assert_eq(stk_splitter_run(s, text, sizeof text), 0, "%s", stk_error_detail());
            cr_assert_eq(n, sizeof text);
            stk_splitter_close(&s);
            stk_pretokenizer_close(&p);
        }
}
