/* import_rows: lines to rows, rows to cells (a token in a layer), cells to events. */
#include "traces/import_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "traces/source.h"

/* Arrays that grow with the tokens of a step: at most IMPORT_MAX_TOKENS long. */
typedef struct tokens {
    uint32_t n, cap;
    int32_t *seq, *pos, *token;
    uint8_t *logits;
} tokens;

typedef struct rows {
    const import_rows_format *format;
    stk_input *in;
    void *parser;
    import_facts facts;
    import_row row, cell; /* the next row, and the next cell */
    bool have_row, have_cell;
    uint64_t cell_line;

    bool scanning; /* the first pass: */
    uint32_t most_expert, most_k, most_top, most_tokens;
    uint32_t *dense_of; /* [IMPORT_MAX_LAYER] of a model layer */

    bool in_step, event_next; /* a step is running; its event is ready */
    int64_t step;
    uint32_t last_layer; /* of the running step */
    uint64_t n_step;
    tokens tok;
    uint32_t n_expert, k, n_layer;
    uint16_t *ids, *top_ids; /* [tok.cap, k], [tok.cap, n_top] of the event */
    float *weights, *top_scores;
    size_t ids_cap, top_cap;
    uint32_t n_top;
    bool no_weights;
    trace_count count;
    stk_event event;
} rows;

static int at_line(uint64_t line, const char *what) {
    return stk_fail(STK_EFORMAT, "line %llu: %s", (unsigned long long)line, what);
}

int stk_import_number(const char *what, const char *text, uint64_t most, uint64_t *out) {
    const char *at = text;
    uint64_t value = 0;
    bool fits = true;
    for (; *at >= '0' && *at <= '9'; at++)
        fits = fits && !__builtin_mul_overflow(value, 10, &value) && !__builtin_add_overflow(value, *at - '0', &value);
    *out = value;
    if (at != text && !*at && fits && value <= most) return 0;
    return stk_fail(STK_EFORMAT, "%s is '%.40s', not a whole number up to %llu", what, text, (unsigned long long)most);
}

/* ---- Rows and cells ----------------------------------------------------------------------------------------------------- */

static int next_row(rows *r) {
    import_row *row = &r->row;
    char *line;
    size_t bytes;
    int rc;
    r->have_row = false;
    while ((rc = stk_input_line(r->in, &line, &bytes)) == 1) {
        row->step = -1;
        row->seq = 0;
        row->pos = -1;
        row->token = -1;
        row->decode = true;
        row->single = false;
        row->rank = IMPORT_MAX_K;
        row->n = row->n_top = 0;
        row->bytes = 0;
        rc = r->format->parse(r->parser, line, row, &r->facts);
        if (rc < 0) return stk_fail_in(rc, "line %llu", (unsigned long long)stk_input_line_number(r->in));
        if (rc == 0) continue;
        if (row->pos < 0 && row->step >= 0 && row->step <= INT32_MAX) row->pos = (int32_t)row->step;
        if (row->pos < 0) return at_line(stk_input_line_number(r->in), "neither a position nor a step says which token it is");
        r->have_row = true;
        return 1;
    }
    return rc;
}

static bool same_token(const import_row *a, const import_row *b) {
    return a->step == b->step && a->seq == b->seq && a->pos == b->pos && a->decode == b->decode;
}

/* Adds the expert of a single row to its cell. */
static int add_single(rows *r, import_row *cell, const import_row *row) {
    uint64_t line = stk_input_line_number(r->in);
    uint32_t place = row->rank < IMPORT_MAX_K ? row->rank : cell->n;
    if (place >= IMPORT_MAX_K) return at_line(line, "too many experts of a token");
    for (; cell->n <= place; cell->n++) {
        cell->experts[cell->n] = STK_NO_EXPERT;
        cell->weights[cell->n] = NAN;
    }
    if (cell->experts[place] != STK_NO_EXPERT) return at_line(line, "two experts of the same rank");
    cell->experts[place] = row->experts[0];
    cell->weights[place] = row->weights[0];
    cell->bytes = STK_MAX(cell->bytes, row->bytes);
    return 0;
}

/* Copies what is used of a row's arrays. */
static void copy_row(import_row *to, const import_row *from) {
    memcpy(to, from, offsetof(import_row, experts));
    memcpy(to->experts, from->experts, from->n * sizeof *from->experts);
    memcpy(to->weights, from->weights, from->n * sizeof *from->weights);
    memcpy(to->top_ids, from->top_ids, from->n_top * sizeof *from->top_ids);
    memcpy(to->top_scores, from->top_scores, from->n_top * sizeof *from->top_scores);
    to->bytes = from->bytes;
}

