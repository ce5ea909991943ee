/*
 * import_router: stratamoe-lab's router-trace, version 2: one JSON object whose "selections" is [tokens][layers][topK] of expert
 * numbers, beside "layers", "expertsPerLayer", "topK", "tokens" and what is skipped. Each token is a step.
 *
 * The object may be as long as the trace, so it is read as a stream of characters, twice: for the numbers, which may stand behind
 * the selections, and for the selections.
 */
#include <stdlib.h>
#include <string.h>

#include "traces/import.h"
#include "traces/source.h"

enum { KEY_BYTES = 64, MAX_DEPTH = 64 };

typedef struct router {
    stk_input *in;
    int held; /* a byte that was put back, -1 for none */
    uint64_t n_layer, n_expert, k, n_tok, version;
    trace_count count;
    uint16_t *ids;  /* [n_layer, k] */
    uint32_t layer; /* next of the running token; n_layer: none */
    uint64_t tok;   /* tokens begun */
    int32_t seq, pos, token;
    uint8_t logits;
} router;

static int bad(const router *r, const char *what) {
    return stk_fail(STK_EFORMAT, "byte %llu: %s", (unsigned long long)stk_input_offset(r->in) - (r->held >= 0), what);
}

/* The next character that is no white space, -1 at the end. */
static int next_char(router *r, int *c) {
    *c = r->held;
    r->held = -1;
    while (*c < 0 || strchr(" \t\r\n", *c)) {
        STK_TRY(stk_input_byte(r->in, c));
        if (*c <= 0) break;
    }
    return 0;
}

static int expect(router *r, int want, const char *what) {
    int c;
    STK_TRY(next_char(r, &c));
    return c == want ? 0 : bad(r, c < 0 ? "cut off" : what);
}

/* Behind an element: 1 and the next follows, 0 and `close` was there. */
static int more(router *r, int close) {
    int c;
    STK_TRY(next_char(r, &c));
    if (c == ',' || c == close) return c == ',';
    return bad(r, c < 0 ? "cut off" : "neither a comma nor an end");
}

static int get_number(router *r, uint64_t most, uint64_t *out) {
    int c;
    STK_TRY(next_char(r, &c));
    if (c < '0' || c > '9') return bad(r, c < 0 ? "cut off" : "not a whole number");
    for (*out = 0; c >= '0' && c <= '9';) {
        *out = *out * 10 + (uint64_t)(c - '0');
        if (*out > most) return bad(r, "a number that is too large");
        STK_TRY(stk_input_byte(r->in, &c));
    }
    r->held = c;
    return c == '.' || c == 'e' || c == 'E' ? bad(r, "not a whole number") : 0;
}

/* The rest of a text whose first quote was taken; what does not fit into `out` is dropped. */
static int get_text(router *r, char out[KEY_BYTES]) {
    size_t n = 0;
    for (int c;;) {
        STK_TRY(stk_input_byte(r->in, &c));
        if (c < 0) return bad(r, "cut off within a text");
        if (c == '"') break;
        if (c == '\\') STK_TRY(stk_input_byte(r->in, &c));
        if (n < KEY_BYTES - 1) out[n++] = (char)c;
    }
    out[n] = 0;
    return 0;
}

static int skip_value(router *r) {
    char text[KEY_BYTES];
    uint32_t depth = 0;
    for (int c;;) {
        STK_TRY(next_char(r, &c));
        if (c < 0) return bad(r, "cut off");
        if (c == '"') STK_TRY(get_text(r, text));
        if (c == '{' || c == '[') depth++;
        if ((c == '}' || c == ']' || c == ',') && depth == 0) {
            r->held = c;
            return 0;
        }
        if (c == '}' || c == ']') depth--;
        if (depth > MAX_DEPTH) return bad(r, "too deep");
    }
}

/* [ids] of a token in a layer, behind its bracket; ids NULL: only counts. */
static int get_ids(router *r, uint16_t *ids, uint64_t most, uint64_t *n) {
    int rc = 1, c;
    STK_TRY(next_char(r, &c));
    for (*n = 0; c != ']' && rc; ++*n) {
        uint64_t x;
        if (*n == 0) r->held = c;
        if (*n == most) return bad(r, "too many experts of a token");
        STK_TRY(get_number(r, STK_NO_EXPERT - 2, &x));
        if (ids) ids[*n] = (uint16_t)x;
        if (ids && x >= r->n_expert) return bad(r, "an expert that the layer does not have");
        STK_TRY(rc = more(r, ']'));
    }
    return 0;
}

