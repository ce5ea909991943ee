/* trace_format: numbers, prefix, frame heads, checksums. */
#include <criterion/criterion.h>

#include "traces/trace_format.h"

Test(trace_format, numbers_come_back) {
    uint8_t bytes[TRACE_VARINT_BYTES];
    for (uint32_t shift = 0; shift < 64; shift++)
        for (uint64_t near = 0; near < 5; near++) {
            uint64_t x = ((uint64_t)1 << shift) - 2 + near;
            uint8_t *end = put_varint(bytes, x);
            trace_in in = {bytes, end, false};
            cr_assert_leq(end - bytes, TRACE_VARINT_BYTES);
            cr_assert_eq(get_varint(&in), x);
            cr_assert(!in.bad && in.p == end);
            in = (trace_in){bytes, end - 1, false};
            cr_assert_eq(get_varint(&in), 0);
            cr_assert(in.bad, "cut short");
            cr_assert_eq(unzigzag(zigzag(x)), x);
        }
    cr_assert_eq(zigzag(0), 0);
    cr_assert_eq(zigzag((uint64_t)-1), 1);
    cr_assert_eq(zigzag(1), 2);
    cr_assert_eq(zigzag((uint64_t)INT64_MIN), UINT64_MAX);
}

Test(trace_format, numbers_of_more_than_64_bits_are_bad) {
    uint8_t bytes[11];
    memset(bytes, 0xff, sizeof bytes);
    trace_in in = {bytes, bytes + sizeof bytes, false};
    cr_assert_eq(get_varint(&in), 0);
    cr_assert(in.bad);
    bytes[9] = 1;
    in = (trace_in){bytes, bytes + sizeof bytes, false};
    cr_assert_eq(get_varint(&in), UINT64_MAX);
    bytes[9] = 2;
    in = (trace_in){bytes, bytes + sizeof bytes, false};
    (void)get_varint(&in);
    cr_assert(in.bad);
}

Test(trace_format, limits_and_ends_are_kept) {
    uint8_t bytes[8];
    uint8_t *end = put_varint(bytes, 300);
    trace_in in = {bytes, end, false};
    cr_assert_eq(get_u32(&in, 300), 300);
    in = (trace_in){bytes, end, false};
    cr_assert_eq(get_u32(&in, 299), 0);
    cr_assert(in.bad);
    uint32_t word = 7;
    in = (trace_in){bytes, bytes + 3, false};
    get_bytes(&in, &word, 4);
    cr_assert(in.bad && word == 0 && in_left(&in) == 0);
}

Test(trace_format, every_flip_in_a_prefix_or_head_shows) {
    uint8_t prefix[TRACE_PREFIX_BYTES], bytes[TRACE_HEAD_BYTES];
    const trace_head head = {1234, 65536, 0x0123456789abcdefu};
    trace_head got;
    stk_trace_prefix_put(prefix);
    stk_trace_head_put(bytes, &head);
    cr_assert_eq(stk_trace_prefix_check(prefix), 0);
    cr_assert(stk_trace_head_get(bytes, &got));
    cr_assert(got.packed_bytes == 1234 && got.raw_bytes == 65536 && got.packed_check == head.packed_check);
    for (uint32_t at = 0; at < TRACE_HEAD_BYTES; at++)
        for (uint32_t flip = 1; flip < 256; flip++) {
            bytes[at] ^= (uint8_t)flip;
            cr_assert_not(stk_trace_head_get(bytes, &got));
            bytes[at] ^= (uint8_t)flip;
            if (at >= TRACE_PREFIX_BYTES) continue;
            prefix[at] ^= (uint8_t)flip;
            cr_assert_eq(stk_trace_prefix_check(prefix), STK_EFORMAT);
            prefix[at] ^= (uint8_t)flip;
        }
    memset(bytes, 0, sizeof bytes);
    cr_assert_not(stk_trace_head_get(bytes, &got), "zeros are no head");
}

/* A file by a later build: the checksum is right, the version is not ours. */
Test(trace_format, another_version_is_named) {
    uint8_t prefix[TRACE_PREFIX_BYTES] = "STKTRACE";
    prefix[8] = TRACE_VERSION + 1;
    uint32_t h = 0x811c9dc5u;
    for (uint32_t i = 0; i < 12; i++) h = (h ^ prefix[i]) * 0x01000193u;
    memcpy(prefix + 12, &h, 4);
    cr_assert_eq(stk_trace_prefix_check(prefix), STK_EUNSUPPORTED);
    cr_assert_not_null(strstr(stk_error_detail(), "version 3"));
}

Test(trace_format, the_checksum_sees_every_flip_and_length) {
    uint8_t data[77] = {1, 2, 3};
    uint64_t whole = stk_trace_check(data, sizeof data);
    for (uint32_t at = 0; at < sizeof data; at++)
        for (uint32_t bit = 0; bit < 8; bit++) {
            data[at] ^= (uint8_t)(1u << bit);
            cr_assert_neq(stk_trace_check(data, sizeof data), whole);
            data[at] ^= (uint8_t)(1u << bit);
        }
    for (uint32_t n = 0; n < sizeof data; n++) cr_assert_neq(stk_trace_check(data, n), whole);
}
