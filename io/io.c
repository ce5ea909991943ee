/*
 * io: the front of all backends. Extents wait in two queues and are cut into pieces, of which `depth` are in flight; a piece that
 * came back is judged here, whoever read it; an extent is done when its last piece is.
 *
 * An extent is in one of the queues while it has bytes not yet handed out, then in no list until its pieces are back, then in
 * `done`. Extents are named by index, because their array grows; pieces never move.
 *
 * Long because all of it works on the same lists.
 */
#include "io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "io/backend.h"

enum {
    MAX_DEPTH = 4096,
    MAX_PIECE_BYTES = 1 << 30,
    PIECE_UNIT = 4096,
    FIRST_EXTENTS = 1024,
    MAX_TRIES = 100, /* attempts at a piece that bring nothing, before it is an error */
    N_CLASS = STK_IO_PREFETCH + 1,
};
#define NONE UINT32_MAX

typedef struct extent {
    stk_io_read ask;
    uint64_t number;       /* from 1, in the order of submission */
    uint64_t number_ahead; /* likewise among the prefetches; 0: demand */
    uint64_t issued_bytes; /* handed out as pieces */
    uint64_t error_offset;
    uint64_t begin_ns, end_ns; /* as in stk_io_done */
    uint32_t n_piece;          /* in flight */
    uint32_t prev, next;
    int status;
    int errnum; /* of STK_EIO; 0: the file ends too early */
    uint8_t cls;
    bool queued;
    bool late;
} extent;

typedef struct extent_list {
    uint32_t head, tail;
} extent_list;

struct stk_io {
    stk_io_backend backend;
    stk_io_file *files;
    uint32_t n_file;
    uint32_t depth;
    uint32_t piece_bytes;
    stk_io_piece *pieces; /* [depth] */
    stk_io_piece *idle;   /* those not in use */
    stk_io_piece **batch; /* [depth] to be submitted next; n_batch */
    stk_io_piece **back;  /* [depth] for reaping */
    uint32_t n_batch;
    uint32_t n_flying;
    extent *extents;
    uint32_t n_extent; /* size of the array */
    uint32_t n_live;   /* not yet reaped */
    uint32_t vacant;   /* first unused extent, linked by next */
    extent_list queue[N_CLASS];
    extent_list done;
    uint64_t n_submitted;
    uint64_t n_ahead; /* of these, prefetches */
    stk_io_faults faults;
    stk_io_counters counters;
    uint64_t busy_since_ns;              /* 0: nothing in flight */
    uint64_t speed_bytes, speed_busy_ns; /* counters when the speed was last looked at */
};

/* ---- Lists of extents --------------------------------------------------------------------------------------------------- */

static void list_push(stk_io *io, extent_list *list, uint32_t i) {
    extent *e = &io->extents[i];
    e->prev = list->tail;
    e->next = NONE;
    if (list->tail == NONE)
        list->head = i;
    else
        io->extents[list->tail].next = i;
    list->tail = i;
}

static void list_remove(stk_io *io, extent_list *list, uint32_t i) {
    extent *e = &io->extents[i];
    if (e->prev == NONE)
        list->head = e->next;
    else
        io->extents[e->prev].next = e->next;
    if (e->next == NONE)
        list->tail = e->prev;
    else
        io->extents[e->next].prev = e->prev;
}

static void enqueue(stk_io *io, uint32_t i) {
    io->extents[i].queued = true;
    list_push(io, &io->queue[io->extents[i].cls], i);
}

static void dequeue(stk_io *io, uint32_t i) {
    io->extents[i].queued = false;
    list_remove(io, &io->queue[io->extents[i].cls], i);
}

