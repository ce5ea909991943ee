/* io: what holds for every backend: the bytes, order, cancellation, faults, counters, messages. */
#include "io_fixture.h"

enum { PIECE = 64 << 10 };

/* A test for each backend; its body receives the specification. (Criterion's parameters are not there under the thread
 * sanitizer.) */
#define TEST_EVERY_WAY(name)                                                                                                     \
    static void name(const char *spec);                                                                                          \
    Test(io, name##_by_uring) { name("uring"); }                                                                                 \
    Test(io, name##_by_pread) { name("pread"); }                                                                                 \
    Test(io, name##_by_emu) { name("emu:2G,20us,reorder"); }                                                                     \
    static void name(const char *spec)

/* ---- The bytes ---------------------------------------------------------------------------------------------------------- */

/* Reads random extents, some of them past the end, into buffers between guard pages. */
static void check_bytes(stk_io *io, uint64_t file_bytes, uint32_t n, uint64_t seed) {
    uint64_t align = stk_io_align(io, 0), n_unit = stk_div_up(file_bytes, align), asked = 0;
    guarded *buffers = calloc(n, sizeof *buffers);
    uint64_t *offsets = calloc(n, sizeof *offsets);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t first = mix(seed + 2 * i) % n_unit, most = STK_MIN(n_unit - first, 5 * PIECE / align);
        uint64_t units = i % 7 == 0 ? most : 1 + mix(seed + 2 * i + 1) % most;
        if (i % 5 == 0) first = n_unit - units; /* a tail */
        offsets[i] = first * align;
        buffers[i] = guarded_open(units * align);
        asked += units * align;
        stk_io_read read = {.offset = offsets[i], .bytes = units * align, .dst = buffers[i].data, .tag = i};
        cr_assert_eq(stk_io_submit(io, i % 3 ? STK_IO_DEMAND : STK_IO_PREFETCH, &read, 1), 0, "%s", stk_error_detail());
    }
    cr_assert_eq(reap_all(io, 0), n);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert(is_content(buffers[i].data, offsets[i], buffers[i].bytes, file_bytes), "extent %u at %lu", i, offsets[i]);
        guarded_close(&buffers[i]);
    }
    stk_io_counters counters;
    stk_io_get_counters(io, &counters);
    cr_assert_eq(counters.n_read, n);
    cr_assert_eq(counters.read_bytes, asked);
    cr_assert_gt(counters.busy_ns, 0);
    free(buffers);
    free(offsets);
}

TEST_EVERY_WAY(every_way_reads_the_same_bytes) {
    const char *const dirs[] = {temp_dir(), "/dev/shm"}; /* direct reads may be refused in the latter */
    for (size_t i = 0; i < STK_ARRAY_LEN(dirs); i++) {
        char path[TEMP_PATH];
        make_file(path, dirs[i], 3000777);
        stk_io *io = open_one(spec, path, 8, PIECE);
        check_bytes(io, 3000777, 200, 12345 + i);
        stk_io_close(&io);
        cr_assert_null(io);
        unlink(path);
    }
}

TEST_EVERY_WAY(two_files_keep_apart) {
    char a[TEMP_PATH], b[TEMP_PATH];
    make_file(a, temp_dir(), 8192);
    make_file(b, temp_dir(), 300000);
    cr_assert_eq(truncate(a, 4096), 0);
    stk_io *io = open_one(spec, b, 4, 0);
    stk_io_close(&io);
    const char *paths[] = {a, b};
    cr_assert_eq(stk_io_open(&io, &(stk_io_options){.spec = spec, .n_file = 2, .paths = paths}), 0);
    guarded g0 = guarded_open(4096), g1 = guarded_open(8192);
    stk_io_read reads[] = {{.file = 0, .offset = 0, .bytes = 4096, .dst = g0.data},
                           {.file = 1, .offset = 4096 * 50, .bytes = 8192, .dst = g1.data}};
    cr_assert_eq(stk_io_submit(io, STK_IO_DEMAND, reads, 2), 0);
    cr_assert_eq(reap_all(io, 0), 2);
    cr_assert(is_content(g0.data, 0, 4096, 4096));
    cr_assert(is_content(g1.data, 4096 * 50, 8192, 300000));
    stk_io_close(&io);
    guarded_close(&g0);
    guarded_close(&g1);
    unlink(a);
    unlink(b);
}

TEST_EVERY_WAY(a_deep_queue_completes_each_read_once) {
    enum { N = 2000 };
    char path[TEMP_PATH];
    make_file(path, temp_dir(), N * 4096);
    stk_io *io = open_one(spec, path, 8, PIECE);
    unsigned char *arena = aligned_alloc(4096, N * 4096), *seen = calloc(N, 1);
    stk_io_read *reads = calloc(N, sizeof *reads);
    for (uint32_t i = 0; i < N; i++) {
        uint64_t page = (i * 7919u) % N;
        reads[i] = (stk_io_read){.offset = page * 4096, .bytes = 4096, .dst = arena + page * 4096, .tag = page};
    }
    for (uint32_t i = 0; i < N; i += 50)
        cr_assert_eq(stk_io_submit(io, STK_IO_DEMAND, reads + i, 50), 0); /* the list grows under way */
    cr_assert_eq(stk_io_in_flight(io), N);
    stk_io_done done[7];
    for (int n; stk_io_in_flight(io);) {
        n = stk_io_reap(io, done, 7, true);
        cr_assert(n > 0 && n <= 7);
        for (int i = 0; i < n; i++) {
            cr_assert_eq(done[i].status, 0);
            cr_assert_eq(seen[done[i].tag]++, 0);
        }
    }
    cr_assert(is_content(arena, 0, N * 4096, N * 4096));
    cr_assert_eq(stk_io_reap(io, done, 7, true), 0, "with nothing in flight there is nothing to wait for");
    stk_io_close(&io);
    free(arena);
    free(seen);
    free(reads);
    unlink(path);
}

/* The engine looks for completions between chunks of work, and may never wait. */
TEST_EVERY_WAY(looking_alone_brings_everything) {
    char path[TEMP_PATH];
    make_file(path, temp_dir(), 64 * PIECE);
    stk_io *io = open_one(spec, path, 4, PIECE);
    unsigned char *arena = aligned_alloc(4096, 64 * PIECE);
    stk_io_read read = {.bytes = 64 * PIECE, .dst = arena, .tag = 5};
    stk_io_done done = {0};
    cr_assert_eq(stk_io_submit(io, STK_IO_DEMAND, &read, 1), 0);
    uint64_t end = stk_now_ns() + 30000000000u;
    int n = 0;
    while (n == 0 && stk_now_ns() < end) n = stk_io_reap(io, &done, 1, false);
    cr_assert(n == 1 && done.tag == 5 && done.status == 0);
    cr_assert(is_content(arena, 0, 64 * PIECE, 64 * PIECE));
    stk_io_close(&io);
    free(arena);
    unlink(path);
}

/* ---- Order: with one piece in flight and a drive that keeps order, completions show the order of submission ------------- */

typedef struct ordered {
    char path[TEMP_PATH];
    stk_io *io;
    unsigned char *arena;
} ordered;

enum { SLOT = 8192, N_SLOT = 32 };

/* Pieces of half a slot: an extent is two of them. */
static ordered ordered_open(const char *spec) {
    ordered o;
    make_file(o.path, temp_dir(), N_SLOT * SLOT);
    o.io = open_one(spec, o.path, 1, SLOT / 2);
    o.arena = aligned_alloc(4096, N_SLOT * SLOT);
    return o;
}

static void ordered_close(ordered *o) {
    stk_io_close(&o->io);
    free(o->arena);
    unlink(o->path);
}

static void ordered_submit(ordered *o, enum stk_io_class cls, uint64_t tag, uint64_t slot) {
    stk_io_read read = {.offset = slot * SLOT, .bytes = SLOT, .dst = o->arena + slot * SLOT, .tag = tag};
    cr_assert_eq(stk_io_submit(o->io, cls, &read, 1), 0);
}

static void expect_order(ordered *o, const uint64_t *tags, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        stk_io_done done;
        cr_assert_eq(stk_io_reap(o->io, &done, 1, true), 1);
        cr_assert_eq(done.tag, tags[i], "completion %u is of tag %lu, not %lu", i, done.tag, tags[i]);
    }
    cr_assert_eq(stk_io_in_flight(o->io), 0);
}

