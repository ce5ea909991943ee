/*
 * import_csv: rows between commas, under a line that names the columns; and BigMoeOnEdge's route.csv, which is the same with
 * names and an order of its own. Lines that begin with # say key=value of the model. The columns are those of
 * traces/README.md.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "traces/import_rows.h"

enum { MAX_COLUMN = 64 };

enum column {
    SKIP,
    STEP,
    SEQ,
    POS,
    TOKEN,
    PHASE,
    LAYER,
    RANK,
    EXPERT,
    WEIGHT,
    EXPERTS,
    WEIGHTS,
    TOP_IDS,
    TOP_SCORES,
    BYTES,
    TURN
};

static const struct {
    const char *name;
    enum column column;
} column_names[] = {
    {"step", STEP},       {"seq", SEQ},         {"pos", POS},         {"token", TOKEN},           {"phase", PHASE},
    {"layer", LAYER},     {"rank", RANK},       {"slot", RANK},       {"expert", EXPERT},         {"weight", WEIGHT},
    {"experts", EXPERTS}, {"weights", WEIGHTS}, {"top_ids", TOP_IDS}, {"top_scores", TOP_SCORES}, {"expert_bytes", BYTES},
};

typedef struct csv {
    bool is_route, have_names;
    uint32_t n_column;
    enum column columns[MAX_COLUMN];
    uint64_t turn; /* route.csv: of the latest row, + 1; its sequence: */
    int32_t seq;
} csv;

static bool is_padding(char c) { return c == ' ' || c == '\t' || c == '"'; }

/* Cuts the text up to `stop` off, without spaces and quotes around it; *text goes behind it, NULL at the end. Cells are a few
 * characters: a plain loop finds their end sooner than strchr. */
static char *cut_off(char **text, char stop) {
    char *begin = *text, *end = begin;
    while (*end && *end != stop) end++;
    *text = *end ? end + 1 : NULL;
    while (begin < end && is_padding(*begin)) begin++;
    while (begin < end && is_padding(end[-1])) end--;
    *end = 0;
    return begin;
}

/* ---- Values ------------------------------------------------------------------------------------------------------------- */

static int get_i32(const char *what, const char *text, int32_t *out) {
    uint64_t x;
    STK_TRY(stk_import_number(what, text, INT32_MAX, &x));
    *out = (int32_t)x;
    return 0;
}

static int get_id(const char *text, uint16_t *out) {
    uint64_t x;
    *out = STK_NO_EXPERT;
    if (strcmp(text, "-") == 0) return 0;
    STK_TRY(stk_import_number("an expert", text, STK_NO_EXPERT - 2, &x));
    *out = (uint16_t)x;
    return 0;
}

static int get_float(const char *what, const char *text, float *out) {
    char *end;
    *out = strtof(text, &end);
    return end != text && !*end ? 0 : stk_fail(STK_EFORMAT, "%s is '%.40s', not a number", what, text);
}

/* "3 17 5"; - is no expert. */
static int get_ids(char *text, uint16_t *ids, uint32_t *n) {
    for (*n = 0; text && *text;) {
        char *word = cut_off(&text, ' ');
        if (!*word) continue;
        if (*n == IMPORT_MAX_K) return stk_fail(STK_EFORMAT, "more than %d experts of a token", IMPORT_MAX_K);
        STK_TRY(get_id(word, &ids[*n]));
        ++*n;
    }
    return 0;
}

static int get_floats(const char *what, char *text, float *out, uint32_t *n) {
    for (*n = 0; text && *text;) {
        char *word = cut_off(&text, ' ');
        if (!*word) continue;
        if (*n == IMPORT_MAX_K) return stk_fail(STK_EFORMAT, "more than %d %s of a token", IMPORT_MAX_K, what);
        STK_TRY(get_float(what, word, &out[*n]));
        ++*n;
    }
    return 0;
}

