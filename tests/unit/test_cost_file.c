/* cost_file: out and in again, files that are none, and the tables that follow. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/plan/cost_file.h"
#include "tests/temp.h"

#define MODEL STK_TEST_DATA "/ember-q4_k_m.gguf"

static char dir[TEMP_PATH], path[TEMP_PATH + 32];

static void setup(void) { snprintf(path, sizeof path, "%s/cost.json", temp_make_dir(dir, "stoker-cost")); }

static void teardown(void) {
    unlink(path);
    cr_assert_eq(rmdir(dir), 0, "something was left in %s", dir);
}

static void fill_format(stk_cost_format *f, double x) {
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) f->expert_ns_per_byte[i] = x + i * 0.001;
    f->arrive_ns_per_byte = x / 3;
}

static stk_cost_file sample(bool with_model) {
    stk_cost_file f;
    memset(&f, 0, sizeof f); /* compared as bytes */
    strcpy(f.machine, "A \"CPU\" \\ with odd \xc3\xa4 letters");
    strcpy(f.cpu, "avx512");
    strcpy(f.io, "uring");
    f.n_threads = 7;
    f.read_bytes_per_s = 77e9;
    f.int8_ops_per_s = 1.75e12;
    f.float_ops_per_s = 1.0 / 3 * 1e12;
    f.run_ns = 512.25;
    f.phase_ns = 99.5;
    f.drive_bytes_per_s = 1.8e9;
    f.drive_bytes_per_s_computing = 1.7e9;
    f.compute_slowdown = 1.09;
    f.drive_latency_ns = 81234;
    for (int i = 0; i < STK_COST_N_FORMAT; i++) fill_format(&f.formats[i], 0.1 * (i + 1));
    if (!with_model) return f;
    f.has_model = true;
    strcpy(f.model, "some model");
    f.model_bytes = (UINT64_C(1) << 52) + 1;
    fill_format(&f.experts, 0.05);
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) {
        f.dense_layer_ns[i] = 1e5 * (i + 1);
        f.dense_step_ns[i] = 1e6 * (i + 1);
    }
    return f;
}

static char *text_of(const char *name) {
    static char text[1 << 16];
    FILE *f = fopen(name, "r");
    cr_assert_not_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    return text;
}

static void write_text(const char *text, size_t bytes) {
    FILE *f = fopen(path, "w");
    cr_assert_eq(fwrite(text, 1, bytes, f), bytes);
    cr_assert_eq(fclose(f), 0);
}

Test(cost_file, known_by_its_content, .init = setup, .fini = teardown) {
    bool is_one;
    stk_cost_file f = sample(false);
    cr_assert_eq(stk_cost_file_probe(path, &is_one), STK_EIO);
    cr_assert_eq(stk_cost_file_save(path, &f), 0);
    cr_assert_eq(stk_cost_file_probe(path, &is_one), 0);
    cr_assert(is_one);
    const struct {
        const char *text;
        bool is_one;
    } cases[] = {{"", false},  {"{", true}, {" \n\t{\"stoker_cost\"", true}, {"STKTRACE", false}, {"layer,expert\n", false},
                 {"[{", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text(cases[i].text, strlen(cases[i].text));
        cr_assert_eq(stk_cost_file_probe(path, &is_one), 0);
        cr_assert_eq(is_one, cases[i].is_one, "%s", cases[i].text);
    }
}

Test(cost_file, out_and_in_again, .init = setup, .fini = teardown) {
    for (int with_model = 0; with_model < 2; with_model++) {
        stk_cost_file f = sample(with_model), g, h;
        cr_assert_eq(stk_cost_file_save(path, &f), 0, "%s", stk_error_detail());
        cr_assert_eq(stk_cost_file_load(path, &g), 0, "%s", stk_error_detail());
        cr_assert_str_eq(f.machine, g.machine);
        cr_assert_str_eq(f.model, g.model);
        cr_assert_eq(f.model_bytes, g.model_bytes);
        cr_assert_eq(f.n_threads, g.n_threads);
        cr_assert_eq(f.has_model, g.has_model);
        cr_assert_float_eq(f.float_ops_per_s / g.float_ops_per_s, 1, 1e-14);
        cr_assert_float_eq(f.formats[7].expert_ns_per_byte[9] / g.formats[7].expert_ns_per_byte[9], 1, 1e-14);
        cr_assert_eq(stk_cost_file_save(path, &g), 0);
        cr_assert_eq(stk_cost_file_load(path, &h), 0);
        cr_assert_arr_eq(&g, &h, sizeof g, "what was read comes out the same in every field");
        cr_assert_eq(stk_cost_check(path), 0);
    }
}

Test(cost_file, a_file_that_cannot_be_written_changes_nothing, .init = setup, .fini = teardown) {
    stk_cost_file f = sample(false);
    char bad[TEMP_PATH + 32];
    snprintf(bad, sizeof bad, "%s/none/cost.json", dir);
    cr_assert_eq(stk_cost_file_save(bad, &f), STK_EIO);
    cr_assert_not_null(strstr(stk_error_detail(), bad));
    cr_assert_eq(stk_cost_file_save(dir, &f), STK_EINVAL, "a directory is no file");
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));) cr_assert_eq(e->d_name[0], '.', "%s was left", e->d_name);
    closedir(d);
    char beside[TEMP_PATH + 8];
    snprintf(beside, sizeof beside, "%s.", strrchr(dir, '/') + 1);
    d = opendir(temp_dir());
    for (struct dirent *e; (e = readdir(d));)
        cr_assert_neq(strncmp(e->d_name, beside, strlen(beside)), 0, "%s was left", e->d_name);
    closedir(d);
}

