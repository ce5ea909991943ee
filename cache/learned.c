/*
 * learned: the expert that is likely to be wanted the latest leaves first, and a missed one is refused where that is itself. How
 * soon an expert will be wanted is learned while running (learned_model.h).
 *
 * A score is worked out at each event of the expert's layer and stands until the layer's next one. Experts of the running event
 * are held, prefetched ones until their layer's next event. Where a layer has fewer slots than two tokens use, most of what an
 * event hits will not be wanted soon either: there a hit may make room for a miss, one wave later.
 *
 * Costs: an event takes one pass over the layer's experts in vectors (learned_lanes.h), a victim another, and one over the lowest
 * scores of all layers.
 */
#include "cache/learned_model.h"
#include "cache/policies.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_MAGIC = 0x334e524c }; /* "LRN3" */
enum { RESIDENT = 1, OF_EVENT = 2, FETCHED_AHEAD = 4, ALL_FLAGS = 7 };

/* Who may leave, by flags: whether that is so cannot be foreseen, hence no branch on it. */
#define STAYS INFINITY
static const float bar_of[ALL_FLAGS + 1] = {STAYS, 0, STAYS, STAYS, STAYS, STAYS, STAYS, STAYS};
static const float bar_of_few[ALL_FLAGS + 1] = {STAYS, 0, STAYS, 0, STAYS, STAYS, STAYS, STAYS}; /* where hits may leave, too */

typedef struct state_head {
    uint32_t magic, n_key, n_expert, n_layer, n_slot, n_resident, k, has_waited;
} state_head;

struct layer {
    stk_learned_layer model;
    uint32_t number; /* among the layers of all instances */
    float *bar;      /* [n_pad] 0 for those that may leave, infinite for the others: added to the score */
    uint32_t first_key;
    uint32_t n_ahead; /* experts that were fetched ahead */
    uint32_t lowest;  /* expert with the lowest score that may leave */
    bool is_stale;    /* that and the layer's entry in lowest_score are */
};

struct stk_policy {
    stk_learned_model model;
    uint32_t n_key, n_expert, n_pad, n_slot, n_resident, n_layer;
    bool one_wave;            /* as the configuration has it */
    bool has_waited;          /* the last victim asked for was to wait for the next wave */
    bool ahead;               /* the expert that was admitted last is none of the running event's */
    uint32_t n_held;          /* of the running event: */
    uint32_t *held;           /* [n_expert] */
    struct layer *layers;     /* [n_layer] */
    float *lowest_score;      /* [n_layer, padded with infinity] of those that may leave, of each layer */
    float *no_bar;            /* [n_layer, padded] zeros */
    uint32_t n_stale, *stale; /* [n_layer] layers whose lowest is not known */
    struct layer *lowest;     /* where none is stale: the layer with the lowest of all, NULL: nobody may leave */
    const float *bar_of;      /* by flags */
    uint8_t *flags;           /* [n_key] */
    unsigned char *blocks;    /* [n_layer + 1] blocks of block_bytes: saved, bar; the last is load's */
    size_t saved_bytes, block_bytes;
    stk_recall **recall, *own_recall; /* that of the cache, or its own */
    bool saves_recall;                /* it was the first to open it */
    uint16_t *set;
    float *scratch;
    uint8_t *votes;
    uint64_t *bits;
};

static struct layer *layer_of(const stk_policy *p, uint32_t key) { return key < p->n_key ? &p->layers[key / p->n_expert] : NULL; }

static void set_stale(stk_policy *p, struct layer *layer) {
    if (!layer->is_stale) p->stale[p->n_stale++] = (uint32_t)(layer - p->layers);
    layer->is_stale = true;
}

/* The expert's flags have changed. */
static void refresh_bar(stk_policy *p, struct layer *layer, uint32_t expert) {
    layer->bar[expert] = p->bar_of[p->flags[layer->first_key + expert]];
    set_stale(p, layer);
}

static uint32_t experts_in(const stk_policy *p, const struct layer *layer) {
    return STK_MIN(p->n_expert, p->n_key - layer->first_key);
}

static void make_empty(stk_policy *p) {
    memset(p->flags, 0, p->n_key);
    for (uint32_t i = 0; i < p->n_layer; i++) {
        for (uint32_t e = 0; e < p->n_pad; e++) p->layers[i].bar[e] = INFINITY;
        p->layers[i].n_ahead = 0;
        set_stale(p, &p->layers[i]);
    }
    p->n_resident = p->n_held = 0;
    p->has_waited = false;
}