/* The first prefetch is under way, but only with its first piece: even that one is overtaken. */
Test(io, demand_overtakes_prefetch) {
    ordered o = ordered_open("emu:100M,1ms");
    for (uint64_t i = 0; i < 4; i++) ordered_submit(&o, STK_IO_PREFETCH, 100 + i, i);
    for (uint64_t i = 0; i < 3; i++) ordered_submit(&o, STK_IO_DEMAND, 200 + i, 8 + i);
    expect_order(&o, (uint64_t[]){200, 201, 202, 100, 101, 102, 103}, 7);
    ordered_close(&o);
}

Test(io, the_backlog_is_what_has_not_come_back) {
    uint64_t bytes[STK_IO_PREFETCH + 1];
    ordered o = ordered_open("emu:100M,1ms");
    for (uint64_t i = 0; i < 4; i++) ordered_submit(&o, STK_IO_PREFETCH, 100 + i, i);
    for (uint64_t i = 0; i < 3; i++) ordered_submit(&o, STK_IO_DEMAND, 200 + i, 8 + i);
    stk_io_backlog(o.io, bytes);
    cr_assert(bytes[STK_IO_DEMAND] == 3 * SLOT && bytes[STK_IO_PREFETCH] == 4 * SLOT);
    stk_io_promote(o.io, 103);
    stk_io_backlog(o.io, bytes);
    cr_assert(bytes[STK_IO_DEMAND] == 4 * SLOT && bytes[STK_IO_PREFETCH] == 3 * SLOT);
    expect_order(&o, (uint64_t[]){200, 201, 202, 103, 100, 101, 102}, 7);
    stk_io_backlog(o.io, bytes);
    cr_assert(bytes[STK_IO_DEMAND] == 0 && bytes[STK_IO_PREFETCH] == 0);
    ordered_close(&o);
}

