/*
 * simd_amx: the table for AMX-int8: that of AVX-512 with products of quantized weights that go through tiles where enough tokens
 * share them.
 *
 * A group of 32 codes of a stripe, unpacked as for vpdpbusd, is a B tile as it stands: 8 rows of 64 bytes, the weights' row as
 * the lane. The A tile is the group of up to 16 tokens, a row each. One tdpbsud so gives the integer sums of 16 tokens times 16
 * rows; the float steps are those of product_quant.h, on the same integers, so the bits are, too. K = 32 fills half of a tile.
 * The other half could only hold the next group, whose sums must be kept apart, so that it would need zeros or further tiles for
 * as many products; and sub-scales cannot be folded into the codes, as every group has an activation scale of its own.
 *
 * What it is worth, for a group, 16 rows and 16 tokens of Q4_K, in cycles of the unit that is busy longest (two vector
 * instructions and two loads a cycle, Sapphire Rapids):
 *
 *     vpdpbusd   16 x (8 dot + 1 scale + 2 fma) / 2                                                      = 88
 *     tiles      one tdpbsud                                                                             = 16
 *                vectors: 16 x (1 start + 1 scale + 2 fma) / 2                                           = 32
 *                loads: A 16, B 8, sums 16, d 16, dmin sums 16, scales 6, the codes' copy 8, all / 2      = 43
 *
 * so about twice the speed, bound by the float steps and not by the tiles. All parts but B, scales and the configuration (some
 * 200 cycles a call, against some 11,000 of 8 tokens with 64 rows of 2,048) shrink with the tokens, and the product of tiles
 * takes a cycle a token at best and 16 at worst: with 8 tokens 22 cycles of loads stand against 44, with 4 up to 16 against 22,
 * less what latency costs. So tiles from AMX_LEAST tokens on; these figures are counted, not measured.
 *
 * With STK_AMX_EMU the tiles are emulated (amx.h).
 */
#define LANES 16
#include "cpu/amx.h"
#include "cpu/product_quant.h"
#include "cpu/tables.h"

enum {
    AMX_LEAST = 8, /* tokens of a call */
    MAX_SPAN = 2 * GROUPS,
};
_Static_assert(PASS == 2 * TILE_ROWS && SUM_TILE == TILE_ROWS * STK_STRIPE, "a pass is two tiles of tokens");

#ifdef STK_AMX_EMU
uint64_t stk_amx_emu_n_dot;
#endif

/* What a pass keeps of its tokens. */
typedef struct tile_tokens {
    int8_t codes[PASS][STK_BLOCK]; /* of the block; a tile may reach behind the last token */
    token_block x[PASS];
} tile_tokens;

/* Tiles 0 and 1: sums; 2 and 3: tokens; 4 and 5: codes of weights. In pairs, so that one product does not wait for the other. */
static void configure(enum stk_type type, uint32_t n_tok) {
    const uint8_t span = type == STK_TYPE_Q6_K ? STK_GROUP / 2 : STK_GROUP;
    tile_config c = {.palette = 1};
    for (uint32_t i = 0; i < 2; i++) {
        c.n_row[i] = c.n_row[2 + i] = (uint8_t)n_tok;
        c.n_row[4 + i] = span / 4;
        c.row_bytes[i] = c.row_bytes[4 + i] = TILE_BYTES;
        c.row_bytes[2 + i] = span;
    }
    TILE_CONFIGURE(&c);
}

/* sums[i][t] = the products of span i of a block, codes by codes, with token t of a tile, 16 rows each. */
INLINE void tile_sums(enum stk_type type, const rows_block *b, uint32_t n_group, const int8_t (*codes)[STK_BLOCK],
                      int32_t (*sums)[SUM_TILE]) {
    const uint32_t span = type == STK_TYPE_Q6_K ? STK_GROUP / 2 : STK_GROUP, n_span = n_group * STK_GROUP / span;
    const vi *unit = b->code[0];
    for (uint32_t i = 0; i < n_span; i += 2) {
        TILE_LOAD(2, codes[0] + i * span, STK_BLOCK);
        TILE_LOAD(4, unit + i * span / 4, STK_UNIT_BYTES);
        TILE_ZERO(0);
        TILE_DOT(0, 2, 4);
        TILE_STORE(0, sums[i], STK_UNIT_BYTES);
        if (i + 1 == n_span) return;
        TILE_LOAD(3, codes[0] + (i + 1) * span, STK_BLOCK);
        TILE_LOAD(5, unit + (i + 1) * span / 4, STK_UNIT_BYTES);
        TILE_ZERO(1);
        TILE_DOT(1, 3, 5);
        TILE_STORE(1, sums[i + 1], STK_UNIT_BYTES);
    }
}

