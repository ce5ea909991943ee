/*
 * cache: which expert is where in one tier, by logical time. It sees an event as a whole and returns one list of decisions; they
 * depend only on the event, the policy's state and residency, never on a clock or on when bytes arrive. Slots are numbers here:
 * memory is experts/slots.h, reading is io/.
 *
 * An admitted miss counts as resident from its event on; a refused miss never does. No expert of the event is a victim before it
 * is computed: where the event's experts exceed the slots, decisions come in waves, and experts of earlier waves may be victims
 * of later ones.
 *
 * Who may call it: src/ (engine and replay), one thread at a time. Pure; all memory is taken at open.
 */
#ifndef STK_CACHE_H
#define STK_CACHE_H

#include "cache/future.h"
#include "cache/policy.h"

typedef struct stk_cache stk_cache;

/* Experts of one size. All experts of a layer are of one class. Slots are numbered from 0 within a class. */
typedef struct stk_cache_class {
    uint32_t n_slot;    /* capacity, without transit */
    uint32_t n_transit; /* further slots for refused misses: numbers n_slot .. n_slot + n_transit - 1 */
} stk_cache_class;

typedef struct stk_cache_config {
    uint32_t n_layer;  /* MoE layers, numbered densely */
    uint32_t n_expert; /* most experts of a layer */
    uint32_t k;        /* most experts of a token */
    uint32_t n_class;
    const stk_cache_class *classes;
    const uint32_t *layer_class; /* [n_layer] */
    const char *policy;
    const stk_policy_ops *ops; /* a policy that is not built in; NULL: by name */
    const char *params;
    uint64_t seed;
    const stk_future *future; /* of the events that will come, for policies that need it; borrowed until close; NULL: none */
    void *ops_user;           /* for ops->open */
    bool partial;             /* a tier in front of another: classes of any number of slots, without transit; its events go
                                 through stk_cache_lookup */
} stk_cache_config;

enum stk_decision_kind { STK_HIT, STK_ADMIT, STK_TRANSIT, STK_AWAY };
#define STK_NO_KEY 0xffffffffu

typedef struct stk_decision {
    uint32_t key; /* layer * n_expert + expert */
    uint16_t expert;
    uint8_t kind;    /* enum stk_decision_kind; STK_AWAY: missed, and nothing is decided; without slot */
    uint8_t coming;  /* a hit, the first since the expert's prefetch was issued: its bytes may still be on their way */
    uint32_t n_tok;  /* tokens of the event that use it */
    uint32_t slot;   /* in the layer's class */
    uint32_t victim; /* key that leaves this slot, or STK_NO_KEY */
    uint32_t wave;   /* 0, 1, ...: may start when its victim's computation (of this event) is done */
} stk_decision;

typedef struct stk_cache_counters {
    uint64_t n_event, n_lookup, n_pair, n_hit, n_miss;
    uint64_t n_evict;                     /* victims, of events and prefetches; not drops */
    uint64_t n_wave;                      /* at least one an event */
    uint64_t n_prefetch, n_prefetch_used; /* experts taken in ahead of their use; of these, used by an event before they left */
} stk_cache_counters;

/*
 * One policy instance a class: layers that shall have a cache of their own are given a class each. Memory is taken for as many
 * slots as a class has experts, so that it may grow. Errors: STK_EINVAL (policy, parameters, sizes, no future), STK_EBUDGET (a
 * class that is used has fewer than k slots, or no transit slot though the policy may refuse), STK_ENOMEM.
 */
int stk_cache_open(stk_cache **out, const stk_cache_config *config) STK_CHECKED;
void stk_cache_close(stk_cache **cache);

/*
 * Looks the event's distinct experts up and decides. `layer` is the dense MoE layer number. *list (n_distinct entries, valid
 * until the next event): hits first, by token count (falling) then id; then misses by token count then id. Returns the number of
 * decisions or an error.
 *
 * A miss takes the lowest free slot, else its policy's victim; a refused one takes the transit slots in turn. Where nobody may
 * leave, or every transit slot was used in this wave, the next wave begins: everything decided before counts as computed.
 *
 * The event's experts are busy until the next event begins. Errors: STK_EINVAL (layer or experts out of range; nothing changed),
 * or a policy's own error: nothing that was to be read for the event stays.
 */
