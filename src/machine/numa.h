/*
 * numa: memory over the nodes of a machine. All workers read all weights, each its share of every matrix, so pages are dealt out
 * to the nodes in turn: each node's memory then gives its bandwidth to every product.
 *
 * Who may call it: src/. Threads: any. No state.
 */
#ifndef STK_NUMA_H
#define STK_NUMA_H

#include <sched.h>

#include "src/base.h"

/* The nodes, by bits, that have CPUs of `allowed` and memory; 0 where that is one alone or the system tells of none. Nodes from
 * 64 on are left out. root: "" or the folder that stands for / in a test. */
uint64_t stk_numa_nodes(const cpu_set_t *allowed, const char *root);
/* The same for this thread's CPUs. */
uint64_t stk_numa_nodes_here(void);
/* Pages of [base, base + bytes), page-aligned and not touched yet, come from these nodes in turn; nothing is done for 0. False
 * where the system refuses: they then come from wherever they are touched. */
bool stk_numa_spread(void *base, uint64_t bytes, uint64_t nodes);

#endif
