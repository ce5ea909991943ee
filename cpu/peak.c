/* peak: the loops in plain C, and the choice of a table. */
#include "cpu/peak.h"

#include <string.h>

enum { N = 256 };

static uint64_t read_ref(const void *base, uint64_t bytes, uint32_t n_stream, bool ahead) {
    const char *p = base;
    uint64_t part = bytes / n_stream, out = 0;
    (void)ahead;
    for (uint64_t at = 0; at < part; at += STK_PEAK_CHUNK)
        for (uint32_t s = 0; s < n_stream; s++)
            for (int i = 0; i < STK_PEAK_CHUNK; i += (int)sizeof out) {
                uint64_t word;
                memcpy(&word, p + s * part + at + i, sizeof word);
                out ^= word;
            }
    return out;
}

static uint64_t int8_ref(uint64_t n_round) {
    int8_t a[N], b[N];
    int32_t sum[N] = {0};
    memset(a, 3, sizeof a);
    memset(b, 2, sizeof b);
    for (uint64_t r = 0; r < n_round; r++) {
        __asm__ volatile("" : : "r"(a), "r"(b), "r"(sum) : "memory"); /* they may have changed */
        for (int i = 0; i < N; i++) sum[i] += a[i] * b[i];
    }
    __asm__ volatile("" : : "r"(sum) : "memory");
    return n_round * N * 2;
}

static uint64_t f32_ref(uint64_t n_round) {
    float a[N], sum[N] = {0};
    for (int i = 0; i < N; i++) a[i] = 0.5f;
    for (uint64_t r = 0; r < n_round; r++) {
        __asm__ volatile("" : : "r"(a), "r"(sum) : "memory");
        for (int i = 0; i < N; i++) sum[i] = sum[i] * 0.5f + a[i];
    }
    __asm__ volatile("" : : "r"(sum) : "memory");
    return n_round * N * 2;
}

const stk_peak_ops stk_peak_ops_ref = {"ref", read_ref, int8_ref, f32_ref};

const stk_peak_ops *stk_peak_get(const char *name) {
    static const stk_peak_ops *const all[] = {&stk_peak_ops_ref, &stk_peak_ops_avx2, &stk_peak_ops_avxvnni, &stk_peak_ops_avx512,
                                              &stk_peak_ops_amx};
    for (size_t i = 0; i < STK_ARRAY_LEN(all); i++)
        if (strcmp(all[i]->name, name) == 0) return all[i];
    return NULL;
}
