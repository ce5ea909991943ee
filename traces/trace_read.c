/*
 * trace_read: frame by frame, and within a frame record by record. Nothing in the file is believed: heads and packed bytes have
 * checksums, sizes have limits that follow from the header, and counts are compared with the bytes that are there before memory
 * is taken for them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "traces/trace_count.h"
#include "traces/trace_format.h"

/* An array that grows to what a record needs. */
typedef struct array {
    void *data;
    size_t bytes;
} array;

struct stk_trace_reader {
    int fd;
    char *path;
    uint64_t offset; /* of the next byte to read */
    uint64_t total;  /* of a regular file, else 0 */
    ZSTD_DCtx *zstd;
    stk_trace_header header;
    size_t raw_most; /* a frame's */

    array packed, raw;
    uint64_t frame_offset; /* of the frame in `raw` */
    trace_in in;           /* within it */
    const uint8_t *record; /* its latest record */

    bool have_step;      /* in this frame */
    uint64_t step_check; /* of the latest STEP, for its repetitions */
    stk_trace_step step;
    array seq, pos, token, logits;
    array ids, weights, top_ids, top_scores, ahead, slots, place;
    trace_count count;

    bool ended; /* the END record was returned */
    bool cut;
    int error; /* sticky */
    char detail[512];
};

static int grow(array *a, size_t n, size_t each) {
    if (n * each <= a->bytes) return 0;
    void *data = realloc(a->data, n * each);
    if (!data) return stk_fail(STK_ENOMEM, "out of memory for %zu bytes", n * each);
    a->data = data;
    a->bytes = n * each;
    return 0;
}

/* ---- Frames ------------------------------------------------------------------------------------------------------------- */

/* Reads up to `bytes`; *got is less only at the end of the file. */
static int read_some(stk_trace_reader *r, void *out, size_t bytes, size_t *got) {
    for (*got = 0; *got < bytes;) {
        ssize_t n = read(r->fd, (uint8_t *)out + *got, bytes - *got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return stk_fail_errno(errno, "read at byte %llu", (unsigned long long)r->offset);
        if (n == 0) break;
        *got += (size_t)n;
        r->offset += (uint64_t)n;
    }
    return 0;
}

static int unpack(stk_trace_reader *r, const trace_head *head) {
    STK_TRY(grow(&r->raw, head->raw_bytes, 1));
    size_t n = ZSTD_decompressDCtx(r->zstd, r->raw.data, head->raw_bytes, r->packed.data, head->packed_bytes);
    if (ZSTD_isError(n) || n != head->raw_bytes)
        return stk_fail(STK_EFORMAT, "frame at byte %llu: %s", (unsigned long long)r->frame_offset,
                        ZSTD_isError(n) ? ZSTD_getErrorName(n) : "shorter than its head says");
    r->in = (trace_in){r->raw.data, (const uint8_t *)r->raw.data + n, false};
    return 0;
}

/* 1: a frame is in `raw`; 0: the file ends before or within it. */
static int next_frame(stk_trace_reader *r) {
    uint8_t bytes[TRACE_HEAD_BYTES];
    trace_head head;
    size_t got;
    r->frame_offset = r->offset;
    r->have_step = false;
    STK_TRY(read_some(r, bytes, sizeof bytes, &got));
    if (got < sizeof bytes) return 0;
    if (!stk_trace_head_get(bytes, &head))
        return stk_fail(STK_EFORMAT, "frame at byte %llu: its head is damaged", (unsigned long long)r->frame_offset);
    if (!head.raw_bytes || head.raw_bytes > r->raw_most || head.packed_bytes > ZSTD_compressBound(r->raw_most) + 64)
        return stk_fail(STK_EFORMAT, "frame at byte %llu: %u bytes packed, %u raw, at most %zu are possible",
                        (unsigned long long)r->frame_offset, head.packed_bytes, head.raw_bytes, r->raw_most);
    if (r->total && head.packed_bytes > r->total - STK_MIN(r->total, r->offset)) return 0;
    STK_TRY(grow(&r->packed, head.packed_bytes, 1));
    STK_TRY(read_some(r, r->packed.data, head.packed_bytes, &got));
    if (got < head.packed_bytes) return 0;
    if (stk_trace_check(r->packed.data, got) != head.packed_check)
        return stk_fail(STK_EFORMAT, "frame at byte %llu: its content is damaged", (unsigned long long)r->frame_offset);
    STK_TRY(unpack(r, &head));
    return 1;
}

/* ---- Records ------------------------------------------------------------------------------------------------------------ */

static int malformed(const stk_trace_reader *r, const char *what) {
    return stk_fail(STK_EFORMAT, "frame at byte %llu, record at byte %zu of its content: %s", (unsigned long long)r->frame_offset,
                    (size_t)(r->record - (const uint8_t *)r->raw.data), what);
}

static bool fits_i32(uint64_t x) { return (int64_t)x >= INT32_MIN && (int64_t)x <= INT32_MAX; }

/* *check is that of its bytes. */
static int get_step(stk_trace_reader *r, uint64_t *check) {
    trace_in *in = &r->in;
    const uint8_t *begin = in->p;
    stk_trace_step *s = &r->step;
    r->have_step = false;
    s->step = get_varint(in);
    uint32_t n = s->n_tok = get_u32(in, r->header.n_batch);
    if (in->bad || !n || n > in_left(in) / 3) return malformed(r, "a step of too many tokens or none");
    STK_TRY(grow(&r->seq, n, sizeof(int32_t)));
    STK_TRY(grow(&r->pos, n, sizeof(int32_t)));
    STK_TRY(grow(&r->token, n, sizeof(int32_t)));
    STK_TRY(grow(&r->logits, n, 1));
    int32_t *seq = r->seq.data, *pos = r->pos.data, *token = r->token.data;
    uint8_t *logits = r->logits.data;
    uint64_t last_seq = 0, last_pos = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        last_seq += unzigzag(get_varint(in));
        last_pos += unzigzag(get_varint(in)) + 1;
        uint64_t id = unzigzag(get_varint(in));
        if (!fits_i32(last_seq) || !fits_i32(last_pos) || !fits_i32(id)) return malformed(r, "a token's number exceeds 32 bits");
        seq[i] = (int32_t)last_seq;
        pos[i] = (int32_t)last_pos;
        token[i] = (int32_t)id;
    }
    uint8_t bits = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i % 8 == 0) get_bytes(in, &bits, 1);
        logits[i] = bits >> (i % 8) & 1;
    }
    if (in->bad) return malformed(r, "a step is cut short");
    s->seq = seq;
    s->pos = pos;
    s->token = token;
    s->logits = logits;
    r->have_step = true;
    *check = stk_trace_check(begin, (size_t)(in->p - begin));
    return 0;
}

