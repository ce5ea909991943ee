/*
 * slots: the memory of one tier: a budget cut into slots, in classes of slot size. Memory alone: who sits in a slot is cache/,
 * what state a slot is in is kept here for the engine (coming, resident, in use), with one reader per slot.
 *
 * Who may call it: src/, one thread. Ownership: the memory belongs to the object. Huge pages (2 MiB) from 64 MiB on, 4 KiB pages
 * below.
 */
#ifndef STK_SLOTS_H
#define STK_SLOTS_H

#include "experts/catalogue.h"

typedef struct stk_slots stk_slots;

/* What a division needs to know of a class. */
typedef struct stk_slot_class {
    uint64_t slot_bytes;
    uint32_t n_expert; /* of all its layers */
} stk_slot_class;

/*
 * How a budget of `bytes` divides into classes: each gets what its share of all expert bytes is worth, at least `least` slots, at
 * most its number of experts; bytes left over go to the classes with the greatest remainder. Writes n_slot [n_class]. STK_EBUDGET
 * names the least bytes.
 */
int stk_slots_share(const stk_slot_class *classes, uint32_t n_class, uint64_t bytes, uint32_t least,
                    uint32_t *n_slot) STK_CHECKED;
/* The same for the classes of a catalogue. */
int stk_slots_divide(const stk_catalogue *cat, uint64_t bytes, uint32_t least, uint32_t *n_slot) STK_CHECKED;
/* The budget that holds every expert. */
uint64_t stk_slots_all_bytes(const stk_catalogue *cat);
/* The least budget: `least` slots of each class. */
uint64_t stk_slots_least_bytes(const stk_catalogue *cat, uint32_t least);

/* Reserves and touches all memory, with addresses for every expert, so that classes may grow. lock: mlock it. Errors: STK_ENOMEM
 * (says how much and what limit), STK_EINVAL. */
int stk_slots_open(stk_slots **out, const stk_catalogue *cat, const uint32_t *n_slot, bool lock) STK_CHECKED;
void stk_slots_close(stk_slots **slots);

/* Another number of slots for a class: memory of those beyond goes back to the system, that of new ones is taken. Nothing may be
 * on its way to it. Errors: as open, nothing has changed. */
int stk_slots_resize(stk_slots *slots, uint32_t cls, uint32_t n_slot) STK_CHECKED;

uint32_t stk_slots_n(const stk_slots *slots, uint32_t cls);
void *stk_slots_at(const stk_slots *slots, uint32_t cls, uint32_t slot); /* 4,096-byte aligned */
/* The memory of a class, which does not move. */
void stk_slots_region(const stk_slots *slots, uint32_t cls, void **base, uint64_t *bytes);
uint64_t stk_slots_bytes(const stk_slots *slots);
uint64_t stk_slots_huge_bytes(const stk_slots *slots);

#endif
