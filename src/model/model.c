/* model: opening and closing, and what stoker.h asks of a model. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "experts/slots.h"
#include "packed.h"

/* Bytes of a metadata value as text: a template or a licence fits, a hostile string does not take over memory. */
enum { META_TEXT_BYTES = 64 << 10 };

static int format_meta(stk_model *m) {
    uint64_t n = stk_gguf_n_value(m->gguf);
    char *text = malloc(META_TEXT_BYTES);
    m->meta_text = calloc(n ? n : 1, sizeof *m->meta_text);
    bool ok = text && m->meta_text;
    for (uint64_t i = 0; ok && i < n; i++) {
        stk_gguf_format(stk_gguf_value_at(m->gguf, i), text, META_TEXT_BYTES);
        m->meta_text[i] = strdup(text);
        ok = m->meta_text[i] != NULL;
    }
    free(text);
    const stk_gguf_value *name = stk_gguf_find(m->gguf, "general.name");
    if (name && name->type == STK_GGUF_STRING) stk_gguf_format(name, m->name, sizeof m->name);
    return ok ? 0 : stk_fail(STK_ENOMEM, "%s: the system refused memory for its metadata", stk_gguf_path(m->gguf, 0));
}

/* Puts the file's name in front of an error's text; errors of metadata values begin with it already. */
static int name_file(const stk_model *m, int rc) {
    const char *path = stk_gguf_path(m->gguf, 0);
    return strncmp(stk_error_detail(), path, strlen(path)) == 0 ? rc : stk_fail_in(rc, "%s", path);
}

/* A model without a tokenizer that this build knows still computes logits: the error waits for the first call that needs one. */
static int open_tokenizer(stk_model *m) {
    if (stk_gguf_find(m->gguf, "tokenizer.ggml.model")) {
        m->tokenizer_rc = stk_tokenizer_open(&m->tokenizer, m->gguf, m->hp.n_vocab);
    } else {
        m->tokenizer_rc = stk_fail(STK_EUNSUPPORTED, "the file has no tokenizer (no metadata key tokenizer.ggml.model)");
    }
    if (m->tokenizer_rc == 0) return 0;
    int rc = name_file(m, m->tokenizer_rc);
    if (rc == STK_ENOMEM) return rc;
    m->tokenizer_error = strdup(stk_error_detail());
    return m->tokenizer_error ? 0 : stk_fail(STK_ENOMEM, "%s: the system refused memory", stk_gguf_path(m->gguf, 0));
}

int stk_model_open(stk_model **out, const char *path) {
    if (!out || !path) return stk_fail(STK_EINVAL, "stk_model_open: an argument is NULL");
    stk_model *m = calloc(1, sizeof *m);
    if (!m) return stk_fail(STK_ENOMEM, "%s: the system refused memory", path);
    int rc;
    STK_TRYGOTO(stk_gguf_open(&m->gguf, path), rc, out);
    STK_TRYGOTO(stk_packed_version(m->gguf, &m->packed), rc, out);
    STK_TRYGOTO(stk_arch_find(&m->family, m->gguf), rc, out);
    STK_TRYGOTO(stk_arch_hparams(&m->hp, m->family, m->gguf), rc, out);
    STK_TRYGOTO(stk_model_bind(m), rc, out);
    STK_TRYGOTO(format_meta(m), rc, out);
    STK_TRYGOTO(open_tokenizer(m), rc, out);
    *out = m;
    return 0;
out:
    stk_model_close(&m);
    return rc;
}

void stk_model_close(stk_model **model) {
    if (!model || !*model) return;
    stk_model *m = *model;
    for (uint64_t i = 0; m->meta_text && i < stk_gguf_n_value(m->gguf); i++) free(m->meta_text[i]);
    free(m->meta_text);
    free(m->tokenizer_error);
    free(m->layers);
    stk_tokenizer_close(&m->tokenizer);
    stk_catalogue_close(&m->experts);
    stk_gguf_close(&m->gguf);
    free(m);
    *model = NULL;
}

/* Copies what of `full` the caller's struct has room for; its struct_bytes stays. */
static int give(void *info, uint32_t struct_bytes, const void *full, size_t full_bytes, const char *what) {
    if (struct_bytes < sizeof(uint32_t)) return stk_fail(STK_EINVAL, "%s: struct_bytes is not set", what);
    size_t n = STK_MIN(struct_bytes, full_bytes);
    memcpy((char *)info + sizeof(uint32_t), (const char *)full + sizeof(uint32_t), n - sizeof(uint32_t));
    return 0;
}

int stk_model_get_info(const stk_model *model, stk_model_info *info) {
    if (!model || !info) return stk_fail(STK_EINVAL, "stk_model_get_info: an argument is NULL");
    const stk_hparams *hp = &model->hp;
    stk_model_info full = {
        .n_layer = hp->n_layer,
        .n_embd = hp->n_embd,
        .n_vocab = hp->n_vocab,
        .n_ctx_train = hp->n_ctx_train,
        .n_head = hp->n_head,
        .n_head_kv = hp->n_head_kv,
        .head_dim = hp->head_dim,
        .n_expert = hp->n_expert,
        .n_expert_used = hp->n_expert_used,
        .n_file = stk_gguf_n_file(model->gguf),
        .n_param = model->n_param,
        .expert_bytes = model->expert_bytes,
        .dense_bytes = model->dense_bytes,
        .token_bytes = model->token_bytes,
        .arch = model->family->arch,
        .name = model->name,
        .ram_bytes_min = stk_slots_least_bytes(model->experts, hp->n_expert_used),
        .ram_bytes_all = stk_slots_all_bytes(model->experts),
        .packed = model->packed,
    };
    for (uint32_t l = 0; l < hp->n_layer; l++) full.n_moe_layer += model->layers[l].ffn == STK_FFN_MOE;
    for (uint32_t f = 0; f < full.n_file; f++) full.file_bytes += stk_gguf_file_bytes(model->gguf, f);
    for (uint32_t c = 0; c < stk_catalogue_n_class(model->experts); c++) {
        uint64_t bytes = stk_catalogue_class(model->experts, c)->payload_bytes;
        full.expert_bytes_min = c == 0 ? bytes : STK_MIN(full.expert_bytes_min, bytes);
        full.expert_bytes_max = STK_MAX(full.expert_bytes_max, bytes);
    }
    return give(info, info->struct_bytes, &full, sizeof full, "stk_model_info");
}

