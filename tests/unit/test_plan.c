/* plan: the order that the queues are given, routes, prices by hand, and random events against the optimum; the rules of modes.
 */
#include <criterion/criterion.h>

#include "src/plan/plan.h"
#include "tests/plan_optimum.h"

enum { MB = 1000000 };

static stk_cost cost_of(double expert, double arrive, double bytes_per_ns) {
    stk_cost c;
    stk_cost_default(&c);
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) c.expert_ns_per_byte[i] = expert;
    c.arrive_ns_per_byte = arrive;
    c.nvme_bytes_per_ns = bytes_per_ns;
    c.nvme_latency_ns = 10;
    return c;
}

Test(plan, resident_first_then_heavy_first) {
    stk_cost c = cost_of(1, 0.5, 2);
    stk_plan_queues q = {{0}};
    stk_plan_item items[] = {
        {.index = 0, .n_tok = 1, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_NVME},
        {.index = 1, .n_tok = 5, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_NVME},
        {.index = 2, .n_tok = 1, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_RAM},
        {.index = 3, .n_tok = 2, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_COMING},
        {.index = 4, .n_tok = 9, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_NVME, .wave = 1},
        {.index = 5, .n_tok = 1, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_RAM},
    };
    double done;
    cr_assert_eq(stk_plan_make(&c, &q, items, 6, &done), 0);
    const uint32_t order[] = {2, 5, 3, 1, 0, 4};
    for (int i = 0; i < 6; i++) cr_assert_eq(items[i].index, order[i], "place %d", i);
    for (int i = 0; i < 6; i++) cr_assert_eq(items[i].route, items[i].tier == STK_TIER_RAM ? STK_ROUTE_CPU : STK_ROUTE_NVME_CPU);
}

Test(plan, predicts_when_reads_and_computation_overlap) {
    stk_cost c = cost_of(1, 0.5, 2);
    stk_plan_queues q = {{0, 100}};
    stk_plan_item items[] = {
        {.index = 0, .n_tok = 1, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_RAM},
        {.index = 1, .n_tok = 1, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_NVME},
        {.index = 2, .n_tok = 1, .payload_bytes = 100, .read_bytes = 100, .tier = STK_TIER_NVME},
    };
    double done;
    cr_assert_eq(stk_plan_make(&c, &q, items, 3, &done), 0);
    /* CPU: 0..100; first read ends at 150 + 10, computed by 160 + 150 = 310; second read long there: 310 + 150. */
    cr_assert_float_eq(done, 460, 1e-9);
}

Test(plan, an_unknown_tier_is_an_error) {
    stk_cost c = cost_of(1, 1, 1);
    stk_plan_queues q = {{0}};
    stk_plan_item item = {.tier = (enum stk_tier)9};
    double done;
    cr_assert_eq(stk_plan_make(&c, &q, &item, 1, &done), STK_EINVAL);
}

/* ---- With a GPU ---------------------------------------------------------------------------------------------------------- */

/* An expert of 1 MB: 100 us on the CPU, 10 us on the GPU (and 5 us a launch), 50 us over the link, 200 us to read. */
static stk_cost gpu_cost(void) {
    stk_cost c = cost_of(0.1, 0.01, 5);
    c.nvme_latency_ns = 1e5;
    for (int i = 0; i < STK_COST_POINTS; i++) c.gpu.expert_ns_per_byte[i] = 0.01;
    c.gpu.launch_ns = 5000;
    c.gpu.return_ns = 3000;
    c.gpu.link_bytes_per_ns = c.gpu.link_bytes_per_ns_computing = 20;
    c.gpu.link_latency_ns = 2000;
    c.gpu.cpu_slowdown = 1;
    return c;
}

static stk_plan_item expert(uint32_t index, uint32_t n_tok, enum stk_tier tier) {
    return (stk_plan_item){.index = index, .n_tok = n_tok, .payload_bytes = MB, .read_bytes = MB, .tier = tier, .may_stay = true};
}

