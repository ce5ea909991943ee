/*
 * blocks: random weights in the block formats of GGUF files, for models that tests and benchmarks make. Deterministic: an integer
 * generator and single IEEE operations, so that every machine writes the same bytes. Codes use their whole range, scales are
 * those of weights with the standard deviation asked for.
 */
#ifndef STK_TESTS_BLOCKS_H
#define STK_TESTS_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "experts/quant.h"

typedef struct rng {
    uint64_t s[2];
} rng;

void rng_seed(rng *r, uint64_t seed);
uint64_t rng_next(rng *r);
/* Mean 0, standard deviation 1, about normal (a sum of four uniform numbers). */
float rng_normal(rng *r);

/* Weights and bytes of a block of a type. */
void blocks_size(enum stk_type type, uint32_t *block, uint32_t *block_bytes);

/* Writes n weights (a multiple of the type's block) of standard deviation std to out. */
void blocks_fill(rng *r, enum stk_type type, float std, uint64_t n, uint8_t *out);

#endif
