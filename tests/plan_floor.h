/*
 * plan_floor: the least time that decoding a trace can take on a modelled machine, whatever lies in VRAM when, for whoever knows
 * the future: a bound for every schedule and every policy.
 *
 * An event of k experts takes at least F, what it takes where all of them lie in VRAM and in RAM and the CPU helps; each expert
 * that the CPU must compute beyond the c it has time for in F adds its time. Experts that are not in VRAM when they are used
 * either go over the link, ahead or not, or are the CPU's. There are at least as many as a cache of that size misses that keeps
 * what is used soonest (Belady, with bypass), begins with the best content, and is filled anew for nothing after every prompt.
 * The link carries at its full rate all the time and slows nobody down. Experts of several sizes are taken to be of the least.
 */
#ifndef STK_TESTS_PLAN_FLOOR_H
#define STK_TESTS_PLAN_FLOOR_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/event.h"
#include "src/plan/cost.h"

typedef struct pf_lookup {
    uint32_t key;
    uint32_t next; /* index of the key's next lookup */
    bool refill;   /* the first after a prompt */
} pf_lookup;

typedef struct pf_floor {
    const stk_cost *cost;
    pf_lookup *lookups; /* [n of cap] of decode, in order */
    uint32_t n, cap;
    bool prompt;                /* the latest event was one of a prompt */
    double event_ns, help;      /* sums over events of F and c */
    uint64_t least_bytes;       /* of an expert */
    uint32_t n_expert, n_layer; /* keys are layer * n_expert + expert */
} pf_floor;

static inline void pf_close(pf_floor *f) { free(f->lookups); }

/* F and c of an event of k experts of one token. */
static inline void pf_event_least(const stk_cost *cost, uint64_t bytes, uint32_t k, double *least, double *help) {
    double cpu = stk_cost_expert_ns(cost, bytes, 1), gpu = stk_cost_gpu_expert_ns(cost, bytes, 1);
    *least = 1e300;
    for (uint32_t c = 0; c <= k; c++) {
        double on_cpu = c ? c * cpu + cost->gpu.return_ns : 0, on_gpu = c < k ? (k - c) * gpu + cost->gpu.launch_ns : 0;
        *least = STK_MIN(*least, STK_MAX(on_cpu, on_gpu));
    }
    *help = STK_MAX((*least - cost->gpu.return_ns) / cpu, 0.0);
}

/* False: out of memory. */
static inline bool pf_add(pf_floor *f, const stk_event *event, uint64_t payload_bytes) {
    double least, help;
    if (event->n_tok > 1) {
        f->prompt = true;
        return true;
    }
    if (f->n + event->n_distinct > f->cap) {
        uint32_t cap = 2 * f->cap + 4096;
        pf_lookup *more = realloc(f->lookups, cap * sizeof *more);
        if (!more) return false;
        f->lookups = more;
        f->cap = cap;
    }
    for (uint32_t i = 0; i < event->n_distinct; i++)
        f->lookups[f->n++] = (pf_lookup){.key = event->layer * f->n_expert + event->distinct[i], .refill = f->prompt && i == 0};
    f->prompt = false;
    pf_event_least(f->cost, payload_bytes, event->n_distinct, &least, &help);
    f->event_ns += least;
    f->help += help;
    f->least_bytes = f->least_bytes ? STK_MIN(f->least_bytes, payload_bytes) : payload_bytes;
    return true;
}

/* What is resident, the farthest next use first; entries that are out of date stay until they come up. */
typedef struct pf_heap {
    uint64_t *entries; /* next << 32 | key */
    uint32_t n;
} pf_heap;

static inline void pf_push(pf_heap *h, uint32_t next, uint32_t key) {
    uint64_t e = (uint64_t)next << 32 | key;
    uint32_t i = h->n++;
    for (; i && h->entries[(i - 1) / 2] < e; i = (i - 1) / 2) h->entries[i] = h->entries[(i - 1) / 2];
    h->entries[i] = e;
}

static inline void pf_pop(pf_heap *h) {
    uint64_t e = h->entries[--h->n];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->entries[child + 1] > h->entries[child]) child++;
        if (h->entries[child] <= e) break;
        h->entries[i] = h->entries[child];
    }
    h->entries[i] = e;
}

/* next[key]: its next lookup where it is resident, 0 where it is not. */
static inline void pf_clean(pf_heap *h, const uint32_t *next) {
    while (h->n && next[(uint32_t)h->entries[0]] != h->entries[0] >> 32) pf_pop(h);
}

/* The slots hold what is used first from lookup `at` on. */
static inline void pf_refill(const pf_floor *f, uint32_t at, uint32_t n_slot, uint32_t *next, pf_heap *h) {
    uint32_t n = 0;
    memset(next, 0, (size_t)f->n_layer * f->n_expert * sizeof *next);
    h->n = 0;
    for (uint32_t i = at; i < f->n && n < n_slot; i++) {
        uint32_t key = f->lookups[i].key;
        if (next[key]) continue;
        next[key] = i + 1; /* from 1, as 0 says absent */
        pf_push(h, i + 1, key);
        n++;
    }
}

/* Lookups that no cache of n_slot slots can have; < 0: out of memory. */
static inline int64_t pf_misses(pf_floor *f, uint32_t n_slot) {
    uint32_t n_key = f->n_layer * f->n_expert;
    uint32_t *next = calloc(n_key, sizeof *next);
    pf_heap h = {.entries = calloc((size_t)2 * f->n + n_key + 1, sizeof *h.entries)};
    int64_t n_miss = next && h.entries ? 0 : -1;
    if (n_miss == 0) {
        for (uint32_t i = f->n; i-- > 0;) {
            uint32_t *at = &next[f->lookups[i].key];
            f->lookups[i].next = *at ? *at : UINT32_MAX;
            *at = i + 1;
        }
        pf_refill(f, 0, n_slot, next, &h);
    }
    for (uint32_t i = 0; n_miss >= 0 && i < f->n; i++) {
        const pf_lookup *l = &f->lookups[i];
        if (l->refill && i) pf_refill(f, i, n_slot, next, &h);
        if (!next[l->key]) {
            n_miss++;
            pf_clean(&h, next);
            if (h.n && h.entries[0] >> 32 <= l->next) continue; /* all others are wanted sooner */
            if (h.n) next[(uint32_t)h.entries[0]] = 0;
        }
        next[l->key] = l->next;
        pf_push(&h, l->next, l->key);
    }
    free(next);
    free(h.entries);
    return n_miss;
}

/* ns of all decode steps, dense_ns of which are not the experts'; < 0: out of memory. */
static inline double pf_floor_ns(pf_floor *f, uint32_t n_slot, double dense_ns) {
    double all = dense_ns + f->event_ns;
    if (f->n == 0) return all;
    int64_t n_miss = pf_misses(f, n_slot);
    if (n_miss < 0) return -1;
    double cpu = stk_cost_expert_ns(f->cost, f->least_bytes, 1),
           copies_per_ns = f->cost->gpu.link_bytes_per_ns / (double)f->least_bytes;
    double bound = (all + cpu * ((double)n_miss - f->help)) / (1 + cpu * copies_per_ns);
    return STK_MAX(all, bound);
}

#endif
