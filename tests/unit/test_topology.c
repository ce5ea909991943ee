/* topology: cores and quotas read from a made-up tree of /proc and /sys in a temporary folder. */
#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cpu/topology.h"
#include "tests/temp.h"

static char root[TEMP_PATH];

static void make_root(void) { temp_make_dir(root, "stoker-topology"); }

static void remove_root(void) {
    char command[TEMP_PATH + 16];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    cr_assert_eq(system(command), 0);
}

static void put_file(const char *text, const char *fmt, ...) {
    char path[TEMP_PATH + 256], at[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(at, sizeof at, fmt, ap);
    va_end(ap);
    snprintf(path, sizeof path, "%s%s", root, at);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f, "%s", path);
    fputs(text, f);
    fclose(f);
}

static stk_topology read_cpus(uint32_t n_cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < n_cpu; i++) CPU_SET(i, &set);
    stk_topology t;
    stk_topology_read(&set, root, &t);
    return t;
}

TestSuite(topology, .init = make_root, .fini = remove_root);

Test(topology, cores_come_before_siblings) {
    for (uint32_t i = 0; i < 8; i++) {
        char list[32];
        snprintf(list, sizeof list, i % 2 ? "%u,%u\n" : "%u-%u\n", i % 4, i % 4 + 4);
        put_file(list, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", i);
    }
    stk_topology t = read_cpus(8);
    static const uint16_t order[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    cr_assert(t.n_cpu == 8 && t.n_core == 4 && t.n_usable == 8);
    cr_assert_arr_eq(t.cpu, order, sizeof order);
    for (uint32_t i = 0; i < 4; i++)
        put_file(i < 2 ? "0,1\n" : "2,3\n", "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", i);
    t = read_cpus(4);
    static const uint16_t alternate[4] = {0, 2, 1, 3};
    cr_assert(t.n_cpu == 4 && t.n_core == 2);
    cr_assert_arr_eq(t.cpu, alternate, sizeof alternate);
}

Test(topology, without_sysfs_each_cpu_is_a_core) {
    stk_topology t = read_cpus(3);
    cr_assert(t.n_cpu == 3 && t.n_core == 3 && t.n_usable == 3);
    t = read_cpus(0);
    cr_assert(t.n_cpu == 1 && t.n_core == 1 && t.n_usable == 1);
}

Test(topology, quota_of_version_2_counts_those_above) {
    put_file("0::/a/b\n", "/proc/self/cgroup");
    put_file("max 100000\n", "/sys/fs/cgroup/a/b/cpu.max");
    cr_assert_eq(read_cpus(8).n_usable, 8);
    put_file("250000 100000\n", "/sys/fs/cgroup/a/cpu.max");
    cr_assert_eq(read_cpus(8).n_usable, 3);
    put_file("100000 100000\n", "/sys/fs/cgroup/cpu.max");
    cr_assert_eq(read_cpus(8).n_usable, 1);
}

Test(topology, quota_of_version_1) {
    put_file("4:memory:/x\n3:cpuset:/x\n2:cpuacct,cpu:/x\n0::/\n", "/proc/self/cgroup");
    put_file("-1\n", "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us");
    put_file("100000\n", "/sys/fs/cgroup/cpu/x/cpu.cfs_period_us");
    cr_assert_eq(read_cpus(8).n_usable, 8);
    put_file("50000\n", "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us");
    cr_assert_eq(read_cpus(8).n_usable, 1);
}
