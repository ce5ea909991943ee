/*
 * s3fifo: the three queues of Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache eviction" (SOSP 2023),
 * for experts of one size. New experts enter the small queue (list 0); those used at least twice there move on to the main queue
 * (list 1), the others leave and are remembered for a while as ghosts. A ghost that is missed again enters the main queue at
 * once. In the main queue an expert used since its last turn gets another turn. Uses are counted up to 3.
 *
 * The ghosts are a queue by number: the policy numbers what it forgets, and a ghost is whoever was among the last n_ghost.
 * Experts that are busy are passed over where they stand. A prefetched expert counts as used once.
 */
#include <stdlib.h>
#include <string.h>

#include "cache/recency.h"

enum { STATE_MAGIC = 0x31463353, SMALL = 0, MAIN = 1, MAX_USES = 3 }; /* "S3F1" */

struct stk_policy {
    stk_recency recency;
    double small_share, ghost_share;
    uint32_t n_small; /* the small queue gives up experts while it has at least these */
    uint64_t n_ghost;
    uint64_t n_forgotten;
    uint64_t *forgotten; /* [n_key] number of its latest departure from the small queue, from 1; 0: none that counts */
    uint8_t *uses;       /* [n_key] */
};

static const stk_policy_param params[] = {
    {"small", 0, 1, 0.1, "share of the slots for the small queue"},
    {"ghost", 0, 100, 0.9, "experts that are remembered, as a share of the slots"},
    {0},
};

static void set_sizes(stk_policy *p) {
    p->n_small = STK_MAX((uint32_t)(p->small_share * p->recency.n_slot), 1u);
    p->n_ghost = (uint64_t)(p->ghost_share * p->recency.n_slot);
}

static void s3fifo_close(stk_policy *p) {
    if (!p) return;
    stk_recency_close(&p->recency);
    free(p->forgotten);
    free(p->uses);
    free(p);
}

static int s3fifo_open(stk_policy **out, const stk_policy_config *config) {
    double values[2];
    STK_TRY(stk_policy_params(&stk_policy_s3fifo, config->params, values));
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy s3fifo: out of memory");
    p->small_share = values[0];
    p->ghost_share = values[1];
    int rc = stk_recency_open(&p->recency, &stk_policy_s3fifo, STATE_MAGIC, config);
    p->forgotten = calloc(config->n_key, sizeof *p->forgotten);
    p->uses = calloc(config->n_key, sizeof *p->uses);
    if (rc == 0 && (!p->forgotten || !p->uses)) rc = stk_fail(STK_ENOMEM, "policy s3fifo: out of memory");
    set_sizes(p);
    if (rc < 0)
        s3fifo_close(p);
    else
        *out = p;
    return rc;
}

static int s3fifo_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    uint32_t n_used = stk_recency_event(&p->recency, event, keys, n);
    for (uint32_t i = 0; i < n_used; i++) {
        uint8_t *uses = &p->uses[p->recency.used[i]];
        *uses = (uint8_t)(*uses + (*uses < MAX_USES));
    }
    return 0;
}

static bool is_ghost(const stk_policy *p, uint32_t key) {
    return p->forgotten[key] && p->n_forgotten - p->forgotten[key] < p->n_ghost;
}

static int s3fifo_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    STK_TRY(stk_recency_insert(&p->recency, key, key < p->recency.n_key && is_ghost(p, key) ? MAIN : SMALL, why));
    p->forgotten[key] = 0;
    p->uses[key] = why != STK_WHY_DEMAND;
    return 0;
}

static int s3fifo_evicted(stk_policy *p, uint32_t key) {
    bool was_small = key < p->recency.n_key && p->recency.list_of[key] == SMALL;
    STK_TRY(stk_recency_evicted(p, key));
    if (was_small) p->forgotten[key] = ++p->n_forgotten;
    return 0;
}

static int s3fifo_resized(stk_policy *p, uint32_t n_slot) {
    STK_TRY(stk_recency_resized(p, n_slot));
    set_sizes(p);
    return 0;
}

/* From the oldest: who was used again moves to the main queue; the first other one is the victim. */
static bool small_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    stk_recency *r = &p->recency;
    for (uint32_t i = r->younger[r->n_key + SMALL], next; i != r->n_key + SMALL; i = next) {
        next = r->younger[i];
        if (stk_policy_is_busy(busy, i)) continue;
        *key = i;
        if (p->uses[i] < 2) return true;
        p->uses[i] = 0;
        stk_recency_move(r, i, MAIN);
    }
    return false;
}

