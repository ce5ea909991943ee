/*
 * mode_replay: one modelled replay for tests/bench/modes.py. usage:
 *     mode_replay TRACE PROFILE|- COST MODE VRAM_SHARE LINK_GB_S|0 CPU_FACTOR [POLICY]
 *
 * LINK_GB_S: of the link, which keeps the share that it has while the CPU computes; CPU_FACTOR: times longer the CPU takes.
 * Prints by phase: tokens, ns of steps, ns of events, ns of the same events at their optimum (tests/plan_optimum.h), how many of
 * these are bounds, the greatest ratio of an event to an optimum that is exact, and the shares of lookups in VRAM, copied, on the
 * CPU. Then, for hybrid, the least ns that decode can take for whoever knows the future (tests/plan_floor.h).
 */
#include <stdio.h>

#include "src/plan/cost_file.h"
#include "src/replay/plan_replay.h"
#include "src/replay/tally.h"
#include "tests/plan_floor.h"
#include "tests/plan_optimum.h"

typedef struct sums {
    double optimum, events, most, ratios;
    unsigned long long n, n_bound;
} sums;

static struct {
    const stk_cost *cost;
    sums phases[2];
    pf_floor floor;
} state;

/* Steps of one token are decode's; that is all the traces have. */
static int on_event(void *user, const stk_event *event, const stk_plan_queues *queues, const stk_plan_item *items,
                    const stk_plan_times *times) {
    (void)user;
    bool exact;
    if (!pf_add(&state.floor, event, items[0].payload_bytes)) return stk_fail(STK_ENOMEM, "out of memory for the floor");
    double best = po_optimum(state.cost, queues, items, event->n_distinct, &exact);
    sums *s = &state.phases[event->n_tok == 1];
    if (best <= 0) return STK_OK;
    s->optimum += best;
    s->events += times->done_ns;
    s->n++;
    s->n_bound += !exact;
    s->ratios += times->done_ns / best;
    if (exact) s->most = STK_MAX(s->most, times->done_ns / best);
    return STK_OK;
}

static int fail(void) {
    fprintf(stderr, "mode_replay: %s\n", stk_error_detail());
    return 1;
}

static void print(const char *phase, const stk_replay_tiers *t, const sums *s) {
    double n = t->n_lookup ? (double)t->n_lookup : 1;
    printf("%s %llu %llu %llu %.0f %.0f %llu %llu %.4f %.4f %.4f %.4f %.4f\n", phase, (unsigned long long)t->n_token,
           (unsigned long long)t->step_ns, (unsigned long long)t->event_ns, s->events, s->optimum, s->n, s->n_bound,
           s->n ? s->ratios / (double)s->n : 1.0, s->most, (double)t->n_vram / n, (double)(t->n_fetch + t->n_bypass) / n,
           (double)t->n_cpu / n);
}

static void print_floor(const stk_replay_tiers *t, uint32_t n_slot) {
    double ns = pf_floor_ns(&state.floor, n_slot, (double)t->dense_ns);
    printf("floor %llu %.0f %.4f\n", (unsigned long long)t->n_token, ns,
           (double)pf_misses(&state.floor, n_slot) / (double)STK_MAX(t->n_lookup, 1u));
}

static void adjust(stk_cost *cost, double link, double cpu) {
    if (link > 0) {
        double share = cost->gpu.link_bytes_per_ns_computing / cost->gpu.link_bytes_per_ns;
        cost->gpu.cpu_slowdown = 1 + (cost->gpu.cpu_slowdown - 1) * link / cost->gpu.link_bytes_per_ns; /* it takes less memory */
        cost->gpu.link_bytes_per_ns = link;
        cost->gpu.link_bytes_per_ns_computing = link * share;
    }
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) cost->expert_ns_per_byte[i] *= cpu;
}

int main(int argc, char **argv) {
    static stk_cost_file file;
    stk_source *source, *other;
    stk_cost cost;
    stk_plan_replay_result got;
    if (argc < 8) return fprintf(stderr, "mode_replay: see its source\n"), 2;
    const stk_mode *mode = stk_mode_find(argv[4]);
    const char *trace = argv[1], *profile = argv[2];
    if (!mode) return fprintf(stderr, "mode_replay: no mode %s\n", argv[4]), 2;
    if (stk_cost_file_load(argv[3], &file) < 0 || stk_cost_file_table_gpu(&file, NULL, &cost) < 0) return fail();
    adjust(&cost, atof(argv[6]), atof(argv[7]));
    if (stk_source_open(&source, &trace, 1, NULL) < 0) return fail();
    const stk_trace_header *h = stk_source_header(source);
    uint64_t all = 0, least = UINT64_MAX, *uses = NULL;
    for (uint32_t l = 0; l < h->n_layer; l++) {
        uint64_t bytes = h->classes[h->layer_class[l]].slot_bytes;
        all += bytes * h->n_expert;
        least = STK_MIN(least, bytes);
    }
    if (strcmp(profile, "-") != 0) {
        uses = calloc((size_t)h->n_layer * h->n_expert, sizeof *uses);
        if (!uses || stk_source_open(&other, &profile, 1, NULL) < 0 || stk_plan_profile(other, uses) < 0) return fail();
        stk_source_close(&other);
    }
    const uint64_t vram = (uint64_t)((double)all * atof(argv[5]));
    state.cost = state.floor.cost = &cost;
    state.floor.n_expert = h->n_expert;
    state.floor.n_layer = h->n_layer;
    bool hybrid = strcmp(mode->name, "hybrid") == 0;
    int rc = stk_plan_replay(
        &(stk_plan_replay_config){
            .source = source,
            .cost = &cost,
            .tiers = {.header = h, .mode = mode, .vram_bytes = vram, .policy = argc > 8 ? argv[8] : NULL, .uses = uses},
            .on_event = hybrid ? on_event : NULL},
        &got);
    if (rc < 0) return fail();
    print("prefill", &got.prefill, &state.phases[0]);
    print("decode", &got.decode, &state.phases[1]);
    if (hybrid) print_floor(&got.decode, (uint32_t)(vram / least));
    pf_close(&state.floor);
    stk_source_close(&source);
    free(uses);
    return 0;
}
