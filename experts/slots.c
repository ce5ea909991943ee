/* slots: one arena, class after class, slot after slot; and the division of a budget between the classes. */
#include "slots.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/mem.h"

/* Products of bytes and counts. */
typedef __int128 wide;

struct stk_slots {
    stk_map map;
    uint32_t n_class;
    struct {
        uint64_t offset, slot_bytes;
        uint32_t n_slot;
    } classes[];
};

/* Slots that a class must have: no more than it has experts. */
static uint32_t floor_of(const stk_slot_class *cls, uint32_t least) { return STK_MIN(least, cls->n_expert); }

static uint64_t least_of(const stk_slot_class *classes, uint32_t n_class, uint32_t least) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < n_class; c++) bytes += floor_of(&classes[c], least) * classes[c].slot_bytes;
    return bytes;
}

/*
 * Every class gets the same part of its experts, bytes / all; a class for which that is less than its floor gets the floor, and
 * the others divide what is left. Raising one lowers the others, so this goes on until none is raised; the last never is, because
 * the floors fit into the bytes. Leaves what the others divided in *bytes and *all.
 */
static void share_out(const stk_slot_class *classes, uint32_t n_class, uint64_t *bytes, uint64_t *all, uint32_t least,
                      uint32_t *n_slot) {
    for (uint32_t c = 0; c < n_class; c++) n_slot[c] = 0;
    for (bool raised = true; raised;) {
        raised = false;
        for (uint32_t c = 0; c < n_class; c++) {
            const stk_slot_class *cls = &classes[c];
            uint32_t floor = floor_of(cls, least);
            if (n_slot[c] > 0 || (wide)*bytes * cls->n_expert >= (wide)*all * floor) continue;
            n_slot[c] = floor;
            *bytes -= floor * cls->slot_bytes;
            *all -= cls->n_expert * cls->slot_bytes;
            raised = true;
        }
    }
    for (uint32_t c = 0; c < n_class; c++) {
        uint32_t n_expert = classes[c].n_expert;
        if (n_slot[c] == 0) n_slot[c] = (uint32_t)STK_MIN((wide)*bytes * n_expert / *all, (wide)n_expert);
    }
}

/* One more slot for the class that is furthest below its share, if any has room in the `left` bytes. */
static bool add_slot(const stk_slot_class *classes, uint32_t n_class, uint64_t bytes, uint64_t all, uint32_t *n_slot,
                     uint64_t *left) {
    uint32_t best = STK_NO_CLASS;
    wide best_lack = 0;
    for (uint32_t c = 0; c < n_class; c++) {
        const stk_slot_class *cls = &classes[c];
        if (n_slot[c] == cls->n_expert || cls->slot_bytes > *left) continue;
        wide lack = (wide)bytes * cls->n_expert - (wide)all * n_slot[c];
        if (best != STK_NO_CLASS && lack <= best_lack) continue;
        best = c;
        best_lack = lack;
    }
    if (best == STK_NO_CLASS) return false;
    n_slot[best]++;
    *left -= classes[best].slot_bytes;
    return true;
}

int stk_slots_share(const stk_slot_class *classes, uint32_t n_class, uint64_t bytes, uint32_t least, uint32_t *n_slot) {
    uint64_t least_bytes = least_of(classes, n_class, least), all = 0, share_bytes = bytes, left = bytes;
    if (bytes < least_bytes) {
        char have[32], need[32];
        return stk_fail(STK_EBUDGET,
                        "%s (%" PRIu64 " bytes) of expert slots are too few: the least is %" PRIu64 " bytes (%s), %" PRIu32
                        " slots for each size of expert",
                        stk_bytes_text(bytes, have), bytes, least_bytes, stk_bytes_text(least_bytes, need), least);
    }
    for (uint32_t c = 0; c < n_class; c++) all += classes[c].n_expert * classes[c].slot_bytes;
    share_out(classes, n_class, &share_bytes, &all, least, n_slot);
    for (uint32_t c = 0; c < n_class; c++) left -= n_slot[c] * classes[c].slot_bytes;
    while (add_slot(classes, n_class, share_bytes, all, n_slot, &left)) continue;
    return 0;
}

