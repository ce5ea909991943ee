/* broken_products: products and activation quantization that are wrong on purpose. */
#include <string.h>
#include <xmmintrin.h>

#include "broken.h"
#include "src/numeric.h"

static const stk_cpu_ops *const ref = &stk_cpu_ops_ref;

enum { MAX_IN = 2048, MAX_TOK = 33, MAX_ROWS = 128 };

/* ---- Sums of 32 products, of Q8_0 ---- */

typedef int32_t (*group_dot)(const int8_t *w, const int8_t *q, bool tail);

/* The rule of Q8_0 as it should be but for the sum of a group. `tail`: the group is one of the last n % 4. */
static void q8_0_product(const stk_matmul *m, group_dot dot) {
    uint64_t stripe_bytes = stk_stripe_bytes(STK_TYPE_Q8_0, m->n_in);
    stk_act_layout at = stk_act_layout_of(m->n_in);
    uint32_t n_group = m->n_in / 32;
    for (uint32_t row = m->stripe_begin * 16; row < STK_MIN(m->stripe_end * 16, m->n_rows); row++)
        for (uint32_t tok = 0; tok < m->n_tok; tok++) {
            const uint8_t *stripe = (const uint8_t *)m->weights + row / 16 * stripe_bytes, *act = m->x[tok];
            float sum = 0.0f, t = 0.0f;
            for (uint32_t g = 0; g < n_group; g++) {
                const uint8_t *block = stripe + g / 8 * 4352, *code = block;
                code += stk_align_up(STK_MIN(n_group - g / 8 * 8, 8u) * 32, 64) + g % 8 * 512 + 4 * (row % 16);
                int8_t w[32];
                for (uint32_t u = 0; u < 8; u++) memcpy(w + 4 * u, code + 64 * u, 4);
                uint16_t half;
                memcpy(&half, block + g % 8 * 32 + 2 * (row % 16), 2);
                float d;
                memcpy(&d, act + at.scale_offset + 4 * g, 4);
                t = fmaf(stk_f16_f32(half) * (float)dot(w, (const int8_t *)act + 32 * g, g >= n_group / 4 * 4), d, t);
                if (g % 8 == 7 || g == n_group - 1) sum += t, t = 0.0f;
            }
            m->out[tok][row] = sum;
        }
}

static int32_t saturate16(int32_t x) { return x > 32767 ? 32767 : x < -32768 ? -32768 : x; }

static int32_t sum_of(const int8_t *q) {
    int32_t s = 0;
    for (uint32_t i = 0; i < 32; i++) s += q[i];
    return s;
}

static int32_t dot_saturating_pairs(const int8_t *w, const int8_t *q, bool tail) {
    (void)tail;
    int32_t s = -128 * sum_of(q);
    for (uint32_t i = 0; i < 32; i += 2) s += saturate16((w[i] + 128) * q[i] + (w[i + 1] + 128) * q[i + 1]);
    return s;
}

static int32_t dot_int16_sums(const int8_t *w, const int8_t *q, bool tail) {
    (void)tail;
    int32_t lane[8] = {0}, s = 0;
    for (uint32_t i = 0; i < 32; i += 2) lane[i / 2 % 8] = saturate16(lane[i / 2 % 8] + w[i] * q[i] + w[i + 1] * q[i + 1]);
    for (uint32_t i = 0; i < 8; i++) s += lane[i];
    return s;
}

static int32_t dot_carry(const int8_t *w, const int8_t *q, bool tail) {
    (void)tail;
    int32_t s = -128 * sum_of(q);
    for (uint32_t u = 0; u < 8; u++) {
        uint32_t word;
        memcpy(&word, w + 4 * u, 4);
        word += 0x80808080u; /* an addition of dwords where one of bytes was meant */
        for (uint32_t i = 0; i < 4; i++) s += (int32_t)(word >> 8 * i & 255u) * q[4 * u + i];
    }
    return s;
}

static int32_t dot_no_minus_128(const int8_t *w, const int8_t *q, bool tail) {
    (void)tail;
    int32_t s = 0;
    for (uint32_t i = 0; i < 32; i++) s += (w[i] == -128 ? -127 : w[i]) * q[i];
    return s;
}

static int32_t dot_rounded_tail_sum(const int8_t *w, const int8_t *q, bool tail) {
    float sum = (float)sum_of(q);
    int32_t s = -128 * (int32_t)(tail ? stk_bf16_f32((uint16_t)(stk_f32_bits(sum) >> 16)) : sum);
    for (uint32_t i = 0; i < 32; i++) s += (w[i] + 128) * q[i];
    return s;
}

