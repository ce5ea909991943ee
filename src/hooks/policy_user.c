/*
 * policy_user: hooks behind the cache's table of a policy. Residency and a shadow LRU are kept beside the user's own books, so a
 * wrong answer is found before it harms, and an LRU that has seen everything can decide at any moment.
 *
 * The cache numbers the keys of each size class on its own; hooks name an expert by its place in the model. Where there is one
 * class the two are the same.
 *
 * Scores order the residents in a binary heap by (score, serial). A serial is given to each expert of an event in the order in
 * which LRU ranks them: equal scores give exactly LRU.
 */
#include "policy_user.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache/order.h"
#include "cache/policies.h"
#include "hook_event.h"

#define ABSENT UINT32_MAX

struct stk_policy {
    stk_policy_user *user;
    void *policy; /* the user's instance */
    bool opened;
    bool faulted; /* LRU decides until the next event */
    uint32_t n_key, n_resident;
    uint32_t n_expert, n_layer; /* of a layer; of the class */
    uint32_t *layers;           /* [n_layer] their numbers, ascending; NULL: 0, 1, ..., keys are the same in and outside */
    uint32_t *hook_keys;        /* [n_expert] of an event, as hooks name them */
    uint64_t *hook_busy;        /* [bits of all keys] */
    const stk_policy_ops *lru_ops;
    stk_policy *lru;
    uint64_t *resident; /* [n_key bits] */
    /* For scores: */
    uint64_t serial, cold; /* the latest, which rises; that of predicted experts, which falls */
    double best;           /* the greatest score so far */
    double *score;         /* [n_key] */
    uint64_t *used;        /* [n_key] serial */
    double *event_score;   /* [n_expert] */
    uint64_t *scratch;     /* [2 * n_expert] */
    uint32_t *heap;        /* [n_key] residents, the next victim first */
    uint32_t *at;          /* [n_key] position in heap, or ABSENT */
    uint32_t *set_aside;   /* [n_key] busy keys while a victim is looked for */
};

static bool has_bit(const uint64_t *bits, uint32_t i) { return bits[i / 64] >> (i % 64) & 1; }
static bool is_scored(const stk_policy_hooks *h) { return h->score || h->scores; }

/* The first failure of an event counts; what follows is its consequence. */
static void fault(stk_policy *p, int code, const char *what) {
    if (p->faulted) return;
    p->faulted = true;
    const stk_policy_hooks *h = &p->user->hooks;
    stk_log(STK_LOG_WARN, "policy %s: %s; LRU decides for this event", p->user->ops.name, what);
    if (h->fault) h->fault(p->policy, code, what);
}

/* ---- The heap ----------------------------------------------------------------------------------------------------------- */

static bool leaves_before(const stk_policy *p, uint32_t a, uint32_t b) {
    return p->score[a] != p->score[b] ? p->score[a] < p->score[b] : p->used[a] < p->used[b];
}

static void put(stk_policy *p, uint32_t i, uint32_t key) {
    p->heap[i] = key;
    p->at[key] = i;
}

static void sift(stk_policy *p, uint32_t i, uint32_t n) {
    uint32_t key = p->heap[i];
    for (; i > 0 && leaves_before(p, key, p->heap[(i - 1) / 2]); i = (i - 1) / 2) put(p, i, p->heap[(i - 1) / 2]);
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child + 1 < n && leaves_before(p, p->heap[child + 1], p->heap[child])) child++;
        if (child >= n || !leaves_before(p, p->heap[child], key)) break;
        put(p, i, p->heap[child]);
        i = child;
    }
    put(p, i, key);
}

static void heap_add(stk_policy *p, uint32_t key, uint32_t n) {
    put(p, n, key);
    sift(p, n, n + 1);
}

/* Takes `key` out of the heap of n keys. */
static void heap_remove(stk_policy *p, uint32_t key, uint32_t n) {
    uint32_t i = p->at[key], last = p->heap[n - 1];
    p->at[key] = ABSENT;
    if (last == key) return;
    put(p, i, last);
    sift(p, i, n - 1);
}

static int heap_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    uint32_t n = p->n_resident, n_aside = 0;
    while (n > 0 && has_bit(busy, p->heap[0])) {
        p->set_aside[n_aside++] = p->heap[0];
        heap_remove(p, p->heap[0], n--);
    }
    int found = n > 0;
    if (found) *key = p->heap[0];
    while (n_aside > 0) heap_add(p, p->set_aside[--n_aside], n++);
    return found;
}

/* ---- Keys as hooks name them -------------------------------------------------------------------------------------------- */

