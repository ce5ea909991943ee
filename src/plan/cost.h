/*
 * cost: what things take on this machine: a table of measured times, corrected by what each step took. Pure: it is told times, it
 * reads no clock.
 *
 * Who may call it: src/. Threads: one owner. Units: ns and bytes. Times of an expert scale with its payload bytes, so that
 * classes of different sizes share one table; they are kept by token count at powers of two and interpolated between.
 */
#ifndef STK_COST_H
#define STK_COST_H

#include "src/base.h"

enum { STK_COST_POINTS = 10 }; /* 1, 2, 4, ... 512 tokens */

/* A GPU and its link, measured with the queues busy and idle; all zero: none. */
typedef struct stk_cost_gpu {
    double expert_ns_per_byte[STK_COST_POINTS]; /* computing an expert that lies in VRAM */
    double launch_ns;                           /* of a launch, whatever it computes */
    double return_ns;                           /* from the CPU's last expert until its outputs are combined on the GPU */
    double link_bytes_per_ns;                   /* RAM to VRAM, nothing else going on */
    double link_bytes_per_ns_computing;         /* while the CPU computes experts */
    double link_latency_ns;                     /* of one copy; copies that are queued together share it */
    double cpu_slowdown;                        /* how many times longer the CPU takes while the link copies; at least 1 */
} stk_cost_gpu;

typedef struct stk_cost {
    double expert_ns_per_byte[STK_COST_POINTS]; /* computing an expert on the CPU */
    double arrive_ns_per_byte;                  /* packing what a read brought */
    double nvme_bytes_per_ns;
    double nvme_latency_ns;
    double dense_layer_ns[STK_COST_POINTS]; /* attention, norms and router of one layer, where the session has them */
    double dense_step_ns[STK_COST_POINTS];  /* embedding, final norm, output; likewise */
    double event_ns;                        /* deciding, submitting and recording an event */
    double lookahead_ns;                    /* asking the router of one layer ahead */
    double wake_ns;                         /* from the end of a read that the CPU slept for until it works */
    double read_ns_per_byte;                /* what each byte that a drive brings adds to the work that goes on beside it */
    stk_cost_gpu gpu;
} stk_cost;

/* Figures of a plain desktop, to start from before anything has been measured. */
void stk_cost_default(stk_cost *cost);

double stk_cost_expert_ns(const stk_cost *cost, uint64_t payload_bytes, uint32_t n_tok);
double stk_cost_arrive_ns(const stk_cost *cost, uint64_t payload_bytes);
double stk_cost_read_ns(const stk_cost *cost, uint64_t bytes);
double stk_cost_dense_layer_ns(const stk_cost *cost, uint32_t n_tok);
double stk_cost_dense_step_ns(const stk_cost *cost, uint32_t n_tok);

bool stk_cost_has_gpu(const stk_cost *cost);
/* An expert on the GPU, without the launch that it shares with others; a copy over the link, alone or while the CPU computes,
 * without its latency. Both want a GPU. */
double stk_cost_gpu_expert_ns(const stk_cost *cost, uint64_t payload_bytes, uint32_t n_tok);
double stk_cost_copy_ns(const stk_cost *cost, uint64_t bytes, bool computing);

/* What a drive was seen to bring at its best lately; 0: nothing is known. */
void stk_cost_learn_drive(stk_cost *cost, double bytes_per_ns);
/* Corrections: a batch of experts that the table priced at `predicted` took `measured` ns; likewise for the others. A sample
 * moves its points an eighth of the way, in proportion to how near they are. */
void stk_cost_learn_experts(stk_cost *cost, uint32_t n_tok, double predicted_ns, double measured_ns);
void stk_cost_learn_arrive(stk_cost *cost, uint64_t bytes, double measured_ns);
void stk_cost_learn_dense_layer(stk_cost *cost, uint32_t n_tok, double measured_ns);
void stk_cost_learn_dense_step(stk_cost *cost, uint32_t n_tok, double measured_ns);
/* A launch that the table priced, its launch_ns included; a copy of `bytes`, its latency included. */
void stk_cost_learn_gpu_experts(stk_cost *cost, uint32_t n_tok, double predicted_ns, double measured_ns);
void stk_cost_learn_copy(stk_cost *cost, uint64_t bytes, bool computing, double measured_ns);

/* The table as numbers and back, for the trace. Import refuses what is not finite and positive (STK_EFORMAT); a GPU is whole or
 * all zero. */
uint32_t stk_cost_export(const stk_cost *cost, double *out, uint32_t cap);
int stk_cost_import(stk_cost *cost, const double *in, uint32_t n) STK_CHECKED;

#endif
