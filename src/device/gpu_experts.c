/*
 * gpu_experts: the experts of an event that the device computes, and the copies of those that are fetched for it.
 *
 *     resident: gate, up, silu | down             one launch each, at once
 *     fetched:  copies up, meanwhile the CPU's part | the same two launches for what has arrived
 *
 * What fails is computed by the CPU: a fetch that did not come is still in RAM, what is in VRAM is copied down. A lost device
 * ends the event with its error.
 */
#include <string.h>

#include "src/engine/forward.h"

enum { FEW_TOKENS = 8 }; /* of an expert, for which gate and up in one launch are quicker than as products */

static stk_cuda_stream *stream_of(const stk_gpu *g) { return g->c.device->compute; }

static uint32_t class_of(const stk_forward *f) { return stk_catalogue_layer_class(f->c.model->experts, f->layer); }

static uint32_t expert_of(const stk_forward *f, const stk_vram_item *item) {
    return item->key % stk_catalogue_n_expert(f->c.model->experts);
}

/* ---- Kernels ---- */

/* Experts [begin, end) of the lists. */
typedef struct expert_range {
    uint32_t begin, end, max_tok;
} expert_range;

/* Adds an expert with its tokens to the host's lists. */
static void add(stk_forward *f, expert_range *to, const stk_vram_item *item) {
    stk_gpu *g = f->gpu;
    stk_gpu_event *e = &g->host_event;
    uint32_t expert = expert_of(f, item), at = f->routing.first[expert], n = f->routing.first[expert + 1] - at, i = to->end++;
    e->slot[i] = stk_link_slot(g->link, class_of(f), item->slot);
    if (i == 0) e->first[0] = 0;
    memcpy(e->pairs + e->first[i], f->routing.pairs + at, n * sizeof *e->pairs);
    e->first[i + 1] = e->first[i] + n;
    to->max_tok = STK_MAX(to->max_tok, n);
}

static int product(const stk_forward *f, const stk_part_shape *s, const stk_cuda_group *group, uint32_t x_per, stk_cuda_rows x,
                   float *out) {
    const stk_gpu *g = f->gpu;
    return g->ops->product(&(stk_cuda_product){.type = s->type,
                                               .slot_offset = s->slot_offset,
                                               .n_in = s->n_in,
                                               .n_rows = s->n_rows,
                                               .x_per = x_per,
                                               .x = x,
                                               .out = out,
                                               .out_stride = s->n_rows,
                                               .group = *group},
                           stream_of(g));
}

static int gate_up(const stk_forward *f, const stk_class *cls, const stk_cuda_group *group, stk_cuda_rows hidden) {
    const stk_gpu *g = f->gpu;
    const stk_part_shape *gate = &cls->part[STK_GATE], *up = &cls->part[STK_UP];
    if (gate->type == up->type && group->max_tok <= FEW_TOKENS)
        return g->ops->gate_up(&(stk_cuda_gate_up){.gate_type = gate->type,
                                                   .up_type = up->type,
                                                   .gate_offset = gate->slot_offset,
                                                   .up_offset = up->slot_offset,
                                                   .n_in = gate->n_in,
                                                   .n_ff = gate->n_rows,
                                                   .x = g->norm,
                                                   .hidden = hidden,
                                                   .group = *group},
                               stream_of(g));
    STK_TRY(product(f, gate, group, group->k, g->norm, g->gate));
    STK_TRY(product(f, up, group, group->k, g->norm, g->up));
    return g->ops->silu_mul(
        &(stk_cuda_silu){.gate = g->gate, .up = g->up, .out = hidden, .n_row = f->step->n_tok * f->routing.k, .n = gate->n_rows},
        stream_of(g));
}

static int run_once(const stk_forward *f, const expert_range *experts) {
    const stk_gpu *g = f->gpu;
    const stk_class *cls = stk_catalogue_class(f->c.model->experts, class_of(f));
    stk_cuda_group group = {.slot = (const void *const *)g->event.slot + experts->begin,
                            .first = g->event.first + experts->begin,
                            .pairs = g->event.pairs,
                            .n_expert = experts->end - experts->begin,
                            .max_tok = experts->max_tok,
                            .k = f->routing.k};
    stk_cuda_rows hidden = g->hidden;
    if (!stk_type_is_quantized(cls->part[STK_DOWN].type)) hidden.act = NULL;
    STK_TRY(stk_device_up(g->c.device, (void *)g->event.slot, g->host_event.slot, g->event.bytes, stream_of(g)));
    STK_TRY(gate_up(f, cls, &group, hidden));
    return product(f, &cls->part[STK_DOWN], &group, 1, hidden, g->expert_out);
}

