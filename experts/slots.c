/* slots: a map for each class, slot after slot; and the division of a budget between the classes. */
#include "slots.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/mem.h"

/* Products of bytes and counts. */
typedef __int128 wide;

struct stk_slots {
    uint32_t n_class;
    bool lock;
    struct {
        stk_map map;
        uint64_t slot_bytes;
        uint32_t n_slot, n_expert;
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

static int check_slots(uint32_t cls, uint32_t n_slot, uint32_t n_expert) {
    if (n_slot > 0 && n_slot <= n_expert) return 0;
    return stk_fail(STK_EINVAL, "%" PRIu32 " slots for class %" PRIu32 ", expected 1 to %" PRIu32, n_slot, cls, n_expert);
}

/* All of it must be there before any is taken. */
static int check_room(const stk_catalogue *cat, const uint32_t *n_slot) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++) bytes += n_slot[c] * stk_catalogue_class(cat, c)->slot_bytes;
    return stk_mem_check(bytes, "expert slots");
}

int stk_slots_open(stk_slots **out, const stk_catalogue *cat, const uint32_t *n_slot, bool lock) {
    uint32_t n_class = stk_catalogue_n_class(cat);
    int rc = 0;
    *out = NULL;
    for (uint32_t c = 0; c < n_class; c++) STK_TRY(check_slots(c, n_slot[c], stk_catalogue_class(cat, c)->n_expert));
    STK_TRY(check_room(cat, n_slot));
    stk_slots *slots = calloc(1, sizeof *slots + n_class * sizeof slots->classes[0]);
    if (!slots) return stk_fail(STK_ENOMEM, "the system refused memory for %" PRIu32 " classes of slots", n_class);
    slots->n_class = n_class;
    slots->lock = lock;
    for (uint32_t c = 0; rc >= 0 && c < n_class; c++) {
        const stk_class *cls = stk_catalogue_class(cat, c);
        slots->classes[c].slot_bytes = cls->slot_bytes;
        slots->classes[c].n_slot = n_slot[c];
        slots->classes[c].n_expert = cls->n_expert;
        rc = stk_map_open_growing(&slots->classes[c].map, n_slot[c] * cls->slot_bytes, cls->n_expert * cls->slot_bytes, lock,
                                  "expert slots");
    }
    if (rc < 0) stk_slots_close(&slots);
    *out = slots;
    return rc;
}

void stk_slots_close(stk_slots **slots) {
    if (!*slots) return;
    for (uint32_t c = 0; c < (*slots)->n_class; c++) stk_map_close(&(*slots)->classes[c].map);
    free(*slots);
    *slots = NULL;
}

int stk_slots_resize(stk_slots *slots, uint32_t cls, uint32_t n_slot) {
    STK_TRY(check_slots(cls, n_slot, slots->classes[cls].n_expert));
    STK_TRY(stk_map_resize(&slots->classes[cls].map, n_slot * slots->classes[cls].slot_bytes, slots->lock, "expert slots"));
    slots->classes[cls].n_slot = n_slot;
    return 0;
}

uint32_t stk_slots_n(const stk_slots *slots, uint32_t cls) { return slots->classes[cls].n_slot; }

void *stk_slots_at(const stk_slots *slots, uint32_t cls, uint32_t slot) {
    return (char *)slots->classes[cls].map.base + slot * slots->classes[cls].slot_bytes;
}

void stk_slots_region(const stk_slots *slots, uint32_t cls, void **base, uint64_t *bytes) {
    *base = slots->classes[cls].map.base;
    *bytes = slots->classes[cls].map.bytes;
}

uint64_t stk_slots_bytes(const stk_slots *slots) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < slots->n_class; c++) bytes += slots->classes[c].map.bytes;
    return bytes;
}

uint64_t stk_slots_huge_bytes(const stk_slots *slots) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < slots->n_class; c++) bytes += slots->classes[c].map.huge_bytes;
    return bytes;
}
