/*
 * order: the experts of an event by usefulness: token count (falling), then id. The cache decides in this order and policies
 * rank by it, so it is written once.
 *
 * Who may call it: cache/. Pure; sorts in the caller's scratch, because qsort may allocate.
 */
#ifndef STK_ORDER_H
#define STK_ORDER_H

#include "src/base.h"
#include "src/event.h"

/*
 * Fills *order with n positions 0 .. n-1: by counts[position] falling, then position rising. `scratch` has 2n entries; *order
 * points into it.
 */
void stk_cache_order(const uint32_t *counts, uint32_t n, uint64_t *scratch, const uint64_t **order);

enum { STK_ORDER_AS_IS = 64 };
extern const uint64_t stk_order_as_is[STK_ORDER_AS_IS]; /* 0, 1, 2, ... */

/* The same for the n experts of an event. Those of one token have a count of 1 each. */
static inline const uint64_t *stk_order_of(const stk_event *event, uint32_t n, uint64_t *scratch) {
    const uint64_t *order = stk_order_as_is;
    if (event->n_tok != 1 || n > STK_ORDER_AS_IS) stk_cache_order(event->counts, n, scratch, &order);
    return order;
}

#endif