uint64_t stk_model_n_expert_class(const stk_model *model) { return model ? stk_catalogue_n_class(model->experts) : 0; }

int stk_model_get_expert_class(const stk_model *model, uint64_t i, stk_expert_class_info *info) {
    if (!info) return stk_fail(STK_EINVAL, "stk_model_get_expert_class: an argument is NULL");
    if (i >= stk_model_n_expert_class(model))
        return stk_fail(STK_EINVAL, "there is no class %llu of experts", (unsigned long long)i);
    const stk_class *cls = stk_catalogue_class(model->experts, (uint32_t)i);
    const stk_part_shape *gate = &cls->part[STK_GATE], *up = &cls->part[STK_UP], *down = &cls->part[STK_DOWN];
    stk_expert_class_info full = {.n_layer = cls->n_expert / model->hp.n_expert,
                                  .bytes = cls->payload_bytes,
                                  .gate_bytes = gate->file_bytes,
                                  .up_bytes = up->file_bytes,
                                  .down_bytes = down->file_bytes,
                                  .gate_type = stk_type_info_get(gate->type)->name,
                                  .up_type = stk_type_info_get(up->type)->name,
                                  .down_type = stk_type_info_get(down->type)->name};
    return give(info, info->struct_bytes, &full, sizeof full, "stk_expert_class_info");
}

int stk_model_owns_file(const stk_model *model, const char *path) {
    struct stat mine, other;
    if (!model || !path || stat(path, &other) < 0) return 0;
    for (uint32_t i = 0; i < stk_gguf_n_file(model->gguf); i++)
        if (stat(stk_gguf_path(model->gguf, i), &mine) == 0 && mine.st_dev == other.st_dev && mine.st_ino == other.st_ino)
            return 1;
    return 0;
}

uint64_t stk_model_n_meta(const stk_model *model) { return model ? stk_gguf_n_value(model->gguf) : 0; }

int stk_model_get_meta(const stk_model *model, uint64_t i, const char **key, const char **type, const char **text) {
    if (i >= stk_model_n_meta(model)) return stk_fail(STK_EINVAL, "there is no metadata key %llu", (unsigned long long)i);
    const stk_gguf_value *v = stk_gguf_value_at(model->gguf, i);
    *key = v->key.text;
    *type = stk_gguf_type_name(v->type);
    *text = model->meta_text[i];
    return 0;
}

uint64_t stk_model_n_tensor(const stk_model *model) { return model ? stk_gguf_n_tensor(model->gguf) : 0; }

int stk_model_get_tensor(const stk_model *model, uint64_t i, stk_tensor_info *info) {
    if (i >= stk_model_n_tensor(model)) return stk_fail(STK_EINVAL, "there is no tensor %llu", (unsigned long long)i);
    const stk_gguf_tensor *t = stk_gguf_tensor_at(model->gguf, i);
    stk_tensor_info full = {
        .n_dim = t->n_dim,
        .offset = t->offset,
        .bytes = t->bytes,
        .file = t->file,
        .type = t->type,
        .name = t->name.text,
        .type_name = stk_type_info_get(t->type)->name,
    };
    memcpy(full.dim, t->dim, sizeof full.dim);
    return give(info, info->struct_bytes, &full, sizeof full, "stk_tensor_info");
}

/* ---- Text --------------------------------------------------------------------------------------------------------------- */

const stk_tokenizer *stk_model_tokenizer(const stk_model *model) {
    if (!model->tokenizer) stk_fail(model->tokenizer_rc, "%s", model->tokenizer_error);
    return model->tokenizer;
}

int64_t stk_tokenize(const stk_model *model, const char *text, size_t bytes, uint32_t flags, int32_t *ids, size_t cap) {
    if (!model || (!text && bytes) || (!ids && cap)) return stk_fail(STK_EINVAL, "stk_tokenize: an argument is NULL");
    if (!stk_model_tokenizer(model)) return model->tokenizer_rc;
    return stk_tokenizer_encode(model->tokenizer, text, bytes, flags, ids, cap);
}

int64_t stk_token_bytes(const stk_model *model, int32_t id, int special, const char **bytes) {
    if (!model || !bytes) return stk_fail(STK_EINVAL, "stk_token_bytes: an argument is NULL");
    if (!stk_model_tokenizer(model)) return model->tokenizer_rc;
    return stk_tokenizer_bytes(model->tokenizer, id, special != 0, bytes);
}

int stk_token_is_end(const stk_model *model, int32_t id) {
    return model && model->tokenizer && stk_tokenizer_is_end(model->tokenizer, id);
}
