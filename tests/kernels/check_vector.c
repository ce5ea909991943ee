/* check_vector: the operations on vectors. Inputs and outputs start at any float and end at a guard page or before canaries. */
#include <string.h>

#include "check.h"
#include "src/numeric.h"

enum { MAX_N = 4096, N_GUARD = 4 };

static guard guards[N_GUARD];

static void open_guards(void) {
    for (uint32_t i = 0; i < N_GUARD && !guards[i].begin; i++) guard_open(&guards[i], MAX_N * 4 + 256);
}

static uint32_t random_slack(void) { return check_below(2) ? 0 : 4 * check_below(16); }

/* n floats in guard i, ends at or near the guard page. */
static float *input(uint32_t i, const float *values, uint32_t n) {
    float *x = guard_place(&guards[i], n * sizeof *x, 4, random_slack(), FILL_NAN);
    memcpy(x, values, n * sizeof *x);
    return x;
}

static float *output(uint32_t i, uint32_t n) {
    return guard_place(&guards[i], n * sizeof(float), 4, random_slack(), FILL_CANARY);
}

/* All small sizes, then those around powers of two and of models. */
static const uint32_t sizes[] = {63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 509, 768, 1024, 2047, 2048, 4095, MAX_N};
enum { N_SMALL = 50, N_SIZE = N_SMALL + STK_ARRAY_LEN(sizes) };

static uint32_t size_of(uint32_t i) { return i < N_SMALL ? i + 1 : sizes[i - N_SMALL]; }

static bool done(const char *what, const float *want, uint32_t out_guard, uint32_t n) {
    return check_floats(what, want, (const float *)guards[out_guard].at, n) && guard_intact(&guards[out_guard], what) &&
           check_mxcsr();
}

typedef struct vectors {
    float a[MAX_N], b[MAX_N], want[MAX_N];
} vectors;

static vectors *fill(uint32_t style, uint32_t n) {
    static vectors v;
    open_guards();
    check_fill_activations(style, v.a, n);
    check_fill_activations(check_below(CHECK_N_STYLE), v.b, n);
    return &v;
}

/* Each size in each style, once or with the output in place of the first input. */
#define FOR_EACH_VECTOR(n, style, in_place)                                                                                      \
    for (uint32_t i_ = 0, n = size_of(0); i_ < N_SIZE; i_++, n = size_of(STK_MIN(i_, N_SIZE - 1u)))                              \
        for (uint32_t style = 0; style < CHECK_N_STYLE; style++)                                                                 \
            for (uint32_t in_place = 0; in_place < 2; in_place++)

bool check_rmsnorm(const stk_cpu_ops *ops) {
    static const float eps[] = {1e-6f, 1e-5f, 0.0f};
    check_begin(ops, "rmsnorm");
    FOR_EACH_VECTOR(n, style, in_place) {
        vectors *v = fill(style, n);
        float e = eps[check_below(3)];
        check_case("n %u, x %s, eps %g%s", n, check_style_name(style), (double)e, in_place ? ", in place" : "");
        stk_cpu_ops_ref.rmsnorm(v->a, v->b, n, e, v->want);
        float *x = input(0, v->a, n), *w = input(1, v->b, n), *out = in_place ? x : output(2, n);
        if (!in_place) guard_protect(&guards[0]);
        guard_protect(&guards[1]);
        ops->rmsnorm(x, w, n, e, out);
        if (!done("out", v->want, in_place ? 0 : 2, n)) return false;
    }
    return true;
}

static bool silu_case(const stk_cpu_ops *ops, vectors *v, uint32_t n, bool in_place) {
    stk_cpu_ops_ref.silu_mul(v->a, v->b, n, v->want);
    float *gate = input(0, v->a, n), *up = input(1, v->b, n), *out = in_place ? gate : output(2, n);
    if (!in_place) guard_protect(&guards[0]);
    guard_protect(&guards[1]);
    ops->silu_mul(gate, up, n, out);
    return done("out", v->want, in_place ? 0 : 2, n);
}

/* Styles, then a walk through all floats, which is also what shows the exp of a table. */
bool check_silu_mul(const stk_cpu_ops *ops) {
    check_begin(ops, "silu_mul");
    FOR_EACH_VECTOR(n, style, in_place) {
        vectors *v = fill(style, n);
        check_case("n %u, gate %s%s", n, check_style_name(style), in_place ? ", in place" : "");
        if (!silu_case(ops, v, n, in_place)) return false;
    }
    vectors *v = fill(0, MAX_N);
    for (uint32_t chunk = 0; chunk < 256; chunk++) {
        for (uint32_t i = 0; i < MAX_N; i++)
            v->a[i] = stk_bits_f32((chunk * MAX_N + i) << 12 | check_below(1 << 12)), v->b[i] = 1.0f;
        check_case("all floats, %u of 256", chunk);
        if (!silu_case(ops, v, MAX_N, false)) return false;
    }
    for (uint32_t chunk = 0; chunk < 64; chunk++) {
        for (uint32_t i = 0; i < MAX_N; i++) v->a[i] = 110.0f * check_uniform();
        check_case("gates in (-110, 110), %u of 64", chunk);
        if (!silu_case(ops, v, MAX_N, false)) return false;
    }
    return true;
}