/* Those of one byte each, as most are, in a loop of their own. */
static bool get_ids(trace_in *in, uint16_t *ids, size_t n, uint32_t n_expert) {
    size_t i = 0;
    if (in_left(in) >= n) {
        const uint8_t *p = in->p;
        for (uint32_t most = STK_MIN(n_expert, 0x7fu); i < n && *p <= most; i++) ids[i] = (uint16_t)(*p++ - 1);
        in->p = p;
    }
    for (; i < n; i++) ids[i] = (uint16_t)(get_u32(in, n_expert) - 1); /* 0 becomes STK_NO_EXPERT */
    return !in->bad;
}

/* The counts of the event are in *e; memory for its arrays follows them once the bytes for them are known to be there. */
static int size_event(stk_trace_reader *r, const stk_event *e, uint8_t flags) {
    size_t n_id = (size_t)e->n_tok * e->k, n_top = (size_t)e->n_tok * e->n_top;
    size_t least = n_top * 5; /* an id and a score */
    if (!(flags & TRACE_IDS_ARE_TOP)) least += n_id;
    if ((flags & TRACE_WEIGHTS_MASK) == TRACE_WEIGHTS_STORED) least += n_id * 4;
    if (least > in_left(&r->in)) return malformed(r, "an event is cut short");
    STK_TRY(grow(&r->ids, n_id, sizeof(uint16_t)));
    STK_TRY(grow(&r->weights, n_id, sizeof(float)));
    STK_TRY(grow(&r->top_ids, n_top, sizeof(uint16_t)));
    return grow(&r->top_scores, n_top, sizeof(float));
}

static int get_event_head(stk_trace_reader *r, stk_event *e, uint8_t *flags) {
    const stk_trace_header *h = &r->header;
    trace_in *in = &r->in;
    if (!r->have_step) return malformed(r, "an event without its step");
    get_bytes(in, flags, 1);
    stk_event_clear(e);
    e->step = r->step.step;
    e->n_tok = r->step.n_tok;
    e->seq = r->step.seq;
    e->pos = r->step.pos;
    e->token = r->step.token;
    e->layer = get_u32(in, h->n_layer - 1);
    e->n_expert = get_u32(in, h->n_expert);
    e->k = get_u32(in, STK_MIN(h->k, e->n_expert));
    e->n_top = get_u32(in, e->n_expert);
    bool top = *flags & TRACE_IDS_ARE_TOP, from_scores = (*flags & TRACE_WEIGHTS_MASK) >= TRACE_WEIGHTS_SCORES;
    if (in->bad || *flags & ~TRACE_FLAGS_MASK || !e->k || (top && e->n_top < e->k) || (from_scores && !top))
        return malformed(r, "an event that does not fit the header");
    return size_event(r, e, *flags);
}

