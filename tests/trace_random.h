/*
 * trace_random: headers and records for the tests of traces/: plausible ones, extreme ones, and a comparison that follows every
 * pointer and compares floats by their bits.
 */
#ifndef STK_TEST_TRACE_RANDOM_H
#define STK_TEST_TRACE_RANDOM_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "traces/trace.h"

enum { TR_LAYER = 5, TR_EXPERT = 300, TR_PART = 3, TR_CLASS = 2, TR_BATCH = 70, TR_K = 8, TR_TOP = 16 };

typedef struct trace_input {
    uint64_t rng;
    stk_trace_header header;
    stk_trace_class classes[TR_CLASS];
    uint32_t layer_class[TR_LAYER], model_layer[TR_LAYER];
    stk_trace_extent extents[TR_LAYER * TR_EXPERT * TR_PART];
    stk_trace_step step; /* the running one */
    int32_t seq[TR_BATCH], pos[TR_BATCH], token[TR_BATCH];
    uint8_t logits[TR_BATCH];
    uint16_t ids[TR_BATCH * TR_K], top_ids[TR_BATCH * TR_EXPERT], distinct[TR_EXPERT];
    float weights[TR_BATCH * TR_K], top_scores[TR_BATCH * TR_EXPERT];
    uint32_t counts[TR_EXPERT];
    stk_ahead ahead[STK_TRACE_AHEAD_MAX * TR_EXPERT];
    stk_placed placed[TR_EXPERT];
    uint8_t moved[TR_EXPERT];
    stk_trace_slots slots[TR_CLASS];
    stk_trace_record record;
} trace_input;