/* ---- Open and close ----------------------------------------------------------------------------------------------------- */

static void learned_close(stk_policy *p) {
    if (!p) return;
    if (p->model.recall) stk_recall_close(p->recall);
    free(p->held);
    free(p->layers);
    free(p->lowest_score);
    free(p->no_bar);
    free(p->stale);
    free(p->flags);
    free(p->blocks);
    free(p->set);
    free(p->scratch);
    free(p->votes);
    free(p->bits);
    free(p);
}

static void place_layer(const stk_policy *p, struct layer *layer, uint32_t block) {
    unsigned char *at = p->blocks + (size_t)block * p->block_bytes;
    layer->model = stk_learned_layer_at(p->n_expert, at);
    layer->bar = (float *)(void *)(at + p->saved_bytes);
}

static int open_layers(stk_policy *p, const uint32_t *numbers) {
    uint64_t bytes;
    p->n_layer = (uint32_t)stk_div_up(p->n_key, p->n_expert);
    p->layers = calloc(p->n_layer, sizeof *p->layers);
    p->lowest_score = calloc(stk_learned_pad(p->n_layer), sizeof *p->lowest_score);
    p->no_bar = calloc(stk_learned_pad(p->n_layer), sizeof *p->no_bar);
    p->stale = calloc(p->n_layer, sizeof *p->stale);
    if (!p->layers || !p->lowest_score || !p->no_bar || !p->stale)
        return stk_fail(STK_ENOMEM, "policy learned: out of memory for %u layers", p->n_layer);
    p->saved_bytes = stk_learned_layer_bytes(p->n_expert);
    p->block_bytes = p->saved_bytes + sizeof(float) * p->n_pad;
    if (stk_mul_overflow(p->block_bytes, (uint64_t)p->n_layer + 1, &bytes) || bytes > SIZE_MAX / 2 ||
        !(p->blocks = calloc(1, bytes)))
        return stk_fail(STK_ENOMEM, "policy learned: out of memory for %u layers of %u experts", p->n_layer, p->n_expert);
    for (uint32_t i = 0; i < stk_learned_pad(p->n_layer); i++) p->lowest_score[i] = INFINITY;
    for (uint32_t i = 0; i < p->n_layer; i++) {
        p->layers[i].first_key = i * p->n_expert;
        p->layers[i].number = numbers ? numbers[i] : i;
        place_layer(p, &p->layers[i], i);
        stk_learned_layer_init(&p->layers[i].model);
    }
    return 0;
}

static int open_recall(stk_policy *p, const stk_policy_config *config) {
    p->recall = config->shared ? (stk_recall **)config->shared : &p->own_recall;
    p->saves_recall = !*p->recall;
    uint32_t n_key = STK_MAX(config->n_key_all, config->n_key);
    return stk_recall_open(p->recall, (uint32_t)stk_div_up(n_key, p->n_expert), p->n_expert);
}

static int open_all(stk_policy *p, const stk_policy_config *config) {
    p->n_key = config->n_key;
    p->one_wave = config->one_wave;
    p->n_expert = config->n_expert;
    p->n_slot = config->n_slot;
    p->n_pad = stk_learned_pad(p->n_expert);
    p->bar_of = bar_of;
    p->held = calloc(p->n_expert, sizeof *p->held);
    p->flags = calloc(p->n_key, 1);
    p->set = calloc(p->n_expert, sizeof *p->set);
    p->scratch = calloc(p->n_pad, sizeof *p->scratch);
    p->votes = calloc(p->n_pad, STK_LANES_LAGS);
    p->bits = calloc(p->n_pad / 64, sizeof *p->bits);
    if (!p->held || !p->flags || !p->set || !p->scratch || !p->votes || !p->bits)
        return stk_fail(STK_ENOMEM, "policy learned: out of memory for %u experts", p->n_key);
    STK_TRY(open_layers(p, config->layers));
    STK_TRY(open_recall(p, config));
    stk_learned_model_init(&p->model, p->n_expert, p->n_layer, *p->recall, p->scratch, p->votes, p->bits, p->set);
    make_empty(p);
    return 0;
}

static int learned_open(stk_policy **out, const stk_policy_config *config) {
    STK_TRY(stk_policy_params(&stk_policy_learned, config->params, NULL));
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy learned: out of memory");
    int rc = open_all(p, config);
    if (rc < 0)
        learned_close(p);
    else
        *out = p;
    return rc;
}

/* ---- Events ------------------------------------------------------------------------------------------------------------- */

