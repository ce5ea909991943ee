/*
 * replay: a trace again. Where times are asked for, through the same cache, step and executor as a run, on a virtual clock;
 * where they are not, through the cache alone (decide.h), which decides the same. A verifying replay takes the trace's own slots
 * and policy and compares every counter at the end; a what-if replay has others.
 *
 * Long because opening, both paths and their results share one struct that nobody else is to see.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "budget.h"
#include "decide.h"
#include "plan_replay.h"
#include "replay.h"
#include "src/hooks/policy_user.h"
#include "src/hooks/predictor_user.h"
#include "src/model/shape.h"
#include "src/plan/cost_file.h"
#include "src/spec.h"
#include "src/tune/profile_file.h"
#include "virtual.h"

typedef struct replay {
    stk_replay_options o;
    const stk_replay_inside *inside;
    stk_profile_file profile; /* of o.profile; without one all 0 */
    stk_source *source;
    stk_trace_header shape; /* of o.model or o.model_shape; else all 0 */
    const stk_trace_header *header;
    stk_budget budget;
    stk_cache *cache;
    stk_future *future; /* for policies that need it; its store: */
    int spill_fd;       /* 0: none */
    stk_tally tally;
    stk_chooser *chooser;       /* of what is read ahead, in all but a verifying replay */
    stk_prefetch *prefetch;     /* a predictor that is asked anew; NULL: what was predicted is taken from the record */
    stk_gates gates;            /* what was recorded as said by routers ahead, for it; without its arrays: it does not listen */
    uint32_t depth;             /* layers ahead of recorded predictions that count; 0: nothing is to be read ahead */
    uint64_t n_resize_left_out; /* recorded resizes, where the budget is the caller's */
    stk_gain_size *sizes;       /* [n_layer] of an expert */
    /* Of the timed path: */
    stk_executor *executor;
    stk_vram *vram; /* of a verifying replay of a run that had one */
    stk_virtual virtual;
    stk_stepper stepper;
    atomic_int cancel;                 /* never set: the executor wants one */
    stk_policy_user policy_user;       /* of o.hooks */
    stk_predictor_user predictor_user; /* of o.predictor_hooks */
    stk_spec policy;                   /* of o.policy */
} replay;

void stk_replay_options_default(stk_replay_options *o, size_t struct_bytes) {
    stk_struct_give(o, struct_bytes, &(stk_replay_options){.scope = STK_SCOPE_AUTO}, sizeof *o);
}

static stk_source_options source_options(const replay *r) {
    return (stk_source_options){r->o.expert_bytes, r->shape.n_layer ? &r->shape : NULL};
}

/* ---- Open and close ----------------------------------------------------------------------------------------------------- */

/* The table that a run measured stands at the end of its trace: a pass of its own finds it. */
static int find_cost(const char *path, stk_cost *cost, bool *found) {
    stk_source *s;
    stk_trace_record record;
    STK_TRY(stk_source_open(&s, &path, 1, NULL));
    int rc;
    *found = false;
    while (!*found && (rc = stk_source_read(s, &record)) == 1)
        if (record.kind == STK_TRACE_COST) {
            rc = stk_cost_import(cost, record.cost, STK_TRACE_N_COST);
            if (rc < 0) break;
            *found = true;
        }
    stk_source_close(&s);
    return rc < 0 ? rc : STK_OK;
}

static int take_trace_cost(replay *r, const char *path) {
    bool found = false;
    if (!r->o.io) return stk_fail(STK_EINVAL, "times by the trace %s want a drive: emu:BANDWIDTH,LATENCY", r->o.cost);
    if (r->o.cost || strcmp(stk_source_get_info(r->source)->format, "stoker") == 0)
        STK_TRY(find_cost(r->o.cost ? r->o.cost : path, &r->virtual.cost, &found));
    if (!found && r->o.cost) return stk_fail(STK_EINVAL, "%s has no measured costs", r->o.cost);
    if (!found) stk_log(STK_LOG_WARN, "%s: no measured costs: times are those of a plain desktop", path);
    return STK_OK;
}

