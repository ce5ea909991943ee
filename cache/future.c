/*
 * future: while it is built, an entry is a lookup's key, with a bit for the first lookup of an event and one for the first after
 * a cut. Ended, it is the number of the event that uses the expert next. Entries pass through one block, which the store, if
 * there is one, keeps; without a store the block is the whole list and grows.
 */
#include "cache/future.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1 << 16 };
#define FIRST_OF_EVENT 0x80000000u
#define AFTER_CUT      0x40000000u
#define KEY_MASK       0x3fffffffu

struct stk_future {
    uint32_t n_layer, n_expert, n_key;
    bool in_store, cut, ended;
    stk_future_store store;
    uint32_t *entries; /* [cap]: the block, or all */
    uint64_t cap, n_here;
    uint64_t n_stored; /* entries before those here */
    uint32_t n_event;
};

struct stk_future_cursor {
    const stk_future *future;
    uint32_t *block; /* [BLOCK + n_expert], with a store */
    uint64_t at;     /* the next entry */
    uint64_t begin;  /* of the block */
    uint32_t n_block;
    uint32_t n_event;
};

int stk_future_open(stk_future **out, uint32_t n_layer, uint32_t n_expert, const stk_future_store *store) {
    *out = NULL;
    uint64_t n_key = (uint64_t)n_layer * n_expert;
    if (!n_key || n_key > KEY_MASK || n_expert >= STK_NO_EXPERT)
        return stk_fail(STK_EINVAL, "future of a trace: %u layers of %u experts are not supported", n_layer, n_expert);
    stk_future *f = calloc(1, sizeof *f);
    if (f) f->entries = malloc(sizeof *f->entries * BLOCK);
    if (!f || !f->entries) {
        free(f);
        return stk_fail(STK_ENOMEM, "future of a trace: out of memory");
    }
    f->n_layer = n_layer;
    f->n_expert = n_expert;
    f->n_key = (uint32_t)n_key;
    f->cap = BLOCK;
    f->in_store = store != NULL;
    if (store) f->store = *store;
    *out = f;
    return 0;
}

void stk_future_close(stk_future **future) {
    if (!*future) return;
    free((*future)->entries);
    free(*future);
    *future = NULL;
}

/* ---- First pass --------------------------------------------------------------------------------------------------------- */

static int make_room(stk_future *f) {
    if (f->in_store) {
        STK_TRY(f->store.write(f->store.user, f->n_stored, f->entries, (uint32_t)f->n_here));
        f->n_stored += f->n_here;
        f->n_here = 0;
        return 0;
    }
    uint32_t *more = f->cap <= SIZE_MAX / (2 * sizeof *more) ? realloc(f->entries, 2 * f->cap * sizeof *more) : NULL;
    if (!more) return stk_fail(STK_ENOMEM, "future of a trace: out of memory after %llu lookups", (unsigned long long)f->n_here);
    f->entries = more;
    f->cap *= 2;
    return 0;
}

int stk_future_add(stk_future *future, uint32_t layer, const stk_event *event) {
    stk_future *f = future;
    if (f->ended || layer >= f->n_layer)
        return stk_fail(STK_EINVAL, "future of a trace: layer %u of %u%s", layer, f->n_layer, f->ended ? ", after its end" : "");
    if (f->n_event == STK_FUTURE_NEVER - 1)
        return stk_fail(STK_EUNSUPPORTED, "future of a trace: more than %u events", f->n_event);
    for (uint32_t i = 0; i < event->n_distinct; i++) {
        uint32_t expert = event->distinct[i];
        if (expert >= f->n_expert)
            return stk_fail(STK_EINVAL, "future of a trace: expert %u, a layer has %u", expert, f->n_expert);
        if (f->n_here == f->cap) STK_TRY(make_room(f));
        uint32_t marks = i ? 0 : FIRST_OF_EVENT | (f->cut ? AFTER_CUT : 0);
        f->entries[f->n_here++] = marks | (layer * f->n_expert + expert);
    }
    f->n_event += event->n_distinct > 0;
    f->cut &= event->n_distinct == 0;
    return 0;
}

void stk_future_cut(stk_future *future) { future->cut = true; }

