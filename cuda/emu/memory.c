/*
 * memory: every allocation has its own mapping between two guard pages, starts 256-byte aligned as on a device, and is filled
 * with 0xff, which is NaN as a float and a half and minus one as an index. The bytes between its end and the guard page are a
 * canary, and poisoned under the address sanitizer.
 */
#include "cuda/emu/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define STK_MEMORY_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define STK_MEMORY_ASAN 1
#endif
#endif
#ifdef STK_MEMORY_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   __asan_poison_memory_region(p, n)
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define POISON(p, n)   ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

enum { PAGE = 4096, ALIGN = 256, GRAIN = 512, FRESH = 0xff, CANARY = 0xa5 };

typedef struct block {
    struct block *next;
    enum stk_emu_where where;
    bool registered; /* the caller's memory, not ours */
    uint8_t *p, *map;
    size_t bytes, map_bytes;
} block;

static block *blocks;
static uint64_t vram_limit, pin_limit;
static stk_emu_stats stats;

static size_t slack_bytes(const block *b) { return (size_t)(b->map + b->map_bytes - PAGE - (b->p + b->bytes)); }

static uint64_t *used_of(const block *b) { return b->where == STK_EMU_DEVICE ? &stats.vram_bytes : &stats.pin_bytes; }
static uint64_t charge_of(const block *b) { return b->where == STK_EMU_DEVICE ? stk_align_up(b->bytes, GRAIN) : b->bytes; }

static int charge(block *b) {
    uint64_t *used = used_of(b), *peak = b->where == STK_EMU_DEVICE ? &stats.vram_peak_bytes : &stats.pin_peak_bytes;
    uint64_t limit = b->where == STK_EMU_DEVICE ? vram_limit : pin_limit;
    if (charge_of(b) > limit - *used) return STK_EMU_MEMORY_ALLOCATION;
    *used += charge_of(b);
    *peak = STK_MAX(*peak, *used);
    return STK_EMU_SUCCESS;
}

static void push(block *b) {
    b->next = blocks;
    blocks = b;
    if (!b->registered) (*(b->where == STK_EMU_DEVICE ? &stats.n_alloc : &stats.n_host_alloc))++;
}

int stk_emu_memory_open(void **out, size_t bytes, bool device) {
    *out = NULL;
    if (bytes == 0 || bytes > SIZE_MAX / 2) return bytes ? STK_EMU_MEMORY_ALLOCATION : STK_EMU_SUCCESS;
    block *b = calloc(1, sizeof *b);
    if (!b) return STK_EMU_MEMORY_ALLOCATION;
    size_t usable = (size_t)stk_align_up(bytes, PAGE);
    b->where = device ? STK_EMU_DEVICE : STK_EMU_PINNED;
    b->bytes = bytes;
    b->map_bytes = usable + 2 * PAGE;
    int rc = charge(b);
    if (rc) {
        free(b);
        return rc;
    }
    b->map = mmap(NULL, b->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->map == MAP_FAILED || mprotect(b->map, PAGE, PROT_NONE) || mprotect(b->map + PAGE + usable, PAGE, PROT_NONE)) {
        if (b->map != MAP_FAILED) munmap(b->map, b->map_bytes);
        *used_of(b) -= charge_of(b);
        free(b);
        return STK_EMU_MEMORY_ALLOCATION;
    }
    b->p = b->map + PAGE + (usable - bytes) / ALIGN * ALIGN;
    memset(b->map + PAGE, CANARY, usable);
    memset(b->p, FRESH, bytes);
    POISON(b->p + bytes, slack_bytes(b));
    push(b);
    *out = b->p;
    return STK_EMU_SUCCESS;
}

static block **find(const void *p) {
    block **at = &blocks;
    while (*at && (*at)->p != p) at = &(*at)->next;
    return at;
}

static void close_block(block **at) {
    block *b = *at;
    *at = b->next;
    *used_of(b) -= charge_of(b);
    if (!b->registered) {
        (*(b->where == STK_EMU_DEVICE ? &stats.n_alloc : &stats.n_host_alloc))--;
        UNPOISON(b->map, b->map_bytes);
        munmap(b->map, b->map_bytes);
    }
    free(b);
}

int stk_emu_memory_close(void *p, bool device) {
    if (!p) return STK_EMU_SUCCESS;
    block **at = find(p);
    if (!*at || (*at)->registered || ((*at)->where == STK_EMU_DEVICE) != device) return STK_EMU_INVALID_VALUE;
    close_block(at);
    return STK_EMU_SUCCESS;
}

int stk_emu_memory_register(void *p, size_t bytes) {
    if (!p || !bytes) return STK_EMU_INVALID_VALUE;
    if (stk_emu_memory_where(p, bytes) != STK_EMU_PAGEABLE) return STK_EMU_HOST_ALREADY_REGISTERED;
    block *b = calloc(1, sizeof *b);
    if (!b) return STK_EMU_MEMORY_ALLOCATION;
    *b = (block){.where = STK_EMU_PINNED, .registered = true, .p = p, .bytes = bytes};
    int rc = charge(b);
    if (rc)
        free(b);
    else
        push(b);
    return rc;
}

int stk_emu_memory_unregister(void *p) {
    block **at = find(p);
    if (!*at || !(*at)->registered) return STK_EMU_HOST_NOT_REGISTERED;
    close_block(at);
    return STK_EMU_SUCCESS;
}

enum stk_emu_where stk_emu_memory_where(const void *p, size_t bytes) {
    const uint8_t *begin = p, *end = begin + bytes;
    for (const block *b = blocks; b; b = b->next) {
        if (begin >= b->p && end <= b->p + b->bytes) return b->where;
        if (begin < b->p + b->bytes && end > b->p) return STK_EMU_PARTLY;
        if (!b->registered && begin < b->map + b->map_bytes && end > b->map) return STK_EMU_PARTLY;
    }
    return STK_EMU_PAGEABLE;
}

const char *stk_emu_memory_check(void) {
    static char text[128];
    const char *found = NULL;
    for (const block *b = blocks; b && !found; b = b->next) {
        if (b->registered) continue;
        size_t n = slack_bytes(b), i = 0;
        UNPOISON(b->p + b->bytes, n);
        while (i < n && b->p[b->bytes + i] == CANARY) i++;
        if (i < n) {
            snprintf(text, sizeof text, "byte %zu beyond the end of an allocation of %zu bytes was written", i, b->bytes);
            found = text;
        }
        POISON(b->p + b->bytes, n);
    }
    return found;
}

void stk_emu_memory_stats(stk_emu_stats *out) {
    out->vram_bytes = stats.vram_bytes;
    out->vram_peak_bytes = stats.vram_peak_bytes;
    out->pin_bytes = stats.pin_bytes;
    out->pin_peak_bytes = stats.pin_peak_bytes;
    out->n_alloc = stats.n_alloc;
    out->n_host_alloc = stats.n_host_alloc;
}

void stk_emu_memory_reset(uint64_t vram_bytes, uint64_t pin_bytes) {
    while (blocks) close_block(&blocks);
    memset(&stats, 0, sizeof stats);
    vram_limit = vram_bytes;
    pin_limit = pin_bytes;
}