/* Times by a cost file: its table, and without a modelled drive its drive. */
static int take_cost_file(replay *r) {
    stk_cost_file *file = malloc(sizeof *file);
    if (!file) return stk_fail(STK_ENOMEM, "out of memory for the replay");
    int rc = stk_cost_file_load(r->o.cost, file);
    if (rc >= 0) {
        stk_cost_file_table(file, NULL, &r->virtual.cost);
        if (!r->o.io)
            stk_virtual_set_drive(&r->virtual, &(stk_drive){.bytes_per_ns = r->virtual.cost.nvme_bytes_per_ns,
                                                            .latency_ns = (uint64_t)r->virtual.cost.nvme_latency_ns,
                                                            .seed = r->o.seed});
        if (!file->has_model)
            stk_log(STK_LOG_WARN,
                    "%s: measured without a model: experts are taken for Q4_K, the dense part for that of a plain desktop",
                    r->o.cost);
    }
    free(file);
    return rc;
}

static bool asks_times(const replay *r) { return r->o.io || r->o.cost; }

/* The clock that times are predicted with, if any are asked for. */
static int open_times(replay *r, const char *path) {
    bool file = false;
    if (!asks_times(r)) return STK_OK;
    if (r->o.io) {
        stk_drive drive;
        if (strncmp(r->o.io, "emu:", 4) != 0)
            return stk_fail(STK_EINVAL, "replay with --io '%s': a modelled drive is needed, emu:BANDWIDTH,LATENCY", r->o.io);
        STK_TRY(stk_drive_parse(&drive, r->o.io + 4, r->o.seed));
        stk_virtual_set_drive(&r->virtual, &drive);
    }
    if (r->o.cost) STK_TRY(stk_cost_file_probe(r->o.cost, &file));
    STK_TRY(file ? take_cost_file(r) : take_trace_cost(r, path));
    r->virtual.cost.nvme_bytes_per_ns = r->virtual.drive.model.bytes_per_ns; /* what is decided by times knows its drive */
    r->virtual.cost.nvme_latency_ns = STK_MAX((double)r->virtual.drive.model.latency_ns, 1.0);
    return STK_OK;
}

static int check_options(const stk_replay_options *o, uint32_t n_trace) {
    bool budget = o->ram_bytes || o->n_slot || o->fraction != 0;
    if (o->verify && (budget || o->policy || o->scope == STK_SCOPE_LAYER || o->reset || n_trace > 1 || o->predictor ||
                      o->predictor_hooks || o->predict_depth || o->profile))
        return stk_fail(STK_EINVAL, "a verifying replay takes one trace, with its own budget, policy and predictions");
    if (o->timeline && !o->io && !o->cost)
        return stk_fail(STK_EINVAL, "a timeline without times: give a modelled drive, emu:BANDWIDTH,LATENCY, or a file of costs");
    if (!!o->ram_bytes + !!o->n_slot + (o->fraction != 0) > 1)
        return stk_fail(STK_EINVAL, "more than one budget: bytes, slots and fraction exclude one another");
    if (!(o->fraction >= 0 && o->fraction <= 1)) return stk_fail(STK_EINVAL, "a fraction of %g of the experts", o->fraction);
    if (o->predictor && o->predictor_hooks)
        return stk_fail(STK_EINVAL, "predictor '%s' and hooks of another exclude one another", o->predictor);
    if (o->predict_depth > STK_PREDICT_DEPTH_MAX)
        return stk_fail(STK_EINVAL, "predicting %u layers ahead; at most %d are possible", o->predict_depth,
                        STK_PREDICT_DEPTH_MAX);
    if (o->ahead > STK_AHEAD_IMPACT) return stk_fail(STK_EINVAL, "reading ahead %u: no such choice", o->ahead);
    if (o->ahead && o->verify) return stk_fail(STK_EINVAL, "a verifying replay reads ahead what the recorded run did");
    if (o->scope > STK_SCOPE_AUTO || o->reset > STK_RESET_SEQUENCE)
        return stk_fail(STK_EINVAL, "scope %u, reset %u: no such choice", o->scope, o->reset);
    return STK_OK;
}

/* The options that were left open are as the profile says. */
static int take_profile(replay *r) {
    stk_replay_options *o = &r->o;
    stk_profile_file *p = &r->profile;
    const stk_trace_header *h = r->header;
    if (o->profile) {
        STK_TRY(stk_profile_file_load(o->profile, p));
        STK_TRY(stk_profile_file_check(p, o->profile, h->model, h->n_layer, h->n_expert, h->k));
        if (!o->ram_bytes && !o->n_slot && o->fraction == 0) {
            o->ram_bytes = stk_source_get_info(r->source)->sized ? p->ram_bytes : 0;
            if (!o->ram_bytes) o->fraction = p->fraction;
        }
        if (!o->policy && !o->hooks) o->policy = p->policy;
        if (o->scope == STK_SCOPE_AUTO) o->scope = p->scope;
        if (!o->predictor && !o->predictor_hooks) {
            o->predictor = p->predictor;
            if (!o->predict_depth) o->predict_depth = p->depth;
        }
    }
    if (o->scope == STK_SCOPE_AUTO) o->scope = STK_SCOPE_GLOBAL;
    return STK_OK;
}

