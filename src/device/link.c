/* link: copies of experts in pieces. */
#include "link.h"

#include <stdlib.h>
#include <string.h>

#include "src/mem.h"

/* A piece on its way; its memory is used by copies that are not pinned. */
typedef struct piece {
    stk_cuda_event *event; /* recorded behind its copy */
    uint8_t *memory;
    bool busy;
} piece;

/* A copy up that is not queued in full. */
typedef struct copy {
    const stk_class *cls;
    const uint8_t *from;
    uint8_t *to;
    uint32_t tag, part;
    uint64_t at; /* in the part */
    bool pinned;
} copy;

struct stk_link {
    stk_link_config c;
    uint8_t **slots;      /* [n_class] on the device */
    uint64_t bounce_step; /* bytes from one bounce buffer to the next */
    uint8_t *bounce;
    uint32_t n_bounce;
    void *pageable; /* staging that could not be pinned */
    piece pieces[STK_LINK_N_PIECE];
    uint32_t next_piece;
    copy copies[STK_LINK_N_UP];
    uint32_t n_copy;
    uint32_t failed[STK_LINK_N_UP];
    uint32_t n_failed;
    stk_cuda_event *up, *down; /* behind the latest copies of each way */
    stk_link_counters counters;
};

/* ---- Open and close ---- */

static uint64_t greatest_slot(const stk_catalogue *cat) {
    uint64_t most = 0;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++) most = STK_MAX(most, stk_catalogue_class(cat, c)->slot_bytes);
    return most;
}

static const uint64_t ring_bytes = (uint64_t)STK_LINK_N_PIECE * STK_LINK_PIECE;

uint64_t stk_link_staging_least(const stk_catalogue *cat) { return ring_bytes + 2 * greatest_slot(cat); }

uint64_t stk_link_staging_bytes(const stk_link_config *config) {
    return config->staging_bytes ? config->staging_bytes : ring_bytes + STK_LINK_N_BOUNCE * greatest_slot(config->cat);
}

static int open_slots(stk_link *l) {
    const stk_catalogue *cat = l->c.cat;
    uint64_t bytes = 0;
    void *base;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++) bytes += l->c.n_slot[c] * stk_catalogue_class(cat, c)->slot_bytes;
    STK_TRY(stk_device_take(l->c.device, &base, bytes, "expert slots"));
    uint8_t *at = base;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++) {
        l->slots[c] = at;
        at += l->c.n_slot[c] * stk_catalogue_class(cat, c)->slot_bytes;
    }
    return STK_OK;
}

static int open_staging(stk_link *l) {
    char a[32], b[32];
    uint64_t bytes = stk_link_staging_bytes(&l->c), least = stk_link_staging_least(l->c.cat);
    if (bytes < least)
        return stk_fail(STK_EBUDGET, "--staging %s is too small: the least is %s", stk_bytes_text(bytes, a),
                        stk_bytes_text(least, b));
    l->bounce_step = greatest_slot(l->c.cat);
    l->n_bounce = (uint32_t)STK_MIN((bytes - ring_bytes) / l->bounce_step, (uint64_t)STK_LINK_N_UP - 1);
    bytes = ring_bytes + l->n_bounce * l->bounce_step;
    uint8_t *base = stk_device_take_pinned(l->c.device, bytes, "staging buffers");
    if (!base) base = l->pageable = aligned_alloc(4096, stk_align_up(bytes, 4096));
    if (!base) return stk_fail(STK_ENOMEM, "staging: out of memory for %s", stk_bytes_text(bytes, a));
    for (uint32_t i = 0; i < STK_LINK_N_PIECE; i++) l->pieces[i].memory = base + (size_t)i * STK_LINK_PIECE;
    l->bounce = base + ring_bytes;
    return STK_OK;
}

int stk_link_open(stk_link **out, const stk_link_config *config) {
    *out = NULL;
    int rc = STK_OK;
    stk_link *l = calloc(1, sizeof *l);
    if (!l) return stk_fail(STK_ENOMEM, "link: out of memory");
    l->c = *config;
    const stk_cuda_ops *ops = config->device->ops;
    l->slots = calloc(stk_catalogue_n_class(config->cat) + 1, sizeof *l->slots);
    if (!l->slots) STK_TRYGOTO(stk_fail(STK_ENOMEM, "link: out of memory"), rc, out);
    STK_TRYGOTO(open_slots(l), rc, out);
    STK_TRYGOTO(open_staging(l), rc, out);
    for (uint32_t i = 0; i < STK_LINK_N_PIECE; i++) STK_TRYGOTO(ops->event_open(&l->pieces[i].event), rc, out);
    STK_TRYGOTO(ops->event_open(&l->up), rc, out);
    STK_TRYGOTO(ops->event_open(&l->down), rc, out);
out:
    l->c.n_slot = NULL; /* the caller's */
    if (rc < 0) stk_link_close(&l);
    *out = l;
    return rc;
}

void stk_link_close(stk_link **link) {
    stk_link *l = *link;
    if (!l) return;
    const stk_cuda_ops *ops = l->c.device->ops;
    for (uint32_t i = 0; i < STK_LINK_N_PIECE; i++)
        if (l->pieces[i].event) ops->event_close(l->pieces[i].event);
    if (l->up) ops->event_close(l->up);
    if (l->down) ops->event_close(l->down);
    free(l->slots);
    free(l->pageable);
    free(l);
    *link = NULL;
}

