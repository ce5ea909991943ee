/* tune_traces: one look at the traces: first where sequences begin, then how experts are used. */
#include <stdlib.h>
#include <string.h>

#include "tune.h"

enum { PROGRESS_STEPS = 4096, LEAST_SEQUENCES = 4 };

/* Of each step, in the first pass. */
typedef struct step_list {
    uint32_t *sequence; /* [n] number of the sequence that began last */
    uint64_t n, room;
} step_list;

static int add_step(step_list *s, uint64_t sequence) {
    if (s->n == s->room) {
        uint64_t room = STK_MAX(2 * s->room, 1024u);
        uint32_t *more = realloc(s->sequence, room * sizeof *more);
        if (!more) return stk_fail(STK_ENOMEM, "out of memory for %llu steps", (unsigned long long)room);
        s->sequence = more;
        s->room = room;
    }
    s->sequence[s->n++] = (uint32_t)sequence;
    return STK_OK;
}

static uint64_t mix(uint64_t h, uint64_t x) { return (h ^ x) * 0x9e3779b97f4a7c15u ^ (h >> 29); }

static void hash_event(stk_tune_traces *t, const stk_event *e) {
    t->hash = mix(t->hash, e->layer);
    for (uint32_t i = 0; i < e->n_distinct; i++) t->hash = mix(t->hash, e->distinct[i] * 4099u + e->counts[i]);
}

static void see_ahead(stk_tune_traces *t, uint32_t layer, const stk_trace_ahead *ahead) {
    for (uint32_t i = 0; i < ahead->n; i++)
        if (ahead->list[i].key / t->n_expert > layer) t->n_ahead = STK_MAX(t->n_ahead, ahead->list[i].key / t->n_expert - layer);
}

static int take_header(stk_tune_traces *t, const stk_source *source) {
    const stk_trace_header *h = stk_source_header(source);
    t->n_layer = h->n_layer;
    t->n_expert = h->n_expert;
    t->k = h->k;
    t->sized = stk_source_get_info(source)->sized;
    t->one_size = true;
    strncpy(t->model, h->model, sizeof t->model - 1);
    strncpy(t->io, h->io, sizeof t->io - 1);
    t->slot_bytes = calloc(h->n_layer, sizeof *t->slot_bytes);
    t->uses = calloc((size_t)h->n_layer * h->n_expert, sizeof *t->uses);
    t->far = calloc((size_t)h->n_layer * h->n_expert, sizeof *t->far);
    if (!t->slot_bytes || !t->uses || !t->far) return stk_fail(STK_ENOMEM, "out of memory for tuning");
    for (uint32_t l = 0; l < h->n_layer; l++) {
        t->slot_bytes[l] = h->classes[h->layer_class[l]].slot_bytes;
        t->all_bytes += t->slot_bytes[l] * h->n_expert;
        t->one_size = t->one_size && t->slot_bytes[l] == t->slot_bytes[0];
    }
    for (uint32_t c = 0; c < h->n_class; c++)
        t->recorded_bytes += (uint64_t)(h->classes[c].n_slot + h->classes[c].n_transit) * h->classes[c].slot_bytes;
    return STK_OK;
}

static int show(const stk_source *source, uint64_t n, stk_progress_fn progress, void *user) {
    uint64_t done, total;
    if (!progress || n % PROGRESS_STEPS) return STK_OK;
    stk_source_progress(source, &done, &total);
    return progress(user, "reading the traces", done, total) ? stk_fail(STK_ECANCELED, "tuning was cancelled") : STK_OK;
}

/* The first pass: sequences, tokens, predictions, the hash. */
static int pass_steps(stk_tune_traces *t, step_list *steps, stk_progress_fn progress, void *user) {
    stk_source *source;
    stk_trace_record r;
    stk_tally tally = {.max_seq = INT64_MIN};
    uint32_t layer = 0;
    int rc = stk_source_open(&source, t->paths, t->n_path, &t->source);
    if (rc >= 0) rc = take_header(t, source);
    while (rc >= 0 && (rc = stk_source_read(source, &r)) == 1) {
        if (r.kind == STK_TRACE_STEP) {
            (void)stk_tally_step(&tally, &r.step);
            t->n_token += r.step.n_tok;
            t->n_decode += tally.phase == STK_DECODE ? r.step.n_tok : 0;
            rc = add_step(steps, tally.n_sequence);
            if (rc >= 0) rc = show(source, steps->n, progress, user);
        } else if (r.kind == STK_TRACE_EVENT) {
            layer = r.event.layer;
            hash_event(t, &r.event);
        } else if (r.kind == STK_TRACE_AHEAD) {
            see_ahead(t, layer, &r.ahead);
        }
    }
    stk_source_close(&source);
    t->n_sequence = tally.n_sequence;
    t->n_step = steps->n;
    return rc;
}

