/*
 * trace_format: the bytes of a trace, as traces/README.md draws them: prefix, frame heads, the header's content, numbers, and
 * the limits that bound what a reader allocates.
 *
 * Who may call it: traces/ and its tests. Pure.
 */
#ifndef STK_TRACE_FORMAT_H
#define STK_TRACE_FORMAT_H

#include <string.h>

#include "traces/trace.h"

enum {
    TRACE_VERSION = 2, /* 1 is read, too: it has no start state */
    TRACE_PREFIX_BYTES = 16,
    TRACE_HEAD_BYTES = 20,
    TRACE_FRAME_BYTES = 64 << 10, /* a frame is closed once it holds this much */
    TRACE_VARINT_BYTES = 10,      /* at most */
};

/* Limits of a header: far above any model, and low enough that memory in proportion does no harm. */
enum {
    TRACE_MAX_LAYER = 1 << 16,
    TRACE_MAX_EXPERT = STK_NO_EXPERT - 1,
    TRACE_MAX_CLASS = 1 << 16,
    TRACE_MAX_BATCH = 1 << 20,
    TRACE_MAX_EXTENT = 1 << 20,
    TRACE_MAX_TEXT = 1 << 14,
    TRACE_MAX_STATE = 64 << 20,
    TRACE_MAX_HEADER_BYTES = 104 << 20, /* encoded; holds for every header within the other limits */
    TRACE_MAX_RECORD_BYTES = 256 << 20,
};

/* What stands in front of a record. */
enum trace_tag {
    TRACE_TAG_STEP = 1,
    TRACE_TAG_EVENT,
    TRACE_TAG_DROP,
    TRACE_TAG_ABORT,
    TRACE_TAG_COST,
    TRACE_TAG_END,
    TRACE_TAG_STEP_AGAIN, /* the running step, for a frame that begins within it; not returned to the reader's caller */
    TRACE_TAG_CLEAR,
    TRACE_TAG_AHEAD,
    TRACE_TAG_RESIZE,
    TRACE_TAG_SWITCH,
    TRACE_TAG_PLACE = 20,
    TRACE_TAG_MOVED,
};

/* Flags of an event. */
enum {
    TRACE_WEIGHTS_NONE = 0,
    TRACE_WEIGHTS_STORED = 1,
    TRACE_WEIGHTS_SCORES = 2, /* those of the chosen experts */
    TRACE_WEIGHTS_NORMED = 3, /* the same over their sum, added up in rank order in f32 */
    TRACE_WEIGHTS_MASK = 3,
    TRACE_IDS_ARE_TOP = 4, /* ids are the first k of top_ids */
    TRACE_FLAGS_MASK = 7,
};

/* ---- Prefix and frames -------------------------------------------------------------------------------------------------- */

void stk_trace_prefix_put(uint8_t prefix[TRACE_PREFIX_BYTES]);
/* STK_EFORMAT (no trace, or damaged), STK_EUNSUPPORTED (another version). */
int stk_trace_prefix_check(const uint8_t prefix[TRACE_PREFIX_BYTES]) STK_CHECKED;

typedef struct trace_head {
    uint32_t packed_bytes, raw_bytes;
    uint64_t packed_check; /* stk_trace_check of the packed bytes */
} trace_head;

void stk_trace_head_put(uint8_t bytes[TRACE_HEAD_BYTES], const trace_head *head);
/* False when the bytes are not a head or are damaged. */
bool stk_trace_head_get(const uint8_t bytes[TRACE_HEAD_BYTES], trace_head *head);

/* A checksum for damage, not for malice: any change within one aligned word of 8 bytes always changes it. */
uint64_t stk_trace_check(const void *data, size_t bytes);

/* ---- Header ------------------------------------------------------------------------------------------------------------- */

/* STK_EINVAL when a header exceeds the limits above or contradicts itself; the detail names the field. */
int stk_trace_header_check(const stk_trace_header *header) STK_CHECKED;
/* At most the bytes that stk_trace_header_put writes and a record takes. Both for a header that was checked. */
size_t stk_trace_header_bytes(const stk_trace_header *header);
size_t stk_trace_record_bytes(const stk_trace_header *header);
/* Returns the number of bytes written. */
size_t stk_trace_header_put(uint8_t *out, const stk_trace_header *header);
/* Decodes and checks; every pointer of *header is then the caller's, for stk_trace_header_free. STK_EFORMAT, STK_ENOMEM. */
int stk_trace_header_get(const uint8_t *data, size_t bytes, stk_trace_header *header) STK_CHECKED;
void stk_trace_header_free(stk_trace_header *header);

/* ---- Numbers ------------------------------------------------------------------------------------------------------------ */

static inline uint8_t *put_bytes(uint8_t *p, const void *data, size_t bytes) {
    memcpy(p, data, bytes);
    return p + bytes;
}

/* 7 bits a byte, low ones first, the top bit set on all but the last. */
static inline uint8_t *put_varint(uint8_t *p, uint64_t x) {
    for (; x >= 0x80; x >>= 7) *p++ = (uint8_t)(x | 0x80);
    *p++ = (uint8_t)x;
    return p;
}

/* Small values of either sign become small numbers: 0, -1, 1, -2, ... */
static inline uint64_t zigzag(uint64_t x) { return x << 1 ^ (0 - (x >> 63)); }
static inline uint64_t unzigzag(uint64_t x) { return x >> 1 ^ (0 - (x & 1)); }

/* A reading position. Reading past the end, or a number of more than 64 bits, sets `bad` and yields zeros from then on. */
typedef struct trace_in {
    const uint8_t *p, *end;
    bool bad;
} trace_in;

static inline size_t in_left(const trace_in *in) { return (size_t)(in->end - in->p); }

static inline void in_fail(trace_in *in) {
    in->bad = true;
    in->p = in->end;
}

static inline void get_bytes(trace_in *in, void *out, size_t bytes) {
    if (in_left(in) < bytes) {
        in_fail(in);
        memset(out, 0, bytes);
        return;
    }
    memcpy(out, in->p, bytes);
    in->p += bytes;
}

static inline uint64_t get_varint(trace_in *in) {
    uint64_t x = 0;
    if (in->p < in->end && *in->p < 0x80) return *in->p++; /* most are */
    for (uint32_t shift = 0; in->p < in->end; shift += 7) {
        uint8_t byte = *in->p++;
        if (shift == 63 && byte > 1) break;
        x |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return x;
    }
    in_fail(in);
    return 0;
}

/* As get_varint, and bad when it is above `most`. */
static inline uint32_t get_u32(trace_in *in, uint32_t most) {
    uint64_t x = get_varint(in);
    if (x <= most) return (uint32_t)x;
    in_fail(in);
    return 0;
}

#endif
