/* engine_open: options, budgets, and the parts in order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "src/plan/cost_file.h"
#include "src/plan/fit.h"

/* The table of a cost file, or a plain desktop's. A file of another machine is taken for what it is: the run corrects it. */
static int open_cost(stk_engine *e) {
    stk_cost_default(&e->cost);
    if (!e->o.cost) {
        if (e->model->packed) e->cost.arrive_ns_per_byte = 0;
        return STK_OK;
    }
    stk_cost_file *file = malloc(sizeof *file);
    if (!file) return stk_fail(STK_ENOMEM, "out of memory");
    int rc = stk_cost_file_load(e->o.cost, file);
    if (rc >= 0) stk_cost_file_table(file, e->model, &e->cost);
    if (e->model->packed) e->cost.arrive_ns_per_byte = 0;
    if (rc >= 0 && (strcmp(file->cpu, e->ops->name) != 0 || file->n_threads != stk_pool_n_worker(e->pool)))
        stk_log(STK_LOG_INFO, "%s was measured with %s kernels and %u threads; this run has %s and %u", e->o.cost, file->cpu,
                file->n_threads, e->ops->name, stk_pool_n_worker(e->pool));
    free(file);
    return rc;
}

/* Whether the routers of layers ahead will be asked. */
static bool looks_ahead(const stk_engine *e) {
    if (e->predictor_user.ops.open) return e->predictor_user.ops.wants_lookahead;
    const stk_predictor_ops *ops = stk_predictor_find(stk_spec_parse(e->predictor_text).name);
    return ops && ops->wants_lookahead;
}

/* The fewest slots of a class. */
static uint32_t least_slots(const stk_engine *e) { return e->model->hp.n_expert_used + e->n_transit; }

static stk_fit_limits limits_of(const stk_engine *e) {
    return (stk_fit_limits){e->o.n_ctx,
                            e->o.n_batch,
                            e->o.n_seq_max,
                            e->o.n_logits,
                            stk_pool_n_worker(e->pool),
                            e->o.kv_k_type == STK_KV_F16,
                            e->o.kv_v_type == STK_KV_F16,
                            looks_ahead(e),
                            e->fast};
}

stk_kv_config stk_engine_kv_config(const stk_engine *e) {
    stk_fit_limits limits = limits_of(e);
    return stk_fit_kv(&e->model->hp, &limits);
}

/* Of the layers that the CPU has. */
static stk_kv_config kv_config(const stk_engine *e) {
    stk_kv_config kv = stk_engine_kv_config(e);
    kv.n_layer = e->n_cpu_layer;
    return kv;
}

static stk_forward_config forward_config(stk_engine *e) {
    return (stk_forward_config){.model = e->model,
                                .ops = e->ops,
                                .pool = e->pool,
                                .kv = e->kv,
                                .dense = &e->dense,
                                .routers = &e->routers,
                                .store = e->store,
                                .fast = e->fast,
                                .n_batch = e->o.n_batch,
                                .n_ctx = e->o.n_ctx,
                                .n_logits = e->o.n_logits};
}

/*
 * Sets memory.* and o.ram_bytes before anything is taken. Errors: STK_EBUDGET where the least does not fit what is free, or --ram
 * is below the least, or what is to be locked is above what may be.
 */
