/* store: reads of experts. */
#include "store.h"

#include <stdio.h>
#include <stdlib.h>

enum { REAP_MAX = 64, MAX_SHARE = 8 };
enum { NO_PART = 0, UP_PARTS = 1 << STK_GATE | 1 << STK_UP, ALL_PARTS = UP_PARTS | 1 << STK_DOWN };
#define NOBODY UINT32_MAX

/* An expert that is asked for and not there yet; all zero for every other. */
typedef struct flight {
    uint32_t layer, slot;
    uint32_t index;    /* of the decision that waits for it, or NOBODY */
    uint8_t n_reading; /* parts whose read has not ended */
    uint8_t missing;   /* bits of the parts that are not yet packed */
    bool ahead;        /* read as a prefetch, */
    bool stale;        /* and cancelled since nobody wanted it */
    int status;        /* first failure */
} flight;

typedef struct landed {
    uint32_t key;
    enum stk_part part;
} landed;

/* A share of the packing of a landed part. */
typedef struct share {
    uint32_t landed;
    stk_part_share of;
} share;

struct stk_store {
    const stk_catalogue *cat;
    stk_io *io;
    stk_slots *slots;
    uint32_t n_expert, n_key;
    flight *flights;       /* [n_key] */
    landed *landed;        /* [n_key * STK_N_PART]; the first n_picked are being packed */
    share *shares;         /* [n_key * STK_N_PART + MAX_SHARE] of what is being packed */
    uint8_t *held;         /* [n_share, held_bytes] rows that shares have copied away */
    stk_arrival *arrivals; /* [2 * n_expert] not yet taken */
    uint32_t *lost;        /* [n_key] */
    uint32_t n_landed, n_picked, n_share_max, n_arrival;
    stk_timeline *timeline; /* NULL: none */
    bool warned;            /* of a failed read ahead: once, a drive that fails does it often */
    char error[512];        /* detail of the latest failed read that an arrival tells of */
};

int stk_store_open(stk_store **out, const stk_catalogue *cat, stk_io *io, stk_slots *slots, uint32_t n_share) {
    *out = NULL;
    stk_store *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "expert store: out of memory");
    s->cat = cat;
    s->io = io;
    s->slots = slots;
    s->n_expert = stk_catalogue_n_expert(cat);
    s->n_key = s->n_expert * stk_catalogue_n_layer(cat);
    s->flights = calloc(s->n_key, sizeof *s->flights);
    s->landed = calloc(s->n_key, STK_N_PART * sizeof *s->landed);
    s->n_share_max = STK_MIN(n_share, (uint32_t)MAX_SHARE);
    s->shares = calloc((size_t)s->n_key * STK_N_PART + MAX_SHARE, sizeof *s->shares);
    s->held = calloc(s->n_share_max, stk_catalogue_held_bytes(cat));
    s->arrivals = calloc(s->n_expert, 2 * sizeof *s->arrivals);
    s->lost = calloc(s->n_key, sizeof *s->lost);
    if (!s->flights || !s->landed || !s->shares || !s->held || !s->arrivals || !s->lost) {
        stk_store_close(&s);
        return stk_fail(STK_ENOMEM, "expert store: out of memory");
    }
    *out = s;
    return STK_OK;
}

void stk_store_close(stk_store **store) {
    if (!*store) return;
    free((*store)->flights);
    free((*store)->landed);
    free((*store)->shares);
    free((*store)->held);
    free((*store)->arrivals);
    free((*store)->lost);
    free(*store);
    *store = NULL;
}

void stk_store_set_timeline(stk_store *s, stk_timeline *timeline) { s->timeline = timeline; }

static uint8_t *slot_at(const stk_store *s, uint32_t layer, uint32_t slot) {
    return stk_slots_at(s->slots, stk_catalogue_layer_class(s->cat, layer), slot);
}

void *stk_store_slot(const stk_store *s, uint32_t layer, const stk_decision *d) { return slot_at(s, layer, d->slot); }

static void part_read(const stk_store *s, uint32_t layer, uint32_t expert, enum stk_part part, stk_part_read *r) {
    uint32_t file = stk_catalogue_extent(s->cat, layer, expert, part).file;
    stk_catalogue_read(s->cat, layer, expert, part, stk_io_align(s->io, file), r);
}

