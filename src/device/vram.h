/*
 * vram: the experts in a device's memory, in front of those in RAM: what an event finds there, what is fetched into it, and what
 * leaves it, by logical time. An expert is in one tier at a time; a slot there holds the bytes of a slot in RAM.
 *
 * An event goes through in four calls. begin looks it up and chooses routes: what is in VRAM is computed by the device, the rest
 * is left to RAM's cache and the CPU, and of what RAM has some are fetched, to be computed by the device and to stay. split takes
 * those out of what RAM's cache decided; launch starts the device's part; end waits for it, and moves residency: what was fetched
 * leaves RAM, and what left VRAM for it goes back to RAM if RAM's policy wants it. A fetch that failed leaves VRAM again, and its
 * expert is computed from RAM.
 *
 * Which experts are fetched is chosen in one place (choose in vram.c), by a rule that reads no clock, or as a mode of plan.h has
 * it (upload, placed); a plan that prices routes belongs there. Whether a copy succeeds depends on the device. Both are on record
 * (PLACE, MOVED), and a replay takes them from there.
 *
 * Who may call it: src/engine/step.c, engine*.c, replay.c. Pure but for what the world behind it does. Threads: one owner.
 */
#ifndef STK_VRAM_H
#define STK_VRAM_H

#include "cache/cache.h"
#include "src/base.h"

/* An expert of the event that the tier has to do with. */
typedef struct stk_vram_item {
    uint32_t key;
    uint32_t n_tok;
    uint32_t slot;     /* in VRAM */
    uint32_t ram_slot; /* of a fetch: where it comes from */
    uint32_t victim;   /* of a fetch: who left the slot, or STK_NO_KEY */
    bool fetch;        /* from RAM */
    bool host;         /* computed by the CPU though it is in VRAM */
    uint8_t moved;     /* of a fetch, set by finish: bits of enum stk_moved */
} stk_vram_item;

typedef struct stk_vram_ops {
    /* What is on record of this event: how many *list has. NULL: routes are chosen. */
    int (*recorded)(void *world, const stk_placed **list);
    /* Starts the kernels of what is in VRAM, and the fetches. before_reads: RAM slots of fetches are about to be overwritten, so
     * their copies must have ended when it returns. Failures are kept for finish. */
    int (*launch)(void *world, uint32_t layer, const stk_event *event, stk_vram_item *items, uint32_t n, bool before_reads);
    /* Returns when all items are computed and all copies have ended; sets `moved` of each fetch. */
    int (*finish)(void *world, stk_vram_item *items, uint32_t n);
    /* The victim of fetch i of the items goes into a slot of RAM, from which *ram says who leaves. */
    int (*restore)(void *world, const stk_vram_item *items, uint32_t i, const stk_decision *ram);
} stk_vram_ops;

typedef struct stk_vram_config {
    uint32_t n_layer, n_expert, k, n_class;
    const uint32_t *n_slot;      /* [n_class] */
    const uint32_t *layer_class; /* [n_layer] */
    const char *policy;
    uint64_t seed;
    uint32_t n_fetch;      /* most of an event */
    bool upload;           /* whatever RAM has is fetched */
    const uint8_t *placed; /* [n_layer * n_expert] these alone are, to stay for good; NULL: by the rule */
    const stk_vram_ops *ops;
    void *world;
    stk_cache *ram; /* borrowed */
} stk_vram_config;

typedef struct stk_vram_counters {
    uint64_t n_hit;  /* lookups that found their expert in VRAM */
    uint64_t n_pair; /* token-expert pairs of those */
    uint64_t n_fetch, n_fetch_failed;
    uint64_t n_return, n_drop; /* experts that left VRAM: back to RAM, or forgotten */
    uint64_t n_host;           /* in VRAM, and computed by the CPU */
} stk_vram_counters;

typedef struct stk_vram stk_vram;

int stk_vram_open(stk_vram **out, const stk_vram_config *config) STK_CHECKED;
void stk_vram_close(stk_vram **tier);

/* *rest is the event without what is in VRAM: what RAM's cache is asked for. *placed lists what is to be recorded, *n_placed 0
 * for nothing. Valid until end. */
int stk_vram_begin(stk_vram *tier, uint32_t layer, const stk_event *event, stk_event *rest, const stk_placed **placed,
                   uint32_t *n_placed) STK_CHECKED;
/* Takes the fetches out of RAM's decisions list [n], which is copied to *cpu; returns how many are left. *before_reads as in
 * stk_vram_ops. */
uint32_t stk_vram_split(stk_vram *tier, const stk_decision *list, uint32_t n, const stk_decision **cpu, bool *before_reads);
int stk_vram_launch(stk_vram *tier, uint32_t layer, const stk_event *event, bool before_reads) STK_CHECKED;
/* Also after a failure of anything since begin (that of launch leaves nothing fetched). *moved [n_moved] is to be recorded, 0 for
 * nothing. */
int stk_vram_end(stk_vram *tier, const uint8_t **moved, uint32_t *n_moved) STK_CHECKED;

/* Where the experts of later events are computed, for tests: STK_PLACE_... of stoker.h. */
void stk_vram_force(stk_vram *tier, uint32_t place);

bool stk_vram_has(const stk_vram *tier, uint32_t key);
int stk_vram_clear(stk_vram *tier) STK_CHECKED;
void stk_vram_get_counters(const stk_vram *tier, stk_vram_counters *counters);
uint64_t stk_vram_hash(const stk_vram *tier);

#endif
