/* decide: decides and counts what the timed path does, for every kind of trace, policy, scope and reset. */
#include <criterion/criterion.h>
#include <string.h>

#include "src/base.h"
#include "tests/trace_random.h"

enum { N_LAYER = 4, N_EXPERT = 16, K = 3, N_STEP = 120 };

/* Steps of several sequences and sizes; experts repeat. Experts of the two halves of the layers differ in size. */
static void make_csv(const char *path) {
    trace_input t = {.rng = 11};
    FILE *f = fopen(path, "w");
    int pos[3] = {0};
    for (int layer = 0; layer < N_LAYER; layer++) fprintf(f, "# layer=%d expert_bytes=%d\n", layer, layer < 2 ? 5000 : 9000);
    fprintf(f, "# n_expert=%d\nstep,seq,pos,phase,layer,experts\n", N_EXPERT);
    for (int step = 0; step < N_STEP; step++) {
        int seq = step / 20 % 3, n = tr_below(&t, 3) ? 1 : 1 + (int)tr_below(&t, 9);
        if (step % 20 == 0) pos[seq] = 0;
        for (int layer = 0; layer < N_LAYER; layer++)
            for (int i = 0; i < n; i++) {
                if (layer == N_LAYER - 1 && i < n - 1) continue;
                uint32_t a = tr_below(&t, N_EXPERT) * tr_below(&t, N_EXPERT) / N_EXPERT;
                fprintf(f, "%d,%d,%d,%s,%d,%u %u %u\n", step, seq, pos[seq] + i, n > 1 ? "prefill" : "decode", layer, a,
                        (a + 1 + tr_below(&t, 3)) % N_EXPERT, (a + 8) % N_EXPERT);
            }
        pos[seq] += n;
    }
    fclose(f);
}

static bool same_count(const stk_replay_count *a, const stk_replay_count *b) {
    return a->n_token == b->n_token && a->n_event == b->n_event && a->n_lookup == b->n_lookup && a->n_hit == b->n_hit &&
           a->n_miss == b->n_miss && a->n_evict == b->n_evict && a->bytes == b->bytes && a->read_bytes == b->read_bytes;
}

static stk_replay_detail run(const char *path, stk_replay_options o, stk_replay_layer *layers, stk_stats *stats) {
    stk_replay_detail d = {.struct_bytes = sizeof d, .layers = layers, .n_layer_max = N_LAYER};
    stk_replay_result r = {.struct_bytes = sizeof r};
    o.struct_bytes = sizeof o;
    o.detail = &d;
    cr_assert_eq(stk_replay(path, &o, &r), 0, "%s", stk_error_detail());
    *stats = r.stats;
    return d;
}

static void compare(const char *path, stk_replay_options o) {
    stk_replay_layer a_layers[N_LAYER], b_layers[N_LAYER];
    stk_stats a, b;
    stk_replay_detail da = run(path, o, a_layers, &a);
    o.io = "emu:1G,50us";
    stk_replay_detail db = run(path, o, b_layers, &b);
    cr_assert(a.n_step == b.n_step && a.n_token == b.n_token && a.n_event == b.n_event && a.n_lookup == b.n_lookup);
    cr_assert(a.n_pair == b.n_pair && a.n_hit == b.n_hit && a.n_miss == b.n_miss && a.n_evict == b.n_evict);
    cr_assert(a.n_wave == b.n_wave && a.bytes == b.bytes && a.read_bytes == b.read_bytes);
    cr_assert(a.n_prefetch == b.n_prefetch && a.n_prefetch_used == b.n_prefetch_used);
    cr_assert(same_count(&da.prefill, &db.prefill) && same_count(&da.decode, &db.decode));
    cr_assert_eq(da.n_sequence, db.n_sequence);
    for (int i = 0; i < N_LAYER; i++)
        cr_assert(same_count(&a_layers[i].prefill, &b_layers[i].prefill) && same_count(&a_layers[i].decode, &b_layers[i].decode));
    cr_assert(a.n_hit > 0 && a.n_evict > 0 && da.prefill.n_event > 0 && da.decode.n_event > 0);
    cr_assert_eq(da.prefill.n_hit + da.decode.n_hit, a.n_hit);
    cr_assert_eq(da.prefill.bytes + da.decode.bytes, a.bytes);
    cr_assert_eq(da.prefill.n_token + da.decode.n_token, a.n_token);
    cr_assert_eq(db.prefill.step_ns + db.decode.step_ns, b.step_ns);
}