/* ---- Starting ------------------------------------------------------------------------------------------------------------ */

static uint64_t tag_of(uint32_t key, uint32_t part) { return (uint64_t)key * STK_N_PART + part; }

/* Forgets parts that landed and will not be packed. */
static void forget_landed(stk_store *s, uint32_t key) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n_landed; i++)
        if (s->landed[i].key != key) s->landed[kept++] = s->landed[i];
    s->n_landed = kept;
}

/* Reads the parts that are missing; after a failed attempt those that are packed stay: they may be in use. */
static int start(stk_store *s, uint32_t key, enum stk_io_class class) {
    flight *f = &s->flights[key];
    uint8_t *slot = slot_at(s, f->layer, f->slot), n = 0;
    stk_io_read reads[STK_N_PART];
    for (uint32_t p = 0; p < STK_N_PART; p++) {
        if (!(f->missing & 1u << p)) continue;
        stk_part_read r;
        part_read(s, f->layer, key % s->n_expert, p, &r);
        if (r.bytes == 0) continue; /* it comes with another */
        reads[n++] = (stk_io_read){r.file, r.file_offset, r.bytes, slot + r.slot_offset, tag_of(key, p)};
    }
    forget_landed(s, key); /* of an attempt that failed */
    f->status = 0;
    f->stale = false;
    f->ahead = class == STK_IO_PREFETCH;
    STK_TRY(stk_io_submit(s->io, class, reads, n));
    f->n_reading = n;
    return STK_OK;
}

/* ---- Ending -------------------------------------------------------------------------------------------------------------- */

/* Phases that may be computed, or none: the expert has failed. What is there is there, though the rest may have failed once. */
static void arrive(stk_store *s, const flight *f, uint8_t phases) {
    s->arrivals[s->n_arrival++] = (stk_arrival){f->index, phases ? STK_OK : f->status, phases};
}

/* All reads of an expert have ended, one of them badly: nothing writes to its slot any more. What was read ahead and is wanted
 * meanwhile is tried again as demand. */
static int end_badly(stk_store *s, uint32_t key) {
    flight *f = &s->flights[key];
    if (f->index == NOBODY) return STK_OK;
    if (f->ahead && (f->stale || f->status != STK_ECANCELED)) return start(s, key, STK_IO_DEMAND);
    arrive(s, f, 0);
    f->index = NOBODY;
    return STK_OK;
}

/* A read that reached the drive, whatever came of it. */
static void note(stk_store *s, const flight *f, uint32_t expert, enum stk_part part, const stk_io_done *done) {
    stk_part_read r;
    if (!stk_timeline_on(s->timeline) || !done->begin_ns) return;
    part_read(s, f->layer, expert, part, &r);
    stk_timeline_put(s->timeline, (stk_work){done->begin_ns, done->end_ns, .bytes = r.bytes,
                                             .kind = f->ahead ? STK_WORK_READ_AHEAD : STK_WORK_READ, .layer = f->layer,
                                             .expert = expert, .n_expert = 1});
}

/* Parts of an expert are in their layout. */
static void settle(stk_store *s, flight *f, uint8_t parts) {
    uint8_t before = f->missing;
    f->missing &= (uint8_t)~parts;
    bool up = before & UP_PARTS && !(f->missing & UP_PARTS);
    if (f->index != NOBODY && (up || f->missing == NO_PART)) arrive(s, f, f->missing ? STK_PHASE_UP : STK_PHASE_ALL);
    if (f->missing == NO_PART) *f = (flight){0};
}

/* A read has brought what it was to bring. Packed parts are in their layout already. */
static void land(stk_store *s, uint32_t key, enum stk_part part) {
    flight *f = &s->flights[key];
    if (stk_catalogue_packed(s->cat)) {
        stk_part_read r;
        part_read(s, f->layer, key % s->n_expert, part, &r);
        if (f->status >= 0) settle(s, f, r.parts);
    } else {
        s->landed[s->n_landed++] = (landed){key, part};
    }
}

