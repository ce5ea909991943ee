/*
 * recency: residents in one or two lists by age, for the policies that are made of lists (lru, slru, s3fifo, pinned), and what
 * those have in common. Such a policy's struct begins with a stk_recency, so that the operations below serve it as they are.
 *
 * The experts of one event are used at the same time. Among them the least useful is the oldest: they rank by token count, then
 * by id, so that the one with the fewest tokens (on a tie the highest id) leaves first. A missed expert takes its place in that
 * rank when it is inserted. Prefetched and warm experts count as used at their insertion.
 *
 * Costs: an event is linear in its experts; inserting and removing are constant, amortised over the event; looking for the
 * oldest passes over busy experts only.
 *
 * Who may call it: the policies of cache/. Pure; all memory is taken at open.
 */
#ifndef STK_RECENCY_H
#define STK_RECENCY_H

#include "cache/policies.h"

enum { STK_RECENCY_ABSENT = 0xff };

typedef struct stk_recency {
    const char *name; /* of the policy */
    uint32_t magic;   /* of its saved state */
    uint32_t n_key, n_expert, n_slot;
    uint32_t n[2];             /* residents of each list */
    uint32_t *older, *younger; /* [n_key + 2]; entry n_key + list is that list's ends: its younger is the oldest */
    uint8_t *list_of;          /* [n_key] 0, 1 or STK_RECENCY_ABSENT */
    uint32_t n_event;          /* of the running event: */
    uint32_t *event_keys;      /* [n_expert] most useful first */
    uint32_t *event_rank;      /* [n_key] position in event_keys; meaningful where that entry is the key */
    uint32_t *used;            /* [n_expert] its residents, least useful first */
    uint64_t *scratch;         /* [2 * n_expert] for stk_cache_order */
} stk_recency;

int stk_recency_open(stk_recency *r, const stk_policy_ops *ops, uint32_t magic, const stk_policy_config *config) STK_CHECKED;
void stk_recency_close(stk_recency *r);

/* Ranks the experts of an event and lists the residents among them in `used`; returns how many those are. */
uint32_t stk_recency_event(stk_recency *r, const stk_event *event, const uint32_t *keys, uint32_t n);
/* Takes an absent key into `list`, at its place in the running event or as the youngest. STK_ESTATE: see policy.h. */
int stk_recency_insert(stk_recency *r, uint32_t key, uint32_t list, enum stk_why why) STK_CHECKED;
/* The oldest of list 0 that is not busy leaves and is *victim, and `key` is inserted there on demand; 0: all are busy. */
int stk_recency_replace(stk_recency *r, const uint64_t *busy, uint32_t key, uint32_t *victim) STK_CHECKED;
/* The oldest of `list` that is not busy. */
bool stk_recency_oldest(const stk_recency *r, uint32_t list, const uint64_t *busy, uint32_t *key);

/* As the operations of stk_policy_ops; the state is what policies.h says, list 0 first, with `tail_bytes` of the policy's own
 * behind it: save leaves them to the caller. `extra` is the length of list 1. */
int stk_recency_evicted(stk_policy *p, uint32_t key);
int stk_recency_resized(stk_policy *p, uint32_t n_slot);
int64_t stk_recency_save(const stk_recency *r, void *out, size_t cap, size_t tail_bytes);
/* Checks a saved state without changing anything but event_rank; the tail are its last tail_bytes. */
int stk_recency_check(stk_recency *r, const void *data, size_t bytes, size_t tail_bytes, stk_policy_state *got) STK_CHECKED;
/* Replaces the residents by those of a state that was checked. */
void stk_recency_fill(stk_recency *r, const void *data, const stk_policy_state *got);

static inline void stk_recency_unlink(stk_recency *r, uint32_t key) {
    r->younger[r->older[key]] = r->younger[key];
    r->older[r->younger[key]] = r->older[key];
}

/* Links `key` just older than `than`; than = n_key + list makes it the youngest of the list. */
static inline void stk_recency_link(stk_recency *r, uint32_t key, uint32_t than) {
    uint32_t older = r->older[than];
    r->older[key] = older;
    r->younger[key] = than;
    r->younger[older] = key;
    r->older[than] = key;
}

/* Makes a resident the youngest of `list`. */
static inline void stk_recency_move(stk_recency *r, uint32_t key, uint32_t list) {
    stk_recency_unlink(r, key);
    r->n[r->list_of[key]]--;
    r->list_of[key] = (uint8_t)list;
    r->n[list]++;
    stk_recency_link(r, key, r->n_key + list);
}

#endif
