/*
 * virtual: the replay's world and stage: modelled queues on a virtual clock, events from a recorded trace. Nothing is read or
 * computed: a read ends when the drive's model says, a computation when the cost table says.
 *
 * Who may call it: replay.c and tests. Threads: one owner.
 */
#ifndef STK_VIRTUAL_H
#define STK_VIRTUAL_H

#include "src/ahead/chooser.h"
#include "src/ahead/gates.h"
#include "src/ahead/prefetch.h"
#include "src/engine/step.h"
#include "traces/source.h"
#include "virtual_drive.h"

/* An expert that is asked for and not there yet. */
typedef struct stk_virtual_flight {
    uint32_t n_missing; /* parts */
    uint32_t index;     /* of the decision that waits for it, or UINT32_MAX */
    uint8_t up_missing; /* bits of its gate and up, where a trace has these parts */
    uint8_t told;       /* phases that the executor knows of */
    bool ahead;         /* read as a prefetch */
    uint64_t stale;     /* bits of parts, of the first 64, whose read was cancelled since nobody wanted them */
} stk_virtual_flight;

typedef struct stk_virtual {
    const stk_trace_header *header;
    stk_source *source;
    stk_cache *cache;
    stk_tally *tally; /* hears of lost experts */
    stk_cost cost;
    stk_chooser *chooser;    /* borrowed: chooses anew what is read ahead of what was predicted; NULL: as recorded */
    stk_timeline *timeline;  /* borrowed; NULL: none */
    stk_prefetch *prefetch;  /* borrowed: predicts in place of what was recorded; NULL: as recorded */
    stk_gates *gates;        /* borrowed: what it hears of routers ahead; NULL: nothing */
    uint32_t depth;          /* layers ahead of recorded predictions that count, where they are chosen anew; 0: none */
    bool timed;              /* false: everything takes no time */
    stk_virtual_drive drive; /* of parts, key * n_part + part */
    double now_ns;
    double arrive_ns;            /* time spent on packing so far */
    stk_virtual_flight *flights; /* [n_layer * n_expert] */
    stk_arrival *arrivals;       /* [2 * n_expert] */
    uint32_t n_arrival;
    uint32_t n_lookahead; /* layers ahead whose routers the recorded run asked at this event */
    stk_ahead *ahead;     /* [STK_TRACE_AHEAD_MAX * n_expert] what the recorded run said of events to come */
    uint32_t n_tok;       /* of the step */
    uint64_t dropped_bytes, dropped_read_bytes; /* of experts that the executor counted and the live run lost */
    bool tiered;                                /* a tier takes PLACE and MOVED; else they are passed over */
    stk_trace_record record;                    /* the next one, if have */
    bool have, ended;
} stk_virtual;

int stk_virtual_open(stk_virtual *v, stk_source *source, stk_cache *cache, stk_tally *tally) STK_CHECKED;
void stk_virtual_close(stk_virtual *v);
/* Everything takes time from here on: reads by this model, the rest by `cost`. */
void stk_virtual_set_drive(stk_virtual *v, const stk_drive *model);
/* Takes down there what the drive does; NULL: nowhere. */
void stk_virtual_set_timeline(stk_virtual *v, stk_timeline *timeline);

/* The next record without taking it; 0 at the end of the trace. */
int stk_virtual_peek(stk_virtual *v, const stk_trace_record **record) STK_CHECKED;
void stk_virtual_take(stk_virtual *v);

/* Everything on its way is forgotten. */
void stk_virtual_clear(stk_virtual *v);

extern const stk_stage_ops stk_virtual_stage;
extern const stk_world_ops stk_virtual_world;
extern const stk_vram_ops stk_virtual_vram; /* virtual_vram.c: what the trace says */

/* Forgets the reads of an expert whose slot another gets. */
void stk_virtual_forget(stk_virtual *v, uint32_t key);

#endif