static void q8_0_saturating_pairs(const stk_matmul *m) { q8_0_product(m, dot_saturating_pairs); }
static void q8_0_int16_sums(const stk_matmul *m) { q8_0_product(m, dot_int16_sums); }
static void q8_0_carry(const stk_matmul *m) { q8_0_product(m, dot_carry); }
static void q8_0_no_minus_128(const stk_matmul *m) { q8_0_product(m, dot_no_minus_128); }
static void q8_0_rounded_tail_sum(const stk_matmul *m) { q8_0_product(m, dot_rounded_tail_sum); }
INSTALL(matmul_q8_0, q8_0_saturating_pairs)
INSTALL(matmul_q8_0, q8_0_int16_sums)
INSTALL(matmul_q8_0, q8_0_carry)
INSTALL(matmul_q8_0, q8_0_no_minus_128)
INSTALL(matmul_q8_0, q8_0_rounded_tail_sum)

/* ---- The reference on activations that were changed ---- */

static void with_changed_acts(const stk_matmul *m, stk_matmul_fn product, void (*change)(uint8_t *act, uint32_t n_in)) {
    static uint8_t acts[MAX_TOK][2 * MAX_IN] __attribute__((aligned(64)));
    const void *x[MAX_TOK];
    for (uint32_t t = 0; t < m->n_tok; t++) {
        memcpy(acts[t], m->x[t], stk_act_layout_of(m->n_in).bytes);
        change(acts[t], m->n_in);
        x[t] = acts[t];
    }
    stk_matmul changed = *m;
    changed.x = x;
    product(&changed);
}

static void half_sums(uint8_t *act, uint32_t n_in) {
    float *sum = (float *)(act + stk_act_layout_of(n_in).sum_offset);
    for (uint32_t g = 0; g < n_in / 32; g++) sum[g] = stk_f16_f32(stk_f32_f16(sum[g]));
}

static void no_tail_groups(uint8_t *act, uint32_t n_in) { memset(act + n_in / 128 * 128, 0, n_in % 128); }

static void q4_k_half_sums(const stk_matmul *m) { with_changed_acts(m, ref->matmul_q4_k, half_sums); }
static void q5_k_half_sums(const stk_matmul *m) { with_changed_acts(m, ref->matmul_q5_k, half_sums); }
static void q4_0_no_tail_groups(const stk_matmul *m) { with_changed_acts(m, ref->matmul_q4_0, no_tail_groups); }
INSTALL(matmul_q4_k, q4_k_half_sums)
INSTALL(matmul_q5_k, q5_k_half_sums)
INSTALL(matmul_q4_0, q4_0_no_tail_groups)

/* ---- Rows, memory and state around a right product ---- */

static void q6_k_four_bytes_too_long(const stk_matmul *m) {
    ref->matmul_q6_k(m);
    if (m->stripe_end * 16 >= m->n_rows) memset(m->out[m->n_tok - 1] + m->n_rows, 0, 4);
}
INSTALL(matmul_q6_k, q6_k_four_bytes_too_long)

static void q6_k_no_last_rows(const stk_matmul *m) {
    stk_matmul fewer = *m;
    if (m->n_tok > 32) fewer.n_rows = m->n_rows / 16 * 16;
    ref->matmul_q6_k(&fewer);
}
INSTALL(matmul_q6_k, q6_k_no_last_rows)

static void q4_0_skips_zero_scales(const stk_matmul *m) {
    float before[MAX_ROWS];
    for (uint32_t t = 0; t < m->n_tok; t++) {
        stk_matmul one = *m;
        one.n_tok = 1;
        one.x += t;
        one.out += t;
        memcpy(before, m->out[t], m->n_rows * sizeof *before);
        ref->matmul_q4_0(&one);
        for (uint32_t row = 0; row < m->n_rows; row++) {
            const uint8_t *d = (const uint8_t *)m->weights + row / 16 * stk_stripe_bytes(STK_TYPE_Q4_0, m->n_in) + 2 * (row % 16);
            if (d[0] == 0 && d[1] % 128 == 0) memcpy(m->out[t] + row, before + row, 4);
        }
    }
}
INSTALL(matmul_q4_0, q4_0_skips_zero_scales)

static void q4_k_rows_of_others(const stk_matmul *m) {
    stk_matmul all = *m;
    if (m->stripe_begin < m->stripe_end) all.stripe_begin = 0;
    ref->matmul_q4_k(&all);
}
INSTALL(matmul_q4_k, q4_k_rows_of_others)

static void f16_reads_behind_weights(const stk_matmul *m) {
    volatile uint8_t byte = *((const uint8_t *)m->weights + stk_matrix_bytes(STK_TYPE_F16, m->n_rows, m->n_in));
    (void)byte;
    ref->matmul_f16(m);
}
INSTALL(matmul_f16, f16_reads_behind_weights)

