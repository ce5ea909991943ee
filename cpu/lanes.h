/*
 * lanes: the vector of the file that includes this, which defines LANES before: 16 lanes of 32 bits with AVX-512, 8 with AVX2.
 * The kernels are written once over these names; each simd_*.c compiles them with its own instructions.
 *
 * Private to those files. Memory may have any alignment.
 */
#ifndef STK_CPU_LANES_H
#define STK_CPU_LANES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
/* A loop whose count is constant once its function is inlined; its counter may index a local array of vectors, which then are
 * registers. Sanitizers would make such code huge, and slow to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if LANES == 16
typedef __m512 vf;
typedef __m512i vi;
#define V(op) _mm512_##op
#else
typedef __m256 vf;
typedef __m256i vi;
#define V(op) _mm256_##op
#endif
typedef uint32_t vu __attribute__((vector_size(sizeof(vi)), aligned(4), may_alias));
typedef int32_t vs __attribute__((vector_size(sizeof(vi)), aligned(4), may_alias));

INLINE int32_t load_i32(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

INLINE vf vf_zero(void) { return V(setzero_ps)(); }
INLINE vf vf_set1(float x) { return V(set1_ps)(x); }
INLINE vf vf_load(const float *p) { return V(loadu_ps)(p); }
INLINE void vf_store(float *p, vf a) { V(storeu_ps)(p, a); }
INLINE vf vf_add(vf a, vf b) { return V(add_ps)(a, b); }
INLINE vf vf_sub(vf a, vf b) { return V(sub_ps)(a, b); }
INLINE vf vf_mul(vf a, vf b) { return V(mul_ps)(a, b); }
INLINE vf vf_div(vf a, vf b) { return V(div_ps)(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return V(fmadd_ps)(a, b, c); }   /* a * b + c */
INLINE vf vf_fnma(vf a, vf b, vf c) { return V(fnmadd_ps)(a, b, c); } /* -a * b + c */
INLINE vf vf_from_i32(vi a) { return V(cvtepi32_ps)(a); }
INLINE vi vi_set1(int32_t x) { return V(set1_epi32)(x); }
INLINE vi vi_add(vi a, vi b) { return V(add_epi32)(a, b); }
INLINE vi vi_shl(vi a, uint32_t n) { return (vi)((vu)a << n); }
INLINE vi vi_shr(vi a, uint32_t n) { return (vi)((vu)a >> n); }
INLINE vi vi_sar(vi a, uint32_t n) { return (vi)((vs)a >> (int)n); }

/* The first n <= LANES elements; the others are neither read nor written, and read as zero. */
#if LANES == 16
INLINE vf vf_load_n(const float *p, uint32_t n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
INLINE void vf_store_n(float *p, vf a, uint32_t n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a); }
#else
INLINE __m256i first_lanes(uint32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf vf_load_n(const float *p, uint32_t n) { return _mm256_maskload_ps(p, first_lanes(n)); }
INLINE void vf_store_n(float *p, vf a, uint32_t n) { _mm256_maskstore_ps(p, first_lanes(n), a); }
#endif

#if LANES == 16
INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void vi_store(void *p, vi a) { _mm512_storeu_si512(p, a); }
INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
INLINE vf vf_bits(vi a) { return _mm512_castsi512_ps(a); }
INLINE vi vi_bits(vf a) { return _mm512_castps_si512(a); }
/* Bits of a where mask is set, else of b. */
INLINE vi vi_select(vi mask, vi a, vi b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xca); }
INLINE vf vf_from_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
#else
INLINE vi vi_load(const void *p) { return _mm256_loadu_si256(p); }
INLINE void vi_store(void *p, vi a) { _mm256_storeu_si256(p, a); }
INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
INLINE vf vf_bits(vi a) { return _mm256_castsi256_ps(a); }
INLINE vi vi_bits(vf a) { return _mm256_castps_si256(a); }
INLINE vi vi_select(vi mask, vi a, vi b) { return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b)); }
INLINE vf vf_from_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
#endif

#endif
