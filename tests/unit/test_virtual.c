/*
 * virtual, step: times of the modelled queues against sums done by hand, on a trace that is written here: one layer of 8 experts,
 * top-2, of 1 MB each, 4 slots.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/plan/cost.h"
#include "tests/temp.h"
#include "traces/trace.h"

enum { E = 8, K = 2, MB = 1000000 };

static char path[TEMP_PATH];

static stk_trace_writer *begin(void) {
    static stk_trace_extent extents[E];
    for (int i = 0; i < E; i++) extents[i] = (stk_trace_extent){0, (uint64_t)i * MB, MB};
    static const stk_trace_class class = {MB, MB, 4, 0};
    static const uint32_t zero[1] = {0};
    stk_trace_header h = {.n_layer = 1,
                          .n_expert = E,
                          .k = K,
                          .n_part = 1,
                          .n_class = 1,
                          .n_batch = 4,
                          .ram_bytes = 4 * MB,
                          .classes = &class,
                          .layer_class = zero,
                          .model_layer = zero,
                          .extents = extents,
                          .model = "hand",
                          .policy = "lru",
                          .params = "",
                          .io = ""};
    temp_file(path, "stoker-virtual");
    stk_trace_writer *w;
    cr_assert_eq(stk_trace_writer_open(&w, path, &h), 0, "%s", stk_error_detail());
    return w;
}

/* One decoded token that uses experts a and b. */
static void token(stk_trace_writer *w, uint64_t step, uint16_t a, uint16_t b) {
    static const int32_t zero[1] = {0};
    static const uint8_t logits[1] = {1};
    const int32_t pos[1] = {(int32_t)step};
    const uint16_t ids[K] = {a, b}, distinct[K] = {STK_MIN(a, b), STK_MAX(a, b)};
    const float weights[K] = {0.5f, 0.5f};
    const uint32_t counts[K] = {1, 1};
    stk_trace_record r = {.kind = STK_TRACE_STEP, .step = {step, 1, zero, pos, zero, logits}};
    cr_assert_eq(stk_trace_write(w, &r), 0, "%s", stk_error_detail());
    r = (stk_trace_record){.kind = STK_TRACE_EVENT,
                           .event = {.step = step,
                                     .n_tok = 1,
                                     .k = K,
                                     .n_expert = E,
                                     .n_distinct = K,
                                     .seq = zero,
                                     .pos = pos,
                                     .token = zero,
                                     .ids = ids,
                                     .weights = weights,
                                     .distinct = distinct,
                                     .counts = counts}};
    cr_assert_eq(stk_trace_write(w, &r), 0, "%s", stk_error_detail());
}

static void end(stk_trace_writer *w, const stk_cost *cost) {
    stk_trace_record r = {.kind = STK_TRACE_COST};
    stk_cost_export(cost, r.cost, STK_TRACE_N_COST);
    cr_assert_eq(stk_trace_write(w, &r), 0);
    r = (stk_trace_record){.kind = STK_TRACE_END};
    cr_assert_eq(stk_trace_write(w, &r), 0);
    cr_assert_eq(stk_trace_writer_close(&w), 0);
}

/* Computing an expert 200 us, arriving 50 us, a layer's dense part 300 us, a step's 100 us. */
static stk_cost costs(void) {
    stk_cost c;
    stk_cost_default(&c);
    for (int i = 0; i < STK_COST_POINTS; i++) {
        c.expert_ns_per_byte[i] = 0.2;
        c.dense_layer_ns[i] = 300000;
        c.dense_step_ns[i] = 100000;
    }
    c.arrive_ns_per_byte = 0.05;
    c.event_ns = c.lookahead_ns = c.wake_ns = c.read_ns_per_byte = 1e-9; /* nothing, unless a test says otherwise */
    return c;
}

static stk_replay_result run(const char *io) {
    stk_replay_options o;
    stk_replay_options_default(&o, sizeof o);
    o.io = io;
    stk_replay_result r = {.struct_bytes = sizeof r};
    cr_assert_eq(stk_replay(path, &o, &r), 0, "%s", stk_error_detail());
    return r;
}

