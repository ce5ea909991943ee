/*
 * decoder: a stream of tokens as text in whole UTF-8 characters. What it puts out, all together, is the tokens' bytes with each
 * invalid sequence replaced by U+FFFD, as Hugging Face's byte-level decoder does for the whole list at once.
 */
#include <stdlib.h>
#include <string.h>

#include "src/model/model.h"
#include "unicode.h"

enum { HELD_MAX = 3 }; /* bytes of a character of 4 that is still incomplete */

struct stk_decoder {
    const stk_tokenizer *tokenizer;
    bool special;
    uint8_t n_held; /* bytes at the start of `in` that are part of a character */
    char *in;       /* [HELD_MAX + the longest token] */
    char *out;      /* [3 times as many]: U+FFFD has three bytes, and stands for at least one */
};

int stk_decoder_open(stk_decoder **out, const stk_model *model, int special) {
    if (!out) return stk_fail(STK_EINVAL, "stk_decoder_open: an argument is NULL");
    *out = NULL;
    if (!model) return stk_fail(STK_EINVAL, "stk_decoder_open: an argument is NULL");
    const stk_tokenizer *tokenizer = stk_model_tokenizer(model);
    if (!tokenizer) return model->tokenizer_rc;
    size_t cap = HELD_MAX + stk_tokenizer_max_bytes(tokenizer);
    stk_decoder *d = malloc(sizeof *d + 4 * cap);
    if (!d) return stk_fail(STK_ENOMEM, "no memory for a decoder");
    *d = (stk_decoder){.tokenizer = tokenizer, .special = special != 0, .in = (char *)(d + 1), .out = (char *)(d + 1) + cap};
    *out = d;
    return 0;
}

void stk_decoder_close(stk_decoder **decoder) {
    if (!decoder) return;
    free(*decoder);
    *decoder = NULL;
}

/* Turns the first `bytes` bytes of d->in into text; keeps a last incomplete character unless `all`. */
static int64_t drain(stk_decoder *d, size_t bytes, bool all) {
    size_t at = 0, n = 0;
    while (at < bytes) {
        uint32_t cp;
        int step = stk_utf8_scan(d->in + at, bytes - at, &cp);
        if (step == 0 && !all) break;
        if (step > 0) {
            memcpy(d->out + n, d->in + at, (size_t)step);
            n += (size_t)step;
        } else {
            n += stk_utf8_write(0xfffd, d->out + n);
            step = step < 0 ? -step : (int)(bytes - at);
        }
        at += (size_t)step;
    }
    d->n_held = (uint8_t)(bytes - at);
    memmove(d->in, d->in + at, d->n_held);
    return (int64_t)n;
}

int64_t stk_decoder_put(stk_decoder *decoder, int32_t id, const char **text) {
    if (!decoder || !text) return stk_fail(STK_EINVAL, "stk_decoder_put: an argument is NULL");
    const char *bytes;
    *text = decoder->out;
    int64_t n = stk_tokenizer_bytes(decoder->tokenizer, id, decoder->special, &bytes);
    if (n < 0) return n;
    memcpy(decoder->in + decoder->n_held, bytes, (size_t)n);
    return drain(decoder, decoder->n_held + (size_t)n, false);
}

int64_t stk_decoder_flush(stk_decoder *decoder, const char **text) {
    if (!decoder || !text) return stk_fail(STK_EINVAL, "stk_decoder_flush: an argument is NULL");
    *text = decoder->out;
    return drain(decoder, decoder->n_held, true);
}
