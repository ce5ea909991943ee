/* decide: events from a source into a cache. */
#include "decide.h"

#include <string.h>

enum { PROGRESS_STEPS = 4096 };

/* What the running step adds once it is over. */
typedef struct running {
    uint32_t n_tok;        /* 0: none, or it was aborted */
    int64_t layer;         /* the latest event's */
    const stk_event *kept; /* it, where the predictor waits for what routers ahead said; NULL */
} running;

static int show_progress(const stk_decide *d) {
    uint64_t done, total;
    if (!d->progress) return 0;
    stk_source_progress(d->source, &done, &total);
    return d->progress(d->progress_user, "replay", done, total) ? stk_fail(STK_ECANCELED, "the replay was cancelled") : 0;
}

void stk_decide_count(const stk_decide *d, stk_stats *out) {
    stk_cache_counters c;
    stk_replay_count prefill, decode;
    stk_cache_get_counters(d->cache, &c);
    stk_tally_sum(d->tally, &prefill, &decode);
    *out = (stk_stats){.struct_bytes = sizeof *out,
                       .n_step = d->n_step,
                       .n_token = d->n_token,
                       .n_event = c.n_event,
                       .n_lookup = c.n_lookup,
                       .n_pair = c.n_pair,
                       .n_hit = c.n_hit,
                       .n_miss = c.n_miss,
                       .n_evict = c.n_evict,
                       .n_wave = c.n_wave,
                       .n_prefetch = c.n_prefetch,
                       .n_prefetch_used = c.n_prefetch_used,
                       .bytes = prefill.bytes + decode.bytes,
                       .read_bytes = prefill.read_bytes + decode.read_bytes};
}

static void end_step(stk_decide *d, running *r) {
    d->n_token += r->n_tok;
    d->tally->phases[d->tally->phase].n_token += r->n_tok;
    r->n_tok = 0;
    if (!d->stepped || !d->n_step) return;
    stk_stats total;
    stk_decide_count(d, &total);
    d->stepped(d->stepped_user, d->n_step - 1, d->tally->phase, &total);
}

static int begin_step(stk_decide *d, running *r, const stk_trace_step *step) {
    end_step(d, r);
    bool begins = stk_tally_step(d->tally, step);
    if (begins && d->reset && d->tally->n_sequence > 1) STK_TRY(stk_cache_clear(d->cache));
    *r = (running){step->n_tok, -1, NULL};
    return d->n_step++ % PROGRESS_STEPS ? 0 : show_progress(d);
}

static bool may_evict(const stk_decide *d, uint32_t i, uint32_t victim) {
    return d->prefetch ? stk_prefetch_may_evict(d->prefetch, i, victim) : stk_chooser_may_evict(d->chooser, i, victim);
}

/* Takes in what of a list is to be read ahead. */
static int take_in(stk_decide *d, const stk_ahead *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        stk_decision taken;
        uint32_t victim;
        int rc = list[i].issue ? stk_cache_would_leave(d->cache, list[i].key, &victim) : 0;
        if (rc > 0) rc = may_evict(d, i, victim) ? stk_cache_prefetch(d->cache, list[i].key, &taken) : 0;
        if (rc < 0) return rc;
        if (rc) stk_tally_prefetch(d->tally, &taken);
    }
    return 0;
}

static int predict(stk_decide *d, const stk_event *event, const stk_lookahead *look) {
    stk_ahead *list;
    int n = stk_prefetch_choose(d->prefetch, event, look, NULL, &list);
    return n < 0 ? n : take_in(d, list, (uint32_t)n);
}

/* The record after an event tells what routers ahead said, if they said anything. */
static int predict_kept(stk_decide *d, running *r, const stk_trace_record *next) {
    const stk_event *event = r->kept;
    if (!event) return 0;
    r->kept = NULL;
    stk_lookahead look = stk_gates_look(d->gates, next && next->kind == STK_TRACE_AHEAD ? &next->ahead : NULL);
    return predict(d, event, &look);
}

static int take_event(stk_decide *d, running *r, const stk_event *event) {
    const stk_decision *list;
    if (!r->n_tok || event->layer <= r->layer)
        return stk_fail(STK_EFORMAT, "trace: step %llu has an event of layer %u out of order", (unsigned long long)event->step,
                        event->layer);
    r->layer = event->layer;
    int n = stk_cache_event(d->cache, event->layer, event, &list);
    if (n < 0) return n;
    stk_tally_event(d->tally, event->layer, list, (uint32_t)n);
    const stk_lookahead unknown = {.n_tok = event->n_tok, .n_expert = event->n_expert};
    r->kept = d->prefetch && d->gates ? stk_gates_keep(d->gates, event) : NULL;
    if (d->prefetch) return r->kept ? 0 : predict(d, event, &unknown);
    if (d->depth) stk_chooser_settle(d->chooser, event);
    return 0;
}

/* What was predicted at the latest event; what of it is read ahead is chosen anew. */
static int take_ahead(stk_decide *d, const running *r, const stk_trace_ahead *ahead) {
    if (!r->n_tok || r->layer < 0) return stk_fail(STK_EFORMAT, "trace: a prediction that follows no event");
    if (d->prefetch || !d->depth) return 0;
    uint32_t n = stk_chooser_near(d->chooser, (uint32_t)r->layer, d->depth, ahead->list, ahead->n, d->ahead);
    stk_chooser_choose(d->chooser, (uint32_t)r->layer, d->ahead, n, NULL);
    return take_in(d, d->ahead, n);
}

static int take_drop(stk_decide *d, uint32_t key) {
    const stk_trace_header *h = d->tally->header;
    if (key >= h->n_layer * h->n_expert) return stk_fail(STK_EFORMAT, "trace: dropped expert %u does not exist", key);
    (void)stk_tally_drop(d->tally, key);
    return stk_cache_drop(d->cache, key);
}

int stk_decide_resize(stk_cache *cache, uint32_t n_class, const stk_cache_class *own, const stk_trace_resize *resize) {
    const stk_cache_move *moves;
    for (uint32_t c = 0; c < n_class; c++) {
        uint32_t n_transit = own ? own[c].n_transit : resize->classes[c].n_transit;
        STK_TRY(stk_cache_resize(cache, c, resize->classes[c].n_slot, n_transit, &moves));
    }
    return 0;
}

static int take_resize(stk_decide *d, const stk_trace_resize *resize) {
    if (d->resizable) return stk_decide_resize(d->cache, d->tally->header->n_class, d->resizable, resize);
    d->n_resize_left_out++;
    return 0;
}

int stk_decide_run(stk_decide *d) {
    stk_trace_record record;
    running r = {0, -1, NULL};
    int rc;
    while ((rc = stk_source_read(d->source, &record)) == 1) {
        STK_TRY(predict_kept(d, &r, &record));
        switch (record.kind) {
        case STK_TRACE_EVENT: rc = take_event(d, &r, &record.event); break;
        case STK_TRACE_STEP: rc = begin_step(d, &r, &record.step); break;
        case STK_TRACE_AHEAD: rc = take_ahead(d, &r, &record.ahead); break;
        case STK_TRACE_DROP: rc = take_drop(d, record.drop_key); break;
        case STK_TRACE_CLEAR: rc = stk_cache_clear(d->cache); break;
        case STK_TRACE_ABORT: r.n_tok = 0; break;
        case STK_TRACE_RESIZE: rc = take_resize(d, &record.resize); break;
        default: break;
        }
        if (rc < 0) return rc;
    }
    if (rc >= 0) rc = predict_kept(d, &r, NULL);
    end_step(d, &r);
    return rc;
}
