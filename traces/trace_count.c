/*
 * trace_count: the distinct experts of an event. Decoding one token's event takes little more than this, so that the few ids of
 * one token have ways of their own.
 */
#include "traces/trace_count.h"

#include <stdlib.h>

enum { COUNT_EXPERTS = 1024 }; /* most of a layer for counting one token by bits */

int stk_trace_count_open(trace_count *c, uint32_t n_expert) {
    c->distinct = calloc(n_expert, sizeof *c->distinct);
    c->counts = calloc(n_expert, sizeof *c->counts);
    c->ones = calloc(n_expert, sizeof *c->ones);
    c->scratch = calloc(n_expert, sizeof *c->scratch);
    if (!c->distinct || !c->counts || !c->ones || !c->scratch) return stk_fail(STK_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < n_expert; i++) c->ones[i] = 1;
    return 0;
}

void stk_trace_count_close(trace_count *c) {
    free(c->distinct);
    free(c->counts);
    free(c->ones);
    free(c->scratch);
}

/* The bits of one word as experts from `first` on. */
static uint32_t put_bits(trace_count *c, uint32_t at, uint64_t bits, uint32_t first) {
    for (; bits; bits &= bits - 1) c->distinct[at++] = (uint16_t)(first + (uint32_t)__builtin_ctzll(bits));
    return at;
}

/* As count_token, of at most 128 experts, whose bits stay in registers. */
static uint32_t count_small(trace_count *c, const uint16_t *ids, uint32_t n_id) {
    uint64_t low = 0, high = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_id; i++) {
        uint64_t there = ids[i] != STK_NO_EXPERT, bit = there << (ids[i] % 64), above = 0 - (uint64_t)(ids[i] >= 64);
        low |= bit & ~above;
        high |= bit & above;
        n += (uint32_t)there;
    }
    uint32_t at = put_bits(c, 0, low, 0);
    return put_bits(c, at, high, 64) == n ? n : UINT32_MAX;
}

/* Experts of one token, as long as they differ: through a bit each, which sorts them without a branch that cannot be foreseen.
 * UINT32_MAX: two are the same. */
static uint32_t count_token(trace_count *c, const uint16_t *ids, uint32_t n_id) {
    uint64_t bits[COUNT_EXPERTS / 64] = {0};
    uint32_t n = 0, least = UINT32_MAX, most = 0;
    for (uint32_t i = 0; i < n_id; i++) {
        uint32_t id = ids[i];
        if (id == STK_NO_EXPERT) continue;
        bits[id / 64] |= (uint64_t)1 << (id % 64);
        least = STK_MIN(least, id / 64);
        most = STK_MAX(most, id / 64);
        n++;
    }
    uint32_t at = 0;
    for (uint32_t word = n ? least : 1; word <= most; word++) at = put_bits(c, at, bits[word], word * 64);
    return at == n ? n : UINT32_MAX;
}

static uint32_t count_many(trace_count *c, const uint16_t *ids, size_t n_id, uint32_t n_expert) {
    uint32_t n = 0;
    for (size_t i = 0; i < n_id; i++)
        if (ids[i] != STK_NO_EXPERT) c->scratch[ids[i]]++;
    for (uint32_t expert = 0; expert < n_expert; expert++) {
        if (!c->scratch[expert]) continue;
        c->distinct[n] = (uint16_t)expert;
        c->counts[n++] = c->scratch[expert];
        c->scratch[expert] = 0;
    }
    return n;
}

void stk_trace_count(trace_count *c, stk_event *event) {
    size_t n_id = (size_t)event->n_tok * event->k;
    uint32_t n = UINT32_MAX;
    event->counts = c->ones;
    if (event->n_tok == 1 && event->n_expert <= 128)
        n = count_small(c, event->ids, event->k);
    else if (event->n_tok == 1 && event->n_expert <= COUNT_EXPERTS)
        n = count_token(c, event->ids, event->k);
    if (n == UINT32_MAX) {
        n = count_many(c, event->ids, n_id, event->n_expert);
        event->counts = c->counts;
    }
    event->n_distinct = n;
    event->distinct = c->distinct;
}
