/*
 * bench_plan: what planning one event costs: nanoseconds of CPU time, CSV on stdout; the median of 9 runs of 2,000 events after
 * one to warm up. Decode: 8 experts of one token. Prompts: so many experts of 1 to 16 tokens. Half lie in VRAM, the rest in RAM,
 * or a quarter on the drive.
 */
#include "bench.h"
#include "src/plan/cost_file.h"
#include "src/plan/plan.h"

enum { N_EVENT = 2000, N_RUN = 9, MOST = 128 };

static stk_plan_item events[N_EVENT][MOST], work[N_EVENT][MOST];
static stk_cost cost;

static uint32_t draw(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

static void fill(uint32_t n, uint32_t most_tok, bool drive) {
    uint64_t state = 1;
    for (uint32_t e = 0; e < N_EVENT; e++)
        for (uint32_t i = 0; i < n; i++) {
            uint32_t u = draw(&state, 4);
            events[e][i] = (stk_plan_item){.index = i,
                                           .n_tok = 1 + draw(&state, most_tok),
                                           .payload_bytes = 3 << 20,
                                           .read_bytes = 3 << 20,
                                           .tier = u < 2             ? STK_TIER_VRAM
                                                   : u == 2 && drive ? STK_TIER_NVME
                                                                     : STK_TIER_RAM,
                                           .may_stay = true};
        }
}

static uint64_t run(uint32_t n) {
    const stk_plan_queues queues = {{0}};
    double done;
    memcpy(work, events, sizeof work);
    uint64_t start = bench_cpu_ns();
    for (uint32_t e = 0; e < N_EVENT; e++)
        if (stk_plan_make(&cost, &queues, work[e], n, &done) < 0) exit(1);
    return (bench_cpu_ns() - start) / N_EVENT;
}

int main(void) {
    static stk_cost_file file;
    const struct {
        const char *what;
        uint32_t n, most_tok;
        bool drive;
    } shapes[] = {{"decode", 8, 1, false},
                  {"decode over a drive", 8, 1, true},
                  {"prompt", 8, 16, false},
                  {"prompt", 64, 16, false},
                  {"prompt", 128, 16, false}};
    if (stk_cost_file_load("4090", &file) < 0 || stk_cost_file_table_gpu(&file, NULL, &cost) < 0) return 1;
    printf("machine,commit,event,experts,ns\n");
    for (size_t s = 0; s < STK_ARRAY_LEN(shapes); s++) {
        uint64_t samples[N_RUN];
        fill(shapes[s].n, shapes[s].most_tok, shapes[s].drive);
        (void)run(shapes[s].n);
        for (int i = 0; i < N_RUN; i++) samples[i] = run(shapes[s].n);
        printf("%s,%s,%s,%u,%llu\n", bench_machine(), STK_COMMIT, shapes[s].what, shapes[s].n,
               (unsigned long long)bench_median(samples, N_RUN));
    }
    return 0;
}