/* ---- The first pass ------------------------------------------------------------------------------------------------------ */

static int scan_token(router *r) {
    uint64_t layers = 0, n;
    int rc;
    STK_TRY(expect(r, '[', "not a list of layers"));
    do {
        STK_TRY(expect(r, '[', "not a list of experts"));
        STK_TRY(get_ids(r, NULL, IMPORT_MAX_K, &n));
        r->k = STK_MAX(r->k, n);
        layers++;
    } while ((rc = more(r, ']')) == 1);
    if (rc < 0) return rc;
    if (r->tok++ == 0) r->layer = (uint32_t)STK_MIN(layers, (uint64_t)IMPORT_MAX_LAYER + 1);
    return layers == r->layer ? 0 : bad(r, "a token with another number of layers than the first");
}

static int scan_selections(router *r) {
    int rc, c;
    STK_TRY(expect(r, '[', "selections are not a list"));
    STK_TRY(next_char(r, &c));
    if (c == ']') return 0;
    r->held = c;
    do STK_TRY(scan_token(r));
    while ((rc = more(r, ']')) == 1);
    return rc;
}

static int scan_value(router *r, const char *key, bool *found) {
    const struct {
        const char *name;
        uint64_t *to, most;
    } numbers[] = {{"layers", &r->n_layer, IMPORT_MAX_LAYER},
                   {"expertsPerLayer", &r->n_expert, STK_NO_EXPERT - 1},
                   {"topK", &r->k, IMPORT_MAX_K},
                   {"tokens", &r->n_tok, INT32_MAX},
                   {"version", &r->version, UINT32_MAX}};
    for (size_t i = 0; i < STK_ARRAY_LEN(numbers); i++) {
        if (strcmp(key, numbers[i].name) != 0) continue;
        uint64_t seen = *numbers[i].to;
        STK_TRY(get_number(r, numbers[i].most, numbers[i].to));
        return seen > *numbers[i].to ? bad(r, "fewer than the selections have") : 0;
    }
    if (strcmp(key, "selections") != 0) return skip_value(r);
    if (*found) return bad(r, "selections are there twice");
    *found = true;
    return scan_selections(r);
}

/* Up to the value of a key: 1, or 0 at the end of the object. `first`: the object's brace is yet to come. */
static int next_key(router *r, char key[KEY_BYTES], bool first) {
    int rc = 1;
    if (first)
        STK_TRY(expect(r, '{', "not an object"));
    else
        STK_TRY(rc = more(r, '}'));
    if (rc == 0) return 0;
    STK_TRY(expect(r, '"', "not a key"));
    STK_TRY(get_text(r, key));
    STK_TRY(expect(r, ':', "no colon behind a key"));
    return 1;
}

static int scan(router *r) {
    char key[KEY_BYTES];
    bool found = false, first = true;
    int rc;
    while ((rc = next_key(r, key, first)) == 1) {
        first = false;
        STK_TRY(scan_value(r, key, &found));
    }
    if (rc < 0) return rc;
    if (r->version != 2)
        return stk_fail(STK_EUNSUPPORTED, "router-trace of version %llu; version 2 is read", (unsigned long long)r->version);
    if (!found || !r->tok) return stk_fail(STK_EFORMAT, "no selections");
    if (r->n_layer != r->layer || (r->n_tok && r->n_tok != r->tok))
        return stk_fail(STK_EFORMAT, "selections of %llu tokens in %u layers; %llu in %llu are announced",
                        (unsigned long long)r->tok, r->layer, (unsigned long long)r->n_tok, (unsigned long long)r->n_layer);
    if (!r->k || r->k > r->n_expert)
        return stk_fail(STK_EFORMAT, "%llu experts a token of %llu", (unsigned long long)r->k, (unsigned long long)r->n_expert);
    return 0;
}

/* ---- Open, read, close -------------------------------------------------------------------------------------------------- */

