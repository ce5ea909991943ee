/* gguf_build: see the header. The layout of a file is drawn in src/model/gguf_parse.h. */
#include "gguf_build.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experts/quant.h"
#include "tests/temp.h"

typedef struct bytes {
    unsigned char *data;
    uint64_t n, cap;
} bytes;

typedef struct tensor {
    char name[80];
    uint32_t type, n_dim;
    uint64_t dim[4], n_byte;
    unsigned char *data;
} tensor;

struct gguf_build {
    uint32_t version, alignment;
    uint64_t n_value, n_tensor;
    bytes values;
    tensor *tensors;
};

static void *need(void *p) {
    if (!p) abort();
    return p;
}

static void put(bytes *to, const void *data, uint64_t n) {
    if (to->n + n > to->cap) {
        to->cap = 2 * (to->n + n);
        to->data = need(realloc(to->data, to->cap));
    }
    if (n) memcpy(to->data + to->n, data, n);
    to->n += n;
}

static void put_u32(bytes *to, uint32_t x) { put(to, &x, sizeof x); }
static void put_u64(bytes *to, uint64_t x) { put(to, &x, sizeof x); }

static void put_string(bytes *to, const char *s) {
    put_u64(to, strlen(s));
    put(to, s, strlen(s));
}

static void pad(bytes *to, uint64_t alignment) {
    while (to->n % alignment) put(to, "", 1);
}

gguf_build *gguf_build_open(void) {
    gguf_build *b = need(calloc(1, sizeof *b));
    b->version = 3;
    b->alignment = 32;
    return b;
}

void gguf_build_close(gguf_build *b) {
    for (uint64_t i = 0; i < b->n_tensor; i++) free(b->tensors[i].data);
    free(b->tensors);
    free(b->values.data);
    free(b);
}

void gguf_build_version(gguf_build *b, uint32_t version) { b->version = version; }

void gguf_build_alignment(gguf_build *b, uint32_t alignment) {
    b->alignment = alignment;
    gguf_build_u32(b, "general.alignment", alignment);
}

void gguf_build_raw(gguf_build *b, const char *key, uint32_t type, const void *data, uint64_t n_byte) {
    put_string(&b->values, key);
    put_u32(&b->values, type);
    put(&b->values, data, n_byte);
    b->n_value++;
}

void gguf_build_u32(gguf_build *b, const char *key, uint32_t value) {
    gguf_build_raw(b, key, STK_GGUF_U32, &value, sizeof value);
}
void gguf_build_f32(gguf_build *b, const char *key, float value) { gguf_build_raw(b, key, STK_GGUF_F32, &value, sizeof value); }
void gguf_build_bool(gguf_build *b, const char *key, bool value) { gguf_build_raw(b, key, STK_GGUF_BOOL, &value, 1); }

void gguf_build_str(gguf_build *b, const char *key, const char *value) {
    bytes v = {0};
    put_string(&v, value);
    gguf_build_raw(b, key, STK_GGUF_STRING, v.data, v.n);
    free(v.data);
}

void gguf_build_array(gguf_build *b, const char *key, enum stk_gguf_type item, uint64_t n, const void *data) {
    static const unsigned char sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    bytes v = {0};
    put_u32(&v, item);
    put_u64(&v, n);
    if (item == STK_GGUF_STRING) {
        for (uint64_t i = 0; i < n; i++) put_string(&v, ((const char *const *)data)[i]);
    } else {
        put(&v, data, n * sizes[item]);
    }
    gguf_build_raw(b, key, STK_GGUF_ARRAY, v.data, v.n);
    free(v.data);
}

