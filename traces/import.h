/*
 * import: what the importers share. An importer knows the shape of its trace before the first record, be it by reading the file
 * twice; everything else streams, so that memory does not depend on the trace's length.
 *
 * Who may call it: traces/.
 */
#ifndef STK_IMPORT_H
#define STK_IMPORT_H

#include "traces/input.h"
#include "traces/trace.h"
#include "traces/trace_count.h"

enum {
    IMPORT_MAX_LAYER = 1 << 16,  /* numbers of layers in the model are below */
    IMPORT_MAX_K = 1 << 12,      /* experts, or scored experts, of a token */
    IMPORT_MAX_TOKENS = 1 << 16, /* of a step */
};
#define IMPORT_MAX_BYTES (UINT64_C(1) << 40) /* of an expert */

/* What stands in the header. */
typedef struct import_shape {
    uint32_t n_expert, k, n_batch;
    uint32_t n_layer;      /* layers with experts */
    uint32_t *model_layer; /* [n_layer] ascending */
    uint64_t *bytes;       /* [n_layer] of an expert */
    const char *model;     /* NULL: "" */
} import_shape;

/* Builds a header out of it: a class for each size, one extent an expert, no slots. Free with stk_trace_header_free. Errors:
 * STK_EFORMAT (above the limits of traces/README.md), STK_ENOMEM. */
int stk_import_header(stk_trace_header *header, const import_shape *shape) STK_CHECKED;

/* An importer. `open` reads from the start of `in`, which it borrows, and fills *header, owned by the caller, and *sized;
 * `expert_bytes` is that of the options. `read` gives STEP and EVENT records, then returns 0. */
typedef struct import_ops {
    const char *name;
    int (*open)(void **state, stk_input *in, uint64_t expert_bytes, stk_trace_header *header, bool *sized);
    int (*read)(void *state, stk_trace_record *record);
    void (*close)(void *state);
} import_ops;

extern const import_ops stk_import_mrt8, stk_import_route, stk_import_csv, stk_import_jsonl, stk_import_router;

/* The importer for a file that begins with these bytes, NULL for none. */
const import_ops *stk_import_find(const uint8_t *data, size_t bytes);

#endif
