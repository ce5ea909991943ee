/* engine_device: the device of an engine: what it takes of its memory, and its parts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "src/device/placement.h"
#include "src/plan/fit.h"
#include "src/replay/plan_replay.h"

static stk_gpu_config gpu_config(const stk_engine *e, const stk_kv_config *kv) {
    const stk_hparams *hp = &e->model->hp;
    return (stk_gpu_config){.device = e->device,
                            .model = e->model,
                            .kv = kv,
                            .first_layer = e->n_cpu_layer,
                            .n_batch = e->o.n_batch,
                            .n_ctx = e->o.n_ctx,
                            .n_logits = e->o.n_logits,
                            .n_top = STK_MIN(2 * hp->n_expert_used, hp->n_expert)};
}

static bool is_emulated(const stk_engine *e) { return e->device && strcmp(e->device->ops->name, "emu") == 0; }

uint64_t stk_engine_device_host_bytes(const stk_engine *e) {
    const stk_memory_info *m = &e->memory;
    return is_emulated(e) ? m->vram_dense_bytes + m->vram_kv_bytes + m->vram_buffer_bytes + m->vram_bytes : 0;
}

/* Dense weights, KV and buffers are the least; what is left of the cap is for experts. */
static int divide(stk_engine *e) {
    stk_memory_info *m = &e->memory;
    uint64_t fixed = m->vram_dense_bytes + m->vram_kv_bytes + m->vram_buffer_bytes, free_bytes = m->vram_free_bytes;
    char a[32], b[32], c[32], d[32], f[32];
    if (fixed > free_bytes)
        return stk_fail(
            STK_EBUDGET,
            "the device has %s, but %u layers of the model need at least %s there (dense weights %s, KV %s, buffers %s); "
            "lower -ngl, -c or -b",
            stk_bytes_text(free_bytes, a), m->n_device_layer, stk_bytes_text(fixed, b), stk_bytes_text(m->vram_dense_bytes, c),
            stk_bytes_text(m->vram_kv_bytes, d), stk_bytes_text(m->vram_buffer_bytes, f));
    uint64_t room = free_bytes - fixed, all = stk_slots_all_bytes(e->model->experts), want = e->o.vram_bytes;
    if (want == STK_NO_VRAM) {
        want = 0;
    } else if (want == 0) {
        uint64_t margin = stk_fit_margin(free_bytes);
        want = room > margin ? room - margin : 0;
        if (is_emulated(e)) want /= 2; /* RAM is wanted, too */
    } else if (STK_MIN(want, all) > room) {
        return stk_fail(STK_EBUDGET,
                        "--vram %s does not fit: of %s that the device has, %s are left beside dense weights, KV and buffers",
                        stk_bytes_text(want, a), stk_bytes_text(free_bytes, b), stk_bytes_text(room, c));
    }
    e->o.vram_bytes = m->vram_bytes = STK_MIN(want, all);
    return STK_OK;
}

/* The mode of the options. Those that copy an expert for one event, or keep it in RAM too, are the replay's alone. */
static int find_mode(const stk_engine *e, const stk_mode **mode) {
    const char *name = e->o.mode ? e->o.mode : "hybrid";
    *mode = stk_mode_find(name);
    if (!*mode)
        return stk_fail(STK_EINVAL, "there is no mode '%s'; there are: hybrid, static, lru-upload, kt, kt-profiled", name);
    if (strcmp(name, "fiddler") == 0 || strcmp(name, "hybrimoe") == 0)
        return stk_fail(STK_EUNSUPPORTED,
                        "mode %s: a replay knows it, a run does not; there are: hybrid, static, lru-upload, kt, kt-profiled",
                        name);
    if ((*mode)->placement == STK_PLACE_PROFILE && !e->o.uses_from)
        return stk_fail(STK_EINVAL, "mode %s places experts by what other texts used: name a trace of those (--uses-from)", name);
    return STK_OK;
}