Test(cost_file, cut_off_anywhere, .init = setup, .fini = teardown) {
    stk_cost_file f = sample(true), g;
    cr_assert_eq(stk_cost_file_save(path, &f), 0);
    char *text = strdup(text_of(path));
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i += i < 64 || n - i < 64 ? 1 : 37) {
        write_text(text, i);
        cr_assert_eq(stk_cost_file_load(path, &g), STK_EFORMAT, "cut at %zu of %zu", i, n);
        cr_assert_not_null(strstr(stk_error_detail(), path), "%s", stk_error_detail());
    }
    free(text);
}

/* The text with the first `from` replaced. */
static void expect_refused(const char *text, const char *from, const char *to, const char *says) {
    stk_cost_file g;
    const char *at = strstr(text, from);
    cr_assert_not_null(at, "%s", from);
    char *changed = malloc(strlen(text) + strlen(to) + 1);
    size_t head = (size_t)(at - text);
    memcpy(changed, text, head);
    strcpy(changed + head, to);
    strcat(changed, at + strlen(from));
    write_text(changed, strlen(changed));
    cr_assert_eq(stk_cost_file_load(path, &g), STK_EFORMAT, "%s -> %.40s", from, to);
    cr_assert_not_null(strstr(stk_error_detail(), says), "%s -> %.40s: %s", from, to, stk_error_detail());
    free(changed);
}

Test(cost_file, hostile_fields, .init = setup, .fini = teardown) {
    stk_cost_file f = sample(true);
    cr_assert_eq(stk_cost_file_save(path, &f), 0);
    char *text = strdup(text_of(path)), *big = malloc(2048), *deep = malloc(200001);
    expect_refused(text, "\"stoker_cost\":\t1", "\"stoker_cost\":\t2", "version 2");
    expect_refused(text, "\"stoker_cost\"", "\"stoker\"", "stoker_cost");
    expect_refused(text, "\"threads\":\t7", "\"threads\":\t-7", "threads");
    expect_refused(text, "\"threads\":\t7", "\"threads\":\t1e9", "threads");
    expect_refused(text, "\"phase_ns\":\t99.5", "\"phase_ns\":\t1e999", "phase_ns");
    expect_refused(text, "\"phase_ns\":\t99.5", "\"phase_ns\":\t0", "phase_ns");
    expect_refused(text, "\"phase_ns\":\t99.5", "\"phase_ns\":\tnull", "phase_ns");
    expect_refused(text, "\"phase_ns\":\t99.5", "\"phase_ns\":\tNaN", "JSON");
    expect_refused(text, "\"phase_ns\":\t99.5", "\"phase_ns\":\t{}", "phase_ns");
    expect_refused(text, "\"Q4_K\"", "\"Q4_J\"", "Q4_K");
    expect_refused(text, "\"drive\":\t{", "\"drive\":\t[],\"x\":\t{", "drive");
    expect_refused(text, "\"expert_ns_per_byte\":\t[0.1,", "\"expert_ns_per_byte\":\t[", "9 numbers");
    expect_refused(text, "\"expert_ns_per_byte\":\t[0.1,", "\"expert_ns_per_byte\":\t[1, 2,", "list of 10");
    expect_refused(text, "\"expert_ns_per_byte\":\t[0.1,", "\"expert_ns_per_byte\":\t[\"0.1\",", "list of 10");
    expect_refused(text, "\"model\":\t{", "\"model\":\t3, \"x\":\t{", "model");
    memset(big, 'x', 2047);
    big[0] = '"', big[2046] = '"', big[2047] = 0;
    expect_refused(text, "\"some model\"", big, "name");
    memset(deep, '[', 200000);
    deep[200000] = 0;
    write_text(deep, 200000);
    stk_cost_file g;
    cr_assert_eq(stk_cost_file_load(path, &g), STK_EFORMAT);
    write_text("{}\0{}", 5);
    cr_assert_eq(stk_cost_file_load(path, &g), STK_EFORMAT);
    write_text("[1]", 3);
    cr_assert_eq(stk_cost_file_load(path, &g), STK_EFORMAT);
    free(text);
    free(big);
    free(deep);
}

