/*
 * calibrate: the measurements behind a cost file. Each part fills its fields of it.
 *
 * Who may call it: calibrate*.c and tests. Threads: one owner; the pool inside.
 */
#ifndef STK_CALIBRATE_H
#define STK_CALIBRATE_H

#include "cpu/cpu.h"
#include "cpu/pool.h"
#include "src/mem.h"
#include "src/plan/cost_file.h"

/* Experts of one shape and format, all of whose bytes are alike, in more memory than the caches hold, and what computes them. */
typedef struct stk_calibrate_experts stk_calibrate_experts;

/* Errors: STK_ENOMEM. */
int stk_calibrate_experts_open(stk_calibrate_experts **out, stk_pool *pool, const stk_cpu_ops *ops) STK_CHECKED;
void stk_calibrate_experts_close(stk_calibrate_experts **b);
/* Computes an event of eight experts, n_tok tokens each, the next ones in memory each time; returns its nanoseconds. *bytes:
 * their payload. n_tok is at most 512. `poll` is called by worker 0 between portions of work; NULL: none. */
double stk_calibrate_experts_run(stk_calibrate_experts *b, enum stk_type type, uint32_t n_tok, void (*poll)(void *), void *user,
                                 uint64_t *bytes);
/* Packs eight experts; returns its nanoseconds. */
double stk_calibrate_experts_pack(stk_calibrate_experts *b, enum stk_type type, uint64_t *bytes);

/* Parts of an expert in files, three after another, as they are read: whole multiples of the alignment. */
typedef struct stk_calibrate_read {
    uint32_t file;
    uint64_t offset, bytes;
} stk_calibrate_read;
typedef struct stk_calibrate_drive {
    const char *const *paths; /* [n_file] */
    uint32_t n_file;
    const char *io;                  /* as in stk_io_options */
    const stk_calibrate_read *reads; /* [n_expert * 3] */
    uint32_t n_expert;               /* of all layers */
    uint32_t k;                      /* experts in flight together */
} stk_calibrate_drive;
/* Fills io and drive_... and compute_slowdown. Errors: those of io. */
int stk_calibrate_drive_measure(const stk_calibrate_drive *drive, stk_calibrate_experts *experts, stk_cost_file *out) STK_CHECKED;

/* Runs the model and fills model, experts, dense_...; has_model. Errors: those of the engine. */
int stk_calibrate_model_measure(const stk_model *model, const stk_calibrate_options *o, stk_cost_file *out) STK_CHECKED;

#endif
