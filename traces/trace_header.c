/* trace_header: the content of a trace's first frame. */
#include <stdlib.h>

#include "traces/trace_format.h"

enum { N_TEXT = 4, CLASS_BYTES = 40, LAYER_BYTES = 10, EXTENT_BYTES = 30, FIXED_BYTES = 128 };

static uint64_t n_extent(const stk_trace_header *h) { return (uint64_t)h->n_layer * h->n_expert * h->n_part; }

static int check_numbers(const stk_trace_header *h) {
    const struct {
        const char *name;
        uint32_t value, least, most;
    } fields[] = {{"n_layer", h->n_layer, 1, TRACE_MAX_LAYER},
                  {"n_expert", h->n_expert, 1, TRACE_MAX_EXPERT},
                  {"k", h->k, 1, h->n_expert},
                  {"n_part", h->n_part, 0, TRACE_MAX_EXTENT},
                  {"n_class", h->n_class, 1, TRACE_MAX_CLASS},
                  {"n_batch", h->n_batch, 1, TRACE_MAX_BATCH}};
    for (size_t i = 0; i < STK_ARRAY_LEN(fields); i++)
        if (fields[i].value < fields[i].least || fields[i].value > fields[i].most)
            return stk_fail(STK_EINVAL, "%s is %u, not in %u .. %u", fields[i].name, fields[i].value, fields[i].least,
                            fields[i].most);
    /* n_layer * n_expert is below 2^32 by the limits above, n_part below 2^21. */
    if (n_extent(h) > TRACE_MAX_EXTENT)
        return stk_fail(STK_EINVAL, "%u layers of %u experts of %u parts; at most %d parts are supported", h->n_layer,
                        h->n_expert, h->n_part, TRACE_MAX_EXTENT);
    if (stk_trace_record_bytes(h) > TRACE_MAX_RECORD_BYTES)
        return stk_fail(STK_EINVAL, "events of %u tokens and %u experts are too large for a trace", h->n_batch, h->n_expert);
    return 0;
}

static int check_layers(const stk_trace_header *h) {
    for (uint32_t i = 0; i < h->n_layer; i++)
        if (h->layer_class[i] >= h->n_class)
            return stk_fail(STK_EINVAL, "layer %u is of class %u of %u", i, h->layer_class[i], h->n_class);
    return 0;
}

int stk_trace_header_check(const stk_trace_header *h) {
    STK_TRY(check_numbers(h));
    const char *const texts[N_TEXT] = {h->model, h->policy, h->params, h->io};
    for (uint32_t i = 0; i < N_TEXT; i++)
        if (strlen(texts[i]) > TRACE_MAX_TEXT) return stk_fail(STK_EINVAL, "a text of %zu bytes", strlen(texts[i]));
    if (h->vram_slots && strlen(h->vram_policy) > TRACE_MAX_TEXT)
        return stk_fail(STK_EINVAL, "a text of %zu bytes", strlen(h->vram_policy));
    if (h->state_bytes > TRACE_MAX_STATE)
        return stk_fail(STK_EINVAL, "a start state of %llu bytes; at most %d are supported", (unsigned long long)h->state_bytes,
                        TRACE_MAX_STATE);
    return check_layers(h);
}

size_t stk_trace_header_bytes(const stk_trace_header *h) {
    return FIXED_BYTES + N_TEXT * (size_t)TRACE_MAX_TEXT + CLASS_BYTES * (size_t)h->n_class + LAYER_BYTES * (size_t)h->n_layer +
           EXTENT_BYTES * (size_t)n_extent(h) + (size_t)h->state_bytes + (size_t)TRACE_MAX_TEXT;
}

size_t stk_trace_record_bytes(const stk_trace_header *h) {
    /* A token: seq, pos, token and its logits bit in a step; k ids and weights, n_expert scored ids in an event. */
    return 1024 + 32 * (size_t)h->n_expert + 24 * (size_t)h->n_class +
           (size_t)h->n_batch * (16 + ((size_t)h->k + h->n_expert) * 7);
}

/* ---- Encoding ----------------------------------------------------------------------------------------------------------- */

static uint8_t *put_text(uint8_t *p, const char *text) {
    size_t bytes = strlen(text);
    return put_bytes(put_varint(p, bytes), text, bytes);
}

