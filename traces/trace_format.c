/* trace_format: prefix, frame heads, checksums. */
#include "traces/trace_format.h"

static const char magic[8] = {'S', 'T', 'K', 'T', 'R', 'A', 'C', 'E'};

/* FNV-1a: each step is a bijection of the state, so that one changed byte always shows. */
static uint32_t check_small(const uint8_t *data, size_t bytes) {
    uint32_t h = 0x811c9dc5u;
    for (size_t i = 0; i < bytes; i++) h = (h ^ data[i]) * 0x01000193u;
    return h;
}

void stk_trace_prefix_put(uint8_t prefix[TRACE_PREFIX_BYTES]) {
    const uint32_t version = TRACE_VERSION;
    memcpy(prefix, magic, 8);
    memcpy(prefix + 8, &version, 4);
    const uint32_t check = check_small(prefix, 12);
    memcpy(prefix + 12, &check, 4);
}

int stk_trace_prefix_check(const uint8_t prefix[TRACE_PREFIX_BYTES]) {
    uint32_t version, check;
    if (memcmp(prefix, magic, 8) != 0) return stk_fail(STK_EFORMAT, "byte 0: not a Stoker trace");
    memcpy(&version, prefix + 8, 4);
    memcpy(&check, prefix + 12, 4);
    if (check != check_small(prefix, 12)) return stk_fail(STK_EFORMAT, "byte 8: the version is damaged");
    if (version == 0 || version > TRACE_VERSION)
        return stk_fail(STK_EUNSUPPORTED, "version %u of the format; this build reads 1 to %d", version, TRACE_VERSION);
    return 0;
}

void stk_trace_head_put(uint8_t bytes[TRACE_HEAD_BYTES], const trace_head *head) {
    memcpy(bytes, &head->packed_bytes, 4);
    memcpy(bytes + 4, &head->raw_bytes, 4);
    memcpy(bytes + 8, &head->packed_check, 8);
    const uint32_t check = check_small(bytes, 16);
    memcpy(bytes + 16, &check, 4);
}

bool stk_trace_head_get(const uint8_t bytes[TRACE_HEAD_BYTES], trace_head *head) {
    uint32_t check;
    memcpy(&head->packed_bytes, bytes, 4);
    memcpy(&head->raw_bytes, bytes + 4, 4);
    memcpy(&head->packed_check, bytes + 8, 8);
    memcpy(&check, bytes + 16, 4);
    return check == check_small(bytes, 16);
}

uint64_t stk_trace_check(const void *data, size_t bytes) {
    const uint8_t *p = data;
    uint64_t h = 0x9e3779b97f4a7c15u ^ bytes;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, p + i, STK_MIN(bytes - i, (size_t)8));
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h;
}
