/*
 * plan_modes: the rules of others on our queues: routes are chosen as their sources do, times are ours. Where those programs do
 * one thing after another (Fiddler) or copy from pageable memory, they are given our overlap and our link.
 */
#include <string.h>

#include "plan.h"

/* llama.cpp: batches of at least so many tokens have their weights copied to the GPU, whatever they are. */
enum { OFFLOAD_TOKENS = 32 };

typedef bool (*wants_gpu)(const stk_cost *cost, uint32_t n_tok, const stk_plan_item *it);

/* The order is that of the plan, which a table without a GPU gives alone. */
static int order(const stk_cost *cost, const stk_plan_queues *queues, stk_plan_item *items, uint32_t n) {
    double done;
    return stk_plan_make(cost, queues, items, n, &done);
}

static void put(stk_plan_item *it, bool gpu, bool stays) {
    bool read = it->tier <= STK_TIER_COMING;
    if (it->tier >= STK_TIER_COMING_VRAM)
        it->route = gpu ? STK_ROUTE_GPU : STK_ROUTE_CPU;
    else if (!gpu)
        it->route = read ? STK_ROUTE_NVME_CPU : STK_ROUTE_CPU;
    else
        it->route = read ? STK_ROUTE_NVME_GPU : stays && it->may_stay ? STK_ROUTE_FETCH : STK_ROUTE_BYPASS;
}

/* What lies in VRAM on the GPU, each of the others as the rule says. */
static int route(const stk_cost *cost, const stk_plan_queues *queues, uint32_t n_tok, stk_plan_item *items, uint32_t n,
                 double *done_ns, wants_gpu rule, bool stays) {
    stk_plan_times t;
    STK_TRY(order(cost, queues, items, n));
    if (stk_cost_has_gpu(cost))
        for (uint32_t i = 0; i < n; i++)
            put(&items[i], items[i].tier >= STK_TIER_COMING_VRAM || rule(cost, n_tok, &items[i]), stays);
    stk_plan_price(cost, queues, items, n, &t);
    *done_ns = t.done_ns;
    return STK_OK;
}

static bool never(const stk_cost *cost, uint32_t n_tok, const stk_plan_item *it) {
    (void)cost;
    (void)n_tok;
    (void)it;
    return false;
}

static bool in_large_batches(const stk_cost *cost, uint32_t n_tok, const stk_plan_item *it) {
    (void)cost;
    (void)it;
    return n_tok >= OFFLOAD_TOKENS;
}

static bool always(const stk_cost *cost, uint32_t n_tok, const stk_plan_item *it) {
    (void)cost;
    (void)n_tok;
    (void)it;
    return true;
}

/* Fiddler: each expert by itself, where it is quicker. Their code has the times of one machine; these are this one's. */
static bool where_it_is_quicker(const stk_cost *cost, uint32_t n_tok, const stk_plan_item *it) {
    (void)n_tok;
    double copy = stk_cost_copy_ns(cost, it->payload_bytes, false) + cost->gpu.link_latency_ns;
    double gpu = copy + cost->gpu.launch_ns + stk_cost_gpu_expert_ns(cost, it->payload_bytes, it->n_tok);
    return gpu <= stk_cost_expert_ns(cost, it->payload_bytes, it->n_tok);
}

static int make_hybrid(const stk_cost *cost, const stk_plan_queues *queues, uint32_t n_tok, stk_plan_item *items, uint32_t n,
                       double *done_ns) {
    (void)n_tok;
    return stk_plan_make(cost, queues, items, n, done_ns);
}

static int make_static(const stk_cost *cost, const stk_plan_queues *queues, uint32_t n_tok, stk_plan_item *items, uint32_t n,
                       double *done_ns) {
    return route(cost, queues, n_tok, items, n, done_ns, in_large_batches, false);
}

static int make_upload(const stk_cost *cost, const stk_plan_queues *queues, uint32_t n_tok, stk_plan_item *items, uint32_t n,
                       double *done_ns) {
    return route(cost, queues, n_tok, items, n, done_ns, always, n_tok <= OFFLOAD_TOKENS);
}