/* Puts the next cell into r->cell. */
static int next_cell(rows *r) {
    r->have_cell = false;
    if (!r->have_row) return 0;
    copy_row(&r->cell, &r->row);
    r->cell_line = stk_input_line_number(r->in);
    if (r->row.single) {
        r->cell.n = 0;
        STK_TRY(add_single(r, &r->cell, &r->row));
    }
    int rc;
    while ((rc = next_row(r)) == 1 && r->row.single && r->cell.single && r->row.layer == r->cell.layer &&
           same_token(&r->row, &r->cell))
        STK_TRY(add_single(r, &r->cell, &r->row));
    if (rc < 0) return rc;
    r->have_cell = true;
    return 1;
}

/* ---- The first pass ------------------------------------------------------------------------------------------------------ */

static int note_cell(rows *r) {
    const import_row *c = &r->cell;
    uint64_t *bytes = &r->facts.of_layer[c->layer];
    r->facts.seen[c->layer] = true;
    if (c->bytes && *bytes && *bytes != c->bytes)
        return at_line(r->cell_line, "another size of experts than before in this layer");
    if (c->bytes) *bytes = c->bytes;
    for (uint32_t i = 0; i < c->n; i++)
        if (c->experts[i] != STK_NO_EXPERT) r->most_expert = STK_MAX(r->most_expert, c->experts[i]);
    for (uint32_t i = 0; i < c->n_top; i++) r->most_expert = STK_MAX(r->most_expert, c->top_ids[i]);
    r->most_k = STK_MAX(r->most_k, c->n);
    r->most_top = STK_MAX(r->most_top, c->n_top);
    return 0;
}

/* The second pass trusts the first only as far as the file still says the same. */
static int check_cell(const rows *r) {
    const import_row *c = &r->cell;
    bool good = r->facts.seen[c->layer] && c->n <= r->k && c->n_top <= r->most_top && r->tok.n <= r->most_tokens;
    for (uint32_t i = 0; i < c->n; i++) good &= c->experts[i] == STK_NO_EXPERT || c->experts[i] < r->n_expert;
    for (uint32_t i = 0; i < c->n_top; i++) good &= c->top_ids[i] < r->n_expert;
    return good ? 0 : at_line(r->cell_line, "the file was changed while it was read");
}

/* ---- Steps and events --------------------------------------------------------------------------------------------------- */

static bool same_step(const rows *r) {
    const import_row *c = &r->cell;
    if (!r->in_step) return false;
    if (c->step >= 0 || r->step >= 0) return c->step == r->step;
    const tokens *t = &r->tok;
    if (r->format->prompt_by_layer && !c->decode && !t->logits[0]) return c->seq == t->seq[0] && c->layer >= r->last_layer;
    return c->seq == t->seq[0] && c->pos == t->pos[0] && c->decode == t->logits[0];
}

static int grow(void **array, size_t n, size_t each) {
    void *grown = realloc(*array, n * each);
    if (!grown) return stk_fail(STK_ENOMEM, "out of memory for a step");
    *array = grown;
    return 0;
}

static int add_token(rows *r) {
    tokens *t = &r->tok;
    const import_row *c = &r->cell;
    if (t->n == IMPORT_MAX_TOKENS) return at_line(r->cell_line, "a step of more than 65536 tokens");
    if (t->n == t->cap) {
        uint32_t cap = t->cap ? 2 * t->cap : 16;
        STK_TRY(grow((void **)&t->seq, cap, sizeof *t->seq));
        STK_TRY(grow((void **)&t->pos, cap, sizeof *t->pos));
        STK_TRY(grow((void **)&t->token, cap, sizeof *t->token));
        STK_TRY(grow((void **)&t->logits, cap, sizeof *t->logits));
        t->cap = cap;
    }
    t->seq[t->n] = c->seq;
    t->pos[t->n] = c->pos;
    t->token[t->n] = c->token;
    t->logits[t->n++] = c->decode;
    return 0;
}

