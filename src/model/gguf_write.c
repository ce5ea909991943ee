/* gguf_write: three growing buffers, values, directory and the head made of both. */
#include "gguf_write.h"

#include <stdlib.h>
#include <string.h>

#include "gguf_parse.h"

static void put(stk_gguf_writer *w, stk_gguf_bytes *b, const void *data, size_t bytes) {
    if (w->no_memory) return;
    if (bytes > b->cap - b->bytes) {
        size_t cap = STK_MAX(b->cap, (size_t)4096);
        while (cap - b->bytes < bytes && cap <= SIZE_MAX / 2) cap *= 2;
        uint8_t *grown = cap - b->bytes >= bytes ? realloc(b->data, cap) : NULL;
        if (!grown) {
            w->no_memory = true;
            return;
        }
        b->data = grown;
        b->cap = cap;
    }
    memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
}

static void put_string(stk_gguf_writer *w, stk_gguf_bytes *b, stk_gguf_string s) {
    put(w, b, &s.bytes, sizeof s.bytes);
    put(w, b, s.text, s.bytes);
}

static void put_text(stk_gguf_writer *w, stk_gguf_bytes *b, const char *text) {
    put_string(w, b, (stk_gguf_string){text, strlen(text)});
}

static uint64_t align_of(const stk_gguf_writer *w) { return w->align ? w->align : STK_GGUF_WRITE_ALIGN; }

static void put_value(stk_gguf_writer *w, const char *key, enum stk_gguf_type type, const void *value, size_t bytes) {
    uint32_t number = type;
    put_text(w, &w->values, key);
    put(w, &w->values, &number, sizeof number);
    put(w, &w->values, value, bytes);
    w->n_value++;
}

void stk_gguf_put_u16(stk_gguf_writer *w, const char *key, uint16_t value) {
    put_value(w, key, STK_GGUF_U16, &value, sizeof value);
}

void stk_gguf_put_u32(stk_gguf_writer *w, const char *key, uint32_t value) {
    put_value(w, key, STK_GGUF_U32, &value, sizeof value);
}

void stk_gguf_put_i32(stk_gguf_writer *w, const char *key, int32_t value) {
    put_value(w, key, STK_GGUF_I32, &value, sizeof value);
}

void stk_gguf_put_f32(stk_gguf_writer *w, const char *key, float value) { put_value(w, key, STK_GGUF_F32, &value, sizeof value); }

void stk_gguf_put_bool(stk_gguf_writer *w, const char *key, bool value) {
    put_value(w, key, STK_GGUF_BOOL, &(uint8_t){value}, 1);
}

void stk_gguf_put_str(stk_gguf_writer *w, const char *key, const char *text) {
    put_value(w, key, STK_GGUF_STRING, "", 0);
    put_text(w, &w->values, text);
}

void stk_gguf_put_copy(stk_gguf_writer *w, const stk_gguf_value *v) {
    const uint32_t item = v->item;
    put_value(w, v->key.text, v->type, &item, v->type == STK_GGUF_ARRAY ? sizeof item : 0);
    if (v->type == STK_GGUF_ARRAY) put(w, &w->values, &v->n, sizeof v->n);
    if (v->item != STK_GGUF_STRING) {
        put(w, &w->values, v->data, v->n * stk_gguf_item_bytes(v->item));
    } else {
        for (uint64_t i = 0; i < v->n; i++) put_string(w, &w->values, ((const stk_gguf_string *)v->data)[i]);
    }
}

void stk_gguf_put_array(stk_gguf_writer *w, const char *key, enum stk_gguf_type item, uint64_t n) {
    uint32_t number = item;
    put_value(w, key, STK_GGUF_ARRAY, &number, sizeof number);
    put(w, &w->values, &n, sizeof n);
}

void stk_gguf_put_item_str(stk_gguf_writer *w, const char *text) { put_text(w, &w->values, text); }

void stk_gguf_put_item_i32(stk_gguf_writer *w, int32_t value) { put(w, &w->values, &value, sizeof value); }

void stk_gguf_put_tensor(stk_gguf_writer *w, const char *name, uint32_t type, uint32_t n_dim, const uint64_t *dim,
                         uint64_t bytes) {
    put_text(w, &w->tensors, name);
    put(w, &w->tensors, &n_dim, sizeof n_dim);
    put(w, &w->tensors, dim, n_dim * sizeof *dim);
    put(w, &w->tensors, &type, sizeof type);
    put(w, &w->tensors, &w->data_bytes, sizeof w->data_bytes);
    w->data_bytes += stk_align_up(bytes, align_of(w));
    w->n_tensor++;
}

int stk_gguf_write_head(stk_gguf_writer *w, uint32_t version, const uint8_t **data, size_t *bytes) {
    static const uint8_t zeros[4096];
    stk_gguf_bytes *h = &w->head;
    h->bytes = 0;
    put(w, h, "GGUF", 4);
    put(w, h, &version, sizeof version);
    put(w, h, &w->n_tensor, sizeof w->n_tensor);
    put(w, h, &w->n_value, sizeof w->n_value);
    if (w->values.bytes) put(w, h, w->values.data, w->values.bytes);
    if (w->tensors.bytes) put(w, h, w->tensors.data, w->tensors.bytes);
    w->head_bytes = h->bytes;
    for (uint64_t left = stk_align_up(h->bytes, align_of(w)) - h->bytes, n; left; left -= n) {
        n = STK_MIN(left, sizeof zeros);
        put(w, h, zeros, n);
    }
    if (w->no_memory) return stk_fail(STK_ENOMEM, "out of memory for the metadata of a GGUF file");
    *data = h->data;
    *bytes = h->bytes;
    return STK_OK;
}

void stk_gguf_write_fini(stk_gguf_writer *w) {
    free(w->values.data);
    free(w->tensors.data);
    free(w->head.data);
    memset(w, 0, sizeof *w);
}
