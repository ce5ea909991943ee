/*
 * import_rows: traces whose lines are rows, put together to steps and events. What a line means is the format's (import_csv.c,
 * import_jsonl.c); the order of rows, tokens and layers is checked here.
 *
 * The file is read twice: first for the shape (layers, experts, most tokens of a step), with every check, then for the records.
 * Rows of a step stand together, its layers ascend, and within a layer its tokens keep the order of the step's first layer, of
 * which later layers may lack some.
 *
 * Who may call it: traces/.
 */
#ifndef STK_IMPORT_ROWS_H
#define STK_IMPORT_ROWS_H

#include "traces/import.h"

/* One token in one layer; or, where `single`, one of its experts. */
typedef struct import_row {
    int64_t step; /* number that the tokens of a step share, -1: each token is a step */
    int32_t seq, pos, token;
    bool decode, single;
    uint32_t layer; /* of the model */
    uint32_t rank;  /* of a single expert; IMPORT_MAX_K: as they come */
    uint32_t n, n_top;
    uint16_t experts[IMPORT_MAX_K], top_ids[IMPORT_MAX_K];
    float weights[IMPORT_MAX_K], top_scores[IMPORT_MAX_K]; /* NaN: unknown */
    uint64_t bytes;                                        /* of an expert of this layer; 0: unknown */
} import_row;

/* What a trace says of its model, outside of rows or in them. */
typedef struct import_facts {
    char model[1024];
    uint32_t n_expert, k;        /* 0: not said */
    uint64_t bytes;              /* of every expert */
    bool seen[IMPORT_MAX_LAYER]; /* layers that have experts */
    uint64_t of_layer[IMPORT_MAX_LAYER];
} import_facts;

typedef struct import_rows_format {
    size_t parser_bytes; /* zeroed before each pass */
    /* A line into *row, whose numbers the caller has set to their defaults: 1, or 0 when it is no row. Details name no line. */
    int (*parse)(void *parser, char *line, import_row *row, import_facts *facts);
    /* Rows of a prompt are in the order of layers: those that follow one another up to a lower layer are one step. */
    bool prompt_by_layer;
} import_rows_format;

int stk_import_rows_open(void **state, const import_rows_format *format, stk_input *in, uint64_t expert_bytes,
                         stk_trace_header *header, bool *sized) STK_CHECKED;
int stk_import_rows_read(void *state, stk_trace_record *record) STK_CHECKED;
void stk_import_rows_close(void *state);

/* For formats: a whole number in [0, most] that fills `text`, or STK_EFORMAT with the name of what it is. */
int stk_import_number(const char *what, const char *text, uint64_t most, uint64_t *out) STK_CHECKED;

#endif
