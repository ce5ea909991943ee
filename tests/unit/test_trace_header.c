/* trace_header: round trip, limits, and bytes that anybody may have written. */
#include <criterion/criterion.h>

#include "tests/trace_random.h"
#include "traces/trace_format.h"

static trace_input t;
static uint8_t bytes[1 << 20];

Test(trace_header, comes_back_as_it_was) {
    for (uint64_t seed = 0; seed < 50; seed++) {
        stk_trace_header got;
        tr_header(&t, seed);
        cr_assert_eq(stk_trace_header_check(&t.header), 0, "%s", stk_error_detail());
        size_t n = stk_trace_header_put(bytes, &t.header);
        cr_assert_leq(n, stk_trace_header_bytes(&t.header));
        cr_assert_eq(stk_trace_header_get(bytes, n, &got), 0, "%s", stk_error_detail());
        cr_assert(tr_same_header(&got, &t.header));
        stk_trace_header_free(&got);
        cr_assert_null(got.extents);
    }
}

Test(trace_header, a_header_without_parts_is_fine) {
    stk_trace_header got;
    tr_header(&t, 1);
    t.header.n_part = 0;
    t.header.extents = NULL;
    size_t n = stk_trace_header_put(bytes, &t.header);
    cr_assert_eq(stk_trace_header_get(bytes, n, &got), 0);
    cr_assert_eq(got.n_part, 0);
    stk_trace_header_free(&got);
}

Test(trace_header, evenly_laid_experts_take_three_bytes_a_part) {
    tr_header(&t, 1);
    for (uint32_t i = 0; i < TR_LAYER * TR_EXPERT * TR_PART; i++)
        t.extents[i] = (stk_trace_extent){0, 1u << 20 | (uint64_t)(i % 3) << 40 | (uint64_t)(i / 3) * 4096, 4096};
    cr_assert_leq(stk_trace_header_put(bytes, &t.header), 3 * TR_LAYER * TR_EXPERT * TR_PART + 200);
}

Test(trace_header, what_exceeds_the_limits_is_named) {
    static const struct {
        size_t offset;
        uint32_t value;
        const char *name;
    } cases[] = {{offsetof(stk_trace_header, n_layer), 0, "n_layer"},
                 {offsetof(stk_trace_header, n_layer), TRACE_MAX_LAYER + 1, "n_layer"},
                 {offsetof(stk_trace_header, n_expert), 0, "n_expert"},
                 {offsetof(stk_trace_header, n_expert), STK_NO_EXPERT, "n_expert"},
                 {offsetof(stk_trace_header, k), 0, "k is 0"},
                 {offsetof(stk_trace_header, k), TR_EXPERT + 1, "k is"},
                 {offsetof(stk_trace_header, n_part), 700, "parts"},
                 {offsetof(stk_trace_header, n_part), UINT32_MAX, "n_part"},
                 {offsetof(stk_trace_header, n_class), 0, "n_class"},
                 {offsetof(stk_trace_header, n_class), 1, "of class 1 of 1"},
                 {offsetof(stk_trace_header, n_class), UINT32_MAX, "n_class"},
                 {offsetof(stk_trace_header, n_batch), 0, "n_batch"},
                 {offsetof(stk_trace_header, n_batch), TRACE_MAX_BATCH, "too large"},
                 {offsetof(stk_trace_header, n_batch), UINT32_MAX, "n_batch"}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        stk_trace_header got;
        tr_header(&t, 3);
        t.layer_class[2] = 1;
        memcpy((char *)&t.header + cases[i].offset, &cases[i].value, 4);
        cr_assert_eq(stk_trace_header_check(&t.header), STK_EINVAL, "case %zu", i);
        cr_assert_not_null(strstr(stk_error_detail(), cases[i].name), "case %zu: %s", i, stk_error_detail());
        /* The same from a file: the numbers stand first, the body is that of the good header. */
        tr_header(&t, 3);
        t.layer_class[2] = 1;
        uint8_t *p = bytes;
        uint32_t numbers[6] = {TR_LAYER, TR_EXPERT, TR_K, TR_PART, TR_CLASS, TR_BATCH};
        const size_t place[6] = {offsetof(stk_trace_header, n_layer), offsetof(stk_trace_header, n_expert),
                                 offsetof(stk_trace_header, k),       offsetof(stk_trace_header, n_part),
                                 offsetof(stk_trace_header, n_class), offsetof(stk_trace_header, n_batch)};
        for (uint32_t j = 0; j < 6; j++) p = put_varint(p, place[j] == cases[i].offset ? cases[i].value : numbers[j]);
        memset(p, 0, 100000);
        cr_assert_eq(stk_trace_header_get(bytes, 100000, &got), STK_EFORMAT, "case %zu", i);
        cr_assert_null(got.classes);
    }
    char text[TRACE_MAX_TEXT + 2] = "";
    memset(text, 'x', sizeof text - 1);
    tr_header(&t, 3);
    t.header.io = text;
    cr_assert_eq(stk_trace_header_check(&t.header), STK_EINVAL);
}

