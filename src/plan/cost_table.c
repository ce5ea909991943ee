/* cost_table: from what a cost file says of formats to the table of a model. */
#include <string.h>

#include "cost_file.h"

static uint32_t index_of(enum stk_type type) {
    for (uint32_t i = 0; i < STK_COST_N_FORMAT; i++)
        if (stk_cost_formats[i] == type) return i;
    return 0;
}

static const stk_cost_format *format_of(const stk_cost_file *f, enum stk_type type) { return &f->formats[index_of(type)]; }

/* Adds `share` of a format's figures. */
static void add_share(stk_cost *out, const stk_cost_format *f, double share) {
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) out->expert_ns_per_byte[i] += share * f->expert_ns_per_byte[i];
    out->arrive_ns_per_byte += share * f->arrive_ns_per_byte;
}

static void add_gpu_share(stk_cost *out, const double *expert_ns_per_byte, double share) {
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) out->gpu.expert_ns_per_byte[i] += share * expert_ns_per_byte[i];
}

/* Shares of the formats that a model's experts have, by bytes, of all (out [STK_COST_N_FORMAT]). */
static void expert_shares(const stk_catalogue *cat, double *out) {
    double total = 0;
    memset(out, 0, STK_COST_N_FORMAT * sizeof *out);
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++)
        total += (double)stk_catalogue_class(cat, c)->payload_bytes * stk_catalogue_class(cat, c)->n_expert;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++)
        for (uint32_t p = 0; p < STK_N_PART; p++) {
            const stk_class *cls = stk_catalogue_class(cat, c);
            out[index_of(cls->part[p].type)] += (double)cls->part[p].file_bytes * cls->n_expert / total;
        }
}

/* Experts of a model as those of its formats; NULL: of Q4_K. */
static void mix_experts(const stk_cost_file *f, const stk_model *model, bool gpu, stk_cost *out) {
    double shares[STK_COST_N_FORMAT] = {0};
    shares[index_of(STK_TYPE_Q4_K)] = 1;
    if (model && stk_catalogue_n_class(model->experts)) expert_shares(model->experts, shares);
    for (uint32_t i = 0; i < STK_COST_N_FORMAT; i++) {
        if (gpu)
            add_gpu_share(out, f->gpu.expert_ns_per_byte[i], shares[i]);
        else
            add_share(out, &f->formats[i], shares[i]);
    }
}

static double product_ns(const stk_cost_file *f, const stk_weight *w, uint32_t point) {
    return w->n_rows ? (double)w->bytes * format_of(f, w->type)->expert_ns_per_byte[point] : 0;
}

/* A layer of the dense part: its products, and the phases around them. Attention itself depends on the context and is left to
 * what the run corrects. */
static void estimate_dense(const stk_cost_file *f, const stk_model *model, stk_cost *out) {
    enum { JOBS_OF_LAYER = 3, PHASES_OF_LAYER = 8 };
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) {
        double sum = 0;
        for (uint32_t l = 0; l < model->hp.n_layer; l++) {
            const stk_layer *w = &model->layers[l];
            const stk_weight *all[] = {&w->attn_q, &w->attn_k, &w->attn_v, &w->attn_output, &w->router};
            for (size_t k = 0; k < STK_ARRAY_LEN(all); k++) sum += product_ns(f, all[k], i);
        }
        out->dense_layer_ns[i] = sum / model->hp.n_layer + JOBS_OF_LAYER * f->run_ns + PHASES_OF_LAYER * f->phase_ns;
        out->dense_step_ns[i] = product_ns(f, &model->output, 0) + 2 * f->run_ns;
    }
}

static const double least_read_ns = 1e-6; /* a byte; a table holds positive numbers */

static bool is_model_of(const stk_cost_file *f, const stk_model *model) {
    stk_model_info info = {.struct_bytes = sizeof info};
    return f->has_model && (!model || (stk_model_get_info(model, &info) >= 0 && info.file_bytes == f->model_bytes &&
                                       strncmp(info.name, f->model, sizeof f->model - 1) == 0));
}

void stk_cost_file_table(const stk_cost_file *f, const stk_model *model, stk_cost *out) {
    stk_cost_default(out);
    memset(out->expert_ns_per_byte, 0, sizeof out->expert_ns_per_byte);
    out->arrive_ns_per_byte = 0;
    out->nvme_bytes_per_ns = f->drive_bytes_per_s * 1e-9;
    out->nvme_latency_ns = f->drive_latency_ns;
    if (f->wake_ns > 0) out->wake_ns = f->wake_ns;
    out->read_ns_per_byte = STK_MAX((f->compute_slowdown - 1) / (f->drive_bytes_per_s_computing * 1e-9), least_read_ns);
    if (is_model_of(f, model)) {
        add_share(out, &f->experts, 1);
        if (f->event_ns > 0) out->event_ns = f->event_ns;
        if (f->lookahead_ns > 0) out->lookahead_ns = f->lookahead_ns;
        if (f->read_ns_per_byte > 0) out->read_ns_per_byte = f->read_ns_per_byte;
        memcpy(out->dense_layer_ns, f->dense_layer_ns, sizeof out->dense_layer_ns);
        memcpy(out->dense_step_ns, f->dense_step_ns, sizeof out->dense_step_ns);
        return;
    }
    mix_experts(f, model, false, out);
    if (model) estimate_dense(f, model, out);
}

/* ---- The GPU ------------------------------------------------------------------------------------------------------------- */

/* The dense part of a layer and of a step of Qwen3-30B-A3B in Q4_K_M. */
static const double typical_layer_bytes = 12e6, typical_step_bytes = 255e6;

static double dense_layer_bytes(const stk_model *model) {
    double bytes = 0;
    for (uint32_t l = 0; l < model->hp.n_layer; l++) {
        const stk_layer *w = &model->layers[l];
        bytes += (double)(w->attn_q.bytes + w->attn_k.bytes + w->attn_v.bytes + w->attn_output.bytes + w->router.bytes);
    }
    return bytes / model->hp.n_layer;
}

int stk_cost_file_table_gpu(const stk_cost_file *f, const stk_model *model, stk_cost *out) {
    const stk_cost_file_gpu *g = &f->gpu;
    if (!g->name[0]) return stk_fail(STK_EINVAL, "the cost table of %s has no GPU", f->machine);
    stk_cost_file_table(f, model, out);
    out->gpu = (stk_cost_gpu){.launch_ns = g->launch_ns,
                              .return_ns = g->return_ns,
                              .link_bytes_per_ns = g->link_bytes_per_s * 1e-9,
                              .link_bytes_per_ns_computing = g->link_bytes_per_s_computing * 1e-9,
                              .link_latency_ns = g->link_latency_ns,
                              .cpu_slowdown = g->cpu_slowdown};
    mix_experts(f, model, true, out);
    double layer = model ? dense_layer_bytes(model) : typical_layer_bytes;
    double step = model ? (double)model->output.bytes : typical_step_bytes;
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) {
        out->dense_layer_ns[i] = g->dense_layer_ns + layer * g->dense_ns_per_byte[i];
        out->dense_step_ns[i] = step * g->dense_ns_per_byte[0];
    }
    return STK_OK;
}