/* By sequence, each in turn; where there are few sequences, stretches of steps. */
static int make_parts(stk_tune_traces *t, const step_list *steps) {
    if (!t->n_step) return stk_fail(STK_EINVAL, "%s has no steps", t->paths[0]);
    t->part = malloc(t->n_step);
    bool by_sequence = t->n_sequence >= LEAST_SEQUENCES;
    t->n_part = (uint32_t)STK_MIN(by_sequence ? t->n_sequence : t->n_step, (uint64_t)STK_TUNE_PARTS);
    t->near = calloc((size_t)t->n_part * t->n_layer * t->n_expert, sizeof *t->near);
    if (!t->part || !t->near) return stk_fail(STK_ENOMEM, "out of memory for tuning");
    for (uint64_t i = 0; i < t->n_step; i++)
        t->part[i] =
            (uint8_t)(by_sequence ? (steps->sequence[i] ? steps->sequence[i] - 1 : 0) % t->n_part : i * t->n_part / t->n_step);
    return STK_OK;
}

/* ---- How far apart uses lie ---------------------------------------------------------------------------------------------- */

/* Experts of all layers in the order of their last use: a place in time for each, and a Fenwick tree that counts places taken. */
typedef struct recency {
    uint32_t *place; /* [n_key] 1-based, 0: never used */
    uint32_t *owner; /* [n_place + 1] key + 1 */
    uint32_t *tree;  /* [n_place + 1] */
    uint32_t n_place, next, n_key;
    uint16_t *lists;  /* [n_layer, n_expert] experts of a layer, the last used first */
    uint32_t *length; /* [n_layer] */
} recency;

static void recency_close(recency *r) {
    free(r->place);
    free(r->owner);
    free(r->tree);
    free(r->lists);
    free(r->length);
}

static int recency_open(recency *r, const stk_tune_traces *t) {
    r->n_key = t->n_layer * t->n_expert;
    r->n_place = 4 * r->n_key;
    r->next = 1;
    r->place = calloc(r->n_key, sizeof *r->place);
    r->owner = calloc(r->n_place + 1, sizeof *r->owner);
    r->tree = calloc(r->n_place + 1, sizeof *r->tree);
    r->lists = calloc(r->n_key, sizeof *r->lists);
    r->length = calloc(t->n_layer, sizeof *r->length);
    if (r->place && r->owner && r->tree && r->lists && r->length) return STK_OK;
    return stk_fail(STK_ENOMEM, "out of memory for tuning");
}

static void tree_add(recency *r, uint32_t place, int by) {
    for (; place <= r->n_place; place += place & (0 - place)) r->tree[place] += (uint32_t)by;
}

static uint32_t tree_sum(const recency *r, uint32_t place) {
    uint32_t sum = 0;
    for (; place; place -= place & (0 - place)) sum += r->tree[place];
    return sum;
}

/* Moves all places to the front, in their order. */
static void renumber(recency *r) {
    uint32_t n = 0;
    memset(r->tree, 0, (r->n_place + 1) * sizeof *r->tree);
    for (uint32_t p = 1; p < r->next; p++) {
        if (!r->owner[p]) continue;
        r->owner[++n] = r->owner[p];
        r->place[r->owner[n] - 1] = n;
        tree_add(r, n, 1);
    }
    for (uint32_t p = n + 1; p <= r->n_place; p++) r->owner[p] = 0;
    r->next = n + 1;
}

/* Experts used since this one's last use, itself included; 0: never used. */
static uint32_t far_of(const recency *r, uint32_t key) {
    return r->place[key] ? tree_sum(r, r->n_place) - tree_sum(r, r->place[key] - 1) : 0;
}

static void use(recency *r, uint32_t key) {
    if (r->next > r->n_place) renumber(r);
    if (r->place[key]) {
        tree_add(r, r->place[key], -1);
        r->owner[r->place[key]] = 0;
    }
    r->place[key] = r->next;
    r->owner[r->next] = key + 1;
    tree_add(r, r->next++, 1);
}

/* The place of an expert in its layer's list from 1, 0: not there; moves it to the front. */
static uint32_t near_of(recency *r, uint32_t layer, uint32_t n_expert, uint16_t expert) {
    uint16_t *list = r->lists + (size_t)layer * n_expert;
    uint32_t i = 0, n = r->length[layer];
    while (i < n && list[i] != expert) i++;
    if (i == n) r->length[layer]++;
    memmove(list + 1, list, i * sizeof *list);
    list[0] = expert;
    return i == n ? 0 : i + 1;
}

