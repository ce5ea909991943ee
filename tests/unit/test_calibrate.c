/* calibrate: the parts that a calibration is made of, in a range that machines can have; and all of it on a small model. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/machine/calibrate.h"
#include "tests/temp.h"

#define MODEL STK_TEST_DATA "/ember-q4_k_m.gguf"

typedef struct setup {
    stk_pool *pool;
    stk_calibrate_experts *experts;
} setup;

static setup start(void) {
    setup s;
    cr_assert_eq(stk_pool_open(&s.pool, 2), 0);
    cr_assert_eq(stk_calibrate_experts_open(&s.experts, s.pool, stk_cpu_ops_get(NULL)), 0, "%s", stk_error_detail());
    return s;
}

static void end(setup *s) {
    stk_calibrate_experts_close(&s->experts);
    stk_pool_close(&s->pool);
}

static void count(void *user) { ++*(uint64_t *)user; }

Test(calibrate, experts_of_every_format) {
    setup s = start();
    for (int i = 0; i < STK_COST_N_FORMAT; i++) {
        uint64_t one, many, packed, n_poll = 0;
        double a = stk_calibrate_experts_run(s.experts, stk_cost_formats[i], 1, count, &n_poll, &one);
        double b = stk_calibrate_experts_run(s.experts, stk_cost_formats[i], 33, NULL, NULL, &many);
        double c = stk_calibrate_experts_pack(s.experts, stk_cost_formats[i], &packed);
        cr_assert_eq(one, many, "the payload is that of the weights, whatever the tokens");
        cr_assert_eq(one, 2 * packed);
        uint64_t row;
        cr_assert_eq(stk_type_row_bytes(stk_cost_formats[i], 2048, &row), 0);
        cr_assert_eq(one, 8 * 3 * 768 * row);
        cr_assert(a > 0 && b > 0 && c > 0);
        cr_assert(a / (double)one > 1e-4 && a / (double)one < 1e4, "%g ns a byte", a / (double)one);
        /* On a busy machine worker 1 may do a whole run alone. */
        for (int again = 0; n_poll == 0 && again < 200; again++)
            stk_calibrate_experts_run(s.experts, stk_cost_formats[i], 1, count, &n_poll, &one);
        cr_assert_gt(n_poll, 0, "worker 0 looks for reads between portions");
    }
    end(&s);
}

Test(calibrate, a_modelled_drive_has_the_speed_of_its_model) {
    char name[TEMP_PATH];
    cr_assert_eq(truncate(temp_file(name, "stoker-drive"), 4 << 20), 0);
    stk_calibrate_read reads[12];
    for (uint32_t i = 0; i < 12; i++) reads[i] = (stk_calibrate_read){0, i * 262144u, 65536};
    const char *paths[] = {name};
    stk_calibrate_drive d = {.paths = paths, .n_file = 1, .io = "emu:100M,2ms", .reads = reads, .n_expert = 4, .k = 4};
    setup s = start();
    stk_cost_file f;
    memset(&f, 0, sizeof f);
    cr_assert_eq(stk_calibrate_drive_measure(&d, s.experts, &f), 0, "%s", stk_error_detail());
    cr_assert_str_eq(f.io, "emu");
    cr_assert(f.drive_bytes_per_s > 30e6 && f.drive_bytes_per_s < 105e6, "%g", f.drive_bytes_per_s);
    cr_assert(f.drive_bytes_per_s_computing > 1e6 && f.drive_bytes_per_s_computing < 110e6, "%g", f.drive_bytes_per_s_computing);
    cr_assert(f.drive_latency_ns > 2e6 && f.drive_latency_ns < 1e8, "%g", f.drive_latency_ns);
    cr_assert_geq(f.compute_slowdown, 1);

    d.io = "emu:100M,10us,eio=5";
    cr_assert_eq(stk_calibrate_drive_measure(&d, s.experts, &f), STK_EIO, "a failed read is an error");
    paths[0] = "/nowhere/file";
    cr_assert_eq(stk_calibrate_drive_measure(&d, s.experts, &f), STK_EIO);
    end(&s);
    unlink(name);
}

Test(calibrate, a_model) {
    stk_model *model;
    stk_calibrate_options o;
    static stk_cost_file f;
    stk_calibrate_options_default(&o, sizeof o);
    o.n_threads = 2;
    cr_assert_eq(stk_model_open(&model, MODEL), 0);
    cr_assert_eq(stk_calibrate_model_measure(model, &o, &f), 0, "%s", stk_error_detail());
    cr_assert(f.has_model && f.model_bytes > 0 && strlen(f.model) > 0);
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) {
        cr_assert(f.experts.expert_ns_per_byte[i] > 1e-4 && f.experts.expert_ns_per_byte[i] < 1e5, "%u: %g", i,
                  f.experts.expert_ns_per_byte[i]);
        cr_assert(f.dense_layer_ns[i] > 1e3 && f.dense_layer_ns[i] < 1e11, "%u: %g", i, f.dense_layer_ns[i]);
        cr_assert(f.dense_step_ns[i] > 1e3 && f.dense_step_ns[i] < 1e11, "%u: %g", i, f.dense_step_ns[i]);
    }
    cr_assert_gt(f.experts.expert_ns_per_byte[9], f.experts.expert_ns_per_byte[0], "512 tokens take longer than one");
    cr_assert_gt(f.experts.arrive_ns_per_byte, 0);
    stk_model_close(&model);
}

static int cancel(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    return ++*(int *)user > 2;
}

Test(calibrate, cancelled_it_leaves_no_file) {
    char path[TEMP_PATH];
    unlink(temp_file(path, "stoker-calibrate"));
    int n = 0;
    stk_calibrate_options o;
    stk_calibrate_options_default(&o, sizeof o);
    o.n_threads = 2;
    o.progress = cancel;
    o.progress_user = &n;
    cr_assert_eq(stk_calibrate(NULL, &o, path), STK_ECANCELED);
    cr_assert_neq(access(path, F_OK), 0);
    cr_assert_eq(stk_calibrate(NULL, &o, NULL), STK_EINVAL);
    o.struct_bytes = 4096;
    cr_assert_eq(stk_calibrate(NULL, &o, path), STK_EINVAL);
    stk_model *model;
    cr_assert_eq(stk_model_open(&model, MODEL), 0);
    cr_assert_eq(stk_calibrate(model, NULL, MODEL), STK_EINVAL, "the model is not written over");
    stk_model_close(&model);
}
