/*
 * mem: arenas and budgets.
 *
 * A limit is found where the kernel keeps it: the mount point of the memory hierarchy comes from /proc/self/mountinfo and our
 * place in it from /proc/self/cgroup, because containers mount any part of the tree anywhere. Every directory from there up to
 * the mount point can be the tightest one.
 */
#include "mem.h"

#include <errno.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/machine/numa.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { PATH_BYTES = 4096, PAGE_BYTES = 4096, MAX_POPULATE_THREADS = 8 };
static const uint64_t HUGE_PAGE_BYTES = 2u << 20;
static const uint64_t HUGE_FROM_BYTES = 64u << 20;
static const uint64_t POPULATE_SHARE_BYTES = 256u << 20; /* less is not worth a thread */

/* ---- What is available -------------------------------------------------------------------------------------------------- */

/* Where a memory hierarchy is mounted and which part of it, or where we are in it: paths of a version of cgroups. */
typedef struct cgroup_place {
    char mount[PATH_BYTES];
    char mount_root[PATH_BYTES];
    char path[PATH_BYTES];
} cgroup_place;

/* Joins two paths; false if they do not fit. */
static bool join(char *out, const char *a, const char *b) {
    int n = snprintf(out, PATH_BYTES, "%s%s", a, b);
    return n >= 0 && n < PATH_BYTES;
}

static FILE *open_in(const char *dir, const char *name) {
    char path[PATH_BYTES];
    return join(path, dir, name) ? fopen(path, "re") : NULL;
}

/* A file that holds one number; false if it is not there or says "max". */
static bool read_number(const char *dir, const char *name, uint64_t *out) {
    FILE *f = open_in(dir, name);
    if (!f) return false;
    unsigned long long value;
    bool ok = fscanf(f, "%llu", &value) == 1;
    fclose(f);
    if (ok) *out = value;
    return ok;
}

/* The number after the word `key` at the start of a line. */
static bool read_field(const char *dir, const char *name, const char *key, uint64_t *out) {
    FILE *f = open_in(dir, name);
    if (!f) return false;
    char line[256], word[128];
    unsigned long long value;
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) found = sscanf(line, "%127s %llu", word, &value) == 2 && strcmp(word, key) == 0;
    fclose(f);
    if (found) *out = value;
    return found;
}

/* Whether the comma-separated `list` has the word "memory". */
static bool lists_memory(const char *list) {
    for (const char *at = list; (at = strstr(at, "memory")); at++) {
        char end = at[6];
        if ((at == list || at[-1] == ',') && (end == '\0' || end == ',' || end == '\n' || end == ':')) return true;
    }
    return false;
}

/* A line is: id parent dev root mount_point options [tags...] - type source super_options. */
static bool parse_mount(const char *line, bool v2, cgroup_place *place) {
    char type[64], super[1024];
    const char *tail = strstr(line, " - ");
    if (!tail || sscanf(tail, " - %63s %*s %1023s", type, super) != 2) return false;
    if (strcmp(type, v2 ? "cgroup2" : "cgroup") != 0 || (!v2 && !lists_memory(super))) return false;
    return sscanf(line, "%*s %*s %*s %4095s %4095s", place->mount_root, place->mount) == 2;
}

/* A line is: id:controllers:path, with 0 and no controllers for version 2. */
static bool parse_place(const char *line, bool v2, cgroup_place *place) {
    const char *controllers = strchr(line, ':');
    const char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) return false;
    char list[1024];
    int n = (int)(path - controllers - 1);
    if (n >= (int)sizeof list) return false;
    memcpy(list, controllers + 1, (size_t)n);
    list[n] = '\0';
    if (v2 ? strncmp(line, "0::", 3) != 0 : !lists_memory(list)) return false;
    if (!join(place->path, path + 1, "")) return false;
    place->path[strcspn(place->path, "\n")] = '\0';
    return true;
}

static bool scan_lines(const char *root, const char *name, bool v2, cgroup_place *place,
                       bool (*parse)(const char *, bool, cgroup_place *)) {
    FILE *f = open_in(root, name);
    if (!f) return false;
    char *line = NULL;
    size_t cap = 0;
    bool found = false;
    while (!found && getline(&line, &cap, f) > 0) found = parse(line, v2, place);
    free(line);
    fclose(f);
    return found;
}

/* What the cgroup in `dir` leaves: limit - (usage - reclaimable); UINT64_MAX without a limit. memory.high counts, as beyond it we
 * would only be slowed down. */
