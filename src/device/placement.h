/*
 * placement: which experts lie in a device's memory for good, where a mode of plan.h keeps no cache there.
 *
 * Who may call it: engine_device.c, tests. Pure.
 */
#ifndef STK_PLACEMENT_H
#define STK_PLACEMENT_H

#include "src/plan/plan.h"

typedef struct stk_placement_config {
    uint32_t n_layer, n_expert, n_class;
    const uint32_t *n_slot;      /* [n_class] on the device */
    const uint32_t *layer_class; /* [n_layer] */
    const uint64_t *uses;        /* [n_layer * n_expert] by other sequences, for STK_PLACE_PROFILE; else NULL */
} stk_placement_config;

/* Marks them in `here` [n_layer * n_expert], which is all 0; no more of a class than it has slots. STK_ENOMEM. */
int stk_placement_make(enum stk_placement how, const stk_placement_config *config, uint8_t *here) STK_CHECKED;

#endif
