/* emu: the pread pool behind a modelled drive. A piece is read at once, unless it is to bring nothing; its completion is held
 * back until the drive would be done with it. */
#include <stdlib.h>

#include "io/backend.h"

typedef struct emu {
    stk_io_backend pool;
    stk_drive drive;
    uint32_t n_held;
    stk_io_piece *held[]; /* [depth] read, not yet due */
} emu;

static void emu_close(void *state) {
    emu *e = state;
    e->pool.ops->close(e->pool.state);
    free(e);
}

static void emu_submit(void *state, stk_io_piece *const *pieces, uint32_t n) {
    emu *e = state;
    uint64_t now = stk_now_ns(), first_blank = e->drive.blank_at ? e->drive.blank_at : UINT64_MAX;
    uint32_t n_real = 0;
    for (uint32_t i = 0; i < n; i++) {
        pieces[i]->due_ns = stk_drive_submit(&e->drive, now, pieces[i]->bytes);
        if (e->drive.n_read < first_blank) n_real++;
    }
    if (n_real) e->pool.ops->submit(e->pool.state, pieces, n_real);
    for (uint32_t i = n_real; i < n; i++) {
        pieces[i]->res = (int)pieces[i]->want;
        pieces[i]->done_ns = now;
        e->held[e->n_held++] = pieces[i];
    }
}

/* Moves what is due to `done`, in the order of the model. */
static int release(emu *e, stk_io_piece **done) {
    uint64_t now = stk_now_ns();
    int n = 0;
    for (;;) {
        uint32_t first = 0;
        for (uint32_t i = 1; i < e->n_held; i++)
            if (e->held[i]->due_ns < e->held[first]->due_ns) first = i;
        if (e->n_held == 0 || e->held[first]->due_ns > now) return n;
        done[n++] = e->held[first];
        e->held[first] = e->held[--e->n_held];
    }
}

/* Time until the first held piece is due; without one only the pool can bring something. */
static uint64_t until_due(const emu *e) {
    uint64_t due = UINT64_MAX, now = stk_now_ns();
    for (uint32_t i = 0; i < e->n_held; i++) due = STK_MIN(due, e->held[i]->due_ns);
    return due == UINT64_MAX ? due : due > now ? due - now : 0;
}

static int emu_reap(void *state, stk_io_piece **done, bool wait) {
    emu *e = state;
    uint64_t wait_ns = 0;
    for (;;) {
        int n = stk_io_pread_reap(e->pool.state, done, wait_ns);
        if (n < 0) return n;
        for (int i = 0; i < n; i++) {
            done[i]->late = done[i]->done_ns > done[i]->due_ns;
            e->held[e->n_held++] = done[i];
        }
        bool interrupted = n == 0 && wait_ns > 0 && until_due(e) > 0;
        n = release(e, done);
        if (n > 0 || !wait || interrupted) return n;
        wait_ns = until_due(e);
    }
}

static void emu_cancel(void *state, stk_io_piece *piece) {
    emu *e = state;
    piece->due_ns = 0;
    e->pool.ops->cancel(e->pool.state, piece);
}

static const stk_io_ops emu_ops = {"emu", emu_close, emu_submit, emu_reap, emu_cancel, NULL};

int stk_io_emu_open(stk_io_backend *out, const stk_io_setup *setup, const stk_drive *drive) {
    emu *e = calloc(1, sizeof *e + setup->depth * sizeof e->held[0]);
    if (!e) return stk_fail(STK_ENOMEM, "io: no memory for the emulated drive");
    e->drive = *drive;
    int rc = stk_io_pread_open(&e->pool, setup);
    if (rc < 0) {
        free(e);
        return rc;
    }
    *out = (stk_io_backend){&emu_ops, e};
    return 0;
}