/* The model is never quicker than it says. */
Test(io, the_speed_is_known_after_a_while) {
    stk_io_counters c;
    stk_io_done done;
    ordered o = ordered_open("emu:100M,100us");
    stk_io_get_counters(o.io, &c);
    cr_assert_eq(c.bytes_per_ns, 0);
    for (uint64_t i = 0; i < 2 * (1 << 20) / SLOT; i++) {
        ordered_submit(&o, STK_IO_DEMAND, i, i % 8);
        cr_assert_eq(stk_io_reap(o.io, &done, 1, true), 1);
    }
    stk_io_get_counters(o.io, &c);
    cr_assert(c.bytes_per_ns > 0 && c.bytes_per_ns <= 0.1001, "%g", c.bytes_per_ns);
    ordered_close(&o);
}

/* A tag may have several extents; all of them rise. */
Test(io, promote_raises_prefetches_behind_the_demand) {
    ordered o = ordered_open("emu:100M,1ms");
    for (uint64_t i = 0; i < 4; i++) ordered_submit(&o, STK_IO_PREFETCH, 100 + i / 2, i);
    ordered_submit(&o, STK_IO_DEMAND, 200, 8);
    stk_io_promote(o.io, 101);
    stk_io_promote(o.io, 999);
    stk_io_promote(o.io, 200);
    expect_order(&o, (uint64_t[]){200, 101, 101, 100, 100}, 5);
    ordered_close(&o);
}

static uint32_t cancel_and_count(ordered *o, uint64_t tag, uint32_t n) {
    stk_io_cancel(o->io, tag);
    uint32_t n_canceled = 0;
    for (uint32_t i = 0; i < n; i++) {
        stk_io_done done;
        cr_assert_eq(stk_io_reap(o->io, &done, 1, true), 1);
        cr_assert(done.status == 0 || (done.status == STK_ECANCELED && done.tag == tag));
        n_canceled += done.status == STK_ECANCELED;
    }
    cr_assert_eq(stk_io_in_flight(o->io), 0);
    return n_canceled;
}

/* Of tag 7, one extent is half under way and two wait: the first has lost its second half, so all three are canceled. */
TEST_EVERY_WAY(cancel_completes_what_waits) {
    ordered o = ordered_open(spec);
    memset(o.arena, 0xa5, N_SLOT * SLOT);
    for (uint64_t i = 0; i < 3; i++) ordered_submit(&o, STK_IO_DEMAND, 7, i);
    ordered_submit(&o, STK_IO_PREFETCH, 8, 3);
    cr_assert_eq(cancel_and_count(&o, 7, 4), 3);
    cr_assert(is_content(o.arena + 3 * SLOT, 3 * SLOT, SLOT, N_SLOT * SLOT));
    for (uint64_t i = SLOT; i < 3 * SLOT; i++) cr_assert_eq(o.arena[i], 0xa5, "what waited was read");
    ordered_close(&o);
}