size_t stk_trace_header_put(uint8_t *out, const stk_trace_header *h) {
    uint8_t *p = out;
    const uint64_t numbers[] = {h->n_layer, h->n_expert, h->k, h->n_part, h->n_class, h->n_batch, h->ram_bytes, h->seed};
    for (size_t i = 0; i < STK_ARRAY_LEN(numbers); i++) p = put_varint(p, numbers[i]);
    const char *const texts[N_TEXT] = {h->model, h->policy, h->params, h->io};
    for (size_t i = 0; i < N_TEXT; i++) p = put_text(p, texts[i]);
    for (uint32_t i = 0; i < h->n_class; i++) {
        const stk_trace_class *c = &h->classes[i];
        p = put_varint(p, c->slot_bytes);
        p = put_varint(p, c->payload_bytes);
        p = put_varint(p, c->n_slot);
        p = put_varint(p, c->n_transit);
    }
    for (uint32_t i = 0; i < h->n_layer; i++) p = put_varint(p, h->layer_class[i]);
    for (uint32_t i = 0; i < h->n_layer; i++) p = put_varint(p, h->model_layer[i]);
    /* Mostly zeros: the same part of the expert before has the same size and ends where this one begins. */
    const stk_trace_extent none = {0, 0, 0};
    for (uint64_t i = 0; i < n_extent(h); i++) {
        const stk_trace_extent *e = &h->extents[i], *before = i < h->n_part ? &none : e - h->n_part;
        p = put_varint(p, zigzag((uint64_t)e->file - before->file));
        p = put_varint(p, zigzag(e->offset - (before->offset + before->bytes)));
        p = put_varint(p, zigzag(e->bytes - before->bytes));
    }
    p = put_varint(p, h->state_bytes);
    if (h->state_bytes) p = put_bytes(p, h->state, (size_t)h->state_bytes);
    if (h->vram_slots) {
        p = put_text(p, h->vram_policy);
        for (uint32_t i = 0; i < h->n_class; i++) p = put_varint(p, h->vram_slots[i]);
    }
    return (size_t)(p - out);
}

/* ---- Decoding ----------------------------------------------------------------------------------------------------------- */

/* 0-terminated and allocated; NULL with in->bad set, or when there is no memory. */
static char *get_text(trace_in *in) {
    size_t bytes = get_u32(in, TRACE_MAX_TEXT);
    if (in->bad || bytes > in_left(in) || memchr(in->p, 0, bytes)) {
        in_fail(in);
        return NULL;
    }
    char *text = malloc(bytes + 1);
    if (!text) return NULL;
    get_bytes(in, text, bytes);
    text[bytes] = 0;
    return text;
}

static void get_arrays(trace_in *in, const stk_trace_header *h, stk_trace_class *classes, uint32_t *layer_class,
                       uint32_t *model_layer, stk_trace_extent *extents) {
    for (uint32_t i = 0; i < h->n_class; i++) {
        classes[i].slot_bytes = get_varint(in);
        classes[i].payload_bytes = get_varint(in);
        classes[i].n_slot = get_u32(in, UINT32_MAX);
        classes[i].n_transit = get_u32(in, UINT32_MAX);
    }
    for (uint32_t i = 0; i < h->n_layer; i++) layer_class[i] = get_u32(in, UINT32_MAX);
    for (uint32_t i = 0; i < h->n_layer; i++) model_layer[i] = get_u32(in, UINT32_MAX);
    const stk_trace_extent none = {0, 0, 0};
    for (uint64_t i = 0; i < n_extent(h); i++) {
        const stk_trace_extent *before = i < h->n_part ? &none : &extents[i - h->n_part];
        uint64_t file = before->file + unzigzag(get_varint(in));
        if (file > UINT32_MAX) in_fail(in);
        extents[i].file = (uint32_t)file;
        extents[i].offset = before->offset + before->bytes + unzigzag(get_varint(in));
        extents[i].bytes = before->bytes + unzigzag(get_varint(in));
    }
}