static int plan_memory(stk_engine *e) {
    stk_memory_info *m = &e->memory;
    const stk_catalogue *cat = e->experts;
    stk_fit_limits limits = limits_of(e);
    stk_fit_bytes bytes = stk_fit_fixed(e->model, &limits);
    stk_kv_config kv = kv_config(e);
    char a[32], b[32], c[32];
    m->struct_bytes = sizeof *m;
    m->dense_bytes = bytes.dense;
    m->kv_bytes = stk_kv_bytes(&kv);
    m->buffer_bytes = bytes.buffers + (e->fast ? stk_fast_bytes(e->fast) : 0);
    m->ram_bytes_min = stk_slots_least_bytes(cat, least_slots(e));
    uint64_t fixed = m->dense_bytes + m->kv_bytes + m->buffer_bytes + stk_engine_device_host_bytes(e),
             free_bytes = stk_mem_available(), all = stk_slots_all_bytes(cat);
    if (e->o.ram_bytes == 0) e->o.ram_bytes = stk_fit_slots(free_bytes, fixed, m->ram_bytes_min, all);
    if (e->o.ram_bytes < m->ram_bytes_min)
        return stk_fail(STK_EBUDGET, "--ram %s is too small: the least is %lluK (%llu bytes), %u experts of each size",
                        stk_bytes_text(e->o.ram_bytes, a), (unsigned long long)stk_div_up(m->ram_bytes_min, 1024),
                        (unsigned long long)m->ram_bytes_min, least_slots(e));
    e->o.ram_bytes = STK_MIN(e->o.ram_bytes, all);
    if (fixed + e->o.ram_bytes > free_bytes)
        return stk_fail(
            STK_EBUDGET,
            "%s are needed (dense weights, KV and buffers %s, experts %s), but only %s are free; lower --ram, -c or -b",
            stk_bytes_text(fixed + e->o.ram_bytes, a), stk_bytes_text(fixed, b), stk_bytes_text(e->o.ram_bytes, c),
            stk_bytes_text(free_bytes, (char[32]){0}));
    if (e->o.mlock && fixed + e->o.ram_bytes > stk_mem_lockable())
        return stk_fail(STK_EBUDGET,
                        "%s are to be locked in memory, but RLIMIT_MEMLOCK allows %s; raise it (ulimit -l) or leave out --mlock",
                        stk_bytes_text(fixed + e->o.ram_bytes, a), stk_bytes_text(stk_mem_lockable(), b));
    return STK_OK;
}

static int open_io(stk_engine *e) {
    const stk_gguf *g = e->model->gguf;
    uint32_t n_file = stk_gguf_n_file(g);
    const char **paths = calloc(n_file, sizeof *paths);
    if (!paths) return stk_fail(STK_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < n_file; i++) paths[i] = stk_gguf_path(g, i);
    stk_io_options o = {.spec = e->o.io, .n_file = n_file, .paths = paths, .seed = e->o.seed};
    int rc = stk_io_open(&e->io, &o);
    free(paths);
    return rc;
}

static int open_cache(stk_engine *e, const uint32_t *n_slot) {
    const stk_catalogue *cat = e->experts;
    uint32_t n_class = stk_catalogue_n_class(cat), n_layer = stk_catalogue_n_layer(cat);
    stk_cache_class *classes = calloc(n_class, sizeof *classes);
    uint32_t *layer_class = calloc(n_layer, sizeof *layer_class);
    int rc = STK_OK;
    if (!classes || !layer_class) rc = stk_fail(STK_ENOMEM, "out of memory");
    for (uint32_t c = 0; rc == STK_OK && c < n_class; c++) classes[c] = (stk_cache_class){n_slot[c] - e->n_transit, e->n_transit};
    for (uint32_t l = 0; rc == STK_OK && l < n_layer; l++) layer_class[l] = stk_catalogue_layer_class(cat, l);
    if (rc == STK_OK)
        rc = stk_cache_open(&e->cache, &(stk_cache_config){.n_layer = n_layer,
                                                           .n_expert = stk_catalogue_n_expert(cat),
                                                           .k = e->model->hp.n_expert_used,
                                                           .n_class = n_class,
                                                           .classes = classes,
                                                           .layer_class = layer_class,
                                                           .policy = e->policy.name,
                                                           .params = e->policy.params,
                                                           .ops = e->policy_user.ops.open ? &e->policy_user.ops : NULL,
                                                           .ops_user = &e->policy_user,
                                                           .seed = e->o.seed});
    free(classes);
    free(layer_class);
    return rc;
}

