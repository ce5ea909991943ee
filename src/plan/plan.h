/*
 * plan: for the experts of one event, where each is computed and in which order the queues take them. Pure; no allocation;
 * microseconds.
 *
 * Who may call it: src/. Input is where each expert lives, its tokens, when each queue frees, and the cost table. Without a GPU
 * the routes follow from residency, and what remains is order and the prediction of when the event will be done. With one:
 *
 *     tier          routes
 *     VRAM          GPU; CPU where a copy lies in RAM too
 *     coming there  GPU, once it has arrived
 *     RAM           CPU; FETCH into a VRAM slot, or BYPASS through a staging buffer, and then on the GPU
 *     coming, NVMe  NVME_CPU; NVME_GPU: read, over the link, on the GPU
 *
 * Every queue takes its items in the order of the list. The CPU and the link go side by side and slow each other down as the
 * cost table says. The GPU takes whatever is there as one launch.
 */
#ifndef STK_PLAN_H
#define STK_PLAN_H

#include "cost.h"

enum stk_tier { STK_TIER_NVME, STK_TIER_COMING, STK_TIER_RAM, STK_TIER_COMING_VRAM, STK_TIER_VRAM };
enum stk_route { STK_ROUTE_CPU, STK_ROUTE_NVME_CPU, STK_ROUTE_GPU, STK_ROUTE_FETCH, STK_ROUTE_BYPASS, STK_ROUTE_NVME_GPU };
enum stk_queue { STK_QUEUE_CPU, STK_QUEUE_NVME, STK_QUEUE_LINK, STK_QUEUE_GPU, STK_N_QUEUE };

typedef struct stk_plan_item {
    uint32_t index; /* of the decision that this item stands for */
    uint32_t n_tok;
    float weight; /* sum of router weights over its tokens */
    uint64_t payload_bytes;
    uint64_t read_bytes;
    uint32_t wave;
    enum stk_tier tier;   /* where it lives at the lookup */
    bool ram_copy;        /* in VRAM, and in RAM as well */
    bool may_stay;        /* not in VRAM: its policy there would take it in, so that a fetch is FETCH and not BYPASS */
    double arrive_ns;     /* coming to VRAM: when it will be there, from now */
    enum stk_route route; /* out */
    double done_ns;       /* out: when it will have been computed, from now */
} stk_plan_item;

typedef struct stk_plan_queues {
    double free_at_ns[STK_N_QUEUE]; /* from now */
} stk_plan_queues;

/* What a plan comes to. */
typedef struct stk_plan_times {
    double done_ns;                 /* everything computed, the CPU's part on the GPU where there is one */
    double free_at_ns[STK_N_QUEUE]; /* of the queues, after this event */
    double busy_ns[STK_N_QUEUE];    /* what each works for the event */
} stk_plan_times;

static inline bool stk_route_on_gpu(enum stk_route route) { return route >= STK_ROUTE_GPU; }
static inline bool stk_route_by_link(enum stk_route route) { return route >= STK_ROUTE_FETCH; }

/*
 * Sets each item's route and done_ns and sorts items into the order in which the queues take them: by wave; within one those in
 * VRAM, then those coming there, in RAM, coming, to be read; each heavy first, then by index. *done_ns: when all will have been
 * computed.
 *
 * Routes are chosen greedily in the manner of HybriMoE: the GPU's next is the heaviest in VRAM, then the heaviest to be fetched;
 * the CPU's next the lightest in RAM, then a copy of what lies in VRAM; whoever would be done first takes its own. Then single
 * experts change sides while that saves time.
 * Errors: STK_EINVAL (an unknown tier, or VRAM in a table without a GPU).
 */
int stk_plan_make(const stk_cost *cost, const stk_plan_queues *queues, stk_plan_item *items, uint32_t n,
                  double *done_ns) STK_CHECKED;

/* What items with their routes, in their order, come to; sets their done_ns. */
void stk_plan_price(const stk_cost *cost, const stk_plan_queues *queues, stk_plan_item *items, uint32_t n, stk_plan_times *times);

/* ---- Modes: the same queues under the rules of others, for comparing (plan_modes.c) ------------------------------------- */

/* What lies in VRAM. */
enum stk_placement {
    STK_PLACE_CACHE,   /* a cache of all layers: what the policy keeps of what was fetched */
    STK_PLACE_LAYER,   /* a cache of its own for every layer */
    STK_PLACE_LAYERS,  /* all experts of the last layers, for good */
    STK_PLACE_UNIFORM, /* as many experts of every layer, whatever they do, for good */
    STK_PLACE_PROFILE, /* those that other sequences used most, for good */
};

typedef struct stk_mode {
    const char *name;
    const char *what; /* one line for a list of modes */
    enum stk_placement placement;
    const char *policy; /* of the VRAM cache, where it has one; NULL: what was asked for */
    bool keeps_ram;     /* what lies in VRAM lies in RAM too */
    bool ahead;         /* fills idle time of the link with what later events may use */
    /* As stk_plan_make; n_tok: tokens of the step. */
    int (*make)(const stk_cost *cost, const stk_plan_queues *queues, uint32_t n_tok, stk_plan_item *items, uint32_t n,
                double *done_ns);
} stk_mode;

/* NULL when there is no mode of that name: hybrid, static, lru-upload, fiddler, kt, kt-profiled, hybrimoe. */
const stk_mode *stk_mode_find(const char *name);
/* Names of all modes, NULL at the end. */
const char *const *stk_mode_names(void);

#endif