/* Makes sure that n more extents fit. */
static int reserve(stk_io *io, uint32_t n) {
    if (n <= io->n_extent - io->n_live) return 0;
    uint64_t want = STK_MAX(2 * (uint64_t)io->n_extent, (uint64_t)io->n_live + n);
    want = STK_MAX(want, (uint64_t)FIRST_EXTENTS);
    extent *grown = want < NONE ? realloc(io->extents, want * sizeof *grown) : NULL;
    if (!grown) return stk_fail(STK_ENOMEM, "io: no memory for %llu reads", (unsigned long long)want);
    for (uint32_t i = io->n_extent; i < want; i++) grown[i] = (extent){.next = i + 1 < want ? i + 1 : io->vacant};
    io->vacant = io->n_extent;
    io->extents = grown;
    io->n_extent = (uint32_t)want;
    return 0;
}

/* ---- Results ------------------------------------------------------------------------------------------------------------ */

/* The last piece is back, or none was under way. What lies beyond the end of the file reads as zeroes, whatever the drive had
 * there. */
static void complete(stk_io *io, uint32_t i) {
    extent *e = &io->extents[i];
    const stk_io_file *file = &io->files[e->ask.file];
    if (e->status == 0) {
        uint64_t there = STK_MIN(e->ask.bytes, file->bytes - e->ask.offset);
        memset((char *)e->ask.dst + there, 0, e->ask.bytes - there);
    }
    stk_io_file_drop(file, e->ask.offset, e->ask.bytes);
    if (e->begin_ns) e->end_ns = stk_now_ns();
    io->counters.n_read++;
    io->counters.n_late += e->late;
    list_push(io, &io->done, i);
}

/* Ends an extent early: what is not handed out is not read any more. The first reason stays. */
static void stop_extent(stk_io *io, uint32_t i, int status) {
    extent *e = &io->extents[i];
    if (e->status == 0) e->status = status;
    if (e->queued) dequeue(io, i);
    e->issued_bytes = e->ask.bytes;
}

static void fail_extent(stk_io *io, const stk_io_piece *piece, int errnum) {
    extent *e = &io->extents[piece->read];
    if (e->status == 0) {
        e->errnum = errnum;
        e->error_offset = piece->offset + (uint64_t)STK_MAX(piece->res, 0);
    }
    stop_extent(io, piece->read, STK_EIO);
}

/* Replaces the result of the extent's first piece by a fault, once. */
static void inject(stk_io *io, stk_io_piece *piece) {
    uint64_t number = io->extents[piece->read].number, ahead = io->extents[piece->read].number_ahead;
    stk_io_faults *f = &io->faults;
    if (number == f->eio_at) {
        piece->res = -EIO;
        f->eio_at = 0;
    } else if (ahead && ahead == f->eio_ahead_at) {
        piece->res = -EIO;
        f->eio_ahead_at = 0;
    } else if (number == f->again_at) {
        piece->res = -EAGAIN;
        f->again_at = 0;
    } else if (number == f->refuse_at && piece->direct) {
        piece->res = -EINVAL;
        f->refuse_at = 0;
    } else if (number == f->short_at && piece->res > 1) {
        piece->res = (piece->res / 2) | 1;
        f->short_at = 0;
    }
}

/* Moves a piece past what arrived, to a place where a direct read may start. True if its file has more to give. */
static bool advance(const stk_io *io, stk_io_piece *piece) {
    uint32_t got = (uint32_t)piece->res, align = io->files[piece->file].align;
    if (got >= piece->want) return false;
    uint32_t step = got & ~(align - 1);
    if (step) piece->n_try = 0;
    piece->dst += step;
    piece->offset += step;
    piece->bytes -= step;
    piece->want -= step;
    return true;
}

/* Judges one attempt. True: the piece must be submitted again. */
static bool again(stk_io *io, stk_io_piece *piece) {
    if (piece->res >= 0) {
        if (!advance(io, piece)) return false;
        if (piece->res > 0 && ++piece->n_try < MAX_TRIES) return true;
        fail_extent(io, piece, 0);
        return false;
    }
    int errnum = -piece->res;
    switch (errnum) {
    case EAGAIN:
    case EINTR:
        if (++piece->n_try < MAX_TRIES) return true;
        break;
    case EINVAL:
    case EOPNOTSUPP: {
        stk_io_file *file = &io->files[piece->file];
        if (piece->direct && (!file->direct || stk_io_file_end_direct(file, errnum) == 0)) return true;
        break;
    }
    case ECANCELED: stop_extent(io, piece->read, STK_ECANCELED); return false;
    }
    fail_extent(io, piece, errnum);
    return false;
}

