/* export: what is written as CSV comes back the same. */
#include <criterion/criterion.h>

#include "tests/trace_random.h"
#include "traces/export.h"
#include "traces/source.h"

enum { N_STEP = 60 };

/* Fills *t with the next record; the same for every input of one seed. Floats are finite: CSV keeps no other bits of NaN. */
static void next_record(trace_input *t, uint32_t step, uint32_t layer) {
    if (layer == 0) {
        uint32_t n_tok = tr_below(t, 3) ? 1 : 1 + tr_below(t, 20);
        for (uint32_t i = 0; i < n_tok; i++) {
            t->seq[i] = (int32_t)(i / 7);
            t->pos[i] = (int32_t)(step + i);
            t->token[i] = tr_below(t, 3) ? (int32_t)tr_below(t, 99) : -1;
            t->logits[i] = tr_below(t, 2) != 0;
        }
        t->step = (stk_trace_step){step, n_tok, t->seq, t->pos, t->token, t->logits};
        t->record = (stk_trace_record){.kind = STK_TRACE_STEP, .step = t->step};
        return;
    }
    static const uint32_t n_tops[] = {0, TR_TOP, 3};
    tr_event(t, layer - 1, TR_K, n_tops[tr_below(t, 3)], tr_below(t, 2) ? TR_NORMED : TR_NO_WEIGHTS, tr_below(t, 3) == 0);
    /* An absent expert has no weight of its own. */
    for (uint32_t i = 0; i < t->step.n_tok * TR_K; i++)
        if (t->ids[i] == STK_NO_EXPERT) t->weights[i] = 0;
}

Test(export, rows_come_back_as_the_same_records) {
    static trace_input a, b;
    stk_export *x;
    stk_source *s;
    stk_trace_record r;
    const char *path = tr_path();
    tr_header(&a, 5);
    for (uint32_t i = 0; i < TR_CLASS; i++) a.classes[i].payload_bytes = 1000 + i;
    for (uint32_t i = 0; i < TR_LAYER; i++) a.model_layer[i] = 3 * i + 1;
    b = a;
    cr_assert_eq(stk_export_open(&x, path, &a.header), 0, "%s", stk_error_detail());
    for (uint32_t step = 0; step < N_STEP; step++)
        for (uint32_t i = 0; i <= TR_LAYER; i++) {
            next_record(&a, step, i);
            cr_assert_eq(stk_export_write(x, &a.record), 0);
        }
    cr_assert_eq(stk_export_close(&x), 0);
    cr_assert_eq(stk_source_open(&s, &path, 1, NULL), 0, "%s", stk_error_detail());
    const stk_trace_header *h = stk_source_header(s);
    cr_assert(h->n_layer == TR_LAYER && h->n_expert == TR_EXPERT && h->k == TR_K);
    for (uint32_t i = 0; i < TR_LAYER; i++)
        cr_assert(h->model_layer[i] == 3 * i + 1 && h->classes[h->layer_class[i]].payload_bytes == 1000 + a.layer_class[i]);
    for (uint32_t step = 0; step < N_STEP; step++)
        for (uint32_t i = 0; i <= TR_LAYER; i++) {
            b.seq[0] = b.pos[0] = 0; /* static arrays of b, filled anew */
            next_record(&b, step, i);
            if (i > 0) b.record.event.seq = b.step.seq, b.record.event.pos = b.step.pos, b.record.event.token = b.step.token;
            cr_assert_eq(stk_source_read(s, &r), 1, "%s", stk_error_detail());
            if (i == 0) cr_assert(tr_same(&r, &b.record), "step %u", step);
            if (i > 0)
                cr_assert(r.event.step == step && r.event.layer == i - 1 && r.event.n_top == b.record.event.n_top &&
                              tr_same_array(r.event.ids, b.ids, b.step.n_tok * TR_K * 2u) &&
                              tr_same_array(r.event.weights, b.record.event.weights, b.step.n_tok * TR_K * 4u) &&
                              tr_same_array(r.event.top_ids, b.record.event.top_ids, b.step.n_tok * r.event.n_top * 2u) &&
                              tr_same_array(r.event.top_scores, b.record.event.top_scores, b.step.n_tok * r.event.n_top * 4u),
                          "step %u layer %u", step, i - 1);
        }
    stk_source_close(&s);
}

Test(export, a_full_disk_is_told) {
    static trace_input t;
    stk_export *x;
    tr_header(&t, 5);
    int rc = stk_export_open(&x, "/dev/full", &t.header);
    if (rc == 0) rc = stk_export_close(&x);
    cr_assert_eq(rc, STK_ENOSPC);
    cr_assert_eq(stk_export_open(&x, "/nonexistent/file", &t.header), STK_EIO);
}
