/*
 * topology: which CPUs this process may use, and how many of them at once. For cpu/, and src/machine/machine.c.
 *
 * Pure reading of /proc and /sys; what cannot be read counts as absent (each CPU its own core, no quota).
 */
#ifndef STK_TOPOLOGY_H
#define STK_TOPOLOGY_H

#include <sched.h>

#include "src/base.h"

typedef struct stk_topology {
    uint32_t n_cpu;            /* CPUs allowed, at least 1 */
    uint32_t n_core;           /* physical cores among them */
    uint32_t n_usable;         /* the lesser of n_cpu and the cgroups' CPU quota, rounded up */
    uint16_t cpu[CPU_SETSIZE]; /* the allowed ones: one of each core first, then their siblings, each ascending */
} stk_topology;

/* allowed: as of sched_getaffinity. root: "" or the folder that stands for / in a test. */
void stk_topology_read(const cpu_set_t *allowed, const char *root, stk_topology *out);

#endif