static int make_header(const router *r, uint64_t bytes, stk_trace_header *header) {
    uint32_t *layers = calloc(r->n_layer, sizeof *layers);
    uint64_t *sizes = calloc(r->n_layer, sizeof *sizes);
    int rc = layers && sizes ? 0 : stk_fail(STK_ENOMEM, "out of memory");
    for (uint32_t i = 0; rc == 0 && i < r->n_layer; i++) {
        layers[i] = i;
        sizes[i] = bytes;
    }
    if (rc == 0)
        rc = stk_import_header(header, &(import_shape){.n_layer = (uint32_t)r->n_layer,
                                                       .n_expert = (uint32_t)r->n_expert,
                                                       .k = (uint32_t)r->k,
                                                       .n_batch = 1,
                                                       .model_layer = layers,
                                                       .bytes = sizes});
    free(layers);
    free(sizes);
    return rc;
}

/* To the first token. */
static int seek_selections(router *r) {
    char key[KEY_BYTES];
    bool first = true;
    r->held = -1;
    STK_TRY(stk_input_rewind(r->in));
    for (int rc; (rc = next_key(r, key, first)) != 0; first = false) {
        if (rc < 0) return rc;
        if (strcmp(key, "selections") == 0) return expect(r, '[', "selections are not a list");
        STK_TRY(skip_value(r));
    }
    return bad(r, "the file was changed while it was read");
}

static void router_close(void *state) {
    router *r = state;
    if (!r) return;
    free(r->ids);
    stk_trace_count_close(&r->count);
    free(r);
}

static int router_open(void **state, stk_input *in, uint64_t expert_bytes, stk_trace_header *header, bool *sized) {
    router *r = calloc(1, sizeof *r);
    *state = r;
    if (!r) return stk_fail(STK_ENOMEM, "out of memory");
    r->in = in;
    r->held = -1;
    STK_TRY(scan(r));
    *sized = expert_bytes != 0;
    STK_TRY(make_header(r, expert_bytes ? expert_bytes : STK_SOURCE_EXPERT_BYTES, header));
    r->ids = calloc(r->n_layer * r->k, sizeof *r->ids);
    if (!r->ids) return stk_fail(STK_ENOMEM, "out of memory");
    STK_TRY(stk_trace_count_open(&r->count, (uint32_t)r->n_expert));
    r->n_tok = r->tok;
    r->tok = 0;
    r->layer = (uint32_t)r->n_layer;
    r->logits = 1;
    r->token = -1;
    return seek_selections(r);
}

static int read_token(router *r) {
    int rc = 1;
    if (r->tok > 0) STK_TRY(rc = more(r, ']'));
    if (!rc) return bad(r, "the file was changed while it was read");
    STK_TRY(expect(r, '[', "not a list of layers"));
    for (uint64_t i = 0; i < r->n_layer; i++) {
        uint16_t *ids = r->ids + i * r->k;
        uint64_t n;
        STK_TRY(expect(r, '[', "not a list of experts"));
        STK_TRY(get_ids(r, ids, r->k, &n));
        for (; n < r->k; n++) ids[n] = STK_NO_EXPERT;
        STK_TRY(rc = more(r, ']'));
        if (rc != (i + 1 < r->n_layer)) return bad(r, "the file was changed while it was read");
    }
    return 0;
}

static int router_read(void *state, stk_trace_record *record) {
    router *r = state;
    if (r->layer == r->n_layer) {
        if (r->tok == r->n_tok) return 0;
        STK_TRY(read_token(r));
        r->pos = (int32_t)r->tok;
        r->layer = 0;
        record->kind = STK_TRACE_STEP;
        record->step = (stk_trace_step){
            .step = r->tok++, .n_tok = 1, .seq = &r->seq, .pos = &r->pos, .token = &r->token, .logits = &r->logits};
        return 1;
    }
    record->kind = STK_TRACE_EVENT;
    record->event = (stk_event){.step = r->tok - 1,
                                .layer = r->layer,
                                .n_tok = 1,
                                .k = (uint32_t)r->k,
                                .n_expert = (uint32_t)r->n_expert,
                                .seq = &r->seq,
                                .pos = &r->pos,
                                .token = &r->token,
                                .ids = r->ids + r->layer * r->k};
    r->layer++;
    stk_trace_count(&r->count, &record->event);
    return 1;
}

const import_ops stk_import_router = {"router-trace", router_open, router_read, router_close};