static int get_phase(const char *text, bool *decode) {
    *decode = strcmp(text, "1") == 0 || strcmp(text, "decode") == 0;
    if (*decode || strcmp(text, "0") == 0 || strcmp(text, "prefill") == 0) return 0;
    return stk_fail(STK_EFORMAT, "phase is '%.40s', not prefill (0) or decode (1)", text);
}

/* ---- Lines -------------------------------------------------------------------------------------------------------------- */

static int get_fact(const char *key, const char *value, int64_t *layer, import_facts *facts) {
    uint64_t x;
    if (strcmp(key, "model") == 0) {
        strncpy(facts->model, value, sizeof facts->model - 1);
    } else if (strcmp(key, "n_expert") == 0) {
        STK_TRY(stk_import_number(key, value, STK_NO_EXPERT - 1, &x));
        facts->n_expert = (uint32_t)x;
    } else if (strcmp(key, "k") == 0 || strcmp(key, "n_expert_used") == 0) {
        STK_TRY(stk_import_number(key, value, IMPORT_MAX_K, &x));
        facts->k = (uint32_t)x;
    } else if (strcmp(key, "layer") == 0) {
        STK_TRY(stk_import_number(key, value, IMPORT_MAX_LAYER - 1, &x));
        *layer = (int64_t)x;
    } else if (strcmp(key, "expert_bytes") == 0) {
        STK_TRY(stk_import_number(key, value, IMPORT_MAX_BYTES, &x));
        if (*layer < 0) {
            facts->bytes = x;
        } else if (x) { /* a layer without experts has 0 */
            facts->seen[*layer] = true;
            facts->of_layer[*layer] = x;
        }
    }
    return 0;
}

static int get_facts(char *line, import_facts *facts) {
    int64_t layer = -1;
    while (line) {
        char *word = cut_off(&line, ' '), *equals = strchr(word, '=');
        if (!equals) continue;
        *equals = 0;
        STK_TRY(get_fact(word, equals + 1, &layer, facts));
    }
    return 0;
}

static int get_names(csv *c, char *line) {
    bool have[TURN + 1] = {false};
    for (c->n_column = 0; line; c->n_column++) {
        char *name = cut_off(&line, ',');
        if (c->n_column == MAX_COLUMN) return stk_fail(STK_EFORMAT, "more than %d columns", MAX_COLUMN);
        enum column column = SKIP;
        for (size_t i = 0; i < STK_ARRAY_LEN(column_names); i++)
            if (strcmp(name, column_names[i].name) == 0) column = column_names[i].column;
        if (c->is_route && column == STEP) column = POS;
        if (c->is_route && column == BYTES) column = SKIP; /* it is what was read, 0 for a hit */
        if (c->is_route && strcmp(name, "turn") == 0) column = TURN;
        if (column != SKIP && have[column]) return stk_fail(STK_EFORMAT, "the column '%.40s' is there twice", name);
        have[column] = true;
        c->columns[c->n_column] = column;
    }
    if (!have[LAYER] || have[EXPERT] == have[EXPERTS])
        return stk_fail(STK_EFORMAT, "the columns need layer, and either expert or experts");
    if (!have[STEP] && !have[POS]) return stk_fail(STK_EFORMAT, "the columns need pos or step");
    c->have_names = true;
    return 0;
}

