/*
 * budget: the slots of a replay's cache: as recorded, or as a budget in bytes, slots or a part of the experts divides, over size
 * classes or over layers.
 *
 * Who may call it: replay.c.
 */
#ifndef STK_BUDGET_H
#define STK_BUDGET_H

#include "cache/cache.h"
#include "traces/trace.h"

typedef struct stk_budget {
    uint32_t n_class;
    stk_cache_class *classes;   /* [n_class] */
    uint64_t *slot_bytes;       /* [n_class] */
    uint32_t *layers_of;        /* [n_class] layers of a class */
    uint32_t *layer_class;      /* [n_layer] */
    uint64_t n_slot, ram_bytes; /* of all classes, without transit; with it */
} stk_budget;

/* `refuses`: the policy may refuse experts and needs k transit slots a class. STK_EBUDGET names the least; STK_EINVAL: no budget.
 */
int stk_budget_open(stk_budget *b, const stk_trace_header *header, const stk_replay_options *options, bool refuses) STK_CHECKED;
/* Gives each layer of a cache by layers its own number of slots [n_layer], transit included. STK_EBUDGET: one has too few. */
int stk_budget_set_layers(stk_budget *b, const stk_trace_header *header, const uint32_t *n_slot, bool refuses) STK_CHECKED;
void stk_budget_close(stk_budget *b);
/* Says so where one token uses more experts than fit. */
void stk_budget_warn(const stk_budget *b, const stk_trace_header *header);

#endif