static uint64_t room_of(const char *dir, bool v2) {
    uint64_t limit = UINT64_MAX, high = UINT64_MAX, usage = 0, reclaimable = 0;
    read_number(dir, v2 ? "/memory.max" : "/memory.limit_in_bytes", &limit);
    if (v2) read_number(dir, "/memory.high", &high);
    limit = STK_MIN(limit, high);
    if (limit > UINT64_MAX / 4) return UINT64_MAX; /* version 1 says "none" by a number near 2^63 */
    read_number(dir, v2 ? "/memory.current" : "/memory.usage_in_bytes", &usage);
    read_field(dir, "/memory.stat", v2 ? "inactive_file" : "total_inactive_file", &reclaimable);
    usage -= STK_MIN(reclaimable, usage);
    return limit > usage ? limit - usage : 0;
}

static uint64_t cgroup_room(const char *root, bool v2) {
    cgroup_place place;
    if (!scan_lines(root, "/proc/self/mountinfo", v2, &place, parse_mount)) return UINT64_MAX;
    if (!scan_lines(root, "/proc/self/cgroup", v2, &place, parse_place)) return UINT64_MAX;

    /* The path below the mounted part. If we are outside of it (another namespace), the mounted part is all that can be seen. */
    const char *below = place.path;
    size_t n = strcmp(place.mount_root, "/") == 0 ? 0 : strlen(place.mount_root);
    bool inside = strncmp(below, place.mount_root, n) == 0 && (below[n] == '/' || below[n] == '\0');
    below = inside && !strstr(below, "/..") ? below + n : "";

    char top[PATH_BYTES], dir[PATH_BYTES];
    if (!join(top, root, place.mount) || !join(dir, top, below)) return UINT64_MAX;
    uint64_t room = UINT64_MAX;
    for (size_t len = strlen(dir), end = strlen(top);;) {
        uint64_t here = room_of(dir, v2);
        room = STK_MIN(room, here);
        if (len <= end) return room;
        while (len > end && dir[len - 1] != '/') len--;
        if (len > end) len--;
        dir[len] = '\0';
    }
}

uint64_t stk_mem_available_in(const char *root) {
    uint64_t kib, room;
    if (read_field(root, "/proc/meminfo", "MemAvailable:", &kib))
        room = kib * 1024;
    else
        room = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t v1 = cgroup_room(root, false), v2 = cgroup_room(root, true);
    room = STK_MIN(room, v1);
    return STK_MIN(room, v2);
}

uint64_t stk_mem_available(void) { return stk_mem_available_in(""); }

static uint64_t memlock_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
    return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

uint64_t stk_mem_lockable(void) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = {0};
    if (syscall(SYS_capget, &head, caps) == 0 && (caps[0].effective & (1u << CAP_IPC_LOCK))) return UINT64_MAX;
    return memlock_limit();
}

/* ---- Maps --------------------------------------------------------------------------------------------------------------- */

typedef struct populate_job {
    char *base;
    uint64_t bytes;
    int errnum;
} populate_job;

/* Without MADV_POPULATE_WRITE (Linux before 5.14) a write to each page does the same. */
static void *populate(void *user) {
    populate_job *job = user;
    if (madvise(job->base, job->bytes, MADV_POPULATE_WRITE) == 0) return NULL;
    if (errno == ENOMEM || errno == EFAULT || errno == EHWPOISON) {
        job->errnum = ENOMEM;
        return NULL;
    }
    for (uint64_t i = 0; i < job->bytes; i += PAGE_BYTES) ((volatile char *)job->base)[i] = 0;
    return NULL;
}

static uint32_t populate_threads(uint64_t bytes) {
    cpu_set_t set;
    int n_cpu = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    uint64_t n = bytes / POPULATE_SHARE_BYTES;
    n = STK_MIN(n, (uint64_t)n_cpu);
    n = STK_MIN(n, (uint64_t)MAX_POPULATE_THREADS);
    return (uint32_t)STK_MAX(n, 1u);
}

/* The kernel zeroes pages at a few GB/s a thread, so big maps are shared out over short-lived threads, joined before this
 * returns. */