static const char *policy_of(const replay *r) {
    return r->o.policy ? r->o.policy : r->header->policy[0] ? r->header->policy : "lru";
}

/* Parameters may stand in o.policy, too. */
static int take_policy(replay *r) {
    if (!r->o.policy) return STK_OK;
    r->policy = stk_spec_parse(r->o.policy);
    if (r->policy.params && r->o.params)
        return stk_fail(STK_EINVAL, "policy '%s' has parameters; others ('%s') exclude them", r->o.policy, r->o.params);
    if (r->policy.params) r->o.params = r->policy.params;
    r->o.policy = r->policy.name;
    return STK_OK;
}

static int take_hooks(replay *r) {
    if (!r->o.hooks) return STK_OK;
    if (r->o.policy) return stk_fail(STK_EINVAL, "policy '%s' and hooks of another exclude one another", r->o.policy);
    STK_TRY(stk_policy_user_init(&r->policy_user, r->o.hooks));
    r->o.hooks = NULL;
    r->o.policy = r->policy_user.ops.name;
    if (r->o.verify && strcmp(r->o.policy, r->header->policy) != 0)
        return stk_fail(STK_EINVAL, "the run was recorded with policy '%s'; '%s' cannot verify it", r->header->policy,
                        r->o.policy);
    return STK_OK;
}

/* ---- What will come ---- */

static int spill(void *user, uint64_t at, const uint32_t *from, uint32_t n) {
    const replay *r = user;
    size_t bytes = n * sizeof *from;
    ssize_t done = pwrite(r->spill_fd, from, bytes, (off_t)(at * sizeof *from));
    if (done == (ssize_t)bytes) return STK_OK;
    return done < 0 ? stk_fail_errno(errno, "the replay's temporary file") : stk_fail(STK_ENOSPC, "the replay's temporary file");
}

static int unspill(void *user, uint64_t at, uint32_t *to, uint32_t n) {
    const replay *r = user;
    size_t bytes = n * sizeof *to;
    ssize_t done = pread(r->spill_fd, to, bytes, (off_t)(at * sizeof *to));
    if (done == (ssize_t)bytes) return STK_OK;
    return done < 0 ? stk_fail_errno(errno, "the replay's temporary file")
                    : stk_fail(STK_EIO, "the replay's temporary file is cut");
}

/* A pass of its own, for policies that know the future. */
static int foresee(replay *r, const char *const *paths, uint32_t n) {
    const stk_future_store store = {spill, unspill, r};
    FILE *file = tmpfile();
    if (!file) return stk_fail_errno(errno, "no temporary file for the replay");
    r->spill_fd = fcntl(fileno(file), F_DUPFD_CLOEXEC, 3);
    fclose(file);
    if (r->spill_fd < 0) return stk_fail_errno(errno, "no temporary file for the replay");
    STK_TRY(stk_future_open(&r->future, r->header->n_layer, r->header->n_expert, &store));
    stk_source *s;
    stk_trace_record record;
    stk_tally tally = {.max_seq = INT64_MIN}; /* tells where sequences begin */
    stk_source_options options = source_options(r);
    int rc = stk_source_open(&s, paths, n, &options);
    while (rc >= 0 && (rc = stk_source_read(s, &record)) == 1) {
        bool clear = record.kind == STK_TRACE_CLEAR;
        if (record.kind == STK_TRACE_EVENT) rc = stk_future_add(r->future, record.event.layer, &record.event);
        if (record.kind == STK_TRACE_STEP) clear = stk_tally_step(&tally, &record.step) && r->o.reset == STK_RESET_SEQUENCE;
        if (clear) stk_future_cut(r->future);
    }
    stk_source_close(&s);
    return rc < 0 ? rc : stk_future_end(r->future);
}