static inline uint64_t tr_u64(trace_input *t) {
    uint64_t x = t->rng += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline uint32_t tr_below(trace_input *t, uint32_t n) { return (uint32_t)(tr_u64(t) % n); }

/* Any bit pattern now and then, else small. */
static inline uint64_t tr_number(trace_input *t) { return tr_below(t, 4) ? tr_below(t, 1000) : tr_u64(t) >> tr_below(t, 64); }

static inline void tr_header(trace_input *t, uint64_t seed) {
    t->rng = seed;
    for (uint32_t i = 0; i < TR_CLASS; i++)
        t->classes[i] = (stk_trace_class){tr_number(t), tr_number(t), (uint32_t)tr_number(t), (uint32_t)tr_number(t)};
    for (uint32_t i = 0; i < TR_LAYER; i++) {
        t->layer_class[i] = tr_below(t, TR_CLASS);
        t->model_layer[i] = (uint32_t)tr_number(t);
    }
    uint64_t offset = 4096;
    for (uint32_t i = 0; i < TR_LAYER * TR_EXPERT * TR_PART; i++) {
        t->extents[i] = (stk_trace_extent){i > 2000, offset, 8192};
        if (tr_below(t, 20) == 0) t->extents[i] = (stk_trace_extent){(uint32_t)tr_u64(t), tr_u64(t), tr_u64(t)};
        offset += 8192;
    }
    t->header = (stk_trace_header){.n_layer = TR_LAYER,
                                   .n_expert = TR_EXPERT,
                                   .k = TR_K,
                                   .n_part = TR_PART,
                                   .n_class = TR_CLASS,
                                   .n_batch = TR_BATCH,
                                   .ram_bytes = tr_number(t),
                                   .seed = tr_u64(t),
                                   .classes = t->classes,
                                   .layer_class = t->layer_class,
                                   .model_layer = t->model_layer,
                                   .extents = t->extents,
                                   .model = "a model, \xc3\xa4",
                                   .policy = "lru",
                                   .params = "",
                                   .io = "uring",
                                   .state = seed % 3 ? "the cache\0\xff" : NULL,
                                   .state_bytes = seed % 3 ? 11 : 0};
}

static inline void tr_step(trace_input *t, uint64_t step, uint32_t n_tok) {
    for (uint32_t i = 0; i < n_tok; i++) {
        bool wild = tr_below(t, 30) == 0;
        t->seq[i] = wild ? (int32_t)tr_u64(t) : (int32_t)(i / 20);
        t->pos[i] = wild ? (int32_t)tr_u64(t) : (int32_t)(step + i);
        t->token[i] = wild ? (int32_t)tr_u64(t) : (int32_t)tr_below(t, 150000);
        t->logits[i] = tr_below(t, 2) != 0;
    }
    t->step =
        (stk_trace_step){.step = step, .n_tok = n_tok, .seq = t->seq, .pos = t->pos, .token = t->token, .logits = t->logits};
    t->record = (stk_trace_record){.kind = STK_TRACE_STEP, .step = t->step};
}

/* Falling scores of n different experts. */
static inline void tr_top(trace_input *t, uint16_t *ids, float *scores, uint32_t n, uint32_t n_expert) {
    uint8_t taken[TR_EXPERT] = {0};
    float score = 0.3f;
    for (uint32_t i = 0; i < n;) {
        uint16_t id = (uint16_t)tr_below(t, n_expert);
        if (taken[id]) continue;
        taken[id] = 1;
        ids[i] = id;
        scores[i++] = score;
        score *= 0.5f + (float)tr_below(t, 1 << 20) * 0x1p-21f;
    }
}

/* How the weights come about: TR_NORMED and TR_SCORES as routers do it, TR_OTHER any bits. */
enum { TR_NORMED, TR_SCORES, TR_OTHER, TR_NO_WEIGHTS, TR_N_WEIGHTS };

static inline void tr_event(trace_input *t, uint32_t layer, uint32_t k, uint32_t n_top, uint32_t weights, bool forced) {
    stk_event e = {.step = t->step.step, .layer = layer, .n_tok = t->step.n_tok, .k = k, .n_top = n_top, .n_expert = TR_EXPERT};
    uint32_t n[TR_EXPERT] = {0};
    for (uint32_t i = 0; i < e.n_tok; i++) {
        uint16_t *ids = t->ids + i * k;
        float *w = t->weights + i * k, *scores = t->top_scores + i * n_top, own[TR_K], sum = 0.0f;
        if (n_top) tr_top(t, t->top_ids + i * n_top, scores, n_top, TR_EXPERT);
        if (forced || n_top < k)
            tr_top(t, ids, own, k, TR_EXPERT);
        else
            memcpy(ids, t->top_ids + i * n_top, k * sizeof *ids);
        if (forced && tr_below(t, 5) == 0) ids[k - 1] = STK_NO_EXPERT;
        if (n_top < k) scores = own;
        for (uint32_t j = 0; j < k; j++) sum += scores[j];
        for (uint32_t j = 0; j < k; j++) {
            uint32_t bits = (uint32_t)tr_u64(t);
            w[j] = weights == TR_NORMED ? scores[j] / sum : scores[j];
            if (weights == TR_OTHER) memcpy(&w[j], &bits, sizeof bits);
            if (ids[j] != STK_NO_EXPERT) n[ids[j]]++;
        }
    }
    for (uint32_t x = 0; x < TR_EXPERT; x++) {
        if (!n[x]) continue;
        t->counts[e.n_distinct] = n[x];
        t->distinct[e.n_distinct++] = (uint16_t)x;
    }
    e.seq = t->seq, e.pos = t->pos, e.token = t->token;
    e.ids = t->ids, e.weights = weights == TR_NO_WEIGHTS ? NULL : t->weights;
    if (n_top) e.top_ids = t->top_ids, e.top_scores = t->top_scores;
    e.distinct = t->distinct, e.counts = t->counts;
    t->record = (stk_trace_record){.kind = STK_TRACE_EVENT, .event = e};
}

/* Probabilities are such as a file can hold. */
/* Where experts were computed, and what became of copies. */
static inline void tr_place(trace_input *t, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) t->placed[i] = (stk_placed){tr_below(t, TR_LAYER * TR_EXPERT), (uint8_t)tr_below(t, 2)};
    t->record = (stk_trace_record){.kind = STK_TRACE_PLACE, .place = {n, t->placed}};
}
static inline void tr_moved(trace_input *t, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) t->moved[i] = (uint8_t)tr_below(t, 4);
    t->record = (stk_trace_record){.kind = STK_TRACE_MOVED, .moved = {n, t->moved}};
}

static inline void tr_ahead(trace_input *t, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        t->ahead[i] = (stk_ahead){tr_below(t, TR_LAYER * TR_EXPERT), (float)tr_below(t, 128) / 127.0f, tr_below(t, 2) != 0};
    t->record = (stk_trace_record){.kind = STK_TRACE_AHEAD, .ahead = {n, t->ahead}};
}