/* What an attempt asked of the drive, as far as its result tells. */
static uint64_t bytes_moved(const stk_io_piece *piece) {
    if (piece->res == -EIO || piece->res >= (int)piece->want) return piece->bytes;
    return (uint64_t)STK_MAX(piece->res, 0);
}

static void settle(stk_io *io, stk_io_piece *piece) {
    extent *e = &io->extents[piece->read];
    piece->flying = false;
    io->n_flying--;
    io->counters.read_bytes += bytes_moved(piece);
    e->late |= piece->late;
    inject(io, piece);
    if (again(io, piece) && e->status == 0) {
        io->batch[io->n_batch++] = piece;
        return;
    }
    e->n_piece--;
    piece->next = io->idle;
    io->idle = piece;
    if (e->n_piece == 0 && e->issued_bytes == e->ask.bytes) complete(io, (uint32_t)(e - io->extents));
}

/* ---- Handing out -------------------------------------------------------------------------------------------------------- */

/* Cuts the next piece off an extent. */
static void issue(stk_io *io, uint32_t i) {
    extent *e = &io->extents[i];
    stk_io_file *file = &io->files[e->ask.file];
    stk_io_piece *piece = io->idle;
    io->idle = piece->next;
    uint64_t offset = e->ask.offset + e->issued_bytes;
    uint32_t bytes = stk_drive_piece(e->cls, io->piece_bytes, e->ask.bytes - e->issued_bytes, io->counters.bytes_per_ns);
    *piece = (stk_io_piece){
        .dst = (char *)e->ask.dst + e->issued_bytes,
        .offset = offset,
        .bytes = bytes,
        .want = (uint32_t)STK_MIN((uint64_t)bytes, file->bytes - offset),
        .file = e->ask.file,
        .read = i,
        .fd = file->fd,
    };
    e->n_piece++;
    e->issued_bytes += bytes;
    if (e->issued_bytes == e->ask.bytes) dequeue(io, i);
    io->batch[io->n_batch++] = piece;
}

/* Fills the depth: pieces to try again first, then demand, then prefetches. */
static void pump(stk_io *io) {
    for (enum stk_io_class c = STK_IO_DEMAND; c <= STK_IO_PREFETCH; c++)
        while (io->queue[c].head != NONE && stk_drive_takes(c, io->depth, io->n_flying + io->n_batch))
            issue(io, io->queue[c].head);
    uint64_t now = io->n_batch || io->n_flying || io->busy_since_ns ? stk_now_ns() : 0;
    if (io->n_batch) {
        for (uint32_t i = 0; i < io->n_batch; i++) {
            io->batch[i]->flying = true;
            io->batch[i]->direct = io->files[io->batch[i]->file].direct;
            if (!io->extents[io->batch[i]->read].begin_ns) io->extents[io->batch[i]->read].begin_ns = now;
        }
        io->backend.ops->submit(io->backend.state, io->batch, io->n_batch);
        io->n_flying += io->n_batch;
        io->n_batch = 0;
    }
    if (io->n_flying && !io->busy_since_ns) io->busy_since_ns = now;
    if (!io->n_flying && io->busy_since_ns) {
        io->counters.busy_ns += now - io->busy_since_ns;
        io->busy_since_ns = 0;
    }
}