static int populate_all(char *base, uint64_t bytes) {
    populate_job jobs[MAX_POPULATE_THREADS];
    pthread_t threads[MAX_POPULATE_THREADS];
    bool started[MAX_POPULATE_THREADS] = {false};
    uint32_t n = populate_threads(bytes);
    uint64_t share = stk_align_up(stk_div_up(bytes, n), HUGE_PAGE_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t from = STK_MIN(i * share, bytes), to = STK_MIN(from + share, bytes);
        jobs[i] = (populate_job){.base = base + from, .bytes = to - from};
        started[i] = i > 0 && pthread_create(&threads[i], NULL, populate, &jobs[i]) == 0;
    }
    int errnum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!started[i]) populate(&jobs[i]);
    for (uint32_t i = 0; i < n; i++) {
        if (started[i]) pthread_join(threads[i], NULL);
        if (jobs[i].errnum) errnum = jobs[i].errnum;
    }
    return errnum;
}

static int fail_lock(uint64_t bytes, const char *what) {
    char size[32], limit[32];
    return stk_fail(STK_ENOMEM,
                    "%s: cannot lock %s in memory: RLIMIT_MEMLOCK allows %s; raise it (ulimit -l, LimitMEMLOCK= or limits.conf) "
                    "or do not lock",
                    what, stk_bytes_text(bytes, size),
                    memlock_limit() == UINT64_MAX ? "any size, but the kernel refuses" : stk_bytes_text(memlock_limit(), limit));
}

/* Addresses without memory, aligned to `align`, by asking for more and giving both ends back. */
static char *reserve(uint64_t bytes, uint64_t align) {
    uint64_t slack = align > PAGE_BYTES ? align : 0;
    char *base = mmap(NULL, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED || slack == 0) return base;
    uint64_t before = stk_align_up((uintptr_t)base, align) - (uintptr_t)base;
    if (before) munmap(base, before);
    if (slack - before) munmap(base + before + bytes, slack - before);
    return base + before;
}

/* Where the memory of a map of so many bytes ends: whole huge pages where it has them. */
static uint64_t end_of(const stk_map *map, uint64_t bytes) {
    uint64_t end = stk_align_up(bytes, map->huge_bytes ? HUGE_PAGE_BYTES : PAGE_BYTES);
    return STK_MIN(end, map->map_bytes);
}

/* Gives [from, to) back and keeps the addresses; this also ends a lock. */
static void drop_memory(const stk_map *map, uint64_t from, uint64_t to) {
    if (from < to)
        (void)mmap((char *)map->base + from, to - from, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                   0);
}

int stk_mem_check(uint64_t bytes, const char *what) {
    char size[32], room[32];
    uint64_t available = stk_mem_available();
    if (bytes <= available) return 0;
    return stk_fail(STK_ENOMEM, "%s: %s are needed, but only %s are available (free memory and cgroup limits); ask for less",
                    what, stk_bytes_text(bytes, size), stk_bytes_text(available, room));
}

/* Gives [from, to) memory. */
static int take_memory(const stk_map *map, uint64_t from, uint64_t to, bool lock, const char *what) {
    char size[32], *at = (char *)map->base + from;
    if (lock && to > stk_mem_lockable()) return fail_lock(to, what);
    if (mprotect(at, to - from, PROT_READ | PROT_WRITE) != 0)
        return stk_fail_errno(errno, "%s: cannot map %s", what, stk_bytes_text(to - from, size));
    if (map->huge_bytes) (void)madvise(at, to - from, MADV_HUGEPAGE);
    int rc = 0, errnum = populate_all(at, to - from);
    if (errnum)
        rc = stk_fail_errno(errnum, "%s: cannot populate %s", what, stk_bytes_text(to - from, size));
    else if (lock && mlock(at, to - from) != 0)
        rc = fail_lock(to, what);
    if (rc < 0) drop_memory(map, from, to);
    return rc;
}

/* Whether pages of this map may be huge: asked with a page's worth of addresses, which have no memory yet. */
static bool may_be_huge(const char *base) { return madvise((char *)base, HUGE_PAGE_BYTES, MADV_HUGEPAGE) == 0; }