static uint32_t to_hook(const stk_policy *p, uint32_t key) {
    return p->layers ? p->layers[key / p->n_expert] * p->n_expert + key % p->n_expert : key;
}

/* ABSENT for an expert of another class. */
static uint32_t from_hook(const stk_policy *p, uint32_t key) {
    if (!p->layers) return key;
    uint32_t layer = key / p->n_expert, low = 0, high = p->n_layer;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (p->layers[mid] < layer)
            low = mid + 1;
        else
            high = mid;
    }
    return low < p->n_layer && p->layers[low] == layer ? low * p->n_expert + key % p->n_expert : ABSENT;
}

static const uint64_t *busy_to_hook(stk_policy *p, const uint64_t *busy) {
    if (!p->layers) return busy;
    memset(p->hook_busy, 0, ((size_t)(p->layers[p->n_layer - 1] + 1) * p->n_expert + 63) / 64 * sizeof *p->hook_busy);
    for (uint32_t word = 0; word < (p->n_key + 63) / 64; word++)
        for (uint64_t bits = busy[word]; bits; bits &= bits - 1) {
            uint32_t key = to_hook(p, word * 64 + (uint32_t)__builtin_ctzll(bits));
            p->hook_busy[key / 64] |= (uint64_t)1 << (key % 64);
        }
    return p->hook_busy;
}

/* ---- Open and close ----------------------------------------------------------------------------------------------------- */

static void user_close(stk_policy *p) {
    if (!p) return;
    const stk_policy_hooks *h = &p->user->hooks;
    if (p->opened && h->close) h->close(p->policy);
    if (p->lru) p->lru_ops->close(p->lru);
    free(p->layers);
    free(p->hook_keys);
    free(p->hook_busy);
    free(p->resident);
    free(p->score);
    free(p->used);
    free(p->event_score);
    free(p->scratch);
    free(p->heap);
    free(p->at);
    free(p->set_aside);
    free(p);
}

/* False: out of memory. */
static bool take_layers(stk_policy *p, const stk_policy_config *config) {
    p->n_expert = config->n_expert;
    p->n_layer = config->n_key / config->n_expert;
    bool same = true;
    for (uint32_t i = 0; config->layers && i < p->n_layer; i++) same = same && config->layers[i] == i;
    if (same) return true;
    p->layers = calloc(p->n_layer, sizeof *p->layers);
    p->hook_keys = calloc(p->n_expert, sizeof *p->hook_keys);
    p->hook_busy = calloc((size_t)config->n_key_all / 64 + 1, sizeof *p->hook_busy);
    if (!p->layers || !p->hook_keys || !p->hook_busy) return false;
    memcpy(p->layers, config->layers, p->n_layer * sizeof *p->layers);
    return true;
}

static bool take_memory(stk_policy *p, const stk_policy_config *config) {
    if (!take_layers(p, config)) return false;
    p->resident = calloc((size_t)p->n_key / 64 + 1, sizeof *p->resident);
    if (!is_scored(&p->user->hooks)) return p->resident;
    p->score = calloc(p->n_key, sizeof *p->score);
    p->used = calloc(p->n_key, sizeof *p->used);
    p->event_score = calloc(config->n_expert, sizeof *p->event_score);
    p->scratch = calloc(config->n_expert, 2 * sizeof *p->scratch);
    p->heap = calloc(p->n_key, sizeof *p->heap);
    p->at = malloc(sizeof *p->at * p->n_key);
    p->set_aside = calloc(p->n_key, sizeof *p->set_aside);
    if (!p->resident || !p->score || !p->used || !p->event_score || !p->scratch || !p->heap || !p->at || !p->set_aside)
        return false;
    memset(p->at, 0xff, sizeof *p->at * p->n_key);
    for (uint32_t key = 0; key < p->n_key; key++) p->score[key] = -INFINITY;
    p->best = -INFINITY;
    p->serial = p->cold = UINT64_MAX / 2;
    return true;
}

