/*
 * trace_write: records are encoded into a buffer; a full buffer, or one whose first record is a second old, becomes a frame:
 * compressed, checked, written by one call. All memory is taken at open.
 *
 * The zstd context is fed as a stream of unknown length, because its memory then depends on the level alone: told the length,
 * it would size its tables anew for each frame.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include "src/numeric.h"
#include "traces/trace_format.h"

enum { LEVEL = 1, DETAIL_BYTES = 512 };
#define FRAME_NS 1000000000u

struct stk_trace_writer {
    int fd;
    char *path;
    uint64_t offset; /* bytes written */
    ZSTD_CCtx *zstd;

    uint32_t n_layer, n_expert, k, n_batch, n_class;
    bool tier;           /* a run with a tier on a device */
    bool made;           /* the file was not there before, or had nothing in it any more */
    size_t record_bytes; /* of the largest record */

    uint8_t *raw; /* [raw_cap] the frame under construction */
    size_t raw_bytes;
    uint64_t raw_since_ns; /* its first record */
    uint8_t *packed;       /* [packed_cap] a head and a packed frame */
    size_t packed_cap;

    uint8_t *step;     /* [record_bytes] the running step, encoded without its tag */
    size_t step_bytes; /* 0: none yet */
    bool step_in_raw;  /* the frame under construction has it */
    uint64_t step_number;
    uint32_t step_n_tok;

    bool ended;
    int error; /* of the first failed write; nothing is written after it */
    char detail[DETAIL_BYTES];
};

/* ---- Output ------------------------------------------------------------------------------------------------------------- */

/* As write(2), but a closed pipe or a file-size limit gives an error and no signal. */
static ssize_t write_quietly(int fd, const void *data, size_t bytes) {
    sigset_t quiet, before, pending;
    sigemptyset(&quiet);
    sigaddset(&quiet, SIGPIPE);
    sigaddset(&quiet, SIGXFSZ);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &quiet, &before);
    ssize_t n = write(fd, data, bytes);
    int errnum = errno;
    int sig = n >= 0 ? 0 : errnum == EPIPE ? SIGPIPE : errnum == EFBIG ? SIGXFSZ : 0;
    if (sig && !sigismember(&pending, sig)) { /* ours: take it off before it is unblocked */
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, sig);
        while (sigtimedwait(&one, NULL, &(struct timespec){0, 0}) < 0 && errno == EINTR) {
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = errnum;
    return n;
}

static int write_all(stk_trace_writer *w, const uint8_t *data, size_t bytes) {
    while (bytes) {
        ssize_t n = write_quietly(w->fd, data, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return stk_fail_errno(errno, "trace %s: write at byte %llu", w->path, (unsigned long long)w->offset);
        data += n;
        bytes -= (size_t)n;
        w->offset += (uint64_t)n;
    }
    return 0;
}

static int pack(stk_trace_writer *w, const uint8_t *raw, size_t raw_bytes, size_t *packed_bytes) {
    ZSTD_inBuffer in = {raw, raw_bytes, 0};
    ZSTD_outBuffer out = {w->packed + TRACE_HEAD_BYTES, w->packed_cap - TRACE_HEAD_BYTES, 0};
    size_t left = 0;
    while (in.pos < in.size && !ZSTD_isError(left)) left = ZSTD_compressStream2(w->zstd, &out, &in, ZSTD_e_continue);
    if (!ZSTD_isError(left)) do {
            left = ZSTD_compressStream2(w->zstd, &out, &in, ZSTD_e_end);
        } while (left && !ZSTD_isError(left) && out.pos < out.size);
    *packed_bytes = out.pos;
    if (ZSTD_isError(left)) return stk_fail(STK_EIO, "trace %s: zstd: %s", w->path, ZSTD_getErrorName(left));
    if (left) return stk_fail(STK_EIO, "trace %s: zstd needs more room than it said", w->path);
    return 0;
}

/* Remembers a failure for every later call. */
static int fail_for_good(stk_trace_writer *w, int rc) {
    w->error = rc;
    snprintf(w->detail, sizeof w->detail, "%s", stk_error_detail());
    return rc;
}

static int write_frame(stk_trace_writer *w, const uint8_t *raw, size_t raw_bytes) {
    size_t packed_bytes;
    int rc = pack(w, raw, raw_bytes, &packed_bytes);
    if (rc < 0) return fail_for_good(w, rc);
    const trace_head head = {(uint32_t)packed_bytes, (uint32_t)raw_bytes,
                             stk_trace_check(w->packed + TRACE_HEAD_BYTES, packed_bytes)};
    stk_trace_head_put(w->packed, &head);
    rc = write_all(w, w->packed, TRACE_HEAD_BYTES + packed_bytes);
    return rc < 0 ? fail_for_good(w, rc) : rc;
}

static int flush(stk_trace_writer *w) {
    if (!w->raw_bytes) return 0;
    size_t raw_bytes = w->raw_bytes;
    w->raw_bytes = 0;
    w->step_in_raw = false;
    return write_frame(w, w->raw, raw_bytes);
}

/* ---- Records ------------------------------------------------------------------------------------------------------------ */

static uint8_t *put_step(uint8_t *p, const stk_trace_step *s) {
    p = put_varint(p, s->step);
    p = put_varint(p, s->n_tok);
    int32_t seq = 0, pos = -1;
    for (uint32_t i = 0; i < s->n_tok; i++) {
        p = put_varint(p, zigzag((uint64_t)s->seq[i] - (uint64_t)seq));
        p = put_varint(p, zigzag((uint64_t)s->pos[i] - (uint64_t)pos - 1));
        p = put_varint(p, zigzag((uint64_t)s->token[i]));
        seq = s->seq[i];
        pos = s->pos[i];
    }
    for (uint32_t i = 0; i < s->n_tok; i += 8) {
        uint8_t bits = 0;
        for (uint32_t j = i; j < STK_MIN(i + 8, s->n_tok); j++) bits |= (uint8_t)((s->logits[j] != 0) << (j - i));
        *p++ = bits;
    }
    return p;
}

static uint8_t *put_ids(uint8_t *p, const uint16_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) p = put_varint(p, (uint16_t)(ids[i] + 1)); /* STK_NO_EXPERT becomes 0 */
    return p;
}