/* Record number i of an endless run: its content depends on the seed and i in order, so that a second input repeats it. */
static inline const stk_trace_record *tr_next(trace_input *t, uint32_t i) {
    static const uint32_t n_tops[] = {TR_TOP, TR_TOP, TR_TOP, 0, TR_K, 3, TR_EXPERT};
    uint32_t what = i == 0 ? 0 : tr_below(t, 48);
    if (what < 8)
        tr_step(t, i, tr_below(t, 3) ? 1 : 1 + tr_below(t, TR_BATCH));
    else if (what < 37)
        tr_event(t, tr_below(t, TR_LAYER), tr_below(t, 4) ? TR_K : 1 + tr_below(t, TR_K), n_tops[tr_below(t, 7)],
                 tr_below(t, TR_N_WEIGHTS), tr_below(t, 6) == 0);
    else if (what == 37)
        t->record = (stk_trace_record){.kind = STK_TRACE_DROP, .drop_key = tr_below(t, TR_LAYER * TR_EXPERT)};
    else if (what == 38)
        t->record = (stk_trace_record){.kind = STK_TRACE_ABORT, .abort_step = tr_number(t)};
    else if (what == 39)
        t->record = (stk_trace_record){.kind = STK_TRACE_CLEAR};
    else if (what == 44) {
        for (uint32_t j = 0; j < TR_CLASS; j++) t->slots[j] = (stk_trace_slots){tr_below(t, 1000), tr_below(t, 9)};
        t->record = (stk_trace_record){.kind = STK_TRACE_RESIZE, .resize = {tr_number(t), t->slots}};
    } else if (what == 45)
        t->record = (stk_trace_record){.kind = STK_TRACE_SWITCH, .toggle = {tr_below(t, STK_TECHNIQUE_MAX + 1), tr_below(t, 2)}};
    else if (what < 43)
        tr_ahead(t, tr_below(t, 4) ? tr_below(t, 20) : tr_below(t, STK_TRACE_AHEAD_MAX * TR_EXPERT + 1));
    else if (what == 46)
        tr_place(t, 1 + tr_below(t, TR_EXPERT));
    else if (what == 47)
        tr_moved(t, 1 + tr_below(t, TR_EXPERT));
    else {
        t->record = (stk_trace_record){.kind = STK_TRACE_COST};
        for (uint32_t j = 0; j < STK_TRACE_N_COST; j++) t->record.cost[j] = (double)tr_u64(t) * 0x1p-40;
    }
    return &t->record;
}

static inline const stk_trace_record *tr_end(trace_input *t) {
    t->record = (stk_trace_record){.kind = STK_TRACE_END};
    uint64_t *numbers = &t->record.end.n_event;
    /* Without a tier in VRAM, as the header has it. */
    size_t n = (offsetof(stk_trace_end, n_vram_hit)) / sizeof *numbers;
    for (size_t i = 0; i < n; i++) numbers[i] = tr_number(t);
    return &t->record;
}

/* ---- Comparison --------------------------------------------------------------------------------------------------------- */

static inline bool tr_same_array(const void *a, const void *b, size_t bytes) {
    return (!a || !bytes) == (!b || !bytes) && (!a || !bytes || memcmp(a, b, bytes) == 0);
}

static inline bool tr_same_event(const stk_event *a, const stk_event *b) {
    size_t n = a->n_tok, n_id = n * a->k, n_top = n * a->n_top;
    return a->step == b->step && a->layer == b->layer && a->n_tok == b->n_tok && a->k == b->k && a->n_top == b->n_top &&
           a->n_expert == b->n_expert && a->n_distinct == b->n_distinct && tr_same_array(a->seq, b->seq, n * 4) &&
           tr_same_array(a->pos, b->pos, n * 4) && tr_same_array(a->token, b->token, n * 4) &&
           tr_same_array(a->ids, b->ids, n_id * 2) && tr_same_array(a->weights, b->weights, n_id * 4) &&
           tr_same_array(a->top_ids, b->top_ids, n_top * 2) && tr_same_array(a->top_scores, b->top_scores, n_top * 4) &&
           tr_same_array(a->distinct, b->distinct, a->n_distinct * 2u) && tr_same_array(a->counts, b->counts, a->n_distinct * 4u);
}

