/* machine: what the doctor finds on this machine, and on machines with faults. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "src/machine/machine.h"
#include "tests/temp.h"

#define MODEL STK_TEST_DATA "/ember-q4_k_m.gguf"

enum { MAX_FINDING = 16 };
typedef struct findings {
    struct {
        int level;
        char topic[32], found[512], advice[512];
    } all[MAX_FINDING];
    int n;
} findings;

static void take(void *user, int level, const char *topic, const char *found, const char *advice) {
    findings *f = user;
    cr_assert_lt(f->n, MAX_FINDING);
    f->all[f->n].level = level;
    snprintf(f->all[f->n].topic, 32, "%s", topic);
    snprintf(f->all[f->n].found, 512, "%s", found);
    snprintf(f->all[f->n].advice, 512, "%s", advice);
    f->n++;
}

static int find(const findings *f, const char *topic) {
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->all[i].topic, topic)) return i;
    cr_assert_fail("no finding about %s", topic);
    return -1;
}

Test(machine, this_one) {
    stk_machine_info m = {.struct_bytes = sizeof m};
    cr_assert_eq(stk_get_machine(&m), 0);
    cr_assert(m.n_cpu >= 1 && m.n_core >= 1 && m.n_core <= m.n_cpu);
    cr_assert(m.n_threads >= 1 && m.n_threads <= m.n_core);
    cr_assert_gt(m.available_bytes, 1u << 20);
    cr_assert(strlen(m.name) > 0 && m.name[0] != ' ' && m.name[strlen(m.name) - 1] != ' ');
    cr_assert_not_null(m.cpu);
    cr_assert_eq(stk_get_machine(NULL), STK_EINVAL);
}

Test(machine, every_topic_once) {
    static const char *const topics[] = {"kernels",    "cores",       "NUMA",          "GPU",      "GPU link",
                                         "memory",     "huge pages",  "locked memory", "io_uring", "direct reads",
                                         "read-ahead", "file system", "drive speed"};
    findings f = {.n = 0}, g = {.n = 0};
    cr_assert_eq(stk_doctor(MODEL, take, &f), 0, "%s", stk_error_detail());
    cr_assert_geq(f.n, (int)STK_ARRAY_LEN(topics), "several cards have a link each");
    for (size_t i = 0; i < STK_ARRAY_LEN(topics); i++) {
        int at = find(&f, topics[i]);
        cr_assert(strlen(f.all[at].found) > 0, "%s", topics[i]);
        cr_assert_eq(f.all[at].level == STK_FINDING_OK, f.all[at].advice[0] == 0, "%s: what is wrong has an advice", topics[i]);
    }
    cr_assert_eq(stk_doctor(NULL, take, &g), 0);
    cr_assert_eq(g.n, f.n - 4, "without a file nothing is said of its drive");
}

Test(machine, refusals) {
    findings f = {.n = 0};
    cr_assert_eq(stk_doctor(MODEL, NULL, NULL), STK_EINVAL);
    cr_assert_eq(stk_doctor("/nowhere/model.gguf", take, &f), STK_EIO);
    cr_assert_not_null(strstr(stk_error_detail(), "/nowhere/model.gguf"));
}

/* A tree that stands for / with one file. */
static void tree_put(const char *root, const char *path, const char *text) {
    char name[512];
    snprintf(name, sizeof name, "%s%s", root, path);
    for (char *slash = name + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(name, 0755);
        *slash = '/';
    }
    FILE *file = fopen(name, "w");
    cr_assert_not_null(file, "%s", name);
    fputs(text, file);
    fclose(file);
}

