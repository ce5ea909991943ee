/* import_mrt8: sequences, phases, absent experts, and files that are cut or wrong. */
#include <criterion/criterion.h>

#include "tests/trace_random.h"
#include "trace_text.h"

/* 2 layers of 4 experts, 2 a token; sequences of 2 tokens (1 a prompt), 0 and 1. */
static const uint8_t file[] = {'M', 'R', 'T', '8', 2, 0, 0, 0, 4,    0,    0, 0, 2, 0,    0, 0, 3, 0, 0, 0, /* the header */
                               2,   0,   0,   0,   1, 0, 0, 0, 3,    1,    0, 2, 2, 0xff, 1, 0,             /* */
                               0,   0,   0,   0,   0, 0, 0, 0,                                              /* */
                               1,   0,   0,   0,   0, 0, 0, 0, 0xff, 0xff, 3, 3};

static const char *text_of(const uint8_t *data, size_t bytes) {
    tr_store(tr_path(), data, bytes);
    return trace_text(tr_path());
}

Test(import_mrt8, tokens_are_steps) {
    cr_assert_str_eq(text_of(file, sizeof file), "[0@0p] 0:3 1 1:0 2 [0@1] 0:2 - 1:1 0 [2@0] 0:- - 1:3 3");
}

Test(import_mrt8, every_cut_is_told) {
    for (size_t bytes = 4; bytes < sizeof file; bytes++) {
        const char *got = text_of(file, bytes);
        char at[64];
        snprintf(at, sizeof at, "cut off at byte %zu, within ", bytes);
        cr_assert(strstr(got, at), "%zu bytes give %s", bytes, got);
    }
    uint8_t longer[sizeof file + 1];
    memcpy(longer, file, sizeof file);
    longer[sizeof file] = 0;
    cr_assert(strstr(text_of(longer, sizeof longer), "byte 56: more after the last sequence"));
}

Test(import_mrt8, wrong_numbers_are_refused) {
    static const struct {
        size_t at;
        uint8_t byte;
        const char *want;
    } cases[] = {{4, 0, "byte 4: 0 layers of 4 experts, 2 a token"},
                 {9, 1, "byte 4: 2 layers of 260 experts, 2 a token"},
                 {12, 5, "byte 4: 2 layers of 4 experts, 5 a token"},
                 {24, 3, "byte 20: sequence 0 of 2 tokens, 3 of them a prompt"},
                 {29, 4, "byte 29: expert 4 of 4"},
                 {35, 9, "byte 35: expert 9 of 4"}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        uint8_t copy[sizeof file];
        memcpy(copy, file, sizeof file);
        copy[cases[i].at] = cases[i].byte;
        const char *got = text_of(copy, sizeof copy);
        cr_expect(strstr(got, cases[i].want), "byte %zu gives %s, not %s", cases[i].at, got, cases[i].want);
    }
}
