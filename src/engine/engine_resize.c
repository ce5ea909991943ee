/* engine_resize: another budget of expert slots between two steps. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

/* Reads into slots go through registered memory where the system allows that. */
int stk_engine_register_slots(stk_engine *e) {
    uint32_t n_class = stk_catalogue_n_class(e->experts);
    stk_io_region *regions = calloc(n_class, sizeof *regions);
    if (!regions) return stk_fail(STK_ENOMEM, "out of memory");
    for (uint32_t c = 0; c < n_class; c++) stk_slots_region(e->slots, c, &regions[c].base, &regions[c].bytes);
    int rc = stk_io_set_buffers(e->io, regions, n_class);
    free(regions);
    return rc;
}

void stk_engine_count_memory(stk_engine *e) {
    stk_memory_info *m = &e->memory;
    const stk_catalogue *cat = e->experts;
    m->n_slot = 0;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++) m->n_slot += stk_slots_n(e->slots, c);
    m->ram_bytes = stk_slots_bytes(e->slots);
    m->huge_bytes = stk_slots_huge_bytes(e->slots) + e->dense.map.huge_bytes + e->forward->map.huge_bytes;
}

/* ---- Checks ------------------------------------------------------------------------------------------------------------- */

static int check_room(const stk_engine *e, uint64_t ram_bytes) {
    uint64_t now = e->memory.ram_bytes, free_bytes = stk_mem_available();
    uint64_t fixed = e->memory.dense_bytes + e->memory.kv_bytes + e->memory.buffer_bytes;
    char a[32], b[32], c[32];
    if (ram_bytes > now && ram_bytes - now > free_bytes)
        return stk_fail(STK_EBUDGET, "%s of expert slots are %s more than now, but only %s are free",
                        stk_bytes_text(ram_bytes, a), stk_bytes_text(ram_bytes - now, b), stk_bytes_text(free_bytes, c));
    if (e->o.mlock && fixed + ram_bytes > stk_mem_lockable())
        return stk_fail(STK_EBUDGET, "%s are to be locked in memory, but RLIMIT_MEMLOCK allows %s",
                        stk_bytes_text(fixed + ram_bytes, a), stk_bytes_text(stk_mem_lockable(), b));
    return STK_OK;
}

/* ---- In order ----------------------------------------------------------------------------------------------------------- */

/* What is being read ahead is given up, on record, so that nothing writes to a slot that goes away. */
static int end_reads(stk_engine *e) {
    const uint32_t *lost;
    uint32_t n;
    stk_executor_give_up(e->executor, &lost, &n);
    for (uint32_t i = 0; i < n; i++) {
        STK_TRY(stk_cache_drop(e->cache, lost[i]));
        if (e->trace) STK_TRY(stk_trace_write(e->trace, &(stk_trace_record){.kind = STK_TRACE_DROP, .drop_key = lost[i]}));
    }
    return STK_OK;
}

/* Classes that become larger have their memory before anything else changes; after a failure all are as they were. */
static int grow(stk_engine *e, const uint32_t *n_slot, uint32_t *before) {
    uint32_t n_class = stk_catalogue_n_class(e->experts);
    int rc = STK_OK;
    for (uint32_t c = 0; c < n_class; c++) before[c] = stk_slots_n(e->slots, c);
    for (uint32_t c = 0; rc >= 0 && c < n_class; c++)
        if (n_slot[c] > before[c]) rc = stk_slots_resize(e->slots, c, n_slot[c]);
    for (uint32_t c = 0; rc < 0 && c < n_class; c++) {
        int undone = stk_slots_n(e->slots, c) > before[c] ? stk_slots_resize(e->slots, c, before[c]) : STK_OK;
        rc = STK_MIN(rc, undone); /* giving memory back does not fail */
    }
    return rc;
}

