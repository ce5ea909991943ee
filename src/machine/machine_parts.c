/* machine_parts: what the doctor finds on the bus and below a file: GPUs and their links, the file system and the drive. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "io/io.h"
#include "machine.h"

enum { PATH_BYTES = 4096, TEXT_BYTES = 512, PIECE_BYTES = 1 << 20, N_PIECE = 64, N_FLIGHT = 4 };
static const double slow_bytes_per_s = 0.5e9, fair_bytes_per_s = 2e9;
static const uint64_t most_ns = UINT64_C(1000000000); /* of measuring the drive */

/* The first line of a file below root, without its newline; "" when there is none. */
static const char *first_line(const char *root, const char *path, char *line, int bytes) {
    char full[PATH_BYTES];
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    FILE *f = n > 0 && (size_t)n < sizeof full ? fopen(full, "re") : NULL;
    if (!f || !fgets(line, bytes, f)) line[0] = 0;
    if (f) fclose(f);
    line[strcspn(line, "\n")] = 0;
    return line;
}

/* ---- GPUs --------------------------------------------------------------------------------------------------------------- */

typedef struct card {
    char address[64], speed[64], most_speed[64];
    unsigned width, most_width;
} card;

static bool read_card(const char *root, const char *address, card *out) {
    char path[PATH_BYTES], vendor[32], class[32], line[64];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/vendor", address);
    first_line(root, path, vendor, sizeof vendor);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/class", address);
    first_line(root, path, class, sizeof class);
    if (strcmp(vendor, "0x10de") != 0 || strncmp(class, "0x03", 4) != 0) return false; /* NVIDIA, a display or 3D controller */
    *out = (card){.width = 0};
    snprintf(out->address, sizeof out->address, "%s", address);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/current_link_speed", address);
    first_line(root, path, out->speed, sizeof out->speed);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/max_link_speed", address);
    first_line(root, path, out->most_speed, sizeof out->most_speed);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/current_link_width", address);
    out->width = (unsigned)strtoul(first_line(root, path, line, sizeof line), NULL, 10);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/max_link_width", address);
    out->most_width = (unsigned)strtoul(first_line(root, path, line, sizeof line), NULL, 10);
    return true;
}

static void tell_card(const card *c, const char *driver, stk_finding_fn fn, void *user) {
    char found[TEXT_BYTES];
    bool narrow = c->width > 0 && c->width < c->most_width, none = driver[0] == 0;
    snprintf(found, sizeof found, "%s: x%u of x%u, %s of %s; %.200s", c->address, c->width, c->most_width, c->speed,
             c->most_speed, none ? "no driver" : driver);
    fn(user, none || narrow ? STK_FINDING_PROBLEM : STK_FINDING_OK, "GPU link", found,
       none ? "the card cannot be used: install NVIDIA's driver and load its module (modprobe nvidia)"
       : narrow
           ? "the card gets fewer lanes than it has, and experts are copied as much slower: use the slot next to the CPU, and "
             "none that shares its lanes"
           : "");
}

void stk_machine_cards(const char *root, stk_finding_fn fn, void *user) {
    char path[PATH_BYTES], driver[256];
    bool any = false;
    snprintf(path, sizeof path, "%s/sys/bus/pci/devices", root);
    first_line(root, "/proc/driver/nvidia/version", driver, sizeof driver);
    DIR *all = opendir(path);
    for (const struct dirent *e; all && (e = readdir(all)) != NULL;) {
        card c;
        if (e->d_name[0] == '.' || strlen(e->d_name) >= sizeof c.address || !read_card(root, e->d_name, &c)) continue;
        tell_card(&c, driver, fn, user);
        any = true;
    }
    if (all) closedir(all);
    if (!any) fn(user, STK_FINDING_OK, "GPU link", "no NVIDIA card on the bus: the CPU computes everything", "");
}

/* ---- The drive ---------------------------------------------------------------------------------------------------------- */

/* A line is: id parent major:minor root mount_point options [tags...] - type source super_options. */
static bool type_of(const char *root, dev_t dev, char *type, size_t bytes) {
    char path[PATH_BYTES], line[PATH_BYTES], got[64];
    unsigned a, b;
    bool found = false;
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *tail = strstr(line, " - ");
        found = tail && sscanf(line, "%*s %*s %u:%u", &a, &b) == 2 && a == major(dev) && b == minor(dev) &&
                sscanf(tail, " - %63s", got) == 1;
    }
    if (f) fclose(f);
    if (found) snprintf(type, bytes, "%s", got);
    return found;
}

