/* chat: messages as ChatML, "<|im_start|>ROLE\nTEXT<|im_end|>\n" each, and the opening of the assistant's turn. */
#include <string.h>

#include "src/model/model.h"

#define TURN_OPENS "<|im_start|>"
#define TURN_ENDS  "<|im_end|>"

typedef struct writer {
    char *out;
    size_t cap;
    size_t n; /* bytes of the whole text, written or not */
} writer;

static void append(writer *w, const char *text) {
    size_t bytes = strlen(text);
    if (w->n < w->cap) memcpy(w->out + w->n, text, STK_MIN(bytes, w->cap - w->n));
    w->n += bytes;
}

static bool is_role(const char *role) {
    return strcmp(role, "system") == 0 || strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0;
}

static int check(const stk_model *model, const stk_chat_message *messages, size_t n, const char *out, size_t cap) {
    if (!model || (!messages && n) || (!out && cap)) return stk_fail(STK_EINVAL, "stk_chat_format: an argument is NULL");
    for (size_t i = 0; i < n; i++) {
        if (!messages[i].role || !messages[i].text) return stk_fail(STK_EINVAL, "chat message %zu has no role or no text", i);
        if (!is_role(messages[i].role))
            return stk_fail(STK_EINVAL, "chat message %zu has the role \"%.64s\"; known are system, user and assistant", i,
                            messages[i].role);
    }
    const stk_tokenizer *tokenizer = stk_model_tokenizer(model);
    if (!tokenizer) return model->tokenizer_rc;
    if (stk_tokenizer_find_special(tokenizer, TURN_OPENS) < 0 || stk_tokenizer_find_special(tokenizer, TURN_ENDS) < 0)
        return stk_fail(STK_EUNSUPPORTED,
                        "the model was not made for ChatML: its vocabulary lacks the token " TURN_OPENS " or " TURN_ENDS);
    return 0;
}

int64_t stk_chat_format(const stk_model *model, const stk_chat_message *messages, size_t n, char *out, size_t cap) {
    STK_TRY(check(model, messages, n, out, cap));
    writer w = {out, cap, 0};
    for (size_t i = 0; i < n; i++) {
        append(&w, TURN_OPENS);
        append(&w, messages[i].role);
        append(&w, "\n");
        append(&w, messages[i].text);
        append(&w, TURN_ENDS "\n");
    }
    append(&w, TURN_OPENS "assistant\n");
    if (w.n < cap) out[w.n] = 0;
    return (int64_t)w.n;
}
