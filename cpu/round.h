/* round: floats to BF16, half to even; denormals may become zero. Private to cpu/fast.c; round_bf16.c has the CPU's instructions.
 */
#ifndef STK_CPU_ROUND_H
#define STK_CPU_ROUND_H

#include "experts/layout.h"

typedef struct stk_round_ops {
    void (*row)(const float *x, uint32_t n, uint16_t *out);
    /* A stripe of n_in (even) weights -> a stripe of BF16. */
    void (*stripe_f16)(const void *stripe, uint32_t n_in, uint16_t *out);
    void (*stripe_f32)(const void *stripe, uint32_t n_in, uint16_t *out);
} stk_round_ops;

extern const stk_round_ops stk_round_plain, stk_round_bf16;

#endif
