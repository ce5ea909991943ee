/*
 * mem: budgets and big blocks of memory: what the cgroup, free memory and RLIMIT_MEMLOCK allow, and arenas on huge pages.
 *
 * Who may call it: every folder. Threads: any. Ownership: a map belongs to whoever opened it.
 */
#ifndef STK_MEM_H
#define STK_MEM_H

#include "base.h"

typedef struct stk_map {
    void *base;
    uint64_t bytes;      /* as asked for */
    uint64_t map_bytes;  /* as mapped: addresses, of which only what was asked for has memory */
    uint64_t huge_bytes; /* advised as huge pages */
} stk_map;

/*
 * Anonymous zeroed memory, all of it touched, so that running out happens here and not later: STK_ENOMEM, with both figures, if
 * `bytes` is more than stk_mem_available(). From 64 MiB on it is advised as huge pages and 2 MiB aligned, else page aligned. On
 * a machine of several nodes it is spread over those that this thread may compute on (numa.h).
 * lock: mlock; STK_ENOMEM names RLIMIT_MEMLOCK when that refuses. `what` is for messages. bytes == 0 gives base NULL. A map that
 * is closed, or was never opened but zeroed, may be closed again.
 */
int stk_map_open(stk_map *map, uint64_t bytes, bool lock, const char *what) STK_CHECKED;
void stk_map_close(stk_map *map);
/*
 * As stk_map_open, with addresses for `most` bytes, so that it may grow to that without moving. Addresses cost nothing; where the
 * system refuses them all the same (RLIMIT_AS), there are no more than for `bytes`.
 */
int stk_map_open_growing(stk_map *map, uint64_t bytes, uint64_t most, bool lock, const char *what) STK_CHECKED;
/* Another size: what is added is zeroed and touched, what is cut off goes back to the system. On an error, as those of open,
 * nothing has changed. */
int stk_map_resize(stk_map *map, uint64_t bytes, bool lock, const char *what) STK_CHECKED;

/* Bytes that this process may still take: the least over MemAvailable and every cgroup (v1 or v2) above it of limit - usage +
 * reclaimable file pages. */
uint64_t stk_mem_available(void);
/* The same with `root` in front of /proc and of the mount points of cgroups (""; or a tree of a test). */
uint64_t stk_mem_available_in(const char *root);
/* STK_ENOMEM, with both figures, if `bytes` are more than stk_mem_available(). */
int stk_mem_check(uint64_t bytes, const char *what) STK_CHECKED;
/* RLIMIT_MEMLOCK; UINT64_MAX when unlimited or privileged (CAP_IPC_LOCK). */
uint64_t stk_mem_lockable(void);
/* "1.5 GiB" for messages; `out` has 32 bytes. Returns out. */
char *stk_bytes_text(uint64_t bytes, char *out);
/* "8G", "512M", "1.5GiB", "4096" (binary multiples up to P, either case); STK_EINVAL names the text. */
int stk_bytes_parse(const char *text, uint64_t *bytes) STK_CHECKED;

#endif