/* Slots of each layer as the caller or a profile has them. */
static int take_layer_slots(replay *r, bool refuses) {
    const stk_trace_header *h = r->header;
    if (r->o.scope != STK_SCOPE_LAYER) return STK_OK;
    if (r->inside->layer_slots) return stk_budget_set_layers(&r->budget, h, r->inside->layer_slots, refuses);
    if (!r->profile.layer_slots) return STK_OK;
    uint32_t *n_slot = calloc(h->n_layer, sizeof *n_slot);
    if (!n_slot) return stk_fail(STK_ENOMEM, "out of memory for the replay");
    uint64_t bytes = r->o.profile && r->o.ram_bytes != r->profile.ram_bytes ? r->budget.ram_bytes : 0;
    int rc = stk_profile_file_layers(&r->profile, r->budget.slot_bytes, bytes, h->k + (refuses ? h->k : 0), n_slot);
    if (rc >= 0) rc = stk_budget_set_layers(&r->budget, h, n_slot, refuses);
    free(n_slot);
    return rc;
}

/* Whether the cache is that of the recorded run, but for its policy: what was done to that one is done to it. */
static bool has_recorded_slots(const replay *r) {
    bool budget = r->o.ram_bytes || r->o.n_slot || r->o.fraction > 0;
    return stk_source_get_info(r->source)->recorded && r->header->policy[0] && !budget && r->o.scope == STK_SCOPE_GLOBAL;
}

/*
 * What the recorded run's cache held at its start. Another policy or budget takes of it what it can; one that knows the future
 * begins empty, as does a replay whose sequences do.
 */
static int take_start(replay *r, const stk_policy_ops *ops) {
    const stk_trace_header *h = r->header;
    if (!h->state_bytes || r->o.scope != STK_SCOPE_GLOBAL || r->o.reset == STK_RESET_SEQUENCE || (ops && ops->needs_future))
        return STK_OK;
    int rc = stk_cache_load(r->cache, h->state, (size_t)h->state_bytes);
    stk_cache_arrived(r->cache);
    if (rc >= 0) return STK_OK;
    if (r->o.verify) return stk_fail_in(STK_ESTATE, "the trace's start state");
    stk_log(STK_LOG_WARN, "the replay starts cold: %s", stk_error_detail());
    return STK_OK;
}

static int open_cache(replay *r, const char *const *paths, uint32_t n) {
    const stk_trace_header *h = r->header;
    bool hooks = r->policy_user.ops.open != NULL;
    const stk_policy_ops *ops = hooks ? &r->policy_user.ops : stk_policy_find(policy_of(r));
    if (ops && ops->needs_future) STK_TRY(foresee(r, paths, n));
    STK_TRY(stk_budget_open(&r->budget, h, &r->o, ops && ops->admit));
    STK_TRY(take_layer_slots(r, ops && ops->admit));
    stk_budget_warn(&r->budget, h);
    const char *params = r->o.policy || r->o.params ? r->o.params : h->params[0] ? h->params : NULL;
    STK_TRY(stk_cache_open(&r->cache, &(stk_cache_config){.n_layer = h->n_layer,
                                                          .n_expert = h->n_expert,
                                                          .k = h->k,
                                                          .n_class = r->budget.n_class,
                                                          .classes = r->budget.classes,
                                                          .layer_class = r->budget.layer_class,
                                                          .policy = policy_of(r),
                                                          .params = params,
                                                          .future = r->future,
                                                          .ops = hooks ? ops : NULL,
                                                          .ops_user = &r->policy_user,
                                                          .seed = r->o.seed ? r->o.seed : h->seed}));
    return take_start(r, ops);
}

/* How what is read ahead is chosen, and what of. */
static int open_chooser(replay *r) {
    const stk_trace_header *h = r->header;
    r->sizes = calloc(h->n_layer, sizeof *r->sizes);
    if (!r->sizes) return stk_fail(STK_ENOMEM, "out of memory for the replay");
    for (uint32_t l = 0; l < h->n_layer; l++) { /* all experts of a layer are alike */
        r->sizes[l].payload_bytes = h->classes[h->layer_class[l]].payload_bytes;
        for (uint32_t p = 0; p < h->n_part; p++)
            r->sizes[l].read_bytes += h->extents[(size_t)l * h->n_expert * h->n_part + p].bytes;
    }
    return stk_chooser_open(&r->chooser, &(stk_chooser_config){r->cache, h->n_layer, h->n_expert,
                                                               STK_TRACE_AHEAD_MAX * h->n_expert, r->sizes, r->o.ahead});
}

/*
 * A predictor of the caller's choice, in place of what was recorded. What routers ahead said depends on hidden states, so that it
 * is in the trace alone: "gate" is what was recorded, and others that listen to routers hear that.
 */
