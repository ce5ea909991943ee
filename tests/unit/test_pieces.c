/* pieces: they come in order, whole, whatever the drive does; the first failure ends it. */
#include <sys/stat.h>

#include "gguf_build.h"
#include "io_fixture.h"
#include "src/model/pieces.h"

enum { FILE_BYTES = 3 << 20, PIECE_BYTES = 40000, BUFFER_BYTES = 2 * PIECE_BYTES + 4 * 4096 };

typedef struct walk {
    uint64_t n_taken, fail_at;
} walk;

static uint64_t offset_of(uint64_t i) { return i * PIECE_BYTES * 2 % (FILE_BYTES - 3 * PIECE_BYTES); }

/* Even pieces are one range, odd ones two, far from another. */
static uint32_t reads_of(void *user, uint64_t i, const stk_io *io, stk_piece_read *reads) {
    (void)user;
    (void)stk_piece_cut(io, 0, offset_of(i), PIECE_BYTES, &reads[0]);
    if (i % 2 == 0) return 1;
    (void)stk_piece_cut(io, 0, offset_of(i) + 2 * PIECE_BYTES, PIECE_BYTES, &reads[1]);
    reads[1].at = stk_align_up(PIECE_BYTES + 4096, 4096) + 4096;
    return 2;
}

static bool holds(const stk_io *io, const uint8_t *buffer, uint64_t offset) {
    stk_piece_read r;
    unsigned char *want = malloc(PIECE_BYTES);
    fill(want, offset, PIECE_BYTES);
    bool same = memcmp(buffer + stk_piece_cut(io, 0, offset, PIECE_BYTES, &r), want, PIECE_BYTES) == 0;
    free(want);
    return same;
}

static int take(void *user, uint64_t i, const stk_io *io, uint8_t *buffer) {
    walk *w = user;
    cr_assert_eq(i, w->n_taken++);
    cr_assert(holds(io, buffer, offset_of(i)), "piece %d", (int)i);
    if (i % 2)
        cr_assert(holds(io, buffer + stk_align_up(PIECE_BYTES + 4096, 4096) + 4096, offset_of(i) + 2 * PIECE_BYTES), "%d",
                  (int)i);
    return i == w->fail_at ? stk_fail(STK_EFULL, "enough") : 0;
}

/* A file of one tensor whose bytes are those of every test file, as far as they matter: the reads count from its start. */
static stk_gguf *open_file(char path[64]) {
    stk_gguf *g = NULL;
    gguf_build *b = gguf_build_open();
    gguf_build_tensor(b, "t", STK_TYPE_F32, (uint64_t[4]){16}, NULL);
    gguf_build_write(b, test_path("p.gguf"));
    gguf_build_close(b);
    cr_assert_eq(stk_gguf_open(&g, test_path("p.gguf")), 0, "%s", stk_error_detail());
    make_file(path, temp_dir(), FILE_BYTES);
    cr_assert_eq(rename(path, test_path("p.gguf")), 0); /* the open object knows the path alone */
    return g;
}

static int run(stk_gguf *g, uint64_t n, uint64_t fail_at, const char *io, walk *w) {
    *w = (walk){.fail_at = fail_at};
    return stk_pieces_run(&(stk_pieces){n, BUFFER_BYTES, w, reads_of, take}, g, io);
}

Test(pieces, come_in_order) {
    static const char *const specs[] = {NULL, "pread", "emu:1G,100us,reorder,seed=5", "emu:1G,100us,short=3"};
    char path[64];
    walk w;
    stk_gguf *g = open_file(path);
    for (size_t i = 0; i < STK_ARRAY_LEN(specs); i++) {
        for (uint64_t n = 0; n <= 40; n = n * 3 + 1) {
            cr_assert_eq(run(g, n, UINT64_MAX, specs[i], &w), 0, "%s", stk_error_detail());
            cr_assert_eq(w.n_taken, n);
        }
    }
    stk_gguf_close(&g);
}

Test(pieces, the_first_failure_ends_it) {
    char path[64];
    walk w;
    stk_gguf *g = open_file(path);
    cr_assert_eq(run(g, 40, 7, NULL, &w), STK_EFULL);
    cr_assert_eq(w.n_taken, 8);
    cr_assert_str_eq(stk_error_detail(), "enough");
    cr_assert_eq(run(g, 40, UINT64_MAX, "emu:1G,100us,eio=9", &w), STK_EIO);
    cr_assert_lt(w.n_taken, 7);
    cr_assert(strstr(stk_error_detail(), "p.gguf"), "%s", stk_error_detail());
    cr_assert_eq(run(g, 40, UINT64_MAX, "nonsense", &w), STK_EINVAL);
    stk_gguf_close(&g);
}
