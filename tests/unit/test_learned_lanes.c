/* learned_lanes: every table of this CPU against plain loops, bit for bit, with values as the policy has them and at their
 * limits. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "cache/learned_lanes.h"

enum { N_MAX = 320, WINDOW = STK_LANES_WINDOW, N_WORD = WINDOW / 64, N_ROUND = 40 };

static uint64_t rng = 1;

static uint32_t next_random(uint32_t below) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % below);
}

static float next_float(void) { return (float)next_random(1 << 20) / 65536.0f - 8.0f; }

static void fill(float *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) x[i] = next_float();
}

static void fill_bits(uint64_t *x, uint32_t n, uint32_t one_in) {
    for (uint32_t i = 0; i < n; i++) {
        x[i] = 0;
        for (uint32_t b = 0; b < 64; b++) x[i] |= (uint64_t)(next_random(one_in) == 0) << b;
    }
}

static bool has_bit(const uint64_t *x, uint32_t i) { return x[i / 64] >> (i % 64) & 1; }

static const stk_lanes *tables[8];

static uint32_t find_tables(void) {
    uint32_t n = 0;
    while ((tables[n] = stk_lanes_table(n))) n++;
    cr_assert(n >= 1 && stk_lanes_best() == tables[n - 1]);
    cr_log_info("widest: %s", tables[n - 1]->name);
    return n;
}

Test(learned_lanes, finds_the_first_of_the_lowest) {
    float x[N_MAX], bar[N_MAX];
    for (uint32_t t = 0, n_table = find_tables(); t < n_table; t++)
        for (uint32_t round = 0; round < N_ROUND; round++) {
            uint32_t n = 64 * (1 + next_random(N_MAX / 64)), want = 0;
            for (uint32_t i = 0; i < n; i++) {
                x[i] = (float)next_random(30) - 15; /* equal ones */
                bar[i] = round == 0 || next_random(3) == 0 ? INFINITY : 0;
                if (x[i] + bar[i] < x[want] + bar[want]) want = i;
            }
            float least;
            cr_assert_eq(tables[t]->lowest(x, bar, n, &least), want, "%s", tables[t]->name);
            cr_assert(least == x[want] + bar[want], "%s", tables[t]->name);
        }
}

Test(learned_lanes, fades_weighs_and_multiplies_to_the_same_bits) {
    enum { F = STK_LANES_FADING, G = STK_LANES_LAGS };
    static float rows[F * N_MAX], got_rows[F * N_MAX], want[N_MAX], got[N_MAX], add[F], w[F + G];
    static uint8_t votes[G * N_MAX];
    static uint64_t set[N_MAX / 64];
    for (uint32_t t = 0, n_table = find_tables(); t < n_table; t++)
        for (uint32_t round = 0; round < N_ROUND; round++) {
            uint32_t n = 64 * (1 + next_random(N_MAX / 64));
            fill(rows, F * n);
            fill(w, F + G);
            fill_bits(set, n / 64, 10);
            for (uint32_t f = 0; f < F; f++) add[f] = f % 3 == 2 ? 0 : fabsf(next_float());
            for (uint32_t i = 0; i < G * n; i++) votes[i] = (uint8_t)next_random(256);
            memcpy(got_rows, rows, sizeof rows);
            tables[t]->fade(got_rows, set, add, n);
            for (uint32_t f = 0; f < F; f++)
                for (uint32_t e = 0; e < n; e++)
                    if (add[f] > 0 && has_bit(set, e)) rows[f * n + e] += add[f];
            cr_assert_arr_eq(got_rows, rows, sizeof *rows * F * n, "%s", tables[t]->name);
            for (uint32_t e = 0; e < n; e++) {
                want[e] = w[0] * rows[e];
                for (uint32_t f = 1; f < F; f++) want[e] += w[f] * rows[f * n + e];
                for (uint32_t g = 0; g < G; g++) want[e] += w[F + g] * (float)votes[g * n + e];
            }
            tables[t]->weigh(got, rows, votes, w, n);
            cr_assert_arr_eq(got, want, sizeof *got * n, "%s", tables[t]->name);
            float sums[16] = {0}, dot = tables[t]->dot(rows, rows + n, n);
            for (uint32_t e = 0; e < n; e++) sums[e % 16] += rows[e] * rows[n + e];
            for (uint32_t half = 8; half; half /= 2)
                for (uint32_t i = 0; i < half; i++) sums[i] += sums[i + half];
            cr_assert_eq(memcmp(&dot, sums, sizeof dot), 0, "%s: %g, %g", tables[t]->name, (double)dot, (double)sums[0]);
        }
}

