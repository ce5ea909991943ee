/*
 * block: one thread block of an emulated kernel: its threads as fibers, the rendezvous of the block and of each warp, and its
 * shared memory with a record of who touched what.
 *
 * Between two rendezvous a thread runs alone; which one runs next is drawn at random. Reported as faults:
 *     a barrier that some threads of the block do not reach, or reach in another place; a warp operation whose mask names an
 *     exited lane, lacks the calling one, or differs between its lanes; anything else that would wait for ever
 *     shared memory: outside of an array, read before it is written, two threads of which one writes without a barrier
 *     (__syncthreads, or __syncwarp of both) between; shuffles and votes do not order memory
 *
 * The functions below the line are called by the threads (cuda/emu/device.cuh) and do not return after a fault.
 */
#ifndef STK_EMU_BLOCK_H
#define STK_EMU_BLOCK_H

#include "cuda/emu/emu.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct stk_emu_launch_info {
    const char *kernel;
    stk_emu_dim grid, block;
    size_t dynamic_bytes; /* of shared memory */
    void (*run)(const void *args);
    const void *args;
} stk_emu_launch_info;

/* Runs all blocks. 0, or STK_EMU_LAUNCH_FAILURE with a text in `fault` [fault_bytes]; STK_EMU_MEMORY_ALLOCATION without stacks.
 */
int stk_emu_grid_run(const stk_emu_launch_info *launch, uint64_t seed, char *fault, size_t fault_bytes);
/* Gives the stacks back. */
void stk_emu_grid_release(void);

/* ---- For the threads ---- */

typedef struct stk_emu_place {
    const char *file;
    int line;
} stk_emu_place;

extern stk_emu_dim stk_emu_thread_idx, stk_emu_block_idx, stk_emu_block_dim, stk_emu_grid_dim; /* of the running thread */

void stk_emu_sync_block(stk_emu_place at);
/* One value a thread to all: their sum of non-zero ones. */
int stk_emu_sync_count(stk_emu_place at, int predicate);

/*
 * A warp operation: the lanes of `mask` meet; the last one calls `combine` once with the inputs and outputs of all 32 lanes (NULL
 * outside of the mask), then all go on. `op` identifies the operation. combine returns NULL, or what is wrong.
 */
typedef const char *(*stk_emu_combine_fn)(uint32_t mask, const void *const in[STK_EMU_WARP], void *const out[STK_EMU_WARP]);
void stk_emu_warp_op(stk_emu_place at, const char *op, uint32_t mask, const void *in, void *out, stk_emu_combine_fn combine);
/* As a warp operation that does nothing and orders memory. */
void stk_emu_sync_warp(stk_emu_place at, uint32_t mask);

/* The block's shared array of this declaration (file and line); the same for every thread. bytes 0: the dynamic one. */
void *stk_emu_shared_array(stk_emu_place at, size_t bytes, size_t *array_bytes);
/* Records an access of whole words. */
void stk_emu_shared_read(const void *p, size_t bytes, stk_emu_place at);
void stk_emu_shared_write(void *p, size_t bytes, stk_emu_place at);

/* Ends the launch. */
__attribute__((noreturn, format(printf, 2, 3))) void stk_emu_fault(stk_emu_place at, const char *fmt, ...);

#ifdef __cplusplus
}
#endif
#endif
