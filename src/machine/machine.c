/* machine: the CPU's name, the cores and the memory that this process may use, and the findings of the doctor. */
#include "machine.h"

#include <cpuid.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "cpu/topology.h"
#include "cuda/cuda.h"
#include "io/io.h"
#include "numa.h"
#include "src/mem.h"

enum { PATH_BYTES = 4096, TEXT_BYTES = 512 };
static const uint64_t little_lockable = UINT64_C(1) << 30;

/* ---- The machine ---- */

/* The brand string without the spaces around it. */
static void cpu_name(char out[64]) {
    uint32_t words[12], max = __get_cpuid_max(0x80000000u, NULL);
    char text[sizeof words + 1] = "unknown";
    if (max >= 0x80000004u) {
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t *w = words + 4 * (size_t)i;
            (void)__get_cpuid(0x80000002u + i, &w[0], &w[1], &w[2], &w[3]);
        }
        memcpy(text, words, sizeof words);
        text[sizeof words] = 0;
    }
    const char *start = text + strspn(text, " ");
    size_t n = strlen(start);
    while (n > 0 && start[n - 1] == ' ') n--;
    memcpy(out, start, n);
    out[n] = 0;
}

static void read_cores(const char *root, stk_topology *t) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) CPU_ZERO(&allowed);
    stk_topology_read(&allowed, root, t);
}

int stk_get_machine(stk_machine_info *info) {
    if (!info || info->struct_bytes < sizeof info->struct_bytes)
        return stk_fail(STK_EINVAL, "stk_get_machine: no struct to fill");
    stk_topology t;
    read_cores("", &t);
    stk_machine_info full = {.struct_bytes = STK_MIN(info->struct_bytes, (uint32_t)sizeof full),
                             .n_cpu = t.n_cpu,
                             .n_core = t.n_core,
                             .n_threads = STK_MIN(t.n_core, t.n_usable),
                             .available_bytes = stk_mem_available(),
                             .cpu = stk_cpu_ops_get(NULL)->name};
    cpu_name(full.name);
    memcpy(info, &full, full.struct_bytes);
    return STK_OK;
}

/* ---- Findings ---- */

typedef struct visit {
    const char *root;
    stk_finding_fn fn;
    void *user;
} visit;

static void say(const visit *v, int level, const char *topic, const char *advice, const char *fmt, ...) STK_PRINTF(5, 6);
static void say(const visit *v, int level, const char *topic, const char *advice, const char *fmt, ...) {
    char found[TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(found, sizeof found, fmt, ap);
    va_end(ap);
    v->fn(v->user, level, topic, found, advice);
}

/* The first line of a file below the root, without its newline; false when there is none. */
static bool first_line(const visit *v, const char *path, char *line, int bytes) {
    char full[PATH_BYTES];
    int n = snprintf(full, sizeof full, "%s%s", v->root, path);
    FILE *f = n > 0 && (size_t)n < sizeof full ? fopen(full, "re") : NULL;
    if (!f) return false;
    bool ok = fgets(line, bytes, f) != NULL;
    fclose(f);
    if (ok) line[strcspn(line, "\n")] = 0;
    return ok;
}

static void look_at_kernels(const visit *v) {
    const char *names[8];
    char list[TEXT_BYTES] = "";
    uint32_t n = stk_cpu_ops_list(names);
    for (uint32_t i = 0; i < n; i++) snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", names[i]);
    bool plain = n == 1;
    say(v, plain ? STK_FINDING_PROBLEM : STK_FINDING_OK, "kernels",
        plain ? "this CPU, or the virtual machine's model of it, has no AVX2: everything will be slow; let the machine pass the "
                "host's CPU through"
              : "",
        "%s", list);
}

static void look_at_cores(const visit *v) {
    stk_topology t;
    read_cores(v->root, &t);
    char name[64];
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_name(name);
    bool quota = t.n_usable<t.n_core, fewer = online> 0 && t.n_cpu < (uint32_t)online;
    say(v,
        quota   ? STK_FINDING_PROBLEM
        : fewer ? STK_FINDING_NOTE
                : STK_FINDING_OK,
        "cores",
        quota
            ? "a control group's quota stops threads in the middle of their work: raise cpu.max, or bind the process to so many "
              "cores (taskset)"
        : fewer ? "the affinity mask of this process leaves cores out; that is well if it is meant"
                : "",
        "%s: %u of %ld CPUs allowed, %u physical cores, time for %u", name, t.n_cpu, online, t.n_core, t.n_usable);
}

/* Machines of one node have nothing to be said of. */
static void look_at_nodes(const visit *v) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    (void)sched_getaffinity(0, sizeof allowed, &allowed); /* of no CPU, there is no node */
    uint64_t nodes = stk_numa_nodes(&allowed, v->root);
    if (nodes)
        say(v, STK_FINDING_OK, "NUMA", "", "%d nodes of memory; weights are spread over them page by page",
            __builtin_popcountll(nodes));
    else
        say(v, STK_FINDING_OK, "NUMA", "", "one node of memory");
}

