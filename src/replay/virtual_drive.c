/* virtual_drive: two queues, a few pieces, and when they are due. */
#include "virtual_drive.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

int stk_virtual_drive_open(stk_virtual_drive *d, uint32_t n) {
    memset(d, 0, sizeof *d);
    d->n = n;
    for (int c = 0; c <= STK_IO_PREFETCH; c++) d->queue[c] = (stk_virtual_queue){NONE, NONE};
    d->reads = calloc(n, sizeof *d->reads);
    d->landed = calloc(n, sizeof *d->landed);
    return d->reads && d->landed ? STK_OK : stk_fail(STK_ENOMEM, "out of memory for the modelled drive");
}

void stk_virtual_drive_close(stk_virtual_drive *d) {
    free(d->reads);
    free(d->landed);
    d->reads = NULL;
    d->landed = NULL;
}

/* ---- Queues ---- */

static void push(stk_virtual_drive *d, uint32_t read) {
    stk_virtual_queue *q = &d->queue[d->reads[read].cls];
    d->reads[read].next = NONE;
    d->reads[read].queued = true;
    if (q->tail == NONE)
        q->head = read;
    else
        d->reads[q->tail].next = read;
    q->tail = read;
}

static void unqueue(stk_virtual_drive *d, uint32_t read) {
    stk_virtual_queue *q = &d->queue[d->reads[read].cls];
    uint32_t before = NONE;
    for (uint32_t i = q->head; i != read; i = d->reads[i].next) before = i;
    if (before == NONE)
        q->head = d->reads[read].next;
    else
        d->reads[before].next = d->reads[read].next;
    if (q->tail == read) q->tail = before;
    d->reads[read].queued = false;
}

/* ---- Pieces ---- */

static void issue(stk_virtual_drive *d, uint32_t read, uint64_t now_ns) {
    stk_virtual_read *r = &d->reads[read];
    uint32_t bytes = stk_drive_piece(r->cls, STK_IO_PIECE_BYTES, r->bytes - r->issued_bytes, d->model.bytes_per_ns);
    d->flying[d->n_flying++] = (stk_virtual_piece){stk_drive_submit(&d->model, now_ns, bytes), read, bytes};
    if (!r->issued_bytes) r->begin_ns = now_ns;
    r->n_piece++;
    r->issued_bytes += bytes;
    if (r->issued_bytes == r->bytes) unqueue(d, read);
}

static void pump(stk_virtual_drive *d, uint64_t now_ns) {
    for (enum stk_io_class c = STK_IO_DEMAND; c <= STK_IO_PREFETCH; c++)
        while (d->queue[c].head != NONE && stk_drive_takes(c, STK_IO_DEPTH, d->n_flying)) issue(d, d->queue[c].head, now_ns);
}

/* The piece that is due first; among equals the one submitted first, which stands first. */
static uint32_t first_due(const stk_virtual_drive *d) {
    uint32_t first = 0;
    for (uint32_t i = 1; i < d->n_flying; i++)
        if (d->flying[i].due_ns < d->flying[first].due_ns) first = i;
    return first;
}

/* A piece comes back, and the next is handed out. */
static void settle(stk_virtual_drive *d, uint32_t at) {
    stk_virtual_piece p = d->flying[at];
    memmove(&d->flying[at], &d->flying[at + 1], (--d->n_flying - at) * sizeof p);
    d->moved_bytes += p.bytes;
    if (p.read != NONE) {
        stk_virtual_read *r = &d->reads[p.read];
        if (--r->n_piece == 0 && r->issued_bytes == r->bytes) {
            d->landed[d->n_landed++] = p.read;
            if (d->ended) d->ended(d->user, p.read, p.due_ns);
        }
    }
    pump(d, p.due_ns);
}

/* ---- Calls ---- */

void stk_virtual_drive_submit(stk_virtual_drive *d, uint32_t read, enum stk_io_class cls, uint64_t bytes, uint64_t now_ns) {
    d->reads[read] = (stk_virtual_read){.bytes = bytes, .cls = (uint8_t)cls};
    if (d->instant || bytes == 0) {
        d->landed[d->n_landed++] = read;
        return;
    }
    push(d, read);
    pump(d, now_ns);
}

void stk_virtual_drive_promote(stk_virtual_drive *d, uint32_t read) {
    stk_virtual_read *r = &d->reads[read];
    if (!r->queued || r->cls == STK_IO_DEMAND) return;
    unqueue(d, read);
    r->cls = STK_IO_DEMAND;
    push(d, read);
}

void stk_virtual_drive_cancel(stk_virtual_drive *d, uint32_t read) {
    uint32_t kept = 0;
    uint64_t end_ns = 0;
    if (d->reads[read].queued) unqueue(d, read);
    for (uint32_t i = 0; i < d->n_flying; i++) {
        if (d->flying[i].read != read) continue;
        d->flying[i].read = NONE;
        end_ns = STK_MAX(end_ns, d->flying[i].due_ns);
    }
    if (end_ns && d->ended) d->ended(d->user, read, end_ns);
    d->reads[read].n_piece = 0;
    for (uint32_t i = 0; i < d->n_landed; i++)
        if (d->landed[i] != read) d->landed[kept++] = d->landed[i];
    d->n_landed = kept;
}

void stk_virtual_drive_backlog(const stk_virtual_drive *d, uint64_t bytes[STK_IO_PREFETCH + 1]) {
    for (int c = 0; c <= STK_IO_PREFETCH; c++) {
        bytes[c] = 0;
        for (uint32_t i = d->queue[c].head; i != NONE; i = d->reads[i].next)
            bytes[c] += d->reads[i].bytes - d->reads[i].issued_bytes;
    }
    for (uint32_t i = 0; i < d->n_flying; i++) /* what nobody wants any more is in the way of demand */
        bytes[d->flying[i].read == NONE ? STK_IO_DEMAND : d->reads[d->flying[i].read].cls] += d->flying[i].bytes;
}

void stk_virtual_drive_advance(stk_virtual_drive *d, uint64_t now_ns) {
    for (uint32_t at; d->n_flying && d->flying[at = first_due(d)].due_ns <= now_ns;) settle(d, at);
}

uint64_t stk_virtual_drive_wait(stk_virtual_drive *d, uint64_t now_ns) {
    stk_virtual_drive_advance(d, now_ns);
    while (d->n_landed == 0 && d->n_flying) {
        uint32_t at = first_due(d);
        now_ns = STK_MAX(now_ns, d->flying[at].due_ns);
        settle(d, at);
    }
    return now_ns;
}

uint32_t stk_virtual_drive_take(stk_virtual_drive *d, uint32_t i) {
    uint32_t read = d->landed[i];
    memmove(&d->landed[i], &d->landed[i + 1], (--d->n_landed - i) * sizeof read);
    return read;
}