int stk_engine_device_plan(stk_engine *e) {
    const stk_hparams *hp = &e->model->hp;
    e->n_cpu_layer = hp->n_layer;
    STK_TRY(find_mode(e, &e->mode));
    if (!e->o.vram_policy) e->o.vram_policy = e->mode->policy ? e->mode->policy : "lfu";
    STK_TRY(stk_device_open(&e->device, e->o.device, e->o.vram_cap_bytes));
    if (!e->device) {
        if (e->o.vram_bytes && e->o.vram_bytes != STK_NO_VRAM) stk_log(STK_LOG_WARN, "there is no device: --vram has no effect");
        if (e->o.mode) stk_log(STK_LOG_WARN, "there is no device: --mode has no effect");
        return STK_OK;
    }
    e->n_cpu_layer = STK_MIN(e->o.n_cpu_layers, hp->n_layer);
    stk_kv_config kv = stk_engine_kv_config(e);
    stk_gpu_config config = gpu_config(e, &kv);
    stk_gpu need;
    stk_gpu_measure(&need, &config);
    stk_memory_info *m = &e->memory;
    m->device = e->device->ops->name;
    m->n_device_layer = hp->n_layer - e->n_cpu_layer;
    m->vram_dense_bytes = need.dense_bytes;
    m->vram_kv_bytes = need.kv_bytes;
    m->vram_buffer_bytes = need.buffer_bytes;
    STK_TRY(stk_device_room(e->device, &m->vram_free_bytes));
    return divide(e);
}

void stk_engine_pin_slots(stk_engine *e) {
    const stk_catalogue *cat = e->model->experts;
    uint64_t left = e->o.pin_bytes, bytes;
    for (uint32_t c = 0; e->pinned_slots && c < stk_catalogue_n_class(cat); c++) {
        void *base;
        stk_slots_region(e->slots, c, &base, &bytes);
        uint64_t slot_bytes = stk_catalogue_class(cat, c)->slot_bytes, n = STK_MIN(left / slot_bytes, stk_slots_n(e->slots, c));
        e->pinned_slots[c] = n && stk_device_pin(e->device, base, n * slot_bytes, "expert slots") ? (uint32_t)n : 0;
        left -= e->pinned_slots[c] * slot_bytes;
    }
    if (e->device) e->memory.pinned_bytes = e->device->pinned_bytes;
}

void stk_engine_unpin_slots(stk_engine *e) {
    for (uint32_t c = 0; e->pinned_slots && c < stk_catalogue_n_class(e->model->experts); c++)
        if (e->pinned_slots[c]) stk_device_unpin(e->device, stk_slots_at(e->slots, c, 0));
}

/* The slots that fit, and who is in them. A device that has less than it said gets half as many, and so on: only experts may give
 * way. */
static int open_slots(stk_engine *e) {
    const stk_catalogue *cat = e->model->experts;
    stk_link_config config = {.device = e->device,
                              .cat = cat,
                              .ram = e->slots,
                              .n_slot = e->vram_slots,
                              .n_pinned = e->pinned_slots,
                              .staging_bytes = e->o.staging_bytes};
    for (uint64_t bytes = e->o.vram_bytes; bytes > 0; bytes /= 2) {
        uint32_t n = 0;
        STK_TRY(stk_slots_divide(cat, bytes, 0, e->vram_slots));
        for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++) n += e->vram_slots[c];
        e->memory.n_vram_slot = n;
        if (n == 0) break;
        int rc = stk_link_open(&e->link, &config);
        if (rc >= 0) return STK_OK;
        if (rc != STK_ENOMEM || stk_device_lost(e->device)) return rc;
        stk_log(STK_LOG_WARN, "%s; half as many experts", stk_error_detail());
    }
    e->memory.n_vram_slot = 0;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++) e->vram_slots[c] = 0;
    return STK_OK;
}

