/*
 * store: experts from the file into their slots: catalogue, slots and io put together. It knows what is in flight; who may have a
 * slot is the cache's business, what is computed is forward's.
 *
 * An expert is read as three parts. A part that has landed is packed into its layout (stk_store_pack) while others are still on
 * their way; the expert is there when all three are packed. What was read ahead and is not wanted yet is packed only where there
 * is nothing better to do: many a guess is wrong. A packed expert comes with one or two reads and is there when these have
 * landed.
 *
 * Who may call it: src/. Threads: the thread that plans; stk_store_pack by any worker, for different parts at the same time.
 * Ownership: borrows catalogue, io and slots. One reader per expert at any time, whoever asked for it.
 */
#ifndef STK_STORE_H
#define STK_STORE_H

#include "executor.h"
#include "experts/slots.h"
#include "io/io.h"

typedef struct stk_store stk_store;

/* n_share: workers among which the packing of one part is shared out. */
int stk_store_open(stk_store **out, const stk_catalogue *cat, stk_io *io, stk_slots *slots, uint32_t n_share) STK_CHECKED;
/* Nothing may be in flight. */
void stk_store_close(stk_store **store);
/* Takes down there what the drive does; NULL: nowhere. */
void stk_store_set_timeline(stk_store *store, stk_timeline *timeline);

/* Memory of a decision's slot. */
void *stk_store_slot(const stk_store *store, uint32_t layer, const stk_decision *d);

/* Starts reading the expert of decision `index`, which the event waits for: it comes back as an arrival. A victim that is itself
 * still coming is given up first, which waits for its pieces in flight. */
int stk_store_read(stk_store *store, uint32_t layer, const stk_decision *d, uint32_t index) STK_CHECKED;
/* Starts reading an expert ahead of its use; behind all demand, and without an arrival. A failure is told to nobody: the expert
 * is read again when it is wanted. */
int stk_store_prefetch(stk_store *store, uint32_t layer, const stk_decision *d) STK_CHECKED;
/* The slot of an expert that may still be coming goes to another (STK_NO_KEY: it was free). */
int stk_store_vacate(stk_store *store, uint32_t key) STK_CHECKED;
/* Decision `index` hit an expert that was prefetched: 1 when it is there, 0 when it will be an arrival (its read is demand from
 * here on). */
int stk_store_want(stk_store *store, const stk_decision *d, uint32_t index) STK_CHECKED;

/* Looks for reads that have ended; with wait, blocks once where there is nothing to pack and nothing has arrived. */
int stk_store_poll(stk_store *store, bool wait) STK_CHECKED;
/* Picks landed parts to be packed now: all that are wanted, or, if there are none and `idle`, one expert's that are not. Returns
 * how many shares of work they make; each is packed once (scratch: stk_catalogue_scratch_bytes()), then all are settled, which
 * returns their payload bytes. */
uint32_t stk_store_pick(stk_store *store, bool idle);
void stk_store_pack(const stk_store *store, uint32_t i, void *scratch);
uint64_t stk_store_settle(stk_store *store);
/* Takes at most max arrivals: experts that an event waits for, when their gate and up, when all three parts are there, or when
 * they failed. */
uint32_t stk_store_take(stk_store *store, stk_arrival *out, uint32_t max);

/* Bytes that were asked for and have not come back, on demand and ahead. */
void stk_store_backlog(const stk_store *store, uint64_t *demand_bytes, uint64_t *ahead_bytes);
/* An expert that was read ahead is not wanted: what of it is not under way is not read, without waiting for what is. Where it is
 * wanted after all, the rest is read on demand. */
void stk_store_stale(stk_store *store, uint32_t key);

/* Cancels what is in flight and waits for its end. *keys lists the experts that were asked for and are not there; returns how
 * many. */
uint32_t stk_store_drain(stk_store *store, const uint32_t **keys);
/* Payload of an expert, and what its read asks of the drive. */
void stk_store_sizes(const stk_store *store, uint32_t layer, uint32_t expert, uint64_t *payload_bytes, uint64_t *read_bytes);

#endif