Test(decide, equals_the_timed_path) {
    const char *path = tr_path();
    static const char *const policies[] = {"lru", "random"};
    make_csv(path);
    for (uint32_t i = 0; i < 16; i++)
        compare(path, (stk_replay_options){.policy = policies[i & 1],
                                           .scope = i >> 1 & 1,
                                           .reset = i >> 2 & 1,
                                           .fraction = i >> 3 & 1 ? 0.5 : 0.0,
                                           .n_slot = i >> 3 & 1 ? 0 : 20,
                                           .seed = 5});
}

/* A recorded run of single tokens with predictions of the next layer, most of them right, some of them already there; drops and
 * aborted steps. Sequences of 20 steps. */
static void make_predicted(const char *path) {
    static stk_trace_extent extents[N_LAYER * N_EXPERT * 3];
    static const stk_trace_class class = {16384, 5000, 12, 0};
    static const uint32_t layer_class[N_LAYER] = {0}, model_layer[N_LAYER] = {0, 1, 2, 3};
    trace_input t = {.rng = 23};
    uint16_t next[K], ids[K];
    stk_trace_writer *w;
    for (uint32_t i = 0; i < STK_ARRAY_LEN(extents); i++) extents[i] = (stk_trace_extent){0, i * 4096ull, 4096 + i % 3 * 4096};
    cr_assert_eq(stk_trace_writer_open(&w, path,
                                       &(stk_trace_header){.n_layer = N_LAYER,
                                                           .n_expert = N_EXPERT,
                                                           .k = K,
                                                           .n_part = 3,
                                                           .n_class = 1,
                                                           .n_batch = 4,
                                                           .ram_bytes = 12 * 16384,
                                                           .classes = &class,
                                                           .layer_class = layer_class,
                                                           .model_layer = model_layer,
                                                           .extents = extents,
                                                           .model = "predicted",
                                                           .policy = "lru",
                                                           .params = "",
                                                           .io = ""}),
                 0, "%s", stk_error_detail());
    for (int i = 0; i < K; i++) next[i] = (uint16_t)(5 * i);
    for (uint64_t step = 0; step < N_STEP; step++) {
        const int32_t seq[1] = {(int32_t)(step / 20)}, pos[1] = {(int32_t)(step % 20)}, token[1] = {0};
        const uint8_t logits[1] = {step % 20 > 3};
        stk_trace_record r = {.kind = STK_TRACE_STEP, .step = {step, 1, seq, pos, token, logits}};
        cr_assert_eq(stk_trace_write(w, &r), 0, "%s", stk_error_detail());
        for (uint32_t layer = 0; layer < N_LAYER; layer++) {
            memcpy(ids, next, sizeof ids);
            uint32_t first = tr_below(&t, N_EXPERT) * tr_below(&t, N_EXPERT) / N_EXPERT;
            for (uint32_t i = 0; i < K; i++) next[i] = (uint16_t)((first + 3 * i) % N_EXPERT);
            r = (stk_trace_record){.kind = STK_TRACE_EVENT,
                                   .event = {.step = step, .layer = layer, .n_tok = 1, .k = K, .n_expert = N_EXPERT, .ids = ids}};
            cr_assert_eq(stk_trace_write(w, &r), 0, "%s", stk_error_detail());
            if (layer + 1 < N_LAYER && tr_below(&t, 8)) {
                stk_ahead list[K];
                for (uint32_t i = 0; i < K; i++)
                    list[i] = (stk_ahead){(layer + 1) * N_EXPERT + (tr_below(&t, 5) ? next[i] : (next[i] + 1u) % N_EXPERT), 0.9f,
                                          tr_below(&t, 2)};
                r = (stk_trace_record){.kind = STK_TRACE_AHEAD, .ahead = {K, list}};
                cr_assert_eq(stk_trace_write(w, &r), 0, "%s", stk_error_detail());
            }
            if (tr_below(&t, 12)) continue;
            uint32_t gone = tr_below(&t, 2) ? layer * N_EXPERT + ids[1] : STK_MIN(layer + 1, N_LAYER - 1u) * N_EXPERT + next[0];
            r = (stk_trace_record){.kind = STK_TRACE_DROP, .drop_key = gone};
            cr_assert_eq(stk_trace_write(w, &r), 0, "%s", stk_error_detail());
            if (tr_below(&t, 2)) continue;
            r = (stk_trace_record){.kind = STK_TRACE_ABORT, .abort_step = step};
            cr_assert_eq(stk_trace_write(w, &r), 0, "%s", stk_error_detail());
            break;
        }
    }
    cr_assert_eq(stk_trace_write(w, &(stk_trace_record){.kind = STK_TRACE_END}), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_trace_writer_close(&w), 0, "%s", stk_error_detail());
}

