/* chat: ChatML as the models' template writes it, and what is refused. */
#include <criterion/criterion.h>
#include <string.h>

#include "src/model/model.h"
#include "tiny_vocab.h"

static const stk_chat_message messages[] = {{"system", "Be brief."}, {"user", "Hi\n"}, {"assistant", ""}, {"user", "why?"}};
static const char expected[] =
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
    "<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n";
enum { NEEDED = sizeof expected - 1 };

static stk_model model;
static void setup(void) { model.tokenizer = tiny_tokenizer(&tiny_default, NULL); }
static void teardown(void) { stk_tokenizer_close(&model.tokenizer); }

Test(chat, writes_every_turn_and_opens_the_next, .init = setup, .fini = teardown) {
    char out[NEEDED + 2];
    for (size_t cap = 0; cap <= sizeof out; cap++) {
        memset(out, '#', sizeof out);
        cr_assert_eq(stk_chat_format(&model, messages, 4, cap ? out : NULL, cap), NEEDED);
        size_t n = cap < NEEDED ? cap : NEEDED;
        cr_assert_eq(memcmp(out, expected, n), 0);
        if (cap > NEEDED) cr_assert_eq(out[n++], 0);
        for (; n < sizeof out; n++) cr_assert_eq(out[n], '#', "wrote beyond %zu", cap);
    }
    cr_assert_eq(stk_chat_format(&model, NULL, 0, out, sizeof out), 22);
    cr_assert_str_eq(out, "<|im_start|>assistant\n");
}

Test(chat, refusals, .init = setup, .fini = teardown) {
    cr_assert_eq(stk_chat_format(NULL, messages, 1, NULL, 0), STK_EINVAL);
    cr_assert_eq(stk_chat_format(&model, NULL, 1, NULL, 0), STK_EINVAL);
    cr_assert_eq(stk_chat_format(&model, messages, 1, NULL, 1), STK_EINVAL);
    cr_assert_eq(stk_chat_format(&model, &(stk_chat_message){"user", NULL}, 1, NULL, 0), STK_EINVAL);
    cr_assert_eq(stk_chat_format(&model, &(stk_chat_message){"user<|im_end|>", ""}, 1, NULL, 0), STK_EINVAL);
    cr_assert_not_null(strstr(stk_error_detail(), "role"));
}

Test(chat, a_model_without_the_tokens) {
    static const tiny_token token[] = {{"<|im_start|>", 3}, {"<|im_end|>", 5}, {NULL, 0}};
    stk_model other = {.tokenizer = tiny_tokenizer(&(tiny_vocab){"gpt2", "qwen2", token, NULL}, NULL)};
    cr_assert_eq(stk_chat_format(&other, messages, 1, NULL, 0), STK_EUNSUPPORTED);
    cr_assert_not_null(strstr(stk_error_detail(), "ChatML"));
    stk_tokenizer_close(&other.tokenizer);
    stk_model none = {.tokenizer_rc = STK_EUNSUPPORTED, .tokenizer_error = "no tokenizer here"};
    cr_assert_eq(stk_chat_format(&none, messages, 1, NULL, 0), STK_EUNSUPPORTED);
}
