/*
 * tiers: where the experts of a modelled machine with a GPU lie: VRAM over RAM over the drive; for plan_replay.h. Residency
 * alone: what moves when is the plan's, what that takes is the clock's.
 *
 * VRAM is what the mode says: a cache, or a placement for good. An expert is looked up in VRAM, then in RAM; what the plan
 * fetches into VRAM gives its RAM slot up, and the victim goes back to RAM where the link's other direction has the time and
 * RAM's policy takes it; else it is dropped. Where RAM holds every expert, or the mode keeps copies, nothing is given up and
 * nothing goes back.
 *
 * Who may call it: plan_replay.c and tests. Threads: one owner. All memory is taken at open.
 */
#ifndef STK_TIERS_H
#define STK_TIERS_H

#include "cache/cache.h"
#include "src/plan/plan.h"
#include "traces/trace.h"

typedef struct stk_tiers_config {
    const stk_trace_header *header; /* borrowed until close */
    const stk_mode *mode;
    uint64_t vram_bytes; /* of slots; 0: none, whatever is fetched is staged */
    uint64_t ram_bytes;  /* of slots; 0: room for every expert */
    const char *policy;  /* of both caches, but for a mode that has its own; NULL: as they are best */
    const char *params;  /* of policy, or NULL */
    uint64_t seed;
    const uint64_t *uses; /* [n_layer * n_expert] of each expert by other sequences, for modes that profile; NULL: none known */
} stk_tiers_config;

typedef struct stk_tiers {
    stk_tiers_config c;
    stk_cache *vram; /* NULL: a placement */
    stk_cache *ram;  /* NULL: it holds all */
    uint8_t *placed; /* [n_key] in VRAM for good */
    uint64_t vram_slot_bytes, ram_slot_bytes;
    double back_free_ns; /* of the link from VRAM to RAM, on the replay's clock */
    uint64_t back_bytes; /* written back so far */
    uint64_t n_dropped;  /* victims that were not */
    /* Of the running event: */
    uint16_t *distinct; /* [n_expert] what RAM is asked for */
    uint32_t *counts;   /* [n_expert] */
    enum stk_tier *at;  /* [n_expert] where each expert of the layer is, for those of the event */
    uint32_t *wave;     /* [n_expert] in RAM */
    bool *taken;        /* [n_expert] RAM keeps what is read */
} stk_tiers;

/* Errors: STK_EBUDGET (names the least), STK_EINVAL (policy; a profiling mode without uses), STK_ENOMEM. */
int stk_tiers_open(stk_tiers *t, const stk_tiers_config *config) STK_CHECKED;
void stk_tiers_close(stk_tiers *t);

bool stk_tiers_in_vram(const stk_tiers *t, uint32_t key);
/* Looks an event up and lists its experts [event->n_distinct] as the plan wants them. */
int stk_tiers_look(stk_tiers *t, const stk_event *event, stk_plan_item *items) STK_CHECKED;
/* Carries out where the plan's items go. now_ns: the replay's clock when the event began; done_ns: what the plan comes to. */
int stk_tiers_settle(stk_tiers *t, const stk_cost *cost, const stk_event *event, const stk_plan_item *items, double now_ns,
                     double done_ns) STK_CHECKED;

/* Takes an expert that the CPU has computed into VRAM: 1, and *victim (STK_NO_KEY: none); 0: its policy refuses it. */
int stk_tiers_promote(stk_tiers *t, const stk_cost *cost, uint32_t key, double now_ns, double done_ns,
                      uint32_t *victim) STK_CHECKED;

/* Bytes of an expert's read. */
uint64_t stk_tiers_read_bytes(const stk_trace_header *header, uint32_t layer, uint32_t expert);

#endif
