/* engine_trace: the header and the end of a recorded run. */
#include <stdlib.h>

#include "engine.h"
#include "src/model/shape.h"

int stk_engine_trace_open(stk_engine *e, const char *path, const uint32_t *n_slot) {
    const stk_catalogue *cat = e->experts;
    uint32_t n_layer = stk_catalogue_n_layer(cat), n_expert = stk_catalogue_n_expert(cat), n_class = stk_catalogue_n_class(cat);
    stk_trace_class *classes = calloc(n_class, sizeof *classes);
    uint32_t *layers = calloc(n_layer, 2 * sizeof *layers);
    stk_trace_extent *extents = calloc((size_t)n_layer * n_expert * STK_N_PART, sizeof *extents);
    int64_t state_bytes = e->warm_loaded ? stk_cache_save(e->cache, NULL, 0) : 0;
    void *state = state_bytes > 0 ? malloc((size_t)state_bytes) : NULL;
    int rc;
    if (!classes || !layers || !extents || (state_bytes > 0 && !state)) {
        rc = stk_fail(STK_ENOMEM, "out of memory for the trace's header");
        goto out;
    }
    for (uint32_t c = 0; c < n_class; c++)
        classes[c] = (stk_trace_class){.slot_bytes = stk_catalogue_class(cat, c)->slot_bytes,
                                       .payload_bytes = stk_catalogue_class(cat, c)->payload_bytes,
                                       .n_slot = n_slot[c] - e->n_transit,
                                       .n_transit = e->n_transit};
    for (uint32_t l = 0; l < n_layer; l++) {
        layers[l] = stk_catalogue_layer_class(cat, l);
        layers[n_layer + l] = l;
        stk_shape_extents(cat, l, e->io, extents + (size_t)l * n_expert * STK_N_PART);
    }
    if (state) (void)stk_cache_save(e->cache, state, (size_t)state_bytes);
    stk_trace_header h = {.n_layer = n_layer,
                          .n_expert = n_expert,
                          .k = e->model->hp.n_expert_used,
                          .n_part = STK_N_PART,
                          .n_class = n_class,
                          .n_batch = e->o.n_batch,
                          .ram_bytes = e->o.ram_bytes,
                          .seed = e->o.seed,
                          .classes = classes,
                          .layer_class = layers,
                          .model_layer = layers + n_layer,
                          .extents = extents,
                          .model = e->model->name,
                          .policy = e->policy_user.ops.open ? e->policy_user.ops.name : e->policy.name,
                          .params = e->policy.params ? e->policy.params : "",
                          .io = e->o.io ? e->o.io : "",
                          .state = state,
                          .state_bytes = state_bytes > 0 ? (uint64_t)state_bytes : 0,
                          .vram_slots = e->vram ? e->vram_slots : NULL,
                          .vram_policy = e->o.vram_policy};
    STK_TRYGOTO(stk_trace_writer_open(&e->trace, path, &h), rc, out);
    e->stepper.trace = e->trace;
out:
    free(classes);
    free(layers);
    free(extents);
    free(state);
    return rc;
}

int stk_engine_trace_close(stk_engine *e) {
    if (!e->trace) return STK_OK;
    stk_trace_record cost = {.kind = STK_TRACE_COST}, end = {.kind = STK_TRACE_END};
    stk_stats s;
    stk_engine_count(e, &s);
    (void)stk_cost_export(&e->cost, cost.cost, STK_TRACE_N_COST);
    end.end = (stk_trace_end){s.n_event,    s.n_lookup,
                              s.n_pair,     s.n_hit,
                              s.n_miss,     s.n_evict,
                              s.n_wave,     s.bytes,
                              s.read_bytes, stk_cache_hash(e->cache),
                              s.n_vram_hit, s.n_fetch,
                              s.n_return,   e->vram ? stk_vram_hash(e->vram) : 0};
    int rc = stk_trace_write(e->trace, &cost);
    if (rc >= 0) rc = stk_trace_write(e->trace, &end);
    int closed = stk_trace_writer_close(&e->trace);
    return rc < 0 ? rc : closed;
}