/* ---- Memory ---- */

static uint8_t *slot_at(const stk_link *l, uint32_t cls, uint32_t slot) {
    return l->slots[cls] + slot * stk_catalogue_class(l->c.cat, cls)->slot_bytes;
}
static uint8_t *bounce_at(const stk_link *l, uint32_t i) { return l->bounce + i * l->bounce_step; }

const void *stk_link_slot(const stk_link *l, uint32_t cls, uint32_t slot) { return slot_at(l, cls, slot); }
uint32_t stk_link_n_bounce(const stk_link *l) { return l->n_bounce; }
const void *stk_link_bounce(const stk_link *l, uint32_t i) { return bounce_at(l, i); }

/* ---- Up ---- */

void stk_link_up(stk_link *l, uint32_t cls, uint32_t ram_slot, uint32_t slot, uint32_t tag) {
    const uint8_t *from = stk_slots_at(l->c.ram, cls, ram_slot);
    const stk_class *class = stk_catalogue_class(l->c.cat, cls);
    l->copies[l->n_copy++] = (copy){class, from, slot_at(l, cls, slot), tag, 0, 0, ram_slot < l->c.n_pinned[cls]};
}

/* A piece whose copy has ended; NULL without wait where there is none. */
static piece *free_piece(stk_link *l, bool wait) {
    const stk_cuda_ops *ops = l->c.device->ops;
    piece *p = &l->pieces[l->next_piece];
    if (p->busy) {
        int done = wait ? ops->event_sync(p->event) : ops->event_query(p->event);
        if (!wait && done == 0) return NULL; /* an error shows at the next call, too */
        p->busy = false;
    }
    l->next_piece = (l->next_piece + 1) % STK_LINK_N_PIECE;
    return p;
}

static int queue_piece(stk_link *l, copy *c, piece *p) {
    const stk_device *d = l->c.device;
    const stk_part_shape *part = &c->cls->part[c->part];
    uint64_t bytes = STK_MIN(part->packed_bytes - c->at, (uint64_t)STK_LINK_PIECE), offset = part->slot_offset + c->at;
    const uint8_t *from = c->from + offset;
    if (!c->pinned) from = memcpy(p->memory, from, bytes);
    STK_TRY(stk_device_up(d, c->to + offset, from, bytes, d->up));
    STK_TRY(d->ops->event_record(p->event, d->up));
    p->busy = true;
    l->counters.up_bytes += bytes;
    c->at += bytes;
    if (c->at < part->packed_bytes) return 0;
    c->at = 0;
    return ++c->part == STK_N_PART;
}

void stk_link_pump(stk_link *l, bool wait) {
    while (l->n_copy) {
        piece *p = free_piece(l, wait);
        if (!p) return;
        int done = queue_piece(l, &l->copies[0], p);
        if (done < 0) l->failed[l->n_failed++] = l->copies[0].tag;
        if (done == 0) continue;
        l->n_copy--;
        memmove(l->copies, l->copies + 1, l->n_copy * sizeof *l->copies);
    }
}

bool stk_link_failed(const stk_link *l, uint32_t tag) {
    for (uint32_t i = 0; i < l->n_failed; i++)
        if (l->failed[i] == tag) return true;
    return false;
}

void stk_link_reset(stk_link *l) { l->n_copy = l->n_failed = 0; }

int stk_link_before(stk_link *l, stk_cuda_stream *stream) {
    const stk_device *d = l->c.device;
    STK_TRY(d->ops->event_record(l->up, d->up));
    return d->ops->stream_wait(stream, l->up);
}

int stk_link_sync(stk_link *l) {
    const stk_device *d = l->c.device;
    STK_TRY(d->ops->stream_sync(d->down));
    return d->ops->stream_sync(d->up);
}

/* ---- Down ---- */

int stk_link_down(stk_link *l, uint32_t cls, uint32_t slot, uint32_t i) {
    const stk_device *d = l->c.device;
    const stk_class *class = stk_catalogue_class(l->c.cat, cls);
    for (uint32_t part = 0; part < STK_N_PART; part++) {
        const stk_part_shape *s = &class->part[part];
        for (uint64_t at = 0, n; at < s->packed_bytes; at += n) {
            n = STK_MIN(s->packed_bytes - at, (uint64_t)STK_LINK_PIECE);
            uint64_t offset = s->slot_offset + at;
            STK_TRY(stk_device_down(d, bounce_at(l, i) + offset, slot_at(l, cls, slot) + offset, n, d->down));
            l->counters.down_bytes += n;
        }
    }
    /* What is copied into this slot next must not overtake it. */
    STK_TRY(d->ops->event_record(l->down, d->down));
    return d->ops->stream_wait(d->up, l->down);
}

void stk_link_restore(stk_link *l, uint32_t cls, uint32_t i, uint32_t ram_slot) {
    const stk_class *class = stk_catalogue_class(l->c.cat, cls);
    uint8_t *to = stk_slots_at(l->c.ram, cls, ram_slot);
    for (uint32_t part = 0; part < STK_N_PART; part++) {
        const stk_part_shape *s = &class->part[part];
        memcpy(to + s->slot_offset, bounce_at(l, i) + s->slot_offset, s->packed_bytes);
    }
}

void stk_link_get_counters(const stk_link *l, stk_link_counters *counters) { *counters = l->counters; }