int stk_machine_file_system(const char *root, const char *path, stk_finding_fn fn, void *user) {
    static const char *const good[] = {"ext4", "ext3", "ext2", "xfs", "btrfs", "f2fs", "bcachefs"};
    char type[64] = "not known", found[TEXT_BYTES];
    struct stat st;
    if (stat(path, &st) != 0) return stk_fail_errno(errno, "%s", path);
    bool known = type_of(root, st.st_dev, type, sizeof type), is_good = !known;
    for (size_t i = 0; i < STK_ARRAY_LEN(good); i++) is_good = is_good || strcmp(type, good[i]) == 0;
    snprintf(found, sizeof found, "%s", type);
    fn(user, is_good ? STK_FINDING_OK : STK_FINDING_NOTE, "file system", found,
       is_good
           ? ""
           : "experts are read best from a local ext4, xfs or btrfs: copy the model to one if the drive turns out to be slow");
    return STK_OK;
}

/* Reads the file from its beginning, as the engine does; *bytes in *ns. */
static int time_reads(stk_io *io, uint64_t size, char *buffer, uint64_t *bytes, uint64_t *ns) {
    const uint64_t start = stk_now_ns(), n = STK_MIN(size / PIECE_BYTES, (uint64_t)N_PIECE);
    uint64_t next = 0;
    int rc = STK_OK;
    for (; next < STK_MIN(n, (uint64_t)N_FLIGHT) && rc >= 0; next++)
        rc = stk_io_submit(
            io, STK_IO_DEMAND,
            &(stk_io_read){.offset = next * PIECE_BYTES, .bytes = PIECE_BYTES, .dst = buffer + next * PIECE_BYTES, .tag = next},
            1);
    while (rc >= 0 && stk_io_in_flight(io) > 0) {
        stk_io_done done;
        rc = stk_io_reap(io, &done, 1, true);
        if (rc <= 0) continue;
        if (done.status < 0) return done.status;
        *bytes += PIECE_BYTES;
        *ns = stk_now_ns() - start;
        if (next == n || *ns > most_ns) continue;
        uint64_t place = done.tag % N_FLIGHT;
        rc = stk_io_submit(
            io, STK_IO_DEMAND,
            &(stk_io_read){.offset = next * PIECE_BYTES, .bytes = PIECE_BYTES, .dst = buffer + place * PIECE_BYTES, .tag = place},
            1);
        next++;
    }
    return rc;
}

int stk_machine_drive(const char *path, stk_finding_fn fn, void *user) {
    char found[TEXT_BYTES] = "the file is too small to tell";
    struct stat st;
    stk_io *io;
    uint64_t bytes = 0, ns = 0;
    if (stat(path, &st) != 0) return stk_fail_errno(errno, "%s", path);
    char *buffer = aligned_alloc(4096, (size_t)N_FLIGHT * PIECE_BYTES);
    if (!buffer) return stk_fail(STK_ENOMEM, "out of memory");
    int rc = stk_io_open(&io, &(stk_io_options){.spec = "auto", .n_file = 1, .paths = &path});
    if (rc >= 0) {
        rc = time_reads(io, (uint64_t)st.st_size, buffer, &bytes, &ns);
        stk_io_close(&io);
    }
    free(buffer);
    if (rc < 0) return rc;
    double rate = ns ? (double)bytes * 1e9 / (double)ns : fair_bytes_per_s;
    if (ns) snprintf(found, sizeof found, "%.2f GB/s, reading %llu MiB", rate * 1e-9, (unsigned long long)(bytes >> 20));
    fn(user,
       rate < slow_bytes_per_s   ? STK_FINDING_PROBLEM
       : rate < fair_bytes_per_s ? STK_FINDING_NOTE
                                 : STK_FINDING_OK,
       "drive speed", found,
       rate < fair_bytes_per_s
           ? "every expert that is not in memory waits for this: put the model on an NVMe drive in a slot with all "
             "its lanes, raise --ram, or take a smaller quantization"
           : "");
    return STK_OK;
}
