/*
 * trace: what a run did, on disk: every event with its routing, and every input of a decision that a replay cannot work out again
 * (drops after a failed read or a cancelled step). The format is drawn in traces/README.md: versioned, zstd frames with
 * checksums; a file that was cut off is readable up to the cut.
 *
 * Who may call it: src/. Threads: one owner. Ownership: what a reader returns lives until its next call. Errors: STK_EIO,
 * STK_ENOSPC, STK_EFORMAT (file, offset, what), STK_ENOMEM, STK_EUNSUPPORTED (version).
 */
#ifndef STK_TRACE_H
#define STK_TRACE_H

#include "src/base.h"
#include "src/event.h"

typedef struct stk_trace_class {
    uint64_t slot_bytes, payload_bytes;
    uint32_t n_slot, n_transit;
} stk_trace_class;

/* One part of an expert: what a replay needs to know of its read. */
typedef struct stk_trace_extent {
    uint32_t file;
    uint64_t offset; /* aligned */
    uint64_t bytes;  /* aligned: what the drive is asked for */
} stk_trace_extent;

typedef struct stk_trace_header {
    uint32_t n_layer; /* MoE layers */
    uint32_t n_expert, k, n_part;
    uint32_t n_class;
    uint32_t n_batch;
    uint64_t ram_bytes;
    uint64_t seed;
    const stk_trace_class *classes;           /* [n_class] */
    const uint32_t *layer_class;              /* [n_layer] */
    const uint32_t *model_layer;              /* [n_layer] layer number in the model */
    const stk_trace_extent *extents;          /* [n_layer, n_expert, n_part] */
    const char *model, *policy, *params, *io; /* "" for none */
    const void *state;                        /* [state_bytes] of the cache at the start (stk_cache_save); NULL: it was empty */
    uint64_t state_bytes;
    const uint32_t *vram_slots; /* [n_class] of a tier on a device; NULL: there was none */
    const char *vram_policy;    /* of that tier; NULL without one */
} stk_trace_header;

/* Measured costs of the run, for predicting times: written at the end, corrected while running (src/plan/cost.h gives them
 * meaning).
 */
enum { STK_TRACE_N_COST = 64 };

enum stk_trace_kind {
    STK_TRACE_STEP,
    STK_TRACE_EVENT,
    STK_TRACE_AHEAD,
    STK_TRACE_DROP,
    STK_TRACE_CLEAR,
    STK_TRACE_ABORT,
    STK_TRACE_COST,
    STK_TRACE_END,
    STK_TRACE_RESIZE,
    STK_TRACE_SWITCH,
    STK_TRACE_PLACE,
    STK_TRACE_MOVED
};

typedef struct stk_trace_step {
    uint64_t step;
    uint32_t n_tok;
    const int32_t *seq, *pos, *token; /* [n_tok] */
    const uint8_t *logits;            /* [n_tok] */
} stk_trace_step;

/* What the predictor said at an event of those to come, and what of it was read ahead. */
typedef struct stk_trace_ahead {
    uint32_t n;            /* at most STK_TRACE_AHEAD_MAX * n_expert */
    const stk_ahead *list; /* [n] distinct keys; p is kept in 127 steps */
} stk_trace_ahead;
enum { STK_TRACE_AHEAD_MAX = 4 };

/* Where the experts of the latest event were computed, other than by the rule (in VRAM: on the device; else: on the CPU). */
typedef struct stk_trace_place {
    uint32_t n; /* at most n_expert */
    const stk_placed *list;
} stk_trace_place;

/* What became of the copies that the latest PLACE asked for, of each in turn: bits of enum stk_moved. */
typedef struct stk_trace_moved {
    uint32_t n;
    const uint8_t *list;
} stk_trace_moved;

/* Counters at the end of the run, to be compared by a verifying replay; those of VRAM are 0 without that tier. */
typedef struct stk_trace_end {
    uint64_t n_event, n_lookup, n_pair, n_hit, n_miss, n_evict, n_wave, bytes, read_bytes, cache_hash;
    uint64_t n_vram_hit, n_fetch, n_return, vram_hash;
} stk_trace_end;

/* Between steps the classes were given other numbers of slots. */
typedef struct stk_trace_slots {
    uint32_t n_slot, n_transit;
} stk_trace_slots;
typedef struct stk_trace_resize {
    uint64_t ram_bytes;
    const stk_trace_slots *classes; /* [n_class] */
} stk_trace_resize;

/* Between steps a technique was turned off or on. */
enum { STK_TECHNIQUE_PREFETCH, STK_TECHNIQUE_MAX = 15 };
typedef struct stk_trace_switch {
    uint32_t technique;
    bool on;
} stk_trace_switch;

typedef struct stk_trace_record {
    enum stk_trace_kind kind;
    union {
        stk_trace_step step;
        stk_event event;       /* of the latest step; see below */
        stk_trace_ahead ahead; /* at the latest event, whose arrays it leaves as they are; so do the next two */
        stk_trace_place place;
        stk_trace_moved moved;
        uint32_t drop_key;   /* the expert with this key never arrived and was evicted here */
        uint64_t abort_step; /* this step returned an error: its positions were taken back */
        double cost[STK_TRACE_N_COST];
        stk_trace_end end;
        stk_trace_resize resize;
        stk_trace_switch toggle;
    };
} stk_trace_record;

typedef struct stk_trace_writer stk_trace_writer;
/* Creates `path` and writes through to it frame by frame (64 KiB, or a second), so that a killed run leaves what it had recorded.
 * Allocates nothing after open. Errors: STK_EINVAL (the header contradicts itself or exceeds the limits of traces/README.md),
 * STK_ESTATE (another writer has the file open), those above. */
int stk_trace_writer_open(stk_trace_writer **out, const char *path, const stk_trace_header *header) STK_CHECKED;
/*
 * An event belongs to the latest step: `step` and `n_tok` are that step's, from which the reader takes seq, pos and token;
 * `layer` is the dense MoE layer number; `weights` may be NULL where the source has none. The reader works distinct and counts
 * out of ids.
 *
 * STK_EINVAL: the record does not fit the header or its step, and nothing was written. STK_ESTATE: after the END record. A failed
 * write (SIGPIPE and SIGXFSZ are held back) is returned by this and every later call, and by close; the file stays readable up to
 * its last whole frame.
 */
int stk_trace_write(stk_trace_writer *w, const stk_trace_record *record) STK_CHECKED;
/* Flushes and closes. Frees in any case; returns the first error. NULL is fine. */
int stk_trace_writer_close(stk_trace_writer **w) STK_CHECKED;

typedef struct stk_trace_reader stk_trace_reader;
int stk_trace_reader_open(stk_trace_reader **out, const char *path) STK_CHECKED;
void stk_trace_reader_close(stk_trace_reader **r);
const stk_trace_header *stk_trace_reader_header(const stk_trace_reader *r);
/* 1: *record is the next one; 0: the end (see stk_trace_reader_cut); negative: malformed, and every later call says the same. */
int stk_trace_read(stk_trace_reader *r, stk_trace_record *record) STK_CHECKED;
/* Whether the file ended without an END record: everything before the cut has been returned. */
bool stk_trace_reader_cut(const stk_trace_reader *r);
/* Bytes read so far and in all (0 for a pipe), for progress. */
void stk_trace_reader_progress(const stk_trace_reader *r, uint64_t *done, uint64_t *total);

#endif