static void set_size(stk_policy *p, uint32_t k) {
    stk_learned_set_size(&p->model, (double)p->n_slot / STK_MAX(p->n_layer, 1u), k);
    p->bar_of = p->n_slot < (uint64_t)2 * k * p->n_layer ? bar_of_few : bar_of;
    for (uint32_t i = 0; i < p->n_layer; i++)
        for (uint32_t e = 0; e < experts_in(p, &p->layers[i]); e++) refresh_bar(p, &p->layers[i], e);
}

/* The running event is over: of one layer, if there was one. */
static void let_go(stk_policy *p) {
    if (!p->n_held) return;
    struct layer *layer = layer_of(p, p->held[0]);
    uint8_t *flags = p->flags + layer->first_key;
    for (uint32_t i = 0; i < p->n_held; i++) {
        uint32_t e = p->held[i] - layer->first_key;
        flags[e] &= (uint8_t)~OF_EVENT;
        layer->bar[e] = p->bar_of[flags[e]];
    }
    p->n_held = 0;
    set_stale(p, layer);
}

static void let_go_of_prefetched(stk_policy *p, struct layer *layer) {
    for (uint32_t e = 0; layer->n_ahead; e++) {
        uint8_t *flags = &p->flags[layer->first_key + e];
        if (!(*flags & FETCHED_AHEAD)) continue;
        *flags &= (uint8_t)~FETCHED_AHEAD;
        layer->n_ahead--;
        refresh_bar(p, layer, e);
    }
}

static int learned_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    if (n == 0) return 0;
    struct layer *layer = layer_of(p, keys[0]);
    if (!layer) return stk_fail(STK_ESTATE, "policy learned: an event of expert %u of %u", keys[0], p->n_key);
    let_go(p);
    p->has_waited = p->ahead = false;
    uint32_t k = event->k ? event->k : p->model.k ? p->model.k : n;
    if (k != p->model.k) set_size(p, k);
    stk_learned_observe(&p->model, &layer->model, layer->number, event);
    set_stale(p, layer);
    let_go_of_prefetched(p, layer);
    p->n_held = n;
    for (uint32_t i = 0; i < n; i++) {
        p->held[i] = keys[i];
        uint8_t *flags = &p->flags[keys[i]];
        *flags |= OF_EVENT;
        layer->bar[keys[i] - layer->first_key] = p->bar_of[*flags];
    }
    return 0;
}

/* The layer with the lowest score that may leave, or NULL. */
static struct layer *lowest_layer(stk_policy *p) {
    const stk_lanes *lanes = p->model.lanes;
    if (!p->n_stale) return p->lowest;
    for (; p->n_stale; p->n_stale--) {
        uint32_t i = p->stale[p->n_stale - 1];
        struct layer *layer = &p->layers[i];
        layer->lowest = lanes->lowest(layer->model.score, layer->bar, p->n_pad, &p->lowest_score[i]);
        layer->is_stale = false;
    }
    float lowest = p->lowest_score[0];
    uint32_t i = p->n_layer > 1 ? lanes->lowest(p->lowest_score, p->no_bar, stk_learned_pad(p->n_layer), &lowest) : 0;
    p->lowest = lowest < INFINITY ? &p->layers[i] : NULL;
    return p->lowest;
}

/* The lowest score of all residents that are not busy, held or not; busy = NULL: of all. */
static bool lowest_resident(const stk_policy *p, const uint64_t *busy, uint32_t *key, float *score) {
    bool found = false;
    for (uint32_t i = 0; i < p->n_layer; i++) {
        const struct layer *layer = &p->layers[i];
        for (uint32_t e = 0; e < experts_in(p, layer); e++) {
            uint32_t other = layer->first_key + e;
            if (!(p->flags[other] & RESIDENT) || (busy && stk_policy_is_busy(busy, other))) continue;
            if (found && layer->model.score[e] >= *score) continue;
            found = true;
            *key = other;
            *score = layer->model.score[e];
        }
    }
    return found;
}

static int learned_admit(stk_policy *p, uint32_t key) {
    const struct layer *layer = layer_of(p, key);
    if (!layer) return stk_fail(STK_ESTATE, "policy learned: asked for expert %u of %u", key, p->n_key);
    p->ahead = !(p->flags[key] & OF_EVENT);
    if (p->n_resident < p->n_slot || p->ahead) return 1; /* whoever prefetches has weighed it */
    const struct layer *lowest = lowest_layer(p);
    uint32_t other;
    float score = 0;
    if (lowest)
        score = p->lowest_score[lowest - p->layers];
    else if (!lowest_resident(p, NULL, &other, &score))
        return 1;
    return layer->model.score[key - layer->first_key] > score;
}

