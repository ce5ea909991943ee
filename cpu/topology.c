/* topology: cores from sysfs, quotas from cgroups of version 1 and 2. */
#include "cpu/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* The first line of a file, without its newline; false when there is none. */
static bool read_line(const char *path, char *line, int bytes) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(line, bytes, f) != NULL;
    fclose(f);
    if (ok) line[strcspn(line, "\n")] = 0;
    return ok;
}

/* A core goes by the lowest number of its siblings, which is what their list begins with. */
static long core_of(const char *root, long cpu) {
    char path[PATH_BYTES], line[256];
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%ld/topology/thread_siblings_list", root, cpu);
    return read_line(path, line, sizeof line) ? strtol(line, NULL, 10) : cpu;
}

/* quota / period, rounded up; UINT32_MAX for no quota. */
static uint32_t cpus_of_quota(const char *quota, const char *period) {
    double q = strtod(quota, NULL), p = strtod(period, NULL);
    if (!(q > 0) || !(p > 0) || q / p > 1e6) return UINT32_MAX; /* "max" and -1 included */
    uint32_t n = (uint32_t)(q / p);
    return n < q / p ? n + 1 : n;
}

static uint32_t quota_v2(const char *dir) {
    char path[PATH_BYTES + 32], line[128];
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (!read_line(path, line, sizeof line)) return UINT32_MAX;
    char *space = strchr(line, ' ');
    return space ? cpus_of_quota(line, space + 1) : UINT32_MAX;
}

static uint32_t quota_v1(const char *dir) {
    char path[PATH_BYTES + 32], quota[64], period[64];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
    if (!read_line(path, quota, sizeof quota)) return UINT32_MAX;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    return read_line(path, period, sizeof period) ? cpus_of_quota(quota, period) : UINT32_MAX;
}

/* The least quota of a group and of those above it, up to the mount. */
static uint32_t quota_up(const char *mount, const char *group, uint32_t (*quota)(const char *)) {
    char dir[PATH_BYTES];
    int n = snprintf(dir, sizeof dir, "%s%s", mount, group);
    if (n < 0 || (size_t)n >= sizeof dir) return UINT32_MAX;
    size_t mount_bytes = strlen(mount);
    uint32_t least = UINT32_MAX;
    for (;;) {
        least = STK_MIN(least, quota(dir));
        char *slash = strrchr(dir + mount_bytes, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == 0)) return true;
    return false;
}

/* Lines of /proc/self/cgroup: "id:controllers:group"; no controllers means version 2. */
static uint32_t quota_of_process(const char *root) {
    char path[PATH_BYTES], line[PATH_BYTES], mount[PATH_BYTES];
    uint32_t least = UINT32_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (!f) return least;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        controllers++;
        *group++ = 0;
        bool v1 = has_word(controllers, "cpu");
        if (!v1 && *controllers) continue;
        snprintf(mount, sizeof mount, v1 ? "%s/sys/fs/cgroup/cpu" : "%s/sys/fs/cgroup", root);
        least = STK_MIN(least, quota_up(mount, group, v1 ? quota_v1 : quota_v2));
    }
    fclose(f);
    return least;
}

void stk_topology_read(const cpu_set_t *allowed, const char *root, stk_topology *out) {
    uint16_t sibling[CPU_SETSIZE];
    bool seen[CPU_SETSIZE] = {false};
    uint32_t n_core = 0, n_sibling = 0;
    for (uint16_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, allowed)) continue;
        long core = core_of(root, cpu);
        if (core < 0 || core >= CPU_SETSIZE) core = cpu;
        if (seen[core])
            sibling[n_sibling++] = cpu;
        else
            out->cpu[n_core++] = cpu;
        seen[core] = true;
    }
    memcpy(out->cpu + n_core, sibling, n_sibling * sizeof *sibling);
    out->n_core = STK_MAX(n_core, 1u);
    out->n_cpu = STK_MAX(n_core + n_sibling, 1u);
    out->n_usable = STK_MIN(out->n_cpu, quota_of_process(root));
}
