/*
 * virtual: the replay's world and stage: modelled queues on a virtual clock, events from a recorded trace. Nothing is read or
 * computed: a read ends when the drive's model says, a computation when the cost table says.
 *
 * Who may call it: replay.c and tests. Threads: one owner.
 */
#ifndef STK_VIRTUAL_H
#define STK_VIRTUAL_H

#include "io/drive.h"
#include "step.h"
#include "traces/source.h"

/* A read on its way. */
typedef struct stk_virtual_read {
    uint64_t done_ns;
    uint32_t index; /* of the decision */
} stk_virtual_read;

typedef struct stk_virtual {
    const stk_trace_header *header;
    stk_source *source;
    stk_cache *cache;
    stk_tally *tally; /* hears of lost experts */
    stk_cost cost;
    bool timed; /* false: everything takes no time */
    stk_drive drive;
    double now_ns;
    stk_virtual_read *reads; /* [n_expert] */
    uint32_t n_read;
    uint32_t n_tok;                             /* of the step */
    uint64_t dropped_bytes, dropped_read_bytes; /* of experts that the executor counted and the live run lost */
    stk_trace_record record;                    /* the next one, if have */
    bool have, ended;
} stk_virtual;

int stk_virtual_open(stk_virtual *v, stk_source *source, stk_cache *cache, stk_tally *tally) STK_CHECKED;
void stk_virtual_close(stk_virtual *v);

/* The next record without taking it; 0 at the end of the trace. */
int stk_virtual_peek(stk_virtual *v, const stk_trace_record **record) STK_CHECKED;
void stk_virtual_take(stk_virtual *v);

extern const stk_stage_ops stk_virtual_stage;
extern const stk_world_ops stk_virtual_world;

#endif
