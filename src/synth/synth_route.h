/*
 * synth_route: a model whose routing is that of a recorded trace. Token t of the trace becomes vocabulary entry t:
 *
 *     embedding of v     row v mod n of a Hadamard matrix: +1 and -1, rows orthogonal to one another; n tokens, at most n_embd
 *     attention, experts their last matrices are 0, so that the hidden state is that row in every layer, exactly
 *     router of layer l  row e: the sum over all t of score(l, t, e) / n_embd times row t, so that token t has score(l, t, e)
 *     head               row t + 1: a multiple of row t; row 0: of row n - 1; others 0; so that t + 1 follows t, and 0 the last
 *
 * Every block format holds the rows exactly, and activations of one magnitude are exact in eight bits: any engine gets the scores
 * to about 1e-6, against gaps of 1/64 at least between ranks. Chosen experts have scores whose softmax among themselves is
 * the trace's weights; all others have 0, four below the last chosen one.
 *
 * Who may call it: src/. Threads: one owner; pure after open.
 */
#ifndef STK_SYNTH_ROUTE_H
#define STK_SYNTH_ROUTE_H

#include "src/base.h"

/* A Hadamard matrix of order `order`: one of order 2^k * m where m is 1 or a prime p = 3 (mod 4) plus 1. */
typedef struct stk_synth_signs {
    uint32_t order;
    uint32_t m;       /* 1: Sylvester's matrix alone */
    uint8_t *squares; /* [m - 1] whether i is a square modulo m - 1; NULL for m == 1 */
} stk_synth_signs;

/* STK_EUNSUPPORTED when no such matrix of that order is known here; STK_ENOMEM. */
int stk_synth_signs_open(stk_synth_signs *s, uint32_t order) STK_CHECKED;
void stk_synth_signs_close(stk_synth_signs *s);
/* out [order] = row `row`, 1 or -1. */
void stk_synth_signs_row(const stk_synth_signs *s, uint32_t row, int8_t *out);

typedef struct stk_synth_route stk_synth_route;

/*
 * Reads the routing of the first `n_max` tokens of a trace, in its order, without those of aborted steps. Logs a line when the
 * trace has more, and one when some of its routing is missing: there experts are drawn (seed). STK_EFORMAT (a trace without
 * tokens), what the reader of the trace returns, STK_ENOMEM.
 */
int stk_synth_route_open(stk_synth_route **out, const char *trace, uint32_t n_max, uint64_t seed) STK_CHECKED;
void stk_synth_route_close(stk_synth_route **r);

uint32_t stk_synth_route_n_token(const stk_synth_route *r);
uint32_t stk_synth_route_n_layer(const stk_synth_route *r);
uint32_t stk_synth_route_n_expert(const stk_synth_route *r);
uint32_t stk_synth_route_k(const stk_synth_route *r);
/* [k] experts of a token in rank order, all different. */
const uint16_t *stk_synth_route_ids(const stk_synth_route *r, uint32_t layer, uint32_t token);

/* out [n_expert, n_embd] f32 = the router of a layer; rows [n_token, n_embd] are the tokens' embeddings. */
void stk_synth_route_router(const stk_synth_route *r, uint32_t layer, const int8_t *rows, uint32_t n_embd, float *out);

#endif