/* What lies in VRAM for good, where the mode has that; *placed is the caller's to free. */
static int place(const stk_engine *e, const stk_mode *mode, const uint32_t *layer_class, uint8_t **placed) {
    const stk_catalogue *cat = e->model->experts;
    uint32_t n_layer = stk_catalogue_n_layer(cat), n_expert = stk_catalogue_n_expert(cat);
    uint64_t *uses = NULL;
    if (mode->placement < STK_PLACE_LAYERS) return STK_OK;
    if (mode->placement == STK_PLACE_PROFILE) STK_TRY(stk_uses_load(e->o.uses_from, n_layer, n_expert, &uses));
    *placed = calloc((size_t)n_layer * n_expert, 1);
    stk_placement_config config = {n_layer, n_expert, stk_catalogue_n_class(cat), e->vram_slots, layer_class, uses};
    int rc = *placed ? stk_placement_make(mode->placement, &config, *placed) : stk_fail(STK_ENOMEM, "device: out of memory");
    free(uses);
    if (rc >= 0 && !memchr(*placed, 1, (size_t)n_layer * n_expert))
        stk_log(STK_LOG_WARN, "mode %s: VRAM has no room for the experts of one layer: the CPU computes all", mode->name);
    return rc;
}

static int open_vram(stk_engine *e) {
    const stk_catalogue *cat = e->model->experts;
    uint32_t n_layer = stk_catalogue_n_layer(cat);
    const stk_mode *mode = e->mode;
    uint8_t *placed = NULL;
    e->vram_slots = calloc(stk_catalogue_n_class(cat) + 1, sizeof *e->vram_slots);
    e->pinned_slots = calloc(stk_catalogue_n_class(cat) + 1, sizeof *e->pinned_slots);
    uint32_t *layer_class = calloc(n_layer, sizeof *layer_class);
    bool all = e->vram_slots && e->pinned_slots && layer_class;
    int rc = all ? open_slots(e) : stk_fail(STK_ENOMEM, "device: out of memory");
    for (uint32_t l = 0; rc >= 0 && l < n_layer; l++) layer_class[l] = stk_catalogue_layer_class(cat, l);
    if (rc >= 0) rc = place(e, mode, layer_class, &placed);
    if (rc >= 0 && e->link)
        rc = stk_vram_open(&e->vram, &(stk_vram_config){.n_layer = n_layer,
                                                        .n_expert = stk_catalogue_n_expert(cat),
                                                        .k = e->model->hp.n_expert_used,
                                                        .n_class = stk_catalogue_n_class(cat),
                                                        .n_slot = e->vram_slots,
                                                        .layer_class = layer_class,
                                                        .policy = e->o.vram_policy,
                                                        .seed = e->o.seed,
                                                        .n_fetch = stk_link_n_bounce(e->link) - 1,
                                                        .upload = mode->placement == STK_PLACE_CACHE,
                                                        .placed = placed,
                                                        .ops = &stk_gpu_vram,
                                                        .world = e->forward,
                                                        .ram = e->cache});
    free(layer_class);
    free(placed);
    e->gpu->link = e->link;
    if (e->link) stk_engine_pin_slots(e);
    return rc;
}

int stk_engine_device_open(stk_engine *e) {
    if (!e->device) return STK_OK;
    stk_kv_config kv = stk_engine_kv_config(e);
    stk_gpu_config config = gpu_config(e, &kv);
    (void)stk_device_pin(e->device, e->forward->map.base, e->forward->map.map_bytes, "compute buffers");
    STK_TRY(stk_gpu_open(&e->gpu, &config, &e->dense, e->forward));
    e->forward->gpu = e->gpu;
    STK_TRY(open_vram(e));
    e->memory.vram_bytes = 0;
    for (uint32_t c = 0; c < stk_catalogue_n_class(e->model->experts); c++)
        e->memory.vram_bytes += e->vram_slots[c] * stk_catalogue_class(e->model->experts, c)->slot_bytes;
    e->memory.pinned_bytes = e->device->pinned_bytes;
    return STK_OK;
}

void stk_engine_device_close(stk_engine *e) {
    stk_vram_close(&e->vram);
    stk_link_close(&e->link);
    free(e->vram_slots);
    free(e->pinned_slots);
    stk_gpu_close(&e->gpu);
    stk_device_close(&e->device);
}

int stk_engine_device_check(const stk_engine *e, int rc) {
    char why[512];
    if (rc >= 0 || !e->device || !stk_device_lost(e->device)) return rc;
    snprintf(why, sizeof why, "%s", stk_error_detail());
    return stk_fail(STK_ELOST, "the device is lost: %s", why);
}