static int learned_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    const struct layer *lowest = lowest_layer(p);
    if (lowest) {
        *key = lowest->first_key + lowest->lowest;
        if (!stk_policy_is_busy(busy, *key)) return 1;
        /* A prefetch and a tier that is filled from outside have no next wave, and asking for a place that is not found must
         * leave no trace: a replay does not know of it. */
        if ((p->flags[*key] & OF_EVENT) && !p->has_waited && !p->ahead && !p->one_wave) {
            p->has_waited = true;
            return 0;
        }
    }
    float score;
    return lowest_resident(p, busy, key, &score);
}

static int learned_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    struct layer *layer = layer_of(p, key);
    STK_TRY(stk_policy_may_insert("learned", key, layer && !(p->flags[key] & RESIDENT), p->n_resident, p->n_slot));
    p->flags[key] |= (uint8_t)(why == STK_WHY_PREFETCH ? RESIDENT | FETCHED_AHEAD : RESIDENT);
    layer->n_ahead += why == STK_WHY_PREFETCH;
    p->n_resident++;
    p->has_waited = false;
    uint32_t expert = key - layer->first_key;
    if (layer->bar[expert] != p->bar_of[p->flags[key]]) refresh_bar(p, layer, expert);
    return 0;
}

static int learned_evicted(stk_policy *p, uint32_t key) {
    struct layer *layer = layer_of(p, key);
    if (!layer || !(p->flags[key] & RESIDENT)) return stk_policy_not_there("learned", key);
    layer->n_ahead -= (p->flags[key] & FETCHED_AHEAD) != 0;
    p->flags[key] &= OF_EVENT;
    p->n_resident--;
    refresh_bar(p, layer, key - layer->first_key);
    return 0;
}