static bool ids_are_top(const stk_event *e) {
    if (e->n_top < e->k) return false;
    for (uint32_t t = 0; t < e->n_tok; t++)
        if (memcmp(e->ids + (size_t)t * e->k, e->top_ids + (size_t)t * e->n_top, e->k * sizeof *e->ids) != 0) return false;
    return true;
}

/* Whether the reader can work out the weights, bit for bit, from the scores of the first k. */
static bool weights_follow(const stk_event *e, bool normed) {
    for (uint32_t t = 0; t < e->n_tok; t++) {
        const float *score = e->top_scores + (size_t)t * e->n_top, *weight = e->weights + (size_t)t * e->k;
        float sum = 0.0f;
        for (uint32_t i = 0; normed && i < e->k; i++) sum += score[i];
        for (uint32_t i = 0; i < e->k; i++)
            if (stk_f32_bits(weight[i]) != stk_f32_bits(normed ? score[i] / sum : score[i])) return false;
    }
    return true;
}

static uint8_t event_flags(const stk_event *e) {
    bool top = ids_are_top(e);
    uint8_t weights = TRACE_WEIGHTS_STORED;
    if (!e->weights)
        weights = TRACE_WEIGHTS_NONE;
    else if (top && weights_follow(e, true))
        weights = TRACE_WEIGHTS_NORMED;
    else if (top && weights_follow(e, false))
        weights = TRACE_WEIGHTS_SCORES;
    return weights | (top ? TRACE_IDS_ARE_TOP : 0);
}

static uint8_t *put_event(uint8_t *p, const stk_event *e) {
    size_t n_id = (size_t)e->n_tok * e->k, n_top = (size_t)e->n_tok * e->n_top;
    uint8_t flags = event_flags(e);
    *p++ = flags;
    p = put_varint(p, e->layer);
    p = put_varint(p, e->n_expert);
    p = put_varint(p, e->k);
    p = put_varint(p, e->n_top);
    if (!(flags & TRACE_IDS_ARE_TOP)) p = put_ids(p, e->ids, n_id);
    p = put_ids(p, e->top_ids, n_top);
    if ((flags & TRACE_WEIGHTS_MASK) == TRACE_WEIGHTS_STORED) p = put_bytes(p, e->weights, n_id * sizeof(float));
    return n_top ? put_bytes(p, e->top_scores, n_top * sizeof(float)) : p;
}

