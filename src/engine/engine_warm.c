/* engine_warm: what the cache and the predictor know, from one run to the next. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "src/out_file.h"
#include "warm.h"

enum { BATCH = 16 }; /* experts that are read together */

/* ---- Reading experts ---------------------------------------------------------------------------------------------------- */

/* Waits for reads that have begun, and packs what they bring. */
static int finish_reads(stk_engine *e) {
    stk_arrival arrivals[2 * BATCH];
    do {
        STK_TRY(stk_store_poll(e->store, stk_io_in_flight(e->io) > 0));
        do stk_forward_arrive(e->forward, true);
        while (e->forward->n_share > 0);
        while (stk_store_take(e->store, arrivals, STK_ARRAY_LEN(arrivals)) > 0) continue; /* failures: see drain */
    } while (stk_io_in_flight(e->io) > 0);
    return STK_OK;
}

/* Reads every expert of the cache into its slot, in the order of the file. */
static int read_residents(stk_engine *e, uint32_t *n_read) {
    const stk_catalogue *cat = e->experts;
    uint32_t n_expert = stk_catalogue_n_expert(cat), n_key = n_expert * stk_catalogue_n_layer(cat), n = 0, n_all = 0;
    uint32_t batch = STK_MIN((uint32_t)BATCH, n_expert);
    for (uint32_t key = 0; key < n_key; key++) n_all += stk_cache_slot(e->cache, key) >= 0;
    for (uint32_t key = 0; key < n_key; key++) {
        int32_t slot = stk_cache_slot(e->cache, key);
        if (slot < 0) continue;
        stk_decision d = {.key = key, .expert = (uint16_t)(key % n_expert), .slot = (uint32_t)slot, .victim = STK_NO_KEY};
        STK_TRY(stk_store_read(e->store, key / n_expert, &d, 0));
        if (++n % batch && n < n_all) continue;
        STK_TRY(finish_reads(e));
        if (e->o.progress && e->o.progress(e->o.progress_user, "experts", n, n_all))
            return stk_fail(STK_ECANCELED, "opening was cancelled");
    }
    *n_read = n;
    return STK_OK;
}

/* Experts whose read failed leave the cache: they are read when they are wanted. */
static int drop_missing(stk_engine *e, uint32_t *n_read) {
    const uint32_t *lost;
    uint32_t n = stk_store_drain(e->store, &lost);
    for (uint32_t i = 0; i < n; i++) STK_TRY(stk_cache_drop(e->cache, lost[i]));
    if (n) stk_log(STK_LOG_WARN, "%u of %u experts could not be read at the start: %s", n, *n_read, stk_error_detail());
    *n_read -= n;
    return STK_OK;
}

/* ---- Loading ------------------------------------------------------------------------------------------------------------ */

static void load_predictor(stk_engine *e, const stk_warm *warm, const char *path) {
    if (!e->prefetch || !warm->predictor[0]) return;
    if (strcmp(warm->predictor, e->predictor_text) != 0)
        stk_log(STK_LOG_INFO, "%s is of predictor %s: %s begins anew", path, warm->predictor, e->predictor_text);
    else if (stk_prefetch_load(e->prefetch, warm->predictor_state, (size_t)warm->predictor_bytes) < 0)
        stk_log(STK_LOG_WARN, "%s: %s; the predictor begins anew", path, stk_error_detail());
}

static int load(stk_engine *e, const stk_warm *warm, const char *path) {
    uint32_t n_read = 0;
    if (stk_cache_load(e->cache, warm->cache, (size_t)warm->cache_bytes) < 0) {
        stk_log(STK_LOG_WARN, "%s: %s; the cache starts cold", path, stk_error_detail());
        return STK_OK;
    }
    load_predictor(e, warm, path);
    int rc = read_residents(e, &n_read);
    if (rc >= 0) rc = drop_missing(e, &n_read);
    stk_cache_arrived(e->cache);
    e->memory.n_warm = n_read;
    e->warm_loaded = true;
    return rc;
}

/* What cannot be written is better known before the run than after it. */
static int check_target(const char *path) {
    stk_out_file *f;
    int rc = stk_out_file_open(&f, path, 0);
    stk_out_file_close(&f);
    return rc;
}

int stk_engine_warm_open(stk_engine *e, const char *path) {
    stk_warm warm;
    if (stk_model_owns_file(e->model, path)) return stk_fail(STK_EINVAL, "%s: that is a file of the model; name another", path);
    e->warm_path = strdup(path);
    if (!e->warm_path) return stk_fail(STK_ENOMEM, "out of memory");
    STK_TRY(check_target(path));
    int rc = stk_warm_model_id(e->model, &e->model_id);
    if (rc < 0) return rc;
    rc = stk_warm_read(&warm, path, e->model_id);
    if (rc > 0) rc = load(e, &warm, path);
    stk_warm_close(&warm);
    return rc < 0 ? rc : STK_OK;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------------- */

static int save(const stk_engine *e, const char *path, uint64_t model_id) {
    stk_warm warm = {.data = NULL};
    int64_t cache_bytes = stk_cache_save(e->cache, NULL, 0);
    int64_t predictor_bytes = e->prefetch ? stk_prefetch_save(e->prefetch, NULL, 0) : 0;
    if (cache_bytes < 0) return (int)cache_bytes;
    if (predictor_bytes < 0) return (int)predictor_bytes;
    size_t n_name = strlen(e->predictor_text);
    uint8_t *state = malloc((size_t)(cache_bytes + predictor_bytes) + 1);
    if (!state) return stk_fail(STK_ENOMEM, "%s: out of memory", path);
    (void)stk_cache_save(e->cache, state, (size_t)cache_bytes);
    warm.cache = state;
    warm.cache_bytes = (uint64_t)cache_bytes;
    if (predictor_bytes && n_name < sizeof warm.predictor) {
        (void)stk_prefetch_save(e->prefetch, state + cache_bytes, (size_t)predictor_bytes);
        memcpy(warm.predictor, e->predictor_text, n_name);
        warm.predictor_state = state + cache_bytes;
        warm.predictor_bytes = (uint64_t)predictor_bytes;
    }
    int rc = stk_warm_write(&warm, path, model_id, e->model->name);
    free(state);
    return rc;
}

int stk_engine_save_residency(stk_engine *e, const char *path) {
    uint64_t id;
    if (!e || !path) return stk_fail(STK_EINVAL, "stk_engine_save_residency: an argument is NULL");
    if (stk_model_owns_file(e->model, path)) return stk_fail(STK_EINVAL, "%s: that is a file of the model; name another", path);
    STK_TRY(stk_warm_model_id(e->model, &id));
    return save(e, path, id);
}

int stk_engine_warm_close(stk_engine *e) {
    int rc = e->warm_path && e->opened ? save(e, e->warm_path, e->model_id) : STK_OK;
    free(e->warm_path);
    e->warm_path = NULL;
    return rc;
}
