/*
 * tokenizer: the gpt2 model (byte-level BPE). Special tokens are cut out of the text, the rest is split into pieces, each piece
 * is merged.
 *
 * Texts are taken as they are: normalizers of tokenizer.json (NFC with some families) are not in GGUF, and decoding gives back
 * every byte.
 */
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "bpe.h"
#include "pretokenize.h"
#include "special.h"
#include "vocab.h"

struct stk_tokenizer {
    stk_vocab vocab;
    stk_bpe *bpe;
    stk_pretokenizer *pre;
    stk_special_set always;     /* user-defined tokens */
    stk_special_set on_request; /* these, control and unknown tokens */
    uint32_t n_vocab;           /* at least vocab.n */
    bool adds_bos;
};

static bool is_special(const stk_vocab_token *t) {
    return t->kind == STK_TOKEN_CONTROL || t->kind == STK_TOKEN_USER || t->kind == STK_TOKEN_UNKNOWN;
}

static int init_specials(stk_tokenizer *t) {
    const stk_vocab *v = &t->vocab;
    stk_special_token *list = malloc(v->n * sizeof *list);
    if (!list) return stk_fail(STK_ENOMEM, "no memory for %u tokens", v->n);
    uint32_t n = 0, n_user = 0;
    for (uint32_t i = 0; i < v->n; i++)
        if (is_special(&v->token[i]) && v->token[i].bytes)
            list[n++] = (stk_special_token){v->token[i].text, v->token[i].bytes, (int32_t)i};
    int rc = stk_special_init(&t->on_request, list, n);
    if (rc == 0) {
        for (uint32_t i = 0; i < n; i++)
            if (v->token[list[i].id].kind == STK_TOKEN_USER) list[n_user++] = list[i];
        rc = stk_special_init(&t->always, list, n_user);
    }
    free(list);
    return rc;
}

static int open_pretokenizer(stk_pretokenizer **out, const stk_gguf *g) {
    stk_gguf_string name;
    int found = stk_gguf_str(g, "tokenizer.ggml.pre", &name);
    STK_TRY(found);
    if (found) return stk_pretokenizer_open(out, name.text, name.bytes);
    stk_log(STK_LOG_WARN,
            "the file has no tokenizer.ggml.pre; text is split as \"default\", which may not be how the model was trained");
    return stk_pretokenizer_open(out, "default", 7);
}

static int check_model(const stk_gguf *g) {
    stk_gguf_string model;
    int found = stk_gguf_str(g, "tokenizer.ggml.model", &model);
    STK_TRY(found);
    if (!found) return stk_fail(STK_EFORMAT, "tokenizer.ggml.model is missing: the file has no tokenizer");
    if (model.bytes != 4 || memcmp(model.text, "gpt2", 4) != 0)
        return stk_fail(STK_EUNSUPPORTED, "tokenizer.ggml.model \"%.*s\" is not supported, only \"gpt2\" (byte-level BPE) is",
                        (int)STK_MIN(model.bytes, 64), model.text);
    return 0;
}

int stk_tokenizer_open(stk_tokenizer **out, const stk_gguf *g, uint32_t n_vocab) {
    *out = NULL;
    STK_TRY(check_model(g));
    stk_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return stk_fail(STK_ENOMEM, "no memory for the tokenizer");
    int rc;
    STK_TRYGOTO(open_pretokenizer(&t->pre, g), rc, out);
    STK_TRYGOTO(stk_vocab_init(&t->vocab, g), rc, out);
    if (t->vocab.n > n_vocab)
        STK_TRYGOTO(
            stk_fail(STK_EFORMAT, "tokenizer.ggml.tokens has %u entries, but the embedding has %u rows", t->vocab.n, n_vocab), rc,
            out);
    STK_TRYGOTO(stk_bpe_open(&t->bpe, &t->vocab, g), rc, out);
    STK_TRYGOTO(init_specials(t), rc, out);
    t->n_vocab = n_vocab;
    t->adds_bos = t->vocab.adds_bos < 0 ? stk_pretokenizer_adds_bos(t->pre) : t->vocab.adds_bos;
    if (t->adds_bos && t->vocab.bos < 0) {
        stk_log(STK_LOG_WARN, "the tokenizer wants a beginning-of-sequence token, but the file names none; none is added");
        t->adds_bos = false;
    }
    *out = t;
    t = NULL;
out:
    stk_tokenizer_close(&t);
    return rc;
}

