/*
 * future: what a trace will ask for, for the policies that a replay measures others by (belady). A first pass over the trace adds
 * its events in order; stk_future_end then turns the list, once and backwards, into the next use of every lookup; the second pass
 * reads it in order, as its cache sees the events.
 *
 * The list has 4 bytes a lookup. It lies in memory, or in the caller's store (a temporary file), of which one block is in memory
 * at a time, so that memory does not grow with the trace.
 *
 * Who may call it: src/ (replay), and belady through its cursor. Threads: one while it is built; then any number of cursors, each
 * with one owner, where the store's read may be called by several threads. Pure but for the store.
 */
#ifndef STK_FUTURE_H
#define STK_FUTURE_H

#include "src/base.h"
#include "src/event.h"

typedef struct stk_future stk_future;
typedef struct stk_future_cursor stk_future_cursor;

/* Entries are numbered from 0; what is read was written before. Both return 0 or a negative error, which is passed on. */
typedef struct stk_future_store {
    int (*write)(void *user, uint64_t at, const uint32_t *from, uint32_t n);
    int (*read)(void *user, uint64_t at, uint32_t *to, uint32_t n);
    void *user;
} stk_future_store;

/* n_layer * n_expert below 2^30. `store` is copied; NULL: memory. STK_EINVAL, STK_ENOMEM. */
int stk_future_open(stk_future **out, uint32_t n_layer, uint32_t n_expert, const stk_future_store *store) STK_CHECKED;
/* After its cursors. */
void stk_future_close(stk_future **future);

/* The next event, of dense layer `layer`. STK_EINVAL (out of range), STK_EUNSUPPORTED (2^32 - 2 events), STK_ENOMEM, the
 * store's errors; after any error the future is good for closing alone. */
int stk_future_add(stk_future *future, uint32_t layer, const stk_event *event) STK_CHECKED;
/* The cache will be cleared here: what is used only after it is not worth keeping before it. */
void stk_future_cut(stk_future *future);
int stk_future_end(stk_future *future) STK_CHECKED;

/* Reads an ended future from its beginning. */
int stk_future_cursor_open(stk_future_cursor **out, const stk_future *future) STK_CHECKED;
void stk_future_cursor_close(stk_future_cursor **cursor);

#define STK_FUTURE_NEVER 0xffffffffu
/*
 * The next uses of the n experts of the next event, in its order: numbers of events that asked for something, which grow, or
 * STK_FUTURE_NEVER. *next is valid until the next call. STK_ESTATE: these are not the events that were added.
 */
int stk_future_next(stk_future_cursor *cursor, uint32_t n, const uint32_t **next) STK_CHECKED;

#endif