static int open_prefetch(replay *r) {
    const stk_trace_header *h = r->header;
    uint32_t depth = r->o.predict_depth ? r->o.predict_depth : 1;
    bool own = r->o.predictor_hooks != NULL;
    const char *name = r->o.predictor;
    if (own) STK_TRY(stk_predictor_user_init(&r->predictor_user, r->o.predictor_hooks, depth));
    r->o.predictor_hooks = NULL;
    r->depth = r->o.predict_depth ? r->o.predict_depth : STK_TRACE_AHEAD_MAX;
    if (!own && (!name || strcmp(name, "gate") == 0)) return STK_OK;
    r->depth = 0;
    if (!own && strcmp(name, "none") == 0) return STK_OK;
    stk_spec spec = stk_spec_parse(own ? "" : name);
    const stk_predictor_ops *ops = own ? NULL : stk_predictor_find(spec.name);
    if (ops && ops->wants_lookahead) STK_TRY(stk_gates_open(&r->gates, h->n_expert, h->k, depth));
    return stk_prefetch_open(&r->prefetch, &(stk_prefetch_config){.predictor = spec.name,
                                                                  .params = spec.params,
                                                                  .depth = depth,
                                                                  .n_layer = h->n_layer,
                                                                  .n_expert = h->n_expert,
                                                                  .k = h->k,
                                                                  .seed = r->o.seed ? r->o.seed : h->seed,
                                                                  .cache = r->cache,
                                                                  .sizes = r->sizes,
                                                                  .rule = r->o.ahead,
                                                                  .ops = own ? &r->predictor_user.ops : NULL,
                                                                  .ops_user = &r->predictor_user});
}

/* The tier of the recorded run. Other replays take all its experts for RAM's. */
static int open_tier(replay *r) {
    const stk_trace_header *h = r->header;
    if (!h->vram_slots) return STK_OK;
    if (!r->o.verify) {
        stk_log(STK_LOG_WARN, "the run had experts in VRAM: what was there is taken for missed");
        return STK_OK;
    }
    r->virtual.tiered = true;
    return stk_vram_open(&r->vram, &(stk_vram_config){.n_layer = h->n_layer,
                                                      .n_expert = h->n_expert,
                                                      .k = h->k,
                                                      .n_class = h->n_class,
                                                      .n_slot = h->vram_slots,
                                                      .layer_class = h->layer_class,
                                                      .policy = h->vram_policy,
                                                      .seed = h->seed,
                                                      .n_fetch = h->n_expert,
                                                      .ops = &stk_virtual_vram,
                                                      .world = &r->virtual,
                                                      .ram = r->cache});
}

/* What the timed path has besides. */
static int open_timed(replay *r, const char *path) {
    STK_TRY(stk_virtual_open(&r->virtual, r->source, r->cache, &r->tally));
    r->virtual.chooser = r->o.verify ? NULL : r->chooser;
    r->virtual.prefetch = r->prefetch;
    r->virtual.gates = r->gates.scores ? &r->gates : NULL;
    r->virtual.depth = r->depth;
    STK_TRY(open_times(r, path));
    STK_TRY(open_tier(r));
    uint32_t most = 1; /* a resize may give a class a slot for every expert */
    for (uint32_t c = 0; c < r->budget.n_class; c++) {
        uint32_t n_slot = STK_MAX(r->budget.classes[c].n_slot, r->budget.layers_of[c] * r->header->n_expert);
        most = STK_MAX(most, n_slot + STK_MAX(r->budget.classes[c].n_transit, r->header->k));
    }
    STK_TRY(stk_executor_open(&r->executor, &stk_virtual_world, &r->virtual, r->header->n_expert,
                              r->header->n_layer * r->header->n_expert, most, &r->virtual.cost));
    r->stepper = (stk_stepper){.ops = &stk_virtual_stage,
                               .stage = &r->virtual,
                               .cache = r->cache,
                               .vram = r->vram,
                               .executor = r->executor,
                               .tally = &r->tally,
                               .cancel = &r->cancel,
                               .n_layer = r->header->n_layer,
                               .timeline = r->o.timeline};
    if (r->o.timeline) stk_timeline_attach(r->o.timeline);
    stk_executor_set_timeline(r->executor, r->o.timeline);
    stk_virtual_set_timeline(&r->virtual, r->o.timeline);
    return STK_OK;
}

