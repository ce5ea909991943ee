/* recall: likeness of past tokens to the present one. */
#include "cache/recall.h"

#include <stdlib.h>
#include <string.h>

enum {
    WINDOW = STK_RECALL_WINDOW,
    SET_STRIDE = STK_RECALL_MAX_SET + 1, /* the last entry is how many */
    GROUP = 8,                           /* tokens among which the likest is sought first */
    N_GROUP = WINDOW / GROUP,
    N_WORD = WINDOW / 64,
    N_PLANE = 4,     /* bits of a count of at most MAX_SET */
    SHARED_BITS = 4, /* 1 << this: likeness of one shared expert at one layer */
    MAX_LIKE = 64,   /* of one shared expert at all layers: what is left after a layer being three quarters */
    MAX_AHEAD = 8
};

/* The lag group of each token after a match. */
static const uint8_t lag_of[MAX_AHEAD + 1] = {0, 0, 1, 2, 2, 3, 3, 3, 3};

/* What is saved, before the sets. */
typedef struct head {
    uint64_t n_token; /* of the running sequence, those of the running step included */
    uint32_t n_step;  /* tokens of the running step */
    uint32_t layer;   /* of the latest event; n_layer: none yet */
    uint32_t n_match;
    uint16_t back[STK_RECALL_MATCHES];
    int16_t like[STK_RECALL_MATCHES];
    int16_t likeness[WINDOW]; /* [j]: of the token WINDOW - j before the present one */
} head;

struct stk_recall {
    uint32_t n_layer, n_expert, n_user;
    head h;
    uint64_t *next;       /* [n_layer] tokens that the layer has seen or missed; saved */
    uint16_t *sets;       /* [n_layer, WINDOW, SET_STRIDE] experts of token t at t % WINDOW; saved */
    uint64_t *used;       /* [n_layer / STRIDE, n_expert, N_WORD] bits of the tokens that used the expert; follows from `sets` */
    uint64_t spread[256]; /* the bits of a byte as bytes */
    uint8_t *mark;        /* [n_expert] all 0 between calls */
};

static size_t n_sampled(uint32_t n_layer) { return (n_layer + STK_RECALL_STRIDE - 1) / STK_RECALL_STRIDE; }

static uint16_t *set_of(const stk_recall *r, uint32_t layer, uint64_t token) {
    return r->sets + ((size_t)layer * WINDOW + token % WINDOW) * SET_STRIDE;
}

static uint64_t *used_by(const stk_recall *r, uint32_t layer, uint32_t expert) {
    return r->used + ((size_t)layer / STK_RECALL_STRIDE * r->n_expert + expert) * N_WORD;
}

static uint64_t *word_of(const stk_recall *r, uint32_t layer, uint32_t expert, uint64_t token) {
    return used_by(r, layer, expert) + token % WINDOW / 64;
}

static uint64_t bit_of(uint64_t token) { return (uint64_t)1 << (token % 64); }

static void free_all(stk_recall *r) {
    free(r->next);
    free(r->sets);
    free(r->used);
    free(r->mark);
    free(r);
}

int stk_recall_open(stk_recall **recall, uint32_t n_layer, uint32_t n_expert) {
    if (*recall) {
        (*recall)->n_user++;
        return 0;
    }
    stk_recall *r = calloc(1, sizeof *r);
    if (!r) return stk_fail(STK_ENOMEM, "policy learned: out of memory");
    r->n_layer = r->h.layer = n_layer;
    r->n_expert = n_expert;
    r->n_user = 1;
    r->next = calloc(n_layer, sizeof *r->next);
    r->sets = calloc((size_t)n_layer * WINDOW * SET_STRIDE, sizeof *r->sets);
    r->used = calloc(n_sampled(n_layer) * n_expert, sizeof *r->used * N_WORD);
    r->mark = calloc(n_expert, 1);
    if (!r->next || !r->sets || !r->used || !r->mark) {
        free_all(r);
        return stk_fail(STK_ENOMEM, "policy learned: out of memory for the past of %u layers of %u experts", n_layer, n_expert);
    }
    for (uint32_t x = 0; x < 256; x++)
        for (uint32_t b = 0; b < 8; b++) r->spread[x] |= (uint64_t)(x >> b & 1) << (8 * b);
    *recall = r;
    return 0;
}