Test(machine, faults_come_with_what_to_do) {
    char root[TEMP_PATH], command[TEMP_PATH + 16];
    temp_make_dir(root, "stoker-root");
    tree_put(root, "/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    tree_put(root, "/proc/self/cgroup", "0::/box\n");
    tree_put(root, "/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    tree_put(root, "/sys/fs/cgroup/box/cpu.max", "50000 100000\n");
    tree_put(root, "/sys/fs/cgroup/box/memory.max", "1073741824\n");
    tree_put(root, "/sys/fs/cgroup/box/memory.current", "73741824\n");
    tree_put(root, "/proc/meminfo", "MemTotal: 33554432 kB\nMemFree: 30000000 kB\nMemAvailable: 31000000 kB\n");
    findings f = {.n = 0};
    cr_assert_eq(stk_doctor_in(root, NULL, take, &f), 0, "%s", stk_error_detail());
    int huge = find(&f, "huge pages"), memory = find(&f, "memory"), cores = find(&f, "cores");
    cr_assert_eq(f.all[huge].level, STK_FINDING_PROBLEM);
    cr_assert_not_null(strstr(f.all[huge].advice, "echo madvise >"));
    cr_assert_eq(f.all[memory].level, STK_FINDING_NOTE, "%s", f.all[memory].found);
    cr_assert_not_null(strstr(f.all[memory].found, "953.7 MiB"), "%s", f.all[memory].found);
    stk_machine_info m = {.struct_bytes = sizeof m};
    cr_assert_eq(stk_get_machine(&m), 0);
    if (m.n_core > 1) {
        cr_assert_eq(f.all[cores].level, STK_FINDING_PROBLEM, "%s", f.all[cores].found);
        cr_assert_not_null(strstr(f.all[cores].advice, "cpu.max"));
    }
    snprintf(command, sizeof command, "rm -r '%s'", root);
    cr_assert_eq(system(command), 0);
    f.n = 0;
    cr_assert_eq(stk_doctor_in(root, NULL, take, &f), 0, "nothing to read is no failure");
    cr_assert_eq(f.all[find(&f, "huge pages")].level, STK_FINDING_PROBLEM);
}

Test(machine, buses_and_drives) {
    char root[TEMP_PATH], command[TEMP_PATH + 16], line[256];
    struct stat st;
    temp_make_dir(root, "stoker-root");
    cr_assert_eq(stat(MODEL, &st), 0);
    tree_put(root, "/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    tree_put(root, "/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n");
    tree_put(root, "/sys/bus/pci/devices/0000:01:00.0/current_link_speed", "16.0 GT/s PCIe\n");
    tree_put(root, "/sys/bus/pci/devices/0000:01:00.0/max_link_speed", "16.0 GT/s PCIe\n");
    tree_put(root, "/sys/bus/pci/devices/0000:01:00.0/current_link_width", "4\n");
    tree_put(root, "/sys/bus/pci/devices/0000:01:00.0/max_link_width", "16\n");
    tree_put(root, "/sys/bus/pci/devices/0000:02:00.0/vendor", "0x8086\n");
    snprintf(line, sizeof line, "1 0 0:1 / /proc rw - proc proc rw\n2 0 %u:%u / / rw - nfs4 there:/ rw\n", major(st.st_dev),
             minor(st.st_dev));
    tree_put(root, "/proc/self/mountinfo", line);
    findings f = {.n = 0};
    cr_assert_eq(stk_doctor_in(root, MODEL, take, &f), 0, "%s", stk_error_detail());
    int card = find(&f, "GPU link"), type = find(&f, "file system"), drive = find(&f, "drive speed");
    cr_assert_eq(f.all[card].level, STK_FINDING_PROBLEM);
    cr_assert_not_null(strstr(f.all[card].advice, "driver"));
    cr_assert_eq(f.all[type].level, STK_FINDING_NOTE);
    cr_assert_str_eq(f.all[type].found, "nfs4");
    cr_assert_gt(strlen(f.all[drive].found), 0);
    tree_put(root, "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\n");
    f.n = 0;
    cr_assert_eq(stk_doctor_in(root, NULL, take, &f), 0, "%s", stk_error_detail());
    card = find(&f, "GPU link");
    cr_assert_eq(f.all[card].level, STK_FINDING_PROBLEM);
    cr_assert_not_null(strstr(f.all[card].found, "x4 of x16"), "%s", f.all[card].found);
    cr_assert_not_null(strstr(f.all[card].advice, "slot"));
    tree_put(root, "/sys/bus/pci/devices/0000:01:00.0/current_link_width", "16\n");
    f.n = 0;
    cr_assert_eq(stk_doctor_in(root, NULL, take, &f), 0, "%s", stk_error_detail());
    cr_assert_eq(f.all[find(&f, "GPU link")].level, STK_FINDING_OK);
    snprintf(command, sizeof command, "rm -r '%s'", root);
    cr_assert_eq(system(command), 0);
}