static int open_replay(replay *r, const char *const *paths, uint32_t n) {
    STK_TRY(check_options(&r->o, n));
    int shaped = stk_shape_choose(r->o.model, r->o.model_shape, &r->shape);
    if (shaped < 0) return shaped;
    stk_source_options options = source_options(r);
    STK_TRY(stk_source_open(&r->source, paths, n, &options));
    r->header = stk_source_header(r->source);
    const stk_source_info *info = stk_source_get_info(r->source);
    if (r->o.verify && !(info->recorded && r->header->policy[0]))
        return stk_fail(STK_ESTATE, "%s is no recorded run: it has no decisions to compare with", paths[0]);
    STK_TRY(take_profile(r));
    if (!info->sized && (r->o.ram_bytes || asks_times(r)))
        stk_log(STK_LOG_WARN, "%s does not say how large an expert is: %d bytes are assumed", paths[0], STK_SOURCE_EXPERT_BYTES);
    STK_TRY(take_policy(r));
    STK_TRY(take_hooks(r));
    STK_TRY(open_cache(r, paths, n));
    STK_TRY(stk_tally_open(&r->tally, r->header));
    STK_TRY(open_chooser(r));
    STK_TRY(open_prefetch(r));
    return asks_times(r) || r->o.verify ? open_timed(r, paths[0]) : STK_OK;
}

static void close_replay(replay *r) {
    stk_executor_close(&r->executor);
    stk_vram_close(&r->vram);
    stk_virtual_close(&r->virtual);
    stk_chooser_close(&r->chooser);
    free(r->sizes);
    stk_prefetch_close(&r->prefetch);
    stk_gates_close(&r->gates);
    stk_profile_file_fini(&r->profile);
    stk_cache_close(&r->cache);
    stk_future_close(&r->future);
    if (r->spill_fd > 0) close(r->spill_fd);
    stk_tally_close(&r->tally);
    stk_budget_close(&r->budget);
    stk_source_close(&r->source);
    stk_shape_close(&r->shape);
}

/* ---- The timed path ----------------------------------------------------------------------------------------------------- */

static void count(const replay *r, stk_stats *s) {
    stk_stepper_count(&r->stepper, s);
    s->bytes -= r->virtual.dropped_bytes;
    s->read_bytes -= r->virtual.dropped_read_bytes;
}

/* Compares with what the recorded run counted; names the first difference. */
static int verify(const replay *r, const stk_trace_end *end) {
    stk_stats s;
    if (end->n_hit + end->n_miss != end->n_lookup)
        return stk_fail(STK_ESTATE, "the trace was cut or merged: it has no decisions to compare with");
    count(r, &s);
    const struct {
        const char *name;
        uint64_t live, replayed;
    } figures[] = {
        {"events", end->n_event, s.n_event},
        {"lookups", end->n_lookup, s.n_lookup},
        {"token-expert pairs", end->n_pair, s.n_pair},
        {"hits", end->n_hit, s.n_hit},
        {"misses", end->n_miss, s.n_miss},
        {"evictions", end->n_evict, s.n_evict},
        {"waves", end->n_wave, s.n_wave},
        {"bytes", end->bytes, s.bytes},
        {"read_bytes", end->read_bytes, s.read_bytes},
        {"cache state", end->cache_hash, stk_cache_hash(r->cache)},
        {"hits in VRAM", end->n_vram_hit, s.n_vram_hit},
        {"fetches", end->n_fetch, s.n_fetch},
        {"returns to RAM", end->n_return, s.n_return},
        {"VRAM state", end->vram_hash, r->vram ? stk_vram_hash(r->vram) : 0},
    };
    for (size_t i = 0; i < STK_ARRAY_LEN(figures); i++)
        if (figures[i].live != figures[i].replayed)
            return stk_fail(STK_ESTATE, "the replay differs from the recorded run in its %s: %" PRIu64 ", recorded %" PRIu64,
                            figures[i].name, figures[i].replayed, figures[i].live);
    return STK_OK;
}