Test(cost_file, no_file_or_too_much_of_one, .init = setup, .fini = teardown) {
    stk_cost_file g;
    cr_assert_eq(stk_cost_file_load(path, &g), STK_EIO);
    cr_assert_eq(stk_cost_file_load(dir, &g), STK_EIO);
    cr_assert_eq(stk_cost_check(NULL), STK_EINVAL);
    char *spaces = malloc(3u << 20);
    memset(spaces, ' ', 3u << 20);
    write_text(spaces, 3u << 20);
    cr_assert_eq(stk_cost_file_load(path, &g), STK_EFORMAT);
    free(spaces);
}

Test(cost_file, tables) {
    stk_model *model;
    stk_cost_file f = sample(true);
    stk_cost c;
    stk_model_info info = {.struct_bytes = sizeof info};
    cr_assert_eq(stk_model_open(&model, MODEL), 0);
    cr_assert_eq(stk_model_get_info(model, &info), 0);

    /* Its own figures, for the same model alone. */
    stk_cost_file_table(&f, NULL, &c);
    cr_assert_float_eq(c.expert_ns_per_byte[3], f.experts.expert_ns_per_byte[3], 1e-12);
    cr_assert_float_eq(c.dense_layer_ns[9], 1e6, 1e-6);
    cr_assert_float_eq(c.nvme_bytes_per_ns, 1.8, 1e-9);
    stk_cost_file_table(&f, model, &c);
    cr_assert_float_neq(c.dense_layer_ns[9], 1e6, 1.0);
    f.model_bytes = info.file_bytes;
    snprintf(f.model, sizeof f.model, "%s", info.name);
    stk_cost_file_table(&f, model, &c);
    cr_assert_float_eq(c.dense_layer_ns[9], 1e6, 1e-6);

    /* A mix of the formats that its experts have, by bytes. */
    f.has_model = false;
    stk_cost_file_table(&f, model, &c);
    double least = 1e9, most = 0;
    for (uint32_t k = 0; k < stk_catalogue_n_class(model->experts); k++)
        for (uint32_t p = 0; p < STK_N_PART; p++)
            for (int i = 0; i < STK_COST_N_FORMAT; i++)
                if (stk_cost_formats[i] == stk_catalogue_class(model->experts, k)->part[p].type) {
                    least = STK_MIN(least, f.formats[i].expert_ns_per_byte[0]);
                    most = STK_MAX(most, f.formats[i].expert_ns_per_byte[0]);
                }
    cr_assert(least < most, "the model has a mix");
    cr_assert(c.expert_ns_per_byte[0] > least && c.expert_ns_per_byte[0] < most, "%g is not between %g and %g",
              c.expert_ns_per_byte[0], least, most);

    /* A table is one that a trace can hold. */
    double numbers[64] = {0};
    stk_cost d;
    cr_assert_leq(stk_cost_export(&c, numbers, 64), 64);
    cr_assert_eq(stk_cost_import(&d, numbers, 64), 0, "%s", stk_error_detail());
    stk_cost_file_table(&f, NULL, &c);
    cr_assert_float_eq(c.expert_ns_per_byte[0], f.formats[5].expert_ns_per_byte[0], 1e-12, "Q4_K");
    stk_model_close(&model);
}