static int check_read(const stk_io *io, const stk_io_read *read) {
    if (read->file >= io->n_file) return stk_fail(STK_EINVAL, "io: there is no file %u, only %u", read->file, io->n_file);
    const stk_io_file *file = &io->files[read->file];
    uint64_t end, align = file->align;
    bool fits = !stk_add_overflow(read->offset, read->bytes, &end) && read->bytes > 0 && read->offset < file->bytes &&
                end <= stk_align_up(file->bytes, align);
    if (!fits)
        return stk_fail(STK_EINVAL, "%s: no %llu bytes at offset %llu can be read of %llu", file->path,
                        (unsigned long long)read->bytes, (unsigned long long)read->offset, (unsigned long long)file->bytes);
    if ((read->offset | read->bytes | (uintptr_t)read->dst) & (align - 1))
        return stk_fail(STK_EINVAL, "%s: a read of %llu bytes at offset %llu into %p is not aligned to %llu", file->path,
                        (unsigned long long)read->bytes, (unsigned long long)read->offset, read->dst, (unsigned long long)align);
    return 0;
}

int stk_io_submit(stk_io *io, enum stk_io_class cls, const stk_io_read *reads, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) STK_TRY(check_read(io, &reads[i]));
    STK_TRY(reserve(io, n));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = io->vacant;
        io->vacant = io->extents[at].next;
        uint64_t number_ahead = cls == STK_IO_PREFETCH ? ++io->n_ahead : 0;
        io->extents[at] =
            (extent){.ask = reads[i], .number = ++io->n_submitted, .number_ahead = number_ahead, .cls = (uint8_t)cls};
        io->n_live++;
        enqueue(io, at);
    }
    pump(io);
    return 0;
}

/* Queues are short next to what a read costs, so tags are looked for one by one. */
void stk_io_promote(stk_io *io, uint64_t tag) {
    for (uint32_t i = io->queue[STK_IO_PREFETCH].head, next; i != NONE; i = next) {
        next = io->extents[i].next;
        if (io->extents[i].ask.tag != tag) continue;
        dequeue(io, i);
        io->extents[i].cls = STK_IO_DEMAND;
        enqueue(io, i);
    }
}

void stk_io_cancel(stk_io *io, uint64_t tag) {
    for (int c = 0; c < N_CLASS; c++) {
        for (uint32_t i = io->queue[c].head, next; i != NONE; i = next) {
            next = io->extents[i].next;
            if (io->extents[i].ask.tag != tag) continue;
            stop_extent(io, i, STK_ECANCELED);
            if (io->extents[i].n_piece == 0) complete(io, i);
        }
    }
    for (uint32_t i = 0; i < io->depth; i++) {
        stk_io_piece *piece = &io->pieces[i];
        if (piece->flying && io->extents[piece->read].ask.tag == tag) io->backend.ops->cancel(io->backend.state, piece);
    }
}

/* ---- Collecting --------------------------------------------------------------------------------------------------------- */

/* Takes the first completion; the detail text of a failure is made here, so that it belongs to the thread that sees it. */
static stk_io_done pop_done(stk_io *io) {
    uint32_t i = io->done.head;
    extent *e = &io->extents[i];
    list_remove(io, &io->done, i);
    stk_io_done done = {e->ask.tag, e->status, e->begin_ns, e->end_ns};
    const stk_io_file *file = &io->files[e->ask.file];
    unsigned long long offset = e->error_offset;
    if (e->status == STK_EIO && e->errnum)
        done.status = stk_fail(STK_EIO, "%s: reading at offset %llu: %s", file->path, offset, strerror(e->errnum));
    else if (e->status == STK_EIO)
        stk_fail(STK_EIO,
                 "%s: the file ends before offset %llu, but had %llu bytes when it was opened; was it changed meanwhile?",
                 file->path, offset, (unsigned long long)file->bytes);
    e->next = io->vacant;
    io->vacant = i;
    io->n_live--;
    return done;
}

