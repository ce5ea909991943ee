/*
 * gguf: reads the metadata and tensor directory of GGUF files, versions 2 and 3, split files included. Trusts nothing in them.
 *
 * Who may call it: src/. Threads: immutable after open. Ownership: strings and arrays belong to the object.
 * Errors name the file, the byte offset and the field: STK_EFORMAT (malformed, cut off), STK_EUNSUPPORTED (version, big endian),
 * STK_EIO, STK_ENOMEM. Source: the GGUF specification of the ggml project.
 */
#ifndef STK_GGUF_H
#define STK_GGUF_H

#include "src/base.h"

typedef struct stk_gguf stk_gguf;

enum stk_gguf_type {
    STK_GGUF_U8,
    STK_GGUF_I8,
    STK_GGUF_U16,
    STK_GGUF_I16,
    STK_GGUF_U32,
    STK_GGUF_I32,
    STK_GGUF_F32,
    STK_GGUF_BOOL,
    STK_GGUF_STRING,
    STK_GGUF_ARRAY,
    STK_GGUF_U64,
    STK_GGUF_I64,
    STK_GGUF_F64,
};

typedef struct stk_gguf_string {
    const char *text; /* followed by a 0 that is not counted */
    uint64_t bytes;
} stk_gguf_string;

typedef struct stk_gguf_value {
    stk_gguf_string key;
    enum stk_gguf_type type;
    enum stk_gguf_type item; /* of an array; else the same as type */
    uint64_t n;              /* items of an array; else 1 */
    const void *data;        /* [n] packed items in machine order; stk_gguf_string[n] for strings; uint8_t 0/1 for bools */
} stk_gguf_value;

typedef struct stk_gguf_tensor {
    stk_gguf_string name;
    uint32_t file; /* index for stk_gguf_path */
    uint32_t type; /* ggml type number, known to experts/quant.h */
    uint32_t n_dim;
    uint64_t dim[4]; /* dim[0] contiguous; unused are 1 */
    uint64_t offset; /* absolute in its file; offset + bytes is inside the file */
    uint64_t bytes;
} stk_gguf_tensor;

/* Opens `path`, and the other parts when it is one part of a split model ("-00001-of-00003.gguf" and the split.* keys). */
int stk_gguf_open(stk_gguf **out, const char *path) STK_CHECKED;
void stk_gguf_close(stk_gguf **g);

uint32_t stk_gguf_n_file(const stk_gguf *g);
const char *stk_gguf_path(const stk_gguf *g, uint32_t file);
uint64_t stk_gguf_file_bytes(const stk_gguf *g, uint32_t file);
/* Bytes of metadata and directory at its start. */
uint64_t stk_gguf_head_bytes(const stk_gguf *g, uint32_t file);

/* Metadata of the first part, in file order. */
uint64_t stk_gguf_n_value(const stk_gguf *g);
const stk_gguf_value *stk_gguf_value_at(const stk_gguf *g, uint64_t i);
/* NULL when there is no such key. */
const stk_gguf_value *stk_gguf_find(const stk_gguf *g, const char *key);

/*
 * Typed reads. Return 1 when found, 0 when the key is absent (*out is untouched), STK_EFORMAT when it has another type or the
 * value does not fit. u32 accepts every integer type and a bool; f32 accepts f32, f64 and integers.
 */
int stk_gguf_u32(const stk_gguf *g, const char *key, uint32_t *out) STK_CHECKED;
int stk_gguf_f32(const stk_gguf *g, const char *key, float *out) STK_CHECKED;
int stk_gguf_bool(const stk_gguf *g, const char *key, bool *out) STK_CHECKED;
int stk_gguf_str(const stk_gguf *g, const char *key, stk_gguf_string *out) STK_CHECKED;
/* Item i of an integer array, or the scalar itself for every i (keys such as head_count may be either). */
int stk_gguf_u32_at(const stk_gguf *g, const char *key, uint64_t i, uint32_t *out) STK_CHECKED;

/* Tensors of all parts, in file order. */
uint64_t stk_gguf_n_tensor(const stk_gguf *g);
const stk_gguf_tensor *stk_gguf_tensor_at(const stk_gguf *g, uint64_t i);
const stk_gguf_tensor *stk_gguf_find_tensor(const stk_gguf *g, const char *name);

/* The value as text for people, arrays cut after a few items; written 0-terminated into `out`. */
void stk_gguf_format(const stk_gguf_value *value, char *out, size_t cap);
const char *stk_gguf_type_name(enum stk_gguf_type type);

#endif