static int make_fiddler(const stk_cost *cost, const stk_plan_queues *queues, uint32_t n_tok, stk_plan_item *items, uint32_t n,
                        double *done_ns) {
    return route(cost, queues, n_tok, items, n, done_ns, where_it_is_quicker, false);
}

static int make_kt(const stk_cost *cost, const stk_plan_queues *queues, uint32_t n_tok, stk_plan_item *items, uint32_t n,
                   double *done_ns) {
    return route(cost, queues, n_tok, items, n, done_ns, never, false);
}

/* HybriMoE's decode, with the numbers that stand in its code for DeepSeek-V2-Lite: a list of what is cached, then of what is not,
 * each heavy first, from whose front the GPU takes and from whose back the CPU. Prompts go through the GPU, layer by layer. */
static const double hm_gpu = 0.5, hm_cpu_token = 1.0, hm_cpu_first = 0.79, hm_move = 0.41791;

static void route_hybrimoe(stk_plan_item *items, uint32_t n) {
    double cpu = 0, gpu = 0, move = 0;
    for (uint32_t first = 0, end = n; first < end;) {
        stk_plan_item *g = &items[first], *c = &items[end - 1];
        bool cached = g->tier >= STK_TIER_COMING_VRAM;
        bool must = c->tier >= STK_TIER_COMING_VRAM && !c->ram_copy; /* the CPU cannot */
        double on_gpu = hm_gpu, on_cpu = hm_cpu_token * c->n_tok + (cpu > 0 ? 0 : hm_cpu_first);
        if (!cached && move + hm_move > gpu) on_gpu += move + hm_move - gpu;
        if (must || gpu + on_gpu <= cpu + on_cpu) {
            put(g, true, true);
            gpu += on_gpu;
            if (!cached) move += hm_move;
            first++;
        } else {
            put(c, false, false);
            cpu += on_cpu;
            end--;
        }
    }
}

static int make_hybrimoe(const stk_cost *cost, const stk_plan_queues *queues, uint32_t n_tok, stk_plan_item *items, uint32_t n,
                         double *done_ns) {
    stk_plan_times t;
    if (n_tok > 1) return route(cost, queues, n_tok, items, n, done_ns, always, false);
    STK_TRY(order(cost, queues, items, n));
    if (stk_cost_has_gpu(cost)) route_hybrimoe(items, n);
    stk_plan_price(cost, queues, items, n, &t);
    *done_ns = t.done_ns;
    return STK_OK;
}

static const stk_mode modes[] = {
    {"hybrid", "each expert where the queues and the measured costs say", STK_PLACE_LAYER, NULL, false, true, make_hybrid},
    {"static", "the last layers on the GPU, the others on the CPU, as llama.cpp's -ncmoe", STK_PLACE_LAYERS, NULL, false, false,
     make_static},
    {"lru-upload", "all on the GPU, what is missing is copied there, as llama.cpp's --moe-cache-mib", STK_PLACE_CACHE, "lru",
     true, false, make_upload},
    {"fiddler", "popular experts on the GPU, each of the others where it alone is quicker, as Fiddler", STK_PLACE_PROFILE, NULL,
     true, false, make_fiddler},
    {"kt", "as many experts of every layer on the GPU, the others on the CPU, as kTransformers", STK_PLACE_UNIFORM, NULL, true,
     false, make_kt},
    {"kt-profiled", "the same, by what other sequences used most", STK_PLACE_PROFILE, NULL, true, false, make_kt},
    {"hybrimoe", "HybriMoE's schedule and cache with the constants of its code", STK_PLACE_LAYER, "mrs", true, false,
     make_hybrimoe},
};

static const char *const names[STK_ARRAY_LEN(modes) + 1] = {"hybrid", "static",      "lru-upload", "fiddler",
                                                            "kt",     "kt-profiled", "hybrimoe",   NULL};

const stk_mode *stk_mode_find(const char *name) {
    for (size_t i = 0; i < STK_ARRAY_LEN(modes); i++)
        if (strcmp(modes[i].name, name) == 0) return &modes[i];
    return NULL;
}

const char *const *stk_mode_names(void) { return names; }

const char *stk_mode_list(uint32_t i, const char **what) {
    if (i >= STK_ARRAY_LEN(modes)) return NULL;
    if (what) *what = modes[i].what;
    return modes[i].name;
}