TEST_EVERY_WAY(cancel_of_everything_leaves_nothing) {
    char path[TEMP_PATH];
    make_file(path, temp_dir(), N_SLOT * SLOT);
    stk_io *io = open_one(spec, path, 16, SLOT / 2);
    unsigned char *arena = aligned_alloc(4096, N_SLOT * SLOT);
    for (uint64_t round = 0; round < 20; round++) {
        for (uint64_t i = 0; i < N_SLOT; i++) {
            stk_io_read read = {.offset = i * SLOT, .bytes = SLOT, .dst = arena + i * SLOT, .tag = i % 4};
            cr_assert_eq(stk_io_submit(io, i % 2 ? STK_IO_DEMAND : STK_IO_PREFETCH, &read, 1), 0);
        }
        for (uint64_t tag = 0; tag < 4; tag++) stk_io_cancel(io, tag);
        uint32_t n_all = stk_io_in_flight(io);
        uint32_t n_canceled = reap_all(io, STK_ECANCELED);
        cr_assert(n_all == N_SLOT && n_canceled >= N_SLOT - 16 && n_canceled <= N_SLOT);
    }
    stk_io_close(&io);
    free(arena);
    unlink(path);
}

/* The sanitizer sees it if a reader still writes to freed memory. */
TEST_EVERY_WAY(close_waits_for_reads_in_flight) {
    ordered o = ordered_open(spec);
    stk_io_close(&o.io);
    o.io = open_one(spec, o.path, 8, SLOT);
    for (uint64_t i = 0; i < N_SLOT; i++) ordered_submit(&o, STK_IO_DEMAND, i, i);
    ordered_close(&o);
}

/* ---- Faults ------------------------------------------------------------------------------------------------------------- */

/* Five extents of four pieces each, with faults; returns the number of completions with `status`. */
static uint32_t read_with_faults(stk_io *io, stk_io_faults faults, int status, guarded *buffers) {
    stk_io_set_faults(io, &faults);
    for (uint32_t i = 0; i < 5; i++) {
        buffers[i] = guarded_open(4 * PIECE);
        stk_io_read read = {.offset = i * 4 * PIECE, .bytes = 4 * PIECE, .dst = buffers[i].data, .tag = i};
        cr_assert_eq(stk_io_submit(io, STK_IO_DEMAND, &read, 1), 0);
    }
    return reap_all(io, status);
}

static void check_buffers(guarded *buffers, int32_t except) {
    for (int32_t i = 0; i < 5; i++) {
        uint64_t offset = (uint64_t)i * 4 * PIECE;
        if (i != except) cr_assert(is_content(buffers[i].data, offset, 4 * PIECE, 20 * PIECE), "extent %d", i);
        guarded_close(&buffers[i]);
    }
}

TEST_EVERY_WAY(an_error_is_of_one_extent_and_named) {
    char path[TEMP_PATH];
    guarded buffers[5];
    make_file(path, temp_dir(), 20 * PIECE);
    stk_io *io = open_one(spec, path, 1, PIECE);
    cr_assert_eq(read_with_faults(io, (stk_io_faults){.eio_at = 3}, STK_EIO, buffers), 1);
    char want[TEMP_PATH + 64];
    snprintf(want, sizeof want, "%s: reading at offset %d: Input/output error", path, 8 * PIECE);
    cr_assert_str_eq(stk_error_detail(), want);
    check_buffers(buffers, 2);

    stk_io_read read = {.offset = 8 * PIECE, .bytes = PIECE};
    buffers[0] = guarded_open(PIECE);
    read.dst = buffers[0].data;
    cr_assert_eq(stk_io_submit(io, STK_IO_DEMAND, &read, 1), 0);
    cr_assert_eq(reap_all(io, 0), 1, "the same extent can be read again");
    guarded_close(&buffers[0]);
    stk_io_close(&io);
    unlink(path);
}

TEST_EVERY_WAY(short_reads_and_busy_kernels_are_tried_again) {
    char path[TEMP_PATH];
    guarded buffers[5];
    make_file(path, temp_dir(), 20 * PIECE);
    stk_io *io = open_one(spec, path, 8, PIECE);
    cr_assert_eq(read_with_faults(io, (stk_io_faults){.short_at = 2, .again_at = 4}, 0, buffers), 5);
    check_buffers(buffers, -1);
    stk_io_counters counters;
    stk_io_get_counters(io, &counters);
    uint64_t more = counters.read_bytes - 20 * PIECE; /* half a piece, and a whole one */
    cr_assert(more >= PIECE + PIECE / 2 && more <= PIECE + PIECE / 2 + stk_io_align(io, 0), "%lu", more);
    stk_io_close(&io);
    unlink(path);
}

