/* numa: nodes from sysfs; placement by the one system call that it takes, so that no library is needed for it. */
#include "numa.h"

#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_NODE = 64, PATH_BYTES = 4096, LINE_BYTES = 4096 };

/* The first line of a node's file; false when there is none. */
static bool read_line(const char *root, uint32_t node, const char *name, char line[LINE_BYTES]) {
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/sys/devices/system/node/node%u/%s", root, node, name);
    FILE *f = n > 0 && n < PATH_BYTES ? fopen(path, "re") : NULL;
    if (!f) return false;
    bool ok = fgets(line, LINE_BYTES, f) != NULL;
    fclose(f);
    return ok;
}

/* Whether a list such as "0-3,8,10-11" names a CPU of the set. */
static bool names_one(const char *list, const cpu_set_t *set) {
    for (const char *at = list; *at >= '0' && *at <= '9';) {
        char *end;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (*end == '-') last = strtoul(end + 1, &end, 10);
        for (unsigned long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, set)) return true;
        at = *end == ',' ? end + 1 : end;
    }
    return false;
}

/* A node without memory, as machines with accelerators have them, says "MemTotal: 0 kB" in its first line. */
static bool has_memory(const char *line) {
    const char *total = strstr(line, "MemTotal:");
    return total && strtoull(total + strlen("MemTotal:"), NULL, 10) > 0;
}

uint64_t stk_numa_nodes(const cpu_set_t *allowed, const char *root) {
    char line[LINE_BYTES];
    uint64_t nodes = 0;
    for (uint32_t n = 0; n < MAX_NODE; n++) {
        if (!read_line(root, n, "cpulist", line) || !names_one(line, allowed)) continue;
        if (read_line(root, n, "meminfo", line) && has_memory(line)) nodes |= UINT64_C(1) << n;
    }
    return nodes & (nodes - 1) ? nodes : 0;
}

uint64_t stk_numa_nodes_here(void) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? stk_numa_nodes(&allowed, "") : 0;
}

bool stk_numa_spread(void *base, uint64_t bytes, uint64_t nodes) {
    if (nodes == 0 || bytes == 0) return true;
    unsigned long mask[] = {(unsigned long)nodes};
    return syscall(SYS_mbind, base, bytes, MPOL_INTERLEAVE, mask, (unsigned long)MAX_NODE + 1, 0u) == 0;
}
