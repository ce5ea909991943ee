/*
 * Fuzz target: the first byte chooses a pre-tokenizer and whether control tokens are recognised, the rest is text for a tiny
 * vocabulary. The tokens must print the text again, and decoded one by one they must give the same text as all at once, in whole
 * characters.
 */
#include <stdlib.h>
#include <string.h>

#include "src/model/model.h"
#include "src/text/unicode.h"
#include "tests/unit/tiny_vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {"default",      "gpt-2",      "starcoder",   "llama-bpe",      "glm4",    "qwen2",  "qwen35",
                                    "deepseek-llm", "laguna",     "deepseek-v3", "deepseek-coder", "gpt-4o",  "tekken", "kimi-k2",
                                    "bailingmoe2",  "seed-coder", "exaone-moe",  "falcon",         "minicpm5"};
static stk_tokenizer *tokenizers[STK_ARRAY_LEN(names)];

static void check(bool holds) {
    if (!holds) abort();
}

static void check_round_trip(const stk_tokenizer *t, const int32_t *ids, int64_t n, const char *text, size_t size) {
    size_t done = 0;
    for (int64_t i = 0; i < n; i++) {
        const char *bytes;
        int64_t m = stk_tokenizer_bytes(t, ids[i], true, &bytes);
        check(m > 0 && (size_t)m <= size - done && memcmp(text + done, bytes, (size_t)m) == 0);
        done += (size_t)m;
    }
    check(done == size);
}

static void check_stream(stk_tokenizer *t, const int32_t *ids, int64_t n, const char *text, size_t size) {
    stk_model model = {.tokenizer = t};
    stk_decoder *d;
    if (stk_decoder_open(&d, &model, 1) < 0) abort();
    size_t at = 0;
    for (int64_t i = 0; i <= n; i++) {
        const char *piece;
        int64_t m = i < n ? stk_decoder_put(d, ids[i], &piece) : stk_decoder_flush(d, &piece);
        check(m >= 0);
        for (int64_t done = 0; done < m;) {
            check(at < size);
            uint32_t cp;
            char whole[4];
            int step = stk_utf8_scan(text + at, size - at, &cp);
            size_t k = stk_utf8_write(step > 0 ? cp : 0xfffd, whole);
            check((int64_t)k <= m - done && memcmp(piece + done, whole, k) == 0);
            done += (int64_t)k;
            at += step > 0 ? (size_t)step : step < 0 ? (size_t)-step : size - at;
        }
    }
    check(at == size);
    stk_decoder_close(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    size_t choice = data[0] / 2 % STK_ARRAY_LEN(names);
    const char *text = (const char *)data + 1;
    size--;
    if (!tokenizers[choice]) tokenizers[choice] = tiny_tokenizer(&tiny_default, names[choice]);
    stk_tokenizer *t = tokenizers[choice];
    uint32_t flags = data[0] & 1 ? STK_TOKENIZE_SPECIAL : 0;
    int32_t *ids = malloc((size + 1) * sizeof *ids);
    check(ids != NULL);
    int64_t n = stk_tokenizer_encode(t, text, size, flags, ids, size + 1);
    check(n >= 0 && (size_t)n <= size);
    check_round_trip(t, ids, n, text, size);
    check_stream(t, ids, n, text, size);
    free(ids);
    return 0;
}