static stk_slot_class *classes_of(const stk_catalogue *cat) {
    stk_slot_class *classes = calloc(stk_catalogue_n_class(cat), sizeof *classes);
    for (uint32_t c = 0; classes && c < stk_catalogue_n_class(cat); c++)
        classes[c] = (stk_slot_class){stk_catalogue_class(cat, c)->slot_bytes, stk_catalogue_class(cat, c)->n_expert};
    return classes;
}

int stk_slots_divide(const stk_catalogue *cat, uint64_t bytes, uint32_t least, uint32_t *n_slot) {
    stk_slot_class *classes = classes_of(cat);
    if (!classes) return stk_fail(STK_ENOMEM, "out of memory for %" PRIu32 " classes of slots", stk_catalogue_n_class(cat));
    int rc = stk_slots_share(classes, stk_catalogue_n_class(cat), bytes, least, n_slot);
    free(classes);
    return rc;
}

uint64_t stk_slots_all_bytes(const stk_catalogue *cat) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++)
        bytes += stk_catalogue_class(cat, c)->slot_bytes * stk_catalogue_class(cat, c)->n_expert;
    return bytes;
}

uint64_t stk_slots_least_bytes(const stk_catalogue *cat, uint32_t least) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++) {
        const stk_class *cls = stk_catalogue_class(cat, c);
        bytes += STK_MIN(least, cls->n_expert) * cls->slot_bytes;
    }
    return bytes;
}

int stk_slots_open(stk_slots **out, const stk_catalogue *cat, const uint32_t *n_slot, bool lock) {
    uint32_t n_class = stk_catalogue_n_class(cat);
    stk_slots *slots = calloc(1, sizeof *slots + n_class * sizeof slots->classes[0]);
    if (!slots) return stk_fail(STK_ENOMEM, "the system refused memory for %" PRIu32 " classes of slots", n_class);
    slots->n_class = n_class;
    uint64_t bytes = 0;
    int rc = 0;
    for (uint32_t c = 0; c < n_class; c++) {
        const stk_class *cls = stk_catalogue_class(cat, c);
        if (n_slot[c] == 0 || n_slot[c] > cls->n_expert) {
            rc = stk_fail(STK_EINVAL, "%" PRIu32 " slots for class %" PRIu32 ", expected 1 to %" PRIu32, n_slot[c], c,
                          cls->n_expert);
            goto out;
        }
        slots->classes[c].offset = bytes;
        slots->classes[c].slot_bytes = cls->slot_bytes;
        slots->classes[c].n_slot = n_slot[c];
        bytes += n_slot[c] * cls->slot_bytes;
    }
    STK_TRYGOTO(stk_map_open(&slots->map, bytes, lock, "expert slots"), rc, out);
    *out = slots;
    return 0;
out:
    free(slots);
    return rc;
}

void stk_slots_close(stk_slots **slots) {
    if (!*slots) return;
    stk_map_close(&(*slots)->map);
    free(*slots);
    *slots = NULL;
}

uint32_t stk_slots_n(const stk_slots *slots, uint32_t cls) { return slots->classes[cls].n_slot; }

void *stk_slots_at(const stk_slots *slots, uint32_t cls, uint32_t slot) {
    return (char *)slots->map.base + slots->classes[cls].offset + slot * slots->classes[cls].slot_bytes;
}

void stk_slots_arena(const stk_slots *slots, void **base, uint64_t *bytes) {
    *base = slots->map.base;
    *bytes = slots->map.bytes;
}

uint64_t stk_slots_huge_bytes(const stk_slots *slots) { return slots->map.huge_bytes; }
