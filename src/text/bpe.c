/*
 * bpe: a hash from pairs of ids to ranks; short pieces are merged by looking through all neighbours, long ones with a heap.
 *
 * A heap entry is stale once its position was swallowed or merges otherwise: then the rank kept with the position differs, as a
 * token only ever grows and so never meets the same pair again.
 */
#include "bpe.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT_PIECE = 32 };
#define NO_RANK UINT32_MAX

typedef struct pair {
    int32_t left, right; /* left < 0: empty */
    uint32_t rank;
} pair;

struct stk_bpe {
    pair *slot; /* [n_slot] open addressing */
    uint64_t n_slot;
    int32_t *merged;   /* [n_merge] what a merge makes */
    int32_t byte[256]; /* token of a single byte, -1 for none */
};

static pair *slot_of(const stk_bpe *b, int32_t left, int32_t right) {
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    for (uint64_t i = (h ^ h >> 32) & (b->n_slot - 1);; i = (i + 1) & (b->n_slot - 1)) {
        pair *p = &b->slot[i];
        if (p->left < 0 || (p->left == left && p->right == right)) return p;
    }
}

static uint32_t rank_of(const stk_bpe *b, int32_t left, int32_t right) {
    const pair *p = slot_of(b, left, right);
    return p->left < 0 ? NO_RANK : p->rank;
}

/* Reads merge `rank`, "left right", split at the first space after its first byte. `bytes` has room for the text. */
static int add_merge(stk_bpe *b, const stk_vocab *v, const stk_gguf_string *s, uint32_t rank, char *bytes) {
    const char *space = s->bytes > 1 ? memchr(s->text + 1, ' ', s->bytes - 1) : NULL;
    if (!space) return stk_fail(STK_EFORMAT, "tokenizer.ggml.merges: entry %u is not a pair of tokens", rank);
    size_t left = (size_t)(space - s->text);
    int64_t n = stk_vocab_unmap(s->text, left, bytes);
    int64_t m = n < 0 ? -1 : stk_vocab_unmap(space + 1, s->bytes - left - 1, bytes + n);
    int32_t l = n > 0 && m > 0 ? stk_vocab_find(v, bytes, (size_t)n, "", 0) : -1;
    int32_t r = l >= 0 ? stk_vocab_find(v, bytes + n, (size_t)m, "", 0) : -1;
    int32_t both = r >= 0 ? stk_vocab_find(v, bytes, (size_t)(n + m), "", 0) : -1;
    if (both < 0)
        return stk_fail(STK_EFORMAT, "tokenizer.ggml.merges: entry %u (\"%.*s\") merges what is not in the vocabulary", rank,
                        (int)STK_MIN(s->bytes, 64), s->text);
    b->merged[rank] = both;
    *slot_of(b, l, r) = (pair){l, r, rank}; /* a repeated pair takes the later rank, as Hugging Face's table does */
    return 0;
}

int stk_bpe_open(stk_bpe **out, const stk_vocab *v, const stk_gguf *g) {
    *out = NULL;
    const stk_gguf_value *merges = stk_gguf_find(g, "tokenizer.ggml.merges");
    if (!merges || merges->type != STK_GGUF_ARRAY || merges->item != STK_GGUF_STRING)
        return stk_fail(STK_EFORMAT, "tokenizer.ggml.merges is missing or not an array of strings");
    if (merges->n >= NO_RANK)
        return stk_fail(STK_EFORMAT, "tokenizer.ggml.merges has %llu entries", (unsigned long long)merges->n);
    uint32_t n = (uint32_t)merges->n;
    const stk_gguf_string *text = merges->data;
    uint64_t longest = 0;
    for (uint32_t i = 0; i < n; i++) longest = STK_MAX(longest, text[i].bytes);

    int rc = 0;
    char *bytes = malloc(longest + 1);
    stk_bpe *b = calloc(1, sizeof *b);
    if (!b || !bytes) STK_TRYGOTO(stk_fail(STK_ENOMEM, "no memory for %u merges", n), rc, out);
    for (b->n_slot = 64; b->n_slot < 2 * (uint64_t)n; b->n_slot *= 2) {
    }
    b->slot = malloc(b->n_slot * sizeof *b->slot);
    b->merged = malloc((n + (size_t)1) * sizeof *b->merged);
    if (!b->slot || !b->merged) STK_TRYGOTO(stk_fail(STK_ENOMEM, "no memory for %u merges", n), rc, out);
    memset(b->slot, 0xff, b->n_slot * sizeof *b->slot);
    for (int i = 0; i < 256; i++) b->byte[i] = stk_vocab_find(v, &(char){(char)i}, 1, "", 0);
    for (uint32_t i = 0; i < n; i++) STK_TRYGOTO(add_merge(b, v, &text[i], i, bytes), rc, out);
    *out = b;
    b = NULL;
out:
    free(bytes);
    stk_bpe_close(&b);
    return rc;
}

void stk_bpe_close(stk_bpe **b) {
    if (!*b) return;
    free((*b)->slot);
    free((*b)->merged);
    free(*b);
    *b = NULL;
}

