/* engine: the step of the public API, its results, counters, and controls for experiments. */
#include "engine.h"

#include <string.h>

static int null_fail(const char *call) { return stk_fail(STK_EINVAL, "%s: an argument is NULL", call); }

/* ---- The step ---- */

/* Copies entry i with its defaults filled in, and checks it against where its sequence stands. */
static int take_entry(stk_engine *e, const stk_batch *b, uint32_t i) {
    int32_t seq = b->seq ? b->seq[i] : 0, token = b->token[i];
    if (seq < 0 || (uint32_t)seq >= e->o.n_seq_max)
        return stk_fail(STK_EINVAL, "entry %u: sequence %d; this engine has 0 to %u", i, seq, e->o.n_seq_max - 1);
    if (token < 0 || (uint32_t)token >= e->model->hp.n_vocab)
        return stk_fail(STK_EINVAL, "entry %u: token %d; the vocabulary has 0 to %u", i, token, e->model->hp.n_vocab - 1);
    uint32_t next = e->seq_next[seq]++;
    if (b->pos && (b->pos[i] < 0 || (uint32_t)b->pos[i] != next))
        return stk_fail(STK_EINVAL, "entry %u: position %d; sequence %d continues at %u", i, b->pos[i], seq, next);
    e->token[i] = token;
    e->seq[i] = seq;
    e->pos[i] = (int32_t)next;
    e->logits[i] = b->logits ? b->logits[i] != 0 : i + 1 == b->n;
    return STK_OK;
}

static int take_batch(stk_engine *e, const stk_batch *b) {
    if (b->struct_bytes < sizeof *b) return stk_fail(STK_EINVAL, "batch of %u bytes, expected %zu", b->struct_bytes, sizeof *b);
    if (b->n == 0 || b->n > e->o.n_batch)
        return stk_fail(STK_EINVAL, "a step of %u tokens; 1 to %u are possible", b->n, e->o.n_batch);
    if (!b->token) return stk_fail(STK_EINVAL, "a step without tokens");
    uint32_t n_logits = 0;
    for (uint32_t s = 0; s < e->o.n_seq_max; s++) e->seq_next[s] = stk_kv_length(e->kv, s);
    for (uint32_t i = 0; i < b->n; i++) {
        STK_TRY(take_entry(e, b, i));
        n_logits += e->logits[i];
    }
    if (n_logits > e->o.n_logits)
        return stk_fail(STK_EINVAL, "%u entries ask for logits; this engine was opened for %u (n_logits)", n_logits,
                        e->o.n_logits);
    return STK_OK;
}

static void settle_sequences(stk_engine *e, bool commit) {
    for (uint32_t s = 0; s < e->o.n_seq_max; s++) {
        if (commit)
            stk_kv_commit(e->kv, s, e->seq_next[s]);
        else
            stk_kv_trim(e->kv, s, stk_kv_length(e->kv, s));
    }
}

static int run_step(stk_engine *e, uint32_t n) {
    for (uint32_t s = 0; s < e->o.n_seq_max; s++)
        if (e->seq_next[s] > stk_kv_length(e->kv, s)) STK_TRY(stk_kv_reserve(e->kv, s, e->seq_next[s]));
    stk_trace_step step = {
        .step = e->stepper.n_step, .n_tok = n, .seq = e->seq, .pos = e->pos, .token = e->token, .logits = e->logits};
    return stk_stepper_run(&e->stepper, &step);
}

int stk_step(stk_engine *e, const stk_batch *batch) {
    if (!e || !batch) return null_fail("stk_step");
    e->n_tok = 0;
    STK_TRY(take_batch(e, batch));
    STK_TRY(stk_engine_apply_watch(e));
    stk_stats before;
    stk_stepper_count(&e->stepper, &before);
    uint32_t mxcsr = stk_mxcsr_set();
    stk_pool_bind(e->pool);
    int rc = e->device ? stk_device_bind(e->device) : STK_OK;
    if (rc >= 0) rc = run_step(e, batch->n);
    rc = stk_engine_device_check(e, rc);
    stk_pool_unbind(e->pool);
    stk_mxcsr_restore(mxcsr);
    settle_sequences(e, rc >= 0);
    if (rc >= 0) e->n_tok = batch->n;
    stk_io_counters io;
    stk_io_get_counters(e->io, &io);
    stk_cost_learn_drive(&e->cost, io.bytes_per_ns);
    if (rc >= 0) stk_engine_watch(e, batch->n, &before);
    if (rc == STK_ECANCELED) atomic_store_explicit(&e->cancel, 0, memory_order_relaxed);
    return rc;
}

void stk_cancel(stk_engine *e) {
    if (e) atomic_store_explicit(&e->cancel, 1, memory_order_relaxed);
}

/* ---- Results ---- */

