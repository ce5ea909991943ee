/*
 * gain: what reading an expert ahead saves, by what an event takes with and without it. An event is k experts on one CPU queue
 * and one drive: those in memory are computed while the absent ones are read one behind the other; each is packed and computed
 * once it is there. Expected numbers may be fractions.
 *
 * Who may call it: src/. Pure.
 */
#ifndef STK_GAIN_H
#define STK_GAIN_H

#include "src/plan/cost.h"

/* Sizes of an expert of a layer. */
typedef struct stk_gain_size {
    uint64_t payload_bytes, read_bytes;
} stk_gain_size;

/* The queues at an event, as nanoseconds from now. */
typedef struct stk_gain_now {
    const stk_cost *cost;
    double cpu_ns;             /* until the event's experts are computed */
    double demand_ns;          /* until the drive has brought what was asked for on demand; */
    double ahead_ns;           /* and what of the rest it then still has to bring of what is read ahead */
    uint32_t n_tok;            /* of the step */
    uint32_t n_used, n_absent; /* experts of the event; of these, not in memory but for what was read ahead */
} stk_gain_now;

/* What things take for an expert and a layer. */
typedef struct stk_gain_times {
    double compute_ns, pack_ns, read_ns; /* an expert */
    double latency_ns;                   /* from asking for a read until it begins to arrive, and the CPU wakes up for it */
    double dense_ns;                     /* a layer but for its experts */
    double drag_ns;                      /* what an expert's bytes add to the work beside them */
    double held_ns;                      /* for so long at most, pieces that are read ahead hold up a read on demand */
} stk_gain_times;

void stk_gain_times_of(const stk_cost *cost, const stk_gain_size *size, uint32_t n_tok, stk_gain_times *out);

/* An event of n experts, n_absent of which are read on demand from its start, and n_ahead of which are there but not packed. */
double stk_gain_event_ns(const stk_gain_times *t, double n, double n_absent, double n_ahead);
/* How much sooner it ends if one more absent expert were there. */
double stk_gain_saved_ns(const stk_gain_times *t, double n, double n_absent_besides, double n_ahead);

#endif