/* From the oldest: each use grants one more turn. Who is idle is reached after MAX_USES rounds at the latest. */
static bool main_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    stk_recency *r = &p->recency;
    for (uint32_t round = 0; round <= MAX_USES; round++) {
        uint32_t i = r->younger[r->n_key + MAIN], next;
        for (uint32_t left = r->n[MAIN]; left > 0; left--, i = next) {
            next = r->younger[i];
            if (stk_policy_is_busy(busy, i)) continue;
            *key = i;
            if (p->uses[i] == 0) return true;
            p->uses[i]--;
            stk_recency_move(r, i, MAIN);
        }
    }
    return false;
}

/* The last resort: the small queue moved everybody on, who now stands idle in the main queue. */
static int s3fifo_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    if (p->recency.n[SMALL] >= p->n_small && small_victim(p, busy, key)) return 1;
    return main_victim(p, busy, key) || small_victim(p, busy, key) || main_victim(p, busy, key);
}

/* The first of a queue, from the oldest, that was used less than `uses` times and may leave; n_key: there is none. */
static uint32_t first_below(const stk_policy *p, uint32_t queue, const uint64_t *busy, uint32_t uses) {
    const stk_recency *r = &p->recency;
    uint32_t i = r->younger[r->n_key + queue];
    while (i != r->n_key + queue && (stk_policy_is_busy(busy, i) || p->uses[i] >= uses)) i = r->younger[i];
    return i < r->n_key ? i : r->n_key;
}

/* What s3fifo_victim comes to, without moving anybody: turns in the main queue keep its order, so that its first with the fewest
 * uses leaves; what moves on from the small queue stands idle behind it. */
static int s3fifo_would_leave(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    uint32_t none = p->recency.n_key, moved = none;
    if (p->recency.n[SMALL] >= p->n_small) {
        *key = first_below(p, SMALL, busy, 2);
        if (*key != none) return 1;
        moved = first_below(p, SMALL, busy, UINT32_MAX);
    }
    for (uint32_t uses = 1; uses <= MAX_USES + 1; uses++) {
        *key = first_below(p, MAIN, busy, uses);
        if (*key == none && uses == 1) *key = moved;
        if (*key != none) return 1;
    }
    *key = first_below(p, SMALL, busy, 2);
    if (*key == none) *key = first_below(p, SMALL, busy, UINT32_MAX);
    return *key != none;
}

static size_t tail_bytes(const stk_policy *p) {
    return sizeof p->n_forgotten + p->recency.n_key * (sizeof *p->forgotten + sizeof *p->uses);
}

static int64_t s3fifo_save(const stk_policy *p, void *out, size_t cap) {
    size_t tail = tail_bytes(p);
    int64_t bytes = stk_recency_save(&p->recency, out, cap, tail);
    if ((size_t)bytes > cap) return bytes;
    unsigned char *to = (unsigned char *)out + bytes - tail;
    memcpy(to, &p->n_forgotten, sizeof p->n_forgotten);
    to += sizeof p->n_forgotten;
    memcpy(to, p->forgotten, sizeof *p->forgotten * p->recency.n_key);
    memcpy(to + sizeof *p->forgotten * p->recency.n_key, p->uses, p->recency.n_key);
    return bytes;
}

static int s3fifo_load(stk_policy *p, const void *data, size_t bytes) {
    uint32_t n_key = p->recency.n_key;
    stk_policy_state got;
    STK_TRY(stk_recency_check(&p->recency, data, bytes, tail_bytes(p), &got));
    const unsigned char *tail = (const unsigned char *)data + bytes - tail_bytes(p);
    const unsigned char *forgotten = tail + sizeof p->n_forgotten, *uses = forgotten + sizeof *p->forgotten * n_key;
    uint64_t n_forgotten, number;
    memcpy(&n_forgotten, tail, sizeof n_forgotten);
    for (uint32_t key = 0; key < n_key; key++) {
        memcpy(&number, forgotten + key * sizeof number, sizeof number);
        if (uses[key] > MAX_USES || number > n_forgotten)
            return stk_fail(STK_EFORMAT,
                            "saved state of policy s3fifo: expert %u was used %u times, was the %lluth to leave of %llu", key,
                            uses[key], (unsigned long long)number, (unsigned long long)n_forgotten);
    }
    stk_recency_fill(&p->recency, data, &got);
    p->n_forgotten = n_forgotten;
    memcpy(p->forgotten, forgotten, sizeof *p->forgotten * n_key);
    memcpy(p->uses, uses, n_key);
    return 0;
}

const stk_policy_ops stk_policy_s3fifo = {
    .name = "s3fifo",
    .idea = "a small queue on trial, a main queue with further turns, and a memory of who left",
    .params = params,
    .open = s3fifo_open,
    .close = s3fifo_close,
    .touch = s3fifo_touch,
    .inserted = s3fifo_inserted,
    .evicted = s3fifo_evicted,
    .resized = s3fifo_resized,
    .victim = s3fifo_victim,
    .would_leave = s3fifo_would_leave,
    .save = s3fifo_save,
    .load = s3fifo_load,
};
