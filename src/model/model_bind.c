/*
 * model: from the family's rules to places in files. A tensor that no rule asked for is refused: a bias or scale that is left out
 * gives fluent nonsense.
 */
#include "packed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96, NO_LAYER = -1 };

typedef struct binder {
    stk_model *model;
    bool *claimed; /* [n_tensor] */
} binder;

/* Where tensor `name` of a layer is, NULL when the file has none. Writes its full name. */
static const stk_gguf_tensor *claim(binder *b, int64_t layer, const char *name, char full[NAME_BYTES]) {
    if (layer == NO_LAYER)
        snprintf(full, NAME_BYTES, "%s", name);
    else
        snprintf(full, NAME_BYTES, "blk.%" PRId64 ".%s", layer, name);
    const stk_gguf_tensor *t = stk_gguf_find_tensor(b->model->gguf, full);
    if (t) b->claimed[t - stk_gguf_tensor_at(b->model->gguf, 0)] = true;
    return t;
}

static int fail_tensor(const binder *b, int code, const stk_gguf_tensor *t, const char *what) {
    return stk_fail(code, "%s: tensor %s: %s", stk_gguf_path(b->model->gguf, t->file), t->name.text, what);
}

static int check_shape(const binder *b, const stk_gguf_tensor *t, const uint64_t wanted[3]) {
    if (t->dim[0] == wanted[0] && t->dim[1] == wanted[1] && t->dim[2] == wanted[2] && t->dim[3] == 1) return 0;
    char what[256];
    snprintf(what, sizeof what,
             "its shape is [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 "], expected [%" PRIu64 ", %" PRIu64 ", %" PRIu64
             ", 1]",
             t->dim[0], t->dim[1], t->dim[2], t->dim[3], wanted[0], wanted[1], wanted[2]);
    return fail_tensor(b, STK_EFORMAT, t, what);
}

static int check_type(const binder *b, const stk_gguf_tensor *t, bool is_vector) {
    const stk_type_info *info = stk_type_info_get(t->type);
    bool fits = info->has_kernel && (!is_vector || info->block == 1);
    if (fits) return 0;
    char what[128];
    snprintf(what, sizeof what, "its type %s is not supported%s", info->name,
             is_vector ? " for a vector (F32, F16 and BF16 are)" : "");
    return fail_tensor(b, STK_EUNSUPPORTED, t, what);
}

/* The extents of a rule's weight along its fused tensor: rows of a matrix, elements of a vector. */
static uint64_t fused_length(const stk_hparams *hp, const stk_tensor_rule *rule) {
    return stk_arch_dim(hp, rule->rows == STK_DIM_ONE ? rule->in : rule->rows);
}

static bool same_fused(const stk_tensor_rule *a, const stk_tensor_rule *b) { return a->fused && strcmp(a->fused, b->fused) == 0; }

static int bind_rule(binder *b, int64_t layer, const stk_tensor_rule *rules, uint32_t n_rule, uint32_t r, stk_weight *out) {
    const stk_hparams *hp = &b->model->hp;
    const stk_tensor_rule *rule = &rules[r];
    bool is_vector = rule->rows == STK_DIM_ONE;
    uint64_t start = 0, length = fused_length(hp, rule), row_bytes, start_bytes;
    char name[NAME_BYTES], fused_name[NAME_BYTES];
    *out = (stk_weight){0};
    const stk_gguf_tensor *t = claim(b, layer, rule->name, name);
    if (!t && rule->fused && !b->model->packed && (t = claim(b, layer, rule->fused, fused_name))) {
        length = 0;
        for (uint32_t i = 0; i < n_rule; i++) {
            if (i == r) start = length;
            if (same_fused(&rules[i], rule)) length += fused_length(hp, &rules[i]);
        }
    }
    if (!t && rule->optional) return 0;
    if (!t) return stk_fail(STK_EFORMAT, "%s: tensor %s is missing", stk_gguf_path(b->model->gguf, 0), name);

    uint64_t n_in = stk_arch_dim(hp, rule->in);
    const uint64_t shape[3] = {is_vector ? length : n_in, is_vector ? 1 : length, 1};
    STK_TRY(check_shape(b, t, shape));
    STK_TRY(check_type(b, t, is_vector));
    STK_TRY(stk_type_row_bytes(t->type, n_in, &row_bytes));
    STK_TRY(stk_type_row_bytes(t->type, is_vector ? start : start * n_in, &start_bytes));
    *out = (stk_weight){
        .type = (enum stk_type)t->type,
        .n_rows = (uint32_t)stk_arch_dim(hp, rule->rows),
        .n_in = (uint32_t)n_in,
        .file = t->file,
        .offset = t->offset + start_bytes,
        .bytes = row_bytes * stk_arch_dim(hp, rule->rows),
        .name = t->name.text,
    };
    out->in_stripes = b->model->packed && stk_packed_in_stripes(out);
    if (b->model->packed && out->offset % STK_PACKED_ALIGN)
        return fail_tensor(b, STK_EFORMAT, t, "it does not start at a multiple of 4,096, as all weights of a packed model do");
    return 0;
}

