/*
 * peak: what this CPU can do at most, each by a loop that does nothing else: reading memory, and the two kinds of arithmetic that
 * the kernels are made of. One table for each table of kernels, with the same instructions: tdpbusd where there is AMX,
 * vpdpbusd where there is VNNI, else vpmaddubsw and vpmaddwd; fused multiply-adds for floats.
 *
 * Who may call it: src/, from any thread; pure functions over borrowed memory. One call uses one core.
 */
#ifndef STK_CPU_PEAK_H
#define STK_CPU_PEAK_H

#include "src/base.h"

enum { STK_PEAK_CHUNK = 256 }; /* bytes that a stream of `read` takes at a time */

typedef struct stk_peak_ops {
    const char *name;
    /* Reads `bytes`, a multiple of n_stream * STK_PEAK_CHUNK, as n_stream streams side by side; ahead: prefetched without leaving
     * anything in the caches. Returns the exclusive or of all 8-byte words. base is 64-byte aligned. */
    uint64_t (*read)(const void *base, uint64_t bytes, uint32_t n_stream, bool ahead);
    /* Sums of products of four 8-bit codes into 32 bits, and fused multiply-adds of float32, n_round rounds of independent ones.
     * Return how many multiplications and additions that was. */
    uint64_t (*int8)(uint64_t n_round);
    uint64_t (*f32)(uint64_t n_round);
} stk_peak_ops;

/* The table beside the kernels of that name (cpu.h); NULL when there is none. The CPU must have its instructions. */
const stk_peak_ops *stk_peak_get(const char *name);

extern const stk_peak_ops stk_peak_ops_ref, stk_peak_ops_avx2, stk_peak_ops_avxvnni, stk_peak_ops_avx512, stk_peak_ops_amx;

#endif