static uint32_t logit_row(const stk_engine *e, uint32_t i) { return e && i < e->n_tok ? e->forward->logit_row[i] : UINT32_MAX; }

const float *stk_get_logits(const stk_engine *e, uint32_t i) {
    uint32_t row = logit_row(e, i);
    return row == UINT32_MAX ? NULL : e->forward->logits + (size_t)row * e->model->hp.n_vocab;
}

const float *stk_get_hidden(const stk_engine *e, uint32_t i) {
    uint32_t row = logit_row(e, i);
    return row == UINT32_MAX ? NULL : e->forward->final_hidden + (size_t)row * e->model->hp.n_embd;
}

int64_t stk_get_routing(const stk_engine *e, uint32_t layer, const uint16_t **ids, const float **weights) {
    if (!e || !ids || !weights) return null_fail("stk_get_routing");
    const stk_hparams *hp = &e->model->hp;
    if (layer >= hp->n_layer) return stk_fail(STK_EINVAL, "layer %u; the model has 0 to %u", layer, hp->n_layer - 1);
    size_t at = (size_t)layer * e->o.n_batch * hp->n_expert_used;
    *ids = e->forward->all_ids + at;
    *weights = e->forward->all_weights + at;
    return (int64_t)e->n_tok * hp->n_expert_used;
}

/* ---- Sequences ---- */

static int check_seq(const stk_engine *e, int32_t seq) {
    if (!e) return null_fail("a call on a sequence");
    if (seq >= 0 && (uint32_t)seq < e->o.n_seq_max) return STK_OK;
    return stk_fail(STK_EINVAL, "sequence %d; this engine has 0 to %u", seq, e->o.n_seq_max - 1);
}

int64_t stk_seq_length(const stk_engine *e, int32_t seq) {
    STK_TRY(check_seq(e, seq));
    return stk_kv_length(e->kv, (uint32_t)seq);
}

int stk_seq_trim(stk_engine *e, int32_t seq, int32_t n_pos) {
    STK_TRY(check_seq(e, seq));
    if (n_pos < 0) return stk_fail(STK_EINVAL, "sequence %d cannot be cut to %d positions", seq, n_pos);
    stk_kv_trim(e->kv, (uint32_t)seq, (uint32_t)n_pos);
    return STK_OK;
}

/* ---- Experiments ---- */

int stk_force_route(stk_engine *e, int32_t layer, const uint16_t *ids, uint32_t k) {
    if (!e) return null_fail("stk_force_route");
    const stk_hparams *hp = &e->model->hp;
    if (layer < -1 || (layer >= 0 && (uint32_t)layer >= hp->n_layer))
        return stk_fail(STK_EINVAL, "layer %d; the model has 0 to %u, -1 means all", layer, hp->n_layer - 1);
    if (ids && k != hp->n_expert_used)
        return stk_fail(STK_EINVAL, "%u experts; each token of this model uses %u", k, hp->n_expert_used);
    for (uint32_t i = 0; ids && i < k; i++) {
        if (ids[i] >= hp->n_expert) return stk_fail(STK_EINVAL, "expert %u; the model has 0 to %u", ids[i], hp->n_expert - 1);
        for (uint32_t j = 0; j < i; j++)
            if (ids[i] == ids[j]) return stk_fail(STK_EINVAL, "expert %u stands twice in one token's route", ids[i]);
    }
    for (uint32_t l = 0; l < hp->n_layer; l++) {
        if (layer >= 0 && (uint32_t)layer != l) continue;
        e->forced_layers[l] = ids != NULL;
        if (ids) memcpy(e->forced + (size_t)l * k, ids, k * sizeof *ids);
    }
    return STK_OK;
}

int stk_force_placement(stk_engine *e, uint32_t place) {
    if (!e) return null_fail("stk_force_placement");
    if (place > STK_PLACE_RANDOM) return stk_fail(STK_EINVAL, "no placement %u", place);
    if (e->vram) stk_vram_force(e->vram, place); /* else the CPU is the one place there is */
    return STK_OK;
}

int64_t stk_get_residency(const stk_engine *e, uint32_t layer, uint8_t *resident, size_t cap) {
    if (!e || (!resident && cap)) return null_fail("stk_get_residency");
    const stk_catalogue *cat = e->experts;
    if (layer >= e->model->hp.n_layer)
        return stk_fail(STK_EINVAL, "layer %u; the model has 0 to %u", layer, e->model->hp.n_layer - 1);
    if (layer >= stk_catalogue_n_layer(cat)) return 0;
    uint32_t n = stk_catalogue_n_expert(cat);
    for (uint32_t x = 0; x < n && x < cap; x++)
        resident[x] = stk_vram_has(e->vram, layer * n + x) ? 2 : stk_cache_slot(e->cache, layer * n + x) >= 0;
    return n;
}

