/* plan: routes and order. */
#include "plan.h"

/* Whether a is taken before b. */
static bool before(const stk_plan_item *a, const stk_plan_item *b) {
    if (a->wave != b->wave) return a->wave < b->wave;
    if (a->tier != b->tier) return a->tier > b->tier;
    if (a->n_tok != b->n_tok) return a->n_tok > b->n_tok;
    return a->index < b->index;
}

/* By insertion: the cache lists its decisions almost in this order already, and qsort may allocate. */
static void sort(stk_plan_item *items, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        stk_plan_item it = items[i];
        uint32_t at = i;
        for (; at > 0 && before(&it, &items[at - 1]); at--) items[at] = items[at - 1];
        items[at] = it;
    }
}

int stk_plan_make(const stk_cost *cost, const stk_plan_queues *queues, stk_plan_item *items, uint32_t n, double *done_ns) {
    sort(items, n);
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
