/* plan: routes and order. */
#include "plan.h"

/* Beyond so many experts only those at the boundary between the sides are tried on the other. */
enum { TRY_ALL = 16, MAX_ROUNDS = 8 };
/* What a change must save to be made: less is the noise of a sum. */
static const double least_gain = 1e-9;

/* ---- Order --------------------------------------------------------------------------------------------------------------- */

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
        if (!before(&items[i], &items[i - 1])) continue;
        stk_plan_item it = items[i];
        uint32_t at = i;
        for (; at > 0 && before(&it, &items[at - 1]); at--) items[at] = items[at - 1];
        items[at] = it;
    }
}

/* ---- Routes -------------------------------------------------------------------------------------------------------------- */

static bool in_vram(const stk_plan_item *it) { return it->tier >= STK_TIER_COMING_VRAM; }
static bool may_choose(const stk_plan_item *it) {
    return it->tier <= STK_TIER_RAM || (it->tier == STK_TIER_VRAM && it->ram_copy);
}

static enum stk_route route_of(const stk_plan_item *it, bool gpu) {
    if (in_vram(it)) return gpu ? STK_ROUTE_GPU : STK_ROUTE_CPU;
    if (it->tier == STK_TIER_RAM) return !gpu ? STK_ROUTE_CPU : it->may_stay ? STK_ROUTE_FETCH : STK_ROUTE_BYPASS;
    return gpu ? STK_ROUTE_NVME_GPU : STK_ROUTE_NVME_CPU;
}

static void put(stk_plan_item *it, bool gpu) { it->route = route_of(it, gpu); }

/* When the queues free, by the routes chosen so far; a CPU and a link that both work are slow throughout. */
typedef struct greedy {
    const stk_cost *cost;
    double cpu, nvme, link, gpu;
    bool launched; /* what lies in VRAM shares one launch */
} greedy;

/* When an expert that is read will be in RAM. */
static double arrival(const stk_plan_item *it) { return it->tier <= STK_TIER_COMING ? it->done_ns : 0.0; }

static double cpu_done(const greedy *g, const stk_plan_item *it) {
    double ns = stk_cost_expert_ns(g->cost, it->payload_bytes, it->n_tok);
    if (it->tier <= STK_TIER_COMING) ns += stk_cost_arrive_ns(g->cost, it->payload_bytes);
    return STK_MAX(g->cpu, arrival(it)) + ns * (g->link > 0 ? g->cost->gpu.cpu_slowdown : 1.0);
}

static double copied(const greedy *g, const stk_plan_item *it) {
    return STK_MAX(g->link, arrival(it)) + stk_cost_copy_ns(g->cost, it->payload_bytes, g->cpu > 0);
}

static double gpu_done(const greedy *g, const stk_plan_item *it) {
    double ns = stk_cost_gpu_expert_ns(g->cost, it->payload_bytes, it->n_tok);
    if (it->tier == STK_TIER_VRAM) return g->gpu + ns + (g->launched ? 0 : g->cost->gpu.launch_ns);
    double there = it->tier == STK_TIER_COMING_VRAM ? it->arrive_ns : copied(g, it) + g->cost->gpu.link_latency_ns;
    return STK_MAX(g->gpu, there) + g->cost->gpu.launch_ns + ns;
}

static void take(greedy *g, stk_plan_item *it, bool gpu) {
    double done = gpu ? gpu_done(g, it) : cpu_done(g, it);
    put(it, gpu);
    if (!gpu) {
        g->cpu = done;
        return;
    }
    if (!in_vram(it)) g->link = copied(g, it);
    g->gpu = done;
    g->launched = g->launched || it->tier == STK_TIER_VRAM;
}

/* The experts of a wave, in order: in VRAM [0, vram), in RAM [vram, ram), to be read [ram, cold). */
typedef struct wave {
    stk_plan_item *items;
    uint32_t vram, ram, cold; /* ends, from which the CPU takes */
    uint32_t v, r, c;         /* beginnings, from which the GPU takes */
} wave;

static stk_plan_item *next_for_gpu(const wave *w) {
    return w->v < w->vram ? &w->items[w->v] : w->r < w->ram ? &w->items[w->r] : w->c < w->cold ? &w->items[w->c] : NULL;
}

static stk_plan_item *next_for_cpu(const wave *w) {
    if (w->r < w->ram) return &w->items[w->ram - 1];
    if (w->c < w->cold) return &w->items[w->cold - 1];
    return w->v < w->vram && may_choose(&w->items[w->vram - 1]) ? &w->items[w->vram - 1] : NULL;
}

