/*
 * store: experts from the file into their slots: catalogue, slots and io put together. It knows what is in flight; who may have a
 * slot is the cache's business, what is computed is forward's.
 *
 * Who may call it: src/. Threads: the thread that plans; stk_store_arrive by any worker, for different parts at the same time.
 * Ownership: borrows catalogue, io and slots. One reader per expert at any time.
 */
#ifndef STK_STORE_H
#define STK_STORE_H

#include "executor.h"
#include "experts/slots.h"
#include "io/io.h"

typedef struct stk_store stk_store;

int stk_store_open(stk_store **out, const stk_catalogue *cat, stk_io *io, stk_slots *slots) STK_CHECKED;
/* Nothing may be in flight. */
void stk_store_close(stk_store **store);

/* Memory of a decision's slot. */
void *stk_store_slot(const stk_store *store, uint32_t layer, const stk_decision *d);

/* Starts the reads of the three parts of decision `index`'s expert. */
int stk_store_read(stk_store *store, uint32_t layer, const stk_decision *d, uint32_t index) STK_CHECKED;
/* Looks for completions without waiting; they are handed out by the next reap. */
int stk_store_poll(stk_store *store) STK_CHECKED;
/* Experts of which all parts have ended, at most max; with wait, blocks once if there is none (0 when interrupted). */
int stk_store_reap(stk_store *store, stk_arrival *out, uint32_t max, bool wait) STK_CHECKED;
/* Brings one part of an expert that was read into its layout. scratch: stk_catalogue_scratch_bytes(). */
void stk_store_arrive(const stk_store *store, uint32_t layer, const stk_decision *d, enum stk_part part, void *scratch);
/* Cancels what is in flight and waits for its end; forgets completions that nobody reaped. */
void stk_store_drain(stk_store *store);
/* Payload of an expert, and what its read asks of the drive. */
void stk_store_sizes(const stk_store *store, uint32_t layer, uint32_t expert, uint64_t *payload_bytes, uint64_t *read_bytes);

#endif
