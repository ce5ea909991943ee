/*
 * synth_blocks: weights in the block formats of GGUF files, made rather than quantized: random ones for models that only have to
 * be as large and as fast as real ones, and rows of +c and -c, which every format holds exactly. Deterministic: an integer
 * generator and single IEEE operations, so that every machine writes the same bytes. Random codes use their whole range, scales
 * are those of weights with the standard deviation asked for; a standard deviation of 0 gives random codes under a scale of 0.
 *
 * Who may call it: src/ and the tools of tests/. Pure functions, no state.
 */
#ifndef STK_SYNTH_BLOCKS_H
#define STK_SYNTH_BLOCKS_H

#include "experts/quant.h"

/* Formats that Stoker has no kernels for, and files have where a row is no multiple of 256. */
enum { STK_SYNTH_Q5_0 = 6, STK_SYNTH_Q5_1 = 7 };

typedef struct stk_synth_rng {
    uint64_t s[2];
} stk_synth_rng;

void stk_synth_seed(stk_synth_rng *r, uint64_t seed);
/* A seed for the part of a model that `name` names. */
uint64_t stk_synth_seed_of(uint64_t seed, const char *name);
uint64_t stk_synth_next(stk_synth_rng *r);
/* From 0 to n - 1. */
uint32_t stk_synth_below(stk_synth_rng *r, uint32_t n);
/* Mean 0, standard deviation 1, about normal (a sum of four uniform numbers). */
float stk_synth_normal(stk_synth_rng *r);

/* Whether stk_synth_fill knows the type. */
bool stk_synth_can_fill(uint32_t type);
/* Writes n weights (a multiple of the type's block) of standard deviation std to out. */
void stk_synth_fill(stk_synth_rng *r, uint32_t type, float std, uint64_t n, uint8_t *out);

/* Writes n weights of c * signs[i] (signs are 1 or -1; n is a multiple of the type's block); c is exact as an f16 or is rounded,
 * the same for all. Types with kernels alone. */
void stk_synth_fill_signs(enum stk_type type, float c, const int8_t *signs, uint64_t n, uint8_t *out);

#endif
