/* numa: which nodes there are, from a made-up tree of /sys; and that pages are spread over those named. */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/machine/numa.h"
#include "tests/temp.h"

static char root[TEMP_PATH];

static void make_root(void) { temp_make_dir(root, "numa"); }

static void remove_root(void) {
    char command[TEMP_PATH + 16];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    cr_assert_eq(system(command), 0);
}

static void put_file(uint32_t node, const char *name, const char *text) {
    char command[512], path[TEMP_PATH + 64];
    snprintf(command, sizeof command, "mkdir -p '%s/sys/devices/system/node/node%u'", root, node);
    cr_assert_eq(system(command), 0);
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%u/%s", root, node, name);
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f, "%s", path);
    fputs(text, f);
    fclose(f);
}

static void put_node(uint32_t node, const char *cpus, unsigned long kilobytes) {
    char text[128];
    put_file(node, "cpulist", cpus);
    snprintf(text, sizeof text, "Node %u MemTotal:       %lu kB\nNode %u MemFree: 1 kB\n", node, kilobytes, node);
    put_file(node, "meminfo", text);
}

static uint64_t nodes_of(uint32_t first, uint32_t end) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = first; i < end; i++) CPU_SET(i, &set);
    return stk_numa_nodes(&set, root);
}

TestSuite(numa, .init = make_root, .fini = remove_root);

Test(numa, nodes_of_the_allowed_cpus) {
    put_node(0, "0-3,16-19\n", 1000);
    put_node(1, "4-7,20-23\n", 1000);
    put_node(3, "8,9,10,11\n", 1000); /* numbers have gaps */
    cr_assert_eq(nodes_of(0, 32), 0xb);
    cr_assert_eq(nodes_of(0, 8), 0x3);
    cr_assert_eq(nodes_of(3, 5), 0x3);
    cr_assert_eq(nodes_of(11, 17), 0x9);
    cr_assert_eq(nodes_of(4, 8), 0, "one node is none");
    cr_assert_eq(nodes_of(24, 32), 0);
}

Test(numa, nodes_without_cpus_or_memory_do_not_count) {
    put_node(0, "0-3\n", 1000);
    put_node(1, "4-7\n", 0);
    put_node(2, "\n", 1000);
    put_node(5, "8-11\n", 1000);
    cr_assert_eq(nodes_of(0, 32), 0x21);
    cr_assert_eq(nodes_of(0, 8), 0);
}

Test(numa, what_is_not_there_or_nonsense_is_no_node) {
    cr_assert_eq(nodes_of(0, 32), 0);
    put_node(0, "x-y\n", 1000);
    put_node(1, "0-\n", 1000);
    put_file(2, "cpulist", "5\n");
    put_file(3, "cpulist", "6\n");
    put_file(3, "meminfo", "nothing\n");
    put_node(4, "99999999999999999999-7\n", 1000);
    cr_assert_eq(nodes_of(0, 32), 0);
}

Test(numa, pages_are_spread_over_the_nodes_named) {
    enum { BYTES = 1 << 20 };
    char *base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(base, MAP_FAILED);
    cr_assert(stk_numa_spread(base, BYTES, 0));
    int mode = 0;
    if (!stk_numa_spread(base, BYTES, 1)) cr_skip_test("the system places no memory: %s", strerror(errno));
    cr_assert_eq(syscall(SYS_get_mempolicy, &mode, NULL, 0ul, base + BYTES / 2, (unsigned long)MPOL_F_ADDR), 0);
    cr_assert_eq(mode, MPOL_INTERLEAVE);
    memset(base, 1, BYTES);
    cr_assert_not(stk_numa_spread(base, BYTES, UINT64_C(1) << 63), "a node that is not there");
    munmap(base, BYTES);
}

Test(numa, this_machine_has_what_it_has) { cr_assert_neq(__builtin_popcountll(stk_numa_nodes_here()), 1); }
