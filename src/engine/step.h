/*
 * step: the one path from tokens to outputs, layer by layer: route, decide, execute, combine; live and in replay. What a layer
 * computes is behind stk_stage_ops (forward.h live, virtual.h in replay); deciding, executing, recording and undoing are here.
 *
 * Who may call it: engine.c and replay.c. Threads: one owner.
 */
#ifndef STK_STEP_H
#define STK_STEP_H

#include "executor.h"
#include "src/device/vram.h"
#include "src/replay/tally.h"
#include "timeline.h"
#include "traces/trace.h"

typedef struct stk_stage_ops {
    /* Takes in the step's tokens (embedding). */
    int (*begin)(void *stage, const stk_trace_step *step);
    /* Everything of a layer up to its event; layer is the model's. Returns 1 when the layer has experts (event filled;
     * event->layer is set to the dense MoE layer number), 0 when the layer is finished. */
    int (*route)(void *stage, uint32_t layer, stk_event *event);
    /* What an event says of those to come, the likeliest first, and what of it is worth reading with the queues as they are:
     * *list lives until the next call. Returns how many. */
    int (*ahead)(void *stage, const stk_event *event, const stk_gain_now *now, stk_ahead **list);
    /* Whether entry i of the list is still to be read if `victim` (or STK_NO_KEY) leaves for it. */
    bool (*may_evict)(void *stage, uint32_t i, uint32_t victim);
    /* Combines the experts' outputs. */
    int (*combine)(void *stage, uint32_t layer);
    /* Final norm and output. */
    int (*finish)(void *stage);
    uint64_t (*now_ns)(void *stage);
} stk_stage_ops;

typedef struct stk_stepper {
    const stk_stage_ops *ops;
    void *stage;
    stk_cache *cache;
    stk_executor *executor;
    stk_vram *vram;          /* experts in VRAM; NULL: there is no such tier */
    stk_cost *cost;          /* corrected by what steps take; NULL: left alone */
    stk_trace_writer *trace; /* NULL: none */
    stk_tally *tally;        /* counts decisions by layer and phase; NULL: nobody does */
    stk_timeline *timeline;  /* NULL: none */
    const atomic_int *cancel;
    uint32_t n_layer;
    uint64_t n_step;  /* steps begun */
    uint64_t n_token; /* of steps that succeeded */
    uint64_t dense_ns, trace_ns, step_ns;
} stk_stepper;

/* Runs one step. On an error the experts that were lost have left the cache, the trace says so, and the stage may be used again.
 */
int stk_stepper_run(stk_stepper *s, const stk_trace_step *step) STK_CHECKED;

/* All counters since open, of the stepper, its cache and its executor; what only a stage knows is 0. */
void stk_stepper_count(const stk_stepper *s, stk_stats *out);

#endif