static void q5_k_loads_next(const stk_matmul *m) {
    if (m->next) {
        volatile uint8_t byte = *(const uint8_t *)m->next;
        (void)byte;
    }
    ref->matmul_q5_k(m);
}
INSTALL(matmul_q5_k, q5_k_loads_next)

static void q8_0_writes_activations(const stk_matmul *m) {
    ref->matmul_q8_0(m);
    *(volatile int8_t *)(uintptr_t)m->x[0] = 0;
}
INSTALL(matmul_q8_0, q8_0_writes_activations)

static void f32_flushes_to_zero(const stk_matmul *m) {
    uint32_t mxcsr = _mm_getcsr();
    _mm_setcsr(mxcsr | 0x8040u);
    ref->matmul_f32(m);
    _mm_setcsr(mxcsr);
}
INSTALL(matmul_f32, f32_flushes_to_zero)

/* ---- Float products with another order or rounding ---- */

enum { NO_BLOCKS = 1, TWO_CHAINS_FROM_4 = 2, NO_FMA = 4, READS_PADDING = 8, SWAPPED_PAIRS = 16 };

static float bf16_weight(const stk_matmul *m, uint32_t row, uint32_t k) {
    uint16_t h;
    memcpy(&h,
           (const uint8_t *)m->weights + row / 16 * stk_stripe_bytes(STK_TYPE_BF16, m->n_in) + k / 2 * 64 + row % 16 * 4 +
               k % 2 * 2,
           2);
    return stk_bf16_f32(h);
}

static float bf16_row(const stk_matmul *m, uint32_t row, const float *x, uint32_t flaws) {
    float sum = 0.0f, t[2] = {0.0f, 0.0f};
    bool two = (flaws & TWO_CHAINS_FROM_4) && m->n_tok >= 4;
    uint32_t n = flaws & READS_PADDING ? (m->n_in + 15) / 16 * 16 : m->n_in;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t at = (flaws & SWAPPED_PAIRS) && (k ^ 1u) < m->n_in ? k ^ 1u : k;
        float w = at < m->n_in ? bf16_weight(m, row, at) : 0.0f, *chain = &t[two ? k % 2 : 0];
        *chain = flaws & NO_FMA ? w * x[k] + *chain : fmaf(w, x[k], *chain);
        if ((k % 256 == 255 && !(flaws & NO_BLOCKS)) || k == n - 1) sum += t[0] + t[1], t[0] = t[1] = 0.0f;
    }
    return sum;
}

static void bf16_product(const stk_matmul *m, uint32_t flaws) {
    for (uint32_t row = m->stripe_begin * 16; row < STK_MIN(m->stripe_end * 16, m->n_rows); row++)
        for (uint32_t tok = 0; tok < m->n_tok; tok++) m->out[tok][row] = bf16_row(m, row, m->x[tok], flaws);
}

static void bf16_no_blocks(const stk_matmul *m) { bf16_product(m, NO_BLOCKS); }
static void bf16_two_chains_from_4(const stk_matmul *m) { bf16_product(m, TWO_CHAINS_FROM_4); }
static void bf16_no_fma(const stk_matmul *m) { bf16_product(m, NO_FMA); }
static void bf16_reads_padding(const stk_matmul *m) { bf16_product(m, READS_PADDING); }
static void bf16_swapped_pairs(const stk_matmul *m) { bf16_product(m, SWAPPED_PAIRS); }
INSTALL(matmul_bf16, bf16_no_blocks)
INSTALL(matmul_bf16, bf16_two_chains_from_4)
INSTALL(matmul_bf16, bf16_no_fma)
INSTALL(matmul_bf16, bf16_reads_padding)
INSTALL(matmul_bf16, bf16_swapped_pairs)

/* ---- Quantization ---- */

enum { AWAY_FROM_ZERO = 1, INVERSE_OF_SCALE = 2, DROPS_NAN = 4, SCALES_ANYTHING = 8 };

static void quantize_flawed(const float *x, uint32_t n, void *act, uint32_t flaws) {
    stk_act_layout at = stk_act_layout_of(n);
    ref->quantize(x, n, act);
    for (uint32_t g = 0; g < n / 32; g++) {
        float amax = 0.0f, *d = (float *)((uint8_t *)act + at.scale_offset) + g;
        int8_t *q = (int8_t *)act + 32 * g;
        for (uint32_t i = 0; i < 32; i++) amax = fabsf(x[32 * g + i]) > amax ? fabsf(x[32 * g + i]) : amax;
        bool scales = (flaws & SCALES_ANYTHING) && amax > 0.0f && amax < 0x1p-100f;
        if ((flaws & DROPS_NAN) && isfinite(amax) && !isfinite(*d)) scales = true;
        if (scales) *d = amax / 127.0f;
        float id = flaws & INVERSE_OF_SCALE ? 1.0f / *d : 127.0f / amax;
        if ((*d == 0.0f || !isfinite(*d)) || (flaws & (SCALES_ANYTHING | DROPS_NAN))) continue;
        for (uint32_t i = 0; i < 32; i++) {
            float y = x[32 * g + i] * id;
            q[i] = (int8_t)(flaws & AWAY_FROM_ZERO ? roundf(y) : rintf(y));
        }
    }
}

