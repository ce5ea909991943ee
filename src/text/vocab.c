/* vocab: reads the tokenizer.ggml keys that describe single tokens, and trusts none of them. */
#include "vocab.h"

#include <stdlib.h>
#include <string.h>

#include "unicode.h"

/*
 * Texts that end generation whatever the keys say; files name one of several, or none. A token of the normal kind must look like
 * a control token ("<|...|>") to count, so that "</s>" in somebody's HTML does not.
 */
static const char *const end_texts[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>",
    "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
    "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
    /* fill in the middle: padding, next repository, next file */
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<reponame>", "<|file_sep|>"};

static const char *const end_keys[] = {"tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id",
                                       "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id"};

int64_t stk_vocab_unmap(const char *text, size_t bytes, char *out) {
    size_t n = 0;
    for (size_t at = 0; at < bytes;) {
        uint32_t cp;
        int step = stk_utf8_scan(text + at, bytes - at, &cp);
        if (step <= 0) return -1;
        at += (size_t)step;
        if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xac) || (cp >= 0xae && cp <= 0xff))
            out[n++] = (char)cp;
        else if (cp >= 0x100 && cp <= 0x120)
            out[n++] = (char)(cp - 0x100); /* 0x00-0x20 */
        else if (cp >= 0x121 && cp <= 0x142)
            out[n++] = (char)(cp - 0x121 + 0x7f); /* 0x7f-0xa0 */
        else if (cp == 0x143)
            out[n++] = (char)0xad;
        else
            return -1;
    }
    return (int64_t)n;
}

static uint64_t hash(uint64_t h, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) h = (h ^ (uint8_t)text[i]) * 0x100000001b3u; /* FNV-1a */
    return h;
}

/* The slot that holds the token a + b, or the empty one where it belongs. */
static int32_t *slot_of(const stk_vocab *v, const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    uint64_t h = hash(hash(0xcbf29ce484222325u, a, a_bytes), b, b_bytes);
    for (uint64_t i = (h ^ h >> 32) & (v->n_slot - 1);; i = (i + 1) & (v->n_slot - 1)) {
        if (v->slot[i] < 0) return &v->slot[i];
        const stk_vocab_token *t = &v->token[v->slot[i]];
        if (t->bytes == a_bytes + b_bytes && memcmp(t->text, a, a_bytes) == 0 && memcmp(t->text + a_bytes, b, b_bytes) == 0)
            return &v->slot[i];
    }
}

int32_t stk_vocab_find(const stk_vocab *v, const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    return *slot_of(v, a, a_bytes, b, b_bytes);
}

static const stk_gguf_value *array(const stk_gguf *g, const char *key, uint64_t n, const char *what, int *rc) {
    const stk_gguf_value *value = stk_gguf_find(g, key);
    *rc = 0;
    if (value && value->type != STK_GGUF_ARRAY)
        *rc = stk_fail(STK_EFORMAT, "%s is not an array of %s", key, what);
    else if (value && n && value->n != n)
        *rc = stk_fail(STK_EFORMAT, "%s has %llu entries for %llu tokens", key, (unsigned long long)value->n,
                       (unsigned long long)n);
    return *rc < 0 ? NULL : value;
}

/* Copies the texts, each in its own kind of writing, into one block. Sets v->n as far as tokens are complete. */
static int read_tokens(stk_vocab *v, const stk_gguf *g, bool *mapped) {
    int rc;
    const stk_gguf_value *kinds = array(g, "tokenizer.ggml.token_type", v->n, "integers", &rc);
    STK_TRY(rc);
    if (kinds && kinds->item != STK_GGUF_I32 && kinds->item != STK_GGUF_U32)
        return stk_fail(STK_EFORMAT, "tokenizer.ggml.token_type is not an array of 32-bit integers");
    const stk_gguf_string *texts = stk_gguf_find(g, "tokenizer.ggml.tokens")->data;
    char *at = v->text;
    for (uint32_t i = 0; i < v->n; i++) {
        stk_vocab_token *t = &v->token[i];
        int32_t kind = kinds ? ((const int32_t *)kinds->data)[i] : STK_TOKEN_NORMAL;
        if (kind < STK_TOKEN_NORMAL || kind > STK_TOKEN_BYTE)
            return stk_fail(STK_EFORMAT, "tokenizer.ggml.token_type: token %u has the unknown type %d", i, kind);
        int64_t bytes = kind == STK_TOKEN_NORMAL ? stk_vocab_unmap(texts[i].text, texts[i].bytes, at) : -1;
        mapped[i] = bytes >= 0 || kind != STK_TOKEN_NORMAL;
        if (bytes < 0) {
            if (texts[i].bytes) memcpy(at, texts[i].text, texts[i].bytes);
            bytes = (int64_t)texts[i].bytes;
        }
        *t = (stk_vocab_token){.text = at, .bytes = (uint32_t)bytes, .kind = (uint8_t)kind};
        v->max_bytes = STK_MAX(v->max_bytes, t->bytes);
        at += bytes;
    }
    return 0;
}

static bool same_text(const stk_vocab_token *t, const char *text) {
    return t->bytes == strlen(text) && memcmp(t->text, text, t->bytes) == 0;
}

static bool has_text(const stk_vocab *v, const char *text) { return stk_vocab_find(v, text, strlen(text), "", 0) >= 0; }

static bool looks_like_control(const stk_vocab_token *t) {
    return t->bytes > 4 && memcmp(t->text, "<|", 2) == 0 && memcmp(t->text + t->bytes - 2, "|>", 2) == 0;
}

