/* peak_lanes: the loops of peak.h over lanes.h. Each peak_*.c defines LANES and includes this once. */
#ifndef STK_CPU_PEAK_LANES_H
#define STK_CPU_PEAK_LANES_H

#include "cpu/dot.h"
#include "cpu/peak.h"

enum {
    N_SUM = 12,   /* independent sums: latency times width of what multiplies, and no more than there are registers */
    AHEAD = 1536, /* bytes that a stream is prefetched ahead */
    LINE = 64,
};

/* Makes the compiler forget what it knows of a register, so that it computes every round. */
#define OPAQUE(x) __asm__ volatile("" : "+x"(x))

static uint64_t peak_read(const void *base, uint64_t bytes, uint32_t n_stream, bool ahead) {
    const char *p = base;
    uint64_t part = bytes / n_stream, words[sizeof(vi) / sizeof(uint64_t)], out = 0;
    vi sum[4];
    for (int i = 0; i < 4; i++) sum[i] = vi_set1(0);
    for (uint64_t at = 0; at < part; at += STK_PEAK_CHUNK)
        for (uint32_t s = 0; s < n_stream; s++) {
            const char *chunk = p + s * part + at;
            if (ahead)
                for (int i = 0; i < STK_PEAK_CHUNK; i += LINE) _mm_prefetch(chunk + AHEAD + i, _MM_HINT_NTA);
            UNROLL for (size_t i = 0; i < STK_PEAK_CHUNK / sizeof(vi); i++) sum[i % 4] =
                vi_xor(sum[i % 4], vi_load(chunk + i * sizeof(vi)));
        }
    vi_store(words, vi_xor(vi_xor(sum[0], sum[1]), vi_xor(sum[2], sum[3])));
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) out ^= words[i];
    return out;
}

INLINE vi peak_dot(vi sum, vi codes) {
#if DOT_VNNI
    return dot4(sum, codes, 0x01020304);
#else
    return vi_add(sum, _mm256_madd_epi16(dot4_pairs(codes, 0x01020304, false), _mm256_set1_epi16(1)));
#endif
}

static uint64_t peak_int8(uint64_t n_round) {
    vi sum[N_SUM], codes = vi_set1(0x03020100);
    for (int i = 0; i < N_SUM; i++) sum[i] = vi_set1(0);
    for (uint64_t r = 0; r < n_round; r++) {
        UNROLL for (int i = 0; i < N_SUM; i++) {
            OPAQUE(codes);
            sum[i] = peak_dot(sum[i], codes);
            OPAQUE(sum[i]);
        }
    }
    return n_round * N_SUM * sizeof(vi) * 2;
}

static uint64_t peak_f32(uint64_t n_round) {
    vf sum[N_SUM], a = vf_set1(1.0f), b = vf_set1(0.5f);
    for (int i = 0; i < N_SUM; i++) sum[i] = vf_zero();
    for (uint64_t r = 0; r < n_round; r++) {
        UNROLL for (int i = 0; i < N_SUM; i++) {
            sum[i] = vf_fma(a, b, sum[i]);
            OPAQUE(sum[i]);
        }
    }
    return n_round * N_SUM * LANES * 2;
}

#define PEAK_TABLE(table_name)                                                                                                   \
    { .name = table_name, .read = peak_read, .int8 = peak_int8, .f32 = peak_f32 }

#endif