static int take_done(stk_store *s, const stk_io_done *done) {
    uint32_t key = (uint32_t)(done->tag / STK_N_PART);
    flight *f = &s->flights[key];
    note(s, f, key % s->n_expert, (enum stk_part)(done->tag % STK_N_PART), done);
    f->n_reading--;
    if (done->status < 0 && f->status >= 0) {
        f->status = done->status;
        bool told = f->index != NOBODY && !f->ahead; /* others are read again, or were cancelled */
        if (told) snprintf(s->error, sizeof s->error, "%s", stk_error_detail());
        if (f->ahead && f->status != STK_ECANCELED && !s->warned) {
            stk_log(STK_LOG_WARN, "%s, in a read ahead; it is tried again when the expert is wanted", stk_error_detail());
            s->warned = true;
        }
    }
    if (done->status >= 0) land(s, key, (enum stk_part)(done->tag % STK_N_PART));
    return f->n_reading == 0 && f->status < 0 ? end_badly(s, key) : STK_OK;
}

static int collect(stk_store *s, bool wait) {
    stk_io_done done[REAP_MAX];
    int n;
    do {
        n = stk_io_reap(s->io, done, REAP_MAX, wait);
        if (n < 0) return n;
        for (int i = 0; i < n; i++) STK_TRY(take_done(s, &done[i]));
        wait = false;
    } while (n == REAP_MAX);
    return STK_OK;
}

static void cancel(stk_store *s, uint32_t key) {
    s->flights[key].index = NOBODY;
    for (uint32_t p = 0; p < STK_N_PART; p++) stk_io_cancel(s->io, tag_of(key, p));
}

int stk_store_vacate(stk_store *s, uint32_t key) {
    if (key == STK_NO_KEY || s->flights[key].missing == NO_PART) return STK_OK;
    cancel(s, key);
    while (s->flights[key].n_reading) STK_TRY(collect(s, true));
    forget_landed(s, key);
    s->flights[key] = (flight){0};
    return STK_OK;
}

/* ---- What the executor asks for ------------------------------------------------------------------------------------------ */

/* The flight is there before anything can fail, so that drain lists the expert. */
int stk_store_read(stk_store *s, uint32_t layer, const stk_decision *d, uint32_t index) {
    s->flights[d->key] = (flight){.layer = layer, .slot = d->slot, .index = index, .missing = ALL_PARTS};
    STK_TRY(stk_store_vacate(s, d->victim));
    return start(s, d->key, STK_IO_DEMAND);
}

int stk_store_prefetch(stk_store *s, uint32_t layer, const stk_decision *d) {
    s->flights[d->key] = (flight){.layer = layer, .slot = d->slot, .index = NOBODY, .missing = ALL_PARTS};
    STK_TRY(stk_store_vacate(s, d->victim));
    return start(s, d->key, STK_IO_PREFETCH);
}

int stk_store_want(stk_store *s, const stk_decision *d, uint32_t index) {
    flight *f = &s->flights[d->key];
    if (f->missing == NO_PART) return 1;
    f->index = index;
    if (!(f->missing & UP_PARTS)) arrive(s, f, STK_PHASE_UP);
    if (f->n_reading == 0 && f->status < 0) return start(s, d->key, STK_IO_DEMAND);
    for (uint32_t p = 0; p < STK_N_PART; p++) stk_io_promote(s->io, tag_of(d->key, p));
    return 0;
}

void stk_store_backlog(const stk_store *s, uint64_t *demand_bytes, uint64_t *ahead_bytes) {
    uint64_t bytes[STK_IO_PREFETCH + 1];
    stk_io_backlog(s->io, bytes);
    *demand_bytes = bytes[STK_IO_DEMAND];
    *ahead_bytes = bytes[STK_IO_PREFETCH];
}

void stk_store_stale(stk_store *s, uint32_t key) {
    flight *f = &s->flights[key];
    if (f->missing == NO_PART || f->index != NOBODY || f->n_reading == 0) return;
    f->stale = true;
    cancel(s, key);
}

int stk_store_poll(stk_store *s, bool wait) { return collect(s, wait && s->n_landed == 0 && s->n_arrival == 0); }

/* Moves landed part i to the picked ones. */
static void pick(stk_store *s, uint32_t i) {
    landed l = s->landed[i];
    s->landed[i] = s->landed[s->n_picked];
    s->landed[s->n_picked++] = l;
}

