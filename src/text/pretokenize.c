/*
 * pretokenize: runs the patterns of pretokenize_table.h with PCRE2, compiled to machine code where the system lets it.
 *
 * Two things make every PCRE2 agree with the engines that made the vocabularies: the table spells out what differs in meaning,
 * and characters newer than PCRE2's tables are matched through a copy of the text in which older ones of the same length stand
 * in.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "pretokenize.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "pretokenize_table.h"
#include "unicode.h"

struct stk_pretokenizer {
    unsigned flags;
    unsigned n_stage;
    pcre2_code *code[MAX_STAGES];
};

struct stk_splitter {
    const stk_pretokenizer *pre;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    stk_piece_fn fn;
    void *user;
    const char *text;    /* the run of valid UTF-8 in work */
    const char *subject; /* what PCRE2 sees of it: text itself, or `copy` */
    char *copy;
    size_t copy_cap;
};

static bool names_contain(const char *names, const char *name, size_t bytes) {
    if (bytes == 0 || memchr(name, ' ', bytes)) return false;
    for (const char *at = names; *at;) {
        size_t n = strcspn(at, " ");
        if (n == bytes && memcmp(at, name, n) == 0) return true;
        at += n + (at[n] == ' ');
    }
    return false;
}

static int compile(pcre2_code **out, const char *pattern) {
    int error;
    PCRE2_SIZE offset;
    *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset, NULL);
    if (!*out) {
        PCRE2_UCHAR text[128] = "";
        pcre2_get_error_message(error, text, sizeof text);
        int code = error == PCRE2_ERROR_NOMEMORY ? STK_ENOMEM : STK_EUNSUPPORTED;
        return stk_fail(code, "this PCRE2 does not take a pre-tokenizer's pattern: %s (10.40 or later, with Unicode, is needed)",
                        text);
    }
    /* Without machine code (not built in, or forbidden) the interpreter gives the same matches. */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return 0;
}

int stk_pretokenizer_open(stk_pretokenizer **out, const char *name, size_t bytes) {
    *out = NULL;
    const struct group *group = NULL;
    for (size_t i = 0; i < STK_ARRAY_LEN(groups) && !group; i++)
        if (names_contain(groups[i].names, name, bytes)) group = &groups[i];
    if (!group)
        return stk_fail(STK_EUNSUPPORTED, "tokenizer.ggml.pre: pre-tokenizer \"%.*s\" is not supported", (int)STK_MIN(bytes, 64),
                        name);

    int rc = 0;
    stk_pretokenizer *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "no memory for the pre-tokenizer");
    p->flags = group->flags;
    for (; p->n_stage < MAX_STAGES && group->stage[p->n_stage]; p->n_stage++)
        STK_TRYGOTO(compile(&p->code[p->n_stage], group->stage[p->n_stage]), rc, out);
    *out = p;
    p = NULL;
out:
    stk_pretokenizer_close(&p);
    return rc;
}

void stk_pretokenizer_close(stk_pretokenizer **p) {
    if (!*p) return;
    for (unsigned i = 0; i < MAX_STAGES; i++) pcre2_code_free((*p)->code[i]);
    free(*p);
    *p = NULL;
}

bool stk_pretokenizer_ignores_merges(const stk_pretokenizer *p) { return p->flags & IGNORE_MERGES; }
bool stk_pretokenizer_adds_bos(const stk_pretokenizer *p) { return p->flags & ADD_BOS; }

int stk_splitter_open(stk_splitter **out, const stk_pretokenizer *p, stk_piece_fn fn, void *user) {
    *out = NULL;
    stk_splitter *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "no memory for splitting text");
    s->pre = p;
    s->fn = fn;
    s->user = user;
    s->match = pcre2_match_data_create(1, NULL);
    s->limits = pcre2_match_context_create(NULL);
    if (!s->match || !s->limits) {
        stk_splitter_close(&s);
        return stk_fail(STK_ENOMEM, "no memory for splitting text");
    }
    /* The patterns are ours and linear; the limits guard against foreign ones and would refuse long runs of white space. */
    pcre2_set_match_limit(s->limits, UINT32_MAX);
    *out = s;
    return 0;
}

void stk_splitter_close(stk_splitter **s) {
    if (!*s) return;
    pcre2_match_data_free((*s)->match);
    pcre2_match_context_free((*s)->limits);
    free((*s)->copy);
    free(*s);
    *s = NULL;
}

