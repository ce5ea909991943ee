/* engine_watch: tells the watch of steps, and carries out what it says. */
#include <stdlib.h>

#include "engine.h"

/* [n_layer]; the caller's to free. */
static int expert_sizes(const stk_engine *e, stk_gain_size **sizes) {
    const stk_catalogue *cat = e->experts;
    uint32_t n_layer = stk_catalogue_n_layer(cat);
    *sizes = calloc(n_layer, sizeof **sizes);
    if (!*sizes) return stk_fail(STK_ENOMEM, "out of memory for reading ahead");
    for (uint32_t l = 0; l < n_layer; l++)
        if (stk_catalogue_layer_class(cat, l) != STK_NO_CLASS)
            stk_store_sizes(e->store, l, 0, &(*sizes)[l].payload_bytes, &(*sizes)[l].read_bytes);
    return STK_OK;
}

/* Nothing is read ahead where every expert has a slot. The predictor is opened when it is first of use. */
int stk_engine_attach_prefetch(stk_engine *e) {
    const stk_catalogue *cat = e->experts;
    bool all = true;
    e->memory.predictor = "none";
    if (!e->predictor_text[0]) return STK_OK;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++)
        all = all && stk_slots_n(e->slots, c) - e->n_transit >= stk_catalogue_class(cat, c)->n_expert;
    stk_gain_size *sizes = NULL;
    if (!all && !e->prefetch) STK_TRY(expert_sizes(e, &sizes));
    int rc = STK_OK;
    stk_spec spec = stk_spec_parse(e->predictor_text);
    bool own = e->predictor_user.ops.open != NULL;
    if (!all && !e->prefetch)
        rc = stk_prefetch_open(&e->prefetch, &(stk_prefetch_config){.predictor = spec.name,
                                                                    .params = spec.params,
                                                                    .depth = e->o.predict_depth,
                                                                    .n_layer = stk_catalogue_n_layer(cat),
                                                                    .n_expert = stk_catalogue_n_expert(cat),
                                                                    .k = e->model->hp.n_expert_used,
                                                                    .seed = e->o.seed,
                                                                    .cache = e->cache,
                                                                    .sizes = sizes,
                                                                    .ops = own ? &e->predictor_user.ops : NULL,
                                                                    .ops_user = &e->predictor_user});
    free(sizes);
    STK_TRY(rc);
    e->forward->prefetch = all || e->prefetch_off ? NULL : e->prefetch;
    e->may_prefetch = !all;
    e->memory.predictor = all ? "none" : e->predictor_text;
    e->memory.predict_depth = all ? 0 : e->o.predict_depth;
    return STK_OK;
}

int stk_engine_apply_watch(stk_engine *e) {
    if (!e->switch_due) return STK_OK;
    e->switch_due = false;
    return stk_engine_switch_prefetch(e, stk_watch_is_on(&e->watch));
}

int stk_engine_switch_prefetch(stk_engine *e, bool on) {
    if (e->prefetch_off == !on) return STK_OK;
    e->prefetch_off = !on;
    e->n_switch++;
    STK_TRY(stk_engine_attach_prefetch(e));
    stk_trace_record r = {.kind = STK_TRACE_SWITCH, .toggle = {STK_TECHNIQUE_PREFETCH, on}};
    return e->trace ? stk_trace_write(e->trace, &r) : STK_OK;
}

/* Trials are for those who want to know more; what comes of them is for everyone. */
static void say(const stk_watch *w, enum stk_watch_state before) {
    double with_ms = w->with_ns * 1e-6, without_ms = w->without_ns * 1e-6;
    if (w->state == STK_WATCH_OFF && before == STK_WATCH_CHECK_ON)
        stk_log(STK_LOG_INFO,
                "reading ahead does not pay: a step takes %.2f ms with it and %.2f ms without; it is off, and tried again after "
                "%llu steps",
                with_ms, without_ms, (unsigned long long)w->pause);
    else if (w->state == STK_WATCH_ON && before == STK_WATCH_CHECK_OFF)
        stk_log(STK_LOG_INFO, "reading ahead pays now: a step takes %.2f ms with it and %.2f ms without; it is on again", with_ms,
                without_ms);
    else
        stk_log(STK_LOG_DEBUG, "reading ahead is turned %s, on trial: a step took %.2f ms with it, %.2f ms without",
                stk_watch_is_on(w) ? "on" : "off", with_ms, without_ms);
}

/* Reads of an expert of middling size. */
static double read_ns(const stk_engine *e) {
    uint32_t n = stk_catalogue_n_expert(e->experts) * stk_catalogue_n_layer(e->experts);
    return stk_cost_read_ns(&e->cost, n ? e->model->expert_bytes / n : 0);
}

void stk_engine_watch(stk_engine *e, uint32_t n_tok, const stk_stats *before) {
    if (e->o.no_watch || !e->prefetch || !e->may_prefetch || n_tok > STK_LOOKAHEAD_TOKENS) return;
    stk_stats now;
    stk_stepper_count(&e->stepper, &now);
    enum stk_watch_state state = e->watch.state;
    if (!stk_watch_tell(&e->watch, &(stk_watch_step){.n_tok = n_tok,
                                                     .step_ns = now.step_ns - before->step_ns,
                                                     .n_used = now.n_prefetch_used - before->n_prefetch_used,
                                                     .n_asked = now.n_prefetch - before->n_prefetch,
                                                     .read_ns = read_ns(e)}))
        return;
    say(&e->watch, state);
    e->switch_due = true;
}