void stk_tokenizer_close(stk_tokenizer **t) {
    if (!*t) return;
    stk_special_fini(&(*t)->always);
    stk_special_fini(&(*t)->on_request);
    stk_bpe_close(&(*t)->bpe);
    stk_pretokenizer_close(&(*t)->pre);
    stk_vocab_fini(&(*t)->vocab);
    free(*t);
    *t = NULL;
}

typedef struct encoding {
    const stk_tokenizer *t;
    stk_bpe_work work;
    int32_t *ids;
    size_t cap;
    int64_t n;
    bool wants_bos; /* until the first token shows whether it is there */
} encoding;

static void put(encoding *e, int32_t id) {
    if (e->wants_bos) {
        e->wants_bos = false;
        if (id != e->t->vocab.bos) put(e, e->t->vocab.bos);
    }
    if ((size_t)e->n < e->cap) e->ids[e->n] = id;
    e->n++;
}

/* The token that is the whole piece, -1 for none; the text of a control token is no such token. */
static int32_t whole(const stk_tokenizer *t, const char *piece, size_t bytes) {
    int32_t id = stk_vocab_find(&t->vocab, piece, bytes, "", 0);
    if (id < 0) return -1;
    uint8_t kind = t->vocab.token[id].kind;
    return kind == STK_TOKEN_NORMAL || kind == STK_TOKEN_USER || kind == STK_TOKEN_BYTE ? id : -1;
}

static int put_piece(void *user, const char *piece, size_t bytes) {
    encoding *e = user;
    if (stk_pretokenizer_ignores_merges(e->t->pre)) {
        int32_t id = whole(e->t, piece, bytes);
        if (id >= 0) {
            put(e, id);
            return 0;
        }
    }
    int64_t n = stk_bpe_merge(e->t->bpe, &e->work, piece, bytes);
    if (n < 0) return (int)n;
    for (int64_t i = 0; i < n; i++) put(e, e->work.id[i]);
    return 0;
}

int64_t stk_tokenizer_encode(const stk_tokenizer *t, const char *text, size_t bytes, uint32_t flags, int32_t *ids, size_t cap) {
    if ((!text && bytes) || (!ids && cap) || (flags & ~(uint32_t)(STK_TOKENIZE_BOS | STK_TOKENIZE_SPECIAL)))
        return stk_fail(STK_EINVAL, "tokenize: no text, no room for ids, or an unknown flag");
    encoding e = {.t = t, .ids = ids, .cap = cap, .wants_bos = (flags & STK_TOKENIZE_BOS) && t->adds_bos};
    const stk_special_set *specials = flags & STK_TOKENIZE_SPECIAL ? &t->on_request : &t->always;
    stk_splitter *splitter;
    int rc;
    STK_TRYGOTO(stk_splitter_open(&splitter, t->pre, put_piece, &e), rc, out);
    while (bytes > 0) {
        const stk_special_token *special = NULL;
        size_t n = stk_special_find(specials, text, bytes, &special);
        STK_TRYGOTO(stk_splitter_run(splitter, text, n), rc, out);
        if (special) {
            put(&e, special->id);
            n += special->bytes;
        }
        text += n;
        bytes -= n;
    }
    if (e.wants_bos) put(&e, t->vocab.bos);
out:
    stk_splitter_close(&splitter);
    stk_bpe_work_fini(&e.work);
    return rc < 0 ? rc : e.n;
}

int64_t stk_tokenizer_bytes(const stk_tokenizer *t, int32_t id, bool special, const char **bytes) {
    *bytes = "";
    if (id < 0 || (uint32_t)id >= t->n_vocab)
        return stk_fail(STK_EINVAL, "there is no token %d, the model has %u", id, t->n_vocab);
    if ((uint32_t)id >= t->vocab.n) return 0;
    const stk_vocab_token *token = &t->vocab.token[id];
    bool hidden = token->kind == STK_TOKEN_CONTROL || token->kind == STK_TOKEN_UNKNOWN;
    if (token->kind == STK_TOKEN_UNUSED || (hidden && !special)) return 0;
    *bytes = token->text;
    return token->bytes;
}

size_t stk_tokenizer_max_bytes(const stk_tokenizer *t) { return t->vocab.max_bytes; }

bool stk_tokenizer_is_end(const stk_tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->vocab.n && t->vocab.token[id].is_end;
}

int32_t stk_tokenizer_find_special(const stk_tokenizer *t, const char *text) {
    const stk_special_token *token = NULL;
    size_t bytes = strlen(text);
    size_t at = stk_special_find(&t->on_request, text, bytes, &token);
    return at == 0 && token && token->bytes == bytes ? token->id : -1;
}
