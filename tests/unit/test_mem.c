/* mem: what is available under fake /proc and cgroup trees, arenas, locking, sizes as text. */
#include <criterion/criterion.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/mem.h"
#include "tests/temp.h"

#ifdef __has_feature
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* ---- A tree that stands for the system ---------------------------------------------------------------------------------- */

static char root[TEMP_PATH];

static void tree_open(void) { temp_make_dir(root, "stoker-mem"); }

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void tree_close(void) { nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS); }

/* Writes root/name, making its directories. */
static void put(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    cr_assert(f, "%s", path);
    fputs(text, f);
    fclose(f);
}

static void put_common(const char *mountinfo, const char *cgroup) {
    put("/proc/meminfo", "MemTotal:       20000 kB\nMemFree:         5000 kB\nMemAvailable:   10000 kB\n");
    put("/proc/self/mountinfo", mountinfo);
    put("/proc/self/cgroup", cgroup);
}

#define V2_MOUNT "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNT                                                                                                                 \
    "33 30 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n34 30 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup "  \
    "rw,memory\n"

TestSuite(mem, .init = tree_open, .fini = tree_close);

Test(mem, without_cgroups_it_is_mem_available) {
    put_common("22 1 8:1 / / rw - ext4 /dev/sda rw\n", "0::/\n");
    cr_assert_eq(stk_mem_available_in(root), 10000u * 1024);
}

Test(mem, v2_takes_the_tightest_directory_on_the_way_up) {
    put_common(V2_MOUNT, "0::/a/b/c\n");
    put("/sys/fs/cgroup/a/b/c/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/c/memory.current", "1000\n");
    put("/sys/fs/cgroup/a/b/memory.max", "5000000\n");
    put("/sys/fs/cgroup/a/b/memory.current", "1000000\n");
    put("/sys/fs/cgroup/a/memory.max", "4000000\n");
    put("/sys/fs/cgroup/a/memory.current", "3000000\n");
    put("/sys/fs/cgroup/a/memory.stat", "anon 1\nfile 2200000\nactive_file 700000\ninactive_file 1500000\n");
    cr_assert_eq(stk_mem_available_in(root), 4000000u - (3000000u - 1500000u));
    put("/sys/fs/cgroup/a/b/memory.high", "1200000\n");
    cr_assert_eq(stk_mem_available_in(root), 200000u);
}

Test(mem, v2_over_its_limit_leaves_nothing) {
    put_common(V2_MOUNT, "0::/a\n");
    put("/sys/fs/cgroup/a/memory.max", "1000000\n");
    put("/sys/fs/cgroup/a/memory.current", "1000001\n");
    cr_assert_eq(stk_mem_available_in(root), 0);
}

Test(mem, v1_finds_the_memory_hierarchy) {
    put_common(V1_MOUNT, "9:name=systemd:/memory\n5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n");
    put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "3000000\n");
    put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "2500000\n");
    put("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 7\ntotal_inactive_file 500000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    cr_assert_eq(stk_mem_available_in(root), 1000000u);
}

/* A container without its own namespace: /proc/self/cgroup has the host's path, of which only our own part is mounted. */
Test(mem, v1_below_a_mounted_part) {
    put_common("34 30 0:30 /docker/f00 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n", "4:memory:/docker/f00/sub\n");
    put("/sys/fs/cgroup/memory/sub/memory.limit_in_bytes", "2000000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1500000\n");
    cr_assert_eq(stk_mem_available_in(root), 1500000u);
}

/* Seen from another namespace our path is not below what is mounted: the mount point itself is what can be read. */
Test(mem, v2_outside_of_the_mounted_part) {
    put_common("30 23 0:26 /pods/p1 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n", "0::/pods/p12\n");
    put("/sys/fs/cgroup/memory.max", "1234\n");
    cr_assert_eq(stk_mem_available_in(root), 1234u);
    put("/proc/self/cgroup", "0::/../p2\n");
    cr_assert_eq(stk_mem_available_in(root), 1234u);
}

Test(mem, this_machine_has_some) {
    uint64_t bytes = stk_mem_available();
    cr_assert_gt(bytes, 0);
    cr_assert_lt(bytes, 1ull << 50);
}

/* ---- Maps --------------------------------------------------------------------------------------------------------------- */

