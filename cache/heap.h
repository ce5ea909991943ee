/*
 * heap: keys by rank, the least first, where any key can be found, moved and removed. Equal ranks: the higher key counts as the
 * lesser, so that the order is total and does not depend on how the heap came to be.
 *
 * Who may call it: cache/. Pure; all memory is taken at open.
 */
#ifndef STK_HEAP_H
#define STK_HEAP_H

#include "src/base.h"

typedef struct stk_heap_entry {
    uint64_t rank;
    uint32_t key;
} stk_heap_entry;

typedef struct stk_heap {
    uint32_t n, n_key;
    stk_heap_entry *entries; /* [n_key], n used; the children of i are 2i + 1 and 2i + 2 */
    uint32_t *place;         /* [n_key] in entries, or STK_HEAP_ABSENT */
} stk_heap;
#define STK_HEAP_ABSENT 0xffffffffu

/* Keys are below n_key > 0. STK_ENOMEM without a detail text. */
int stk_heap_open(stk_heap *h, uint32_t n_key) STK_CHECKED;
void stk_heap_close(stk_heap *h);

static inline bool stk_heap_has(const stk_heap *h, uint32_t key) { return h->place[key] != STK_HEAP_ABSENT; }

void stk_heap_clear(stk_heap *h);
/* The key is absent. */
void stk_heap_insert(stk_heap *h, uint32_t key, uint64_t rank);
/* The key is there. */
void stk_heap_remove(stk_heap *h, uint32_t key);
void stk_heap_update(stk_heap *h, uint32_t key, uint64_t rank);
/* Appends without regard to order; stk_heap_order puts it right once all are there, or after ranks were written to entries. */
void stk_heap_append(stk_heap *h, uint32_t key, uint64_t rank);
void stk_heap_order(stk_heap *h);

/* The least key whose bit in busy is clear. Passes over busy keys and their children alone. */
bool stk_heap_least(const stk_heap *h, const uint64_t *busy, uint32_t *key);

#endif