static int open_step_arrays(stk_engine *e) {
    const stk_hparams *hp = &e->model->hp;
    e->token = calloc(e->o.n_batch, sizeof *e->token);
    e->seq = calloc(e->o.n_batch, sizeof *e->seq);
    e->pos = calloc(e->o.n_batch, sizeof *e->pos);
    e->logits = calloc(e->o.n_batch, 1);
    e->seq_next = calloc(e->o.n_seq_max, sizeof *e->seq_next);
    e->forced = calloc((size_t)hp->n_layer * hp->n_expert_used, sizeof *e->forced);
    e->forced_layers = calloc(hp->n_layer, 1);
    if (e->token && e->seq && e->pos && e->logits && e->seq_next && e->forced && e->forced_layers) return STK_OK;
    return stk_fail(STK_ENOMEM, "out of memory");
}

/* A class may grow to a slot for every expert, and those for transit. */
static int open_executor(stk_engine *e) {
    const stk_catalogue *cat = e->experts;
    uint32_t most = 0;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++)
        most = STK_MAX(most, stk_catalogue_class(cat, c)->n_expert + e->n_transit);
    e->forward->cost = &e->cost;
    e->forward->forced = e->forced;
    e->forward->forced_layers = e->forced_layers;
    STK_TRY(stk_executor_open(&e->executor, &stk_forward_world, e->forward, stk_catalogue_n_expert(cat),
                              stk_catalogue_n_expert(cat) * stk_catalogue_n_layer(cat), most, &e->cost));
    e->stepper = (stk_stepper){.ops = &stk_forward_stage,
                               .stage = e->forward,
                               .cache = e->cache,
                               .vram = e->vram,
                               .executor = e->executor,
                               .cost = &e->cost,
                               .cancel = &e->cancel,
                               .n_layer = e->model->hp.n_layer};
    return STK_OK;
}

int stk_engine_divide_slots(const stk_engine *e, uint64_t ram_bytes, uint32_t *n_slot) {
    const stk_catalogue *cat = e->experts;
    if (!e->own_experts || !e->profile.layer_slots) return stk_slots_divide(cat, ram_bytes, least_slots(e), n_slot);
    uint64_t *slot_bytes = calloc(stk_catalogue_n_class(cat), sizeof *slot_bytes);
    if (!slot_bytes) return stk_fail(STK_ENOMEM, "out of memory");
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++) slot_bytes[c] = stk_catalogue_class(cat, c)->slot_bytes;
    int rc = stk_profile_file_layers(&e->profile, slot_bytes, ram_bytes, least_slots(e), n_slot);
    free(slot_bytes);
    return rc;
}

static int open_parts(stk_engine *e, uint32_t *n_slot) {
    const stk_catalogue *cat = e->experts;
    STK_TRY(stk_engine_divide_slots(e, e->o.ram_bytes, n_slot));
    STK_TRY(stk_slots_open(&e->slots, cat, n_slot, e->o.mlock));
    STK_TRY(open_io(e));
    STK_TRY(stk_engine_register_slots(e));
    stk_kv_config kv = kv_config(e);
    STK_TRY(stk_kv_open(&e->kv, &kv, e->o.mlock));
    STK_TRY(stk_dense_load(&e->dense, e->model, e->ops, e->pool, e->io, e->o.mlock, e->o.progress, e->o.progress_user));
    if (looks_ahead(e)) STK_TRY(stk_routers_open(&e->routers, e->model, &e->dense, e->ops, e->pool, e->o.mlock));
    STK_TRY(open_cache(e, n_slot));
    STK_TRY(stk_store_open(&e->store, cat, e->io, e->slots, stk_pool_n_worker(e->pool)));
    stk_forward_config forward = forward_config(e);
    STK_TRY(stk_forward_open(&e->forward, &forward, e->o.mlock));
    STK_TRY(stk_engine_device_open(e));
    STK_TRY(open_step_arrays(e));
    STK_TRY(stk_engine_attach_prefetch(e));
    STK_TRY(open_executor(e));
    stk_watch_init(&e->watch);
    if (e->o.warm) STK_TRY(stk_engine_warm_open(e, e->o.warm));
    if (e->o.trace) STK_TRY(stk_engine_trace_open(e, e->o.trace, n_slot));
    return STK_OK;
}