Test(virtual, hits_cost_computation_alone) {
    stk_trace_writer *w = begin();
    stk_cost c = costs();
    token(w, 0, 0, 1);
    for (uint64_t i = 1; i < 11; i++) token(w, i, 0, 1);
    end(w, &c);
    stk_replay_result r = run("emu:1G,0us");
    /* 11 steps of 400 us dense and 2 x 200 us; the first waits for 1 ms of reading, then brings an expert in (250 us each), the
     * second of which arrives another ms later. */
    double first = 300 + 1000 + 1000 + 250 + 100, rest = 10 * (300 + 2 * 200 + 100);
    cr_assert_float_eq((double)r.virtual_ns, (first + rest) * 1000, 1000);
    cr_assert_eq(r.stats.n_hit, 20);
    cr_assert_eq(r.stats.n_miss, 2);
    cr_assert_float_eq((double)r.stats.wait_ns, (1000 + 750) * 1e3, 1000);
    unlink(path);
}

Test(virtual, a_read_is_hidden_behind_a_hit) {
    stk_trace_writer *w = begin();
    stk_cost c = costs();
    token(w, 0, 0, 1);
    token(w, 1, 0, 2);
    end(w, &c);
    stk_replay_result all = run("emu:1G,0us"), fast = run("emu:10G,0us");
    double first = 300 + 2000 + 250 + 100, second = 300 + 1000 + 250 + 100;
    cr_assert_float_eq((double)all.virtual_ns, (first + second) * 1000, 1000);
    /* At 10 GB/s the read takes 100 us, less than the hit's 200 us. */
    first = 300 + 100 + 2 * 250 + 100;
    second = 300 + 200 + 250 + 100;
    cr_assert_float_eq((double)fast.virtual_ns, (first + second) * 1000, 1000);
    unlink(path);
}

Test(virtual, latency_is_felt_once_by_reads_that_are_in_flight_together) {
    stk_trace_writer *w = begin();
    stk_cost c = costs();
    token(w, 0, 0, 1);
    end(w, &c);
    stk_replay_result r = run("emu:1G,5ms");
    cr_assert_float_eq((double)r.virtual_ns, (300 + 5000 + 2000 + 250 + 100) * 1e3, 1000);
    unlink(path);
}

Test(virtual, without_a_drive_there_are_decisions_and_no_time) {
    stk_trace_writer *w = begin();
    stk_cost c = costs();
    for (uint64_t i = 0; i < 8; i++) token(w, i, (uint16_t)i % E, (uint16_t)(i + 1) % E);
    end(w, &c);
    stk_replay_result r = run(NULL);
    cr_assert_eq(r.virtual_ns, 0);
    cr_assert_eq(r.stats.n_lookup, 16);
    cr_assert_eq(r.stats.n_miss, 9);
    cr_assert_eq(r.stats.bytes, 9 * MB);
    cr_assert_eq(r.stats.n_evict, 5);
    unlink(path);
}

/* ---- Reads ahead: two layers of 4 experts, top-1; parts of 300 KB and less, one after the other at 1 GB/s ---- */

enum { L2 = 2, E2 = 4, PART = 300000 };

static stk_trace_writer *begin_parts(void) {
    static stk_trace_extent extents[L2 * E2 * 3];
    static const stk_trace_class class = {3 * PART, 3 * PART, 4, 0};
    static const uint32_t layer_class[L2] = {0, 0}, model_layer[L2] = {0, 1};
    for (uint64_t i = 0; i < STK_ARRAY_LEN(extents); i++) extents[i] = (stk_trace_extent){0, i * PART, PART};
    stk_trace_header h = {.n_layer = L2,
                          .n_expert = E2,
                          .k = 1,
                          .n_part = 3,
                          .n_class = 1,
                          .n_batch = 4,
                          .ram_bytes = 12 * PART,
                          .classes = &class,
                          .layer_class = layer_class,
                          .model_layer = model_layer,
                          .extents = extents,
                          .model = "hand",
                          .policy = "lru",
                          .params = "",
                          .io = ""};
    temp_file(path, "stoker-virtual");
    stk_trace_writer *w;
    cr_assert_eq(stk_trace_writer_open(&w, path, &h), 0, "%s", stk_error_detail());
    return w;
}