Test(plan, a_price_is_the_sum_done_by_hand) {
    stk_cost c = gpu_cost();
    stk_plan_queues q = {{0}};
    stk_plan_times t;
    stk_plan_item items[] = {expert(0, 1, STK_TIER_VRAM), expert(1, 1, STK_TIER_VRAM), expert(2, 1, STK_TIER_RAM),
                             expert(3, 1, STK_TIER_RAM), expert(4, 1, STK_TIER_NVME)};
    items[0].route = items[1].route = STK_ROUTE_GPU;
    items[2].route = STK_ROUTE_FETCH;
    items[3].route = STK_ROUTE_CPU;
    items[4].route = STK_ROUTE_NVME_GPU;
    stk_plan_price(&c, &q, items, 5, &t);
    /* The GPU: two in one launch to 25 us; the fetched one is there at 52 and done at 67; what is read is there at 300 (200 us
     * and the drive's latency of 100), copied by 352, done by 367. The CPU: to 100, and 3 us for the way back. */
    cr_assert_float_eq(items[1].done_ns, 25e3, 1);
    cr_assert_float_eq(items[2].done_ns, 67e3, 1);
    cr_assert_float_eq(items[3].done_ns, 100e3, 1);
    cr_assert_float_eq(items[4].done_ns, 367e3, 1);
    cr_assert_float_eq(t.done_ns, 367e3, 1);
    cr_assert_float_eq(t.busy_ns[STK_QUEUE_LINK], 100e3, 1);
    cr_assert_float_eq(t.busy_ns[STK_QUEUE_GPU], 55e3, 1);
    cr_assert_float_eq(t.free_at_ns[STK_QUEUE_CPU], 100e3, 1);
    cr_assert_float_eq(t.free_at_ns[STK_QUEUE_NVME], 200e3, 1);
}

Test(plan, the_cpu_and_the_link_slow_each_other_down) {
    stk_cost c = gpu_cost();
    stk_plan_queues q = {{0}};
    stk_plan_times t;
    c.gpu.link_bytes_per_ns_computing = 10; /* half */
    c.gpu.cpu_slowdown = 2;
    stk_plan_item items[] = {expert(0, 1, STK_TIER_RAM), expert(1, 1, STK_TIER_RAM)};
    items[0].route = STK_ROUTE_FETCH;
    items[1].route = STK_ROUTE_CPU;
    stk_plan_price(&c, &q, items, 2, &t);
    /* Together to 100 us: the copy is over, half of the CPU's work done; the rest alone. */
    cr_assert_float_eq(items[0].done_ns, (100 + 2 + 15) * 1e3, 1);
    cr_assert_float_eq(items[1].done_ns, 150e3, 1);
}

Test(plan, routes_follow_prices) {
    stk_cost c = gpu_cost();
    stk_plan_queues q = {{0}};
    double done;
    /* Three in RAM: the CPU takes one, the link two. */
    stk_plan_item items[] = {expert(0, 1, STK_TIER_RAM), expert(1, 1, STK_TIER_RAM), expert(2, 1, STK_TIER_RAM)};
    cr_assert_eq(stk_plan_make(&c, &q, items, 3, &done), 0);
    cr_assert_float_eq(done, 117e3, 1);
    uint32_t n_fetch = 0;
    for (int i = 0; i < 3; i++) n_fetch += items[i].route == STK_ROUTE_FETCH;
    cr_assert_eq(n_fetch, 2);
    /* A link that is busy carries none; where nothing may stay, a fetch is a bypass. */
    q.free_at_ns[STK_QUEUE_LINK] = 1e6;
    cr_assert_eq(stk_plan_make(&c, &q, items, 3, &done), 0);
    cr_assert_float_eq(done, 303e3, 1);
    q.free_at_ns[STK_QUEUE_LINK] = 0;
    q.free_at_ns[STK_QUEUE_CPU] = 1e6;
    for (int i = 0; i < 3; i++) items[i].may_stay = false;
    cr_assert_eq(stk_plan_make(&c, &q, items, 3, &done), 0);
    for (int i = 0; i < 3; i++) cr_assert_eq(items[i].route, STK_ROUTE_BYPASS);
    /* The CPU helps with what lies in VRAM only where RAM has a copy. */
    stk_plan_item vram[4];
    q.free_at_ns[STK_QUEUE_CPU] = 0;
    q.free_at_ns[STK_QUEUE_GPU] = 1e6;
    for (uint32_t i = 0; i < 4; i++) vram[i] = expert(i, 1, STK_TIER_VRAM);
    cr_assert_eq(stk_plan_make(&c, &q, vram, 4, &done), 0);
    for (uint32_t i = 0; i < 4; i++) cr_assert_eq(vram[i].route, STK_ROUTE_GPU);
    for (uint32_t i = 0; i < 4; i++) vram[i].ram_copy = true;
    cr_assert_eq(stk_plan_make(&c, &q, vram, 4, &done), 0);
    for (uint32_t i = 0; i < 4; i++) cr_assert_eq(vram[i].route, STK_ROUTE_CPU);
    /* Without a GPU there is no VRAM. */
    stk_cost plain = cost_of(1, 1, 1);
    cr_assert_eq(stk_plan_make(&plain, &q, vram, 4, &done), STK_EINVAL);
}