static void derive_weights(const stk_event *e, float *weights, bool normed) {
    for (uint32_t t = 0; t < e->n_tok; t++) {
        const float *score = e->top_scores + (size_t)t * e->n_top;
        float sum = 0.0f;
        for (uint32_t i = 0; i < e->k; i++) sum += score[i];
        for (uint32_t i = 0; i < e->k; i++) weights[(size_t)t * e->k + i] = normed ? score[i] / sum : score[i];
    }
}

static int get_event(stk_trace_reader *r, stk_event *e) {
    uint8_t flags = 0;
    STK_TRY(get_event_head(r, e, &flags));
    trace_in *in = &r->in;
    size_t n_id = (size_t)e->n_tok * e->k, n_top = (size_t)e->n_tok * e->n_top;
    uint16_t *ids = r->ids.data, *top_ids = r->top_ids.data;
    float *weights = r->weights.data, *top_scores = r->top_scores.data;
    bool top = flags & TRACE_IDS_ARE_TOP;
    if (!top && !get_ids(in, ids, n_id, e->n_expert)) return malformed(r, "an event's expert does not exist");
    if (!get_ids(in, top_ids, n_top, e->n_expert)) return malformed(r, "an event's scored expert does not exist");
    for (uint32_t t = 0; top && t < e->n_tok; t++)
        memcpy(ids + (size_t)t * e->k, top_ids + (size_t)t * e->n_top, e->k * sizeof *ids);
    if ((flags & TRACE_WEIGHTS_MASK) == TRACE_WEIGHTS_STORED) get_bytes(in, weights, n_id * sizeof *weights);
    if (n_top) get_bytes(in, top_scores, n_top * sizeof *top_scores);
    if (in->bad) return malformed(r, "an event is cut short");
    e->ids = ids;
    if (n_top) {
        e->top_ids = top_ids;
        e->top_scores = top_scores;
    }
    if ((flags & TRACE_WEIGHTS_MASK) >= TRACE_WEIGHTS_SCORES)
        derive_weights(e, weights, (flags & TRACE_WEIGHTS_MASK) == TRACE_WEIGHTS_NORMED);
    if ((flags & TRACE_WEIGHTS_MASK) != TRACE_WEIGHTS_NONE) e->weights = weights;
    stk_trace_count(&r->count, e);
    return 0;
}

static void get_end(trace_in *in, stk_trace_end *e, bool tier) {
    uint64_t *const numbers[] = {&e->n_event, &e->n_lookup, &e->n_pair, &e->n_hit,      &e->n_miss,
                                 &e->n_evict, &e->n_wave,   &e->bytes,  &e->read_bytes, &e->cache_hash};
    uint64_t *const of_tier[] = {&e->n_vram_hit, &e->n_fetch, &e->n_return, &e->vram_hash};
    for (size_t i = 0; i < STK_ARRAY_LEN(numbers); i++) *numbers[i] = get_varint(in);
    for (size_t i = 0; i < STK_ARRAY_LEN(of_tier); i++) *of_tier[i] = tier ? get_varint(in) : 0;
}

/* Entries take a byte each, and what is allocated is in proportion to what is there; so below. */
static int get_place(stk_trace_reader *r, stk_trace_place *a) {
    trace_in *in = &r->in;
    uint32_t n = a->n = get_u32(in, r->header.n_expert);
    if (in->bad || n > in_left(in)) return malformed(r, "cut short or out of range");
    STK_TRY(grow(&r->place, n, sizeof(stk_placed)));
    stk_placed *list = r->place.data;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t x = get_varint(in);
        list[i] = (stk_placed){(uint32_t)(x >> 1), x & 1};
        if (x >> 1 >= (uint64_t)r->header.n_layer * r->header.n_expert) in_fail(in);
    }
    a->list = list;
    return 0;
}

static int get_moved(stk_trace_reader *r, stk_trace_moved *a) {
    trace_in *in = &r->in;
    uint32_t n = a->n = get_u32(in, r->header.n_expert);
    if (in->bad || n > in_left(in)) return malformed(r, "cut short or out of range");
    STK_TRY(grow(&r->place, n, 1));
    if (n) get_bytes(in, r->place.data, n);
    a->list = r->place.data;
    return 0;
}

