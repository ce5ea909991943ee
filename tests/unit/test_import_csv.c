/* import_csv: columns, facts, route.csv's order, and what is said of mistakes. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/trace_random.h"
#include "trace_text.h"

static void expect(const char *content, const char *want) {
    const char *got = trace_text_of(content);
    cr_expect_str_eq(got, want, "%s\n  gives     %s\n  and not   %s", content, got, want);
}

/* The detail without the name of the test's file in front of it. */
static void expect_error(const char *content, const char *want) {
    const char *got = trace_text_of(content), *name = strstr(got, "csv: ");
    cr_expect(name && strcmp(name + 5, want) == 0, "%s\n  gives     %s\n  and not   %s", content, got, want);
}

Test(import_csv, one_row_an_expert) {
    expect("pos,layer,expert,weight\n0,0,3,0.5\n0,0,1,0.25\n0,1,2,1\n1,0,0,1\n",
           "[0@0] 0:3 1=0.5 0.25 1:2 -=1 0 [0@1] 0:0 -=1 0");
    expect("pos,layer,rank,expert\n0,0,1,3\n0,0,0,1\n", "[0@0] 0:1 3");
    expect("pos,layer,slot,expert\n0,0,1,3\n", "[0@0] 0:- 3");
}

Test(import_csv, one_row_a_token_and_layer) {
    expect("# a comment\nseq,pos,layer,experts,weights\n0,0,4,3 1,0.5 0.5\n0,0,7,2 0,1 0\n1,0,4,0 1,nan 1\n",
           "[0@0] 0:3 1=0.5 0.5 1:2 0=1 0 [1@0] 0:0 1");
    expect("\xef\xbb\xbfpos,layer,experts,top_ids,top_scores\r\n0,0,3 -,3 2 1,.5 .3 .2\r\n", "[0@0] 0:3 -^3 2 1");
    expect("\"pos\",\"layer\",\"experts\"\n\"5\", \"0\" ,\"3  1\"\n", "[0@5] 0:3 1");
}

Test(import_csv, steps_of_several_tokens) {
    expect("step,seq,pos,phase,layer,experts\n7,0,0,prefill,0,1\n7,0,1,0,0,2\n7,0,1,0,1,0\n9,0,2,decode,0,1\n9,0,2,1,1,1\n",
           "[0@0p 0@1p] 0:1,2 1:-,0 [0@2] 0:1 1:1");
    expect("step,layer,experts\n0,0,1\n0,1,2\n1,0,3\n", "[0@0] 0:1 1:2 [0@1] 0:3");
}

Test(import_csv, route_takes_a_prompt_by_layer) {
    expect("# route_trace v1\n# model=m n_expert=8 n_expert_used=2\n# layer=1 expert_bytes=4096 dense_bytes=5\n"
           "# layer=2 expert_bytes=8192 dense_bytes=5\n"
           "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"
           "0,0,0,1,0,3,nan,0,4096\n0,0,0,1,1,4,nan,0,4096\n0,0,1,1,0,5,nan,0,4096\n0,0,1,1,1,6,nan,0,0\n"
           "0,0,1,2,0,7,nan,0,8192\n0,0,1,2,1,0,nan,1,0\n"
           "0,0,2,1,0,1,nan,0,0\n0,0,2,1,1,2,nan,0,0\n"
           "0,1,3,1,0,1,0.75,0,0\n0,1,3,1,1,2,0.25,0,0\n"
           "1,0,0,1,0,1,0.75,0,0\n",
           "[0@0p 0@1p] 0:3 4,5 6 1:- -,7 0 [0@2p] 0:1 2 [0@3] 0:1 2=0.75 0.25 [1@0p] 0:1 -=0.75 0");
}

