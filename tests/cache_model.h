/*
 * cache_model: what cache/ with policy lru must do, written with arrays and loops as plainly as possible: the model that
 * test_cache.c compares with, and a builder of random events.
 */
#ifndef STK_TEST_CACHE_MODEL_H
#define STK_TEST_CACHE_MODEL_H

#include <string.h>

#include "cache/cache.h"

enum { MODEL_MAX_KEY = 2048, MODEL_MAX_EXPERT = 256, MODEL_MAX_CLASS = 4 };

typedef struct model_class {
    uint32_t n_slot, n_transit, next_transit;
    uint32_t key_in[MODEL_MAX_KEY]; /* by slot */
    uint32_t age[MODEL_MAX_KEY];    /* [n_age] residents, oldest first */
    uint32_t n_age;
} model_class;

typedef struct model {
    uint32_t n_expert;
    uint32_t layer_class[16];
    model_class classes[MODEL_MAX_CLASS];
    bool busy[MODEL_MAX_KEY], coming[MODEL_MAX_KEY];
    bool held[MODEL_MAX_KEY];      /* prefetched for a layer whose event has not come */
    bool (*refuses)(uint32_t key); /* NULL: nothing is refused */
    stk_cache_counters counters;
} model;

static inline int model_slot(const model *m, uint32_t key) {
    const model_class *c = &m->classes[m->layer_class[key / m->n_expert]];
    for (uint32_t slot = 0; slot < c->n_slot; slot++)
        if (c->key_in[slot] == key) return (int)slot;
    return -1;
}

static inline void model_unage(model_class *c, uint32_t key) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_age; i++)
        if (c->age[i] != key) c->age[n++] = c->age[i];
    c->n_age = n;
}

static inline void model_age(model_class *c, uint32_t key, uint32_t at) {
    memmove(&c->age[at + 1], &c->age[at], (c->n_age - at) * sizeof c->age[0]);
    c->age[at] = key;
    c->n_age++;
}

static inline void model_drop(model *m, uint32_t key) {
    model_class *c = &m->classes[m->layer_class[key / m->n_expert]];
    int slot = model_slot(m, key);
    if (slot < 0) return;
    c->key_in[slot] = STK_NO_KEY;
    model_unage(c, key);
    m->coming[key] = m->held[key] = false;
}

/* The lowest free slot, else the oldest that is not busy; false when there is neither. */
static inline bool model_take(model *m, model_class *c, uint32_t *slot, uint32_t *victim) {
    *victim = STK_NO_KEY;
    for (*slot = 0; *slot < c->n_slot; ++*slot)
        if (c->key_in[*slot] == STK_NO_KEY) return true;
    for (uint32_t i = 0; i < c->n_age; i++) {
        if (m->busy[c->age[i]] || m->held[c->age[i]]) continue;
        *victim = c->age[i];
        *slot = (uint32_t)model_slot(m, *victim);
        model_drop(m, *victim);
        m->counters.n_evict++;
        return true;
    }
    return false;
}

/* As above; where there is neither, what was prefetched for layers to come may leave too. */
static inline bool model_need(model *m, model_class *c, uint32_t *slot, uint32_t *victim) {
    if (model_take(m, c, slot, victim)) return true;
    memset(m->held, 0, sizeof m->held);
    return model_take(m, c, slot, victim);
}

/* The event's experts by count falling, then id: order[i] is a position in event->distinct. */
static inline void model_sort(const stk_event *event, uint32_t *order) {
    for (uint32_t i = 0; i < event->n_distinct; i++) order[i] = i;
    for (uint32_t i = 1; i < event->n_distinct; i++)
        for (uint32_t j = i; j > 0 && event->counts[order[j]] > event->counts[order[j - 1]]; j--) {
            uint32_t x = order[j];
            order[j] = order[j - 1];
            order[j - 1] = x;
        }
}