void stk_bpe_work_fini(stk_bpe_work *w) {
    free(w->id);
    free(w->rank);
    free(w->prev);
    free(w->next);
    free(w->heap);
    memset(w, 0, sizeof *w);
}

static int reserve(stk_bpe_work *w, size_t n) {
    if (n <= w->cap) return 0;
    size_t cap = STK_MAX(n + n / 2, 256); /* pieces are below 4 GiB: no overflow */
    stk_bpe_work_fini(w);
    w->id = malloc(cap * sizeof *w->id);
    w->rank = malloc(cap * sizeof *w->rank);
    w->prev = malloc(cap * sizeof *w->prev);
    w->next = malloc(cap * sizeof *w->next);
    w->heap = malloc(2 * cap * sizeof *w->heap);
    if (!w->id || !w->rank || !w->prev || !w->next || !w->heap) {
        stk_bpe_work_fini(w);
        return stk_fail(STK_ENOMEM, "no memory for merging a piece of %zu bytes", n);
    }
    w->cap = cap;
    return 0;
}

/* Quadratic, and the quickest for a word. */
static size_t merge_short(const stk_bpe *b, int32_t *id, uint32_t *rank, size_t n) {
    for (;;) {
        size_t at = 0;
        uint32_t best = NO_RANK;
        for (size_t i = 0; i + 1 < n; i++)
            if (rank[i] < best) best = rank[at = i];
        if (best == NO_RANK) return n;
        id[at] = b->merged[best];
        n--;
        memmove(id + at + 1, id + at + 2, (n - at - 1) * sizeof *id);
        memmove(rank + at + 1, rank + at + 2, (n - at - 1) * sizeof *rank);
        if (at > 0) rank[at - 1] = rank_of(b, id[at - 1], id[at]);
        rank[at] = at + 1 < n ? rank_of(b, id[at], id[at + 1]) : NO_RANK;
    }
}

static void push(uint64_t *heap, size_t *n, uint32_t rank, uint32_t at) {
    if (rank == NO_RANK) return;
    uint64_t entry = (uint64_t)rank << 32 | at;
    size_t i = (*n)++;
    for (; i > 0 && heap[(i - 1) / 2] > entry; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = entry;
}

static uint64_t pop(uint64_t *heap, size_t *n) {
    uint64_t top = heap[0], entry = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= entry) break;
        heap[i] = heap[child];
    }
    heap[i] = entry;
    return top;
}

/* The heap never exceeds 2n: it starts below n, and each merge, of which there are fewer than n, takes one entry and adds two. */
static size_t merge_long(const stk_bpe *b, stk_bpe_work *w, size_t n) {
    size_t n_heap = 0;
    uint32_t end = (uint32_t)n;
    for (uint32_t i = 0; i < end; i++) {
        w->prev[i] = i - 1; /* of the first: above any position */
        w->next[i] = i + 1;
        push(w->heap, &n_heap, w->rank[i], i);
    }
    while (n_heap > 0) {
        uint64_t top = pop(w->heap, &n_heap);
        uint32_t rank = (uint32_t)(top >> 32), at = (uint32_t)top;
        if (w->rank[at] != rank) continue;
        uint32_t gone = w->next[at], after = w->next[gone];
        w->id[at] = b->merged[rank];
        w->rank[gone] = NO_RANK;
        w->next[at] = after;
        w->rank[at] = NO_RANK;
        if (after < end) {
            w->prev[after] = at;
            w->rank[at] = rank_of(b, w->id[at], w->id[after]);
            push(w->heap, &n_heap, w->rank[at], at);
        }
        uint32_t before = w->prev[at];
        if (before < end) {
            w->rank[before] = rank_of(b, w->id[before], w->id[at]);
            push(w->heap, &n_heap, w->rank[before], before);
        }
    }
    size_t kept = 0;
    for (uint32_t i = 0; i < end; i = w->next[i]) w->id[kept++] = w->id[i];
    return kept;
}

int64_t stk_bpe_merge(const stk_bpe *b, stk_bpe_work *w, const char *piece, size_t bytes) {
    if (bytes == 0) return 0;
    if (bytes >= UINT32_MAX) return stk_fail(STK_EINVAL, "a piece of text of %zu bytes is too long to tokenize", bytes);
    STK_TRY(reserve(w, bytes));
    for (size_t i = 0; i < bytes; i++) {
        w->id[i] = b->byte[(uint8_t)piece[i]];
        if (w->id[i] < 0)
            return stk_fail(STK_EUNSUPPORTED, "the vocabulary has no token for byte 0x%02x of the text",
                            (unsigned)(uint8_t)piece[i]);
    }
    for (size_t i = 0; i + 1 < bytes; i++) w->rank[i] = rank_of(b, w->id[i], w->id[i + 1]);
    w->rank[bytes - 1] = NO_RANK;
    return (int64_t)(bytes <= SHORT_PIECE ? merge_short(b, w->id, w->rank, bytes) : merge_long(b, w, bytes));
}