static inline bool tr_same(const stk_trace_record *a, const stk_trace_record *b) {
    if (a->kind != b->kind) return false;
    switch (a->kind) {
    case STK_TRACE_STEP:
        return a->step.step == b->step.step && a->step.n_tok == b->step.n_tok &&
               tr_same_array(a->step.seq, b->step.seq, a->step.n_tok * 4u) &&
               tr_same_array(a->step.pos, b->step.pos, a->step.n_tok * 4u) &&
               tr_same_array(a->step.token, b->step.token, a->step.n_tok * 4u) &&
               tr_same_array(a->step.logits, b->step.logits, a->step.n_tok);
    case STK_TRACE_EVENT: return tr_same_event(&a->event, &b->event);
    case STK_TRACE_AHEAD:
        for (uint32_t i = 0; i < STK_MIN(a->ahead.n, b->ahead.n); i++)
            if (a->ahead.list[i].key != b->ahead.list[i].key || a->ahead.list[i].p != b->ahead.list[i].p ||
                a->ahead.list[i].issue != b->ahead.list[i].issue)
                return false;
        return a->ahead.n == b->ahead.n;
    case STK_TRACE_RESIZE:
        return a->resize.ram_bytes == b->resize.ram_bytes &&
               tr_same_array(a->resize.classes, b->resize.classes, TR_CLASS * sizeof *a->resize.classes);
    case STK_TRACE_SWITCH: return a->toggle.technique == b->toggle.technique && a->toggle.on == b->toggle.on;
    case STK_TRACE_PLACE:
        for (uint32_t i = 0; i < STK_MIN(a->place.n, b->place.n); i++)
            if (a->place.list[i].key != b->place.list[i].key || a->place.list[i].where != b->place.list[i].where) return false;
        return a->place.n == b->place.n;
    case STK_TRACE_MOVED:
        return a->moved.n == b->moved.n && (a->moved.n == 0 || memcmp(a->moved.list, b->moved.list, a->moved.n) == 0);
    case STK_TRACE_CLEAR: return true;
    case STK_TRACE_DROP: return a->drop_key == b->drop_key;
    case STK_TRACE_ABORT: return a->abort_step == b->abort_step;
    case STK_TRACE_COST: return memcmp(a->cost, b->cost, sizeof a->cost) == 0;
    case STK_TRACE_END: return memcmp(&a->end, &b->end, sizeof a->end) == 0;
    }
    return false;
}

static inline bool tr_same_header(const stk_trace_header *a, const stk_trace_header *b) {
    bool same = a->n_layer == b->n_layer && a->n_expert == b->n_expert && a->k == b->k && a->n_part == b->n_part &&
                a->n_class == b->n_class && a->n_batch == b->n_batch && a->ram_bytes == b->ram_bytes && a->seed == b->seed &&
                !strcmp(a->model, b->model) && !strcmp(a->policy, b->policy) && !strcmp(a->params, b->params) &&
                !strcmp(a->io, b->io) && a->state_bytes == b->state_bytes && tr_same_array(a->state, b->state, a->state_bytes);
    for (uint32_t i = 0; same && i < a->n_class; i++)
        same = a->classes[i].slot_bytes == b->classes[i].slot_bytes &&
               a->classes[i].payload_bytes == b->classes[i].payload_bytes && a->classes[i].n_slot == b->classes[i].n_slot &&
               a->classes[i].n_transit == b->classes[i].n_transit;
    for (uint32_t i = 0; same && i < a->n_layer; i++)
        same = a->layer_class[i] == b->layer_class[i] && a->model_layer[i] == b->model_layer[i];
    for (uint64_t i = 0; same && i < (uint64_t)a->n_layer * a->n_expert * a->n_part; i++)
        same = a->extents[i].file == b->extents[i].file && a->extents[i].offset == b->extents[i].offset &&
               a->extents[i].bytes == b->extents[i].bytes;
    return same;
}

/* ---- Files -------------------------------------------------------------------------------------------------------------- */

/* A file in memory of the test's own: tests run in processes, and write thousands of files. */
static inline const char *tr_path(void) {
    static char path[32];
    if (*path) return path;
    int fd = memfd_create("trace", MFD_CLOEXEC);
    if (fd < 0) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

static inline size_t tr_load(const char *path, uint8_t **data) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) < 0) abort();
    size_t bytes = (size_t)ftell(f);
    rewind(f);
    *data = malloc(bytes + 1);
    if (fread(*data, 1, bytes, f) != bytes) abort();
    fclose(f);
    return bytes;
}

static inline void tr_store(const char *path, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f)) abort();
}

#endif