int stk_engine_drop_experts(stk_engine *e) {
    if (!e) return null_fail("stk_engine_drop_experts");
    const uint32_t *keys;
    (void)stk_store_drain(e->store, &keys);
    STK_TRY(stk_cache_clear(e->cache));
    if (e->vram) STK_TRY(stk_vram_clear(e->vram));
    return e->trace ? stk_trace_write(e->trace, &(stk_trace_record){.kind = STK_TRACE_CLEAR}) : STK_OK;
}

/* ---- Figures ---- */

int stk_engine_get_memory(const stk_engine *e, stk_memory_info *info) {
    if (!e || !info) return null_fail("stk_engine_get_memory");
    if (info->struct_bytes < sizeof info->struct_bytes)
        return stk_fail(STK_EINVAL, "memory info of %u bytes", info->struct_bytes);
    uint32_t bytes = STK_MIN(info->struct_bytes, (uint32_t)sizeof *info);
    memcpy(info, &e->memory, bytes);
    info->struct_bytes = bytes;
    return STK_OK;
}

void stk_engine_count(const stk_engine *e, stk_stats *s) {
    stk_io_counters io;
    stk_io_get_counters(e->io, &io);
    stk_stepper_count(&e->stepper, s);
    s->io_ns = io.busy_ns;
    s->n_switch = e->n_switch;
    if (!e->link) return;
    stk_link_counters link;
    stk_link_get_counters(e->link, &link);
    s->up_bytes = link.up_bytes;
    s->down_bytes = link.down_bytes;
    s->device_ns = e->gpu->wait_ns;
}

/* The fields after the head of a stk_stats are all counters. */
static const size_t first_counter = offsetof(stk_stats, n_step) / sizeof(uint64_t);

int stk_engine_get_stats(const stk_engine *e, stk_stats *stats) {
    if (!e || !stats) return null_fail("stk_engine_get_stats");
    if (stats->struct_bytes < sizeof stats->struct_bytes) return stk_fail(STK_EINVAL, "stats of %u bytes", stats->struct_bytes);
    stk_stats s;
    stk_engine_count(e, &s);
    uint64_t counters[sizeof s / sizeof(uint64_t)], before[STK_ARRAY_LEN(counters)];
    memcpy(counters, &s, sizeof s);
    memcpy(before, &e->baseline, sizeof before);
    for (size_t i = first_counter; i < STK_ARRAY_LEN(counters); i++) counters[i] -= before[i];
    memcpy(&s, counters, sizeof s);
    s.struct_bytes = STK_MIN(stats->struct_bytes, (uint32_t)sizeof s);
    memcpy(stats, &s, s.struct_bytes);
    return STK_OK;
}

int stk_engine_reset_stats(stk_engine *e) {
    if (!e) return null_fail("stk_engine_reset_stats");
    stk_engine_count(e, &e->baseline);
    return STK_OK;
}

int stk_engine_get_predicted(const stk_engine *e, uint32_t depth, stk_predict_count *count) {
    if (!e || !count) return null_fail("stk_engine_get_predicted");
    if (depth == 0 || depth > STK_PREDICT_DEPTH_MAX)
        return stk_fail(STK_EINVAL, "%u layers ahead; 1 to %d are predicted", depth, STK_PREDICT_DEPTH_MAX);
    memset(count, 0, sizeof *count);
    if (e->prefetch) stk_prefetch_count(e->prefetch, depth, count);
    return STK_OK;
}

int stk_engine_set_profile(stk_engine *e, int on) {
    if (!e) return null_fail("stk_engine_set_profile");
    stk_stages_reset(&e->forward->stages, on != 0);
    return STK_OK;
}

int stk_engine_set_timeline(stk_engine *e, stk_timeline *timeline) {
    if (!e) return null_fail("stk_engine_set_timeline");
    if (timeline) stk_timeline_attach(timeline);
    e->stepper.timeline = timeline;
    stk_executor_set_timeline(e->executor, timeline);
    stk_store_set_timeline(e->store, timeline);
    return STK_OK;
}

int stk_engine_get_profile(const stk_engine *e, stk_profile *profile) {
    if (!e || !profile) return null_fail("stk_engine_get_profile");
    if (profile->struct_bytes < sizeof profile->struct_bytes)
        return stk_fail(STK_EINVAL, "profile of %u bytes", profile->struct_bytes);
    const stk_stages *s = &e->forward->stages;
    stk_profile full = {.struct_bytes = STK_MIN(profile->struct_bytes, (uint32_t)sizeof full),
                        .n_layer = s->n_layer,
                        .n_step = s->n_step,
                        .n_token = s->n_token,
                        .stage_ns = s->ns,
                        .span = s->spans,
                        .n_span = s->n_span,
                        .bytes = s->bytes,
                        .int8_ops = s->int8_ops,
                        .float_ops = s->float_ops};
    memcpy(profile, &full, full.struct_bytes);
    return STK_OK;
}
