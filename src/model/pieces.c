/* pieces: a ring of buffers, each with the reads of one piece. */
#include "pieces.h"

#include <stdlib.h>

#include "src/mem.h"

typedef struct ring {
    const stk_pieces *p;
    stk_io *io;
    stk_map map;
    uint32_t n_buffer;
    uint32_t left[STK_PIECES_AHEAD]; /* reads of the piece in each buffer that have not ended */
} ring;

static uint8_t *buffer_of(const ring *r, uint64_t i) {
    return (uint8_t *)r->map.base + i % r->n_buffer * stk_align_up(r->p->buffer_bytes, STK_DIRECT_ALIGN);
}

static int submit(ring *r, uint64_t i) {
    stk_piece_read reads[STK_N_PART];
    stk_io_read list[STK_N_PART];
    uint32_t n = r->p->reads(r->p->user, i, r->io, reads);
    for (uint32_t j = 0; j < n; j++)
        list[j] = (stk_io_read){reads[j].file, reads[j].offset, reads[j].bytes, buffer_of(r, i) + reads[j].at, i % r->n_buffer};
    r->left[i % r->n_buffer] = n;
    return stk_io_submit(r->io, STK_IO_DEMAND, list, n);
}

static int await(ring *r, uint64_t i) {
    stk_io_done done[STK_PIECES_AHEAD];
    while (r->left[i % r->n_buffer] > 0) {
        int n = stk_io_reap(r->io, done, STK_ARRAY_LEN(done), true);
        if (n < 0) return n;
        for (int j = 0; j < n; j++) {
            if (done[j].status < 0) return done[j].status;
            r->left[done[j].tag]--;
        }
    }
    return STK_OK;
}

static int run(ring *r) {
    for (uint64_t i = 0; i < STK_MIN(r->p->n, (uint64_t)r->n_buffer); i++) STK_TRY(submit(r, i));
    for (uint64_t i = 0; i < r->p->n; i++) {
        STK_TRY(await(r, i));
        STK_TRY(r->p->take(r->p->user, i, r->io, buffer_of(r, i)));
        if (i + r->n_buffer < r->p->n) STK_TRY(submit(r, i + r->n_buffer));
    }
    return STK_OK;
}

static int open_io(ring *r, const stk_gguf *g, const char *spec) {
    uint32_t n_file = stk_gguf_n_file(g);
    const char **paths = calloc(n_file, sizeof *paths);
    if (!paths) return stk_fail(STK_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < n_file; i++) paths[i] = stk_gguf_path(g, i);
    int rc = stk_io_open(
        &r->io,
        &(stk_io_options){.spec = spec, .n_file = n_file, .paths = paths, .buffer = r->map.base, .buffer_bytes = r->map.bytes});
    free(paths);
    return rc;
}

int stk_pieces_run(const stk_pieces *p, const stk_gguf *files, const char *io) {
    ring r = {.p = p};
    uint64_t each = stk_align_up(p->buffer_bytes, STK_DIRECT_ALIGN), fit = STK_PIECES_BYTES / each;
    r.n_buffer = (uint32_t)STK_MIN(STK_MAX(fit, (uint64_t)2), (uint64_t)STK_PIECES_AHEAD);
    STK_TRY(stk_map_open(&r.map, each * r.n_buffer, false, "buffers to read into"));
    int rc = open_io(&r, files, io);
    if (rc >= 0) rc = run(&r);
    stk_io_close(&r.io); /* waits for what is in flight */
    stk_map_close(&r.map);
    return rc;
}

uint64_t stk_piece_cut(const stk_io *io, uint32_t file, uint64_t offset, uint64_t bytes, stk_piece_read *read) {
    uint64_t align = stk_io_align(io, file), start = offset & ~(align - 1);
    *read = (stk_piece_read){file, start, stk_align_up(offset + bytes, align) - start, 0};
    return offset - start;
}