INLINE void load_tokens(enum stk_type type, const stk_matmul *m, uint32_t tok, uint32_t n_tok, stk_act_layout at, uint32_t k,
                        uint32_t n_group, tile_tokens *a) {
    for (uint32_t t = 0; t < n_tok; t++) {
        const uint8_t *act = m->x[tok + t];
        load_token(type, act, at, k / STK_GROUP, &a->x[t]);
        memcpy(a->codes[t], act + k, n_group * STK_GROUP);
    }
}

/* One for each number of tokens: the float steps of a block, from the sums that tiles have made. */
typedef void (*tail_fn)(const rows_block *b, uint32_t n_group, const int32_t *made, const token_block *x, vf *row,
                        const uint8_t *ahead);

/* quant_pass of product_quant.h, through tiles of as even numbers of tokens as there are. */
INLINE void tile_pass(enum stk_type type, const tail_fn *tail, const stk_matmul *m, uint32_t tok, uint32_t n_tok) {
    const stk_act_layout at = stk_act_layout_of(m->n_in);
    const uint8_t *end = stripe_begin(type, m, m->stripe_end).d;
    const uint32_t per_tile = even_part(n_tok, TILE_ROWS);
    rows_block b;
    tile_tokens a = {0};
    vf row[PASS];
    _Alignas(64) int32_t sums[MAX_SPAN][SUM_TILE];
    configure(type, per_tile);
    for (uint32_t stripe = m->stripe_begin; stripe < m->stripe_end; stripe++) {
        cursor c = stripe_begin(type, m, stripe);
        for (uint32_t t = 0; t < n_tok; t++) row[t] = vf_zero();
        for (uint32_t k = 0; k < m->n_in; k += STK_BLOCK) {
            const uint32_t n_group = is_k_quant(type) ? GROUPS : STK_MIN(m->n_in - k, (uint32_t)STK_BLOCK) / STK_GROUP;
            load_tokens(type, m, tok, n_tok, at, k, n_group, &a);
            unpack(type, c, n_group, 0, &b);
            for (uint32_t t = 0, n; t < n_tok; t += n) {
                if (t % per_tile == 0) tile_sums(type, &b, n_group, (const int8_t(*)[STK_BLOCK])a.codes + t, sums);
                n = even_part(STK_MIN(n_tok, (t / per_tile + 1) * per_tile) - t, MAX_TILE);
                tail[n - 1](&b, n_group, sums[0] + t % per_tile * STK_STRIPE, a.x + t, row + t,
                            t ? NULL : ahead_of(m, c.at, end));
            }
            c.at += block_bytes(type, n_group);
            c.d += 2 * STK_STRIPE;
        }
        for (uint32_t t = 0; t < n_tok; t++) store_rows(m, stripe * STK_STRIPE, tok + t, row[t]);
    }
    TILE_RELEASE();
}

#define TAIL(type, n)                                                                                                            \
    static void type##_tail_##n(const rows_block *b, uint32_t n_group, const int32_t *made, const token_block *x, vf *row,       \
                                const uint8_t *ahead) {                                                                          \
        add_block(STK_TYPE_##type, n, true, b, n_group, NULL, 0, made, x, row, ahead);                                           \
    }
#define TILE_PRODUCT(type, name)                                                                                                 \
    TAIL(type, 1)                                                                                                                \
    TAIL(type, 2)                                                                                                                \
    TAIL(type, 3)                                                                                                                \
    TAIL(type, 4)                                                                                                                \
    TAIL(type, 5)                                                                                                                \
    TAIL(type, 6)                                                                                                                \
    TAIL(type, 7)                                                                                                                \
    TAIL(type, 8)                                                                                                                \
    static void pass_##name(const stk_matmul *m, uint32_t tok, uint32_t n_tok) {                                                 \
        static const tail_fn tail[MAX_TILE] = {type##_tail_1, type##_tail_2, type##_tail_3, type##_tail_4,                       \
                                               type##_tail_5, type##_tail_6, type##_tail_7, type##_tail_8};                      \
        tile_pass(STK_TYPE_##type, tail, m, tok, n_tok);                                                                         \
    }                                                                                                                            \
    static void matmul_##name(const stk_matmul *m) {                                                                             \
        if (m->n_tok < AMX_LEAST)                                                                                                \
            stk_cpu_ops_avx512.matmul_##name(m);                                                                                 \
        else                                                                                                                     \
            run_passes(m, pass_##name);                                                                                          \
    }

TILE_PRODUCT(Q8_0, q8_0)
TILE_PRODUCT(Q4_0, q4_0)
TILE_PRODUCT(Q4_K, q4_k)
TILE_PRODUCT(Q5_K, q5_k)
TILE_PRODUCT(Q6_K, q6_k)

void stk_cpu_ops_amx(stk_cpu_ops *ops) {
    *ops = stk_cpu_ops_avx512;
    ops->name = "amx";
    ops->matmul_q8_0 = matmul_q8_0;
    ops->matmul_q4_0 = matmul_q4_0;
    ops->matmul_q4_k = matmul_q4_k;
    ops->matmul_q5_k = matmul_q5_k;
    ops->matmul_q6_k = matmul_q6_k;
}