static uint64_t seed = 1;
static uint32_t draw(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

/* Random events on random machines against every assignment. */
Test(plan, random_events_against_the_optimum) {
    double sum = 0, most = 0;
    enum { N = 3000 };
    for (int round = 0; round < N; round++) {
        stk_cost c = gpu_cost();
        double cpu = 0.01 + 0.01 * draw(20), gpu = 0.001 + 0.001 * draw(10);
        for (int i = 0; i < STK_COST_POINTS; i++) {
            c.expert_ns_per_byte[i] = cpu * (1 + 0.2 * (1 << i));
            c.gpu.expert_ns_per_byte[i] = gpu * (1 + 0.02 * (1 << i));
        }
        c.gpu.link_bytes_per_ns = 2 + draw(30);
        c.gpu.link_bytes_per_ns_computing = c.gpu.link_bytes_per_ns / (1 + 0.1 * draw(5));
        c.gpu.cpu_slowdown = 1 + 0.1 * draw(5);
        stk_plan_queues q = {{draw(3) ? 0 : draw(200000), draw(3) ? 0 : draw(200000), draw(3) ? 0 : draw(200000), 0}};
        uint32_t n = 1 + draw(8), most_tok = draw(3) ? 1 : 16, lowest = draw(4) ? STK_TIER_RAM : STK_TIER_NVME;
        bool copies = draw(2), exact;
        stk_plan_item items[8];
        for (uint32_t i = 0; i < n; i++) {
            enum stk_tier tiers[] = {STK_TIER_VRAM, STK_TIER_RAM, (enum stk_tier)lowest};
            items[i] = expert(i, 1 + draw(most_tok), tiers[draw(3)]);
            items[i].ram_copy = copies && items[i].tier == STK_TIER_VRAM;
        }
        double done, best;
        cr_assert_eq(stk_plan_make(&c, &q, items, n, &done), 0);
        best = po_optimum(&c, &q, items, n, &exact);
        cr_assert(exact);
        cr_assert_geq(done, best * (1 - 1e-9), "round %d: better than all", round);
        sum += done / best;
        most = STK_MAX(most, done / best);
    }
    cr_assert_leq(sum / N, 1.03, "mean %.4f of the optimum", sum / N);
    cr_assert_leq(most, 1.15, "at most %.4f of the optimum", most);
}

/* ---- Modes --------------------------------------------------------------------------------------------------------------- */

static uint32_t n_on_gpu(const char *mode, uint32_t n_tok, stk_plan_item *items, uint32_t n) {
    stk_cost c = gpu_cost();
    stk_plan_queues q = {{0}};
    double done;
    uint32_t on_gpu = 0;
    const stk_mode *m = stk_mode_find(mode);
    cr_assert_not_null(m, "%s", mode);
    cr_assert_eq(m->make(&c, &q, n_tok, items, n, &done), 0);
    for (uint32_t i = 0; i < n; i++) on_gpu += stk_route_on_gpu(items[i].route);
    return on_gpu;
}

Test(plan, modes_do_as_their_sources) {
    stk_plan_item six[6];
    /* Cached and missing, of six: how many of them the GPU computes, cached ones included. From HybriMoE's own functions. */
    const uint32_t hybrimoe[][2] = {{0, 4}, {1, 5}, {2, 5}, {3, 5}, {4, 5}, {6, 5}};
    for (size_t row = 0; row < STK_ARRAY_LEN(hybrimoe); row++) {
        for (uint32_t i = 0; i < 6; i++) {
            six[i] = expert(i, 1, i < hybrimoe[row][0] ? STK_TIER_VRAM : STK_TIER_RAM);
            six[i].ram_copy = i < hybrimoe[row][0];
        }
        cr_assert_eq(n_on_gpu("hybrimoe", 1, six, 6), hybrimoe[row][1], "%u cached", hybrimoe[row][0]);
    }
    const struct {
        const char *mode;
        uint32_t decode, prompt;
    } rules[] = {{"static", 2, 6}, {"lru-upload", 6, 6}, {"kt", 2, 2}, {"kt-profiled", 2, 2}};
    for (size_t r = 0; r < STK_ARRAY_LEN(rules); r++)
        for (int prompt = 0; prompt < 2; prompt++) {
            for (uint32_t i = 0; i < 6; i++) six[i] = expert(i, prompt ? 8 : 1, i < 2 ? STK_TIER_VRAM : STK_TIER_RAM);
            cr_assert_eq(n_on_gpu(rules[r].mode, prompt ? 64 : 1, six, 6), prompt ? rules[r].prompt : rules[r].decode, "%s",
                         rules[r].mode);
        }
    for (uint32_t i = 0; i < 6; i++) six[i] = expert(i, 1, STK_TIER_RAM);
    cr_assert_eq(n_on_gpu("fiddler", 1, six, 6), 6, "67 us each against 100");
    cr_assert_null(stk_mode_find("best"));
    const char *what;
    for (uint32_t i = 0; stk_mode_names()[i]; i++) {
        cr_assert_str_eq(stk_mode_list(i, &what), stk_mode_names()[i]);
        cr_assert_eq(stk_mode_find(stk_mode_names()[i])->name, stk_mode_list(i, NULL));
    }
    cr_assert_null(stk_mode_list(7, NULL));
}
