/* shape: a catalogue as a trace's header; a catalogue of a file that was never written. */
#include "shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/spec.h"
#include "src/synth/synth_blocks.h"
#include "src/synth/synth_model.h"

void stk_shape_extents(const stk_catalogue *cat, uint32_t layer, const stk_io *io, stk_trace_extent *out) {
    for (uint32_t x = 0; x < stk_catalogue_n_expert(cat); x++)
        for (uint32_t p = 0; p < STK_N_PART; p++) {
            stk_part_read r;
            uint32_t file = stk_catalogue_extent(cat, layer, x, p).file;
            stk_catalogue_read(cat, layer, x, p, io ? stk_io_align(io, file) : STK_DIRECT_ALIGN, &r);
            *out++ = (stk_trace_extent){r.file, r.file_offset, r.bytes};
        }
}

void stk_shape_close(stk_trace_header *h) {
    const void *const owned[] = {h->classes, h->layer_class, h->model_layer, h->extents};
    for (size_t i = 0; i < STK_ARRAY_LEN(owned); i++) free((void *)owned[i]);
    *h = (stk_trace_header){0};
}

/* Layers without experts are no layers of a trace. */
static int from_catalogue(const stk_catalogue *cat, uint32_t k, stk_trace_header *h) {
    uint32_t n_layer = stk_catalogue_n_layer(cat), n_expert = stk_catalogue_n_expert(cat), n_class = stk_catalogue_n_class(cat);
    stk_trace_class *classes = calloc(n_class + 1, sizeof *classes);
    uint32_t *layer_class = calloc(n_layer + 1, sizeof *layer_class), *model_layer = calloc(n_layer + 1, sizeof *model_layer);
    stk_trace_extent *extents = calloc((size_t)n_layer * n_expert * STK_N_PART + 1, sizeof *extents);
    *h = (stk_trace_header){.n_expert = n_expert,
                            .k = k,
                            .n_part = STK_N_PART,
                            .n_class = n_class,
                            .classes = classes,
                            .layer_class = layer_class,
                            .model_layer = model_layer,
                            .extents = extents};
    if (!classes || !layer_class || !model_layer || !extents) {
        stk_shape_close(h);
        return stk_fail(STK_ENOMEM, "out of memory for the sizes of %u x %u experts", n_layer, n_expert);
    }
    for (uint32_t c = 0; c < n_class; c++)
        classes[c] = (stk_trace_class){.slot_bytes = stk_catalogue_class(cat, c)->slot_bytes,
                                       .payload_bytes = stk_catalogue_class(cat, c)->payload_bytes};
    for (uint32_t l = 0; l < n_layer; l++) {
        if (stk_catalogue_layer_class(cat, l) == STK_NO_CLASS) continue;
        layer_class[h->n_layer] = stk_catalogue_layer_class(cat, l);
        model_layer[h->n_layer] = l;
        stk_shape_extents(cat, l, NULL, extents + (size_t)h->n_layer++ * n_expert * STK_N_PART);
    }
    return STK_OK;
}

int stk_shape_of_model(const stk_model *model, stk_trace_header *out) {
    return from_catalogue(model->experts, model->hp.n_expert_used, out);
}

/* ---- A file that was never written --------------------------------------------------------------------------------------- */

/* Which part of which layer a tensor holds; false for one that holds no experts. */
static bool is_experts(const stk_synth_tensor *t, uint32_t *layer, uint32_t *part) {
    static const char *const names[STK_N_PART] = {
        [STK_GATE] = "ffn_gate_exps.weight", [STK_UP] = "ffn_up_exps.weight", [STK_DOWN] = "ffn_down_exps.weight"};
    char rest[sizeof t->name];
    if (sscanf(t->name, "blk.%u.%47s", layer, rest) != 2) return false;
    for (*part = 0; *part < STK_N_PART; ++*part)
        if (strcmp(rest, names[*part]) == 0) return true;
    return false;
}

/* Experts of a matrix follow one another. */
static int place(const stk_synth_list *list, const stk_synth_shape *shape, stk_layer_experts *layers, stk_extent *extents) {
    uint64_t offset = 0;
    uint32_t layer, part;
    for (uint64_t i = 0; i < list->n; i++) {
        const stk_synth_tensor *t = &list->tensors[i];
        if (is_experts(t, &layer, &part)) {
            const stk_type_info *info = stk_type_info_get(t->type);
            if (!info || t->type == STK_SYNTH_Q5_0 || t->type == STK_SYNTH_Q5_1)
                return stk_fail(STK_EUNSUPPORTED, "shape '%s': format %u of %s is for other programs alone", shape->name, t->type,
                                t->name);
            stk_extent *of = extents + ((size_t)layer * STK_N_PART + part) * shape->n_expert;
            for (uint32_t x = 0; x < shape->n_expert; x++) of[x] = (stk_extent){0, offset + x * (t->bytes / shape->n_expert)};
            layers[layer].type[part] = (enum stk_type)t->type;
            layers[layer].n_in[part] = (uint32_t)t->dim[0];
            layers[layer].n_rows[part] = (uint32_t)t->dim[1];
            layers[layer].extent[part] = of;
        }
        offset += stk_align_up(t->bytes, STK_GGUF_WRITE_ALIGN);
    }
    return STK_OK;
}

static int from_list(const stk_synth_list *list, const stk_synth_shape *shape, stk_trace_header *out) {
    stk_layer_experts *layers = calloc(shape->n_layer, sizeof *layers);
    stk_extent *extents = calloc((size_t)shape->n_layer * STK_N_PART * shape->n_expert, sizeof *extents);
    stk_catalogue *cat = NULL;
    int rc = layers && extents ? STK_OK : stk_fail(STK_ENOMEM, "out of memory for the shape %s", shape->name);
    if (rc >= 0) rc = place(list, shape, layers, extents);
    if (rc >= 0) rc = stk_catalogue_open(&cat, shape->n_layer, shape->n_expert, layers);
    if (rc >= 0) rc = from_catalogue(cat, shape->n_used, out);
    stk_catalogue_close(&cat);
    free(layers);
    free(extents);
    return rc;
}

int stk_shape_of_name(const char *name, stk_trace_header *out) {
    stk_synth_shape shape;
    const stk_synth_mix *mix;
    stk_synth_list list;
    stk_spec spec = stk_spec_parse(name);
    *out = (stk_trace_header){0};
    STK_TRY(stk_synth_shape_find(&shape, spec.name));
    STK_TRY(stk_synth_mix_find(&mix, spec.params ? spec.params : "Q4_K_M"));
    STK_TRY(stk_synth_list_open(&list, &shape, mix, false));
    int rc = from_list(&list, &shape, out);
    stk_synth_list_close(&list);
    return rc;
}

int stk_shape_choose(const stk_model *model, const char *name, stk_trace_header *out) {
    *out = (stk_trace_header){0};
    if (model && name) return stk_fail(STK_EINVAL, "a model and the shape '%s' exclude one another", name);
    if (!model && !name) return 0;
    int rc = model ? stk_shape_of_model(model, out) : stk_shape_of_name(name, out);
    return rc < 0 ? rc : 1;
}