static int get_value(enum column column, char *text, import_row *row, uint32_t *n_weight, uint32_t *n_score, uint64_t *turn) {
    uint64_t x = 0;
    switch (column) {
    case SKIP: return 0;
    case STEP:
        STK_TRY(stk_import_number("step", text, INT64_MAX, &x));
        row->step = (int64_t)x;
        return 0;
    case SEQ: return get_i32("seq", text, &row->seq);
    case POS: return get_i32("pos", text, &row->pos);
    case TOKEN: return strcmp(text, "-1") == 0 ? 0 : get_i32("token", text, &row->token);
    case PHASE: return get_phase(text, &row->decode);
    case LAYER:
        STK_TRY(stk_import_number("layer", text, IMPORT_MAX_LAYER - 1, &x));
        row->layer = (uint32_t)x;
        return 0;
    case RANK:
        STK_TRY(stk_import_number("rank", text, IMPORT_MAX_K - 1, &x));
        row->rank = (uint32_t)x;
        return 0;
    case EXPERT:
        row->single = true;
        row->n = 1;
        return get_id(text, &row->experts[0]);
    case WEIGHT: *n_weight = 1; return get_float("weight", text, &row->weights[0]);
    case EXPERTS: return get_ids(text, row->experts, &row->n);
    case WEIGHTS: return get_floats("weights", text, row->weights, n_weight);
    case TOP_IDS: return get_ids(text, row->top_ids, &row->n_top);
    case TOP_SCORES: return get_floats("top_scores", text, row->top_scores, n_score);
    case BYTES: return stk_import_number("expert_bytes", text, IMPORT_MAX_BYTES, &row->bytes);
    case TURN: return stk_import_number("turn", text, INT32_MAX - 1, turn);
    }
    return 0;
}

/* A turn that begins at position 0 is a conversation of its own; others go on. */
static void number_turn(csv *c, uint64_t turn, import_row *row) {
    if (c->turn && c->turn != turn + 1 && row->pos == 0) c->seq++;
    c->turn = turn + 1;
    row->seq = c->seq;
}

static int get_row(csv *c, char *line, import_row *row) {
    uint32_t n_weight = 0, n_score = 0;
    uint64_t turn = 0;
    for (uint32_t i = 0; i < c->n_column; i++) {
        if (!line) return stk_fail(STK_EFORMAT, "%u values for %u columns", i, c->n_column);
        STK_TRY(get_value(c->columns[i], cut_off(&line, ','), row, &n_weight, &n_score, &turn));
    }
    if (line) return stk_fail(STK_EFORMAT, "more values than the %u columns", c->n_column);
    if (n_weight && n_weight != row->n) return stk_fail(STK_EFORMAT, "%u weights for %u experts", n_weight, row->n);
    if (n_score != row->n_top) return stk_fail(STK_EFORMAT, "%u top_scores for %u top_ids", n_score, row->n_top);
    for (uint32_t i = n_weight; i < row->n; i++) row->weights[i] = NAN;
    for (uint32_t i = 0; i < row->n_top; i++)
        if (row->top_ids[i] == STK_NO_EXPERT) return stk_fail(STK_EFORMAT, "a score of no expert");
    if (c->is_route) number_turn(c, turn, row);
    return 1;
}

static int parse(csv *c, char *line, import_row *row, import_facts *facts) {
    if (strncmp(line, "\xef\xbb\xbf", 3) == 0) line += 3;
    line += strspn(line, " \t");
    if (*line == '#') {
        STK_TRY(get_facts(line + 1, facts));
        return 0;
    }
    if (!*line) return 0;
    if (!c->have_names) return get_names(c, line);
    return get_row(c, line, row);
}

static int parse_csv(void *parser, char *line, import_row *row, import_facts *facts) { return parse(parser, line, row, facts); }

static int parse_route(void *parser, char *line, import_row *row, import_facts *facts) {
    csv *c = parser;
    c->is_route = true;
    return parse(c, line, row, facts);
}

static const import_rows_format csv_format = {sizeof(csv), parse_csv, false}, route_format = {sizeof(csv), parse_route, true};

static int csv_open(void **state, stk_input *in, uint64_t expert_bytes, stk_trace_header *header, bool *sized) {
    return stk_import_rows_open(state, &csv_format, in, expert_bytes, header, sized);
}

static int route_open(void **state, stk_input *in, uint64_t expert_bytes, stk_trace_header *header, bool *sized) {
    return stk_import_rows_open(state, &route_format, in, expert_bytes, header, sized);
}

const import_ops stk_import_csv = {"csv", csv_open, stk_import_rows_read, stk_import_rows_close};
const import_ops stk_import_route = {"route.csv", route_open, stk_import_rows_read, stk_import_rows_close};