int stk_cache_event(stk_cache *cache, uint32_t layer, const stk_event *event, const stk_decision **list) STK_CHECKED;

/* The event of a partial cache: *list as that of stk_cache_event, but what is missed is STK_AWAY; whoever chooses what enters
 * asks stk_cache_admit. Errors: STK_EINVAL, as above. */
int stk_cache_lookup(stk_cache *cache, uint32_t layer, const stk_event *event, const stk_decision **list) STK_CHECKED;
/* Takes an absent expert in: 1 and *decision (STK_ADMIT, no tokens); 0 where `ask` is set and the policy refuses, or no slot is
 * free and nobody may leave. */
int stk_cache_admit(stk_cache *cache, uint32_t key, bool ask, stk_decision *decision) STK_CHECKED;

/* Takes an expert in ahead of its use, if it is absent, the policy admits it, and a slot is free or a victim not busy: 1 and
 * *decision (STK_ADMIT, no tokens), 0 if not. From then on it is a hit. Until its layer's event it leaves only where that event,
 * or one before, finds no other victim. */
int stk_cache_prefetch(stk_cache *cache, uint32_t key, stk_decision *decision) STK_CHECKED;

/* The expert never arrived (failed read, cancelled step): it leaves its slot. No effect if it is not resident. */
int stk_cache_drop(stk_cache *cache, uint32_t key) STK_CHECKED;
/* Everything leaves. What a policy remembers of experts that left, it keeps. */
int stk_cache_clear(stk_cache *cache) STK_CHECKED;

/* An expert that a resize takes out of its slot. */
typedef struct stk_cache_move {
    uint32_t key, from;
    uint32_t to; /* a slot below the new number, free by the time the list has come here; STK_NO_SLOT: it leaves */
} stk_cache_move;
#define STK_NO_SLOT 0xffffffffu

/*
 * Between steps: gives a class another number of slots. Where that is too few, the policy's victims leave, and residents of slots
 * that are no more move to free ones: *moves (valid until the next call), those that leave first, in the order in which the
 * caller may copy. What is still being read must be waited for before, or dropped. Transit slots follow the others, as ever.
 * Returns the number of moves. Errors: STK_EINVAL (no such class, more slots than it has experts), STK_EBUDGET (as open; nothing
 * changed), a policy's own error (victims that had left are gone).
 */
int stk_cache_resize(stk_cache *cache, uint32_t class_idx, uint32_t n_slot, uint32_t n_transit,
                     const stk_cache_move **moves) STK_CHECKED;

/*
 * Residency and the policies' states as bytes, for the next start. save returns how many there are, and writes all of them or,
 * where cap is less, nothing. load replaces what is there and trusts nothing: STK_EFORMAT (not of this model or version, damaged)
 * leaves the cache empty.
 *
 * From a cache of more slots the policy's victims stay behind; from another policy only the residency is taken over. The loaded
 * experts are resident and `coming`: the caller reads each into its slot (stk_cache_slot), or drops it, and then says so
 * (stk_cache_arrived).
 */
int64_t stk_cache_save(const stk_cache *cache, void *out, size_t cap);
int stk_cache_load(stk_cache *cache, const void *data, size_t bytes) STK_CHECKED;
/* Everything that is `coming` is there: nothing was prefetched for what the next events find. */
void stk_cache_arrived(stk_cache *cache);

/* Whether a resident expert was read ahead and has not been used since: its bytes may be on their way. */
bool stk_cache_is_coming(const stk_cache *cache, uint32_t key);
/* Free slots of the class of an expert. */
uint32_t stk_cache_n_free(const stk_cache *cache, uint32_t key);
/* Slot of a resident key, or -1. */
int32_t stk_cache_slot(const stk_cache *cache, uint32_t key);
void stk_cache_get_counters(const stk_cache *cache, stk_cache_counters *counters);
void stk_cache_reset_counters(stk_cache *cache);
/* A hash of residency, slots and policy state, for comparing two runs. */
uint64_t stk_cache_hash(const stk_cache *cache);

#endif
