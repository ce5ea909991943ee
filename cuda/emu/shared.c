/*
 * shared: arrays are placed in one arena in the order in which the threads first reach their declarations, with a gap between
 * them that belongs to nobody. For every word the last write and two reads since are kept, which is enough to report any write
 * that is not ordered after all reads by one or two other threads.
 */
#include "cuda/emu/shared.h"

#include <string.h>

enum { WORD = 4, MAX_ARRAY = 16, GAP = 64, ARENA_BYTES = STK_EMU_SHARED_BYTES + MAX_ARRAY * 2 * GAP, POISON = 0xff };

typedef struct word {
    bool placed, written;
    stk_emu_access write, read[2];
} word;

typedef struct array {
    stk_emu_place at;
    size_t offset, bytes;
} array;

static struct {
    _Alignas(64) uint8_t arena[ARENA_BYTES];
    word words[ARENA_BYTES / WORD];
    array arrays[MAX_ARRAY];
    uint32_t n_array;
    size_t end, bytes, dynamic_bytes; /* bytes: what counts against the limit */
} g;

void stk_emu_shared_begin(size_t dynamic_bytes) {
    memset(g.arena, POISON, g.end);
    memset(g.words, 0, g.end / WORD * sizeof *g.words);
    g.n_array = 0;
    g.end = GAP;
    g.bytes = dynamic_bytes;
    g.dynamic_bytes = dynamic_bytes;
}

static bool same_place(stk_emu_place a, stk_emu_place b) { return a.line == b.line && strcmp(a.file, b.file) == 0; }

const char *stk_emu_shared_find(stk_emu_place at, size_t bytes, void **out, size_t *array_bytes) {
    array *a = g.arrays, *end = a + g.n_array;
    while (a < end && !same_place(a->at, at)) a++;
    if (a == end) {
        bool dynamic = bytes == 0;
        if (dynamic) bytes = g.dynamic_bytes;
        if (g.n_array == MAX_ARRAY) return "more shared arrays than the emulation has room for";
        if (!dynamic && (g.bytes += bytes) > STK_EMU_SHARED_BYTES) return "more than 48 KiB of shared memory";
        *a = (array){at, g.end, bytes};
        g.n_array++;
        for (size_t w = 0; w < (bytes + WORD - 1) / WORD; w++) g.words[g.end / WORD + w].placed = true;
        g.end = (size_t)stk_align_up(g.end + bytes + GAP, GAP);
    }
    *out = g.arena + a->offset;
    *array_bytes = a->bytes;
    return NULL;
}

/* Whether the access happened before what the running thread does now. */
static bool ordered(const stk_emu_access *a, const stk_emu_now *now) {
    if (a->epoch != now->epoch || a->thread == now->thread) return true;
    return a->thread / STK_EMU_WARP == now->thread / STK_EMU_WARP && a->clock < now->clocks[a->thread % STK_EMU_WARP];
}

static const char *check_word(word *w, bool write, const stk_emu_now *now) {
    if (!w->placed) return "outside of any shared array";
    if (!write && !w->written) return "a read of shared memory that nobody has written";
    if (!ordered(&w->write, now))
        return write ? "a race: two threads write a word of shared memory"
                     : "a race: another thread wrote this word of shared memory";
    if (write && !(ordered(&w->read[0], now) && ordered(&w->read[1], now)))
        return "a race: another thread read the word of shared memory that this one writes";
    stk_emu_access access = {now->epoch, now->clocks[now->thread % STK_EMU_WARP], (uint16_t)now->thread};
    if (write) {
        w->written = true;
        w->write = access;
        w->read[0] = w->read[1] = (stk_emu_access){0};
    } else {
        bool replace = w->read[0].epoch == now->epoch && w->read[0].thread != now->thread;
        w->read[replace] = access;
    }
    return NULL;
}

const char *stk_emu_shared_check(const void *p, size_t bytes, bool write, const stk_emu_now *now) {
    uintptr_t at = (uintptr_t)p - (uintptr_t)g.arena;
    if (at % WORD || bytes % WORD) return "an access to shared memory that is not of whole words";
    if (at + bytes > g.end || at > g.end) return "outside of any shared array";
    for (size_t i = 0; i < bytes / WORD; i++) {
        const char *wrong = check_word(&g.words[at / WORD + i], write, now);
        if (wrong) return wrong;
    }
    return NULL;
}