/* The policy's victims leave, and experts of slots that go away move to free ones. */
static int move_class(stk_engine *e, uint32_t c, uint32_t n_slot) {
    const stk_cache_move *moves;
    uint64_t slot_bytes = stk_catalogue_class(e->experts, c)->slot_bytes;
    int n = stk_cache_resize(e->cache, c, n_slot - e->n_transit, e->n_transit, &moves);
    for (int i = 0; i < n; i++)
        if (moves[i].to != STK_NO_SLOT)
            memcpy(stk_slots_at(e->slots, c, moves[i].to), stk_slots_at(e->slots, c, moves[i].from), slot_bytes);
    return n;
}

static int shrink(stk_engine *e, const uint32_t *n_slot) {
    uint32_t n_class = stk_catalogue_n_class(e->experts);
    for (uint32_t c = 0; c < n_class; c++) STK_TRY(move_class(e, c, n_slot[c]));
    STK_TRY(stk_io_set_buffers(e->io, NULL, 0)); /* which holds the memory */
    for (uint32_t c = 0; c < n_class; c++)
        if (n_slot[c] < stk_slots_n(e->slots, c)) STK_TRY(stk_slots_resize(e->slots, c, n_slot[c]));
    return stk_engine_register_slots(e);
}

static int record(stk_engine *e, uint64_t ram_bytes, const uint32_t *n_slot) {
    uint32_t n_class = stk_catalogue_n_class(e->experts);
    if (!e->trace) return STK_OK;
    stk_trace_slots *classes = calloc(n_class, sizeof *classes);
    if (!classes) return stk_fail(STK_ENOMEM, "out of memory");
    for (uint32_t c = 0; c < n_class; c++) classes[c] = (stk_trace_slots){n_slot[c] - e->n_transit, e->n_transit};
    int rc = stk_trace_write(e->trace, &(stk_trace_record){.kind = STK_TRACE_RESIZE, .resize = {ram_bytes, classes}});
    free(classes);
    return rc;
}

static int change(stk_engine *e, uint64_t ram_bytes, uint32_t *n_slot, uint32_t *before) {
    STK_TRY(grow(e, n_slot, before));
    STK_TRY(end_reads(e));
    STK_TRY(record(e, ram_bytes, n_slot)); /* as it begins: what fails from here on is a failed policy */
    STK_TRY(shrink(e, n_slot));
    e->o.ram_bytes = ram_bytes;
    stk_engine_count_memory(e);
    return stk_engine_attach_prefetch(e);
}

static int resize(stk_engine *e, uint64_t ram_bytes, uint32_t *n_slot, uint32_t *before) {
    STK_TRY(stk_engine_divide_slots(e, ram_bytes, n_slot));
    STK_TRY(check_room(e, ram_bytes));
    if (!e->link) return change(e, ram_bytes, n_slot, before);
    STK_TRY(stk_device_bind(e->device));
    stk_engine_unpin_slots(e);
    int rc = change(e, ram_bytes, n_slot, before);
    stk_engine_pin_slots(e);
    return rc;
}

int stk_engine_resize(stk_engine *e, uint64_t ram_bytes) {
    if (!e) return stk_fail(STK_EINVAL, "stk_engine_resize: an argument is NULL");
    uint64_t all = stk_slots_all_bytes(e->experts);
    char a[32];
    ram_bytes = STK_MIN(ram_bytes, all);
    if (ram_bytes < e->memory.ram_bytes_min)
        return stk_fail(STK_EBUDGET, "a budget of %s is too small: the least is %llu bytes", stk_bytes_text(ram_bytes, a),
                        (unsigned long long)e->memory.ram_bytes_min);
    uint32_t n_class = stk_catalogue_n_class(e->experts);
    uint32_t *n_slot = calloc(n_class, 2 * sizeof *n_slot);
    if (!n_slot) return stk_fail(STK_ENOMEM, "out of memory");
    int rc = resize(e, ram_bytes, n_slot, n_slot + n_class);
    free(n_slot);
    return rc;
}
