/* budget: from options to slots. */
#include "budget.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "experts/slots.h"

static int alloc_classes(stk_budget *b, const stk_trace_header *h, bool by_layer) {
    b->n_class = by_layer ? h->n_layer : h->n_class;
    b->classes = calloc(b->n_class, sizeof *b->classes);
    b->slot_bytes = calloc(b->n_class, sizeof *b->slot_bytes);
    b->layers_of = calloc(b->n_class, sizeof *b->layers_of);
    b->layer_class = calloc(h->n_layer, sizeof *b->layer_class);
    if (!b->classes || !b->slot_bytes || !b->layers_of || !b->layer_class)
        return stk_fail(STK_ENOMEM, "out of memory for the replay");
    for (uint32_t layer = 0; layer < h->n_layer; layer++) {
        uint32_t c = b->layer_class[layer] = by_layer ? layer : h->layer_class[layer];
        b->slot_bytes[c] = h->classes[h->layer_class[layer]].slot_bytes;
        b->layers_of[c]++;
    }
    return 0;
}

/* Bytes of every expert's slot; STK_EFORMAT where a header says more than 64 bits hold. */
static int all_bytes(const stk_budget *b, const stk_trace_header *h, uint64_t *all) {
    *all = 0;
    for (uint32_t c = 0; c < b->n_class; c++) {
        uint64_t bytes;
        if (stk_mul_overflow(b->slot_bytes[c], (uint64_t)b->layers_of[c] * h->n_expert, &bytes) ||
            stk_add_overflow(*all, bytes, all) || *all > INT64_MAX)
            return stk_fail(STK_EFORMAT, "the trace's experts exceed 2^63 bytes");
    }
    return *all ? 0 : stk_fail(STK_EFORMAT, "the trace's experts have no bytes");
}

/* The trace's own slots, in bytes; 0 when it has none. */
static uint64_t recorded_bytes(const stk_trace_header *h) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < h->n_class; c++) bytes += h->classes[c].n_slot * h->classes[c].slot_bytes;
    return bytes;
}

/* Divides `bytes` among the classes. */
static int share(stk_budget *b, const stk_trace_header *h, uint64_t bytes, uint32_t least) {
    stk_slot_class *classes = calloc(b->n_class, sizeof *classes);
    uint32_t *n_slot = calloc(b->n_class, sizeof *n_slot);
    int rc = classes && n_slot ? 0 : stk_fail(STK_ENOMEM, "out of memory for the replay");
    for (uint32_t c = 0; rc == 0 && c < b->n_class; c++)
        classes[c] = (stk_slot_class){b->slot_bytes[c], b->layers_of[c] * h->n_expert};
    if (rc == 0) rc = stk_slots_share(classes, b->n_class, bytes, least, n_slot);
    for (uint32_t c = 0; rc == 0 && c < b->n_class; c++) b->classes[c].n_slot = n_slot[c];
    free(classes);
    free(n_slot);
    return rc;
}

/* Transit slots beside what the cache holds, or out of it. */
static int set_transit(stk_budget *b, const stk_trace_header *h, const stk_replay_options *o, bool refuses) {
    bool recorded = !o->policy && h->policy[0] && o->scope == STK_SCOPE_GLOBAL;
    bool within = o->ram_bytes != 0; /* the budget counts every byte */
    for (uint32_t c = 0; c < b->n_class; c++) {
        stk_cache_class *cls = &b->classes[c];
        if (!refuses)
            cls->n_transit = recorded ? h->classes[c].n_transit : 0;
        else
            cls->n_transit = recorded && h->classes[c].n_transit ? h->classes[c].n_transit : h->k;
        if (within && refuses) cls->n_slot -= cls->n_transit;
        b->n_slot += cls->n_slot;
        b->ram_bytes += (cls->n_slot + (refuses ? cls->n_transit : 0)) * b->slot_bytes[c];
    }
    return 0;
}

static int choose(stk_budget *b, const stk_trace_header *h, const stk_replay_options *o, bool refuses) {
    uint64_t all, n_key = (uint64_t)h->n_layer * h->n_expert, bytes = o->ram_bytes, least = 0;
    STK_TRY(all_bytes(b, h, &all));
    for (uint32_t c = 0; c < b->n_class; c++) least += h->k * b->slot_bytes[c];
    if (o->n_slot) bytes = (uint64_t)((double)all * (double)o->n_slot / (double)n_key);
    if (o->fraction > 0) bytes = (uint64_t)((double)all * o->fraction);
    /* Slots are of several sizes: as few as can be are the least bytes, whatever the mean size says. */
    if (o->n_slot >= (uint64_t)h->k * b->n_class) bytes = STK_MAX(bytes, least);
    if (bytes || o->n_slot || o->fraction > 0)
        return share(b, h, STK_MIN(bytes, all), h->k + (refuses && o->ram_bytes ? h->k : 0));
    bytes = recorded_bytes(h);
    if (!bytes)
        return stk_fail(STK_EINVAL, "the trace names no budget: say how many bytes, slots or what part of the experts fit");
    if (o->scope == STK_SCOPE_LAYER) return share(b, h, STK_MIN(bytes, all), h->k);
    for (uint32_t c = 0; c < b->n_class; c++) b->classes[c].n_slot = h->classes[c].n_slot;
    return 0;
}

int stk_budget_open(stk_budget *b, const stk_trace_header *header, const stk_replay_options *options, bool refuses) {
    *b = (stk_budget){0};
    int rc = alloc_classes(b, header, options->scope == STK_SCOPE_LAYER);
    if (rc >= 0) rc = choose(b, header, options, refuses);
    if (rc >= 0) rc = set_transit(b, header, options, refuses);
    if (rc < 0) stk_budget_close(b);
    return rc;
}

int stk_budget_set_layers(stk_budget *b, const stk_trace_header *h, const uint32_t *n_slot, bool refuses) {
    uint32_t n_transit = refuses ? h->k : 0;
    b->n_slot = b->ram_bytes = 0;
    for (uint32_t c = 0; c < b->n_class; c++) {
        if (n_slot[c] < h->k + n_transit)
            return stk_fail(STK_EBUDGET, "%u slots for layer %u: the least is %u", n_slot[c], c, h->k + n_transit);
        b->classes[c] = (stk_cache_class){STK_MIN(n_slot[c], h->n_expert) - n_transit, n_transit};
        b->n_slot += b->classes[c].n_slot;
        b->ram_bytes += (b->classes[c].n_slot + n_transit) * b->slot_bytes[c];
    }
    return 0;
}

void stk_budget_close(stk_budget *b) {
    free(b->classes);
    free(b->slot_bytes);
    free(b->layers_of);
    free(b->layer_class);
    *b = (stk_budget){0};
}

void stk_budget_warn(const stk_budget *b, const stk_trace_header *h) {
    for (uint32_t c = 0; c < b->n_class; c++) {
        uint64_t used = (uint64_t)b->layers_of[c] * h->k;
        if (b->classes[c].n_slot >= used) continue;
        stk_log(STK_LOG_WARN,
                "%" PRIu32 " slots are fewer than the %" PRIu64
                " experts that one token uses in these layers: what it read is gone before the next token comes",
                b->classes[c].n_slot, used);
        return;
    }
}