/* Room for the event's arrays up to token `n`. */
static int grow_event(rows *r, uint32_t n) {
    size_t n_id = (size_t)n * r->k, n_top = (size_t)n * r->n_top;
    if (n_id > r->ids_cap) {
        size_t cap = STK_MAX(n_id, 2 * r->ids_cap);
        STK_TRY(grow((void **)&r->ids, cap, sizeof *r->ids));
        STK_TRY(grow((void **)&r->weights, cap, sizeof *r->weights));
        r->ids_cap = cap;
    }
    if (n_top > r->top_cap) {
        size_t cap = STK_MAX(n_top, 2 * r->top_cap);
        STK_TRY(grow((void **)&r->top_ids, cap, sizeof *r->top_ids));
        STK_TRY(grow((void **)&r->top_scores, cap, sizeof *r->top_scores));
        r->top_cap = cap;
    }
    return 0;
}

/* Token i of the event; cell NULL: it has none. */
static void put_token(rows *r, uint32_t i, const import_row *cell) {
    uint16_t *ids = r->ids + (size_t)i * r->k;
    float *weights = r->weights + (size_t)i * r->k;
    uint32_t n = cell ? cell->n : 0;
    for (uint32_t j = 0; j < r->k; j++) {
        ids[j] = j < n ? cell->experts[j] : STK_NO_EXPERT;
        weights[j] = j < n ? cell->weights[j] : 0.0f;
        r->no_weights |= ids[j] != STK_NO_EXPERT && !isfinite(weights[j]);
    }
    for (uint32_t j = 0; j < r->n_top; j++) {
        r->top_ids[(size_t)i * r->n_top + j] = cell ? cell->top_ids[j] : STK_NO_EXPERT;
        r->top_scores[(size_t)i * r->n_top + j] = cell ? cell->top_scores[j] : 0.0f;
    }
}

/* The cell becomes token *at of the running event, or a later one. */
static int add_cell(rows *r, uint32_t *at, bool first_layer) {
    const tokens *t = &r->tok;
    const import_row *c = &r->cell;
    if (first_layer) STK_TRY(add_token(r));
    uint32_t i = *at;
    while (i < t->n && (t->seq[i] != c->seq || t->pos[i] != c->pos)) i++;
    if (i == t->n) return at_line(r->cell_line, "a token that the step's first layer does not have, or out of order");
    if (c->n_top != r->n_top) return at_line(r->cell_line, "another number of scores than the event's first token");
    if (!r->scanning) {
        STK_TRY(check_cell(r));
        STK_TRY(grow_event(r, i + 1));
        for (; *at < i; ++*at) put_token(r, *at, NULL);
        put_token(r, i, c);
    }
    *at = i + 1;
    return 0;
}

static int begin_step(rows *r) {
    r->in_step = true;
    r->step = r->cell.step;
    r->tok.n = 0;
    r->n_step++;
    return 0;
}

static void finish_event(rows *r, uint32_t layer) {
    const tokens *t = &r->tok;
    r->event = (stk_event){.step = r->n_step - 1,
                           .layer = r->dense_of[layer],
                           .n_tok = t->n,
                           .k = r->k,
                           .n_top = r->n_top,
                           .n_expert = r->n_expert,
                           .seq = t->seq,
                           .pos = t->pos,
                           .token = t->token,
                           .ids = r->ids,
                           .weights = r->no_weights ? NULL : r->weights,
                           .top_ids = r->n_top ? r->top_ids : NULL,
                           .top_scores = r->n_top ? r->top_scores : NULL};
    stk_trace_count(&r->count, &r->event);
}

/* The cells of the next event: 1, or 0 at the end. *new_step tells whether it is the first of its step. */
static int next_event(rows *r, bool *new_step) {
    if (!r->have_cell) return 0;
    uint32_t layer = r->cell.layer, at = 0;
    *new_step = !same_step(r);
    if (!*new_step && layer <= r->last_layer)
        return at_line(r->cell_line, "a layer that the step had before, or a lower one: rows stand by step, then by layer");
    if (*new_step) STK_TRY(begin_step(r));
    r->last_layer = layer;
    r->n_top = r->cell.n_top;
    r->no_weights = false;
    int rc;
    do {
        STK_TRY(add_cell(r, &at, *new_step));
        if (r->scanning) STK_TRY(note_cell(r));
    } while ((rc = next_cell(r)) == 1 && r->cell.layer == layer && same_step(r));
    if (rc < 0) return rc;
    r->most_tokens = STK_MAX(r->most_tokens, r->tok.n);
    if (r->scanning) return 1;
    STK_TRY(grow_event(r, r->tok.n));
    for (; at < r->tok.n; at++) put_token(r, at, NULL);
    finish_event(r, layer);
    return 1;
}

/* ---- Open, read, close -------------------------------------------------------------------------------------------------- */