bool check_add(const stk_cpu_ops *ops) {
    check_begin(ops, "add");
    FOR_EACH_VECTOR(n, style, same) {
        vectors *v = fill(style, n);
        if (same) memcpy(v->b, v->a, n * sizeof *v->a);
        check_case("n %u, x %s", n, check_style_name(style));
        memcpy(v->want, v->a, n * sizeof *v->a);
        stk_cpu_ops_ref.add(v->want, v->b, n);
        float *x = input(0, v->a, n), *y = input(1, v->b, n);
        guard_protect(&guards[1]);
        ops->add(x, y, n);
        if (!done("x", v->want, 0, n)) return false;
    }
    return true;
}

bool check_axpy(const stk_cpu_ops *ops) {
    check_begin(ops, "axpy");
    FOR_EACH_VECTOR(n, style, whole) {
        vectors *v = fill(style, n);
        float w = whole ? 1.0f : check_below(8) ? check_uniform() : 1e-39f;
        check_case("n %u, w %a, acc %s", n, (double)w, check_style_name(style));
        memcpy(v->want, v->a, n * sizeof *v->a);
        stk_cpu_ops_ref.axpy(v->want, w, v->b, n);
        float *acc = input(0, v->a, n), *y = input(1, v->b, n);
        guard_protect(&guards[1]);
        ops->axpy(acc, w, y, n);
        if (!done("acc", v->want, 0, n)) return false;
    }
    return true;
}

bool check_rope(const stk_cpu_ops *ops) {
    check_begin(ops, "rope");
    static const uint32_t rots[] = {2,  4,  6,  8,  10, 14, 16, 18,  20,  24,  30,  32,
                                    34, 48, 62, 64, 66, 80, 96, 126, 128, 192, 256, 512};
    for (uint32_t r = 0; r < STK_ARRAY_LEN(rots); r++)
        for (uint32_t style = 0; style < CHECK_N_STYLE; style++)
            for (uint32_t neox = 0; neox < 2; neox++) {
                uint32_t n_rot = rots[r], n = n_rot + 2 * check_below(9);
                vectors *v = fill(style, n);
                for (uint32_t i = 0; i < n_rot / 2; i++) {
                    float angle = 1000.0f * check_uniform();
                    v->b[2 * i] = cosf(angle);
                    v->b[2 * i + 1] = sinf(angle);
                }
                check_case("n_rot %u of %u, %s, x %s", n_rot, n, neox ? "neox" : "pairs", check_style_name(style));
                memcpy(v->want, v->a, n * sizeof *v->a);
                stk_cpu_ops_ref.rope(v->want, n_rot, v->b, neox);
                float *x = input(0, v->a, n), *table = input(1, v->b, n_rot);
                guard_protect(&guards[1]);
                ops->rope(x, n_rot, table, neox);
                if (!done("x", v->want, 0, n)) return false;
            }
    return true;
}

bool check_softmax(const stk_cpu_ops *ops) {
    static const float spread[] = {1.0f, 30.0f, 200.0f};
    check_begin(ops, "softmax");
    FOR_EACH_VECTOR(n, style, wide) {
        vectors *v = fill(style, n);
        float s = spread[check_below(3)];
        if (wide)
            for (uint32_t i = 0; i < n; i++) v->a[i] = check_below(50) ? s * check_uniform() : -INFINITY;
        check_case("n %u, x %s, spread %g", n, wide ? "wide" : check_style_name(style), (double)s);
        stk_cpu_ops_ref.softmax(v->a, n, v->want);
        float *x = input(0, v->a, n), *p = output(2, n);
        guard_protect(&guards[0]);
        ops->softmax(x, n, p);
        if (!done("p", v->want, 2, n)) return false;
    }
    return true;
}

static bool is_nan_half(uint16_t h) { return (h & 0x7fffu) > 0x7c00u; }

static bool half_case(const stk_cpu_ops *ops, const float *values, uint32_t n) {
    uint16_t want[MAX_N];
    stk_cpu_ops_ref.f32_to_f16(values, n, want);
    float *x = input(0, values, n);
    uint16_t *out = guard_place(&guards[2], n * sizeof *out, 2, check_below(2) ? 0 : 2 * check_below(32), FILL_CANARY);
    guard_protect(&guards[0]);
    ops->f32_to_f16(x, n, out);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t got;
        memcpy(&got, out + i, sizeof got);
        if (got != want[i] && !(is_nan_half(got) && is_nan_half(want[i])))
            return check_fail("half of %a at %u is %04x, the reference has %04x", (double)values[i], i, got, want[i]);
    }
    return guard_intact(&guards[2], "out") && check_mxcsr();
}

/* Styles; then each half, the midpoint above it, and the floats beside both. */
bool check_f32_to_f16(const stk_cpu_ops *ops) {
    check_begin(ops, "f32_to_f16");
    FOR_EACH_VECTOR(n, style, unused) {
        vectors *v = fill(style, n);
        check_case("n %u, x %s, %u", n, check_style_name(style), unused);
        if (!half_case(ops, v->a, n)) return false;
    }
    open_guards();
    float x[6 * 64];
    for (uint32_t h = 0; h < 0x10000u; h += 64) {
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t at = stk_f32_bits(stk_f16_f32((uint16_t)(h + i))), mid = at + (at << 1 ? 0x1000u : 0x33000000u);
            uint32_t around[6] = {at - !!(at << 1), at, at + 1, mid - 1, mid, mid + 1};
            for (uint32_t k = 0; k < 6; k++) x[6 * i + k] = stk_bits_f32(around[k]);
        }
        check_case("around halves %04x to %04x", h, h + 63);
        if (!half_case(ops, x, STK_ARRAY_LEN(x))) return false;
    }
    return true;
}
