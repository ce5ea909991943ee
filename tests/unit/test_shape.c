/* shape: what is said of a shape without a file is what the file that synth writes of it says; a trace of another shape is
 * refused.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/model/shape.h"
#include "tests/temp.h"
#include "traces/source.h"

static char model_path[TEMP_PATH], trace_path[TEMP_PATH];

static void open_paths(void) {
    temp_file(model_path, "stoker-shape");
    temp_file(trace_path, "stoker-shape-trace");
}
static void remove_paths(void) {
    unlink(model_path);
    unlink(trace_path);
}
TestSuite(shape, .init = open_paths, .fini = remove_paths);

static stk_model *synth(const char *type) {
    stk_synth_options o;
    stk_model *model;
    stk_synth_options_default(&o, sizeof o);
    o.shape = "tiny";
    o.type = type;
    cr_assert_eq(stk_synth(model_path, &o), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_model_open(&model, model_path), 0, "%s", stk_error_detail());
    return model;
}

static stk_trace_header named(const char *name) {
    stk_trace_header h;
    cr_assert_eq(stk_shape_of_name(name, &h), 0, "%s", stk_error_detail());
    return h;
}

static void same_sizes(const stk_trace_header *a, const stk_trace_header *b) {
    cr_assert(a->n_layer == b->n_layer && a->n_expert == b->n_expert && a->k == b->k && a->n_part == b->n_part);
    for (uint32_t l = 0; l < a->n_layer; l++) {
        const stk_trace_class *x = &a->classes[a->layer_class[l]], *y = &b->classes[b->layer_class[l]];
        cr_assert_eq(a->model_layer[l], b->model_layer[l]);
        cr_assert(x->slot_bytes == y->slot_bytes && x->payload_bytes == y->payload_bytes, "layer %u: %zu and %zu bytes", l,
                  (size_t)x->payload_bytes, (size_t)y->payload_bytes);
    }
    /* Where in the file matrices begin differs by its head; from one expert to the next it is as far. */
    for (uint32_t i = a->n_part; i < a->n_expert * a->n_part; i++) {
        uint64_t far_a = a->extents[i].offset - a->extents[i - a->n_part].offset,
                 far_b = b->extents[i].offset - b->extents[i - b->n_part].offset;
        cr_assert(far_a + STK_DIRECT_ALIGN >= far_b && far_b + STK_DIRECT_ALIGN >= far_a);
    }
}

Test(shape, is_that_of_the_file) {
    static const char *const types[] = {"Q4_K_M", "Q8_0", "F16"};
    for (size_t i = 0; i < STK_ARRAY_LEN(types); i++) {
        char name[32];
        stk_model *model = synth(types[i]);
        stk_trace_header of_file, of_name;
        snprintf(name, sizeof name, "tiny:%s", types[i]);
        of_name = named(name);
        cr_assert_eq(stk_shape_of_model(model, &of_file), 0, "%s", stk_error_detail());
        same_sizes(&of_file, &of_name);
        stk_shape_close(&of_file);
        stk_shape_close(&of_name);
        stk_model_close(&model);
    }
}

Test(shape, without_a_type_is_q4_k_m) {
    stk_trace_header plain = named("tiny"), q4 = named("tiny:Q4_K_M"), q8 = named("tiny:Q8_0");
    same_sizes(&plain, &q4);
    cr_assert_gt(q8.classes[0].payload_bytes, q4.classes[0].payload_bytes);
    stk_shape_close(&plain);
    stk_shape_close(&q4);
    stk_shape_close(&q8);
}

Test(shape, wrong_names_list_the_right_ones) {
    stk_trace_header h;
    cr_assert_eq(stk_shape_of_name("huge", &h), STK_EINVAL);
    cr_assert_not_null(strstr(stk_error_detail(), "tiny"));
    cr_assert_eq(stk_shape_of_name("tiny:Q1", &h), STK_EINVAL);
    cr_assert_not_null(strstr(stk_error_detail(), "Q8_0"));
}

/* A trace of another tool, of 4 layers of n experts. */
static void write_trace(int n_expert) {
    FILE *f = fopen(trace_path, "w");
    fprintf(f, "# n_expert=%d\nstep,seq,pos,phase,layer,experts\n", n_expert);
    for (int step = 0; step < 40; step++)
        for (int layer = 0; layer < 4; layer++)
            fprintf(f, "%d,0,%d,decode,%d,%d %d %d %d\n", step, step, layer, step % 7, 7 + step % 5, 12, 13 + step % 3);
    fclose(f);
}

Test(shape, gives_an_imported_trace_its_bytes) {
    stk_model *model = synth("Q4_K_M");
    stk_replay_options o;
    stk_replay_result by_name = {.struct_bytes = sizeof by_name}, by_model = by_name;
    stk_trace_header h = named("tiny");
    write_trace(16);
    stk_replay_options_default(&o, sizeof o);
    o.fraction = 0.5;
    o.io = "emu:1G,50us";
    o.model_shape = "tiny";
    cr_assert_eq(stk_replay(trace_path, &o, &by_name), 0, "%s", stk_error_detail());
    o.model_shape = NULL;
    o.model = model;
    cr_assert_eq(stk_replay(trace_path, &o, &by_model), 0, "%s", stk_error_detail());
    cr_assert_gt(by_name.stats.n_miss, 0);
    cr_assert(by_name.stats.n_miss == by_model.stats.n_miss && by_name.stats.bytes == by_model.stats.bytes &&
              by_name.ram_bytes == by_model.ram_bytes);
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t c = 0; c < h.n_class; c++) {
        least = STK_MIN(least, h.classes[c].payload_bytes);
        most = STK_MAX(most, h.classes[c].payload_bytes);
    }
    cr_assert(by_name.stats.bytes >= by_name.stats.n_miss * least && by_name.stats.bytes <= by_name.stats.n_miss * most);
    o.model_shape = "tiny";
    cr_assert_eq(stk_replay(trace_path, &o, &by_name), STK_EINVAL, "a model and a shape");
    stk_shape_close(&h);
    stk_model_close(&model);
}

Test(shape, of_another_model_is_refused) {
    stk_replay_options o;
    stk_replay_result r = {.struct_bytes = sizeof r};
    write_trace(32);
    stk_replay_options_default(&o, sizeof o);
    o.fraction = 0.5;
    o.model_shape = "tiny";
    cr_assert_eq(stk_replay(trace_path, &o, &r), STK_EINVAL);
    cr_assert_not_null(strstr(stk_error_detail(), "4 layers of 32 experts"), "%s", stk_error_detail());
}
