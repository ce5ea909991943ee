/*
 * plan_optimum: the best assignment of an event's experts by exhaustive search: every expert that has a choice on either side;
 * experts that are alike (tier, tokens, bytes) are interchangeable, so that only how many of them go to the GPU is tried. Every
 * assignment is priced as the plan's own (stk_plan_price), in its order.
 *
 * Where there are more than PO_MOST assignments, as in prompts, the answer is a lower bound instead: for every number of experts
 * that are copied, the CPU is left with the lightest, the link carries so many, and
 * neither waits for anything else; they slow each other down as they must.
 */
#ifndef STK_TESTS_PLAN_OPTIMUM_H
#define STK_TESTS_PLAN_OPTIMUM_H

#include <stdlib.h>
#include <string.h>

#include "src/plan/plan.h"

enum { PO_MOST = 4096, PO_EXPERTS = 512 };

static inline bool po_has_choice(const stk_plan_item *it) {
    return it->tier <= STK_TIER_RAM || (it->tier == STK_TIER_VRAM && it->ram_copy);
}

static inline void po_put(stk_plan_item *it, bool gpu) {
    if (it->tier >= STK_TIER_COMING_VRAM)
        it->route = gpu ? STK_ROUTE_GPU : STK_ROUTE_CPU;
    else if (it->tier == STK_TIER_RAM)
        it->route = gpu ? STK_ROUTE_FETCH : STK_ROUTE_CPU;
    else
        it->route = gpu ? STK_ROUTE_NVME_GPU : STK_ROUTE_NVME_CPU;
}

static inline bool po_alike(const stk_plan_item *a, const stk_plan_item *b) {
    return a->tier == b->tier && a->n_tok == b->n_tok && a->payload_bytes == b->payload_bytes && a->wave == b->wave &&
           a->ram_copy == b->ram_copy;
}

static inline double po_price(const stk_cost *cost, const stk_plan_queues *q, stk_plan_item *items, uint32_t n) {
    stk_plan_times t;
    stk_plan_price(cost, q, items, n, &t);
    return t.done_ns;
}

/* Tries every number of each group of alike experts that begins at `at`. */
static inline void po_search(const stk_cost *cost, const stk_plan_queues *q, stk_plan_item *items, uint32_t n, uint32_t at,
                             double *best) {
    while (at < n && !po_has_choice(&items[at])) at++;
    if (at == n) {
        double ns = po_price(cost, q, items, n);
        if (ns < *best) *best = ns;
        return;
    }
    uint32_t end = at;
    while (end < n && po_alike(&items[at], &items[end])) end++;
    for (uint32_t k = 0; k <= end - at; k++) {
        for (uint32_t i = at; i < end; i++) po_put(&items[i], i - at < k);
        po_search(cost, q, items, n, end, best);
    }
}

static inline uint64_t po_n_assignment(const stk_plan_item *items, uint32_t n) {
    uint64_t count = 1;
    for (uint32_t i = 0, end; i < n && count <= PO_MOST; i = end) {
        for (end = i + 1; end < n && po_alike(&items[i], &items[end]); end++) {
        }
        if (po_has_choice(&items[i])) count *= end - i + 1;
    }
    return count;
}

static inline int po_by_tokens(const void *a, const void *b) {
    const stk_plan_item *x = a, *y = b;
    return x->n_tok < y->n_tok ? -1 : x->n_tok > y->n_tok;
}

/* When the later of two works ends that begin now side by side, each slowed down by the other. */
static inline void po_side_by_side(const stk_cost *cost, double *cpu, double *link) {
    double cpu_slow = cost->gpu.cpu_slowdown, link_slow = cost->gpu.link_bytes_per_ns / cost->gpu.link_bytes_per_ns_computing;
    double c = *cpu * cpu_slow, l = *link * link_slow;
    if (c <= l) {
        *link = c + *link - c / link_slow;
        *cpu = c;
    } else {
        *cpu = l + *cpu - l / cpu_slow;
        *link = l;
    }
}

