/* fit_plan: what would go where, and how fast: `stoker plan`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cost_file.h"
#include "experts/slots.h"
#include "fit.h"
#include "plan.h"

/* Copies in flight: buffers of one expert each. Events that a prediction is the mean of. */
enum { N_STAGING = 3, N_EVENT = 256, DEFAULT_CTX = 4096, DEFAULT_BATCH = 512 };

typedef struct fit {
    const stk_model *model;
    stk_plan_options o;
    stk_fit_limits limits;
    stk_cost cost;
    stk_plan_info info;
    uint64_t all, least, largest; /* bytes of slots: all experts, the fewest, one of the largest size */
} fit;

void stk_plan_options_default(stk_plan_options *o, size_t struct_bytes) {
    stk_struct_give(o, struct_bytes, &(stk_plan_options){0}, sizeof *o);
}

static int take_options(fit *f, const stk_plan_options *given) {
    const stk_hparams *hp = &f->model->hp;
    stk_plan_options_default(&f->o, sizeof f->o);
    if (given) STK_TRY(stk_struct_take(&f->o, sizeof f->o, given, "plan options"));
    if (f->o.n_ctx > 1u << 30) return stk_fail(STK_EINVAL, "a context of %u positions; at most 2^30 are possible", f->o.n_ctx);
    if (f->o.kv_k_type > STK_KV_F32 || f->o.kv_v_type > STK_KV_F32)
        return stk_fail(STK_EINVAL, "KV cache types %u and %u; f16 (0) and f32 (1) exist", f->o.kv_k_type, f->o.kv_v_type);
    stk_machine_info m = {.struct_bytes = sizeof m};
    STK_TRY(stk_get_machine(&m));
    if (f->o.n_ctx == 0) f->o.n_ctx = STK_MIN(hp->n_ctx_train, (uint32_t)DEFAULT_CTX);
    if (f->o.n_seq_max == 0) f->o.n_seq_max = 1;
    if (f->o.n_batch == 0) f->o.n_batch = STK_MIN(f->o.n_ctx, (uint32_t)DEFAULT_BATCH);
    if (f->o.ram_free_bytes == 0) f->o.ram_free_bytes = m.available_bytes;
    f->limits = (stk_fit_limits){f->o.n_ctx,
                                 f->o.n_batch,
                                 f->o.n_seq_max,
                                 STK_MIN(f->o.n_seq_max, f->o.n_batch),
                                 f->o.n_threads ? f->o.n_threads : m.n_threads,
                                 f->o.kv_k_type == STK_KV_F16,
                                 f->o.kv_v_type == STK_KV_F16,
                                 true, /* as by default */
                                 NULL};
    return STK_OK;
}

static int take_cost(fit *f) {
    stk_cost_default(&f->cost);
    if (!f->o.cost)
        return f->o.vram_bytes || f->o.vram_cap_bytes
                   ? stk_fail(STK_EINVAL,
                              "VRAM to plan for, but no GPU: name a cost table that has one (a known machine, as 4090)")
                   : STK_OK;
    stk_cost_file *file = malloc(sizeof *file);
    if (!file) return stk_fail(STK_ENOMEM, "out of memory");
    int rc = stk_cost_file_load(f->o.cost, file);
    if (rc >= 0) {
        f->info.gpu = file->gpu.name[0] != 0;
        if (f->info.gpu && f->o.vram_cap_bytes == 0) f->o.vram_cap_bytes = (uint64_t)file->gpu.vram_bytes;
        snprintf(f->info.machine, sizeof f->info.machine, "%s", file->machine);
        snprintf(f->info.gpu_name, sizeof f->info.gpu_name, "%s", file->gpu.name);
        if (f->info.gpu || f->o.vram_bytes || f->o.vram_cap_bytes)
            rc = stk_cost_file_table_gpu(file, f->model, &f->cost);
        else
            stk_cost_file_table(file, f->model, &f->cost);
    }
    free(file);
    return rc;
}

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