static bool all_resident(const stk_map *map) {
    size_t n = map->map_bytes / 4096;
    unsigned char *vec = malloc(n);
    cr_assert(vec);
    cr_assert_eq(mincore(map->base, map->map_bytes, vec), 0);
    bool all = true;
    for (size_t i = 0; i < n; i++) all &= vec[i] & 1;
    free(vec);
    return all;
}

Test(mem, small_map_is_touched_and_zeroed) {
    stk_map map;
    cr_assert_eq(stk_map_open(&map, 5000, false, "buffer"), 0);
    cr_assert_eq(map.bytes, 5000);
    cr_assert_eq(map.map_bytes, 8192);
    cr_assert_eq(map.huge_bytes, 0);
    cr_assert(all_resident(&map));
    for (size_t i = 0; i < map.map_bytes; i++) cr_assert_eq(((char *)map.base)[i], 0);
    stk_map_close(&map);
    cr_assert_null(map.base);
    stk_map_close(&map);
}

Test(mem, big_map_is_aligned_and_advised) {
    stk_map map;
    uint64_t bytes = (600u << 20) + 12345; /* enough for two populating threads */
    cr_assert_eq(stk_map_open(&map, bytes, false, "arena"), 0, "%s", stk_error_detail());
    cr_assert_eq((uintptr_t)map.base % (2u << 20), 0);
    cr_assert_eq(map.map_bytes, 602u << 20);
    cr_assert(map.huge_bytes == 0 || map.huge_bytes == map.map_bytes);
    cr_assert(all_resident(&map));
    for (size_t i = 0; i < map.map_bytes; i += 4096) cr_assert_eq(((char *)map.base)[i], 0);
    stk_map_close(&map);
}

/* Pages that are in memory. */
static size_t n_resident(const stk_map *map) {
    size_t n = map->map_bytes / 4096, found = 0;
    unsigned char *vec = malloc(n);
    cr_assert(vec);
    cr_assert_eq(mincore(map->base, map->map_bytes, vec), 0);
    for (size_t i = 0; i < n; i++) found += vec[i] & 1;
    free(vec);
    return found;
}

Test(mem, a_map_grows_and_gives_memory_back) {
    stk_map map;
    cr_assert_eq(stk_map_open_growing(&map, 10000, 1 << 20, false, "slots"), 0, "%s", stk_error_detail());
    char *base = map.base;
    cr_assert_eq(map.map_bytes, 1 << 20);
    cr_assert_eq(n_resident(&map), 3);
    memset(base, 5, 10000);
    cr_assert_eq(stk_map_resize(&map, 1 << 20, false, "slots"), 0, "%s", stk_error_detail());
    cr_assert_eq(map.bytes, 1 << 20);
    cr_assert_eq(map.base, base);
    cr_assert_eq(n_resident(&map), 256);
    for (size_t i = 0; i < 1 << 20; i++) cr_assert_eq(base[i], i < 10000 ? 5 : 0);
    cr_assert_eq(stk_map_resize(&map, 5000, false, "slots"), 0);
    cr_assert_eq(n_resident(&map), 2);
    cr_assert_eq(base[4999], 5);
    cr_assert_eq(stk_map_resize(&map, (1 << 20) + 4096, false, "slots"), STK_ENOMEM);
    cr_assert_eq(map.bytes, 5000);
    stk_map_close(&map);
}

Test(mem, a_large_map_grows_in_huge_pages) {
    stk_map map;
    cr_assert_eq(stk_map_open_growing(&map, 3 << 20, 96 << 20, false, "slots"), 0, "%s", stk_error_detail());
    cr_assert_eq((uintptr_t)map.base % (2u << 20), 0);
    cr_assert(map.huge_bytes == 0 || map.huge_bytes == 4u << 20);
    cr_assert_eq(stk_map_resize(&map, 90 << 20, false, "slots"), 0, "%s", stk_error_detail());
    cr_assert(map.huge_bytes == 0 || map.huge_bytes == 90u << 20);
    cr_assert_geq(n_resident(&map), (90u << 20) / 4096);
    cr_assert_eq(stk_map_resize(&map, 2 << 20, false, "slots"), 0);
    cr_assert_leq(n_resident(&map), (2u << 20) / 4096);
    stk_map_close(&map);
}

Test(mem, nothing_is_mapped_for_zero_bytes) {
    stk_map map = {.base = root};
    cr_assert_eq(stk_map_open(&map, 0, false, "nothing"), 0);
    cr_assert_null(map.base);
}