static int run_step(replay *r, const stk_trace_step *step) {
    stk_stats before, after;
    stk_stepper_count(&r->stepper, &before);
    bool begins = stk_tally_step(&r->tally, step);
    if (begins && r->o.reset == STK_RESET_SEQUENCE && r->tally.n_sequence > 1) {
        stk_virtual_clear(&r->virtual); /* nothing comes for a slot that it has not */
        STK_TRY(stk_cache_clear(r->cache));
    }
    stk_replay_count *phase = &r->tally.phases[r->tally.phase];
    int rc = stk_stepper_run(&r->stepper, step);
    stk_stepper_count(&r->stepper, &after);
    phase->n_token += after.n_token - before.n_token;
    phase->step_ns += after.step_ns - before.step_ns;
    phase->dense_ns += after.dense_ns - before.dense_ns;
    phase->expert_ns += after.expert_ns - before.expert_ns;
    phase->arrive_ns += after.arrive_ns - before.arrive_ns;
    phase->wait_ns += after.wait_ns - before.wait_ns;
    if (r->inside->stepped && rc >= 0) {
        stk_stats total;
        count(r, &total);
        r->inside->stepped(r->inside->user, r->stepper.n_step - 1, r->tally.phase, &total);
    }
    return rc == STK_ECANCELED ? STK_OK : rc; /* a step that the recorded run gave up */
}

static int take_resize(replay *r, const stk_trace_resize *resize) {
    if (!has_recorded_slots(r)) {
        r->n_resize_left_out++;
        return STK_OK;
    }
    stk_virtual_clear(&r->virtual); /* what is on its way is taken for there, as experts of a resize move */
    return stk_decide_resize(r->cache, r->header->n_class, r->o.verify ? NULL : r->budget.classes, resize);
}

/* One record that stands between steps. Returns 1 at the end of the run. */
static int take_record(replay *r, const stk_trace_record *record) {
    switch (record->kind) {
    case STK_TRACE_STEP: {
        stk_trace_step step = record->step;
        stk_virtual_take(&r->virtual);
        return run_step(r, &step);
    }
    case STK_TRACE_CLEAR:
        stk_virtual_take(&r->virtual);
        stk_virtual_clear(&r->virtual);
        if (r->vram) STK_TRY(stk_vram_clear(r->vram));
        return stk_cache_clear(r->cache);
    case STK_TRACE_RESIZE: {
        int rc = take_resize(r, &record->resize);
        stk_virtual_take(&r->virtual);
        return rc;
    }
    case STK_TRACE_SWITCH: /* what was read ahead is on record, or chosen anew */
    case STK_TRACE_COST: stk_virtual_take(&r->virtual); return STK_OK;
    case STK_TRACE_END:
        if (r->o.verify) STK_TRY(verify(r, &record->end));
        return 1;
    default: return stk_fail(STK_EFORMAT, "trace: a record of kind %d outside of a step", (int)record->kind);
    }
}

static int run_timed(replay *r) {
    for (uint64_t n = 0;; n++) {
        const stk_trace_record *record;
        int rc = stk_virtual_peek(&r->virtual, &record);
        if (rc <= 0) return rc;
        rc = take_record(r, record);
        if (rc != STK_OK) return rc < 0 ? rc : STK_OK;
        if (!r->o.progress || n % 256) continue;
        uint64_t done, total;
        stk_source_progress(r->source, &done, &total);
        if (r->o.progress(r->o.progress_user, "replay", done, total)) return stk_fail(STK_ECANCELED, "the replay was cancelled");
    }
}

/* ---- Both paths --------------------------------------------------------------------------------------------------------- */

static int run_decisions(replay *r, stk_stats *stats) {
    stk_ahead *ahead = calloc((size_t)STK_TRACE_AHEAD_MAX * r->header->n_expert, sizeof *ahead);
    if (!ahead) return stk_fail(STK_ENOMEM, "out of memory for the replay");
    stk_decide d = {.source = r->source,
                    .cache = r->cache,
                    .tally = &r->tally,
                    .chooser = r->chooser,
                    .prefetch = r->prefetch,
                    .gates = r->gates.scores ? &r->gates : NULL,
                    .depth = strcmp(stk_source_get_info(r->source)->format, "stoker") == 0
                                 ? r->depth
                                 : 0, /* others say nothing of layers ahead */
                    .ahead = ahead,
                    .stepped = r->inside->stepped,
                    .stepped_user = r->inside->user,
                    .reset = r->o.reset == STK_RESET_SEQUENCE,
                    .resizable = has_recorded_slots(r) ? r->budget.classes : NULL,
                    .progress = r->o.progress,
                    .progress_user = r->o.progress_user};
    int rc = stk_decide_run(&d);
    free(ahead);
    STK_TRY(rc);
    r->n_resize_left_out = d.n_resize_left_out;
    stk_decide_count(&d, stats);
    return STK_OK;
}