static void look_at_memory(const visit *v) {
    char line[128], a[32], b[32];
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE), can = stk_mem_available_in(v->root),
             free_kb = 0;
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/meminfo", v->root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "MemAvailable:", 13) == 0) free_kb = strtoull(line + 13, NULL, 10);
    if (f) fclose(f);
    bool limited = free_kb && (double)can < 0.9 * (double)free_kb * 1024;
    say(v, limited ? STK_FINDING_NOTE : STK_FINDING_OK, "memory",
        limited ? "a control group allows less than the system has free: raise memory.max if that is not meant" : "",
        "%s free for this process, of %s", stk_bytes_text(can, a), stk_bytes_text(total, b));
}

static void look_at_huge_pages(const visit *v) {
    char line[128];
    if (!first_line(v, "/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line)) {
        say(v, STK_FINDING_PROBLEM, "huge pages",
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE: weights in 4 KiB pages are slow to read", "this kernel has none");
        return;
    }
    bool never = strstr(line, "[never]") != NULL;
    say(v, never ? STK_FINDING_PROBLEM : STK_FINDING_OK, "huge pages",
        never ? "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" : "", "%s", line);
}

static void look_at_locking(const visit *v) {
    char text[32];
    uint64_t bytes = stk_mem_lockable();
    bool little = bytes < little_lockable;
    say(v, little ? STK_FINDING_NOTE : STK_FINDING_OK, "locked memory",
        little ? "--mlock will be refused, and io_uring may not register its buffers: ulimit -l unlimited, or LimitMEMLOCK= of "
                 "the service"
               : "",
        "%s", bytes == UINT64_MAX ? "no limit" : stk_bytes_text(bytes, text));
}

/* Whether io_uring may be used; any file will do. */
static int look_at_uring(const visit *v, const char *path) {
    stk_io *io;
    int rc = stk_io_open(&io, &(stk_io_options){.spec = "uring", .n_file = 1, .paths = &path});
    if (rc < 0 && rc != STK_EUNSUPPORTED) return rc;
    say(v, rc < 0 ? STK_FINDING_PROBLEM : STK_FINDING_OK, "io_uring",
        rc < 0 ? "reads go through a pool of threads instead: allow io_uring (sysctl kernel.io_uring_disabled=0; in a container, "
                 "its seccomp "
                 "profile)"
               : "",
        "%s", rc < 0 ? stk_error_detail() : "permitted");
    if (rc >= 0) stk_io_close(&io);
    return STK_OK;
}

/* Some file systems refuse with the first read. */
static int look_at_direct_reads(const visit *v, const char *path, bool *direct) {
    stk_io *io;
    stk_io_done done;
    void *block = aligned_alloc(4096, 4096);
    if (!block) return stk_fail(STK_ENOMEM, "out of memory");
    int rc = stk_io_open(&io, &(stk_io_options){.spec = "pread", .n_file = 1, .paths = &path});
    if (rc >= 0) {
        rc = stk_io_submit(io, STK_IO_DEMAND, &(stk_io_read){.bytes = 4096, .dst = block}, 1);
        while (rc >= 0 && stk_io_in_flight(io) > 0) rc = stk_io_reap(io, &done, 1, true);
        if (rc > 0 && done.status < 0) rc = done.status;
        *direct = stk_io_direct(io, 0);
        stk_io_close(&io);
    }
    free(block);
    if (rc < 0) return rc;
    say(v, *direct ? STK_FINDING_OK : STK_FINDING_PROBLEM, "direct reads",
        *direct
            ? ""
            : "reads go through the page cache and are slower: put the model on a file system with O_DIRECT (ext4, xfs, btrfs)",
        *direct ? "%s can be read with O_DIRECT" : "the file system of %s refuses O_DIRECT", path);
    return STK_OK;
}

static int look_at_read_ahead(const visit *v, const char *path, bool direct) {
    struct stat st;
    char name[64], line[64];
    if (stat(path, &st) != 0) return stk_fail_errno(errno, "%s", path);
    snprintf(name, sizeof name, "/sys/class/bdi/%u:%u/read_ahead_kb", major(st.st_dev), minor(st.st_dev));
    bool known = first_line(v, name, line, sizeof line), little = known && strtoul(line, NULL, 10) < 1024;
    char advice[TEXT_BYTES] = "";
    if (!direct && little) snprintf(advice, sizeof advice, "as root: echo 8192 > %s (direct reads would not need it)", name);
    say(v, !direct && little ? STK_FINDING_PROBLEM : STK_FINDING_OK, "read-ahead", advice, "%s%s%s",
        known ? line : "not known for this file system", known ? " KiB" : "", direct ? "; direct reads do without" : "");
    return STK_OK;
}

/* The GPU that --device auto would take. */
static void look_at_gpu(const visit *v) {
    const stk_cuda_ops *ops = stk_cuda_ops_get("cuda");
    stk_cuda_info info;
    uint32_t n = 0;
    uint64_t free_bytes = 0, total_bytes = 0;
    char a[32], b[32];
    int rc = ops ? ops->count(&n) : STK_OK;
    if (rc >= 0 && n > 0) rc = ops->info(0, &info);
    if (rc >= 0 && n > 0) rc = ops->bind(0);
    if (rc >= 0 && n > 0) rc = ops->mem_info(&free_bytes, &total_bytes);
    if (rc < 0) {
        say(v, STK_FINDING_PROBLEM, "GPU", "the CPU computes everything until the driver answers: nvidia-smi tells more", "%s",
            stk_error_detail());
    } else if (!ops) {
        say(v, STK_FINDING_NOTE, "GPU", "build with -DSTK_CUDA=on (nvcc and its static runtime) to use one",
            "this build has none");
    } else if (n == 0) {
        say(v, STK_FINDING_OK, "GPU", "", "no card, or no driver for it: the CPU computes everything");
    } else {
        bool full = free_bytes < total_bytes / 2;
        say(v, full ? STK_FINDING_NOTE : STK_FINDING_OK, "GPU",
            full ? "other programs hold much of its memory: end them, or bound the share with --vram-cap" : "",
            "%s, compute capability %u.%u, %s of %s free", info.name, info.major, info.minor, stk_bytes_text(free_bytes, a),
            stk_bytes_text(total_bytes, b));
    }
}

int stk_doctor_in(const char *root, const char *path, stk_finding_fn fn, void *user) {
    visit v = {root, fn, user};
    bool direct = false;
    look_at_kernels(&v);
    look_at_cores(&v);
    look_at_nodes(&v);
    stk_machine_cards(root, fn, user);
    look_at_memory(&v);
    look_at_huge_pages(&v);
    look_at_locking(&v);
    look_at_gpu(&v);
    STK_TRY(look_at_uring(&v, path ? path : "/proc/self/exe"));
    if (!path) return STK_OK;
    STK_TRY(look_at_direct_reads(&v, path, &direct));
    STK_TRY(look_at_read_ahead(&v, path, direct));
    STK_TRY(stk_machine_file_system(root, path, fn, user));
    return stk_machine_drive(path, fn, user);
}

int stk_doctor(const char *path, stk_finding_fn fn, void *user) {
    if (!fn) return stk_fail(STK_EINVAL, "stk_doctor: an argument is NULL");
    return stk_doctor_in("", path, fn, user);
}