/* Entries take at least two bytes each, so what is allocated is in proportion to what is there. */
static int get_ahead(stk_trace_reader *r, stk_trace_ahead *a) {
    trace_in *in = &r->in;
    uint32_t n = a->n = get_u32(in, STK_TRACE_AHEAD_MAX * r->header.n_expert);
    if (in->bad || n > in_left(in) / 2) return malformed(r, "cut short or out of range");
    STK_TRY(grow(&r->ahead, n, sizeof(stk_ahead)));
    stk_ahead *list = r->ahead.data;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t p = 0;
        list[i].key = get_u32(in, r->header.n_layer * r->header.n_expert - 1);
        get_bytes(in, &p, 1);
        list[i].p = (float)(p >> 1) / 127.0f;
        list[i].issue = p & 1;
    }
    a->list = list;
    return 0;
}

static int get_resize(stk_trace_reader *r, stk_trace_resize *out) {
    trace_in *in = &r->in;
    uint32_t n = r->header.n_class;
    out->ram_bytes = get_varint(in);
    if (in->bad || n > in_left(in) / 2) return malformed(r, "cut short or out of range");
    STK_TRY(grow(&r->slots, n, sizeof(stk_trace_slots)));
    stk_trace_slots *slots = r->slots.data;
    for (uint32_t i = 0; i < n; i++) {
        slots[i].n_slot = get_u32(in, INT32_MAX);
        slots[i].n_transit = get_u32(in, INT32_MAX);
    }
    out->classes = slots;
    return 0;
}

static void get_switch(trace_in *in, stk_trace_switch *out) {
    uint8_t bytes[2] = {0, 0};
    get_bytes(in, bytes, sizeof bytes);
    if (bytes[0] > STK_TECHNIQUE_MAX || bytes[1] > 1) in_fail(in);
    *out = (stk_trace_switch){bytes[0], bytes[1] != 0};
}

/* Decodes one record; 0 for one that is not the caller's. */
static int get_record(stk_trace_reader *r, stk_trace_record *out) {
    trace_in *in = &r->in;
    uint8_t tag;
    uint64_t check;
    r->record = in->p;
    get_bytes(in, &tag, 1);
    switch (tag) {
    case TRACE_TAG_STEP_AGAIN:
        STK_TRY(get_step(r, &check));
        return check == r->step_check ? 0 : malformed(r, "repeats a step that was not the latest");
    case TRACE_TAG_STEP:
        STK_TRY(get_step(r, &r->step_check));
        out->kind = STK_TRACE_STEP;
        out->step = r->step;
        break;
    case TRACE_TAG_EVENT:
        out->kind = STK_TRACE_EVENT;
        STK_TRY(get_event(r, &out->event));
        break;
    case TRACE_TAG_AHEAD:
        out->kind = STK_TRACE_AHEAD;
        STK_TRY(get_ahead(r, &out->ahead));
        break;
    case TRACE_TAG_PLACE:
        out->kind = STK_TRACE_PLACE;
        STK_TRY(get_place(r, &out->place));
        break;
    case TRACE_TAG_MOVED:
        out->kind = STK_TRACE_MOVED;
        STK_TRY(get_moved(r, &out->moved));
        break;
    case TRACE_TAG_DROP:
        out->kind = STK_TRACE_DROP;
        out->drop_key = get_u32(in, r->header.n_layer * r->header.n_expert - 1);
        break;
    case TRACE_TAG_RESIZE:
        out->kind = STK_TRACE_RESIZE;
        STK_TRY(get_resize(r, &out->resize));
        break;
    case TRACE_TAG_SWITCH:
        out->kind = STK_TRACE_SWITCH;
        get_switch(in, &out->toggle);
        break;
    case TRACE_TAG_CLEAR: out->kind = STK_TRACE_CLEAR; break;
    case TRACE_TAG_ABORT: *out = (stk_trace_record){.kind = STK_TRACE_ABORT, .abort_step = get_varint(in)}; break;
    case TRACE_TAG_COST:
        out->kind = STK_TRACE_COST;
        get_bytes(in, out->cost, sizeof out->cost);
        break;
    case TRACE_TAG_END:
        out->kind = STK_TRACE_END;
        get_end(in, &out->end, r->header.vram_slots != NULL);
        r->ended = true;
        break;
    default: return malformed(r, "of no known kind");
    }
    return in->bad ? malformed(r, "cut short or out of range") : 1;
}

