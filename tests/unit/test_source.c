/* source: which format a file is of, and several files as one. */
#include <criterion/criterion.h>
#include <fcntl.h>

#include "tests/temp.h"
#include "tests/trace_random.h"
#include "traces/source.h"

/* A file of its own; the caller frees the name. */
static char *store(const char *content) {
    char *path = malloc(TEMP_PATH);
    cr_assert_not_null(path);
    int fd = open(temp_file(path, "stoker-source"), O_WRONLY);
    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
    close(fd);
    return path;
}

static void drop(char *path) {
    unlink(path);
    free(path);
}

static const char *format_of(const char *content) {
    stk_source *s;
    const char *path = tr_path(), *format = "none";
    tr_store(path, content, strlen(content));
    if (stk_source_open(&s, &path, 1, NULL) == 0) format = stk_source_get_info(s)->format;
    stk_source_close(&s);
    return format;
}

Test(source, formats_are_found_by_content) {
    cr_expect_str_eq(format_of("pos,layer,expert\n0,0,1\n"), "csv");
    cr_expect_str_eq(format_of("# n_expert=5\npos,layer,expert\n0,0,1\n"), "csv");
    cr_expect_str_eq(format_of("# route_trace v1\nturn,phase,step,layer,slot,expert\n0,1,0,0,0,1\n"), "route.csv");
    cr_expect_str_eq(format_of(" {\"pos\":0,\"layer\":0,\"experts\":[1]}\n"), "jsonl");
    cr_expect_str_eq(format_of("{\"model\":\"[\"}\n{\"pos\":0,\"layer\":0,\"experts\":[1]}\n"), "jsonl");
    cr_expect_str_eq(format_of("{\n \"expertsPerLayer\":2,\"layers\":1,\"topK\":1,\"version\":2,\n\"selections\":[[[1]]]}"),
                     "router-trace");
    cr_expect_str_eq(format_of("hello\n"), "none");
    cr_expect_str_eq(format_of("{}"), "none");
    cr_expect_str_eq(format_of(""), "none");
    cr_expect(strstr(stk_error_detail(), "not a trace"), "%s", stk_error_detail());
}

Test(source, an_own_trace_comes_back_record_for_record) {
    static trace_input a, b;
    stk_trace_writer *w;
    stk_source *s;
    stk_trace_record r;
    const char *path = tr_path();
    tr_header(&a, 5);
    tr_header(&b, 5);
    cr_assert_eq(stk_trace_writer_open(&w, path, &a.header), 0);
    for (uint32_t i = 0; i < 300; i++) cr_assert_eq(stk_trace_write(w, tr_next(&a, i)), 0);
    cr_assert_eq(stk_trace_write(w, tr_end(&a)), 0);
    cr_assert_eq(stk_trace_writer_close(&w), 0);
    cr_assert_eq(stk_source_open(&s, &path, 1, NULL), 0, "%s", stk_error_detail());
    cr_assert(stk_source_get_info(s)->recorded);
    cr_assert(tr_same_header(stk_source_header(s), &b.header));
    for (uint32_t i = 0; i < 300; i++) {
        cr_assert_eq(stk_source_read(s, &r), 1);
        cr_assert(tr_same(&r, tr_next(&b, i)));
    }
    cr_assert_eq(stk_source_read(s, &r), 1);
    cr_assert(tr_same(&r, tr_end(&b)));
    cr_assert_eq(stk_source_read(s, &r), 0);
    cr_assert_not(stk_source_cut(s));
    stk_source_close(&s);
}

Test(source, several_files_are_numbered_on) {
    char *a = store("seq,pos,layer,expert\n0,0,0,1\n0,1,0,2\n3,0,0,3\n"), *b = store("pos,layer,expert\n0,0,2\n5,0,3\n");
    const char *paths[] = {a, b, b};
    static const int32_t seqs[] = {0, 0, 3, 4, 4, 5, 5}, poss[] = {0, 1, 0, 0, 5, 0, 5};
    stk_source *s;
    stk_trace_record r;
    cr_assert_eq(stk_source_open(&s, paths, 3, NULL), 0, "%s", stk_error_detail());
    cr_assert_not(stk_source_get_info(s)->recorded);
    for (uint32_t i = 0; i < STK_ARRAY_LEN(seqs); i++) {
        cr_assert_eq(stk_source_read(s, &r), 1, "%s", stk_error_detail());
        cr_assert(r.kind == STK_TRACE_STEP && r.step.step == i && r.step.seq[0] == seqs[i] && r.step.pos[0] == poss[i]);
        cr_assert_eq(stk_source_read(s, &r), 1);
        cr_assert(r.kind == STK_TRACE_EVENT && r.event.step == i && r.event.seq[0] == seqs[i] && r.event.n_distinct == 1);
    }
    cr_assert_eq(stk_source_read(s, &r), 1);
    cr_assert(r.kind == STK_TRACE_END && r.end.n_event == 7 && r.end.n_lookup == 7 && r.end.n_pair == 7 && r.end.n_hit == 0);
    cr_assert_eq(stk_source_read(s, &r), 0);
    stk_source_close(&s);
    drop(a);
    drop(b);
}

Test(source, files_of_different_models_are_refused) {
    char *a = store("pos,layer,expert\n0,0,1\n"), *b = store("pos,layer,expert\n0,0,2\n"),
         *c = store("pos,layer,expert\n0,1,1\n");
    stk_source *s;
    cr_assert_eq(stk_source_open(&s, (const char *const[]){a, b}, 2, NULL), STK_EINVAL);
    cr_assert(strstr(stk_error_detail(), "another model"), "%s", stk_error_detail());
    cr_assert_eq(stk_source_open(&s, (const char *const[]){a, c}, 2, NULL), STK_EINVAL);
    cr_assert_eq(stk_source_open(&s, (const char *const[]){a, a}, 2, NULL), 0);
    stk_source_close(&s);
    cr_assert_eq(stk_source_open(&s, NULL, 0, NULL), STK_EINVAL);
    drop(a);
    drop(b);
    drop(c);
}

Test(source, an_error_is_said_again) {
    const char *path = tr_path();
    uint8_t data[] = {'M', 'R', 'T', '8', 1, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 9};
    stk_source *s;
    stk_trace_record r;
    tr_store(path, data, sizeof data);
    cr_assert_eq(stk_source_open(&s, &path, 1, NULL), 0);
    int rc;
    while ((rc = stk_source_read(s, &r)) == 1) continue;
    char said[512];
    strcpy(said, stk_error_detail());
    cr_assert_eq(rc, STK_EFORMAT);
    cr_assert(strstr(said, "byte 29: expert 9 of 4"), "%s", said);
    (void)stk_fail(STK_EIO, "something else");
    cr_assert_eq(stk_source_read(s, &r), STK_EFORMAT);
    cr_assert_str_eq(stk_error_detail(), said);
    stk_source_close(&s);
}