/* Twice, where that may help. False: the CPU has to. */
static bool run(const stk_forward *f, const expert_range *experts) {
    if (experts->begin == experts->end || run_once(f, experts) >= 0) return true;
    return !stk_device_lost(f->gpu->c.device) && run_once(f, experts) >= 0;
}

/* ---- Whose outputs are where ---- */

static bool on_device(const stk_vram_item *item) { return !item->host; }

/* The pairs of an expert get rows of the CPU's outputs, or none. A layer of the CPU finds each where it always is. */
static void set_rows(stk_forward *f, uint32_t expert, bool device) {
    for (uint32_t i = f->routing.first[expert]; i < f->routing.first[expert + 1]; i++)
        f->out_row[f->routing.pairs[i]] = device ? STK_ON_DEVICE : f->n_out_row++;
}

static void divide_rows(stk_forward *f, const stk_vram_item *items, uint32_t n) {
    if (!stk_gpu_has_layer(f->gpu, f->layer)) return;
    uint32_t n_pair = f->step->n_tok * f->routing.k;
    for (uint32_t i = 0; i < n; i++)
        if (on_device(&items[i])) set_rows(f, expert_of(f, &items[i]), true);
    f->n_out_row = 0;
    for (uint32_t p = 0; p < n_pair; p++)
        if (f->out_row[p] != STK_ON_DEVICE) f->out_row[p] = f->n_out_row++;
}

/* A layer of the CPU: what the experts read goes there, and what they made comes back. */
static int send_norm(const stk_forward *f) {
    const stk_gpu *g = f->gpu;
    uint64_t n = f->step->n_tok;
    if (stk_gpu_has_layer(g, f->layer)) return STK_OK;
    if (g->norm.act) STK_TRY(stk_device_up(g->c.device, g->norm.act, f->norm.act, n * g->norm.act_stride, stream_of(g)));
    return stk_device_up(g->c.device, g->norm.f32, f->norm.f32, n * g->norm.f32_stride * sizeof(float), stream_of(g));
}

static int bring_outputs(const stk_forward *f, uint32_t n_expert) {
    const stk_gpu *g = f->gpu;
    const stk_gpu_event *e = &g->host_event;
    uint32_t n_embd = f->c.model->hp.n_embd, n_pair = n_expert ? e->first[n_expert] : 0;
    if (stk_gpu_has_layer(g, f->layer)) return STK_OK;
    for (uint32_t i = 0, run_length; i < n_pair; i += run_length) {
        for (run_length = 1; i + run_length < n_pair && e->pairs[i + run_length] == e->pairs[i] + run_length;) run_length++;
        size_t at = (size_t)e->pairs[i] * n_embd;
        STK_TRY(stk_device_down(g->c.device, f->expert_out + at, g->expert_out + at,
                                (uint64_t)run_length * n_embd * sizeof(float), stream_of(g)));
    }
    return g->ops->stream_sync(stream_of(g));
}

/* ---- The CPU in the device's place ---- */

static int compute_here(stk_forward *f, const stk_vram_item *item, const void *weights) {
    stk_decision d = {.key = item->key, .expert = (uint16_t)expert_of(f, item), .n_tok = item->n_tok};
    stk_task task = {&d, STK_PHASE_ALL, weights};
    if (stk_gpu_has_layer(f->gpu, f->layer) && on_device(item)) set_rows(f, d.expert, false);
    f->tasks = &task;
    f->n_task = 1;
    return stk_forward_experts(f);
}

/* From its slot in RAM, where it was not fetched; from VRAM through the last bounce buffer. */
static int rescue(stk_forward *f, const stk_vram_item *item) {
    stk_gpu *g = f->gpu;
    uint32_t bounce = stk_link_n_bounce(g->link) - 1;
    if (item->fetch && !(item->moved & STK_MOVED_IN)) {
        stk_decision from = {.slot = item->ram_slot};
        return compute_here(f, item, stk_store_slot(f->c.store, f->layer, &from));
    }
    STK_TRY(stk_link_down(g->link, class_of(f), item->slot, bounce));
    STK_TRY(stk_link_sync(g->link));
    return compute_here(f, item, stk_link_bounce(g->link, bounce));
}

/* ---- The tier's calls ---- */

/* The buffer that keeps what leaves VRAM for item i, the last one is for rescues; or none. */
static uint32_t bounce_of(const stk_gpu *g, const stk_vram_item *items, uint32_t i) {
    uint32_t at = 0;
    for (uint32_t j = 0; j < i; j++) at += items[j].victim != STK_NO_KEY;
    return items[i].victim != STK_NO_KEY && at + 1 < stk_link_n_bounce(g->link) ? at : UINT32_MAX;
}

