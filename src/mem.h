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
    uint64_t map_bytes;  /* as mapped */
    uint64_t huge_bytes; /* advised as huge pages */
} stk_map;

/* Anonymous zeroed memory, all of it touched (so that running out happens here, as STK_ENOMEM, not later); on huge pages from 64 MiB on, unless
 * `small`; 2 MiB aligned then, else 4,096. lock: mlock, STK_ENOMEM names RLIMIT_MEMLOCK when that refuses. `what` is for messages. */
int stk_map_open(stk_map *map, uint64_t bytes, bool lock, const char *what) STK_CHECKED;
void stk_map_close(stk_map *map);

/* Bytes that this process may still take: the least over MemAvailable and every cgroup (v1 or v2) above it of limit - usage + reclaimable file pages. */
uint64_t stk_mem_available(void);
/* RLIMIT_MEMLOCK, UINT64_MAX when unlimited or privileged (CAP_IPC_LOCK). */
uint64_t stk_mem_lockable(void);
/* "1.5 GiB" for messages; `out` has 32 bytes. Returns out. */
char *stk_bytes_text(uint64_t bytes, char *out);
/* "8G", "512M", "1.5GiB", "4096" (binary multiples); STK_EINVAL names the text. */
int stk_bytes_parse(const char *text, uint64_t *bytes) STK_CHECKED;

#endif