Test(cost_file, an_engine_and_a_replay_start_from_it, .init = setup, .fini = teardown) {
    stk_cost_file f = sample(true);
    stk_engine_options o;
    stk_engine *engine;
    stk_model *model;
    char trace[TEMP_PATH + 32];
    f.wake_ns = 40000;
    f.event_ns = f.lookahead_ns = 8000;
    f.read_ns_per_byte = 0.2;
    snprintf(trace, sizeof trace, "%s/run.trace", dir);
    cr_assert_eq(stk_cost_file_save(path, &f), 0);
    cr_assert_eq(stk_model_open(&model, MODEL), 0);
    stk_engine_options_default(&o, sizeof o);
    o.n_threads = 1;
    o.n_ctx = 64;
    o.cost = path;
    o.trace = trace;
    cr_assert_eq(stk_engine_open(&engine, model, &o), 0, "%s", stk_error_detail());
    int32_t token[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    cr_assert_eq(stk_step(engine, &(stk_batch){.struct_bytes = sizeof(stk_batch), .n = 8, .token = token}), 0);
    cr_assert_eq(stk_engine_close(&engine), 0);

    /* Twice as fast a drive and CPU take half the time. */
    stk_replay_options r;
    stk_replay_result slow = {.struct_bytes = sizeof slow}, fast = slow;
    stk_replay_options_default(&r, sizeof r);
    r.cost = path;
    cr_assert_eq(stk_replay(trace, &r, &slow), 0, "%s", stk_error_detail());
    f.drive_bytes_per_s *= 2;
    f.drive_latency_ns /= 2;
    f.experts.arrive_ns_per_byte /= 2;
    f.wake_ns /= 2;
    f.event_ns /= 2;
    f.lookahead_ns /= 2;
    f.read_ns_per_byte /= 2;
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) {
        f.experts.expert_ns_per_byte[i] /= 2;
        f.dense_layer_ns[i] /= 2;
        f.dense_step_ns[i] /= 2;
    }
    cr_assert_eq(stk_cost_file_save(path, &f), 0);
    cr_assert_eq(stk_replay(trace, &r, &fast), 0, "%s", stk_error_detail());
    double ratio = (double)slow.virtual_ns / (double)fast.virtual_ns;
    cr_assert(ratio > 1.98 && ratio < 2.02, "%g", ratio);

    write_text("{", 1);
    cr_assert_eq(stk_replay(trace, &r, &fast), STK_EFORMAT);
    o.trace = NULL;
    cr_assert_eq(stk_engine_open(&engine, model, &o), STK_EFORMAT);
    cr_assert_null(engine);
    stk_model_close(&model);
    unlink(trace);
}

Test(cost_file, known_machines_are_files_that_are_there, .init = setup, .fini = teardown) {
    stk_cost_file f, again;
    stk_cost c;
    bool is_one;
    uint32_t n = 0, n_gpu = 0;
    for (const char *name; (name = stk_machine_list(n)) != NULL; n++) {
        cr_assert_eq(stk_cost_file_probe(name, &is_one), 0);
        cr_assert(is_one);
        cr_assert_eq(stk_cost_file_load(name, &f), 0, "%s", stk_error_detail());
        cr_assert_eq(stk_cost_file_save(path, &f), 0);
        cr_assert_eq(stk_cost_file_load(path, &again), 0, "%s", stk_error_detail());
        cr_assert_eq(memcmp(&f, &again, sizeof f), 0, "%s is not the same when written and read", name);
        bool gpu = f.gpu.name[0] != 0;
        n_gpu += gpu;
        cr_assert_eq(stk_cost_file_table_gpu(&f, NULL, &c), gpu ? 0 : STK_EINVAL);
        if (!gpu) continue;
        cr_assert(c.gpu.cpu_slowdown >= 1 && c.gpu.link_bytes_per_ns >= c.gpu.link_bytes_per_ns_computing);
        cr_assert_lt(stk_cost_gpu_expert_ns(&c, 1 << 20, 1), stk_cost_expert_ns(&c, 1 << 20, 1));
    }
    cr_assert_eq(n, 3u);
    cr_assert_eq(n_gpu, 2u);
    cr_assert_eq(stk_cost_file_load("5090", &f), STK_EIO);
}