static uint8_t *put_end(uint8_t *p, const stk_trace_end *e, bool tier) {
    const uint64_t numbers[] = {e->n_event, e->n_lookup, e->n_pair, e->n_hit,      e->n_miss,
                                e->n_evict, e->n_wave,   e->bytes,  e->read_bytes, e->cache_hash};
    const uint64_t of_tier[] = {e->n_vram_hit, e->n_fetch, e->n_return, e->vram_hash};
    for (size_t i = 0; i < STK_ARRAY_LEN(numbers); i++) p = put_varint(p, numbers[i]);
    for (size_t i = 0; tier && i < STK_ARRAY_LEN(of_tier); i++) p = put_varint(p, of_tier[i]);
    return p;
}

static bool ids_in_range(const uint16_t *ids, size_t n, uint32_t n_expert) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= n_expert && ids[i] != STK_NO_EXPERT) return false;
    return true;
}

/* What a reader would refuse must not be written. */
static int check_event(const stk_trace_writer *w, const stk_event *e) {
    if (!w->step_bytes || e->step != w->step_number || e->n_tok != w->step_n_tok)
        return stk_fail(STK_EINVAL, "trace %s: an event of step %llu (%u tokens) outside of it", w->path,
                        (unsigned long long)e->step, e->n_tok);
    if (e->layer >= w->n_layer || !e->k || e->k > w->k || e->n_expert > w->n_expert || e->k > e->n_expert ||
        e->n_top > e->n_expert)
        return stk_fail(STK_EINVAL, "trace %s: an event of layer %u, %u of %u experts, %u scored, does not fit the header",
                        w->path, e->layer, e->k, e->n_expert, e->n_top);
    if (!ids_in_range(e->ids, (size_t)e->n_tok * e->k, e->n_expert) ||
        !ids_in_range(e->top_ids, (size_t)e->n_tok * e->n_top, e->n_expert))
        return stk_fail(STK_EINVAL, "trace %s: an event of layer %u with an expert of %u or above", w->path, e->layer,
                        e->n_expert);
    return 0;
}

static int check_ahead(const stk_trace_writer *w, const stk_trace_ahead *a) {
    if (a->n > STK_TRACE_AHEAD_MAX * w->n_expert)
        return stk_fail(STK_EINVAL, "trace %s: %u experts are said to come, at most %u can be", w->path, a->n,
                        STK_TRACE_AHEAD_MAX * w->n_expert);
    for (uint32_t i = 0; i < a->n; i++)
        if (a->list[i].key >= w->n_layer * w->n_expert || !(a->list[i].p >= 0 && a->list[i].p <= 1))
            return stk_fail(STK_EINVAL, "trace %s: expert %u of %u is said to come with probability %g", w->path, a->list[i].key,
                            w->n_layer * w->n_expert, (double)a->list[i].p);
    return 0;
}

static int check_place(const stk_trace_writer *w, const stk_trace_place *a) {
    if (a->n > w->n_expert)
        return stk_fail(STK_EINVAL, "trace %s: %u experts are placed, a layer has %u", w->path, a->n, w->n_expert);
    for (uint32_t i = 0; i < a->n; i++)
        if (a->list[i].key >= w->n_layer * w->n_expert || a->list[i].where > STK_PLACED_HOST)
            return stk_fail(STK_EINVAL, "trace %s: expert %u of %u is placed at %u", w->path, a->list[i].key,
                            w->n_layer * w->n_expert, a->list[i].where);
    return 0;
}

static int check_record(const stk_trace_writer *w, const stk_trace_record *r) {
    if (w->ended) return stk_fail(STK_ESTATE, "trace %s: a record after the end", w->path);
    switch (r->kind) {
    case STK_TRACE_STEP:
        if (r->step.n_tok && r->step.n_tok <= w->n_batch) return 0;
        return stk_fail(STK_EINVAL, "trace %s: a step of %u tokens, the header allows 1 .. %u", w->path, r->step.n_tok,
                        w->n_batch);
    case STK_TRACE_EVENT: return check_event(w, &r->event);
    case STK_TRACE_AHEAD: return check_ahead(w, &r->ahead);
    case STK_TRACE_PLACE: return check_place(w, &r->place);
    case STK_TRACE_MOVED:
        if (r->moved.n <= w->n_expert) return 0;
        return stk_fail(STK_EINVAL, "trace %s: %u experts moved of %u", w->path, r->moved.n, w->n_expert);
    case STK_TRACE_DROP:
        if (r->drop_key < w->n_layer * w->n_expert) return 0;
        return stk_fail(STK_EINVAL, "trace %s: expert %u dropped of %u", w->path, r->drop_key, w->n_layer * w->n_expert);
    case STK_TRACE_SWITCH:
        if (r->toggle.technique <= STK_TECHNIQUE_MAX) return 0;
        return stk_fail(STK_EINVAL, "trace %s: technique %u of %d", w->path, r->toggle.technique, STK_TECHNIQUE_MAX);
    case STK_TRACE_RESIZE:
    case STK_TRACE_CLEAR:
    case STK_TRACE_ABORT:
    case STK_TRACE_COST:
    case STK_TRACE_END: return 0;
    }
    return stk_fail(STK_EINVAL, "trace %s: a record of kind %d", w->path, (int)r->kind);
}

