/*
 * order: the experts of an event by usefulness: token count (falling), then id. The cache decides in this order and policies
 * rank by it, so it is written once.
 *
 * Who may call it: cache/. Pure; sorts in the caller's scratch, because qsort may allocate.
 */
#ifndef STK_ORDER_H
#define STK_ORDER_H

#include "src/base.h"

/*
 * Fills *order with n positions 0 .. n-1: by counts[position] falling, then position rising. `scratch` has 2n entries; *order
 * points into it.
 */
void stk_cache_order(const uint32_t *counts, uint32_t n, uint64_t *scratch, const uint64_t **order);

#endif
