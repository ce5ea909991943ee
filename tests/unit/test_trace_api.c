/* trace_api: traces as other programs see them, and what converting keeps. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base.h"
#include "tests/temp.h"
#include "tests/trace_random.h"
#include "trace_text.h"

static const char *const csv = "# model=m n_expert=8\nseq,pos,phase,layer,experts,weights\n"
                               "0,0,prefill,2,1 2,0.5 0.25\n0,1,decode,2,3 4,0.5 0.25\n1,0,decode,2,5 6,1 0\n";

static char *name_of_file(void) {
    char *path = malloc(TEMP_PATH);
    cr_assert_not_null(path);
    return temp_file(path, "stoker-trace-api");
}

Test(trace_api, events_of_an_imported_trace) {
    stk_trace *t;
    stk_trace_info info = {.struct_bytes = sizeof info};
    stk_trace_event e = {.struct_bytes = sizeof e};
    tr_store(tr_path(), csv, strlen(csv));
    cr_assert_eq(stk_trace_open(&t, tr_path()), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_trace_get_info(t, &info), 0);
    cr_assert(info.n_layer == 1 && info.n_expert == 8 && info.k == 2 && !info.recorded && !info.sized && info.n_slot == 0);
    cr_assert_eq(info.expert_bytes, 8u << 20);
    cr_assert_str_eq(info.format, "csv");
    cr_assert_str_eq(info.model, "m");
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_eq(stk_trace_next(t, &e), 1);
        cr_assert(e.step == i && e.layer == 0 && e.model_layer == 2 && e.n_tok == 1 && e.k == 2 && e.decode == (i > 0));
        cr_assert(e.ids[0] == 2 * i + 1 && e.ids[1] == 2 * i + 2 && e.seq[0] == (i == 2) && e.token[0] == -1 && !e.top_ids);
    }
    cr_assert_eq(stk_trace_next(t, &e), 0);
    cr_assert_eq(stk_trace_is_cut(t), 0);
    stk_trace_close(&t);
    cr_assert_null(t);
    stk_trace_close(&t);
}

Test(trace_api, texts_of_a_file_are_fit_for_a_terminal) {
    static const char hostile[] = "# model=a\x1b[2Jb\xff\xc3\xa9 n_expert=8\npos,layer,experts\n0,0,1 2\n";
    stk_trace *t;
    stk_trace_info info = {.struct_bytes = sizeof info};
    tr_store(tr_path(), hostile, strlen(hostile));
    cr_assert_eq(stk_trace_open(&t, tr_path()), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_trace_get_info(t, &info), 0);
    cr_assert_str_eq(info.model, "a\\x1b[2Jb\\xff\xc3\xa9");
    stk_trace_close(&t);
}

Test(trace_api, a_caller_with_smaller_structs_gets_what_it_knows) {
    stk_trace *t;
    struct {
        uint32_t struct_bytes, n_layer, n_expert, after;
    } small = {.struct_bytes = 12, .after = 7};
    tr_store(tr_path(), csv, strlen(csv));
    cr_assert_eq(stk_trace_open(&t, tr_path()), 0);
    cr_assert_eq(stk_trace_get_info(t, (stk_trace_info *)(void *)&small), 0);
    cr_assert(small.struct_bytes == 12 && small.n_layer == 1 && small.n_expert == 8 && small.after == 7);
    small.struct_bytes = 3;
    cr_assert_eq(stk_trace_get_info(t, (stk_trace_info *)(void *)&small), STK_EINVAL);
    cr_assert_eq(stk_trace_next(t, NULL), STK_EINVAL);
    stk_trace_close(&t);
    cr_assert_eq(stk_trace_open(&t, NULL), STK_EINVAL);
    cr_assert_eq(stk_trace_open(&t, "/nonexistent/file"), STK_EIO);
}

Test(trace_api, converting_keeps_the_records) {
    char *own = name_of_file(), *back = name_of_file(), want[4096];
    const char *from = tr_path(), *from_own = own;
    tr_store(from, csv, strlen(csv));
    strcpy(want, trace_text(from));
    cr_assert_eq(stk_trace_convert(&from, 1, own, NULL), 0, "%s", stk_error_detail());
    cr_assert_str_eq(trace_text(own), want);
    stk_trace_convert_options o = {.struct_bytes = sizeof o, .format = STK_TRACE_FORMAT_CSV};
    cr_assert_eq(stk_trace_convert(&from_own, 1, back, &o), 0, "%s", stk_error_detail());
    cr_assert_str_eq(trace_text(back), want);
    unlink(own);
    unlink(back);
    free(own);
    free(back);
}

Test(trace_api, cut_and_merged) {
    char *out = name_of_file();
    const char *from[2] = {tr_path(), tr_path()};
    tr_store(from[0], csv, strlen(csv));
    stk_trace_convert_options o = {.struct_bytes = sizeof o, .first_step = 1, .n_step = 1};
    cr_assert_eq(stk_trace_convert(from, 1, out, &o), 0, "%s", stk_error_detail());
    cr_assert_str_eq(trace_text(out), "[0@1] 0:3 4=0.5 0.25");
    cr_assert_eq(stk_trace_convert(from, 2, out, NULL), 0, "%s", stk_error_detail());
    cr_assert_str_eq(trace_text(out), "[0@0p] 0:1 2=0.5 0.25 [0@1] 0:3 4=0.5 0.25 [1@0] 0:5 6=1 0 "
                                      "[2@0p] 0:1 2=0.5 0.25 [2@1] 0:3 4=0.5 0.25 [3@0] 0:5 6=1 0");
    o.first_step = 3;
    cr_assert_eq(stk_trace_convert(from, 1, out, &o), STK_EINVAL);
    cr_assert(strstr(trace_text(out), "[3@0]"), "a conversion that failed has changed the file");
    stk_replay_options v = {.struct_bytes = sizeof v, .verify = 1};
    stk_replay_result r = {.struct_bytes = sizeof r};
    cr_assert_lt(stk_replay(out, &v, &r), 0);
    unlink(out);
    free(out);
}

Test(trace_api, what_cannot_be_written_leaves_nothing) {
    const char *from = tr_path();
    tr_store(from, csv, strlen(csv));
    cr_assert_eq(stk_trace_convert(&from, 1, "/nonexistent/out", NULL), STK_EIO);
    cr_assert_eq(stk_trace_convert(&from, 1, "/dev/full", NULL), STK_ENOSPC);
    cr_assert_eq(stk_trace_convert(&from, 0, "/nonexistent/x", NULL), STK_EINVAL);
    stk_trace_convert_options o = {.struct_bytes = sizeof o, .format = 9};
    cr_assert_eq(stk_trace_convert(&from, 1, "/nonexistent/x", &o), STK_EINVAL);
}