Test(learned_lanes, resembles_and_finds_the_likest) {
    static uint64_t rows[15][N_WORD];
    static uint8_t like[WINDOW], want[WINDOW];
    static uint16_t list[WINDOW];
    for (uint32_t t = 0, n_table = find_tables(); t < n_table; t++) {
        memset(like, 0, sizeof like);
        memset(want, 0, sizeof want);
        for (uint32_t round = 0; round < N_ROUND; round++) {
            const uint64_t *used[15];
            uint32_t n_used = round < 30 ? 15 : next_random(16), n_max = 1 + next_random(30), n_more = 0, n_listed = 0;
            uint8_t least;
            for (uint32_t i = 0; i < n_used; i++) {
                fill_bits(rows[i], N_WORD, round < 30 ? 2 : 9);
                if (round < 20) rows[i][0] |= 0xff; /* all shared, again and again: the most there can be */
                used[i] = rows[i];
            }
            tables[t]->resemble(like, used, n_used);
            for (uint32_t q = 0; q < WINDOW; q++) {
                want[q] = (uint8_t)(want[q] - want[q] / 4);
                for (uint32_t i = 0; i < n_used; i++) want[q] = (uint8_t)(want[q] + 4 * has_bit(rows[i], q));
            }
            cr_assert_arr_eq(like, want, sizeof like, "%s", tables[t]->name);
            if (round == 19) cr_assert_eq(like[0], 240);
            uint32_t n = tables[t]->likest(like, n_max, list, &least);
            cr_assert(n >= n_max && least > 0, "%s", tables[t]->name);
            for (uint32_t q = 0; q < WINDOW; q++) {
                if (like[q] < least) continue;
                n_more += like[q] > least;
                cr_assert(n_listed < n && list[n_listed] == q, "%s", tables[t]->name);
                n_listed++;
            }
            cr_assert_eq(n_listed, n);
            cr_assert_leq(n_more, 16 * n_max, "%s: not about as high as can be", tables[t]->name);
        }
        memset(like, 0, sizeof like);
        like[77] = 3;
        uint8_t least;
        cr_assert(tables[t]->likest(like, 5, list, &least) == 1 && list[0] == 77 && least == 1, "%s", tables[t]->name);
    }
}

Test(learned_lanes, counts_shared_bits_and_votes) {
    enum { N = 20, W_MAX = 4, A = STK_LANES_AHEAD };
    static const uint32_t lag_of[A] = {0, 1, 2, 2, 3, 3, 3, 3};
    static uint64_t sets[N][(A + 1) * W_MAX];
    static uint8_t votes[STK_LANES_LAGS * W_MAX * 64], want[STK_LANES_LAGS * W_MAX * 64], of[N], shared[N];
    for (uint32_t t = 0, n_table = find_tables(); t < n_table; t++)
        for (uint32_t round = 0; round < N_ROUND; round++) {
            uint32_t n_word = 1 + next_random(W_MAX), n = next_random(N + 1), left = STK_LANES_VOTES;
            const uint64_t *rows[N] = {NULL};
            memset(want, 0, sizeof want);
            for (uint32_t i = 0; i < n; i++) {
                fill_bits(sets[i], (A + 1) * n_word, round == 0 ? 1 : 8);
                of[i] = (uint8_t)next_random(i + 1 < n ? left + 1 : 1);
                left -= of[i];
                rows[i] = sets[i];
                for (uint32_t a = 0; a < A; a++)
                    for (uint32_t e = 0; e < 64 * n_word; e++)
                        if (has_bit(sets[i] + a * n_word, e)) want[lag_of[a] * n_word * 64 + e] += of[i];
            }
            memset(votes, 0xaa, sizeof votes);
            tables[t]->vote(votes, rows, of, n, n_word);
            cr_assert_arr_eq(votes, want, (size_t)STK_LANES_LAGS * n_word * 64, "%s", tables[t]->name);
            tables[t]->share(shared, sets[0], rows, n, n_word);
            for (uint32_t i = 0; i < n; i++) {
                uint32_t both = 0;
                for (uint32_t e = 0; e < 64 * n_word; e++) both += has_bit(sets[0], e) && has_bit(sets[i], e);
                cr_assert_eq(shared[i], (uint8_t)both, "%s", tables[t]->name);
            }
        }
}
