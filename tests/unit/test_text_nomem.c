/*
 * tokenizer, decoder, sampler: when memory runs out at the n-th allocation, for every n: STK_ENOMEM, and nothing lost (the
 * address sanitizer looks).
 */
#include <criterion/criterion.h>
#include <string.h>

#include "src/model/model.h"
#include "tests/alloc_fail.h"
#include "tiny_vocab.h"

static stk_gguf *file;
static stk_tokenizer *tokenizer;

static int64_t open_tokenizer(void) {
    stk_tokenizer *t;
    int rc = stk_tokenizer_open(&t, file, 300);
    cr_assert_eq(t == NULL, rc < 0);
    stk_tokenizer_close(&t);
    return rc;
}

static int64_t encode(void) {
    char text[2000];
    memset(text, 'x', sizeof text); /* several sizes of scratch, and a copy for newer characters */
    memcpy(text + 100, " hello\xff \U00031350 <|im_end|> ", 23);
    return stk_tokenizer_encode(tokenizer, text, sizeof text, STK_TOKENIZE_SPECIAL, NULL, 0);
}

static int64_t open_decoder(void) {
    stk_model model = {.tokenizer = tokenizer};
    stk_decoder *d;
    int rc = stk_decoder_open(&d, &model, 0);
    cr_assert_eq(d == NULL, rc < 0);
    stk_decoder_close(&d);
    return rc;
}

static int64_t open_sampler(void) {
    stk_sampler_options o;
    stk_sampler_options_default(&o, sizeof o);
    o.repeat_penalty = 2;
    stk_sampler *s;
    int rc = stk_sampler_open(&s, &o, 100);
    cr_assert_eq(s == NULL, rc < 0);
    stk_sampler_close(&s);
    return rc;
}

/* Returns how many allocations a run without failure makes. */
static int64_t check(int64_t (*run)(void)) {
    for (int64_t n = 0;; n++) {
        until_failure = n;
        n_failed = 0;
        int64_t rc = run();
        until_failure = -1;
        if (n_failed == 0) {
            cr_assert_geq(rc, 0, "%s", stk_error_detail());
            return n;
        }
        cr_assert_eq(rc, STK_ENOMEM, "at %d: %d, %s", (int)n, (int)rc, stk_error_detail());
    }
}

Test(text_nomem, every_allocation_may_fail) {
    file = tiny_vocab_open(tiny_vocab_build(&tiny_default));
    tokenizer = tiny_tokenizer(&tiny_default, NULL);
    cr_assert_geq(check(open_tokenizer), 10);
    cr_assert_geq(check(encode), 7);
    cr_assert_eq(check(open_decoder), 1);
    cr_assert_eq(check(open_sampler), 5);
    stk_tokenizer_close(&tokenizer);
    stk_gguf_close(&file);
}