Test(decide, reads_ahead_as_the_timed_path_does) {
    for (uint32_t i = 0; i < 8; i++) {
        stk_replay_layer layers[N_LAYER];
        stk_stats s;
        stk_replay_options o = {.n_slot = i >> 2 & 1 ? 40 : 0, .reset = i & 1, .policy = i >> 1 & 1 ? "s3fifo" : NULL, .seed = 5};
        make_predicted(tr_path());
        compare(tr_path(), o);
        stk_replay_detail d = run(tr_path(), o, layers, &s);
        cr_assert(s.n_prefetch > 20 && s.n_prefetch_used > 10, "%d, %d", (int)s.n_prefetch, (int)s.n_prefetch_used);
        cr_assert_lt(d.decode.bytes, UINT64_MAX / 2);
        cr_assert_lt(d.prefill.bytes, UINT64_MAX / 2);
    }
}

Test(decide, a_cold_start_forgets_and_a_carried_one_does_not) {
    const char *path = tr_path(), *text = "seq,pos,layer,experts\n0,0,0,1\n0,1,0,1\n1,0,0,1\n1,1,0,1\n2,0,0,1\n";
    tr_store(path, text, strlen(text));
    for (uint32_t timed = 0; timed < 2; timed++)
        for (uint32_t reset = 0; reset < 2; reset++) {
            stk_replay_layer layers[N_LAYER];
            stk_stats s;
            stk_replay_detail d =
                run(path, (stk_replay_options){.n_slot = 1, .reset = reset, .io = timed ? "emu:1G,1us" : NULL}, layers, &s);
            cr_assert_eq(d.n_sequence, 3);
            cr_assert_eq(s.n_hit, reset ? 2 : 4);
            cr_assert_eq(s.n_evict, 0);
            cr_assert_eq(layers[0].decode.n_miss, reset ? 3 : 1);
        }
}

Test(decide, events_out_of_order_are_refused) {
    static trace_input t;
    stk_trace_writer *w;
    stk_replay_result r = {.struct_bytes = sizeof r};
    tr_header(&t, 5);
    for (uint32_t c = 0; c < TR_CLASS; c++) t.classes[c] = (stk_trace_class){8192, 8000, 400, 0};
    cr_assert_eq(stk_trace_writer_open(&w, tr_path(), &t.header), 0);
    tr_step(&t, 0, 1);
    cr_assert_eq(stk_trace_write(w, &t.record), 0);
    for (int i = 0; i < 2; i++) {
        tr_event(&t, 3, 2, 0, TR_NO_WEIGHTS, false);
        cr_assert_eq(stk_trace_write(w, &t.record), 0);
    }
    cr_assert_eq(stk_trace_writer_close(&w), 0);
    cr_assert_eq(stk_replay(tr_path(), NULL, &r), STK_EFORMAT);
    cr_assert(strstr(stk_error_detail(), "out of order"), "%s", stk_error_detail());
}

static int cancel(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what;
    (void)done;
    (void)total;
    ++*(int *)user;
    return 1;
}

Test(decide, progress_may_cancel) {
    int calls = 0;
    stk_replay_result r = {.struct_bytes = sizeof r};
    stk_replay_options o = {.struct_bytes = sizeof o, .fraction = 1, .progress = cancel, .progress_user = &calls};
    make_csv(tr_path());
    cr_assert_eq(stk_replay(tr_path(), &o, &r), STK_ECANCELED);
    cr_assert_eq(calls, 1);
}