/* An extent of one unit that is cut short has nothing to go on from: it is read again. */
TEST_EVERY_WAY(the_least_read_can_be_cut_short) {
    char path[TEMP_PATH];
    make_file(path, temp_dir(), 5000);
    stk_io *io = open_one(spec, path, 8, PIECE);
    stk_io_set_faults(io, &(stk_io_faults){.short_at = 1});
    uint64_t align = stk_io_align(io, 0), offset = 4999 & ~(align - 1);
    guarded g = guarded_open(align);
    stk_io_read read = {.offset = offset, .bytes = align, .dst = g.data};
    cr_assert_eq(stk_io_submit(io, STK_IO_DEMAND, &read, 1), 0);
    cr_assert_eq(reap_all(io, 0), 1);
    cr_assert(is_content(g.data, offset, align, 5000));
    guarded_close(&g);
    stk_io_close(&io);
    unlink(path);
}

TEST_EVERY_WAY(refused_direct_reads_become_buffered_and_leave_no_pages) {
    char path[TEMP_PATH];
    guarded buffers[5];
    make_file(path, temp_dir(), 20 * PIECE);
    log_lines lines = {0};
    stk_io *io = open_one(spec, path, 8, PIECE);
    if (!stk_io_direct(io, 0)) {
        stk_io_close(&io);
        unlink(path);
        cr_skip_test("TMPDIR has no direct reads");
    }
    uint32_t align = stk_io_align(io, 0);
    stk_log_set(count_line, &lines);
    cr_assert_eq(read_with_faults(io, (stk_io_faults){.refuse_at = 1}, 0, buffers), 5);
    check_buffers(buffers, -1);
    cr_assert_not(stk_io_direct(io, 0));
    cr_assert_eq(stk_io_align(io, 0), align);
    cr_assert_eq(lines.n, 1);
    cr_assert(strstr(lines.last, path), "%s", lines.last);
    cr_assert_eq(cached_pages(path, 20 * PIECE), 0);
    stk_io_close(&io);
    unlink(path);
}

TEST_EVERY_WAY(a_file_that_shrinks_is_an_error) {
    static const uint64_t sizes[] = {0, 3 * PIECE, 3 * PIECE + 777};
    for (size_t i = 0; i < STK_ARRAY_LEN(sizes); i++) {
        char path[TEMP_PATH];
        guarded buffers[5];
        make_file(path, temp_dir(), 20 * PIECE);
        stk_io *io = open_one(spec, path, 8, PIECE);
        cr_assert_eq(truncate(path, (off_t)sizes[i]), 0);
        cr_assert_eq(read_with_faults(io, (stk_io_faults){0}, STK_EIO, buffers), 5);
        cr_assert(strstr(stk_error_detail(), path) && strstr(stk_error_detail(), "the file ends before offset"), "%s",
                  stk_error_detail());
        for (int k = 0; k < 5; k++) guarded_close(&buffers[k]);
        stk_io_close(&io);
        unlink(path);
    }
}

/* ---- The kernel's count ------------------------------------------------------------------------------------------------- */

/* read_bytes of this process: what it made the block layer fetch. */
static bool kernel_count(uint64_t *bytes) {
    FILE *f = fopen("/proc/self/io", "r");
    if (!f) return false;
    char line[128];
    unsigned long value = 0;
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) found = sscanf(line, "read_bytes: %lu", &value) == 1;
    fclose(f);
    *bytes = value;
    return found;
}