/* An id from the metadata; -1 when the key is absent. */
static int read_id(const stk_vocab *v, const stk_gguf *g, const char *key, int32_t *id) {
    uint32_t value;
    int found = stk_gguf_u32(g, key, &value);
    STK_TRY(found);
    *id = -1;
    if (!found) return 0;
    if (value >= v->n) return stk_fail(STK_EFORMAT, "%s is %u, but there are only %u tokens", key, value, v->n);
    *id = (int32_t)value;
    return 0;
}

/* Marks the tokens that end generation, and puts kinds right that converters are known to write wrong. */
static int mark_ends(stk_vocab *v, const stk_gguf *g) {
    bool harmony = has_text(v, "<|return|>") && has_text(v, "<|call|>"); /* there <|end|> ends a message, not the turn */
    bool gemma4 = has_text(v, "<|tool_response>");                       /* there </s> is no end */
    for (uint32_t i = 0; i < v->n; i++) {
        stk_vocab_token *t = &v->token[i];
        if (t->kind == STK_TOKEN_UNUSED || (t->kind == STK_TOKEN_NORMAL && !looks_like_control(t))) continue;
        for (size_t j = 0; j < STK_ARRAY_LEN(end_texts) && !t->is_end; j++) t->is_end = same_text(t, end_texts[j]);
        if (t->is_end) t->kind = STK_TOKEN_CONTROL;
        if ((harmony && same_text(t, "<|end|>")) || (gemma4 && same_text(t, "</s>"))) t->is_end = 0;
        if (harmony && (same_text(t, "<|start|>") || same_text(t, "<|message|>") || same_text(t, "<|channel|>") ||
                        same_text(t, "<|constrain|>")))
            t->kind = STK_TOKEN_USER;
    }
    for (size_t j = 0; j < STK_ARRAY_LEN(end_keys); j++) {
        int32_t id;
        STK_TRY(read_id(v, g, end_keys[j], &id));
        if (id >= 0) v->token[id].is_end = 1;
    }
    return 0;
}

/* Token bytes to ids. Normal tokens go first, so that one is found before a special token of the same bytes. */
static int index_tokens(stk_vocab *v, const bool *mapped) {
    for (v->n_slot = 64; v->n_slot < 2 * (uint64_t)v->n; v->n_slot *= 2) {
    }
    v->slot = malloc(v->n_slot * sizeof *v->slot);
    if (!v->slot) return stk_fail(STK_ENOMEM, "no memory for an index of %u tokens", v->n);
    memset(v->slot, 0xff, v->n_slot * sizeof *v->slot);
    for (int others = 0; others < 2; others++)
        for (uint32_t i = 0; i < v->n; i++) {
            const stk_vocab_token *t = &v->token[i];
            if ((t->kind != STK_TOKEN_NORMAL) != others || t->bytes == 0 || !mapped[i]) continue;
            int32_t *slot = slot_of(v, t->text, t->bytes, "", 0);
            if (*slot < 0) *slot = (int32_t)i;
        }
    return 0;
}

static int read_list(stk_vocab *v, const stk_gguf *g) {
    int rc;
    const stk_gguf_value *texts = array(g, "tokenizer.ggml.tokens", 0, "strings", &rc);
    STK_TRY(rc);
    if (!texts || texts->n == 0) return stk_fail(STK_EFORMAT, "tokenizer.ggml.tokens is missing or empty");
    if (texts->item != STK_GGUF_STRING) return stk_fail(STK_EFORMAT, "tokenizer.ggml.tokens is not an array of strings");
    if (texts->n > INT32_MAX) return stk_fail(STK_EFORMAT, "tokenizer.ggml.tokens has more than %d entries", INT32_MAX);
    v->n = (uint32_t)texts->n;
    uint64_t total = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        uint64_t bytes = ((const stk_gguf_string *)texts->data)[i].bytes;
        if (bytes > UINT32_MAX / 4) return stk_fail(STK_EFORMAT, "tokenizer.ggml.tokens: token %u is over 1 GiB long", i);
        total += bytes; /* 2^31 tokens of 2^30 bytes: below 2^64 */
    }
    v->text = malloc(total + 1);
    v->token = calloc(v->n, sizeof *v->token);
    bool *mapped = calloc(v->n, sizeof *mapped);
    if (!v->text || !v->token || !mapped)
        STK_TRYGOTO(stk_fail(STK_ENOMEM, "no memory for %u tokens of %llu bytes", v->n, (unsigned long long)total), rc, out);
    STK_TRYGOTO(read_tokens(v, g, mapped), rc, out);
    rc = index_tokens(v, mapped);
out:
    free(mapped);
    return rc;
}

int stk_vocab_init(stk_vocab *v, const stk_gguf *g) {
    int rc;
    memset(v, 0, sizeof *v);
    STK_TRYGOTO(read_list(v, g), rc, out);
    STK_TRYGOTO(mark_ends(v, g), rc, out);
    STK_TRYGOTO(read_id(v, g, "tokenizer.ggml.bos_token_id", &v->bos), rc, out);
    bool adds_bos = false;
    STK_TRYGOTO(stk_gguf_bool(g, "tokenizer.ggml.add_bos_token", &adds_bos), rc, out);
    v->adds_bos = rc ? (int8_t)adds_bos : -1;
    rc = 0;
out:
    if (rc < 0) stk_vocab_fini(v);
    return rc;
}

void stk_vocab_fini(stk_vocab *v) {
    free(v->text);
    free(v->token);
    free(v->slot);
    memset(v, 0, sizeof *v);
}
