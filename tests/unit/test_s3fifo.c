/* s3fifo: against arrays for its three queues. */
#include "tests/policy_model.h"

enum { SMALL, MAIN, MAX_GHOST = 4096 };
static uint32_t queue[2][PM_KEY + 1], n_in[2], ghost[MAX_GHOST], n_ghost; /* oldest first */
static uint32_t uses[PM_KEY], event_keys[PM_EXPERT], n_event;
static double small_share, ghost_share;

static void pm_reset(void) {
    n_in[0] = n_in[1] = n_ghost = n_event = 0;
    memset(uses, 0, sizeof uses);
}

static int queue_of(uint32_t key) {
    for (int q = 0; q < 2; q++)
        for (uint32_t i = 0; i < n_in[q]; i++)
            if (queue[q][i] == key) return q;
    return -1;
}

static void take_out(uint32_t key) {
    for (int q = 0; q < 2; q++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_in[q]; i++)
            if (queue[q][i] != key) queue[q][n++] = queue[q][i];
        n_in[q] = n;
    }
}

static void pm_touch(const stk_event *event, const uint32_t *keys, uint32_t n) {
    (void)event;
    for (uint32_t i = 0; i < n; i++) {
        event_keys[i] = keys[i];
        if (queue_of(keys[i]) >= 0) uses[keys[i]] = STK_MIN(uses[keys[i]] + 1, 3u);
    }
    n_event = n;
}

/* At its place among the experts of the same event, as in every policy of lists. */
static void put_in(int q, uint32_t key, bool demand) {
    uint32_t at = n_in[q], rank = n_event;
    for (uint32_t i = 0; i < n_event; i++)
        if (event_keys[i] == key) rank = i;
    for (uint32_t better = rank + 1; better < n_event && at == n_in[q] && demand; better++)
        for (uint32_t i = 0; i < n_in[q]; i++)
            if (queue[q][i] == event_keys[better]) at = i;
    memmove(&queue[q][at + 1], &queue[q][at], (n_in[q] - at) * sizeof queue[q][0]);
    queue[q][at] = key;
    n_in[q]++;
}

static void pm_inserted(uint32_t key, enum stk_why why) {
    uint32_t first = n_ghost - STK_MIN(n_ghost, (uint32_t)(ghost_share * pm_n_slot));
    int q = SMALL;
    for (uint32_t i = first; i < n_ghost; i++)
        if (ghost[i] == key) q = MAIN;
    for (uint32_t i = 0; i < n_ghost; i++)
        if (ghost[i] == key) ghost[i] = PM_KEY; /* its place stays */
    put_in(q, key, why == STK_WHY_DEMAND);
    uses[key] = why != STK_WHY_DEMAND;
}

static void pm_evicted(uint32_t key) {
    cr_assert_lt(n_ghost, MAX_GHOST);
    if (queue_of(key) == SMALL) ghost[n_ghost++] = key;
    take_out(key);
}

/* One pass over the small queue as it stands; who was used twice moves on. */
static bool small_victim(uint32_t *victim) {
    uint32_t copy[PM_KEY], n = n_in[SMALL];
    memcpy(copy, queue[SMALL], sizeof copy);
    for (uint32_t i = 0; i < n; i++) {
        if (!pm_may_leave(copy[i])) continue;
        *victim = copy[i];
        if (uses[copy[i]] < 2) return true;
        uses[copy[i]] = 0;
        take_out(copy[i]);
        queue[MAIN][n_in[MAIN]++] = copy[i];
    }
    return false;
}

static bool main_victim(uint32_t *victim) {
    for (int round = 0; round < 4; round++) {
        uint32_t copy[PM_KEY], n = n_in[MAIN];
        memcpy(copy, queue[MAIN], sizeof copy);
        for (uint32_t i = 0; i < n; i++) {
            if (!pm_may_leave(copy[i])) continue;
            *victim = copy[i];
            if (uses[copy[i]]-- == 0) {
                uses[copy[i]] = 0;
                return true;
            }
            take_out(copy[i]);
            queue[MAIN][n_in[MAIN]++] = copy[i];
        }
    }
    return false;
}

static void pm_check_victim(uint32_t victim) {
    uint32_t want = PM_KEY, least = STK_MAX((uint32_t)(small_share * pm_n_slot), 1u);
    bool found = n_in[SMALL] >= least && small_victim(&want);
    if (!found) found = main_victim(&want);
    if (!found) found = small_victim(&want) || main_victim(&want);
    cr_assert(found && want == victim, "expert %u left, %u should", victim, want);
}

Test(s3fifo, as_three_arrays_say) {
    static const struct {
        const char *params;
        double small, ghost;
    } cases[] = {{NULL, 0.1, 0.9}, {"small=0.5", 0.5, 0.9}, {"small=0,ghost=0", 0, 0}, {"ghost=3,small=1", 1, 3}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        small_share = cases[i].small;
        ghost_share = cases[i].ghost;
        for (uint64_t seed = 1; seed <= 20; seed++) pm_run(&stk_policy_s3fifo, cases[i].params, seed);
    }
}