static int bind_rules(binder *b, int64_t layer, const stk_tensor_rule *rules, uint32_t n_rule, void *object) {
    for (uint32_t r = 0; r < n_rule; r++) {
        STK_TRY(bind_rule(b, layer, rules, n_rule, r, (stk_weight *)((char *)object + rules[r].field)));
    }
    return 0;
}

/* All experts of one part in one tensor, of which each holds `share` parts and this is number `nth`. */
static int bind_joined(const binder *b, const stk_gguf_tensor *t, uint64_t n_rows, uint64_t n_in, uint32_t share, uint32_t nth,
                       stk_extent *extents) {
    const uint64_t shape[3] = {n_in, n_rows * share, b->model->hp.n_expert};
    STK_TRY(check_shape(b, t, shape));
    STK_TRY(check_type(b, t, false));
    uint64_t part_bytes = t->bytes / b->model->hp.n_expert / share;
    for (uint32_t e = 0; e < b->model->hp.n_expert; e++) {
        extents[e] = (stk_extent){.file = t->file, .offset = t->offset + ((uint64_t)e * share + nth) * part_bytes};
    }
    return 0;
}

/* One tensor for each expert, as the first files with experts had it. */
static int bind_single(binder *b, uint32_t layer, const char *name, uint64_t n_rows, uint64_t n_in, uint32_t *type,
                       stk_extent *extents) {
    const uint64_t shape[3] = {n_in, n_rows, 1};
    for (uint32_t e = 0; e < b->model->hp.n_expert; e++) {
        char short_name[NAME_BYTES / 2], full[NAME_BYTES];
        snprintf(short_name, sizeof short_name, "%s.%" PRIu32 ".weight", name, e);
        const stk_gguf_tensor *t = claim(b, layer, short_name, full);
        if (!t && e == 0) {
            return stk_fail(STK_EFORMAT, "%s: tensor blk.%" PRIu32 ".%s_exps.weight is missing", stk_gguf_path(b->model->gguf, 0),
                            layer, name);
        }
        if (!t) return stk_fail(STK_EFORMAT, "%s: tensor %s is missing", stk_gguf_path(b->model->gguf, 0), full);
        STK_TRY(check_shape(b, t, shape));
        STK_TRY(check_type(b, t, false));
        if (e == 0) *type = t->type;
        if (t->type != *type)
            return fail_tensor(b, STK_EUNSUPPORTED, t, "its type differs from that of the layer's first expert");
        extents[e] = (stk_extent){.file = t->file, .offset = t->offset};
    }
    return 0;
}

/* extents: [n_expert] to fill. */
static int bind_packed(binder *b, uint32_t layer, stk_layer_experts *out, stk_extent *extents) {
    char full[NAME_BYTES];
    for (int p = 0; p < STK_N_PART; p++) {
        const stk_expert_rule *rule = &b->model->family->expert_rules[p];
        out->n_rows[p] = (uint32_t)stk_arch_dim(&b->model->hp, rule->rows);
        out->n_in[p] = (uint32_t)stk_arch_dim(&b->model->hp, rule->in);
    }
    (void)claim(b, layer, STK_PACKED_EXPERTS, full);
    return stk_packed_find_experts(b->model, layer, out, extents);
}

/* extents: [n_expert] to fill. */
static int bind_experts(binder *b, uint32_t layer, enum stk_part part, stk_layer_experts *out, stk_extent *extents) {
    const stk_expert_rule *rule = &b->model->family->expert_rules[part];
    uint64_t n_rows = stk_arch_dim(&b->model->hp, rule->rows), n_in = stk_arch_dim(&b->model->hp, rule->in);
    char name[NAME_BYTES / 2], full[NAME_BYTES];
    uint32_t type = 0;
    snprintf(name, sizeof name, "%s_exps.weight", rule->name);
    const stk_gguf_tensor *t = claim(b, layer, name, full);
    if (t) {
        type = t->type;
        STK_TRY(bind_joined(b, t, n_rows, n_in, 1, 0, extents));
    } else {
        if (rule->fused) {
            snprintf(name, sizeof name, "%s_exps.weight", rule->fused);
            t = claim(b, layer, name, full);
        }
        if (t) {
            type = t->type;
            STK_TRY(bind_joined(b, t, n_rows, n_in, 2, part == STK_UP, extents));
        } else {
            STK_TRY(bind_single(b, layer, rule->name, n_rows, n_in, &type, extents));
        }
    }
    out->type[part] = (enum stk_type)type;
    out->n_rows[part] = (uint32_t)n_rows;
    out->n_in[part] = (uint32_t)n_in;
    out->extent[part] = extents;
    return 0;
}