static void start_fetches(stk_forward *f, const stk_vram_item *items, uint32_t n) {
    stk_gpu *g = f->gpu;
    uint32_t cls = class_of(f);
    g->kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!items[i].fetch) continue;
        uint32_t bounce = bounce_of(g, items, i);
        if (bounce != UINT32_MAX && stk_link_down(g->link, cls, items[i].slot, bounce) >= 0) g->kept |= UINT64_C(1) << bounce;
        stk_link_up(g->link, cls, items[i].ram_slot, items[i].slot, items[i].key);
    }
    stk_link_pump(g->link, false);
}

/* All copies end; what has arrived is computed by the device. */
static int run_fetched(stk_forward *f, stk_vram_item *items, uint32_t n) {
    stk_gpu *g = f->gpu;
    expert_range fetched = {g->n_listed, g->n_listed, 0};
    stk_link_pump(g->link, true);
    for (uint32_t i = 0; i < n; i++) {
        if (!items[i].fetch) continue;
        uint32_t bounce = bounce_of(g, items, i);
        if (!stk_link_failed(g->link, items[i].key)) items[i].moved |= STK_MOVED_IN;
        if (bounce != UINT32_MAX && g->kept >> bounce & 1) items[i].moved |= STK_MOVED_BACK;
        if (items[i].moved & STK_MOVED_IN) add(f, &fetched, &items[i]);
    }
    stk_link_reset(g->link);
    STK_TRY(stk_link_before(g->link, stream_of(g)));
    g->fetched_ok = run(f, &fetched);
    g->n_listed = fetched.end;
    return stk_link_sync(g->link);
}

static int launch(void *world, uint32_t layer, const stk_event *event, stk_vram_item *items, uint32_t n, bool before_reads) {
    stk_forward *f = world;
    stk_gpu *g = f->gpu;
    (void)event; /* its routing is f->routing, grouped by expert */
    f->layer = layer;
    expert_range resident = {0};
    divide_rows(f, items, n);
    for (uint32_t i = 0; i < n; i++)
        if (!items[i].fetch && !items[i].host) add(f, &resident, &items[i]);
    g->n_listed = resident.end;
    g->launched = true;
    g->fetches_ran = false;
    STK_TRY(send_norm(f));
    g->resident_ok = run(f, &resident);
    if (stk_device_lost(g->c.device)) return stk_fail_in(STK_EIO, "experts on the device");
    start_fetches(f, items, n);
    if (!before_reads) return STK_OK;
    g->fetches_ran = true;
    STK_TRY(run_fetched(f, items, n));
    for (uint32_t i = 0; i < n; i++)
        if (items[i].fetch && !(items[i].moved & STK_MOVED_IN)) STK_TRY(rescue(f, &items[i]));
    return STK_OK;
}

/* What the device has not computed. */
static int rescue_all(stk_forward *f, const stk_vram_item *items, uint32_t n) {
    const stk_gpu *g = f->gpu;
    for (uint32_t i = 0; i < n; i++) {
        const stk_vram_item *it = &items[i];
        bool arrived = it->moved & STK_MOVED_IN;
        bool done = it->fetch ? (arrived ? g->fetched_ok : g->fetches_ran) : !it->host && g->resident_ok;
        if (!done) STK_TRY(rescue(f, it));
    }
    return STK_OK;
}

static int finish_all(stk_forward *f, stk_vram_item *items, uint32_t n) {
    stk_gpu *g = f->gpu;
    uint32_t n_fetch = 0;
    for (uint32_t i = 0; i < n; i++) n_fetch += items[i].fetch;
    if (n_fetch && !g->fetches_ran) STK_TRY(run_fetched(f, items, n));
    if (stk_device_lost(g->c.device)) return stk_fail_in(STK_EIO, "experts on the device");
    STK_TRY(bring_outputs(f, g->n_listed));
    return rescue_all(f, items, n);
}

static int finish(void *world, stk_vram_item *items, uint32_t n) {
    stk_forward *f = world;
    stk_gpu *g = f->gpu;
    if (!g->launched) return STK_OK;
    g->launched = false;
    uint64_t start = stk_now_ns();
    stk_stages_mark(&f->stages, 0, STK_STAGE_CACHE);
    int rc = finish_all(f, items, n);
    stk_stages_mark(&f->stages, 0, STK_STAGE_DEVICE);
    stk_link_reset(g->link);
    for (uint32_t i = 0; rc < 0 && i < n; i++) items[i].moved = 0;
    g->wait_ns += stk_now_ns() - start;
    return rc;
}

static int restore(void *world, const stk_vram_item *items, uint32_t i, const stk_decision *ram) {
    stk_forward *f = world;
    stk_gpu *g = f->gpu;
    STK_TRY(stk_store_vacate(f->c.store, ram->victim));
    stk_link_restore(g->link, class_of(f), bounce_of(g, items, i), ram->slot);
    return STK_OK;
}

const stk_vram_ops stk_gpu_vram = {NULL, launch, finish, restore};