void stk_recall_close(stk_recall **recall) {
    if (!*recall || --(*recall)->n_user) return;
    free_all(*recall);
    *recall = NULL;
}

/* ---- Events ------------------------------------------------------------------------------------------------------------- */

static void begin_sequence(stk_recall *r) {
    memset(r->h.likeness, 0, sizeof r->h.likeness);
    memset(r->next, 0, sizeof *r->next * r->n_layer);
    memset(r->sets, 0, sizeof *r->sets * r->n_layer * WINDOW * SET_STRIDE);
    memset(r->used, 0, n_sampled(r->n_layer) * r->n_expert * sizeof *r->used * N_WORD);
    r->h.n_token = r->h.n_match = 0;
}

/* A step begins where the layers begin anew. */
static void begin_step(stk_recall *r, const stk_event *event, uint32_t n_tok) {
    if (event->pos && n_tok && event->pos[0] == 0 && (!event->seq || event->seq[0] == event->seq[n_tok - 1])) begin_sequence(r);
    r->h.n_step = STK_MAX(n_tok, 1u);
    r->h.n_token += r->h.n_step;
    if (n_tok > 1) memset(r->h.likeness, 0, sizeof r->h.likeness); /* the present token is not the one after the last */
}

static void remember(const stk_recall *r, uint32_t layer, uint64_t token, const uint16_t *ids, uint32_t n) {
    uint16_t *set = set_of(r, layer, token);
    bool is_sampled = layer % STK_RECALL_STRIDE == 0;
    for (uint32_t i = 0; is_sampled && i < set[STK_RECALL_MAX_SET]; i++) *word_of(r, layer, set[i], token) &= ~bit_of(token);
    uint32_t kept = 0, valid = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= r->n_expert) continue;
        valid++;
        if (kept < STK_RECALL_MAX_SET) set[kept++] = ids[i];
    }
    if (valid > STK_RECALL_MAX_SET) kept = 0; /* more than can be represented */
    for (uint32_t i = 0; is_sampled && i < kept; i++) *word_of(r, layer, set[i], token) |= bit_of(token);
    set[STK_RECALL_MAX_SET] = (uint16_t)kept;
}

/* How many experts of the set each token of the window used: carry-save over bit planes, then 8 tokens at a time. */
static void count_shared(const stk_recall *r, uint32_t layer, const uint16_t *set, uint8_t counts[WINDOW]) {
    uint64_t planes[N_PLANE][N_WORD] = {{0}};
    for (uint32_t i = 0; i < set[STK_RECALL_MAX_SET]; i++) {
        const uint64_t *restrict used = used_by(r, layer, set[i]);
        for (size_t w = 0; w < N_WORD; w++) {
            uint64_t carry = used[w];
            for (size_t b = 0; b < N_PLANE; b++) {
                uint64_t both = planes[b][w] & carry;
                planes[b][w] ^= carry;
                carry = both;
            }
        }
    }
    for (size_t w = 0; w < N_WORD; w++)
        for (size_t s = 0; s < 64; s += 8) {
            uint64_t sum = 0;
            for (size_t b = 0; b < N_PLANE; b++) sum += r->spread[planes[b][w] >> s & 255] << b;
            memcpy(counts + w * 64 + s, &sum, sizeof sum);
        }
}

/* Likeness decays to three quarters, and what the layer's present set shares is added. */
static void add_shared(stk_recall *r, uint32_t layer, const uint16_t *set) {
    uint8_t twice[2 * WINDOW]; /* by place in the ring, and again, so that ages follow one another */
    count_shared(r, layer, set, twice);
    memcpy(twice + WINDOW, twice, WINDOW);
    const uint8_t *restrict shared = twice + (r->h.n_token - 1) % WINDOW;
    int16_t *restrict like = r->h.likeness;
    for (size_t j = 0; j < WINDOW; j++) like[j] = (int16_t)(like[j] - (like[j] >> 2) + (shared[j] << SHARED_BITS));
    like[0] = 0; /* the present token itself */
}

/* most[g]: the highest likeness of tokens g, g + N_GROUP, ... Returns the least likeness of the likest, or less: as many groups
 * have one as high. */