static uint8_t *put_ahead(uint8_t *p, const stk_trace_ahead *a) {
    p = put_varint(p, a->n);
    for (uint32_t i = 0; i < a->n; i++) {
        p = put_varint(p, a->list[i].key);
        *p++ = (uint8_t)((unsigned)(a->list[i].p * 127.0f + 0.5f) << 1 | a->list[i].issue);
    }
    return p;
}

static uint8_t *put_place(uint8_t *p, const stk_trace_place *a) {
    p = put_varint(p, a->n);
    for (uint32_t i = 0; i < a->n; i++) p = put_varint(p, (uint64_t)a->list[i].key << 1 | a->list[i].where);
    return p;
}

static uint8_t *put_resize(const stk_trace_writer *w, uint8_t *p, const stk_trace_resize *r) {
    p = put_varint(p, r->ram_bytes);
    for (uint32_t i = 0; i < w->n_class; i++) {
        p = put_varint(p, r->classes[i].n_slot);
        p = put_varint(p, r->classes[i].n_transit);
    }
    return p;
}

static uint8_t *put_record(stk_trace_writer *w, uint8_t *p, const stk_trace_record *r) {
    switch (r->kind) {
    case STK_TRACE_STEP:
        w->step_bytes = (size_t)(put_step(w->step, &r->step) - w->step);
        w->step_number = r->step.step;
        w->step_n_tok = r->step.n_tok;
        w->step_in_raw = true;
        *p++ = TRACE_TAG_STEP;
        return put_bytes(p, w->step, w->step_bytes);
    case STK_TRACE_EVENT:
        if (!w->step_in_raw) { /* a frame is readable by itself */
            *p++ = TRACE_TAG_STEP_AGAIN;
            p = put_bytes(p, w->step, w->step_bytes);
            w->step_in_raw = true;
        }
        *p++ = TRACE_TAG_EVENT;
        return put_event(p, &r->event);
    case STK_TRACE_AHEAD: *p++ = TRACE_TAG_AHEAD; return put_ahead(p, &r->ahead);
    case STK_TRACE_PLACE: *p++ = TRACE_TAG_PLACE; return put_place(p, &r->place);
    case STK_TRACE_MOVED: *p++ = TRACE_TAG_MOVED; return put_bytes(put_varint(p, r->moved.n), r->moved.list, r->moved.n);
    case STK_TRACE_DROP: *p++ = TRACE_TAG_DROP; return put_varint(p, r->drop_key);
    case STK_TRACE_RESIZE: *p++ = TRACE_TAG_RESIZE; return put_resize(w, p, &r->resize);
    case STK_TRACE_SWITCH:
        *p++ = TRACE_TAG_SWITCH;
        *p++ = (uint8_t)r->toggle.technique;
        *p++ = r->toggle.on;
        return p;
    case STK_TRACE_CLEAR: *p++ = TRACE_TAG_CLEAR; return p;
    case STK_TRACE_ABORT: *p++ = TRACE_TAG_ABORT; return put_varint(p, r->abort_step);
    case STK_TRACE_COST: *p++ = TRACE_TAG_COST; return put_bytes(p, r->cost, sizeof r->cost);
    case STK_TRACE_END: *p++ = TRACE_TAG_END; return put_end(p, &r->end, w->tier);
    }
    return p; /* check_record refuses other kinds */
}

int stk_trace_write(stk_trace_writer *w, const stk_trace_record *record) {
    if (w->error) return stk_fail(w->error, "%s", w->detail);
    STK_TRY(check_record(w, record));
    uint64_t now_ns = stk_now_ns();
    if (!w->raw_bytes) w->raw_since_ns = now_ns;
    w->raw_bytes = (size_t)(put_record(w, w->raw + w->raw_bytes, record) - w->raw);
    w->ended = record->kind == STK_TRACE_END;
    bool full = w->raw_bytes >= TRACE_FRAME_BYTES || now_ns - w->raw_since_ns >= FRAME_NS || w->ended;
    return full ? flush(w) : 0;
}