/* A step of one token that uses `first` in layer 0 and `second` in layer 1; at layer 0, `said` of layer 1 is predicted, if any.
 */
static void two_layers(stk_trace_writer *w, uint64_t step, uint16_t first, int said, uint16_t second) {
    static const int32_t zero[1] = {0};
    static const uint8_t logits[1] = {1};
    const int32_t pos[1] = {(int32_t)step};
    stk_trace_record r = {.kind = STK_TRACE_STEP, .step = {step, 1, zero, pos, zero, logits}};
    cr_assert_eq(stk_trace_write(w, &r), 0, "%s", stk_error_detail());
    for (uint32_t layer = 0; layer < L2; layer++) {
        r = (stk_trace_record){
            .kind = STK_TRACE_EVENT,
            .event = {.step = step, .layer = layer, .n_tok = 1, .k = 1, .n_expert = E2, .ids = layer ? &second : &first}};
        cr_assert_eq(stk_trace_write(w, &r), 0, "%s", stk_error_detail());
        if (layer || said < 0) continue;
        stk_ahead list[1] = {{E2 + (uint32_t)said, 1.0f, true}};
        r = (stk_trace_record){.kind = STK_TRACE_AHEAD, .ahead = {1, list}};
        cr_assert_eq(stk_trace_write(w, &r), 0, "%s", stk_error_detail());
    }
}

/* Computing an expert 180 us (120 and 60 us by halves), packing a part 15 us; dense as above. */
static const double up_us = 120, down_us = 60, part_us = 15, read_us = 300;

Test(virtual, gate_and_up_are_computed_while_down_is_read) {
    stk_trace_writer *w = begin_parts();
    stk_cost c = costs();
    two_layers(w, 0, 0, -1, 0);
    end(w, &c);
    stk_replay_result r = run("emu:1G,0us");
    /* Each layer: three reads, the packing of two and the first half hidden behind the third; then its packing and second half.
     */
    double layer = 300 + 3 * read_us + part_us + down_us;
    cr_assert_float_eq((double)r.virtual_ns, (2 * layer + 100) * 1e3, 1000);
    cr_assert_float_eq((double)r.stats.expert_ns, 2 * (up_us + down_us) * 1e3, 1000);
    cr_assert_float_eq((double)r.stats.arrive_ns, 6 * part_us * 1e3, 1000);
    unlink(path);
}

Test(virtual, a_read_ahead_is_hidden_behind_the_layer_before) {
    stk_trace_writer *w = begin_parts();
    stk_cost c = costs();
    two_layers(w, 0, 0, 1, 1);
    end(w, &c);
    stk_replay_result r = run("emu:1G,0us");
    /* Layer 0 as ever; at its end, 75 us into the read ahead, 825 us of it are left, 300 of which pass in layer 1's dense part.
     */
    double first = 300 + 3 * read_us + part_us + down_us, second = 3 * read_us - part_us - down_us + part_us + down_us;
    cr_assert_float_eq((double)r.virtual_ns, (first + second + 100) * 1e3, 1000);
    cr_assert(r.stats.n_prefetch == 1 && r.stats.n_prefetch_used == 1 && r.stats.n_miss == 1 && r.stats.n_hit == 1);
    cr_assert_eq(r.stats.bytes, 6 * PART);
    unlink(path);
}