static int16_t find_bound(const int16_t *restrict like, int16_t most[N_GROUP]) {
    int16_t list[STK_RECALL_MATCHES] = {0}, *least = &list[STK_RECALL_MATCHES - 1];
    memcpy(most, like, sizeof *most * N_GROUP);
    for (size_t i = 1; i < GROUP; i++)
        for (size_t g = 0; g < N_GROUP; g++) {
            int16_t x = like[i * N_GROUP + g];
            most[g] = x > most[g] ? x : most[g];
        }
    for (size_t g = 0; g < N_GROUP; g++) {
        int16_t x = most[g];
        if (x <= *least) continue;
        uint32_t i = STK_RECALL_MATCHES - 1;
        for (; i > 0 && list[i - 1] < x; i--) list[i] = list[i - 1];
        list[i] = x;
    }
    return *least > 0 ? *least : 1;
}

/* The likest tokens, of equal ones the latest; in that order. */
static void find_matches(head *h) {
    int16_t most[N_GROUP];
    int32_t list[STK_RECALL_MATCHES] = {0}; /* likeness, then time */
    int16_t bound = find_bound(h->likeness, most);
    uint32_t n = 0;
    for (uint32_t g = 0; g < N_GROUP; g++) {
        if (most[g] < bound) continue;
        for (uint32_t j = g; j < WINDOW; j += N_GROUP) {
            int32_t x = h->likeness[j] * WINDOW + (int32_t)j;
            if (h->likeness[j] < bound || x <= list[STK_RECALL_MATCHES - 1]) continue;
            uint32_t at = n < STK_RECALL_MATCHES ? n++ : n - 1;
            for (; at > 0 && list[at - 1] < x; at--) list[at] = list[at - 1];
            list[at] = x;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        h->like[i] = (int16_t)(list[i] / WINDOW);
        h->back[i] = (uint16_t)(WINDOW - list[i] % WINDOW);
    }
    h->n_match = n;
}

void stk_recall_observe(stk_recall *r, uint32_t layer, const stk_event *event) {
    uint32_t n_tok = event->ids ? event->n_tok : 0;
    bool bare = !n_tok; /* only the experts of all tokens together are known */
    if (r->h.layer >= layer || r->h.layer == r->n_layer) begin_step(r, event, n_tok);
    r->h.layer = layer;
    uint64_t end = r->h.n_token, begin = end - STK_MIN(end, STK_MAX(n_tok, 1u));
    if (r->next[layer] + WINDOW < begin) r->next[layer] = begin - WINDOW;
    for (; r->next[layer] < begin; r->next[layer]++) remember(r, layer, r->next[layer], NULL, 0);
    for (uint32_t t = 0; t < end - begin; t++)
        remember(r, layer, begin + t, bare ? event->distinct : event->ids + (size_t)t * event->k,
                 bare ? event->n_distinct : event->k);
    r->next[layer] = end;
    if (layer % STK_RECALL_STRIDE) return;
    add_shared(r, layer, set_of(r, layer, end - 1));
    find_matches(&r->h);
}

uint32_t stk_recall_matches(stk_recall *r, uint32_t layer, stk_match list[STK_RECALL_MATCHES]) {
    uint64_t now = r->h.n_token - 1;
    const uint16_t *set = set_of(r, layer, now);
    uint32_t n = set[STK_RECALL_MAX_SET];
    for (uint32_t i = 0; i < n; i++) r->mark[set[i]] = 1;
    for (uint32_t i = 0; i < r->h.n_match; i++) {
        const uint16_t *past = set_of(r, layer, now - r->h.back[i]);
        uint32_t shared = 0;
        for (uint32_t j = 0; j < past[STK_RECALL_MAX_SET]; j++) shared += r->mark[past[j]];
        uint32_t likeness = 8 * shared + 3 * (uint32_t)r->h.like[i] / 8;
        list[i] = (stk_match){r->h.back[i], (uint16_t)STK_MIN(likeness, STK_RECALL_LIKENESS - 1u)};
    }
    for (uint32_t i = 0; i < n; i++) r->mark[set[i]] = 0;
    if (layer + 1 < r->n_layer && (layer + 1) % STK_RECALL_STRIDE) /* the same matches will be looked up there */
        for (uint32_t i = 0; i < r->h.n_match; i++)
            for (uint64_t ahead = 0; ahead <= MAX_AHEAD; ahead += 2)
                __builtin_prefetch(set_of(r, layer + 1, now - r->h.back[i] + ahead));
    return r->h.n_match;
}

void stk_recall_follow(const stk_recall *r, uint32_t layer, const stk_match *list, const float *shares, uint32_t n,
                       const float weights[STK_RECALL_LAGS], float *restrict out) {
    uint64_t now = r->h.n_token - 1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t first = now - list[i].back;
        uint32_t n_ahead = STK_MIN(list[i].back, (uint32_t)MAX_AHEAD);
        for (uint32_t ahead = 1; ahead <= n_ahead; ahead++) {
            const uint16_t *set = set_of(r, layer, first + ahead), *end = set + set[STK_RECALL_MAX_SET];
            float add = shares[i] * weights[lag_of[ahead]];
            for (; set < end; set++) out[*set] += add;
        }
    }
}