TEST_EVERY_WAY(read_bytes_is_the_kernels_count) {
    enum { BYTES = 40 * PIECE + 777 };
    char path[TEMP_PATH];
    make_file(path, temp_dir(), BYTES);
    stk_io *io = open_one(spec, path, 8, PIECE);
    uint64_t before, after, align = stk_io_align(io, 0), all = stk_align_up(BYTES, align);
    if (!stk_io_direct(io, 0) || !kernel_count(&before)) {
        stk_io_close(&io);
        unlink(path);
        cr_skip_test("no direct reads in TMPDIR, or no /proc/self/io");
    }
    unsigned char *arena = aligned_alloc(4096, stk_align_up(all, 4096));
    stk_io_read reads[] = {{.offset = 0, .bytes = align, .dst = arena},
                           {.offset = align, .bytes = 30 * PIECE, .dst = arena + align},
                           {.offset = 30 * PIECE + align, .bytes = all - 30 * PIECE - align, .dst = arena + 30 * PIECE + align}};
    cr_assert_eq(stk_io_submit(io, STK_IO_DEMAND, reads, 3), 0);
    cr_assert_eq(reap_all(io, 0), 3);
    cr_assert(kernel_count(&after));
    stk_io_counters counters;
    stk_io_get_counters(io, &counters);
    cr_assert_eq(counters.read_bytes, all);
    uint64_t delta = after - before;
    if (delta == 0) {
        stk_io_close(&io);
        unlink(path);
        cr_skip_test("the file system of TMPDIR does not count its reads");
    }
    cr_assert_eq(delta, counters.read_bytes, "the kernel says %lu, we say %lu", delta, counters.read_bytes);
    cr_assert(is_content(arena, 0, all, BYTES));
    cr_assert_eq(cached_pages(path, BYTES), 0, "direct reads leave nothing in the page cache");
    stk_io_close(&io);
    free(arena);
    unlink(path);
}

/* ---- Messages ----------------------------------------------------------------------------------------------------------- */

static void expect_no_open(stk_io_options options, int code, const char *why) {
    stk_io *io = NULL;
    cr_assert_eq(stk_io_open(&io, &options), code, "%s", why);
    cr_assert_null(io);
    cr_assert(strstr(stk_error_detail(), why), "%s", stk_error_detail());
}

Test(io, bad_options_are_named) {
    char path[TEMP_PATH];
    make_file(path, temp_dir(), 5000);
    const char *paths[] = {path, "/nowhere/else"};
    expect_no_open((stk_io_options){.spec = "mmap", .n_file = 1, .paths = paths}, STK_EINVAL, "'mmap' is no way of reading");
    expect_no_open((stk_io_options){.spec = "emu:1G", .n_file = 1, .paths = paths}, STK_EINVAL, "the latency is missing");
    expect_no_open((stk_io_options){.n_file = 0, .paths = paths}, STK_EINVAL, "no file");
    expect_no_open((stk_io_options){.n_file = 1, .paths = paths, .depth = 5000}, STK_EINVAL, "depth of 5000");
    expect_no_open((stk_io_options){.n_file = 1, .paths = paths, .piece_bytes = 1000}, STK_EINVAL, "pieces of 1000 bytes");
    expect_no_open((stk_io_options){.n_file = 2, .paths = paths}, STK_EIO, "/nowhere/else: cannot open: No such file");
    unlink(path);
    stk_io *none = NULL;
    stk_io_close(&none);
}

Test(io, bad_reads_are_refused_all_or_none) {
    char path[TEMP_PATH];
    make_file(path, temp_dir(), 10000);
    stk_io *io = open_one("pread", path, 8, 0);
    unsigned char *arena = aligned_alloc(4096, 65536);
    uint64_t align = stk_io_align(io, 0), end = stk_align_up(10000, align);
    stk_io_read good = {.bytes = align, .dst = arena};
    const struct {
        stk_io_read read;
        const char *why;
    } cases[] = {{{.file = 1, .bytes = align, .dst = arena}, "no file 1"},
                 {{.bytes = 0, .dst = arena}, "no 0 bytes at offset 0"},
                 {{.offset = end, .bytes = align, .dst = arena}, "can be read of 10000"},
                 {{.offset = 0, .bytes = end + align, .dst = arena}, "can be read of 10000"},
                 {{.offset = UINT64_MAX - align + 1, .bytes = align, .dst = arena}, "can be read of 10000"},
                 {{.offset = 1, .bytes = align, .dst = arena}, "not aligned"},
                 {{.bytes = align - 1, .dst = arena}, "not aligned"},
                 {{.bytes = align, .dst = arena + 1}, "not aligned"}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        stk_io_read reads[] = {good, cases[i].read};
        cr_assert_eq(stk_io_submit(io, STK_IO_DEMAND, reads, 2), STK_EINVAL, "case %zu", i);
        cr_assert(strstr(stk_error_detail(), cases[i].why), "%s", stk_error_detail());
        cr_assert_eq(stk_io_in_flight(io), 0);
    }
    stk_io_close(&io);
    free(arena);
    unlink(path);
}
