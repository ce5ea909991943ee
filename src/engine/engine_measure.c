/* engine_measure: what an opened engine's parts take by themselves: a layer without work, and its drive. */
#include <stdio.h>
#include <stdlib.h>

#include "engine.h"

enum { N_LAYER_RUN = 201 };
#define DRIVE_NS UINT64_C(1500000000)

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A step without tokens goes through every job and phase of a layer, and computes nothing. */
int stk_engine_measure_layer(stk_engine *e, double *layer_ns) {
    if (!e || !layer_ns) return stk_fail(STK_EINVAL, "stk_engine_measure_layer: an argument is NULL");
    stk_forward *f = e->forward;
    stk_cost *cost = f->cost;
    stk_prefetch *prefetch = f->prefetch;
    const stk_trace_step *before = f->step, none = {0};
    uint32_t mxcsr = stk_mxcsr_set(), n_block = f->n_block;
    double ns[N_LAYER_RUN];
    bool on = f->stages.on;
    int rc = STK_OK;
    f->stages.on = false;
    f->cost = NULL; /* nothing to learn here, nor to predict */
    f->prefetch = NULL;
    f->step = &none;
    f->n_block = 0;
    for (int i = 0; i < N_LAYER_RUN && rc >= 0; i++) {
        stk_event event = {0};
        uint64_t start = stk_now_ns();
        rc = stk_forward_stage.route(f, 0, &event);
        if (rc > 0) rc = stk_forward_world.compute(f, 0, &event, NULL, 0);
        if (rc >= 0) rc = stk_forward_stage.combine(f, 0);
        ns[i] = (double)(stk_now_ns() - start);
    }
    f->step = before;
    f->n_block = n_block;
    f->cost = cost;
    f->prefetch = prefetch;
    f->stages.on = on;
    stk_mxcsr_restore(mxcsr);
    qsort(ns, N_LAYER_RUN, sizeof *ns, by_value);
    if (rc >= 0) *layer_ns = ns[N_LAYER_RUN / 2];
    return rc < 0 ? rc : STK_OK;
}

static uint32_t draw(uint64_t *random, uint32_t below) {
    *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
    return (uint32_t)((*random >> 11) % below);
}

static uint32_t common_divisor(uint32_t a, uint32_t b) { return b ? common_divisor(b, a % b) : a; }

/* Waits until no expert of an event is on its way; none is packed, so that the drive alone is measured. */
static int await_event(stk_engine *e, uint32_t left, stk_arrival *done) {
    while (left > 0) {
        STK_TRY(stk_store_poll(e->store, true));
        (void)stk_store_pick(e->store, true);
        (void)stk_store_settle(e->store);
        uint32_t n = stk_store_take(e->store, done, stk_catalogue_n_expert(e->experts));
        for (uint32_t i = 0; i < n; i++) {
            if (done[i].status < 0) return done[i].status;
            left -= done[i].phases == STK_PHASE_ALL;
        }
        if (n == 0 && atomic_load_explicit(&e->cancel, memory_order_relaxed))
            return stk_fail(STK_ECANCELED, "measuring the drive was cancelled");
    }
    return STK_OK;
}

/* Reads as many experts of a layer as a token uses, whichever, into the first slots of its class; adds up what was asked for. */
static int read_event(stk_engine *e, uint32_t layer, uint64_t *random, stk_arrival *done, uint64_t *bytes) {
    const stk_catalogue *cat = e->experts;
    uint32_t n_expert = stk_catalogue_n_expert(cat), n = e->model->hp.n_expert_used;
    uint32_t expert = draw(random, n_expert), step = 1 + draw(random, n_expert);
    while (common_divisor(step, n_expert) != 1) step++; /* no expert twice */
    for (uint32_t i = 0; i < n; i++, expert = (expert + step) % n_expert) {
        stk_decision d = {
            .key = layer * n_expert + expert, .expert = (uint16_t)expert, .kind = STK_ADMIT, .slot = i, .victim = STK_NO_KEY};
        uint64_t payload, asked;
        stk_store_sizes(e->store, layer, expert, &payload, &asked);
        *bytes += asked;
        STK_TRY(stk_store_read(e->store, layer, &d, i));
    }
    return await_event(e, n, done);
}

int stk_engine_measure_drive(stk_engine *e, double *bytes_per_s) {
    if (!e || !bytes_per_s) return stk_fail(STK_EINVAL, "stk_engine_measure_drive: an argument is NULL");
    const stk_catalogue *cat = e->experts;
    if (stk_catalogue_n_class(cat) == 0) return stk_fail(STK_EUNSUPPORTED, "the model has no experts to read");
    stk_arrival *done = malloc(stk_catalogue_n_expert(cat) * sizeof *done);
    if (!done) return stk_fail(STK_ENOMEM, "out of memory");
    int rc = stk_engine_drop_experts(e); /* their slots are written to */
    uint64_t random = 88172645463325252u, bytes = 0, start = stk_now_ns(), now = start;
    for (uint32_t layer = 0; rc >= 0 && now - start < DRIVE_NS; layer = (layer + 1) % stk_catalogue_n_layer(cat)) {
        if (stk_catalogue_layer_class(cat, layer) != STK_NO_CLASS) rc = read_event(e, layer, &random, done, &bytes);
        now = stk_now_ns();
    }
    if (rc < 0) {
        const uint32_t *keys;
        char why[512];
        snprintf(why, sizeof why, "%s", stk_error_detail());
        (void)stk_store_drain(e->store, &keys);
        (void)stk_fail(rc, "%s", why);
    }
    free(done);
    if (rc >= 0) *bytes_per_s = (double)bytes * 1e9 / (double)(now - start);
    return rc;
}
