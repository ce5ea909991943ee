/* import: headers of imported traces, counting of experts, and which format a file is of. */
#include "traces/import.h"

#include <stdlib.h>
#include <string.h>

#include "traces/trace_format.h"

enum { BLOCK_BYTES = 4096 }; /* what a drive is asked for is a multiple */

/* ---- Header ------------------------------------------------------------------------------------------------------------- */

static int alloc_header(stk_trace_header *h, const import_shape *shape) {
    uint64_t n_extent = (uint64_t)shape->n_layer * shape->n_expert;
    if (!shape->n_layer || !shape->n_expert || shape->n_expert > TRACE_MAX_EXPERT || n_extent > TRACE_MAX_EXTENT)
        return stk_fail(STK_EFORMAT, "%u layers of %u experts; at most %d experts of all layers are supported", shape->n_layer,
                        shape->n_expert, TRACE_MAX_EXTENT);
    h->classes = calloc(shape->n_layer, sizeof *h->classes);
    h->layer_class = calloc(shape->n_layer, sizeof *h->layer_class);
    h->model_layer = calloc(shape->n_layer, sizeof *h->model_layer);
    h->extents = calloc(n_extent, sizeof *h->extents);
    h->model = strdup(shape->model ? shape->model : "");
    h->policy = strdup("");
    h->params = strdup("");
    h->io = strdup("");
    if (!h->classes || !h->layer_class || !h->model_layer || !h->extents || !h->model || !h->policy || !h->params || !h->io)
        return stk_fail(STK_ENOMEM, "out of memory for the header");
    return 0;
}

static uint32_t class_of(stk_trace_header *h, stk_trace_class *classes, uint64_t bytes) {
    uint32_t c = 0;
    while (c < h->n_class && classes[c].payload_bytes != bytes) c++;
    if (c == h->n_class) classes[h->n_class++] = (stk_trace_class){.slot_bytes = bytes, .payload_bytes = bytes};
    return c;
}

static int fill_header(stk_trace_header *h, const import_shape *shape) {
    STK_TRY(alloc_header(h, shape));
    h->n_layer = shape->n_layer;
    h->n_expert = shape->n_expert;
    h->k = STK_MAX(shape->k, 1u);
    h->n_batch = STK_MAX(shape->n_batch, 1u);
    h->n_part = 1;
    stk_trace_extent *extents = (stk_trace_extent *)h->extents;
    uint64_t offset = 0;
    for (uint32_t layer = 0; layer < h->n_layer; layer++) {
        uint64_t bytes = shape->bytes[layer];
        if (!bytes || bytes > IMPORT_MAX_BYTES)
            return stk_fail(STK_EFORMAT, "experts of %llu bytes in layer %u", (unsigned long long)bytes,
                            shape->model_layer[layer]);
        ((uint32_t *)h->layer_class)[layer] = class_of(h, (stk_trace_class *)h->classes, bytes);
        ((uint32_t *)h->model_layer)[layer] = shape->model_layer[layer];
        for (uint32_t expert = 0; expert < h->n_expert; expert++) {
            *extents = (stk_trace_extent){0, offset, stk_align_up(bytes, BLOCK_BYTES)};
            offset += extents++->bytes;
        }
    }
    return stk_trace_header_check(h) < 0 ? STK_EFORMAT : 0;
}

int stk_import_header(stk_trace_header *header, const import_shape *shape) {
    *header = (stk_trace_header){0};
    int rc = fill_header(header, shape);
    if (rc < 0) stk_trace_header_free(header);
    return rc;
}

/* ---- Which format ------------------------------------------------------------------------------------------------------- */

/* Whether the first line of a JSON file is an object of its own, as JSONL has it. */
static bool line_is_object(const char *text, size_t bytes) {
    int depth = 0;
    bool in_text = false;
    for (size_t i = 0; i < bytes && text[i] != '\n'; i++) {
        if (in_text && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_text = !in_text;
        else if (in_text)
            continue;
        else if (text[i] == '{' || text[i] == '[')
            depth++;
        else if (text[i] == '}' || text[i] == ']') {
            if (--depth == 0) return true;
        }
    }
    return false;
}

static bool has(const char *text, size_t bytes, const char *word) { return memmem(text, bytes, word, strlen(word)) != NULL; }

const import_ops *stk_import_find(const uint8_t *data, size_t bytes) {
    const char *text = (const char *)data;
    if (bytes >= 4 && memcmp(data, "MRT8", 4) == 0) return &stk_import_mrt8;
    if (bytes >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
        bytes -= 3;
    }
    while (bytes && strchr(" \t\r\n", *text) && *text) {
        text++;
        bytes--;
    }
    if (bytes && *text == '{') {
        bool router = has(text, bytes, "\"expertsPerLayer\"") || has(text, bytes, "\"selections\"");
        return router && !has(text, bytes, "\"experts\"") ? &stk_import_router
               : line_is_object(text, bytes)              ? &stk_import_jsonl
               : has(text, bytes, "\"layers\"")           ? &stk_import_router
                                                          : NULL;
    }
    if (bytes >= 14 && memcmp(text, "# route_trace ", 14) == 0) return &stk_import_route;
    return memchr(text, 0, bytes) || !has(text, bytes, ",") ? NULL : &stk_import_csv;
}
