/* tally: counters by layer and phase. */
#include "tally.h"

#include <stdlib.h>
#include <string.h>

int stk_tally_open(stk_tally *t, const stk_trace_header *header) {
    size_t n_key = (size_t)header->n_layer * header->n_expert;
    *t = (stk_tally){.header = header, .max_seq = INT64_MIN};
    t->expert_read_bytes = calloc(n_key, sizeof *t->expert_read_bytes);
    t->read = calloc(n_key, 1);
    t->layers = calloc(header->n_layer, sizeof *t->layers);
    if (!t->expert_read_bytes || !t->read || !t->layers) {
        stk_tally_close(t);
        return stk_fail(STK_ENOMEM, "out of memory for the replay");
    }
    for (size_t key = 0; key < n_key; key++)
        for (uint32_t p = 0; p < header->n_part; p++)
            t->expert_read_bytes[key] += header->extents[key * header->n_part + p].bytes;
    return 0;
}

void stk_tally_close(stk_tally *t) {
    free(t->expert_read_bytes);
    free(t->read);
    free(t->layers);
    t->expert_read_bytes = NULL;
    t->read = NULL;
    t->layers = NULL;
}

enum stk_phase stk_tally_phase(const stk_trace_step *step) {
    for (uint32_t i = 0; i < step->n_tok; i++)
        if (!step->logits[i] || (i && step->seq[i] == step->seq[i - 1])) return STK_PREFILL;
    return STK_DECODE;
}

bool stk_tally_step(stk_tally *t, const stk_trace_step *step) {
    uint64_t before = t->n_sequence;
    t->phase = stk_tally_phase(step);
    for (uint32_t i = 0; i < step->n_tok; i++) {
        t->n_sequence += step->pos[i] == 0 || step->seq[i] > t->max_seq;
        t->max_seq = STK_MAX(t->max_seq, step->seq[i]);
    }
    return t->n_sequence > before;
}

/* Hits come first, and of them there is nothing to note. A byte that is stored could change whatever `t` holds for all the
 * compiler knows, hence locals. */
void stk_tally_event(stk_tally *t, uint32_t layer, const stk_decision *list, uint32_t n) {
    stk_replay_count *c = &t->layers[layer][t->phase];
    const uint64_t *expert_read_bytes = t->expert_read_bytes;
    uint8_t *read = t->read, by = (uint8_t)(1 + t->phase);
    uint64_t n_miss = 0, n_evict = 0, read_bytes = 0;
    for (uint32_t i = 0; i < n; i++) n_miss += list[i].kind != STK_HIT;
    for (uint32_t i = n - (uint32_t)n_miss; i < n; i++) {
        n_evict += list[i].victim != STK_NO_KEY;
        read_bytes += expert_read_bytes[list[i].key];
        read[list[i].key] = by;
    }
    c->n_event++;
    c->n_lookup += n;
    c->n_hit += n - n_miss;
    c->n_miss += n_miss;
    c->n_evict += n_evict;
    c->bytes += n_miss * t->header->classes[t->header->layer_class[layer]].payload_bytes;
    c->read_bytes += read_bytes;
}

void stk_tally_prefetch(stk_tally *t, const stk_decision *d) {
    uint32_t layer = d->key / t->header->n_expert;
    stk_replay_count *c = &t->layers[layer][t->phase];
    c->n_evict += d->victim != STK_NO_KEY;
    c->bytes += t->header->classes[t->header->layer_class[layer]].payload_bytes;
    c->read_bytes += t->expert_read_bytes[d->key];
    t->read[d->key] = (uint8_t)(1 + t->phase);
}

bool stk_tally_drop(stk_tally *t, uint32_t key) {
    uint32_t layer = key / t->header->n_expert;
    if (!t->read[key]) return false;
    stk_replay_count *c = &t->layers[layer][t->read[key] - 1];
    c->bytes -= t->header->classes[t->header->layer_class[layer]].payload_bytes;
    c->read_bytes -= t->expert_read_bytes[key];
    t->read[key] = 0;
    return true;
}

void stk_tally_sum(const stk_tally *t, stk_replay_count *prefill, stk_replay_count *decode) {
    for (int phase = 0; phase < 2; phase++) {
        stk_replay_count *out = phase == STK_PREFILL ? prefill : decode;
        *out = t->phases[phase];
        for (uint32_t layer = 0; layer < t->header->n_layer; layer++) {
            const stk_replay_count *c = &t->layers[layer][phase];
            out->n_event += c->n_event;
            out->n_lookup += c->n_lookup;
            out->n_hit += c->n_hit;
            out->n_miss += c->n_miss;
            out->n_evict += c->n_evict;
            out->bytes += c->bytes;
            out->read_bytes += c->read_bytes;
        }
    }
}