/* The read that brought a landed part, for where its rows are. */
static void landed_read(const stk_store *s, const landed *l, stk_part_read *r) {
    part_read(s, s->flights[l->key].layer, l->key % s->n_expert, l->part, r);
}

/* Shares the packing of each picked part out among as many workers as there are for it. */
static uint32_t make_shares(stk_store *s) {
    uint32_t n = 0, each = STK_MAX(s->n_share_max / s->n_picked, 1u);
    for (uint32_t i = 0; i < s->n_picked; i++) {
        const landed *l = &s->landed[i];
        const flight *f = &s->flights[l->key];
        uint32_t cls = stk_catalogue_layer_class(s->cat, f->layer), j = 0;
        stk_part_read r;
        landed_read(s, l, &r);
        for (; j < each; j++) {
            uint8_t *held = s->held + (i * each + j) % s->n_share_max * stk_catalogue_held_bytes(s->cat);
            s->shares[n + j].landed = i;
            if (!stk_catalogue_share(s->cat, cls, l->part, slot_at(s, f->layer, f->slot), r.rows_offset, j, each, held,
                                     &s->shares[n + j].of))
                break;
        }
        if (j < each) { /* too small a part to be shared */
            (void)stk_catalogue_share(s->cat, cls, l->part, slot_at(s, f->layer, f->slot), r.rows_offset, 0, 1, s->held,
                                      &s->shares[n].of);
            j = 1;
        }
        n += j;
    }
    return n;
}

uint32_t stk_store_pick(stk_store *s, bool idle) {
    s->n_picked = 0;
    for (uint32_t i = 0; i < s->n_landed; i++)
        if (s->flights[s->landed[i].key].index != NOBODY) pick(s, i);
    if (s->n_picked == 0 && idle && s->n_landed > 0) {
        uint32_t key = s->landed[0].key;
        for (uint32_t i = 0; i < s->n_landed; i++)
            if (s->landed[i].key == key) pick(s, i);
    }
    return s->n_picked ? make_shares(s) : 0;
}

void stk_store_pack(const stk_store *s, uint32_t i, void *scratch) {
    const share *x = &s->shares[i];
    const landed *l = &s->landed[x->landed];
    const flight *f = &s->flights[l->key];
    stk_part_read r;
    if (f->status < 0) return;
    landed_read(s, l, &r);
    stk_catalogue_pack(s->cat, stk_catalogue_layer_class(s->cat, f->layer), l->part, slot_at(s, f->layer, f->slot), r.rows_offset,
                       &x->of, scratch);
}

uint64_t stk_store_settle(stk_store *s) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_picked; i++) {
        const landed *l = &s->landed[i];
        flight *f = &s->flights[l->key];
        if (f->status < 0) continue;
        bytes += stk_catalogue_class(s->cat, stk_catalogue_layer_class(s->cat, f->layer))->part[l->part].file_bytes;
        settle(s, f, (uint8_t)(1u << l->part));
    }
    s->n_landed -= s->n_picked;
    for (uint32_t i = 0; i < s->n_landed; i++) s->landed[i] = s->landed[s->n_picked + i];
    s->n_picked = 0;
    return bytes;
}

uint32_t stk_store_take(stk_store *s, stk_arrival *out, uint32_t max) {
    uint32_t n = STK_MIN(max, s->n_arrival);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = s->arrivals[i];
        if (out[i].status < 0) (void)stk_fail(out[i].status, "%s", s->error);
    }
    s->n_arrival -= n;
    for (uint32_t i = 0; i < s->n_arrival; i++) s->arrivals[i] = s->arrivals[n + i];
    return n;
}

uint32_t stk_store_drain(stk_store *s, const uint32_t **keys) {
    uint32_t n = 0;
    for (uint32_t key = 0; key < s->n_key; key++)
        if (s->flights[key].missing) cancel(s, key);
    while (stk_io_in_flight(s->io) > 0 && collect(s, true) >= 0) {
    }
    for (uint32_t key = 0; key < s->n_key; key++) {
        if (s->flights[key].missing) s->lost[n++] = key;
        s->flights[key] = (flight){0};
    }
    s->n_landed = s->n_arrival = 0;
    *keys = s->lost;
    return n;
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