int stk_map_open_growing(stk_map *map, uint64_t bytes, uint64_t most, bool lock, const char *what) {
    *map = (stk_map){0};
    if (bytes == 0) return 0;
    char size[32];
    STK_TRY(stk_mem_check(bytes, what));
    if (lock && bytes > stk_mem_lockable()) return fail_lock(bytes, what);
    most = STK_MAX(most, bytes);
    bool huge = most >= HUGE_FROM_BYTES;
    uint64_t align = huge ? HUGE_PAGE_BYTES : PAGE_BYTES, map_bytes = stk_align_up(most, align);
    char *base = reserve(map_bytes, align);
    if (base == MAP_FAILED && most > bytes) {
        map_bytes = stk_align_up(bytes, align);
        base = reserve(map_bytes, align);
    }
    if (base == MAP_FAILED) return stk_fail_errno(errno, "%s: cannot map %s", what, stk_bytes_text(bytes, size));
    *map = (stk_map){.base = base, .map_bytes = map_bytes, .huge_bytes = huge && may_be_huge(base)};
    if (!stk_numa_spread(base, map_bytes, stk_numa_nodes_here()))
        stk_log(STK_LOG_INFO, "%s: memory cannot be spread over the nodes: %s", what, strerrordesc_np(errno));
    int rc = take_memory(map, 0, end_of(map, bytes), lock, what);
    if (rc < 0) {
        stk_map_close(map);
        return rc;
    }
    map->bytes = bytes;
    if (map->huge_bytes) map->huge_bytes = end_of(map, bytes);
    return 0;
}

int stk_map_open(stk_map *map, uint64_t bytes, bool lock, const char *what) {
    return stk_map_open_growing(map, bytes, bytes, lock, what);
}

int stk_map_resize(stk_map *map, uint64_t bytes, bool lock, const char *what) {
    uint64_t before = end_of(map, map->bytes), after = end_of(map, bytes);
    char size[32];
    if (bytes > map->map_bytes)
        return stk_fail(STK_ENOMEM, "%s: no addresses were set aside for %s", what, stk_bytes_text(bytes, size));
    if (after > before) STK_TRY(stk_mem_check(after - before, what));
    if (after > before) STK_TRY(take_memory(map, before, after, lock, what));
    drop_memory(map, after, before);
    map->bytes = bytes;
    if (map->huge_bytes) map->huge_bytes = STK_MAX(after, 1u); /* stays a map of huge pages */
    return 0;
}

void stk_map_close(stk_map *map) {
    if (map->base) munmap(map->base, map->map_bytes);
    *map = (stk_map){0};
}

/* ---- Sizes as text ------------------------------------------------------------------------------------------------------ */

char *stk_bytes_text(uint64_t bytes, char *out) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1023.95 && unit + 1 < STK_ARRAY_LEN(units); unit++) value /= 1024; /* 1023.95 would print as 1024.0 */
    if (unit == 0) {
        snprintf(out, 32, "%u %s", (unsigned)bytes, units[0]);
        return out;
    }
    unsigned tenths = (unsigned)(value * 10 + 0.5);
    if (tenths % 10)
        snprintf(out, 32, "%u.%u %s", tenths / 10, tenths % 10, units[unit]);
    else
        snprintf(out, 32, "%u %s", tenths / 10, units[unit]);
    return out;
}

/* The power of 1024 that a suffix stands for, or -1. */
static int suffix_power(const char *text) {
    static const char letters[] = "kmgtp";
    int power = 0;
    if (*text) {
        const char *at = strchr(letters, *text | 0x20);
        if (at) {
            power = (int)(at - letters) + 1;
            text++;
            if (*text == 'i' && (text[1] | 0x20) == 'b') text++;
        }
    }
    if ((*text | 0x20) == 'b') text++;
    return *text ? -1 : power;
}

int stk_bytes_parse(const char *text, uint64_t *bytes) {
    const char *p = text ? text : "";
    uint64_t whole = 0, fraction = 0, scale = 1;
    bool bad = *p < '0' || *p > '9';
    for (; *p >= '0' && *p <= '9'; p++)
        bad |= stk_mul_overflow(whole, 10, &whole) || stk_add_overflow(whole, (uint64_t)(*p - '0'), &whole);
    bool point = *p == '.';
    if (point) {
        bad |= p[1] < '0' || p[1] > '9';
        for (p++; *p >= '0' && *p <= '9'; p++) {
            if (scale >= 1000000000u) continue; /* further digits change less than a byte in a gigabyte */
            fraction = fraction * 10 + (uint64_t)(*p - '0');
            scale *= 10;
        }
    }
    if (*p == ' ') p++;
    int power = suffix_power(p);
    if (!bad && power >= 0 && !(point && power == 0)) {
        uint64_t unit = 1ull << (10 * power), part = (uint64_t)((unsigned __int128)unit * fraction / scale);
        if (!stk_mul_overflow(whole, unit, &whole) && !stk_add_overflow(whole, part, bytes)) return 0;
    }
    return stk_fail(STK_EINVAL, "'%s' is no size; write bytes with a binary suffix, such as 512M, 8G or 1.5GiB",
                    text ? text : "");
}
