/* virtual_vram: a recorded run's tier in VRAM: where experts were computed and what became of copies is what the trace says. */
#include "virtual.h"

static int recorded(void *world, const stk_placed **list) {
    stk_virtual *v = world;
    const stk_trace_record *r;
    int rc = stk_virtual_peek(v, &r);
    if (rc <= 0 || r->kind != STK_TRACE_PLACE) return rc < 0 ? rc : 0;
    *list = r->place.list; /* until the next record is read */
    stk_virtual_take(v);
    return (int)r->place.n;
}

static int launch(void *world, uint32_t layer, const stk_event *event, stk_vram_item *items, uint32_t n, bool before_reads) {
    (void)world, (void)layer, (void)event, (void)items, (void)n, (void)before_reads;
    return STK_OK;
}

static int finish(void *world, stk_vram_item *items, uint32_t n) {
    stk_virtual *v = world;
    const stk_trace_record *r;
    uint32_t n_fetch = 0;
    for (uint32_t i = 0; i < n; i++) n_fetch += items[i].fetch;
    if (n_fetch == 0) return STK_OK;
    int rc = stk_virtual_peek(v, &r);
    if (rc < 0) return rc;
    if (rc == 0 || r->kind != STK_TRACE_MOVED || r->moved.n != n_fetch)
        return stk_fail(STK_EFORMAT, "trace: it does not say what became of %u fetches", n_fetch);
    for (uint32_t i = 0, at = 0; i < n; i++)
        if (items[i].fetch) items[i].moved = r->moved.list[at++];
    stk_virtual_take(v);
    return STK_OK;
}

static int restore(void *world, const stk_vram_item *items, uint32_t i, const stk_decision *ram) {
    stk_virtual *v = world;
    (void)items, (void)i;
    if (ram->victim != STK_NO_KEY && v->flights[ram->victim].n_missing) stk_virtual_forget(v, ram->victim);
    return STK_OK;
}

const stk_vram_ops stk_virtual_vram = {recorded, launch, finish, restore};