Test(mem, more_than_there_is_names_both_figures) {
    stk_map map;
    cr_assert_eq(stk_map_open(&map, 1ull << 60, false, "expert slots"), STK_ENOMEM);
    cr_assert(strstr(stk_error_detail(), "expert slots: 1 EiB are needed, but only "), "%s", stk_error_detail());
    cr_assert_null(map.base);
    cr_assert_eq(stk_map_open(&map, UINT64_MAX, false, "x"), STK_ENOMEM);
}

/* In a child, as the limit of a process cannot be raised again without privilege. */
Test(mem, lock_names_the_limit) {
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = {1u << 20, 1u << 20};
        stk_map map;
        bool dropped = setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && (getuid() != 0 || setuid(65534) == 0);
        bool known = stk_mem_lockable() == 1u << 20;
        bool small = stk_map_open(&map, 64 << 10, true, "staging") == 0;
        stk_map_close(&map);
        bool refused = stk_map_open(&map, 8 << 20, true, "staging") == STK_ENOMEM &&
                       strstr(stk_error_detail(), "RLIMIT_MEMLOCK allows 1 MiB");
        _exit(!dropped ? 10 : !known ? 11 : !small ? 12 : !refused ? 13 : 0);
    }
    int status = 0;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), 0, "child says %d", WEXITSTATUS(status));
}

Test(mem, locked_map_counts_as_locked) {
    if (SANITIZED) cr_skip_test("sanitizers make mlock do nothing");
    if (stk_mem_lockable() < (1u << 20)) cr_skip_test("RLIMIT_MEMLOCK is below 1 MiB");
    stk_map map;
    cr_assert_eq(stk_map_open(&map, 1u << 20, true, "staging"), 0, "%s", stk_error_detail());
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long kib = 0;
    while (fgets(line, sizeof line, f)) sscanf(line, "VmLck: %lu", &kib);
    fclose(f);
    cr_assert_geq(kib, 1024);
    stk_map_close(&map);
}

/* ---- Text --------------------------------------------------------------------------------------------------------------- */

Test(mem, bytes_as_text) {
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 bytes"},         {1023, "1023 bytes"},  {1024, "1 KiB"}, {1536, "1.5 KiB"}, {(1u << 20) - 1, "1 MiB"},
                 {3221225472u, "3 GiB"}, {UINT64_MAX, "16 EiB"}};
    char out[32];
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) cr_assert_str_eq(stk_bytes_text(cases[i].bytes, out), cases[i].text);
}

Test(mem, text_as_bytes) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {{"0", 0},
                 {"4096", 4096},
                 {"4096b", 4096},
                 {"8G", 8ull << 30},
                 {"512m", 512u << 20},
                 {"1.5GiB", 3ull << 29},
                 {"1.5 GiB", 3ull << 29},
                 {"0.5K", 512},
                 {"2kb", 2048},
                 {"1.000000000000000000001G", 1u << 30},
                 {"16383P", 16383ull << 50},
                 {"18446744073709551615", UINT64_MAX}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        uint64_t bytes = 1;
        cr_assert_eq(stk_bytes_parse(cases[i].text, &bytes), 0, "%s", cases[i].text);
        cr_assert_eq(bytes, cases[i].bytes, "%s: %lu", cases[i].text, bytes);
    }
}

Test(mem, bad_text_is_refused) {
    static const char *const bad[] = {"",
                                      "G",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1X",
                                      "1GG",
                                      "1i",
                                      "1iB",
                                      "1.G",
                                      ".5G",
                                      "1.5",
                                      "0x10",
                                      "1e3",
                                      "inf",
                                      "16384P",
                                      "18446744073709551616",
                                      "1 2",
                                      "8G ",
                                      "8GiBx",
                                      "1.5b"};
    for (size_t i = 0; i < STK_ARRAY_LEN(bad); i++) {
        uint64_t bytes;
        cr_assert_eq(stk_bytes_parse(bad[i], &bytes), STK_EINVAL, "'%s'", bad[i]);
        cr_assert(strstr(stk_error_detail(), bad[i]), "'%s'", bad[i]);
    }
    uint64_t bytes;
    cr_assert_eq(stk_bytes_parse(NULL, &bytes), STK_EINVAL);
}
