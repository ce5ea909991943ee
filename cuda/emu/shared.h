/* shared: the shared memory of the running block, with the last accesses of every word. Private to cuda/emu. */
#ifndef STK_EMU_SHARED_H
#define STK_EMU_SHARED_H

#include "cuda/emu/block.h"

/* Who accessed a word, and when: ordered before a later access by the same thread, after a barrier, or after a __syncwarp of both
 * threads, which `clock` tells. */
typedef struct stk_emu_access {
    uint32_t epoch; /* barriers of the block before it; 0: none */
    uint32_t clock;
    uint16_t thread;
} stk_emu_access;

/* Where the running thread stands. */
typedef struct stk_emu_now {
    uint32_t thread, epoch;
    const uint32_t *clocks; /* [STK_EMU_WARP] what it has seen of each lane of its warp */
} stk_emu_now;

/* Begins a block. dynamic_bytes have been checked. */
void stk_emu_shared_begin(size_t dynamic_bytes);
/* These return NULL, or what is wrong. */
const char *stk_emu_shared_find(stk_emu_place at, size_t bytes, void **array, size_t *array_bytes);
const char *stk_emu_shared_check(const void *p, size_t bytes, bool write, const stk_emu_now *now);

#endif
