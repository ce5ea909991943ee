/* replay_tiers: from the options of a replay to one with VRAM, and its figures back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/drive.h"
#include "plan_replay.h"
#include "src/model/shape.h"
#include "src/plan/cost_file.h"
#include "src/spec.h"

typedef struct request {
    const stk_replay_options *o;
    const stk_mode *mode;
    stk_source *source;
    stk_cost cost;
    stk_spec policy; /* of o->policy */
    const char *params;
    uint64_t *uses;         /* NULL: none are known */
    stk_trace_header shape; /* of o->model or o->model_shape; else all 0 */
} request;

static int take_cost(request *r) {
    stk_cost_file *file = malloc(sizeof *file);
    if (!file) return stk_fail(STK_ENOMEM, "out of memory for the replay");
    int rc = stk_cost_file_load(r->o->cost, file);
    if (rc >= 0) rc = stk_cost_file_table_gpu(file, NULL, &r->cost);
    free(file);
    if (rc < 0 || !r->o->io) return rc;
    stk_drive drive;
    if (strncmp(r->o->io, "emu:", 4) != 0)
        return stk_fail(STK_EINVAL, "replay with --io '%s': a modelled drive is needed, emu:BANDWIDTH,LATENCY", r->o->io);
    STK_TRY(stk_drive_parse(&drive, r->o->io + 4, r->o->seed));
    r->cost.nvme_bytes_per_ns = drive.bytes_per_ns;
    r->cost.nvme_latency_ns = (double)drive.latency_ns;
    return STK_OK;
}

int stk_uses_load(const char *path, uint32_t n_layer, uint32_t n_expert, uint64_t **uses) {
    stk_source *s;
    *uses = NULL;
    STK_TRY(stk_source_open(&s, &path, 1, NULL));
    const stk_trace_header *h = stk_source_header(s);
    int rc = STK_OK;
    if (h->n_layer != n_layer || h->n_expert != n_expert)
        rc = stk_fail(STK_EINVAL, "trace %s is of another model: %u layers of %u experts, not %u of %u", path, h->n_layer,
                      h->n_expert, n_layer, n_expert);
    if (rc >= 0) *uses = calloc((size_t)n_layer * n_expert, sizeof **uses);
    if (rc >= 0) rc = *uses ? stk_plan_profile(s, *uses) : stk_fail(STK_ENOMEM, "out of memory for the uses of experts");
    stk_source_close(&s);
    if (rc >= 0) return rc;
    free(*uses);
    *uses = NULL;
    return rc;
}

static int take_uses(request *r) {
    const stk_trace_header *h = stk_source_header(r->source);
    return r->o->uses_from ? stk_uses_load(r->o->uses_from, h->n_layer, h->n_expert, &r->uses) : STK_OK;
}

static int check(request *r) {
    const stk_replay_options *o = r->o;
    r->mode = stk_mode_find(o->mode ? o->mode : "hybrid");
    if (!r->mode) return stk_fail(STK_EINVAL, "there is no mode '%s'", o->mode);
    r->policy = stk_spec_parse(o->policy ? o->policy : "");
    r->params = r->policy.params ? r->policy.params : o->params;
    if (r->policy.params && o->params)
        return stk_fail(STK_EINVAL, "policy '%s' has parameters; others ('%s') exclude them", o->policy, o->params);
    if (!o->cost) return stk_fail(STK_EINVAL, "a replay with VRAM wants a cost table with a GPU: a file or a known machine");
    if (o->verify || o->n_slot || o->fraction != 0 || o->scope == STK_SCOPE_LAYER || o->reset != STK_RESET_NONE || o->hooks ||
        o->profile || o->predictor || o->predictor_hooks)
        return stk_fail(STK_EINVAL, "a replay with VRAM knows vram_bytes, ram_bytes, policy, mode, uses_from, cost and io alone");
    return STK_OK;
}

static void fill(const request *r, const stk_plan_replay_result *got, stk_replay_result *result) {
    const stk_replay_tiers *a = &got->prefill, *b = &got->decode;
    stk_replay_result full = {.complete = !stk_source_cut(r->source), .ram_bytes = got->ram_bytes, .virtual_ns = got->virtual_ns};
    full.stats = (stk_stats){.struct_bytes = sizeof full.stats,
                             .n_step = got->n_step,
                             .n_token = a->n_token + b->n_token,
                             .n_event = a->n_event + b->n_event,
                             .n_lookup = a->n_lookup + b->n_lookup,
                             .n_hit = a->n_vram + a->n_ram + b->n_vram + b->n_ram,
                             .read_bytes = a->read_bytes + b->read_bytes,
                             .step_ns = a->step_ns + b->step_ns,
                             .dense_ns = a->dense_ns + b->dense_ns,
                             .expert_ns = a->event_ns + b->event_ns};
    full.stats.n_miss = full.stats.n_lookup - full.stats.n_hit;
    full.struct_bytes = STK_MIN(result->struct_bytes, (uint32_t)sizeof full);
    memcpy(result, &full, full.struct_bytes);
    stk_replay_detail *detail = r->o->detail;
    if (!detail) return;
    const stk_trace_header *h = stk_source_header(r->source);
    stk_replay_detail d = {.sized = stk_source_get_info(r->source)->sized,
                           .n_expert = (uint64_t)h->n_layer * h->n_expert,
                           .token_slots = (uint64_t)h->n_layer * h->k,
                           .layers = detail->layers,
                           .n_layer_max = detail->n_layer_max,
                           .vram_bytes = got->vram_bytes,
                           .tiers_prefill = *a,
                           .tiers_decode = *b};
    snprintf(d.policy, sizeof d.policy, "%s", r->mode->name);
    d.struct_bytes = STK_MIN(detail->struct_bytes, (uint32_t)sizeof d);
    memcpy(detail, &d, d.struct_bytes);
}

static int run(request *r, const char *const *traces, uint32_t n, stk_replay_result *result) {
    stk_plan_replay_result got;
    STK_TRY(check(r));
    STK_TRY(take_cost(r));
    int shaped = stk_shape_choose(r->o->model, r->o->model_shape, &r->shape);
    if (shaped < 0) return shaped;
    STK_TRY(stk_source_open(&r->source, traces, n, &(stk_source_options){r->o->expert_bytes, shaped ? &r->shape : NULL}));
    if (!stk_source_get_info(r->source)->sized)
        stk_log(STK_LOG_WARN, "%s does not say how large an expert is: %d bytes are assumed", traces[0], STK_SOURCE_EXPERT_BYTES);
    STK_TRY(take_uses(r));
    STK_TRY(stk_plan_replay(&(stk_plan_replay_config){.source = r->source,
                                                      .cost = &r->cost,
                                                      .tiers = {.header = stk_source_header(r->source),
                                                                .mode = r->mode,
                                                                .vram_bytes = r->o->vram_bytes,
                                                                .ram_bytes = r->o->ram_bytes,
                                                                .policy = r->o->policy ? r->policy.name : NULL,
                                                                .params = r->params,
                                                                .seed = r->o->seed,
                                                                .uses = r->uses},
                                                      .progress = r->o->progress,
                                                      .progress_user = r->o->progress_user},
                            &got));
    fill(r, &got, result);
    return STK_OK;
}

int stk_replay_tiers_run(const char *const *traces, uint32_t n, const stk_replay_options *options, stk_replay_result *result) {
    request r = {.o = options};
    int rc = run(&r, traces, n, result);
    stk_source_close(&r.source);
    stk_shape_close(&r.shape);
    free(r.uses);
    return rc;
}
