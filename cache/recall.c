/* recall: likeness of past tokens to the present one. Tokens stand at their number modulo the window; sets are bits. */
#include "cache/recall.h"

#include <stdlib.h>
#include <string.h>

enum {
    WINDOW = STK_LANES_WINDOW,
    AHEAD = STK_LANES_AHEAD,
    N_ROW = WINDOW + AHEAD, /* the last rows of a layer repeat its first, so that what follows a token lies in order */
    N_WORD = WINDOW / 64,
    MAX_LIKE = 16 /* of one shared expert at all layers: 4, and what is left after a layer being three quarters, rounded up */
};

/* What is saved, before the sets. */
typedef struct head {
    uint64_t n_token; /* of the running sequence, those of the running step included */
    uint32_t n_step;  /* tokens of the running step */
    uint32_t layer;   /* of the latest event; n_layer: none yet */
    uint32_t n_match;
    uint16_t back[STK_RECALL_MATCHES + 1]; /* the last is scratch, as of like */
    uint8_t like[STK_RECALL_MATCHES + 1];
    uint8_t likeness[WINDOW]; /* of the token at each place, the present one's being 0 */
} head;

struct stk_recall {
    const stk_lanes *lanes;
    uint32_t n_layer, n_expert, n_user;
    uint32_t n_word; /* of a set */
    head h;
    uint64_t *next;   /* [n_layer] tokens that the layer has seen or missed; saved */
    uint64_t *sets;   /* [n_layer, N_ROW, n_word] bits of a token's experts; saved, without what is there twice */
    uint64_t *used;   /* [n_layer / STRIDE, n_expert, N_WORD] bits of the tokens that used the expert; follows from `sets` */
    uint64_t *recent; /* [MATCHES, AHEAD, n_word] what followed matches so recent that not all of it has come */
    uint16_t *likest; /* [WINDOW] scratch */
    const uint64_t *past[STK_RECALL_MATCHES]; /* the matches' sets in the layer that was asked for last */
};

static size_t n_sampled(uint32_t n_layer) { return (n_layer + STK_RECALL_STRIDE - 1) / STK_RECALL_STRIDE; }

static uint64_t *set_of(const stk_recall *r, uint32_t layer, uint64_t token) {
    return r->sets + ((size_t)layer * N_ROW + token % WINDOW) * r->n_word;
}

static uint64_t *used_by(const stk_recall *r, uint32_t layer, uint32_t expert) {
    return r->used + ((size_t)layer / STK_RECALL_STRIDE * r->n_expert + expert) * N_WORD;
}

static size_t sets_words(const stk_recall *r) { return (size_t)r->n_layer * N_ROW * r->n_word; }
static size_t used_words(const stk_recall *r) { return n_sampled(r->n_layer) * r->n_expert * N_WORD; }

static uint32_t n_bit(const uint64_t *set, uint32_t n_word) {
    uint32_t n = 0;
    for (uint32_t w = 0; w < n_word; w++) n += (uint32_t)__builtin_popcountll(set[w]);
    return n;
}

static void free_all(stk_recall *r) {
    free(r->next);
    free(r->sets);
    free(r->used);
    free(r->recent);
    free(r->likest);
    free(r);
}

int stk_recall_open(stk_recall **recall, uint32_t n_layer, uint32_t n_expert) {
    if (*recall) {
        (*recall)->n_user++;
        return 0;
    }
    stk_recall *r = calloc(1, sizeof *r);
    if (!r) return stk_fail(STK_ENOMEM, "policy learned: out of memory");
    r->lanes = stk_lanes_best();
    r->n_layer = r->h.layer = n_layer;
    r->n_expert = n_expert;
    r->n_word = (uint32_t)stk_div_up(n_expert, 64);
    r->n_user = 1;
    r->next = calloc(n_layer, sizeof *r->next);
    r->sets = calloc(sets_words(r), sizeof *r->sets);
    r->used = calloc(used_words(r), sizeof *r->used);
    r->recent = calloc((size_t)STK_RECALL_MATCHES * AHEAD * r->n_word, sizeof *r->recent);
    r->likest = calloc(WINDOW, sizeof *r->likest);
    if (!r->next || !r->sets || !r->used || !r->recent || !r->likest) {
        free_all(r);
        return stk_fail(STK_ENOMEM, "policy learned: out of memory for the past of %u layers of %u experts", n_layer, n_expert);
    }
    *recall = r;
    return 0;
}

void stk_recall_close(stk_recall **recall) {
    if (!*recall || --(*recall)->n_user) return;
    free_all(*recall);
    *recall = NULL;
}

/* ---- Events ------------------------------------------------------------------------------------------------------------- */

/* A step begins where the layers begin anew. What resembled the token before makes what follows it resemble the present one, if
 * this is the one after it. */
