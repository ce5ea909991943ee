/* emu_fixture: an emulated device for a test, and kernels that are C functions. */
#ifndef STK_EMU_FIXTURE_H
#define STK_EMU_FIXTURE_H

#include "cuda/emu/block.h"

/* A fresh device with this seed and this much memory (0: the default), and a stream of it. */
static inline stk_emu_stream *emu_start(uint64_t seed, uint64_t vram_bytes) {
    stk_emu_config config = stk_emu_config_default();
    stk_emu_stream *s = NULL;
    config.seed = seed;
    if (vram_bytes) config.vram_bytes = vram_bytes;
    stk_emu_reset(&config);
    return stk_emu_stream_create_with_priority(&s, 0, 0) ? NULL : s;
}

/* What a kernel is called with. */
typedef struct emu_args {
    void *p;
    uint32_t n;
} emu_args;

/* Runs a kernel in one block of n_thread threads of a fresh device, and waits. */
static inline int emu_run(void (*kernel)(const void *emu_args), void *p, uint32_t n_thread, uint64_t seed) {
    stk_emu_stream *s = emu_start(seed, 0);
    emu_args a = {p, n_thread};
    int rc = stk_emu_launch("a test", (stk_emu_dim){1, 1, 1}, (stk_emu_dim){n_thread, 1, 1}, 0, s, kernel, &a, sizeof a);
    return rc ? rc : stk_emu_stream_synchronize(s);
}

#define EMU_HERE                                                                                                                 \
    (stk_emu_place) { __FILE__, __LINE__ }

/* The block's array of this name, of n words. */
static inline uint32_t *emu_shared(stk_emu_place at, uint32_t n) {
    size_t bytes;
    return (uint32_t *)stk_emu_shared_array(at, n * sizeof(uint32_t), &bytes);
}
static inline void emu_write(uint32_t *p, uint32_t x, stk_emu_place at) {
    stk_emu_shared_write(p, sizeof *p, at);
    *p = x;
}
static inline uint32_t emu_read(const uint32_t *p, stk_emu_place at) {
    stk_emu_shared_read(p, sizeof *p, at);
    return *p;
}

#endif