static void fill_result(const replay *r, const stk_stats *stats, stk_replay_result *result) {
    stk_replay_result full = {.complete = !stk_source_cut(r->source),
                              .n_slot = r->budget.n_slot,
                              .ram_bytes = r->budget.ram_bytes,
                              .virtual_ns = (uint64_t)r->virtual.now_ns,
                              .stats = *stats};
    full.struct_bytes = STK_MIN(result->struct_bytes, (uint32_t)sizeof full);
    memcpy(result, &full, full.struct_bytes);
}

static void fill_detail(const replay *r, stk_replay_detail *detail) {
    const stk_trace_header *h = r->header;
    stk_replay_detail full = {.sized = stk_source_get_info(r->source)->sized,
                              .n_sequence = r->tally.n_sequence,
                              .n_expert = (uint64_t)h->n_layer * h->n_expert,
                              .token_slots = (uint64_t)h->n_layer * h->k,
                              .layers = detail->layers,
                              .n_layer_max = detail->n_layer_max,
                              .n_layer = h->n_layer,
                              .scope = r->o.scope};
    full.struct_bytes = STK_MIN(detail->struct_bytes, (uint32_t)sizeof full);
    stk_tally_sum(&r->tally, &full.prefill, &full.decode);
    snprintf(full.policy, sizeof full.policy, "%s", policy_of(r));
    for (uint32_t d = 0; r->prefetch && d < STK_ARRAY_LEN(full.predicted); d++)
        stk_prefetch_count(r->prefetch, d + 1, &full.predicted[d]);
    for (uint32_t i = 0; full.layers && i < STK_MIN(full.n_layer, full.n_layer_max); i++)
        full.layers[i] = (stk_replay_layer){.layer = h->model_layer[i],
                                            .n_slot = r->budget.classes[r->budget.layer_class[i]].n_slot,
                                            .prefill = r->tally.layers[i][STK_PREFILL],
                                            .decode = r->tally.layers[i][STK_DECODE]};
    memcpy(detail, &full, full.struct_bytes);
}

static int run(replay *r, const char *path, stk_replay_result *result) {
    stk_stats stats;
    if (r->executor) {
        STK_TRY(run_timed(r));
        count(r, &stats);
    } else {
        STK_TRY(run_decisions(r, &stats));
    }
    if (r->o.verify && stk_source_cut(r->source))
        return stk_fail(STK_ESTATE, "%s is cut off: it has no counters to compare with", path);
    if (r->n_resize_left_out)
        stk_log(STK_LOG_WARN, "the recorded run was resized %" PRIu64 " times; this replay keeps its own budget throughout",
                r->n_resize_left_out);
    fill_result(r, &stats, result);
    if (r->o.detail) fill_detail(r, r->o.detail);
    return STK_OK;
}

int stk_replay_run(const char *const *traces, uint32_t n, const stk_replay_options *options, const stk_replay_inside *inside,
                   stk_replay_result *result) {
    if (!traces || !n || !result) return stk_fail(STK_EINVAL, "stk_replay: an argument is NULL");
    for (uint32_t i = 0; i < n; i++)
        if (!traces[i]) return stk_fail(STK_EINVAL, "stk_replay: trace %u is NULL", i);
    replay r = {.inside = inside};
    stk_replay_options_default(&r.o, sizeof r.o);
    if (options) STK_TRY(stk_struct_take(&r.o, sizeof r.o, options, "replay options"));
    if (result->struct_bytes < sizeof result->struct_bytes)
        return stk_fail(STK_EINVAL, "replay result of %u bytes", result->struct_bytes);
    if (r.o.detail && r.o.detail->struct_bytes < offsetof(stk_replay_detail, policy))
        return stk_fail(STK_EINVAL, "replay detail of %u bytes", r.o.detail->struct_bytes);
    if (r.o.timeline && (r.o.vram_bytes || r.o.mode))
        return stk_fail(STK_EUNSUPPORTED, "a timeline of a replay with VRAM is not kept yet: leave vram and mode out");
    if (r.o.vram_bytes || r.o.mode) return stk_replay_tiers_run(traces, n, &r.o, result);
    int rc = open_replay(&r, traces, n);
    if (rc >= 0) rc = run(&r, traces[0], result);
    close_replay(&r);
    return rc;
}

int stk_replay_many(const char *const *traces, uint32_t n, const stk_replay_options *options, stk_replay_result *result) {
    static const stk_replay_inside nothing = {0};
    return stk_replay_run(traces, n, options, &nothing, result);
}

int stk_replay(const char *trace, const stk_replay_options *options, stk_replay_result *result) {
    return stk_replay_many(&trace, 1, options, result);
}