static void begin_step(stk_recall *r, const stk_event *event, uint32_t n_tok) {
    uint8_t *like = r->h.likeness, last = like[WINDOW - 1];
    bool is_first = event->pos && n_tok && event->pos[0] == 0;
    r->h.n_step = STK_MAX(n_tok, 1u);
    r->h.n_token += r->h.n_step;
    if (is_first || n_tok > 1) {
        memset(like, 0, sizeof r->h.likeness);
        r->h.n_match = 0;
        return;
    }
    memmove(like + 1, like, sizeof r->h.likeness - sizeof *like);
    like[0] = last;
}

static void note_use(const stk_recall *r, uint32_t layer, uint64_t token, const uint64_t *set, bool is_used) {
    uint64_t bit = (uint64_t)1 << (token % 64);
    for (uint32_t w = 0; w < r->n_word; w++)
        for (uint64_t bits = set[w]; bits; bits &= bits - 1) {
            uint64_t *word = used_by(r, layer, w * 64 + (uint32_t)__builtin_ctzll(bits)) + token % WINDOW / 64;
            *word = is_used ? *word | bit : *word & ~bit;
        }
}

/* Of a token that the layer missed, n is 0. */
static void remember(const stk_recall *r, uint32_t layer, uint64_t token, const uint16_t *ids, uint32_t n) {
    uint64_t *set = set_of(r, layer, token);
    bool is_sampled = layer % STK_RECALL_STRIDE == 0;
    if (is_sampled) note_use(r, layer, token, set, false);
    for (uint32_t w = 0; w < r->n_word; w++) set[w] = 0;
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < r->n_expert) set[ids[i] / 64] |= (uint64_t)1 << (ids[i] % 64);
    if (n > STK_RECALL_MAX_SET && n_bit(set, r->n_word) > STK_RECALL_MAX_SET)
        for (uint32_t w = 0; w < r->n_word; w++) set[w] = 0;
    if (is_sampled) note_use(r, layer, token, set, true);
    if (token % WINDOW < AHEAD)
        for (uint32_t w = 0; w < r->n_word; w++) set[(size_t)WINDOW * r->n_word + w] = set[w];
}

/* The least bound, of at least *bound, that at most MATCHES of the places are above; returns how many are. */
static uint32_t raise_bound(const head *h, const uint16_t *places, uint32_t n, uint32_t *bound) {
    uint16_t n_of[4][UINT8_MAX + 1]; /* places by likeness: four at a time, as one after the other would wait for one another */
    memset(n_of, 0, sizeof n_of);
    for (uint32_t i = 0; i < n; i++) n_of[i % 4][h->likeness[places[i]]]++;
    for (uint32_t n_more = n;; ++*bound) {
        for (uint32_t j = 0; j < 4; j++) n_more -= n_of[j][*bound];
        if (n_more <= STK_RECALL_MATCHES) return n_more;
    }
}

/* The likest tokens, of equal ones the latest; listed from the latest on. Nothing here can be foreseen, hence no branches. */
static void find_matches(stk_recall *r) {
    head *h = &r->h;
    uint8_t least;
    uint32_t n = r->lanes->likest(h->likeness, STK_RECALL_MATCHES, r->likest, &least), bound = least;
    uint32_t now = (uint32_t)((h->n_token - 1) % WINDOW), n_match = 0, n_before = 0;
    uint32_t n_more = raise_bound(h, r->likest, n, &bound);
    uint32_t n_equal = STK_RECALL_MATCHES - n_more; /* that may still be taken */
    for (uint32_t i = 0; i < n; i++) n_before += r->likest[i] < now;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t q = r->likest[n_before > i ? n_before - 1 - i : n + n_before - 1 - i], x = h->likeness[q];
        bool is_equal = x == bound && n_equal > 0;
        h->like[n_match] = (uint8_t)x;
        h->back[n_match] = (uint16_t)((now - q) % WINDOW);
        n_equal -= is_equal;
        n_match += x > bound || is_equal;
    }
    h->n_match = n_match;
}

/* What the layer's present set shares adds to likeness. */
static void compare(stk_recall *r, uint32_t layer, uint64_t token) {
    const uint64_t *set = set_of(r, layer, token), *used[STK_RECALL_MAX_SET];
    uint32_t n = 0;
    for (uint32_t w = 0; w < r->n_word; w++)
        for (uint64_t bits = set[w]; bits; bits &= bits - 1)
            used[n++] = used_by(r, layer, w * 64 + (uint32_t)__builtin_ctzll(bits));
    r->lanes->resemble(r->h.likeness, used, n);
    r->h.likeness[token % WINDOW] = 0; /* the present token itself */
    find_matches(r);
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
    if (layer % STK_RECALL_STRIDE == 0) compare(r, layer, end - 1);
}