static void see_event(stk_tune_traces *t, recency *r, const stk_event *e, uint32_t part) {
    uint32_t *near = t->near + ((size_t)part * t->n_layer + e->layer) * t->n_expert;
    for (uint32_t i = 0; i < e->n_distinct; i++) {
        uint32_t key = e->layer * t->n_expert + e->distinct[i], d = far_of(r, key);
        t->uses[key]++;
        if (d) t->far[d - 1]++;
    }
    for (uint32_t i = 0; i < e->n_distinct; i++) {
        uint32_t d = near_of(r, e->layer, t->n_expert, e->distinct[i]);
        if (d) near[d - 1]++;
        use(r, e->layer * t->n_expert + e->distinct[i]);
    }
    t->n_lookup += e->n_distinct;
}

/* The second pass. */
static int pass_uses(stk_tune_traces *t, stk_progress_fn progress, void *user) {
    stk_source *source;
    stk_trace_record record;
    recency r = {0};
    uint64_t n = 0;
    int rc = stk_source_open(&source, t->paths, t->n_path, &t->source);
    if (rc >= 0) rc = recency_open(&r, t);
    while (rc >= 0 && (rc = stk_source_read(source, &record)) == 1) {
        if (record.kind == STK_TRACE_STEP && n < t->n_step) rc = show(source, ++n, progress, user);
        if (record.kind == STK_TRACE_EVENT && n) see_event(t, &r, &record.event, t->part[n - 1]);
    }
    stk_source_close(&source);
    recency_close(&r);
    return rc;
}

int stk_tune_traces_open(stk_tune_traces *t, stk_progress_fn progress, void *user) {
    step_list steps = {0};
    int rc = pass_steps(t, &steps, progress, user);
    if (rc >= 0) rc = make_parts(t, &steps);
    free(steps.sequence);
    return rc < 0 ? rc : pass_uses(t, progress, user);
}

void stk_tune_traces_close(stk_tune_traces *t) {
    free(t->slot_bytes);
    free(t->part);
    free(t->uses);
    free(t->near);
    free(t->far);
    *t = (stk_tune_traces){0};
}

/* ---- Slots of each layer ------------------------------------------------------------------------------------------------- */

/* Lookups of a layer that a cache of n experts hits, without a part. */
static void hits_by_slots(const stk_tune_traces *t, uint32_t layer, int without, uint64_t *hits) {
    hits[0] = 0;
    for (uint32_t n = 0; n < t->n_expert; n++) {
        hits[n + 1] = hits[n];
        for (uint32_t p = 0; p < t->n_part; p++)
            if ((int)p != without) hits[n + 1] += t->near[((size_t)p * t->n_layer + layer) * t->n_expert + n];
    }
}

/* The most hits a byte that further slots of a layer bring, within `left` bytes; *n: how many slots. */
static double best_gain(const stk_tune_traces *t, uint32_t layer, const uint64_t *hits, uint32_t have, uint64_t left,
                        uint32_t *n) {
    double best = -1;
    for (uint32_t m = 1; have + m <= t->n_expert && m * t->slot_bytes[layer] <= left; m++) {
        double gain = (double)(hits[have + m] - hits[have]) / (double)(m * t->slot_bytes[layer]);
        if (gain <= best) continue;
        best = gain;
        *n = m;
    }
    return best;
}

/* Gives away what is left, the best piece first. n_slot counts residents alone. */
static void give_slots(const stk_tune_traces *t, const uint64_t *hits, uint64_t left, uint32_t *n_slot) {
    for (;;) {
        uint32_t best_layer = 0, best_n = 0;
        double best = -1;
        for (uint32_t l = 0; l < t->n_layer; l++) {
            uint32_t n = 0;
            double gain = best_gain(t, l, hits + (size_t)l * (t->n_expert + 1), n_slot[l], left, &n);
            if (gain <= best) continue;
            best = gain;
            best_layer = l;
            best_n = n;
        }
        if (best < 0) return;
        n_slot[best_layer] += best_n;
        left -= best_n * t->slot_bytes[best_layer];
    }
}

int stk_tune_traces_fit(const stk_tune_traces *t, uint64_t bytes, uint32_t n_transit, int without, uint32_t *n_slot) {
    uint64_t least = 0;
    for (uint32_t l = 0; l < t->n_layer; l++) {
        n_slot[l] = t->k;
        least += (t->k + n_transit) * t->slot_bytes[l];
    }
    if (least > bytes)
        return stk_fail(STK_EBUDGET, "%llu bytes of expert slots are too few for a cache of each layer: the least is %llu",
                        (unsigned long long)bytes, (unsigned long long)least);
    uint64_t *hits = calloc((size_t)t->n_layer * (t->n_expert + 1), sizeof *hits);
    if (!hits) return stk_fail(STK_ENOMEM, "out of memory for tuning");
    for (uint32_t l = 0; l < t->n_layer; l++) hits_by_slots(t, l, without, hits + (size_t)l * (t->n_expert + 1));
    give_slots(t, hits, bytes - least, n_slot);
    for (uint32_t l = 0; l < t->n_layer; l++) n_slot[l] = STK_MIN(n_slot[l] + n_transit, t->n_expert);
    free(hits);
    return STK_OK;
}