Test(import_csv, facts_make_the_header) {
    const char *content = "# model=tiny k=3 n_expert=9\n# layer=2 expert_bytes=5000\n# layer=6 expert_bytes=0\n"
                          "pos,layer,experts,expert_bytes\n0,3,1,100\n",
               *path = tr_path();
    stk_source *s;
    tr_store(path, content, strlen(content));
    cr_assert_eq(stk_source_open(&s, &path, 1, NULL), 0, "%s", stk_error_detail());
    const stk_trace_header *h = stk_source_header(s);
    cr_assert_eq(h->n_layer, 2);
    cr_assert_eq(h->n_expert, 9);
    cr_assert_eq(h->k, 3);
    cr_assert_eq(h->n_class, 2);
    cr_assert_eq(h->model_layer[0], 2);
    cr_assert_eq(h->model_layer[1], 3);
    cr_assert_eq(h->classes[h->layer_class[0]].payload_bytes, 5000);
    cr_assert_eq(h->classes[h->layer_class[1]].payload_bytes, 100);
    cr_assert_eq(h->extents[0].bytes, 8192);
    cr_assert_eq(h->extents[9].offset, 9 * 8192);
    cr_assert_eq(h->extents[9].bytes, 4096);
    cr_assert_str_eq(h->model, "tiny");
    cr_assert(stk_source_get_info(s)->sized);
    stk_source_close(&s);
    cr_assert_eq(stk_source_open(&s, &path, 1, &(stk_source_options){.expert_bytes = 77}), 0);
    cr_assert_eq(stk_source_header(s)->classes[0].payload_bytes, 77);
    stk_source_close(&s);
}

Test(import_csv, mistakes_name_the_line) {
    expect_error("pos,layer,expert\n", "no rows");
    expect_error("pos,expert\n0,1\n", "line 1: the columns need layer, and either expert or experts");
    expect_error("layer,expert\n0,1\n", "line 1: the columns need pos or step");
    expect_error("pos,pos,layer,expert\n0,0,1,1\n", "line 1: the column 'pos' is there twice");
    expect_error("pos,layer,expert\n0,0,1\n0,0\n", "line 3: 2 values for 3 columns");
    expect_error("pos,layer,expert\n0,0,1,9\n", "line 2: more values than the 3 columns");
    expect_error("pos,layer,expert\n\n# x\n0,-1,1\n", "line 4: layer is '-1', not a whole number up to 65535");
    expect_error("pos,layer,expert\n0,0,65534\n", "line 2: an expert is '65534', not a whole number up to 65533");
    expect_error("pos,layer,expert\n0,99999999999999999999,1\n",
                 "line 2: layer is '99999999999999999999', not a whole number up to 65535");
    expect_error("pos,layer,expert,weight\n0,0,1,x\n", "line 2: weight is 'x', not a number");
    expect_error("pos,layer,experts,weights\n0,0,1 2,0.5\n", "line 2: 1 weights for 2 experts");
    expect_error("pos,layer,experts,top_ids,top_scores\n0,0,1,1 2,0.5\n", "line 2: 1 top_scores for 2 top_ids");
    expect_error("pos,phase,layer,expert\n0,later,0,1\n", "line 2: phase is 'later', not prefill (0) or decode (1)");
    expect_error("pos,layer,rank,expert\n0,0,0,1\n0,0,0,2\n", "line 3: two experts of the same rank");
    expect_error("pos,layer,expert\n0,1,1\n0,0,1\n",
                 "line 3: a layer that the step had before, or a lower one: rows stand by step, then by layer");
    expect_error("step,pos,layer,expert\n0,0,0,1\n0,1,1,1\n",
                 "line 3: a token that the step's first layer does not have, or out of order");
    expect_error("pos,layer,expert,expert_bytes\n0,0,1,5\n1,0,1,6\n",
                 "line 3: another size of experts than before in this layer");
    expect_error("# n_expert=4\npos,layer,expert\n0,0,4\n", "expert 4, or 1 of them a token, of a layer of 4");
    expect_error("pos,layer,expert,expert_bytes\n0,65535,65533,9\n1,0,1,9\n2,1,1,9\n3,2,1,9\n4,3,1,9\n5,4,1,9\n6,5,1,9\n"
                 "7,6,1,9\n8,7,1,9\n9,8,1,9\n10,9,1,9\n11,10,1,9\n12,11,1,9\n13,12,1,9\n14,13,1,9\n15,14,1,9\n16,15,1,9\n",
                 "17 layers of 65534 experts; at most 1048576 experts of all layers are supported");
}