/* Nothing may follow the END record. */
static int check_end(stk_trace_reader *r) {
    uint8_t byte;
    size_t got = 0;
    if (!in_left(&r->in)) STK_TRY(read_some(r, &byte, 1, &got));
    if (!got && !in_left(&r->in)) return 0;
    return stk_fail(STK_EFORMAT, "byte %llu: more after the end record", (unsigned long long)r->offset - got);
}

static int read_record(stk_trace_reader *r, stk_trace_record *record) {
    if (r->ended) return check_end(r);
    if (r->cut) return 0;
    int rc = 0;
    while (rc == 0) {
        if (!in_left(&r->in)) {
            rc = next_frame(r);
            r->cut = rc == 0;
            if (rc <= 0) return rc;
        }
        rc = get_record(r, record);
    }
    return rc;
}

/* Puts the file's name in front and keeps a failure for later calls. */
static int fail_for_good(stk_trace_reader *r, int rc) {
    r->error = stk_fail_in(rc, "trace %s", r->path);
    strncpy(r->detail, stk_error_detail(), sizeof r->detail - 1);
    return rc;
}

int stk_trace_read(stk_trace_reader *r, stk_trace_record *record) {
    if (r->error) return stk_fail(r->error, "%s", r->detail);
    int rc = read_record(r, record);
    return rc < 0 ? fail_for_good(r, rc) : rc;
}

/* ---- Open and close ----------------------------------------------------------------------------------------------------- */

static int read_header(stk_trace_reader *r) {
    uint8_t prefix[TRACE_PREFIX_BYTES];
    size_t got;
    STK_TRY(read_some(r, prefix, sizeof prefix, &got));
    if (got < sizeof prefix) return stk_fail(STK_EFORMAT, "only %zu bytes: not a trace", got);
    STK_TRY(stk_trace_prefix_check(prefix));
    r->raw_most = TRACE_MAX_HEADER_BYTES;
    int rc = next_frame(r);
    if (rc < 0) return rc;
    if (rc == 0) return stk_fail(STK_EFORMAT, "cut off within the header, at byte %llu", (unsigned long long)r->offset);
    rc = stk_trace_header_get(r->in.p, in_left(&r->in), &r->header);
    if (rc < 0) return stk_fail_in(rc, "frame at byte %llu", (unsigned long long)r->frame_offset);
    r->in.p = r->in.end;
    r->raw_most = TRACE_FRAME_BYTES + 2 * stk_trace_record_bytes(&r->header);
    return 0;
}

static int open_reader(stk_trace_reader *r) {
    struct stat st;
    r->zstd = ZSTD_createDCtx();
    if (!r->zstd) return stk_fail(STK_ENOMEM, "out of memory");
    r->fd = open(r->path, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0 || fstat(r->fd, &st) < 0) return stk_fail_errno(errno, "cannot open it");
    if (S_ISREG(st.st_mode)) r->total = (uint64_t)st.st_size;
    STK_TRY(read_header(r));
    return stk_trace_count_open(&r->count, r->header.n_expert);
}

int stk_trace_reader_open(stk_trace_reader **out, const char *path) {
    *out = NULL;
    stk_trace_reader *r = calloc(1, sizeof *r);
    if (!r) return stk_fail(STK_ENOMEM, "trace %s: out of memory", path);
    r->fd = -1;
    r->path = strdup(path);
    int rc = r->path ? open_reader(r) : stk_fail(STK_ENOMEM, "out of memory");
    if (rc < 0) {
        rc = stk_fail_in(rc, "trace %s", path);
        stk_trace_reader_close(&r);
    }
    *out = r;
    return rc;
}

void stk_trace_reader_close(stk_trace_reader **reader) {
    stk_trace_reader *r = *reader;
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    ZSTD_freeDCtx(r->zstd);
    stk_trace_header_free(&r->header);
    const array *const arrays[] = {&r->packed,  &r->raw,     &r->seq,        &r->pos,   &r->token, &r->logits, &r->ids,
                                   &r->weights, &r->top_ids, &r->top_scores, &r->ahead, &r->slots, &r->place};
    for (size_t i = 0; i < STK_ARRAY_LEN(arrays); i++) free(arrays[i]->data);
    stk_trace_count_close(&r->count);
    free(r->path);
    free(r);
    *reader = NULL;
}

const stk_trace_header *stk_trace_reader_header(const stk_trace_reader *r) { return &r->header; }

bool stk_trace_reader_cut(const stk_trace_reader *r) { return r->cut; }

void stk_trace_reader_progress(const stk_trace_reader *r, uint64_t *done, uint64_t *total) {
    *done = r->offset;
    *total = r->total;
}
