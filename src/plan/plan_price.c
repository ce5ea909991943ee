/* plan_price: what a plan comes to, queue by queue. The drive first, which waits for nobody; then the CPU and the link, which
 * slow each other down; then the GPU, which waits for the link. */
#include <string.h>

#include "plan.h"

/* One of the two queues that share the memory: the item it is at, and what is left of that. */
typedef struct stream {
    stk_plan_item *at, *end;
    double free_ns; /* when it may take the next item */
    double from_ns; /* when it may work on this one */
    double left_ns; /* of this one, at full rate */
    double slow;    /* times longer while the other works */
    double busy_ns; /* at the rates that were */
} stream;

/* Sets done_ns of what is read, and of what is there, to when it may be computed or copied. */
static void price_reads(const stk_cost *cost, stk_plan_item *items, uint32_t n, stk_plan_times *t) {
    double *nvme = &t->free_at_ns[STK_QUEUE_NVME];
    for (uint32_t i = 0; i < n; i++) {
        stk_plan_item *it = &items[i];
        it->done_ns = it->tier == STK_TIER_COMING_VRAM ? it->arrive_ns : 0.0;
        if (it->tier > STK_TIER_COMING) continue;
        if (it->tier == STK_TIER_NVME) {
            double ns = stk_cost_read_ns(cost, it->read_bytes);
            *nvme += ns;
            t->busy_ns[STK_QUEUE_NVME] += ns;
        }
        it->done_ns = *nvme + cost->nvme_latency_ns;
    }
}

/* What an expert takes on the CPU, with the packing of what was read. */
static double cpu_ns(const stk_cost *cost, const stk_plan_item *it) {
    double ns = stk_cost_expert_ns(cost, it->payload_bytes, it->n_tok);
    return it->tier <= STK_TIER_COMING ? ns + stk_cost_arrive_ns(cost, it->payload_bytes) : ns;
}

/* Goes on to the queue's next item, if there is one. */
static void next_item(stream *s, const stk_cost *cost, bool link) {
    while (s->at < s->end && (link ? !stk_route_by_link(s->at->route) : stk_route_on_gpu(s->at->route))) s->at++;
    if (s->at == s->end) return;
    s->from_ns = STK_MAX(s->free_ns, s->at->done_ns);
    s->left_ns = link ? stk_cost_copy_ns(cost, s->at->payload_bytes, false) : cpu_ns(cost, s->at);
}

static void end_item(stream *s, const stk_cost *cost, bool link, double now) {
    s->at->done_ns = link ? now + cost->gpu.link_latency_ns : now;
    s->free_ns = now;
    s->at++;
    next_item(s, cost, link);
}

/* One queue alone, to its end. */
static void run_alone(stream *s, const stk_cost *cost, bool link, double now) {
    while (s->at < s->end) {
        now = STK_MAX(now, s->from_ns);
        s->busy_ns += s->left_ns;
        now += s->left_ns;
        end_item(s, cost, link, now);
    }
}

/* Both, for as long as both have something. */
static void run_both(stream *cpu, stream *link, const stk_cost *cost) {
    double now = STK_MIN(cpu->from_ns, link->from_ns);
    while (cpu->at < cpu->end && link->at < link->end) {
        bool cpu_works = cpu->from_ns <= now, link_works = link->from_ns <= now;
        double cpu_slow = link_works ? cpu->slow : 1.0, link_slow = cpu_works ? link->slow : 1.0;
        double cpu_until = cpu_works ? now + cpu->left_ns * cpu_slow : cpu->from_ns;
        double link_until = link_works ? now + link->left_ns * link_slow : link->from_ns;
        double until = STK_MIN(cpu_until, link_until), ns = until - now;
        if (cpu_works) {
            cpu->left_ns -= ns / cpu_slow;
            cpu->busy_ns += ns;
        }
        if (link_works) {
            link->left_ns -= ns / link_slow;
            link->busy_ns += ns;
        }
        now = until;
        if (cpu_works && cpu_until == until) end_item(cpu, cost, false, now);
        if (link_works && link_until == until) end_item(link, cost, true, now);
    }
    run_alone(cpu, cost, false, now);
    run_alone(link, cost, true, now);
}

/* Whatever has arrived is one launch; done_ns has when that was. */
static void price_gpu(const stk_cost *cost, stk_plan_item *items, uint32_t n, stk_plan_times *t) {
    double *gpu = &t->free_at_ns[STK_QUEUE_GPU];
    for (uint32_t i = 0; i < n;) {
        double begin = *gpu, ns = 0;
        uint32_t first = i;
        for (; i < n; i++) {
            const stk_plan_item *it = &items[i];
            if (!stk_route_on_gpu(it->route)) continue;
            if (ns == 0)
                begin = STK_MAX(begin, it->done_ns);
            else if (it->done_ns > begin)
                break;
            ns += stk_cost_gpu_expert_ns(cost, it->payload_bytes, it->n_tok);
        }
        if (ns == 0) return;
        ns += cost->gpu.launch_ns;
        t->busy_ns[STK_QUEUE_GPU] += ns;
        *gpu = begin + ns;
        t->done_ns = STK_MAX(t->done_ns, *gpu);
        for (uint32_t j = first; j < i; j++)
            if (stk_route_on_gpu(items[j].route)) items[j].done_ns = *gpu;
    }
}

void stk_plan_price(const stk_cost *cost, const stk_plan_queues *queues, stk_plan_item *items, uint32_t n,
                    stk_plan_times *times) {
    bool gpu = stk_cost_has_gpu(cost);
    *times = (stk_plan_times){0};
    memcpy(times->free_at_ns, queues->free_at_ns, sizeof times->free_at_ns);
    price_reads(cost, items, n, times);
    double cpu_free = times->free_at_ns[STK_QUEUE_CPU];
    stream cpu = {.at = items, .end = items + n, .free_ns = cpu_free, .slow = cost->gpu.cpu_slowdown};
    stream link = {.at = gpu ? items : items + n, .end = items + n, .free_ns = times->free_at_ns[STK_QUEUE_LINK]};
    if (gpu) link.slow = cost->gpu.link_bytes_per_ns / cost->gpu.link_bytes_per_ns_computing;
    next_item(&cpu, cost, false);
    next_item(&link, cost, true);
    bool cpu_used = cpu.at < cpu.end;
    if (cpu_used && link.at < link.end)
        run_both(&cpu, &link, cost);
    else
        run_alone(cpu_used ? &cpu : &link, cost, !cpu_used, 0);
    times->free_at_ns[STK_QUEUE_CPU] = cpu.free_ns;
    times->free_at_ns[STK_QUEUE_LINK] = link.free_ns;
    times->busy_ns[STK_QUEUE_CPU] = cpu.busy_ns;
    times->busy_ns[STK_QUEUE_LINK] = link.busy_ns;
    times->done_ns = cpu_used ? cpu.free_ns + cost->gpu.return_ns : 0;
    if (gpu) price_gpu(cost, items, n, times);
}