static int begin_pass(rows *r) {
    memset(r->parser, 0, r->format->parser_bytes);
    r->in_step = false;
    r->n_step = 0;
    STK_TRY(stk_input_rewind(r->in));
    STK_TRY(next_row(r));
    return next_cell(r);
}

static int make_header(rows *r, uint64_t expert_bytes, stk_trace_header *header, bool *sized) {
    const import_facts *f = &r->facts;
    uint32_t *layers = calloc(IMPORT_MAX_LAYER, sizeof *layers);
    uint64_t *sizes = calloc(IMPORT_MAX_LAYER, sizeof *sizes);
    int rc = layers && sizes ? 0 : stk_fail(STK_ENOMEM, "out of memory");
    *sized = true;
    for (uint32_t i = 0; rc == 0 && i < IMPORT_MAX_LAYER; i++) {
        if (!f->seen[i]) continue;
        uint64_t bytes = expert_bytes ? expert_bytes : f->of_layer[i] ? f->of_layer[i] : f->bytes;
        *sized &= bytes != 0;
        layers[r->n_layer] = i;
        sizes[r->n_layer] = bytes ? bytes : STK_SOURCE_EXPERT_BYTES;
        r->dense_of[i] = r->n_layer++;
    }
    r->k = STK_MAX(r->most_k, f->k);
    r->n_expert = f->n_expert ? f->n_expert : STK_MAX(r->most_expert + 1, STK_MAX(r->k, r->most_top));
    if (rc == 0 && (r->most_expert >= r->n_expert || r->k > r->n_expert || r->most_top > r->n_expert))
        rc = stk_fail(STK_EFORMAT, "expert %u, or %u of them a token, of a layer of %u", r->most_expert, r->k, r->n_expert);
    if (rc == 0)
        rc = stk_import_header(header, &(import_shape){.n_layer = r->n_layer,
                                                       .n_expert = r->n_expert,
                                                       .k = r->k,
                                                       .n_batch = r->most_tokens,
                                                       .model_layer = layers,
                                                       .bytes = sizes,
                                                       .model = f->model});
    free(layers);
    free(sizes);
    return rc;
}

static int open_rows(rows *r, uint64_t expert_bytes, stk_trace_header *header, bool *sized) {
    bool new_step;
    int rc;
    r->parser = malloc(r->format->parser_bytes);
    r->dense_of = calloc(IMPORT_MAX_LAYER, sizeof *r->dense_of);
    if (!r->parser || !r->dense_of) return stk_fail(STK_ENOMEM, "out of memory");
    r->scanning = true;
    rc = begin_pass(r);
    while (rc == 1) rc = next_event(r, &new_step);
    if (rc < 0) return rc;
    if (!r->n_step) return stk_fail(STK_EFORMAT, "no rows");
    STK_TRY(make_header(r, expert_bytes, header, sized));
    STK_TRY(stk_trace_count_open(&r->count, r->n_expert));
    r->scanning = false;
    rc = begin_pass(r);
    return rc < 0 ? rc : 0;
}

int stk_import_rows_open(void **state, const import_rows_format *format, stk_input *in, uint64_t expert_bytes,
                         stk_trace_header *header, bool *sized) {
    rows *r = calloc(1, sizeof *r);
    *state = r;
    if (!r) return stk_fail(STK_ENOMEM, "out of memory");
    r->format = format;
    r->in = in;
    return open_rows(r, expert_bytes, header, sized);
}

int stk_import_rows_read(void *state, stk_trace_record *record) {
    rows *r = state;
    if (!r->event_next) {
        bool new_step;
        int rc = next_event(r, &new_step);
        if (rc <= 0) return rc;
        if (new_step) {
            const tokens *t = &r->tok;
            r->event_next = true;
            record->kind = STK_TRACE_STEP;
            record->step = (stk_trace_step){
                .step = r->n_step - 1, .n_tok = t->n, .seq = t->seq, .pos = t->pos, .token = t->token, .logits = t->logits};
            return 1;
        }
    }
    r->event_next = false;
    record->kind = STK_TRACE_EVENT;
    record->event = r->event;
    return 1;
}

void stk_import_rows_close(void *state) {
    rows *r = state;
    if (!r) return;
    free(r->parser);
    free(r->dense_of);
    free(r->tok.seq);
    free(r->tok.pos);
    free(r->tok.token);
    free(r->tok.logits);
    free(r->ids);
    free(r->weights);
    free(r->top_ids);
    free(r->top_scores);
    stk_trace_count_close(&r->count);
    free(r);
}