/* The most that it brought in a MiB's time, fading: a drive that is asked for little is not a slow one. */
static void learn_speed(stk_io *io) {
    enum { ENOUGH_BYTES = 1 << 20 };
    static const double fade = 0.98;
    uint64_t bytes = io->counters.read_bytes - io->speed_bytes;
    if (bytes < ENOUGH_BYTES) return;
    uint64_t busy_ns = io->counters.busy_ns + (io->busy_since_ns ? stk_now_ns() - io->busy_since_ns : 0);
    double speed = (double)bytes / (double)STK_MAX(busy_ns - io->speed_busy_ns, (uint64_t)1);
    io->counters.bytes_per_ns = STK_MAX(speed, fade * io->counters.bytes_per_ns);
    io->speed_bytes = io->counters.read_bytes;
    io->speed_busy_ns = busy_ns;
}

int stk_io_reap(stk_io *io, stk_io_done *done, uint32_t max, bool wait) {
    while (io->n_flying) {
        bool block = wait && io->done.head == NONE;
        int n = io->backend.ops->reap(io->backend.state, io->back, block);
        if (n < 0) return n;
        for (int i = 0; i < n; i++) settle(io, io->back[i]);
        pump(io);
        learn_speed(io);
        if (!block || n == 0 || io->done.head != NONE) break;
    }
    uint32_t n_done = 0;
    while (n_done < max && io->done.head != NONE) done[n_done++] = pop_done(io);
    return (int)n_done;
}

void stk_io_backlog(const stk_io *io, uint64_t bytes[STK_IO_PREFETCH + 1]) {
    for (int c = 0; c < N_CLASS; c++) {
        bytes[c] = 0;
        for (uint32_t i = io->queue[c].head; i != NONE; i = io->extents[i].next)
            bytes[c] += io->extents[i].ask.bytes - io->extents[i].issued_bytes;
    }
    for (uint32_t i = 0; i < io->depth; i++)
        if (io->pieces[i].flying) bytes[io->extents[io->pieces[i].read].cls] += io->pieces[i].bytes;
}

uint32_t stk_io_in_flight(const stk_io *io) { return io->n_live; }

void stk_io_get_counters(const stk_io *io, stk_io_counters *counters) {
    *counters = io->counters;
    if (io->busy_since_ns) counters->busy_ns += stk_now_ns() - io->busy_since_ns;
}

const char *stk_io_name(const stk_io *io) { return io->backend.ops->name; }

uint32_t stk_io_align(const stk_io *io, uint32_t file) { return io->files[file].align; }

bool stk_io_direct(const stk_io *io, uint32_t file) { return io->files[file].direct; }

void stk_io_set_faults(stk_io *io, const stk_io_faults *faults) { io->faults = *faults; }

int stk_io_set_buffers(stk_io *io, const stk_io_region *regions, uint32_t n) {
    if (stk_io_in_flight(io)) return stk_fail(STK_ESTATE, "io: buffers are registered while reads are in flight");
    if (io->backend.ops->set_buffers) io->backend.ops->set_buffers(io->backend.state, regions, n);
    return STK_OK;
}

/* ---- Opening and closing ------------------------------------------------------------------------------------------------ */

static int open_backend(stk_io *io, const stk_io_options *options) {
    const char *spec = options->spec ? options->spec : "auto";
    stk_io_setup setup = {io->files, io->n_file, io->depth, options->buffer, options->buffer_bytes};
    if (strcmp(spec, "uring") == 0) {
        int rc = stk_io_uring_open(&io->backend, &setup);
        return rc == STK_EUNSUPPORTED ? stk_fail_in(rc, "io: uring was asked for, auto would read with pread") : rc;
    }
    if (strcmp(spec, "pread") == 0) return stk_io_pread_open(&io->backend, &setup);
    if (strcmp(spec, "auto") == 0) {
        if (stk_io_uring_open(&io->backend, &setup) == 0) return 0;
        stk_log(STK_LOG_WARN, "reading with pread, as %s", stk_error_detail());
        return stk_io_pread_open(&io->backend, &setup);
    }
    if (strncmp(spec, "emu:", 4) == 0) {
        stk_drive drive;
        STK_TRY(stk_drive_parse(&drive, spec + 4, options->seed));
        io->faults = (stk_io_faults){.eio_at = drive.eio_at, .eio_ahead_at = drive.eio_ahead_at, .short_at = drive.short_at};
        return stk_io_emu_open(&io->backend, &setup, &drive);
    }
    return stk_fail(STK_EINVAL, "io: '%s' is no way of reading; choose auto, uring, pread or emu:BANDWIDTH,LATENCY", spec);
}