/* Long because it is the whole rule in one place, to be read beside cache.h. */
static inline uint32_t model_event(model *m, uint32_t layer, const stk_event *event, stk_decision *list) {
    model_class *c = &m->classes[m->layer_class[layer]];
    uint32_t order[MODEL_MAX_EXPERT], n = event->n_distinct, done = 0, wave = 0, wave_transit = 0;
    bool hit[MODEL_MAX_EXPERT];
    memset(m->busy, 0, sizeof m->busy);
    memset(m->held + layer * m->n_expert, 0, m->n_expert * sizeof m->held[0]);
    model_sort(event, order);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = layer * m->n_expert + event->distinct[i];
        hit[i] = model_slot(m, key) >= 0;
        m->busy[key] = true;
    }
    for (uint32_t i = n; i-- > 0;) { /* least useful first: it becomes the oldest of them */
        uint32_t key = layer * m->n_expert + event->distinct[order[i]];
        if (!hit[order[i]]) continue;
        model_unage(c, key);
        model_age(c, key, c->n_age);
    }
    for (int misses = 0; misses <= 1; misses++)
        for (uint32_t i = 0; i < n; i++) {
            uint32_t o = order[i], key = layer * m->n_expert + event->distinct[o];
            if (hit[o] == misses) continue;
            stk_decision *d = &list[done];
            *d = (stk_decision){.key = key, .expert = event->distinct[o], .n_tok = event->counts[o], .victim = STK_NO_KEY};
            bool refused = misses && m->refuses && m->refuses(key);
            if (!misses) {
                d->kind = STK_HIT;
                d->slot = (uint32_t)model_slot(m, key);
                d->coming = m->coming[key];
                m->counters.n_prefetch_used += d->coming;
                m->coming[key] = false;
            } else if (refused ? wave_transit == c->n_transit : !model_need(m, c, &d->slot, &d->victim)) {
                wave++;
                wave_transit = 0;
                for (uint32_t j = 0; j < done; j++) m->busy[list[j].key] = false;
                if (!refused) model_take(m, c, &d->slot, &d->victim);
            }
            if (refused) {
                d->kind = STK_TRANSIT;
                d->slot = c->n_slot + c->next_transit;
                c->next_transit = (c->next_transit + 1) % c->n_transit;
                wave_transit++;
            } else if (misses) {
                d->kind = STK_ADMIT;
                c->key_in[d->slot] = key;
                /* It is just older than the least useful of the event's residents that are more useful than it. */
                uint32_t at = c->n_age;
                for (uint32_t a = 0; a < c->n_age; a++)
                    for (uint32_t j = 0; j < i && at == c->n_age; j++)
                        if (c->age[a] == layer * m->n_expert + event->distinct[order[j]]) at = a;
                model_age(c, key, at);
            }
            d->wave = wave;
            m->counters.n_lookup++;
            m->counters.n_pair += d->n_tok;
            *(misses ? &m->counters.n_miss : &m->counters.n_hit) += 1;
            done++;
        }
    for (uint32_t i = 0; i < n; i++) m->busy[list[i].key] = true;
    m->counters.n_event++, m->counters.n_wave += wave + 1;
    return n;
}

static inline bool model_prefetch(model *m, uint32_t key, stk_decision *d) {
    model_class *c = &m->classes[m->layer_class[key / m->n_expert]];
    *d = (stk_decision){.key = key, .expert = (uint16_t)(key % m->n_expert), .kind = STK_ADMIT};
    if (model_slot(m, key) >= 0 || (m->refuses && m->refuses(key)) || !model_take(m, c, &d->slot, &d->victim)) return false;
    c->key_in[d->slot] = key;
    model_age(c, key, 0);
    m->coming[key] = m->held[key] = true;
    m->counters.n_prefetch++;
    return true;
}

static inline void model_open(model *m, const stk_cache_config *config) {
    memset(m, 0, sizeof *m);
    m->n_expert = config->n_expert;
    memcpy(m->layer_class, config->layer_class, sizeof m->layer_class[0] * config->n_layer);
    for (uint32_t i = 0; i < config->n_class; i++) {
        m->classes[i].n_slot = config->classes[i].n_slot;
        m->classes[i].n_transit = config->classes[i].n_transit;
        memset(m->classes[i].key_in, 0xff, sizeof m->classes[i].key_in);
    }
}

/* An event and the memory behind it. */
typedef struct model_input {
    stk_event event;
    uint16_t distinct[MODEL_MAX_EXPERT];
    uint32_t counts[MODEL_MAX_EXPERT];
} model_input;

static inline uint32_t model_random(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

/* n_tok tokens choose k different experts each, low ids more often. */
static inline void model_random_event(model_input *in, uint64_t *rng, uint32_t n_expert, uint32_t k, uint32_t n_tok) {
    uint32_t n[MODEL_MAX_EXPERT] = {0};
    for (uint32_t t = 0; t < n_tok; t++) {
        bool taken[MODEL_MAX_EXPERT] = {false};
        for (uint32_t i = 0; i < k;) {
            uint32_t bound = 1 + model_random(rng, n_expert), expert = model_random(rng, bound);
            if (taken[expert]) continue;
            taken[expert] = true;
            n[expert]++;
            i++;
        }
    }
    in->event = (stk_event){.n_tok = n_tok, .k = k, .n_expert = n_expert, .distinct = in->distinct, .counts = in->counts};
    for (uint32_t expert = 0; expert < n_expert; expert++) {
        if (!n[expert]) continue;
        in->counts[in->event.n_distinct] = n[expert];
        in->distinct[in->event.n_distinct++] = (uint16_t)expert;
    }
}

#endif