/* ---- Backwards ---------------------------------------------------------------------------------------------------------- */

/* Entries end first; *event is the number of the event that entry n - 1 belongs to. */
static void turn(const stk_future *f, uint32_t *entries, uint64_t n, uint32_t *upcoming, uint32_t *event) {
    while (n-- > 0) {
        uint32_t entry = entries[n], key = entry & KEY_MASK;
        entries[n] = upcoming[key];
        upcoming[key] = *event;
        if (entry & AFTER_CUT) memset(upcoming, 0xff, sizeof *upcoming * f->n_key);
        *event -= (entry & FIRST_OF_EVENT) != 0;
    }
}

int stk_future_end(stk_future *future) {
    stk_future *f = future;
    uint32_t *upcoming = malloc(sizeof *upcoming * f->n_key), event = f->n_event - 1;
    if (!upcoming) return stk_fail(STK_ENOMEM, "future of a trace: out of memory for %u experts", f->n_key);
    memset(upcoming, 0xff, sizeof *upcoming * f->n_key);
    int rc = 0;
    f->ended = true;
    turn(f, f->entries, f->n_here, upcoming, &event);
    if (f->in_store) {
        STK_TRYGOTO(f->store.write(f->store.user, f->n_stored, f->entries, (uint32_t)f->n_here), rc, out);
        uint64_t all = f->n_stored + f->n_here;
        while (f->n_stored > 0) { /* whole blocks: that is how they were written */
            f->n_stored -= BLOCK;
            STK_TRYGOTO(f->store.read(f->store.user, f->n_stored, f->entries, BLOCK), rc, out);
            turn(f, f->entries, BLOCK, upcoming, &event);
            STK_TRYGOTO(f->store.write(f->store.user, f->n_stored, f->entries, BLOCK), rc, out);
        }
        f->n_stored = all;
        f->n_here = 0;
    }
out:
    free(upcoming);
    return rc;
}

/* ---- Second pass -------------------------------------------------------------------------------------------------------- */

int stk_future_cursor_open(stk_future_cursor **out, const stk_future *future) {
    *out = NULL;
    if (!future->ended) return stk_fail(STK_ESTATE, "future of a trace: read before its end was told");
    stk_future_cursor *c = calloc(1, sizeof *c);
    if (c && future->in_store) c->block = malloc(sizeof *c->block * (BLOCK + (size_t)future->n_expert));
    if (!c || (future->in_store && !c->block)) {
        free(c);
        return stk_fail(STK_ENOMEM, "future of a trace: out of memory");
    }
    c->future = future;
    *out = c;
    return 0;
}

void stk_future_cursor_close(stk_future_cursor **cursor) {
    if (!*cursor) return;
    free((*cursor)->block);
    free(*cursor);
    *cursor = NULL;
}

/* The next n entries are in the block, or all are in memory. */
static int fetch(stk_future_cursor *c, uint32_t n, const uint32_t **next) {
    const stk_future *f = c->future;
    if (!f->in_store) {
        *next = f->entries + c->at;
        return 0;
    }
    if (c->at + n > c->begin + c->n_block) {
        uint64_t left = f->n_stored - c->at;
        c->begin = c->at;
        c->n_block = (uint32_t)STK_MIN(left, (uint64_t)BLOCK + f->n_expert);
        STK_TRY(f->store.read(f->store.user, c->begin, c->block, c->n_block));
    }
    *next = c->block + (c->at - c->begin);
    return 0;
}

int stk_future_next(stk_future_cursor *cursor, uint32_t n, const uint32_t **next) {
    stk_future_cursor *c = cursor;
    const stk_future *f = c->future;
    if (n > f->n_expert || n > f->n_stored + f->n_here - c->at)
        return stk_fail(STK_ESTATE, "future of a trace: the events are not those of the first pass");
    STK_TRY(fetch(c, n, next));
    for (uint32_t i = 0; i < n; i++)
        if ((*next)[i] <= c->n_event)
            return stk_fail(STK_ESTATE, "future of a trace: the events are not those of the first pass (event %u)", c->n_event);
    c->at += n;
    c->n_event += n > 0;
    return 0;
}