/* ---- Open and close ----------------------------------------------------------------------------------------------------- */

static void free_writer(stk_trace_writer *w) {
    if (w->fd >= 0) close(w->fd);
    ZSTD_freeCCtx(w->zstd);
    free(w->path);
    free(w->raw);
    free(w->packed);
    free(w->step);
    free(w);
}

static int take_memory(stk_trace_writer *w, const char *path, size_t header_bytes) {
    /* A frame that is not yet full, a repeated step and one more record; the header passes through the same buffers. */
    size_t raw_cap = STK_MAX(TRACE_FRAME_BYTES + 2 * w->record_bytes, header_bytes);
    w->packed_cap = TRACE_HEAD_BYTES + ZSTD_compressBound(raw_cap) + 64;
    w->path = strdup(path);
    w->raw = malloc(raw_cap);
    w->packed = malloc(w->packed_cap);
    w->step = malloc(w->record_bytes);
    w->zstd = ZSTD_createCCtx();
    if (!w->path || !w->raw || !w->packed || !w->step || !w->zstd)
        return stk_fail(STK_ENOMEM, "trace %s: out of memory for a buffer of %zu bytes", path, raw_cap);
    size_t rc = ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_compressionLevel, LEVEL);
    if (!ZSTD_isError(rc)) rc = ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_checksumFlag, 1);
    return ZSTD_isError(rc) ? stk_fail(STK_EINVAL, "trace %s: zstd: %s", path, ZSTD_getErrorName(rc)) : 0;
}

/* Two runs that wrote to one file would leave neither's trace. */
static int create_file(stk_trace_writer *w) {
    struct stat st;
    w->fd = open(w->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (w->fd < 0) return stk_fail_errno(errno, "trace %s: cannot create it", w->path);
    if (fstat(w->fd, &st) < 0 || !S_ISREG(st.st_mode)) return 0;
    if (flock(w->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        return stk_fail(STK_ESTATE, "trace %s: another run is writing it; name another file", w->path);
    if (ftruncate(w->fd, 0) < 0) return stk_fail_errno(errno, "trace %s: cannot empty it", w->path);
    w->made = true;
    return 0;
}

static int begin_file(stk_trace_writer *w, const stk_trace_header *header) {
    STK_TRY(create_file(w));
    uint8_t prefix[TRACE_PREFIX_BYTES];
    stk_trace_prefix_put(prefix);
    STK_TRY(write_all(w, prefix, sizeof prefix));
    return write_frame(w, w->raw, stk_trace_header_put(w->raw, header));
}

int stk_trace_writer_open(stk_trace_writer **out, const char *path, const stk_trace_header *header) {
    *out = NULL;
    int rc = stk_trace_header_check(header);
    if (rc < 0) return stk_fail_in(rc, "trace %s", path);
    stk_trace_writer *w = calloc(1, sizeof *w);
    if (!w) return stk_fail(STK_ENOMEM, "trace %s: out of memory", path);
    w->fd = -1;
    w->n_layer = header->n_layer;
    w->n_expert = header->n_expert;
    w->k = header->k;
    w->n_batch = header->n_batch;
    w->n_class = header->n_class;
    w->tier = header->vram_slots != NULL;
    w->record_bytes = stk_trace_record_bytes(header);
    STK_TRYGOTO(take_memory(w, path, stk_trace_header_bytes(header)), rc, out);
    STK_TRYGOTO(begin_file(w, header), rc, out);
    *out = w;
    return 0;
out:
    if (w->made && unlink(w->path) < 0) stk_log(STK_LOG_DEBUG, "trace %s: it has no header and cannot be removed", path);
    free_writer(w);
    return rc;
}

int stk_trace_writer_close(stk_trace_writer **writer) {
    stk_trace_writer *w = *writer;
    if (!w) return 0;
    *writer = NULL;
    int rc = w->error ? stk_fail(w->error, "%s", w->detail) : flush(w);
    if (close(w->fd) < 0 && rc >= 0) rc = stk_fail_errno(errno, "trace %s: close", w->path);
    w->fd = -1;
    free_writer(w);
    return rc;
}