/* What follows the extents, from version 2 on. */
static int get_state(trace_in *in, stk_trace_header *h) {
    if (!in_left(in)) return 0;
    h->state_bytes = get_u32(in, TRACE_MAX_STATE);
    if (in->bad || h->state_bytes > in_left(in)) return stk_fail(STK_EFORMAT, "the header's start state is malformed");
    if (!h->state_bytes) return 0;
    void *state = malloc((size_t)h->state_bytes);
    if (!state) return stk_fail(STK_ENOMEM, "out of memory for the header");
    get_bytes(in, state, (size_t)h->state_bytes);
    h->state = state;
    return 0;
}

/* What a run with a tier on a device has besides. */
static int get_tier(trace_in *in, stk_trace_header *h) {
    if (!in_left(in)) return 0;
    uint32_t *slots = calloc(h->n_class, sizeof *slots);
    h->vram_slots = slots;
    h->vram_policy = get_text(in);
    if (in->bad) return stk_fail(STK_EFORMAT, "a text of the header is malformed");
    if (!slots || !h->vram_policy) return stk_fail(STK_ENOMEM, "out of memory for the header");
    for (uint32_t i = 0; i < h->n_class; i++) slots[i] = get_u32(in, UINT32_MAX);
    return 0;
}

/* The counts were checked, and what is left of the frame could hold them: memory stays in proportion to the frame. */
static int get_body(trace_in *in, stk_trace_header *h) {
    if (in_left(in) < 4 * (size_t)h->n_class + 2 * (size_t)h->n_layer + 3 * n_extent(h))
        return stk_fail(STK_EFORMAT, "the header is too short for its counts");
    stk_trace_class *classes = calloc(h->n_class, sizeof *classes);
    uint32_t *layer_class = calloc(h->n_layer, sizeof *layer_class), *model_layer = calloc(h->n_layer, sizeof *model_layer);
    stk_trace_extent *extents = calloc(n_extent(h) + 1, sizeof *extents);
    h->classes = classes;
    h->layer_class = layer_class;
    h->model_layer = model_layer;
    h->extents = extents;
    if (!classes || !layer_class || !model_layer || !extents) return stk_fail(STK_ENOMEM, "out of memory for the header");
    get_arrays(in, h, classes, layer_class, model_layer, extents);
    if (in->bad) return stk_fail(STK_EFORMAT, "the header is malformed");
    STK_TRY(get_state(in, h));
    STK_TRY(get_tier(in, h));
    if (in->bad || in_left(in)) return stk_fail(STK_EFORMAT, "the header is malformed");
    return check_layers(h) < 0 ? STK_EFORMAT : 0;
}

static int get_header(trace_in *in, stk_trace_header *h) {
    uint32_t *const numbers[] = {&h->n_layer, &h->n_expert, &h->k, &h->n_part, &h->n_class, &h->n_batch};
    for (size_t i = 0; i < STK_ARRAY_LEN(numbers); i++) *numbers[i] = get_u32(in, UINT32_MAX);
    h->ram_bytes = get_varint(in);
    h->seed = get_varint(in);
    if (in->bad) return stk_fail(STK_EFORMAT, "the header is malformed");
    if (check_numbers(h) < 0) return STK_EFORMAT;
    const char **const texts[N_TEXT] = {&h->model, &h->policy, &h->params, &h->io};
    for (size_t i = 0; i < N_TEXT; i++) {
        *texts[i] = get_text(in);
        if (in->bad) return stk_fail(STK_EFORMAT, "a text of the header is malformed");
        if (!*texts[i]) return stk_fail(STK_ENOMEM, "out of memory for the header");
    }
    return get_body(in, h);
}

int stk_trace_header_get(const uint8_t *data, size_t bytes, stk_trace_header *header) {
    trace_in in = {data, data + bytes, false};
    *header = (stk_trace_header){0};
    int rc = get_header(&in, header);
    if (rc < 0) stk_trace_header_free(header);
    return rc;
}

void stk_trace_header_free(stk_trace_header *h) {
    const void *const owned[] = {h->classes, h->layer_class, h->model_layer, h->extents,    h->model,      h->policy,
                                 h->params,  h->io,          h->state,       h->vram_slots, h->vram_policy};
    for (size_t i = 0; i < STK_ARRAY_LEN(owned); i++) free((void *)owned[i]);
    *h = (stk_trace_header){0};
}