Test(trace_header, every_cut_and_damaged_byte_is_refused_or_harmless) {
    tr_header(&t, 4);
    t.header.n_expert = 9;
    size_t n = stk_trace_header_put(bytes, &t.header);
    for (size_t cut = 0; cut < n; cut++) {
        stk_trace_header got;
        uint8_t *exact = malloc(cut + 1); /* so that the address sanitizer sees a read past the end */
        memcpy(exact, bytes, cut);
        bool first = cut == n - 12; /* version 1 ends before the state: its length and 11 bytes */
        cr_assert_eq(stk_trace_header_get(exact, cut, &got), first ? 0 : STK_EFORMAT, "cut at %zu", cut);
        cr_assert_eq(got.state_bytes, 0);
        stk_trace_header_free(&got);
        free(exact);
    }
    for (size_t at = 0; at < n; at++)
        for (uint32_t flip = 1; flip < 256; flip++) {
            stk_trace_header got;
            bytes[at] ^= (uint8_t)flip;
            if (stk_trace_header_get(bytes, n, &got) == 0) {
                cr_assert_eq(stk_trace_header_check(&got), 0);
                stk_trace_header_free(&got);
            }
            bytes[at] ^= (uint8_t)flip;
        }
}

/* Counts within the limits, and next to no bytes: refused before memory is taken for them. */
Test(trace_header, counts_without_their_bytes_are_refused) {
    static const uint32_t numbers[3][6] = {
        {1, 1, 1, 0, TRACE_MAX_CLASS, 1}, {TRACE_MAX_LAYER, 1, 1, 0, 1, 1}, {1024, 128, 1, 8, 1, 1}};
    for (uint32_t i = 0; i < 3; i++) {
        stk_trace_header got;
        uint8_t *p = bytes;
        for (uint32_t j = 0; j < 6; j++) p = put_varint(p, numbers[i][j]);
        memset(p, 0, 4000);
        cr_assert_eq(stk_trace_header_get(bytes, 4000, &got), STK_EFORMAT);
        cr_assert_not_null(strstr(stk_error_detail(), "too short for its counts"), "%s", stk_error_detail());
    }
}

Test(trace_header, a_file_number_of_more_than_32_bits_is_refused) {
    static const uint32_t numbers[6] = {1, 1, 1, 1, 1, 1};
    for (uint32_t shift = 31; shift <= 33; shift++) {
        stk_trace_header got;
        uint8_t *p = bytes;
        for (uint32_t j = 0; j < 6; j++) p = put_varint(p, numbers[j]);
        memset(p, 0, 12); /* ram_bytes, seed, four texts, a class, layer_class, model_layer */
        p = put_varint(p + 12, zigzag(((uint64_t)1 << shift) - 1));
        p = put_varint(put_varint(p, 0), 0);
        int rc = stk_trace_header_get(bytes, (size_t)(p - bytes), &got);
        cr_assert_eq(rc, shift <= 32 ? 0 : STK_EFORMAT);
        if (rc == 0) cr_assert_eq(got.extents[0].file, ((uint64_t)1 << shift) - 1);
        if (rc == 0) stk_trace_header_free(&got);
    }
}
