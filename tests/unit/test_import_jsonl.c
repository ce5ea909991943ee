/* import_jsonl: rows, facts, and what is said of mistakes. */
#include <criterion/criterion.h>
#include <string.h>

#include "trace_text.h"

static void expect(const char *content, const char *want) {
    const char *got = trace_text_of(content), *name = strstr(got, "jsonl: ");
    if (name) got = name + 7;
    cr_expect_str_eq(got, want, "%s\n  gives     %s\n  and not   %s", content, got, want);
}

Test(import_jsonl, rows) {
    expect("{\"model\":\"m\",\"n_expert\":8,\"k\":2,\"expert_bytes\":4096}\n"
           "{\"pos\":0,\"layer\":0,\"experts\":[3,1],\"weights\":[0.5,0.25],\"phase\":\"prefill\"}\n"
           "\n{\"pos\":0,\"layer\":1,\"experts\":[2],\"phase\":0}\n"
           "{\"seq\":1,\"pos\":4,\"layer\":0,\"experts\":[2,-1],\"token\":7,\"top_ids\":[2,5,1],\"top_scores\":[0.5,0.3,0.1]}\n",
           "[0@0p] 0:3 1=0.5 0.25 1:2 - [1@4] 0:2 -^2 5 1");
    expect("{\"step\":3,\"pos\":0,\"layer\":5,\"experts\":[1]}\n{\"step\":3,\"pos\":1,\"layer\":5,\"experts\":[2]}",
           "[0@0 0@1] 0:1,2");
    expect("{\"expert_bytes\":[0,5000,0,6000]}\n{\"pos\":0,\"layer\":3,\"experts\":[1]}\n", "[0@0] 1:1");
}

Test(import_jsonl, mistakes_name_the_line) {
    expect("{\"pos\":0,\"layer\":0,\"experts\":[1]}\n{\"pos\":1,\"layer\":0,",
           "line 2: not one JSON object, from byte 19 of the line");
    expect("{\"pos\":0,\"layer\":0,\"experts\":[1]}\n[1]\n", "line 2: not one JSON object, from byte 3 of the line");
    expect("{\"pos\":0,\"layer\":0}\n", "line 1: a row without \"experts\"");
    expect("{\"layer\":0,\"experts\":[1]}\n", "line 1: neither a position nor a step says which token it is");
    expect("{\"pos\":0,\"layer\":null,\"experts\":[1]}\n", "line 1: \"layer\" is null");
    expect("{\"pos\":0,\"layer\":0.5,\"experts\":[1]}\n", "line 1: \"layer\" is not a whole number from 0 to 65535");
    expect("{\"pos\":0,\"layer\":0,\"experts\":[1,\"x\"]}\n", "line 1: entry 1 of \"experts\" is no expert");
    expect("{\"pos\":0,\"layer\":0,\"experts\":[65534]}\n", "line 1: entry 0 of \"experts\" is no expert");
    expect("{\"pos\":0,\"layer\":0,\"experts\":{}}\n", "line 1: \"experts\" is not an array");
    expect("{\"pos\":0,\"layer\":0,\"experts\":[1,2],\"weights\":[1]}\n", "line 1: \"weights\" is not an array of 2 numbers");
    expect("{\"pos\":0,\"layer\":0,\"experts\":[1],\"top_ids\":[1]}\n", "line 1: \"top_ids\" without \"top_scores\"");
    expect("{\"pos\":0,\"seq\":-1,\"layer\":0,\"experts\":[1]}\n", "line 1: \"seq\" is negative");
    expect("{\"pos\":0,\"layer\":0,\"experts\":[1],\"phase\":\"both\"}\n", "line 1: \"phase\" is not \"prefill\" or \"decode\"");
    expect("{\"expert_bytes\":[-1]}\n{\"pos\":0,\"layer\":0,\"experts\":[1]}\n",
           "line 1: entry 0 of \"expert_bytes\" is no size");
}