static int user_open(stk_policy **out, const stk_policy_config *config) {
    stk_policy_user *u = config->user;
    const stk_policy_hooks *h = &u->hooks;
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy %s: out of memory", u->ops.name);
    p->user = u;
    p->n_key = config->n_key;
    p->lru_ops = &stk_policy_lru;
    int rc = STK_OK;
    if (!take_memory(p, config)) {
        rc = stk_fail(STK_ENOMEM, "policy %s: out of memory for %u experts", u->ops.name, config->n_key);
        goto out;
    }
    stk_policy_config lru = *config;
    lru.params = NULL;
    STK_TRYGOTO(p->lru_ops->open(&p->lru, &lru), rc, out);
    p->policy = h->user;
    if (h->open) {
        const stk_policy_shape shape = {.struct_bytes = sizeof shape,
                                        .instance = config->instance,
                                        .n_key = STK_MAX(config->n_key_all, config->n_key),
                                        .n_expert = config->n_expert,
                                        .n_slot = config->n_slot,
                                        .seed = config->seed};
        rc = h->open(h->user, &shape, &p->policy);
        if (rc < 0) {
            rc = stk_fail(rc, "policy %s: its open hook failed (%s)", u->ops.name, stk_strerror(rc));
            goto out;
        }
    }
out:
    if (rc < 0) {
        user_close(p);
        return rc;
    }
    p->opened = true;
    *out = p;
    return STK_OK;
}

/* ---- Events ------------------------------------------------------------------------------------------------------------- */

/* Scores of the event: *scores [event->n], from the hook or from those given in advance. */
static int get_scores(stk_policy *p, const stk_policy_event *event, const double **scores) {
    const stk_policy_hooks *h = &p->user->hooks;
    if (h->score) {
        *scores = p->event_score;
        return h->score(p->policy, event, p->event_score);
    }
    uint64_t from = p->user->n_scored;
    p->user->n_scored += event->n;
    *scores = h->scores + from;
    return from <= h->n_scores && event->n <= h->n_scores - from ? STK_OK : STK_EINVAL;
}

static void touch_scores(stk_policy *p, const stk_policy_event *event, const uint32_t *keys) {
    const double *scores = NULL;
    int rc = get_scores(p, event, &scores);
    if (rc < 0) fault(p, rc, p->user->hooks.score ? "its score hook failed" : "there are fewer scores than experts in the run");
    for (uint32_t i = 0; !p->faulted && i < event->n; i++)
        if (isnan(scores[i])) fault(p, STK_EINVAL, "a score is not a number");
    const uint64_t *order;
    stk_cache_order(event->counts, event->n, p->scratch, &order);
    for (uint32_t i = event->n; i-- > 0;) {
        uint32_t key = keys[order[i]];
        p->used[key] = ++p->serial;
        p->score[key] = p->faulted ? p->best : scores[order[i]];
        p->best = p->score[key] > p->best ? p->score[key] : p->best;
        if (p->at[key] != ABSENT) sift(p, p->at[key], p->n_resident);
    }
}

static int user_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    const stk_policy_hooks *h = &p->user->hooks;
    for (uint32_t i = 0; p->layers && i < n; i++) p->hook_keys[i] = to_hook(p, keys[i]);
    const stk_policy_event e = stk_hook_event(event, p->layers ? p->hook_keys : keys, n);
    p->faulted = false;
    STK_TRY(p->lru_ops->touch(p->lru, event, keys, n));
    int rc = h->touch && !h->score ? h->touch(p->policy, &e) : STK_OK;
    if (rc < 0) fault(p, rc, "its touch hook failed");
    if (is_scored(h)) touch_scores(p, &e, keys);
    return STK_OK;
}

static int user_admit(stk_policy *p, uint32_t key) {
    if (p->faulted) return 1;
    int rc = p->user->hooks.admit(p->policy, to_hook(p, key));
    if (rc < 0) fault(p, rc, "its admit hook failed");
    return rc != 0;
}

static int user_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    const stk_policy_hooks *h = &p->user->hooks;
    STK_TRY(p->lru_ops->inserted(p->lru, key, why));
    p->resident[key / 64] |= (uint64_t)1 << (key % 64);
    if (is_scored(h)) {
        if (why != STK_WHY_DEMAND) {
            p->used[key] = why == STK_WHY_PREFETCH ? --p->cold : ++p->serial;
            p->score[key] = why == STK_WHY_PREFETCH ? -INFINITY : p->best;
        }
        heap_add(p, key, p->n_resident);
    }
    p->n_resident++;
    int rc = h->inserted ? h->inserted(p->policy, to_hook(p, key), (int)why) : STK_OK;
    if (rc < 0) fault(p, rc, "its inserted hook failed");
    return STK_OK;
}

static int user_evicted(stk_policy *p, uint32_t key) {
    const stk_policy_hooks *h = &p->user->hooks;
    STK_TRY(p->lru_ops->evicted(p->lru, key));
    p->resident[key / 64] &= ~((uint64_t)1 << (key % 64));
    if (is_scored(h)) heap_remove(p, key, p->n_resident);
    p->n_resident--;
    int rc = h->evicted ? h->evicted(p->policy, to_hook(p, key)) : STK_OK;
    if (rc < 0) fault(p, rc, "its evicted hook failed");
    return STK_OK;
}