/* Experts of one tier that have a choice, the lightest first, and what the k lightest of them take. */
typedef struct po_side {
    stk_plan_item items[PO_EXPERTS];
    double cpu[PO_EXPERTS + 1], gpu[PO_EXPERTS + 1];
    uint32_t n;
} po_side;

static inline void po_sum(const stk_cost *cost, po_side *s) {
    qsort(s->items, s->n, sizeof *s->items, po_by_tokens);
    s->cpu[0] = s->gpu[0] = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        s->cpu[i + 1] = s->cpu[i] + stk_cost_expert_ns(cost, s->items[i].payload_bytes, s->items[i].n_tok);
        s->gpu[i + 1] = s->gpu[i] + stk_cost_gpu_expert_ns(cost, s->items[i].payload_bytes, s->items[i].n_tok);
    }
}

/* The CPU has the v lightest of VRAM and the r lightest of RAM; the GPU has what is at least as heavy as its lightest. */
static inline double po_split(const stk_cost *cost, const stk_plan_queues *q, double fixed, const po_side *vram,
                              const po_side *ram, uint32_t v, uint32_t r) {
    uint32_t n_copied = ram->n - r;
    bool idle = q->free_at_ns[STK_QUEUE_CPU] == 0 && q->free_at_ns[STK_QUEUE_LINK] == 0;
    double cpu = vram->cpu[v] + ram->cpu[r], link = 0, gpu = fixed + vram->gpu[vram->n - v] + ram->gpu[n_copied];
    if (n_copied) link = n_copied * stk_cost_copy_ns(cost, ram->items[0].payload_bytes, false);
    if (idle) po_side_by_side(cost, &cpu, &link);
    if (v + r) cpu += q->free_at_ns[STK_QUEUE_CPU] + cost->gpu.return_ns;
    if (n_copied)
        link += q->free_at_ns[STK_QUEUE_LINK] + cost->gpu.link_latency_ns + cost->gpu.launch_ns +
                stk_cost_gpu_expert_ns(cost, ram->items[0].payload_bytes, ram->items[0].n_tok);
    return STK_MAX(cpu, STK_MAX(link, gpu));
}

/* For experts that all lie in VRAM or RAM and are of one size. */
static inline double po_bound(const stk_cost *cost, const stk_plan_queues *q, const stk_plan_item *items, uint32_t n) {
    static po_side vram, ram;
    double fixed = q->free_at_ns[STK_QUEUE_GPU], best = 1e300;
    vram.n = ram.n = 0;
    for (uint32_t i = 0; i < n; i++) {
        po_side *s = items[i].tier == STK_TIER_RAM ? &ram : &vram;
        if (po_has_choice(&items[i]))
            s->items[s->n++] = items[i];
        else
            fixed += stk_cost_gpu_expert_ns(cost, items[i].payload_bytes, items[i].n_tok);
    }
    po_sum(cost, &vram);
    po_sum(cost, &ram);
    for (uint32_t v = 0; v <= vram.n; v++)
        for (uint32_t r = 0; r <= ram.n; r++) {
            double ns = po_split(cost, q, fixed, &vram, &ram, v, r);
            if (ns < best) best = ns;
        }
    return best;
}

/* Items as a plan has ordered them. *exact: found by search, not a bound; < 0: neither was possible. */
static inline double po_optimum(const stk_cost *cost, const stk_plan_queues *q, const stk_plan_item *planned, uint32_t n,
                                bool *exact) {
    stk_plan_item items[PO_EXPERTS];
    bool near = true;
    if (n > PO_EXPERTS) return -1;
    memcpy(items, planned, n * sizeof *items);
    *exact = po_n_assignment(items, n) <= PO_MOST;
    for (uint32_t i = 0; i < n; i++)
        near = near && items[i].tier >= STK_TIER_RAM && items[i].payload_bytes == items[0].payload_bytes;
    if (!*exact) return near ? po_bound(cost, q, items, n) : -1;
    double best = 1e300;
    po_search(cost, q, items, n, 0, &best);
    return best;
}

#endif
