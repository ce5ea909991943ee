/* import_router: the object in any order of keys, and what is said of mistakes. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "trace_text.h"

static void expect(const char *content, const char *want) {
    const char *got = trace_text_of(content), *name = strstr(got, "router-trace: ");
    if (name) got = name + 14;
    cr_expect_str_eq(got, want, "%s\n  gives     %s\n  and not   %s", content, got, want);
}

Test(import_router, keys_in_any_order) {
    expect("{\"expertsPerLayer\": 8, \"layers\": 2, \"selections\": [[[7], [0]], [[1],\n[2]]], \"topK\": 1, \"tokens\": 2, "
           "\"version\": 2}",
           "[0@0] 0:7 1:0 [0@1] 0:1 1:2");
    expect("{\"version\":2,\"a\":{\"b\":[1,\"}]\\\"\",null]},\"selections\":[[[7,1],[]]],\"topK\":3,\"layers\":2,"
           "\"expertsPerLayer\":8}",
           "[0@0] 0:7 1 - 1:- - -");
}

/* What follows "selections": of an object of one layer of 8 experts, whose value begins at byte 66. */
static void expect_error(const char *rest, const char *want) {
    char text[256];
    snprintf(text, sizeof text, "{\"version\":2,\"expertsPerLayer\":8,\"layers\":1,\"topK\":1,\"selections\":%s", rest);
    expect(text, want);
}

Test(import_router, mistakes_name_the_byte) {
    expect_error("[[[1]],", "byte 73: cut off");
    expect_error("[[[1]]]", "byte 73: cut off");
    expect_error("[]}", "no selections");
    expect_error("7}", "byte 67: selections are not a list");
    expect_error("[[[1.5]]]}", "byte 70: not a whole number");
    expect_error("[[[-1]]]}", "byte 70: not a whole number");
    expect_error("[[[70000]]]}", "byte 74: a number that is too large");
    expect_error("[[[1]],[[1],[1]]]}", "byte 82: a token with another number of layers than the first");
    expect_error("[[[1]]],\"selections\":[[[1]]]}", "byte 87: selections are there twice");
    expect_error("[[[1]]],\"tokens\":9}", "selections of 1 tokens in 1 layers; 9 in 1 are announced");
    expect_error("[[[8]]]}", "byte 70: an expert that the layer does not have");
    expect_error("[[[1,2]]],\"topK\":1}", "byte 84: fewer than the selections have");
    expect("{\"version\":3,\"expertsPerLayer\":8,\"layers\":1,\"topK\":1,\"selections\":[[[1]]]}",
           "router-trace of version 3; version 2 is read");
    expect("{\"version\":2,\"expertsPerLayer\":8,\"layers\":1,\"topK\":9,\"selections\":[[[1]]]}", "9 experts a token of 8");
}