void gguf_build_tensor(gguf_build *b, const char *name, uint32_t type, const uint64_t dim[4], const void *data) {
    b->tensors = need(realloc(b->tensors, (b->n_tensor + 1) * sizeof *b->tensors));
    tensor *t = &b->tensors[b->n_tensor++];
    *t = (tensor){.type = type};
    snprintf(t->name, sizeof t->name, "%s", name);
    if (stk_type_row_bytes(type, dim[0], &t->n_byte) < 0) abort();
    for (; t->n_dim < 4 && dim[t->n_dim]; t->n_dim++) {
        t->dim[t->n_dim] = dim[t->n_dim];
        if (t->n_dim > 0) t->n_byte *= dim[t->n_dim];
    }
    t->data = need(malloc(t->n_byte));
    uint32_t state = 1;
    for (const char *c = name; *c; c++) state = state * 31 + (unsigned char)*c;
    for (uint64_t i = 0; i < t->n_byte; i++) t->data[i] = (unsigned char)((state = state * 1664525 + 1013904223) >> 24);
    if (data) memcpy(t->data, data, t->n_byte);
}

/* A file of tensors first to end - 1, with the metadata `values`. */
static bytes image_of(const gguf_build *b, const bytes *values, uint64_t n_value, uint64_t first, uint64_t end,
                      uint64_t *header_bytes) {
    bytes out = {0};
    put(&out, "GGUF", 4);
    put_u32(&out, b->version);
    put_u64(&out, end - first);
    put_u64(&out, n_value);
    put(&out, values->data, values->n);
    uint64_t offset = 0;
    for (uint64_t i = first; i < end; i++) {
        const tensor *t = &b->tensors[i];
        put_string(&out, t->name);
        put_u32(&out, t->n_dim);
        put(&out, t->dim, t->n_dim * sizeof t->dim[0]);
        put_u32(&out, t->type);
        put_u64(&out, offset);
        offset = stk_div_up(offset + t->n_byte, b->alignment) * b->alignment;
    }
    if (header_bytes) *header_bytes = out.n;
    for (uint64_t i = first; i < end; i++) {
        pad(&out, b->alignment);
        put(&out, b->tensors[i].data, b->tensors[i].n_byte);
    }
    return out;
}

unsigned char *gguf_build_image(const gguf_build *b, uint64_t *n_byte, uint64_t *header_bytes) {
    bytes image = image_of(b, &b->values, b->n_value, 0, b->n_tensor, header_bytes);
    *n_byte = image.n;
    return image.data;
}

void gguf_build_write(const gguf_build *b, const char *path) {
    uint64_t n;
    unsigned char *image = gguf_build_image(b, &n, NULL);
    test_write_file(path, image, n);
    free(image);
}

void gguf_build_write_split(const gguf_build *b, const char *stem, uint32_t n_part) {
    for (uint32_t part = 0; part < n_part; part++) {
        gguf_build keys = {0};
        if (part == 0)
            put(&keys.values, b->values.data, b->values.n);
        else if (b->alignment != 32)
            gguf_build_u32(&keys, "general.alignment", b->alignment);
        uint64_t n_value = part == 0 ? b->n_value : keys.n_value;
        uint16_t no = (uint16_t)part, count = (uint16_t)n_part;
        int32_t n_tensor = (int32_t)b->n_tensor;
        gguf_build_raw(&keys, "split.no", STK_GGUF_U16, &no, sizeof no);
        gguf_build_raw(&keys, "split.count", STK_GGUF_U16, &count, sizeof count);
        gguf_build_raw(&keys, "split.tensors.count", STK_GGUF_I32, &n_tensor, sizeof n_tensor);
        bytes image =
            image_of(b, &keys.values, n_value + 3, b->n_tensor * part / n_part, b->n_tensor * (part + 1) / n_part, NULL);
        char path[4096];
        snprintf(path, sizeof path, "%s-%05u-of-%05u.gguf", stem, part + 1, n_part);
        test_write_file(path, image.data, image.n);
        free(image.data);
        free(keys.values.data);
    }
}

static char dir[TEMP_PATH];

static void remove_dir(void) {
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(dir);
}

const char *test_path(const char *name) {
    static char paths[4][TEMP_PATH + 64];
    static unsigned next;
    if (!dir[0]) {
        temp_make_dir(dir, "stoker-test");
        atexit(remove_dir);
    }
    char *path = paths[next++ % STK_ARRAY_LEN(paths)];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

void test_write_file(const char *path, const void *data, uint64_t n) {
    FILE *f = need(fopen(path, "wb"));
    if (fwrite(data, 1, n, f) != n) abort();
    if (fclose(f) != 0) abort();
}