static void describe_memory(stk_engine *e) {
    stk_memory_info *m = &e->memory;
    stk_engine_count_memory(e);
    m->n_expert = stk_catalogue_n_expert(e->experts) * stk_catalogue_n_layer(e->experts);
    m->n_ctx = e->o.n_ctx;
    m->io = stk_io_name(e->io);
    m->cpu = e->ops->name;
    m->n_threads = stk_pool_n_worker(e->pool);
    m->policy = e->policy_text;
    m->scope = e->own_experts ? "layer" : "global";
    /* What the drive did to load the weights is not part of the run. */
    (void)stk_engine_reset_stats(e);
}

int stk_engine_open(stk_engine **out, const stk_model *model, const stk_engine_options *options) {
    int rc;
    if (!out || !model) return stk_fail(STK_EINVAL, "stk_engine_open: an argument is NULL");
    *out = NULL;
    uint32_t mxcsr = stk_mxcsr_set();
    uint32_t *n_slot = calloc(stk_catalogue_n_layer(model->experts) + 1, sizeof *n_slot);
    stk_engine *e = calloc(1, sizeof *e);
    if (!e || !n_slot) {
        rc = stk_fail(STK_ENOMEM, "out of memory");
        goto out;
    }
    e->model = model;
    STK_TRYGOTO(stk_forward_check(&model->hp), rc, out);
    STK_TRYGOTO(stk_engine_take_options(e, options), rc, out);
    e->ops = stk_cpu_ops_at_most(e->o.cpu);
    if (!e->ops) {
        rc = stk_fail(STK_EINVAL, "no kernels are named '%s'; there are ref, avx2, avxvnni and avx512", e->o.cpu ? e->o.cpu : "");
        goto out;
    }
    if (e->o.trace && stk_model_owns_file(model, e->o.trace)) {
        /* A swapped argument would cost hours of download. */
        rc = stk_fail(STK_EINVAL, "trace %s: that is a file of the model; name another", e->o.trace);
        goto out;
    }
    STK_TRYGOTO(stk_pool_open(&e->pool, e->o.n_threads), rc, out);
    STK_TRYGOTO(open_cost(e), rc, out);
    STK_TRYGOTO(stk_engine_float_open(e), rc, out);
    STK_TRYGOTO(stk_engine_device_plan(e), rc, out);
    STK_TRYGOTO(plan_memory(e), rc, out);
    STK_TRYGOTO(open_parts(e, n_slot), rc, out);
    describe_memory(e);
    e->opened = true;
    e->o.io = e->o.policy = e->o.cpu = e->o.trace = e->o.predictor = e->o.cost = e->o.warm = e->o.scope = e->o.profile = NULL;
    e->o.device = e->o.vram_policy = NULL;
out:
    free(n_slot);
    stk_mxcsr_restore(mxcsr);
    if (rc < 0 && e) {
        char why[512];
        strncpy(why, stk_error_detail(), sizeof why - 1);
        why[sizeof why - 1] = 0;
        (void)stk_engine_close(&e);
        return stk_fail(rc, "%s", why);
    }
    *out = e;
    return rc;
}

int stk_engine_close(stk_engine **engine) {
    stk_engine *e = engine ? *engine : NULL;
    if (!e) return STK_OK;
    int rc = stk_engine_trace_close(e), kept = stk_engine_warm_close(e);
    stk_executor_close(&e->executor);
    stk_prefetch_close(&e->prefetch);
    stk_engine_device_close(e);
    stk_forward_close(&e->forward);
    stk_fast_close(&e->fast);
    stk_store_close(&e->store);
    stk_cache_close(&e->cache);
    stk_kv_close(&e->kv);
    stk_io_close(&e->io);
    stk_routers_close(&e->routers);
    stk_dense_close(&e->dense);
    stk_slots_close(&e->slots);
    stk_pool_close(&e->pool);
    stk_catalogue_close(&e->own_experts);
    stk_profile_file_fini(&e->profile);
    free(e->token);
    free(e->seq);
    free(e->pos);
    free(e->logits);
    free(e->seq_next);
    free(e->forced);
    free(e->forced_layers);
    free(e);
    *engine = NULL;
    return rc < 0 ? rc : kept;
}