/* ---- Saving ------------------------------------------------------------------------------------------------------------- */

static size_t sets_bytes(const stk_recall *r) { return sizeof *r->sets * r->n_layer * WINDOW * SET_STRIDE; }

size_t stk_recall_state_bytes(const stk_recall *r) { return sizeof r->h + sizeof *r->next * r->n_layer + sets_bytes(r); }

void stk_recall_save(const stk_recall *r, void *out) {
    unsigned char *to = out;
    memcpy(to, &r->h, sizeof r->h);
    memcpy(to + sizeof r->h, r->next, sizeof *r->next * r->n_layer);
    memcpy(to + sizeof r->h + sizeof *r->next * r->n_layer, r->sets, sets_bytes(r));
}

static bool good_head(const stk_recall *r, const head *h) {
    bool good = h->n_token <= INT64_MAX && h->n_step <= h->n_token && h->layer <= r->n_layer && h->n_match <= STK_RECALL_MATCHES;
    for (uint32_t j = 0; j < WINDOW; j++) good = good && h->likeness[j] >= 0 && h->likeness[j] <= MAX_LIKE * STK_RECALL_MAX_SET;
    for (uint32_t i = 0; good && i < h->n_match; i++)
        good = h->back[i] > 0 && h->back[i] < WINDOW && h->back[i] < h->n_token && h->like[i] >= 0 &&
               h->like[i] <= MAX_LIKE * STK_RECALL_MAX_SET;
    return good;
}

int stk_recall_check(const stk_recall *r, const void *data) {
    const unsigned char *from = data;
    head h;
    memcpy(&h, from, sizeof h);
    if (!good_head(r, &h)) return stk_fail(STK_EFORMAT, "saved state of policy learned: an impossible past");
    from += sizeof h;
    for (uint32_t layer = 0; layer < r->n_layer; layer++, from += sizeof *r->next) {
        uint64_t next;
        memcpy(&next, from, sizeof next);
        if (next > h.n_token) return stk_fail(STK_EFORMAT, "saved state of policy learned: impossible token counts");
    }
    for (size_t i = 0; i < (size_t)r->n_layer * WINDOW; i++, from += sizeof *r->sets * SET_STRIDE) {
        uint16_t set[SET_STRIDE];
        memcpy(set, from, sizeof set);
        if (set[STK_RECALL_MAX_SET] > STK_RECALL_MAX_SET)
            return stk_fail(STK_EFORMAT, "saved state of policy learned: impossible past token");
        for (uint32_t j = 0; j < set[STK_RECALL_MAX_SET]; j++)
            if (set[j] >= r->n_expert)
                return stk_fail(STK_EFORMAT, "saved state of policy learned: expert %u of %u", set[j], r->n_expert);
    }
    return 0;
}

void stk_recall_load(stk_recall *r, const void *data) {
    const unsigned char *from = data;
    memcpy(&r->h, from, sizeof r->h);
    memcpy(r->next, from + sizeof r->h, sizeof *r->next * r->n_layer);
    memcpy(r->sets, from + sizeof r->h + sizeof *r->next * r->n_layer, sets_bytes(r));
    memset(r->used, 0, n_sampled(r->n_layer) * r->n_expert * sizeof *r->used * N_WORD);
    for (uint32_t layer = 0; layer < r->n_layer; layer += STK_RECALL_STRIDE)
        for (uint32_t q = 0; q < WINDOW; q++) {
            const uint16_t *set = set_of(r, layer, q);
            for (uint32_t j = 0; j < set[STK_RECALL_MAX_SET]; j++) *word_of(r, layer, set[j], q) |= bit_of(q);
        }
}