static int user_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    const stk_policy_hooks *h = &p->user->hooks;
    if (!p->faulted) {
        uint32_t chosen = ABSENT;
        int rc = h->victim ? h->victim(p->policy, busy_to_hook(p, busy), &chosen) : heap_victim(p, busy, &chosen);
        if (h->victim && rc > 0) chosen = from_hook(p, chosen);
        if (rc < 0) {
            fault(p, rc, "its victim hook failed");
        } else if (rc > 0) {
            if (chosen < p->n_key && has_bit(p->resident, chosen) && !has_bit(busy, chosen)) {
                *key = chosen;
                return 1;
            }
            fault(p, STK_EINVAL, "its victim is busy or not resident");
        }
    }
    int rc = p->lru_ops->victim(p->lru, busy, key);
    if (rc > 0) fault(p, STK_EINVAL, "it named no victim though some experts may leave");
    return rc;
}

/* A victim hook may change with every answer, so LRU's victim, which is as likely one of little use, stands for it. */
static int user_would_leave(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    bool scored = is_scored(&p->user->hooks) && !p->faulted;
    return scored ? heap_victim(p, busy, key) : p->lru_ops->victim(p->lru, busy, key);
}

static int user_resized(stk_policy *p, uint32_t n_slot) {
    const stk_policy_hooks *h = &p->user->hooks;
    STK_TRY(p->lru_ops->resized(p->lru, n_slot));
    int rc = h->resized ? h->resized(p->policy, n_slot) : STK_OK;
    if (rc < 0) fault(p, rc, "its resized hook failed");
    return STK_OK;
}

/* ---- State -------------------------------------------------------------------------------------------------------------- */

/* Who is resident, in LRU's order: what a policy of the user's makes of it is its own. */
static int64_t user_save(const stk_policy *p, void *out, size_t cap) { return p->lru_ops->save(p->lru, out, cap); }

/* The user's policy hears of the change as experts that leave and come. */
static int user_load(stk_policy *p, const void *data, size_t bytes) {
    STK_TRY(p->lru_ops->load(p->lru, data, bytes));
    const stk_policy_hooks *h = &p->user->hooks;
    int rc = STK_OK;
    for (uint32_t key = 0; key < p->n_key; key++) {
        if (!has_bit(p->resident, key)) continue;
        if (is_scored(h)) heap_remove(p, key, p->n_resident);
        p->n_resident--;
        if (h->evicted && rc >= 0) rc = h->evicted(p->policy, to_hook(p, key));
    }
    memset(p->resident, 0, ((size_t)p->n_key / 64 + 1) * sizeof *p->resident);
    stk_policy_state head;
    memcpy(&head, data, sizeof head);
    for (uint32_t i = 0; i < head.n_resident; i++) {
        uint32_t key = stk_policy_state_key(data, i);
        p->resident[key / 64] |= (uint64_t)1 << (key % 64);
        if (is_scored(h)) {
            p->used[key] = ++p->serial;
            heap_add(p, key, p->n_resident);
        }
        p->n_resident++;
        if (h->inserted && rc >= 0) rc = h->inserted(p->policy, to_hook(p, key), STK_WHY_WARM);
    }
    p->faulted = false;
    if (rc < 0) fault(p, rc, "a hook failed while residents were loaded");
    return STK_OK;
}

static const stk_policy_ops user_ops = {
    .open = user_open,
    .close = user_close,
    .touch = user_touch,
    .admit = user_admit,
    .inserted = user_inserted,
    .evicted = user_evicted,
    .resized = user_resized,
    .victim = user_victim,
    .would_leave = user_would_leave,
    .save = user_save,
    .load = user_load,
};

int stk_policy_user_init(stk_policy_user *user, const stk_policy_hooks *hooks) {
    memset(user, 0, sizeof *user);
    stk_policy_hooks *h = &user->hooks;
    STK_TRY(stk_struct_take(h, sizeof *h, hooks, "policy hooks"));
    if (!h->name) h->name = "user";
    if ((h->victim != NULL) + (h->score != NULL) + (h->scores != NULL) != 1)
        return stk_fail(STK_EINVAL, "policy %s: one of victim, score and scores is to be given, and one only", h->name);
    user->ops = user_ops;
    user->ops.name = h->name;
    if (!h->admit) user->ops.admit = NULL;
    return STK_OK;
}
