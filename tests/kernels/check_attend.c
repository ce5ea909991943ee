/* check_attend: attention over a span. Positions that a query does not see hold NaN, as do all bytes around the tiles. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "src/numeric.h"

enum { TILE = 64, MAX_PAGES = 16, MAX_Q = 17, MAX_DIM = 512, MAX_TILE_BYTES = TILE * MAX_DIM * 4 };

typedef struct setup {
    guard k[MAX_PAGES], v[MAX_PAGES], q[MAX_Q], state[MAX_Q];
} setup;

static setup *open_setup(void) {
    static setup s;
    if (s.k[0].begin) return &s;
    for (uint32_t i = 0; i < MAX_PAGES; i++) {
        guard_open(&s.k[i], MAX_TILE_BYTES);
        guard_open(&s.v[i], MAX_TILE_BYTES);
    }
    for (uint32_t i = 0; i < MAX_Q; i++) {
        guard_open(&s.q[i], MAX_DIM * 4);
        guard_open(&s.state[i], MAX_DIM * 4 + 256);
    }
    return &s;
}

/* One of: ordinary; large scores, where most p are 0; all equal; halves of every size, infinities and NaN among them. */
enum { N_STYLE = 4 };
static const char *const style_names[N_STYLE] = {"ordinary", "large", "equal", "hostile"};

static float element(uint32_t style) {
    switch (style) {
    case 1: return 8.0f * check_uniform();
    case 2: return 0.5f;
    case 3: return check_below(2000) ? stk_f16_f32((uint16_t)(check_random() & 0xbbffu)) : stk_f16_f32((uint16_t)check_random());
    default: return check_uniform();
    }
}

/* Element i of a tile; what is beyond the last visible position stays NaN. */
static void put_element(uint8_t *tile, uint32_t i, bool f16, float x) {
    uint16_t half = stk_f32_f16_sat(x);
    if (f16)
        memcpy(tile + 2 * i, &half, 2);
    else
        memcpy(tile + 4 * i, &x, 4);
}

static void fill_tiles(setup *s, const stk_attend *a, uint32_t style, uint32_t n_max) {
    for (uint32_t page = 0; page * TILE < n_max; page++) {
        uint8_t *k = guard_place(&s->k[page], TILE * a->head_dim * (a->k_f16 ? 2 : 4), 64, 0, FILL_NAN);
        uint8_t *v = guard_place(&s->v[page], TILE * a->head_dim * (a->v_f16 ? 2 : 4), 64, 0, FILL_NAN);
        for (uint32_t j = 0; j < STK_MIN(n_max - page * TILE, (uint32_t)TILE); j++)
            for (uint32_t d = 0; d < a->head_dim; d++) {
                put_element(k, d * TILE + j, a->k_f16, element(style));
                put_element(v, j * a->head_dim + d, a->v_f16, element(style));
            }
        guard_protect(&s->k[page]);
        guard_protect(&s->v[page]);
    }
}

/* Where l is NaN, m may be anything (cpu/ref.c). */
static bool equal_state(float *want, const guard *got, uint32_t n) {
    float max, sum;
    memcpy(&max, got->at, 4);
    memcpy(&sum, got->at + 4, 4);
    if (want[1] != want[1] && sum != sum) want[0] = max;
    return check_floats("state", want, (const float *)got->at, n) && guard_intact(got, "state");
}

static bool attend_case(const stk_cpu_ops *ops, uint32_t head_dim, uint32_t n_q, uint32_t n_max, uint32_t style, uint32_t kinds) {
    setup *s = open_setup();
    static float want[MAX_Q][2 + MAX_DIM];
    const float *q[MAX_Q];
    const void *k[MAX_PAGES], *v[MAX_PAGES];
    float *want_state[MAX_Q], *state[MAX_Q];
    uint32_t n_pos[MAX_Q];
    stk_attend a = {n_q, head_dim, q, n_pos, kinds & 1u, kinds >> 1, k, v, 1.0f / sqrtf((float)head_dim), want_state};
    for (uint32_t i = 0; i < n_q; i++) {
        n_pos[i] = i == n_q / 2 ? n_max : 1 + check_below(n_max);
        float *row = guard_place(&s->q[i], head_dim * sizeof *row, 64, 0, FILL_NAN);
        for (uint32_t d = 0; d < head_dim; d++) row[d] = style == 1 ? 30.0f * check_uniform() : 2.0f * check_uniform();
        guard_protect(&s->q[i]);
        q[i] = row;
        want_state[i] = want[i];
        state[i] = guard_place(&s->state[i], (2 + head_dim) * sizeof(float), 4, 4 * check_below(8), FILL_CANARY);
    }
    fill_tiles(s, &a, style, n_max);
    for (uint32_t page = 0; page < MAX_PAGES; page++) {
        bool used = page * TILE < n_max;
        k[page] = used ? s->k[page].at : NULL;
        v[page] = used ? s->v[page].at : NULL;
    }
    check_case("head_dim %u, %u queries, %u positions, k %s, v %s, %s", head_dim, n_q, n_max, a.k_f16 ? "f16" : "f32",
               a.v_f16 ? "f16" : "f32", style_names[style]);
    stk_cpu_ops_ref.attend(&a);
    a.state = state;
    ops->attend(&a);
    for (uint32_t i = 0; i < n_q; i++)
        if (!equal_state(want[i], &s->state[i], 2 + head_dim)) return false;
    return check_mxcsr();
}

bool check_attend(const stk_cpu_ops *ops) {
    static const uint32_t dims[] = {8, 16, 24, 40, 64, 72, 80, 96, 128, 192, 256, MAX_DIM};
    static const uint32_t n_pos[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200};
    check_begin(ops, "attend");
    for (uint32_t d = 0; d < STK_ARRAY_LEN(dims); d++)
        for (uint32_t n = 0; n < STK_ARRAY_LEN(n_pos); n++)
            for (uint32_t kinds = 0; kinds < 4; kinds++) {
                uint32_t n_q = dims[d] > 128 ? 1 + check_below(3) : 1 + check_below(9);
                if (!attend_case(ops, dims[d], n_q, n_pos[n], (d + n + kinds) % N_STYLE, kinds)) return false;
            }
    for (uint32_t style = 0; style < N_STYLE; style++)
        for (uint32_t kinds = 0; kinds < 4; kinds++)
            if (!attend_case(ops, 64, MAX_Q, 1024 - style, style, kinds)) return false;
    return true;
}