/* The first match of `code` in piece[from, n), at [*begin, *end); both are n when there is none. */
static int find_match(stk_splitter *s, const pcre2_code *code, const char *piece, size_t n, size_t from, size_t *begin,
                      size_t *end) {
    PCRE2_SPTR text = (PCRE2_SPTR)piece;
    *begin = *end = n;
    int rc = pcre2_match(code, text, n, from, PCRE2_NO_UTF_CHECK, s->match, s->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match, s->limits);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(rc, why, sizeof why);
        return stk_fail(STK_ENOMEM, "splitting %zu bytes of text: PCRE2: %s", n, why);
    }
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->match);
    *begin = at[0];
    *end = at[1]; /* no pattern matches the empty string */
    return 0;
}

/* Cuts [begin, end) of the text by stage `stage` and those after it. */
static int cut(stk_splitter *s, unsigned stage, size_t begin, size_t end) {
    if (begin == end) return 0;
    if (stage == s->pre->n_stage) return s->fn(s->user, s->text + begin, end - begin);
    /* The piece is all that PCRE2 sees, so that no look-ahead leaves it. */
    const char *piece = s->subject + begin;
    size_t n = end - begin, done = 0, from, to;
    while (done < n) {
        STK_TRY(find_match(s, s->pre->code[stage], piece, n, done, &from, &to));
        STK_TRY(cut(s, stage + 1, begin + done, begin + from));
        STK_TRY(cut(s, stage + 1, begin + from, begin + to));
        done = to;
    }
    return 0;
}

/* Puts an older character in the place of the `n`-byte character at text[at]; the whole text is copied at the first one. */
static int stand_in(stk_splitter *s, size_t bytes, size_t at, uint32_t cp) {
    if (s->subject == s->text) {
        if (bytes > s->copy_cap) {
            free(s->copy);
            s->copy_cap = 0;
            s->copy = malloc(bytes);
            if (!s->copy) return stk_fail(STK_ENOMEM, "no memory for a copy of %zu bytes of text", bytes);
            s->copy_cap = bytes;
        }
        memcpy(s->copy, s->text, bytes);
        s->subject = s->copy;
    }
    stk_utf8_write(cp, s->copy + at);
    return 0;
}

/* Bytes of valid UTF-8 that text begins with. */
static size_t valid_prefix(const char *text, size_t bytes, bool *newer) {
    size_t at = 0;
    *newer = false;
    while (at < bytes) {
        uint64_t eight;
        if (bytes - at >= sizeof eight && (memcpy(&eight, text + at, sizeof eight), !(eight & 0x8080808080808080u))) {
            at += sizeof eight;
            continue;
        }
        uint32_t cp;
        int n = stk_utf8_scan(text + at, bytes - at, &cp);
        if (n <= 0) break;
        if (n >= 3 && stk_unicode_stand_in(cp) != cp) *newer = true;
        at += (size_t)n;
    }
    return at;
}

/* Bytes up to the next valid character. */
static size_t invalid_prefix(const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        uint32_t cp;
        int n = stk_utf8_scan(text + at, bytes - at, &cp);
        if (n > 0) break;
        at = n == 0 ? bytes : at + (size_t)-n;
    }
    return at;
}

static int run_valid(stk_splitter *s, const char *text, size_t bytes, bool newer) {
    s->text = s->subject = text;
    for (size_t at = 0; newer && at < bytes;) {
        uint32_t cp;
        int n = stk_utf8_scan(text + at, bytes - at, &cp);
        uint32_t older = stk_unicode_stand_in(cp);
        if (older != cp) STK_TRY(stand_in(s, bytes, at, older));
        at += (size_t)n;
    }
    return cut(s, 0, 0, bytes);
}

int stk_splitter_run(stk_splitter *s, const char *text, size_t bytes) {
    while (bytes > 0) {
        bool newer;
        size_t n = valid_prefix(text, bytes, &newer);
        STK_TRY(run_valid(s, text, n, newer));
        size_t m = invalid_prefix(text + n, bytes - n);
        if (m > 0) STK_TRY(s->fn(s->user, text + n, m));
        text += n + m;
        bytes -= n + m;
    }
    return 0;
}