static int bind_layers(binder *b, stk_layer_experts *experts, stk_extent *extents) {
    stk_model *m = b->model;
    for (uint32_t l = 0; l < m->hp.n_layer; l++) {
        stk_layer *layer = &m->layers[l];
        layer->attn = m->family->attn;
        layer->ffn = m->family->ffn;
        STK_TRY(bind_rules(b, l, m->family->layer_rules, m->family->n_layer_rule, layer));
        if (m->packed) STK_TRY(bind_packed(b, l, &experts[l], extents + (size_t)l * m->hp.n_expert));
        for (int p = 0; p < STK_N_PART && !m->packed; p++) {
            STK_TRY(bind_experts(b, l, (enum stk_part)p, &experts[l], extents));
            extents += m->hp.n_expert;
        }
    }
    return stk_catalogue_open(&m->experts, m->hp.n_layer, m->hp.n_expert, experts);
}

/* Last but the tensors that nobody asked for: a damaged head shows as what it damages, where that can be told. */
static int check_seal(binder *b) {
    char full[NAME_BYTES];
    stk_packed_seal *seal;
    if (!b->model->packed) return 0;
    (void)claim(b, NO_LAYER, STK_PACKED_SEAL, full);
    STK_TRY(stk_packed_read_seal(b->model, &seal));
    free(seal);
    return 0;
}

static int check_claimed(const binder *b) {
    for (uint64_t i = 0; i < stk_gguf_n_tensor(b->model->gguf); i++) {
        if (b->claimed[i]) continue;
        return fail_tensor(b, STK_EUNSUPPORTED, stk_gguf_tensor_at(b->model->gguf, i),
                           "not known in this architecture; leaving it out would give wrong results");
    }
    return 0;
}

static uint64_t expert_weights(const stk_class *cls) {
    uint64_t n = 0;
    for (int p = 0; p < STK_N_PART; p++) n += (uint64_t)cls->part[p].n_rows * cls->part[p].n_in;
    return n;
}

/* Packed experts count as what they are made of. */
static void count_bytes(stk_model *m) {
    uint64_t row_bytes = m->token_embd.bytes / m->token_embd.n_rows, all = 0;
    for (uint64_t i = 0; i < stk_gguf_n_tensor(m->gguf); i++) {
        const stk_gguf_tensor *t = stk_gguf_tensor_at(m->gguf, i);
        if (m->packed && t->type == STK_PACKED_TYPE_I8) continue;
        m->n_param += t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
        all += t->bytes;
    }
    for (uint32_t l = 0; l < m->hp.n_layer; l++) {
        uint32_t cls = stk_catalogue_layer_class(m->experts, l);
        if (cls == STK_NO_CLASS) continue;
        uint64_t payload = stk_catalogue_class(m->experts, cls)->payload_bytes;
        m->expert_bytes += m->hp.n_expert * payload;
        m->token_bytes += m->hp.n_expert_used * payload;
        if (m->packed) m->n_param += m->hp.n_expert * expert_weights(stk_catalogue_class(m->experts, cls));
    }
    m->dense_bytes = m->packed ? all : all - m->expert_bytes;
    m->token_bytes += m->dense_bytes + row_bytes;
    if (!m->tied) m->token_bytes -= m->token_embd.bytes;
}

int stk_model_bind(stk_model *model) {
    const stk_hparams *hp = &model->hp;
    uint64_t n_tensor = stk_gguf_n_tensor(model->gguf), n_extent = (uint64_t)hp->n_layer * hp->n_expert * STK_N_PART, bytes = 0;
    for (uint32_t f = 0; f < stk_gguf_n_file(model->gguf); f++) bytes += stk_gguf_file_bytes(model->gguf, f);
    if (n_extent == 0 || n_extent > bytes) {
        return stk_fail(
            STK_EFORMAT,
            "%s: %" PRIu32 " layers of %" PRIu32 " experts (%s.block_count, %s.expert_count) cannot be in %" PRIu64 " bytes",
            stk_gguf_path(model->gguf, 0), hp->n_layer, hp->n_expert, model->family->arch, model->family->arch, bytes);
    }
    binder b = {.model = model, .claimed = calloc(n_tensor, sizeof *b.claimed)};
    stk_layer_experts *experts = calloc(hp->n_layer, sizeof *experts);
    stk_extent *extents = calloc(n_extent, sizeof *extents);
    model->layers = calloc(hp->n_layer, sizeof *model->layers);
    int rc;
    if (!b.claimed || !experts || !extents || !model->layers) {
        rc = stk_fail(STK_ENOMEM, "%s: the system refused memory for its layers", stk_gguf_path(model->gguf, 0));
        goto out;
    }
    STK_TRYGOTO(bind_rules(&b, NO_LAYER, model->family->model_rules, model->family->n_model_rule, model), rc, out);
    model->tied = model->output.n_rows == 0;
    if (model->tied) model->output = model->token_embd;
    STK_TRYGOTO(bind_layers(&b, experts, extents), rc, out);
    STK_TRYGOTO(check_seal(&b), rc, out);
    STK_TRYGOTO(check_claimed(&b), rc, out);
    count_bytes(model);
out:
    free(b.claimed);
    free(experts);
    free(extents);
    return rc;
}
