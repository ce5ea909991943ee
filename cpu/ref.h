/* ref: the functions of the reference table, by subject. Private to cpu/. */
#ifndef STK_CPU_REF_H
#define STK_CPU_REF_H

#include "cpu/cpu.h"

/* ref_matmul.c */
void stk_ref_quantize(const float *x, uint32_t n, void *act);
void stk_ref_quantize_groups(const float *x, uint32_t n, uint32_t g0, uint32_t g1, void *act);
void stk_ref_matmul_f32(const stk_matmul *m);
void stk_ref_matmul_f16(const stk_matmul *m);
void stk_ref_matmul_bf16(const stk_matmul *m);
void stk_ref_matmul_q8_0(const stk_matmul *m);
void stk_ref_matmul_q4_0(const stk_matmul *m);
void stk_ref_matmul_q4_k(const stk_matmul *m);
void stk_ref_matmul_q5_k(const stk_matmul *m);
void stk_ref_matmul_q6_k(const stk_matmul *m);

/* ref_vector.c */
void stk_ref_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *out);
void stk_ref_silu_mul(const float *gate, const float *up, uint32_t n, float *out);
void stk_ref_add(float *x, const float *y, uint32_t n);
void stk_ref_axpy(float *acc, float w, const float *y, uint32_t n);
void stk_ref_rope(float *x, uint32_t n_rot, const float *table, bool neox);
void stk_ref_softmax(const float *x, uint32_t n, float *p);
void stk_ref_f32_to_f16(const float *x, uint32_t n, uint16_t *out);
/* The sum of n in the order of ref.c. */
float stk_ref_sum(const float *x, uint32_t n);

/* ref_attend.c */
void stk_ref_attend(const stk_attend *a);

#endif