/* Dense weights, KV, buffers and slots on the device. */
static int fit_vram(fit *f, const stk_fit_bytes *b) {
    uint64_t cap = f->o.vram_cap_bytes, fixed = stk_fit_sum(b), margin = stk_fit_margin(cap), bytes = f->o.vram_bytes;
    char need[32], dense[32], kv[32], buffers[32], has[32];
    if (fixed + margin > cap)
        return stk_fail(STK_EBUDGET,
                        "the least that it runs with is %s of VRAM (dense weights %s, KV %s, buffers %s, margin included), but "
                        "the device has %s; a shorter context (-c) needs less",
                        stk_bytes_text(fixed + margin, need), stk_bytes_text(b->dense, dense), stk_bytes_text(b->kv, kv),
                        stk_bytes_text(b->buffers, buffers), stk_bytes_text(cap, has));
    if (bytes && bytes < f->least)
        return stk_fail(STK_EBUDGET, "--vram %s is too small: the least is %lluK (%llu bytes), a token's experts of each size",
                        stk_bytes_text(bytes, has), (unsigned long long)stk_div_up(f->least, 1024), (unsigned long long)f->least);
    if (bytes && fixed + margin + STK_MIN(bytes, f->all) > cap)
        return stk_fail(STK_EBUDGET,
                        "--vram %s and what lies beside it (%s) need a device of at least %s, but it has %s: lower --vram to %s",
                        stk_bytes_text(bytes, dense), stk_bytes_text(fixed, kv),
                        stk_bytes_text(fixed + margin + STK_MIN(bytes, f->all), need), stk_bytes_text(cap, has),
                        stk_bytes_text(cap - fixed - margin, buffers));
    if (bytes == 0) bytes = cap - fixed - margin;
    f->info.vram_bytes = bytes < f->least ? 0 : STK_MIN(bytes, f->all); /* too few for one token's experts are of no use */
    f->info.vram_used_bytes = fixed + f->info.vram_bytes;
    f->info.vram_cap_bytes = cap;
    return STK_OK;
}

static int fit_ram(fit *f, uint64_t fixed) {
    uint64_t free_bytes = f->o.ram_free_bytes, wanted = f->all - STK_MIN(f->all - f->least, f->info.vram_bytes);
    char a[32], b[32], c[32], d[32];
    uint64_t bytes = f->o.ram_bytes ? f->o.ram_bytes : stk_fit_slots(free_bytes, fixed, f->least, wanted);
    if (bytes < f->least)
        return stk_fail(STK_EBUDGET, "--ram %s is too small: the least is %lluK (%llu bytes), a token's experts of each size",
                        stk_bytes_text(bytes, a), (unsigned long long)stk_div_up(f->least, 1024), (unsigned long long)f->least);
    bytes = STK_MIN(bytes, f->all);
    if (fixed + bytes > free_bytes)
        return stk_fail(STK_EBUDGET, "%s of RAM are needed (experts %s, all else %s), but only %s are free; the least is %s",
                        stk_bytes_text(fixed + bytes, a), stk_bytes_text(bytes, b), stk_bytes_text(fixed, c),
                        stk_bytes_text(free_bytes, d), stk_bytes_text(fixed + f->least, (char[32]){0}));
    f->info.ram_bytes = bytes;
    f->info.ram_used_bytes = fixed + bytes;
    f->info.ram_free_bytes = free_bytes;
    return STK_OK;
}

/* Where everything goes with a context of f->limits.n_ctx. */
static int fit_memory(fit *f) {
    stk_fit_bytes b = stk_fit_fixed(f->model, &f->limits);
    f->info.dense_bytes = b.dense;
    f->info.kv_bytes = b.kv;
    f->info.buffer_bytes = b.buffers;
    f->info.n_ctx = f->limits.n_ctx;
    if (!f->info.gpu) return fit_ram(f, stk_fit_sum(&b));
    STK_TRY(fit_vram(f, &b));
    f->info.staging_bytes = N_STAGING * f->largest;
    return fit_ram(f, b.buffers + f->info.staging_bytes); /* the CPU computes experts still */
}

/* The longest context that fits: by halves, since what is needed grows with it. */
static void fit_context(fit *f) {
    fit probe = *f;
    uint32_t low = f->limits.n_ctx, high = STK_MAX(f->model->hp.n_ctx_train, low);
    while (low < high) {
        probe.limits.n_ctx = low + (high - low + 1) / 2;
        if (fit_memory(&probe) >= 0)
            low = probe.limits.n_ctx;
        else
            high = probe.limits.n_ctx - 1;
    }
    f->info.n_ctx_max = low;
}

static int count_slots(fit *f) {
    const stk_catalogue *cat = f->model->experts;
    uint32_t n_class = stk_catalogue_n_class(cat), *n_slot = calloc(n_class + 1, sizeof *n_slot);
    uint64_t bytes[2] = {f->info.vram_bytes, f->info.ram_bytes};
    uint32_t *to[2] = {&f->info.n_slot_vram, &f->info.n_slot_ram};
    int rc = n_slot ? STK_OK : stk_fail(STK_ENOMEM, "out of memory");
    for (int t = 0; rc >= 0 && t < 2; t++) {
        if (!bytes[t]) continue;
        rc = stk_slots_divide(cat, bytes[t], f->model->hp.n_expert_used, n_slot);
        for (uint32_t c = 0; rc >= 0 && c < n_class; c++) *to[t] += n_slot[c];
    }
    free(n_slot);
    f->info.n_expert = stk_catalogue_n_layer(cat) * stk_catalogue_n_expert(cat);
    return rc;
}