static void quantize_away_from_zero(const float *x, uint32_t n, void *act) { quantize_flawed(x, n, act, AWAY_FROM_ZERO); }
static void quantize_inverse_of_scale(const float *x, uint32_t n, void *act) { quantize_flawed(x, n, act, INVERSE_OF_SCALE); }
static void quantize_drops_nan(const float *x, uint32_t n, void *act) { quantize_flawed(x, n, act, DROPS_NAN); }
static void quantize_scales_anything(const float *x, uint32_t n, void *act) { quantize_flawed(x, n, act, SCALES_ANYTHING); }
INSTALL(quantize, quantize_away_from_zero)
INSTALL(quantize, quantize_inverse_of_scale)
INSTALL(quantize, quantize_drops_nan)
INSTALL(quantize, quantize_scales_anything)

static void quantize_clears_padding(const float *x, uint32_t n, uint32_t g0, uint32_t g1, void *act) {
    stk_act_layout at = stk_act_layout_of(n);
    ref->quantize_groups(x, n, g0, g1, act);
    memset((uint8_t *)act + at.scale_offset + 4 * g1, 0, 4); /* the next group's, of another thread, or padding */
}
INSTALL(quantize_groups, quantize_clears_padding)

/* ---- Tables ---- */

static void no_softmax(stk_cpu_ops *ops) { ops->softmax = NULL; }

static void products_of_ref(stk_cpu_ops *ops) { (void)ops; }

const broken broken_products[] = {
    {"matmul_q8_0", "pairs of u8 >= 128 times s8 saturate in int16", install_q8_0_saturating_pairs},
    {"matmul_q8_0", "too many pairs added in int16", install_q8_0_int16_sums},
    {"matmul_q8_0", "offset added to dwords instead of bytes, with carries", install_q8_0_carry},
    {"matmul_q8_0", "weight -128 taken for -127", install_q8_0_no_minus_128},
    {"matmul_q8_0", "tail groups use a rounded sum of activations", install_q8_0_rounded_tail_sum},
    {"matmul_q8_0", "writes into the activations", install_q8_0_writes_activations},
    {"matmul_q4_k", "activation sums in half precision", install_q4_k_half_sums},
    {"matmul_q5_k", "activation sums in half precision", install_q5_k_half_sums},
    {"matmul_q4_0", "groups beyond a multiple of four left out", install_q4_0_no_tail_groups},
    {"matmul_q4_0", "rows with a zero scale left unwritten", install_q4_0_skips_zero_scales},
    {"matmul_q6_k", "four bytes written behind the last row", install_q6_k_four_bytes_too_long},
    {"matmul_q6_k", "last ragged rows unwritten for 33 tokens", install_q6_k_no_last_rows},
    {"matmul_q4_k", "a thread writes the stripes of others", install_q4_k_rows_of_others},
    {"matmul_f16", "reads behind the weights", install_f16_reads_behind_weights},
    {"matmul_q5_k", "loads what it may only prefetch", install_q5_k_loads_next},
    {"matmul_f32", "flushes subnormals to zero", install_f32_flushes_to_zero},
    {"matmul_bf16", "one sum over the whole row instead of blocks", install_bf16_no_blocks},
    {"matmul_bf16", "another order from four tokens on", install_bf16_two_chains_from_4},
    {"matmul_bf16", "product rounded before the addition", install_bf16_no_fma},
    {"matmul_bf16", "NaN behind the activations leaks in through zero weights", install_bf16_reads_padding},
    {"matmul_bf16", "pairs of weights swapped", install_bf16_swapped_pairs},
    {"quantize", "halves rounded away from zero", install_quantize_away_from_zero},
    {"quantize", "multiplies by 1 / d instead of 127 / amax", install_quantize_inverse_of_scale},
    {"quantize", "the maximum drops NaN", install_quantize_drops_nan},
    {"quantize", "scales groups below the threshold", install_quantize_scales_anything},
    {"quantize_groups", "writes the scale of the next group", install_quantize_clears_padding},
    {"table", "an operation is missing", no_softmax},
    {"table", "the reference under another name", products_of_ref},
};
const uint32_t n_broken_products = STK_ARRAY_LEN(broken_products);
