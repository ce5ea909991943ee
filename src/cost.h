/*
 * cost: what things take on this machine: a table of measured times, corrected by what each step took. Pure: it is told times, it
 * reads no clock.
 *
 * Who may call it: src/. Threads: one owner. Units: ns and bytes. Times of an expert scale with its payload bytes, so that
 * classes of different sizes share one table; they are kept by token count at powers of two and interpolated between.
 */
#ifndef STK_COST_H
#define STK_COST_H

#include "base.h"

enum { STK_COST_POINTS = 10 }; /* 1, 2, 4, ... 512 tokens */

typedef struct stk_cost {
    double expert_ns_per_byte[STK_COST_POINTS]; /* computing an expert on the CPU */
    double arrive_ns_per_byte;                  /* packing what a read brought */
    double nvme_bytes_per_ns;
    double nvme_latency_ns;
    double dense_layer_ns[STK_COST_POINTS]; /* attention, norms and router of one layer */
    double dense_step_ns[STK_COST_POINTS];  /* embedding, final norm, output */
    double event_ns;                        /* deciding, submitting and recording an event */
    double lookahead_ns;                    /* asking the router of one layer ahead */
    double wake_ns;                         /* from the end of a read that the CPU slept for until all of its threads work */
    double read_ns_per_byte;                /* what each byte that a drive brings adds to the work that goes on beside it */
} stk_cost;

/* Figures of a plain desktop, to start from before anything has been measured. */
void stk_cost_default(stk_cost *cost);

double stk_cost_expert_ns(const stk_cost *cost, uint64_t payload_bytes, uint32_t n_tok);
double stk_cost_arrive_ns(const stk_cost *cost, uint64_t payload_bytes);
double stk_cost_read_ns(const stk_cost *cost, uint64_t bytes);
double stk_cost_dense_layer_ns(const stk_cost *cost, uint32_t n_tok);
double stk_cost_dense_step_ns(const stk_cost *cost, uint32_t n_tok);

/* Corrections: a batch of experts that the table priced at `predicted` took `measured` ns; likewise for the others. A sample
 * moves its points an eighth of the way, in proportion to how near they are. */
void stk_cost_learn_experts(stk_cost *cost, uint32_t n_tok, double predicted_ns, double measured_ns);
void stk_cost_learn_arrive(stk_cost *cost, uint64_t bytes, double measured_ns);
void stk_cost_learn_dense_layer(stk_cost *cost, uint32_t n_tok, double measured_ns);
void stk_cost_learn_dense_step(stk_cost *cost, uint32_t n_tok, double measured_ns);

/* The table as numbers and back, for the trace. Import refuses what is not finite and positive (STK_EFORMAT). */
uint32_t stk_cost_export(const stk_cost *cost, double *out, uint32_t cap);
int stk_cost_import(stk_cost *cost, const double *in, uint32_t n) STK_CHECKED;

#endif