static int learned_resized(stk_policy *p, uint32_t n_slot) {
    STK_TRY(stk_policy_may_resize("learned", n_slot, p->n_resident));
    p->n_slot = n_slot;
    if (p->model.k) set_size(p, p->model.k);
    return 0;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------------- */

static size_t state_bytes(const stk_policy *p) {
    size_t recall = p->saves_recall ? stk_recall_state_bytes(p->model.recall) : 0;
    return sizeof(state_head) + sizeof p->model.sums + sizeof p->model.weights + p->n_layer * p->saved_bytes + recall + p->n_key;
}

static int64_t learned_save(const stk_policy *p, void *out, size_t cap) {
    size_t bytes = state_bytes(p);
    if (cap < bytes) return (int64_t)bytes;
    const state_head head = {STATE_MAGIC, p->n_key, p->n_expert, p->n_layer, p->n_slot, p->n_resident, p->model.k, p->has_waited};
    unsigned char *to = out;
    memcpy(to, &head, sizeof head);
    to += sizeof head;
    memcpy(to, &p->model.sums, sizeof p->model.sums);
    to += sizeof p->model.sums;
    memcpy(to, p->model.weights, sizeof p->model.weights);
    to += sizeof p->model.weights;
    for (uint32_t i = 0; i < p->n_layer; i++, to += p->saved_bytes) memcpy(to, p->layers[i].model.head, p->saved_bytes);
    if (p->saves_recall) {
        stk_recall_save(p->model.recall, to);
        to += stk_recall_state_bytes(p->model.recall);
    }
    memcpy(to, p->flags, p->n_key);
    return (int64_t)bytes;
}

static int check_head(const stk_policy *p, const state_head *head, size_t bytes) {
    if (head->magic != STATE_MAGIC) return stk_fail(STK_EFORMAT, "saved state of policy learned: made by another policy");
    if (head->n_key != p->n_key || head->n_expert != p->n_expert || head->n_layer != p->n_layer || bytes != state_bytes(p))
        return stk_fail(STK_EFORMAT,
                        "saved state of policy learned: %zu bytes of %u layers and %u experts, expected %zu of %u and %u", bytes,
                        head->n_layer, head->n_key, state_bytes(p), p->n_layer, p->n_key);
    if (head->n_resident > p->n_slot)
        return stk_fail(STK_EFORMAT, "saved state of policy learned: %u experts for %u slots", head->n_resident, p->n_slot);
    if (head->k > p->n_expert || head->has_waited > 1)
        return stk_fail(STK_EFORMAT, "saved state of policy learned: %u experts a token of %u", head->k, p->n_expert);
    return 0;
}

static int check_flags(const stk_policy *p, const state_head *head, const uint8_t *flags) {
    uint32_t n_resident = 0, n_event = 0;
    const struct layer *event_layer = NULL;
    for (uint32_t key = 0; key < p->n_key; key++) {
        const struct layer *layer = layer_of(p, key);
        if (!flags[key]) continue;
        n_resident += flags[key] & RESIDENT;
        if (flags[key] & OF_EVENT) {
            event_layer = n_event++ ? event_layer : layer;
            if (layer != event_layer) return stk_fail(STK_EFORMAT, "saved state of policy learned: an event of two layers");
        }
        if (!layer || flags[key] > ALL_FLAGS || (flags[key] & FETCHED_AHEAD && !(flags[key] & RESIDENT)))
            return stk_fail(STK_EFORMAT, "saved state of policy learned: expert %u is in no possible state", key);
    }
    if (n_resident != head->n_resident)
        return stk_fail(STK_EFORMAT, "saved state of policy learned: %u experts, expected %u", n_resident, head->n_resident);
    return 0;
}

static int check_model(const unsigned char *data) {
    double sums[sizeof(stk_learned_sums) / sizeof(double)];
    float weights[STK_LEARNED_N_FEATURE];
    memcpy(sums, data, sizeof sums);
    memcpy(weights, data + sizeof sums, sizeof weights);
    for (size_t i = 0; i < STK_ARRAY_LEN(sums); i++)
        if (!(fabs(sums[i]) <= 1e12)) return stk_fail(STK_EFORMAT, "saved state of policy learned: a sum is out of range");
    for (size_t i = 0; i < STK_ARRAY_LEN(weights); i++)
        if (!(fabsf(weights[i]) <= STK_LEARNED_MOST_WEIGHT))
            return stk_fail(STK_EFORMAT, "saved state of policy learned: a weight is out of range");
    return 0;
}

static int learned_load(stk_policy *p, const void *data, size_t bytes) {
    state_head head;
    const unsigned char *from = data, *sums = from + sizeof head, *weights = sums + sizeof p->model.sums;
    const unsigned char *blocks = weights + sizeof p->model.weights;
    if (bytes < sizeof head) return stk_fail(STK_EFORMAT, "saved state of policy learned: only %zu bytes", bytes);
    memcpy(&head, from, sizeof head);
    STK_TRY(check_head(p, &head, bytes));
    const unsigned char *recall = blocks + p->n_layer * p->saved_bytes, *flags = from + bytes - p->n_key;
    STK_TRY(check_model(sums));
    STK_TRY(check_flags(p, &head, flags));
    if (p->saves_recall) STK_TRY(stk_recall_check(p->model.recall, recall));
    struct layer spare = {0};
    place_layer(p, &spare, p->n_layer);
    for (uint32_t i = 0; i < p->n_layer; i++) {
        memcpy(spare.model.head, blocks + i * p->saved_bytes, p->saved_bytes);
        STK_TRY(stk_learned_layer_check(&spare.model, p->n_expert));
    }
    make_empty(p);
    memcpy(&p->model.sums, sums, sizeof p->model.sums);
    for (uint32_t i = 0; i < p->n_layer; i++) memcpy(p->layers[i].model.head, blocks + i * p->saved_bytes, p->saved_bytes);
    if (p->saves_recall) stk_recall_load(p->model.recall, recall);
    memcpy(p->flags, flags, p->n_key);
    p->n_resident = head.n_resident;
    p->has_waited = head.has_waited;
    for (uint32_t key = 0; key < p->n_key; key++) {
        if (flags[key] & OF_EVENT) p->held[p->n_held++] = key;
        if (flags[key] & FETCHED_AHEAD) layer_of(p, key)->n_ahead++;
    }
    p->model.k = head.k;
    set_size(p, head.k);
    if (head.n_slot == p->n_slot) memcpy(p->model.weights, weights, sizeof p->model.weights);
    return 0;
}

const stk_policy_ops stk_policy_learned = {
    .name = "learned",
    .idea = "the latest to be wanted leaves, as learned while running; may refuse",
    .open = learned_open,
    .close = learned_close,
    .touch = learned_touch,
    .admit = learned_admit,
    .inserted = learned_inserted,
    .evicted = learned_evicted,
    .resized = learned_resized,
    .victim = learned_victim,
    .save = learned_save,
    .load = learned_load,
};
