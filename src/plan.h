/*
 * plan: for the experts of one event, where each is computed and in which order the queues take them. Pure; no allocation;
 * microseconds.
 *
 * Who may call it: src/. Input is where each expert lives, its tokens, when each queue frees, and the cost table. With the tiers
 * CPU and NVMe the routes follow from residency; what remains is order, and the prediction of when the event will be done.
 */
#ifndef STK_PLAN_H
#define STK_PLAN_H

#include "cost.h"

enum stk_tier { STK_TIER_NVME, STK_TIER_COMING, STK_TIER_RAM };
enum stk_route { STK_ROUTE_CPU, STK_ROUTE_NVME_CPU };
enum stk_queue { STK_QUEUE_CPU, STK_QUEUE_NVME, STK_N_QUEUE };

typedef struct stk_plan_item {
    uint32_t index; /* of the decision that this item stands for */
    uint32_t n_tok;
    float weight; /* sum of router weights over its tokens */
    uint64_t payload_bytes;
    uint64_t read_bytes;
    uint32_t wave;
    enum stk_tier tier;   /* where it lives at the lookup */
    enum stk_route route; /* out */
} stk_plan_item;

typedef struct stk_plan_queues {
    double free_at_ns[STK_N_QUEUE]; /* from now */
} stk_plan_queues;

/*
 * Sets each item's route and sorts items into the order in which the queues take them: within a wave those in RAM, then those
 * coming, then those to be read, each heavy first, then by index. *done_ns: when the last will be computed, by the cost table.
 * Errors: STK_EINVAL (an unknown tier).
 */
int stk_plan_make(const stk_cost *cost, const stk_plan_queues *queues, stk_plan_item *items, uint32_t n,
                  double *done_ns) STK_CHECKED;

#endif
