/* plan: routes and order. */
#include "plan.h"

#include <stdlib.h>

static int by_order(const void *pa, const void *pb) {
    const stk_plan_item *a = pa, *b = pb;
    if (a->wave != b->wave) return a->wave < b->wave ? -1 : 1;
    if (a->tier != b->tier) return a->tier > b->tier ? -1 : 1;
    if (a->n_tok != b->n_tok) return a->n_tok > b->n_tok ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

int stk_plan_make(const stk_cost *cost, const stk_plan_queues *queues, stk_plan_item *items, uint32_t n, double *done_ns) {
    qsort(items, n, sizeof *items, by_order);
    double cpu = queues->free_at_ns[STK_QUEUE_CPU], nvme = queues->free_at_ns[STK_QUEUE_NVME];
    for (uint32_t i = 0; i < n; i++) {
        stk_plan_item *it = &items[i];
        double compute = stk_cost_expert_ns(cost, it->payload_bytes, it->n_tok);
        switch (it->tier) {
        case STK_TIER_RAM: it->route = STK_ROUTE_CPU; break;
        case STK_TIER_COMING:
        case STK_TIER_NVME:
            it->route = STK_ROUTE_NVME_CPU;
            if (it->tier == STK_TIER_NVME) nvme += stk_cost_read_ns(cost, it->read_bytes);
            compute += stk_cost_arrive_ns(cost, it->payload_bytes);
            cpu = STK_MAX(cpu, nvme + cost->nvme_latency_ns);
            break;
        default: return stk_fail(STK_EINVAL, "plan: expert %u is in tier %d, which does not exist", it->index, (int)it->tier);
        }
        cpu += compute;
    }
    *done_ns = cpu;
    return STK_OK;
}