Test(virtual, a_read_ahead_that_began_is_waited_for_and_the_rest_yields) {
    stk_trace_writer *w = begin_parts();
    stk_cost c = costs();
    two_layers(w, 0, 0, 1, 2); /* a wrong guess */
    end(w, &c);
    stk_replay_result r = run("emu:1G,0us");
    /* A read ahead is in flight in two pieces of 96 KiB: 375 us into it, two of its second part are under way, the first of which
     * began after 300 us; then the demand's three, as ever. What of the read ahead is left is not read; what landed is packed
     * while there is nothing better to do. */
    double piece_us = 98.304, ahead_us = read_us + 2 * piece_us - 375;
    double first = 300 + 3 * read_us + part_us + down_us, second = 300 + ahead_us + 3 * read_us + part_us + down_us;
    cr_assert_float_eq((double)r.virtual_ns, (first + second + 100) * 1e3, 1000);
    cr_assert(r.stats.n_prefetch == 1 && r.stats.n_prefetch_used == 0 && r.stats.n_miss == 2);
    cr_assert_eq(r.stats.bytes, 9 * PART);
    unlink(path);
}

/* ---- What a token costs besides ---- */

static stk_replay_result run_with(stk_cost c) {
    stk_trace_writer *w = begin();
    token(w, 0, 0, 1);
    end(w, &c);
    stk_replay_result r = run("emu:1G,0us");
    unlink(path);
    return r;
}

Test(virtual, events_and_waking_up_take_time) {
    stk_cost c = costs();
    uint64_t before = run_with(c).virtual_ns;
    c.event_ns = 7000;
    cr_assert_eq(run_with(c).virtual_ns, before, "what an event costs passes while its reads are waited for");
    c.event_ns = 1e-9;
    c.wake_ns = 11000;
    /* Two waits; packing the first expert and computing it hide behind the second read, and so does waking up for it. */
    cr_assert_float_eq((double)run_with(c).virtual_ns, (double)before + 11000, 10);
}

/* A byte read beside work costs the work; beside waiting it costs nothing. */
Test(virtual, reading_slows_down_the_work_beside_it) {
    stk_cost c = costs();
    for (int i = 0; i < STK_COST_POINTS; i++) c.expert_ns_per_byte[i] = 0.6;
    stk_replay_result alone = run_with(c);
    c.read_ns_per_byte = 0.1;
    stk_replay_result beside = run_with(c);
    /* The first expert is computed from 1,350 us on; one piece of 512 KiB of the second comes back at 1,824 us, the other after.
     */
    cr_assert_float_eq((double)(beside.stats.expert_ns - alone.stats.expert_ns), 0.1 * (512 << 10), 10);
    cr_assert_eq(beside.stats.dense_ns, alone.stats.dense_ns, "nothing is read beside the dense part");
    cr_assert_eq(beside.virtual_ns, alone.virtual_ns, "it is waiting that gets shorter");
}

/* The same guess comes true a step later: what was given up is read again, on demand. */
Test(virtual, what_was_given_up_as_stale_is_read_when_it_is_wanted_after_all) {
    stk_trace_writer *w = begin_parts();
    stk_cost c = costs();
    two_layers(w, 0, 0, 1, 2);
    two_layers(w, 1, 0, -1, 1);
    end(w, &c);
    stk_replay_result r = run("emu:1G,0us");
    cr_assert(r.stats.n_prefetch == 1 && r.stats.n_prefetch_used == 1 && r.stats.n_miss == 2 && r.stats.n_hit == 2);
    /* All but its first part, which is there and packed: it waits for the drive and down, as ever. */
    double first = 300 + 3 * read_us + part_us + down_us,
           second = 300 + read_us + 2 * 98.304 - 375 + 3 * read_us + part_us + down_us;
    double third = 300 + up_us + down_us, fourth = 300 + 2 * read_us + part_us + down_us;
    cr_assert_float_eq((double)r.virtual_ns, (first + second + 100 + third + fourth + 100) * 1e3, 1000, "%g",
                       (double)r.virtual_ns * 1e-3 - (first + second + third + fourth + 200));
    unlink(path);
}