uint32_t stk_recall_matches(stk_recall *r, uint32_t layer, uint16_t likeness[STK_RECALL_MATCHES]) {
    uint8_t shared[STK_RECALL_MATCHES] = {0};
    uint64_t now = r->h.n_token - 1;
    uint32_t n = r->h.n_match;
    const uint64_t *first = set_of(r, layer, 0);
    for (uint32_t i = 0; i < n; i++) r->past[i] = first + (now - r->h.back[i]) % WINDOW * r->n_word;
    r->lanes->share(shared, set_of(r, layer, now), r->past, n, r->n_word);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t x = 8u * shared[i] + 3u * r->h.like[i] / 2;
        likeness[i] = (uint16_t)STK_MIN(x, STK_RECALL_LIKENESS - 1u);
    }
    if (layer + 1 < r->n_layer && (layer + 1) % STK_RECALL_STRIDE) /* the same matches will be looked up there */
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t *next = r->past[i] + (size_t)N_ROW * r->n_word;
            __builtin_prefetch(next);
            __builtin_prefetch(next + AHEAD / 2 * r->n_word);
            __builtin_prefetch(next + AHEAD * r->n_word);
        }
    return n;
}

/* Eight rows of what followed match i; those that have not come are empty. */
static const uint64_t *follow(const stk_recall *r, uint32_t i) {
    const uint64_t *rows = r->past[i] + r->n_word;
    uint32_t back = r->h.back[i];
    if (back >= AHEAD) return rows;
    uint64_t *copy = r->recent + (size_t)i * AHEAD * r->n_word;
    size_t n = (size_t)back * r->n_word;
    memset(copy, 0, sizeof *copy * AHEAD * r->n_word);
    memcpy(copy, rows, sizeof *copy * n);
    return copy;
}

void stk_recall_vote(stk_recall *r, const uint8_t of[STK_RECALL_MATCHES], uint8_t *votes) {
    const uint64_t *rows[STK_RECALL_MATCHES + 1];
    uint8_t kept[STK_RECALL_MATCHES + 1];
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->h.n_match; i++) { /* no branch: which ones vote cannot be foreseen */
        kept[n] = of[i];
        rows[n] = follow(r, i);
        n += of[i] > 0;
    }
    rows[n] = NULL;
    r->lanes->vote(votes, rows, kept, n, r->n_word);
}

/* ---- Saving ------------------------------------------------------------------------------------------------------------- */

/* Of one layer. */
static size_t sets_bytes(const stk_recall *r) { return sizeof *r->sets * WINDOW * r->n_word; }

size_t stk_recall_state_bytes(const stk_recall *r) { return sizeof r->h + (sizeof *r->next + sets_bytes(r)) * r->n_layer; }

void stk_recall_save(const stk_recall *r, void *out) {
    unsigned char *to = out;
    memcpy(to, &r->h, sizeof r->h);
    to += sizeof r->h;
    memcpy(to, r->next, sizeof *r->next * r->n_layer);
    to += sizeof *r->next * r->n_layer;
    for (uint32_t layer = 0; layer < r->n_layer; layer++, to += sets_bytes(r)) memcpy(to, set_of(r, layer, 0), sets_bytes(r));
}

static bool good_head(const stk_recall *r, const head *h) {
    bool good = h->n_token <= INT64_MAX && h->n_step <= h->n_token && h->layer <= r->n_layer && h->n_match <= STK_RECALL_MATCHES;
    for (uint32_t j = 0; j < WINDOW; j++) good = good && h->likeness[j] <= MAX_LIKE * STK_RECALL_MAX_SET;
    for (uint32_t i = 0; good && i < h->n_match; i++)
        good = h->back[i] > 0 && h->back[i] < WINDOW && h->back[i] < h->n_token && h->like[i] <= MAX_LIKE * STK_RECALL_MAX_SET;
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
    uint64_t impossible = r->n_expert % 64 ? ~(uint64_t)0 << r->n_expert % 64 : 0, word = 0; /* of a set's last word */
    for (size_t i = 0; i < (size_t)r->n_layer * WINDOW; i++) {
        uint32_t n = 0;
        for (uint32_t w = 0; w < r->n_word; w++, from += sizeof word) {
            memcpy(&word, from, sizeof word);
            n += n_bit(&word, 1);
        }
        if (n > STK_RECALL_MAX_SET || word & impossible)
            return stk_fail(STK_EFORMAT, "saved state of policy learned: impossible past token");
    }
    return 0;
}

void stk_recall_load(stk_recall *r, const void *data) {
    const unsigned char *from = data;
    memcpy(&r->h, from, sizeof r->h);
    from += sizeof r->h;
    memcpy(r->next, from, sizeof *r->next * r->n_layer);
    from += sizeof *r->next * r->n_layer;
    memset(r->used, 0, sizeof *r->used * used_words(r));
    for (uint32_t layer = 0; layer < r->n_layer; layer++, from += sets_bytes(r)) {
        memcpy(set_of(r, layer, 0), from, sets_bytes(r));
        memcpy(set_of(r, layer, 0) + (size_t)WINDOW * r->n_word, from, sizeof *r->sets * AHEAD * r->n_word);
        for (uint32_t q = 0; layer % STK_RECALL_STRIDE == 0 && q < WINDOW; q++) note_use(r, layer, q, set_of(r, layer, q), true);
    }
}
