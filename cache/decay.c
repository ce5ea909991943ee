/* decay: see the header. */
#include "cache/decay.h"

/* A weight beyond the limit is scaled back; scores so far behind it that they vanish then are ties. */
#define LIMIT 0x1p400
#define SCALE 0x1p-400

void stk_decay_open(stk_ranked *r) { r->own = stk_ranked_bits(1); }

static void scale_back(stk_ranked *r) {
    r->own = stk_ranked_bits(stk_decay_weight(r) * SCALE);
    for (size_t i = 0; i < (size_t)r->n_key * STK_DECAY_N_WORD; i++)
        r->words[i] = stk_ranked_bits(stk_ranked_double(r->words[i]) * SCALE);
    for (uint32_t i = 0; i < r->heap.n; i++) r->heap.entries[i].rank = *stk_ranked_words(r, r->heap.entries[i].key);
    stk_heap_order(&r->heap);
}

void stk_decay_step(stk_ranked *r, double factor) {
    double weight = stk_decay_weight(r) / factor;
    r->own = stk_ranked_bits(weight);
    if (weight > LIMIT) scale_back(r);
}

void stk_decay_add(stk_ranked *r, uint32_t key, double x) {
    uint64_t bits = stk_ranked_bits(stk_decay_score(r, key) + x * stk_decay_weight(r));
    stk_ranked_words(r, key)[STK_DECAY_SCORE] = bits;
    stk_ranked_set(r, key, bits);
}

int stk_decay_insert(stk_ranked *r, uint32_t key, double x) {
    double score = key < r->n_key ? stk_decay_score(r, key) : 0;
    return stk_ranked_insert(r, key, stk_ranked_bits(score + x * stk_decay_weight(r)));
}

/* No weight, and no score that grew from it, comes near what is refused here. */
static bool is_sane(const uint64_t *words, const stk_ranked_totals *totals) {
    double weight = stk_ranked_double(totals->own), rank = stk_ranked_double(words[STK_DECAY_RANK]),
           score = stk_ranked_double(words[STK_DECAY_SCORE]);
    return weight > 0 && weight <= LIMIT && rank >= 0 && rank <= LIMIT * LIMIT && score >= 0 && score <= LIMIT * LIMIT &&
           words[STK_DECAY_RANK] >> 63 == 0 && words[STK_DECAY_SCORE] >> 63 == 0; /* -0 would rank above all */
}

int stk_decay_load(stk_ranked *r, const void *data, size_t bytes) { return stk_ranked_load(r, data, bytes, is_sane); }
