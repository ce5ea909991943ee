/* tune_traces: parts, uses and distances against a plain count; slots of layers against every other division. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/tune/tune.h"
#include "tests/temp.h"

enum { N_LAYER = 2, N_EXPERT = 6, K = 2, N_STEP = 160, N_SEQ = 5 };

static char path[TEMP_PATH];
static int used[N_STEP][N_LAYER][K];

static uint32_t rng = 5;
static uint32_t below(uint32_t n) {
    rng = rng * 1664525 + 1013904223;
    return (rng >> 16) % n;
}

/* Layer 0 uses few experts, layer 1 all of them. */
static void make(void) {
    FILE *f = fopen(temp_file(path, "stoker-tune"), "w");
    fprintf(f, "# n_expert=%d\n# expert_bytes=4096\nstep,seq,pos,phase,layer,experts\n", N_EXPERT);
    for (int s = 0; s < N_STEP; s++)
        for (int l = 0; l < N_LAYER; l++) {
            used[s][l][0] = (int)below(l ? N_EXPERT : 3);
            used[s][l][1] = (used[s][l][0] + 1) % (l ? N_EXPERT : 3);
            fprintf(f, "%d,%d,%d,decode,%d,%d %d\n", s, s * N_SEQ / N_STEP, s % (N_STEP / N_SEQ), l, used[s][l][0],
                    used[s][l][1]);
        }
    fclose(f);
}
static void clean(void) { unlink(path); }
TestSuite(tune_traces, .init = make, .fini = clean);

static const char *paths[1];

static stk_tune_traces open_traces(void) {
    paths[0] = path;
    stk_tune_traces t = {.paths = paths, .n_path = 1};
    cr_assert_eq(stk_tune_traces_open(&t, NULL, NULL), 0, "%s", stk_error_detail());
    return t;
}

Test(tune_traces, counts) {
    stk_tune_traces t = open_traces();
    cr_assert(t.n_layer == N_LAYER && t.n_expert == N_EXPERT && t.k == K && t.n_step == N_STEP && t.n_token == N_STEP);
    cr_assert(t.n_sequence == N_SEQ && t.n_part == N_SEQ && t.sized && t.one_size);
    cr_assert(t.n_decode == N_STEP && t.n_ahead == 0 && t.recorded_bytes == 0);
    cr_assert_eq(t.all_bytes, N_LAYER * N_EXPERT * t.slot_bytes[0]);
    uint64_t uses[N_LAYER][N_EXPERT] = {{0}};
    for (int s = 0; s < N_STEP; s++) {
        cr_assert_eq(t.part[s], s * N_SEQ / N_STEP);
        for (int l = 0; l < N_LAYER; l++)
            for (int i = 0; i < K; i++) uses[l][used[s][l][i]]++;
    }
    cr_assert(memcmp(uses, t.uses, sizeof uses) == 0);
    stk_tune_traces_close(&t);
}

/* Distinct experts of all layers since the last use of this one, itself included; 0: there was none. */
static uint32_t distance(int step, int layer, int expert) {
    bool seen[N_LAYER][N_EXPERT] = {{false}};
    uint32_t n = 0;
    for (int s = step, l = layer - 1;; l--) {
        if (l < 0) {
            l = N_LAYER - 1;
            if (--s < 0) return 0;
        }
        bool here = false;
        for (int i = 0; i < K; i++) {
            if (l == layer && used[s][l][i] == expert) here = true;
        }
        /* Within an event those with higher numbers were used later. */
        for (int i = 0; i < K; i++) {
            int e = used[s][l][i];
            if (seen[l][e] || (here && e <= expert)) continue;
            seen[l][e] = true;
            n++;
        }
        if (here) return n + 1;
    }
}

Test(tune_traces, distances) {
    stk_tune_traces t = open_traces();
    uint64_t far[N_LAYER * N_EXPERT] = {0};
    for (int s = 0; s < N_STEP; s++)
        for (int l = 0; l < N_LAYER; l++)
            for (int i = 0; i < K; i++) {
                uint32_t d = distance(s, l, used[s][l][i]);
                if (d) far[d - 1]++;
            }
    cr_assert(memcmp(far, t.far, sizeof far) == 0);
    for (int l = 0; l < N_LAYER; l++) {
        uint64_t sum = 0;
        for (int p = 0; p < N_SEQ; p++)
            for (int e = 0; e < N_EXPERT; e++) sum += t.near[(p * N_LAYER + l) * N_EXPERT + e];
        cr_assert_eq(sum, (uint64_t)N_STEP * K - (l ? N_EXPERT : 3), "all but first uses");
    }
    stk_tune_traces_close(&t);
}

static uint64_t hits(const stk_tune_traces *t, const uint32_t *n_slot, int without) {
    uint64_t sum = 0;
    for (uint32_t p = 0; p < t->n_part; p++)
        for (uint32_t l = 0; l < t->n_layer; l++)
            for (uint32_t d = 0; (int)p != without && d < n_slot[l]; d++) sum += t->near[(p * t->n_layer + l) * t->n_expert + d];
    return sum;
}

Test(tune_traces, fits_no_worse_than_any_division) {
    stk_tune_traces t = open_traces();
    for (int without = STK_TUNE_ALL; without < N_SEQ; without++)
        for (uint32_t total = 2 * K; total <= N_LAYER * N_EXPERT; total++) {
            uint32_t n[N_LAYER];
            cr_assert_eq(stk_tune_traces_fit(&t, total * t.slot_bytes[0], 0, without, n), 0, "%s", stk_error_detail());
            cr_assert_leq(n[0] + n[1], total);
            for (uint32_t a = K; a <= N_EXPERT && a + K <= total; a++) {
                uint32_t other[N_LAYER] = {a, STK_MIN(total - a, (uint32_t)N_EXPERT)};
                /* Hull by hull it is best up to the last piece, which may not fit. */
                cr_assert_geq(hits(&t, n, without) * 100, hits(&t, other, without) * 95, "%u of %u: %u, %u", a, total, n[0],
                              n[1]);
            }
        }
    stk_tune_traces_close(&t);
}

Test(tune_traces, too_small_a_budget) {
    stk_tune_traces t = open_traces();
    uint32_t n[N_LAYER];
    cr_assert_eq(stk_tune_traces_fit(&t, 3 * t.slot_bytes[0], 0, STK_TUNE_ALL, n), STK_EBUDGET);
    cr_assert_eq(stk_tune_traces_fit(&t, 7 * t.slot_bytes[0], 2, STK_TUNE_ALL, n), STK_EBUDGET);
    cr_assert_eq(stk_tune_traces_fit(&t, 8 * t.slot_bytes[0], 2, STK_TUNE_ALL, n), 0);
    cr_assert(n[0] == 4 && n[1] == 4);
    stk_tune_traces_close(&t);
}