/* ---- Time ---------------------------------------------------------------------------------------------------------------- */

static double draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Mean time of an event of n experts of n_tok tokens each, which lie in VRAM with probability `vram`, in RAM with `ram`. */
static double event_ns(const fit *f, stk_plan_item *items, uint32_t n, uint32_t n_tok, double vram, double ram) {
    uint64_t state = 1, payload = f->model->expert_bytes / f->info.n_expert;
    double sum = 0;
    for (uint32_t e = 0; e < N_EVENT; e++) {
        for (uint32_t i = 0; i < n; i++) {
            double u = draw(&state);
            enum stk_tier tier = u < vram ? STK_TIER_VRAM : u < vram + ram ? STK_TIER_RAM : STK_TIER_NVME;
            items[i] = (stk_plan_item){.index = i, .n_tok = n_tok, .payload_bytes = payload, .read_bytes = payload, .tier = tier};
        }
        double done;
        if (stk_plan_make(&f->cost, &(stk_plan_queues){{0}}, items, n, &done) < 0) return 0;
        sum += done;
    }
    return sum / N_EVENT;
}

static double tokens_per_s(const fit *f, stk_plan_item *items, uint32_t n, uint32_t n_tok, uint32_t n_each, double vram,
                           double ram) {
    double layer = stk_cost_dense_layer_ns(&f->cost, n_tok);
    double moe = event_ns(f, items, n, n_each, vram, ram) * stk_catalogue_n_layer(f->model->experts);
    return n_tok * 1e9 / (layer * f->model->hp.n_layer + moe + stk_cost_dense_step_ns(&f->cost, n_tok));
}

static int predict(fit *f) {
    const stk_hparams *hp = &f->model->hp;
    stk_plan_info *p = &f->info;
    double vram = (double)p->vram_bytes / (double)f->all, both = STK_MIN(1.0, vram + (double)p->ram_bytes / (double)f->all);
    stk_plan_item *items = calloc(hp->n_expert, sizeof *items);
    if (!items) return stk_fail(STK_ENOMEM, "out of memory");
    p->vram_hit = sqrt(vram);
    p->ram_hit = sqrt(both) - p->vram_hit;
    p->decode_tok_s = tokens_per_s(f, items, hp->n_expert_used, 1, 1, p->vram_hit, p->ram_hit);
    p->decode_tok_s_uniform = tokens_per_s(f, items, hp->n_expert_used, 1, 1, vram, both - vram);
    uint32_t n_pair = f->limits.n_batch * hp->n_expert_used, n = STK_MIN(hp->n_expert, n_pair);
    p->prefill_tok_s = tokens_per_s(f, items, n, f->limits.n_batch, STK_MAX(n_pair / n, 1u), vram, both - vram);
    free(items);
    return STK_OK;
}

int stk_plan(const stk_model *model, const stk_plan_options *options, stk_plan_info *info) {
    if (!model || !info || info->struct_bytes < sizeof info->struct_bytes)
        return stk_fail(STK_EINVAL, "stk_plan: an argument is NULL or has no size");
    const stk_catalogue *cat = model->experts;
    fit f = {.model = model, .all = stk_slots_all_bytes(cat), .least = stk_slots_least_bytes(cat, model->hp.n_expert_used)};
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++)
        f.largest = STK_MAX(f.largest, stk_catalogue_class(cat, c)->slot_bytes);
    if (!f.all) return stk_fail(STK_EUNSUPPORTED, "the model has no experts to plan for");
    STK_TRY(take_options(&f, options));
    STK_TRY(take_cost(&f));
    STK_TRY(fit_memory(&f));
    fit_context(&f);
    STK_TRY(count_slots(&f));
    uint64_t held = f.info.vram_bytes + f.info.ram_bytes;
    f.info.nvme_bytes = f.all > held ? f.all - held : 0;
    STK_TRY(predict(&f));
    f.info.struct_bytes = STK_MIN(info->struct_bytes, (uint32_t)sizeof f.info);
    memcpy(info, &f.info, f.info.struct_bytes);
    return STK_OK;
}
