/* store: reads of experts. */
#include "store.h"

#include <stdio.h>
#include <stdlib.h>

enum { REAP_MAX = 64 };

/* An expert that is being read. */
typedef struct flight {
    uint32_t index; /* of the decision */
    uint8_t parts;  /* not yet ended */
    int status;     /* first failure */
} flight;

struct stk_store {
    const stk_catalogue *cat;
    stk_io *io;
    stk_slots *slots;
    uint32_t n_expert, n_key;
    flight *flights;       /* [n_key] */
    stk_arrival *arrivals; /* [n_expert] ended, not yet handed out */
    uint32_t n_arrival;
    char error[512]; /* detail of the first failed read that was not yet handed out */
};

int stk_store_open(stk_store **out, const stk_catalogue *cat, stk_io *io, stk_slots *slots) {
    *out = NULL;
    stk_store *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "expert store: out of memory");
    s->cat = cat;
    s->io = io;
    s->slots = slots;
    s->n_expert = stk_catalogue_n_expert(cat);
    s->n_key = s->n_expert * stk_catalogue_n_layer(cat);
    s->flights = calloc(s->n_key, sizeof *s->flights);
    s->arrivals = calloc(s->n_expert, sizeof *s->arrivals);
    if (!s->flights || !s->arrivals) {
        stk_store_close(&s);
        return stk_fail(STK_ENOMEM, "expert store: out of memory");
    }
    *out = s;
    return STK_OK;
}

void stk_store_close(stk_store **store) {
    if (!*store) return;
    free((*store)->flights);
    free((*store)->arrivals);
    free(*store);
    *store = NULL;
}

void *stk_store_slot(const stk_store *s, uint32_t layer, const stk_decision *d) {
    return stk_slots_at(s->slots, stk_catalogue_layer_class(s->cat, layer), d->slot);
}

static void part_read(const stk_store *s, uint32_t layer, uint32_t expert, enum stk_part part, stk_part_read *r) {
    uint32_t file = stk_catalogue_extent(s->cat, layer, expert, part).file;
    stk_catalogue_read(s->cat, layer, expert, part, stk_io_align(s->io, file), r);
}

int stk_store_read(stk_store *s, uint32_t layer, const stk_decision *d, uint32_t index) {
    uint8_t *slot = stk_store_slot(s, layer, d);
    stk_io_read reads[STK_N_PART];
    for (uint32_t p = 0; p < STK_N_PART; p++) {
        stk_part_read r;
        part_read(s, layer, d->expert, p, &r);
        reads[p] = (stk_io_read){r.file, r.file_offset, r.bytes, slot + r.slot_offset, (uint64_t)d->key};
    }
    STK_TRY(stk_io_submit(s->io, STK_IO_DEMAND, reads, STK_N_PART));
    s->flights[d->key] = (flight){index, STK_N_PART, 0};
    return STK_OK;
}

/* Counts ended parts; an expert has ended when its last part has, so that nothing writes to its slot any more. */
static int collect(stk_store *s, bool wait) {
    stk_io_done done[REAP_MAX];
    int n;
    do {
        n = stk_io_reap(s->io, done, REAP_MAX, wait);
        if (n < 0) return n;
        for (int i = 0; i < n; i++) {
            flight *f = &s->flights[done[i].tag];
            if (done[i].status < 0 && f->status >= 0) {
                f->status = done[i].status;
                snprintf(s->error, sizeof s->error, "%s", stk_error_detail());
            }
            if (--f->parts == 0) s->arrivals[s->n_arrival++] = (stk_arrival){f->index, f->status};
        }
        wait = false;
    } while (n == REAP_MAX);
    return STK_OK;
}

int stk_store_poll(stk_store *s) { return collect(s, false); }

int stk_store_reap(stk_store *s, stk_arrival *out, uint32_t max, bool wait) {
    STK_TRY(collect(s, wait && s->n_arrival == 0));
    uint32_t n = STK_MIN(max, s->n_arrival);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = s->arrivals[i];
        if (out[i].status < 0) (void)stk_fail(out[i].status, "%s", s->error);
    }
    s->n_arrival -= n;
    for (uint32_t i = 0; i < s->n_arrival; i++) s->arrivals[i] = s->arrivals[n + i];
    return (int)n;
}

void stk_store_arrive(const stk_store *s, uint32_t layer, const stk_decision *d, enum stk_part part, void *scratch) {
    stk_part_read r;
    part_read(s, layer, d->expert, part, &r);
    stk_catalogue_arrive(s->cat, stk_catalogue_layer_class(s->cat, layer), part, stk_store_slot(s, layer, d), r.rows_offset,
                         scratch);
}

void stk_store_drain(stk_store *s) {
    for (uint32_t key = 0; key < s->n_key; key++)
        if (s->flights[key].parts) stk_io_cancel(s->io, key);
    while (stk_io_in_flight(s->io) > 0 && collect(s, true) >= 0) {
    }
    for (uint32_t key = 0; key < s->n_key; key++) s->flights[key] = (flight){0};
    s->n_arrival = 0;
}

void stk_store_sizes(const stk_store *s, uint32_t layer, uint32_t expert, uint64_t *payload_bytes, uint64_t *read_bytes) {
    *payload_bytes = stk_catalogue_class(s->cat, stk_catalogue_layer_class(s->cat, layer))->payload_bytes;
    *read_bytes = 0;
    for (uint32_t p = 0; p < STK_N_PART; p++) {
        stk_part_read r;
        part_read(s, layer, expert, p, &r);
        *read_bytes += r.bytes;
    }
}