static void choose_wave(greedy *g, stk_plan_item *items, uint32_t n) {
    wave w = {.items = items};
    for (uint32_t i = 0; i < n; i++) {
        if (in_vram(&items[i])) w.vram++;
        if (items[i].tier >= STK_TIER_RAM) w.ram++;
        if (items[i].tier == STK_TIER_NVME) g->nvme += stk_cost_read_ns(g->cost, items[i].read_bytes);
        if (items[i].tier <= STK_TIER_COMING) items[i].done_ns = g->nvme + g->cost->nvme_latency_ns;
    }
    w.r = w.vram;
    w.c = w.ram;
    w.cold = n;
    for (stk_plan_item *a; (a = next_for_gpu(&w)) != NULL;) {
        stk_plan_item *b = next_for_cpu(&w);
        if (!b || gpu_done(g, a) <= cpu_done(g, b) + g->cost->gpu.return_ns) {
            take(g, a, true);
            *(in_vram(a) ? &w.v : a->tier == STK_TIER_RAM ? &w.r : &w.c) += 1;
        } else {
            take(g, b, false);
            *(in_vram(b) ? &w.vram : b->tier == STK_TIER_RAM ? &w.ram : &w.cold) -= 1;
        }
    }
}

/* ---- Improvement --------------------------------------------------------------------------------------------------------- */

static double price(const stk_cost *cost, const stk_plan_queues *queues, stk_plan_item *items, uint32_t n) {
    stk_plan_times t;
    stk_plan_price(cost, queues, items, n, &t);
    return t.done_ns;
}

static bool alike(const stk_plan_item *a, const stk_plan_item *b) {
    return a->tier == b->tier && a->route == b->route && a->n_tok == b->n_tok && a->payload_bytes == b->payload_bytes &&
           a->wave == b->wave;
}

/* An expert that is worth trying on the other side: of several that are alike one will do, of many those at the boundary. */
static bool worth_trying(const stk_plan_item *items, uint32_t n, uint32_t i) {
    const stk_plan_item *it = &items[i];
    if (!may_choose(it)) return false;
    bool gpu = stk_route_on_gpu(it->route);
    if (gpu ? i + 1 < n && alike(it, &items[i + 1]) : i > 0 && alike(it, &items[i - 1])) return false;
    if (n <= TRY_ALL) return true;
    return gpu ? i + 1 == n || !stk_route_on_gpu(items[i + 1].route) : i == 0 || stk_route_on_gpu(items[i - 1].route);
}

/* Moves the one expert whose change of sides saves most. Returns what the plan comes to then. */
static double improve(const stk_cost *cost, const stk_plan_queues *queues, stk_plan_item *items, uint32_t n, double done) {
    double best = done * (1 - least_gain);
    uint32_t moved = n;
    for (uint32_t i = 0; i < n; i++) {
        if (!worth_trying(items, n, i)) continue;
        enum stk_route was = items[i].route;
        put(&items[i], !stk_route_on_gpu(was));
        double ns = price(cost, queues, items, n);
        if (ns < best) {
            best = ns;
            moved = i;
        }
        items[i].route = was;
    }
    if (moved == n) return done;
    put(&items[moved], !stk_route_on_gpu(items[moved].route));
    return best;
}

int stk_plan_make(const stk_cost *cost, const stk_plan_queues *queues, stk_plan_item *items, uint32_t n, double *done_ns) {
    bool gpu = stk_cost_has_gpu(cost);
    for (uint32_t i = 0; i < n; i++)
        if ((uint32_t)items[i].tier > (gpu ? STK_TIER_VRAM : STK_TIER_RAM))
            return stk_fail(STK_EINVAL, "plan: expert %u is in tier %d, which does not exist", items[i].index,
                            (int)items[i].tier);
    sort(items, n);
    greedy g = {cost,
                queues->free_at_ns[STK_QUEUE_CPU],
                queues->free_at_ns[STK_QUEUE_NVME],
                queues->free_at_ns[STK_QUEUE_LINK],
                queues->free_at_ns[STK_QUEUE_GPU],
                false};
    for (uint32_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && items[end].wave == items[i].wave; end++)
            if (!gpu) put(&items[end], false);
        if (gpu) choose_wave(&g, items + i, end - i);
    }
    double done = price(cost, queues, items, n);
    for (int round = 0; gpu && round < MAX_ROUNDS; round++) {
        double better = improve(cost, queues, items, n, done);
        if (better >= done) break;
        done = better;
    }
    if (gpu) done = price(cost, queues, items, n); /* the tries left their own done_ns */
    *done_ns = done;
    return STK_OK;
}
