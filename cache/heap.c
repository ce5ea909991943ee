/* heap: a binary heap with the place of every key. */
#include "cache/heap.h"

#include <stdlib.h>
#include <string.h>

static bool is_less(const stk_heap_entry *a, const stk_heap_entry *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->key > b->key;
}

static void put(stk_heap *h, uint32_t i, stk_heap_entry e) {
    h->entries[i] = e;
    h->place[e.key] = i;
}

static void sift_up(stk_heap *h, uint32_t i, stk_heap_entry e) {
    while (i > 0 && is_less(&e, &h->entries[(i - 1) / 2])) {
        put(h, i, h->entries[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    put(h, i, e);
}

static void sift_down(stk_heap *h, uint32_t i, stk_heap_entry e) {
    for (uint32_t child; (child = 2 * i + 1) < h->n; i = child) {
        child += child + 1 < h->n && is_less(&h->entries[child + 1], &h->entries[child]);
        if (!is_less(&h->entries[child], &e)) break;
        put(h, i, h->entries[child]);
    }
    put(h, i, e);
}

int stk_heap_open(stk_heap *h, uint32_t n_key) {
    *h = (stk_heap){.n_key = n_key};
    h->entries = calloc(n_key, sizeof *h->entries);
    h->place = malloc(sizeof *h->place * n_key);
    if (!h->entries || !h->place) return STK_ENOMEM;
    memset(h->place, 0xff, sizeof *h->place * n_key);
    return 0;
}

void stk_heap_close(stk_heap *h) {
    free(h->entries);
    free(h->place);
    *h = (stk_heap){0};
}

void stk_heap_clear(stk_heap *h) {
    h->n = 0;
    memset(h->place, 0xff, sizeof *h->place * h->n_key);
}

void stk_heap_insert(stk_heap *h, uint32_t key, uint64_t rank) { sift_up(h, h->n++, (stk_heap_entry){rank, key}); }

void stk_heap_remove(stk_heap *h, uint32_t key) {
    uint32_t i = h->place[key];
    h->place[key] = STK_HEAP_ABSENT;
    stk_heap_entry last = h->entries[--h->n];
    if (i == h->n) return;
    if (i > 0 && is_less(&last, &h->entries[(i - 1) / 2]))
        sift_up(h, i, last);
    else
        sift_down(h, i, last);
}

void stk_heap_update(stk_heap *h, uint32_t key, uint64_t rank) {
    uint32_t i = h->place[key];
    if (rank > h->entries[i].rank)
        sift_down(h, i, (stk_heap_entry){rank, key});
    else
        sift_up(h, i, (stk_heap_entry){rank, key});
}

void stk_heap_append(stk_heap *h, uint32_t key, uint64_t rank) { put(h, h->n++, (stk_heap_entry){rank, key}); }

void stk_heap_order(stk_heap *h) {
    for (uint32_t i = h->n / 2; i-- > 0;) sift_down(h, i, h->entries[i]);
}

bool stk_heap_least(const stk_heap *h, const uint64_t *busy, uint32_t *key) {
    uint32_t open[2 * 32], n = 0; /* two children a level are waiting at most */
    const stk_heap_entry *best = NULL;
    if (h->n) open[n++] = 0;
    while (n > 0) {
        uint32_t i = open[--n];
        const stk_heap_entry *e = &h->entries[i];
        if (best && !is_less(e, best)) continue; /* nor is anything below it */
        if (!(busy[e->key / 64] >> (e->key % 64) & 1)) {
            best = e;
            continue;
        }
        if (2 * i + 2 < h->n) open[n++] = 2 * i + 2;
        if (2 * i + 1 < h->n) open[n++] = 2 * i + 1;
    }
    if (!best) return false;
    *key = best->key;
    return true;
}