static int check_options(const stk_io_options *options) {
    if (options->n_file == 0) return stk_fail(STK_EINVAL, "io: there is no file to read");
    if (options->depth > MAX_DEPTH) return stk_fail(STK_EINVAL, "io: a depth of %u is more than %u", options->depth, MAX_DEPTH);
    if (options->piece_bytes % PIECE_UNIT || options->piece_bytes > MAX_PIECE_BYTES)
        return stk_fail(STK_EINVAL, "io: pieces of %u bytes are not a multiple of %u up to 1 GiB", options->piece_bytes,
                        PIECE_UNIT);
    return 0;
}

static int open_files(stk_io *io, const stk_io_options *options) {
    io->files = calloc(options->n_file, sizeof *io->files);
    if (!io->files) return stk_fail(STK_ENOMEM, "io: no memory for %u files", options->n_file);
    for (; io->n_file < options->n_file; io->n_file++)
        STK_TRY(stk_io_file_open(&io->files[io->n_file], options->paths[io->n_file]));
    return 0;
}

static int alloc_pieces(stk_io *io) {
    io->pieces = calloc(io->depth, sizeof *io->pieces);
    io->batch = calloc(io->depth, sizeof(stk_io_piece *));
    io->back = calloc(io->depth, sizeof(stk_io_piece *));
    if (!io->pieces || !io->batch || !io->back) return stk_fail(STK_ENOMEM, "io: no memory for %u pieces", io->depth);
    for (uint32_t i = io->depth; i-- > 0; io->idle = &io->pieces[i]) io->pieces[i].next = io->idle;
    return reserve(io, FIRST_EXTENTS);
}

int stk_io_open(stk_io **out, const stk_io_options *options) {
    *out = NULL;
    STK_TRY(check_options(options));
    stk_io *io = calloc(1, sizeof *io);
    if (!io) return stk_fail(STK_ENOMEM, "io: no memory");
    io->depth = options->depth ? options->depth : STK_IO_DEPTH;
    io->piece_bytes = options->piece_bytes ? options->piece_bytes : STK_IO_PIECE_BYTES;
    io->vacant = NONE;
    io->done = (extent_list){NONE, NONE};
    for (int c = 0; c < N_CLASS; c++) io->queue[c] = (extent_list){NONE, NONE};
    int rc;
    STK_TRYGOTO(open_files(io, options), rc, out);
    STK_TRYGOTO(alloc_pieces(io), rc, out);
    STK_TRYGOTO(open_backend(io, options), rc, out);
    *out = io;
    return 0;
out:
    stk_io_close(&io);
    return rc;
}

/* The kernel or a reader may still write to the caller's memory, so pieces in flight are waited for. */
static void wait_for_pieces(stk_io *io) {
    for (uint32_t i = 0; i < io->depth; i++)
        if (io->pieces[i].flying) io->backend.ops->cancel(io->backend.state, &io->pieces[i]);
    while (io->n_flying) {
        int n = io->backend.ops->reap(io->backend.state, io->back, true);
        if (n < 0) return;
        io->n_flying -= (uint32_t)n;
    }
}

void stk_io_close(stk_io **io_ptr) {
    stk_io *io = *io_ptr;
    if (!io) return;
    if (io->backend.ops) {
        wait_for_pieces(io);
        io->backend.ops->close(io->backend.state);
    }
    for (uint32_t i = 0; i < io->n_file; i++) stk_io_file_close(&io->files[i]);
    free(io->files);
    free(io->pieces);
    free(io->batch);
    free(io->back);
    free(io->extents);
    free(io);
    *io_ptr = NULL;
}
