/*
 * gguf_parse: what the files gguf*.c share: the object, its arena, and the parser of one file. Private to them.
 *
 * A file, all numbers little-endian:
 *
 *     "GGUF" | u32 version | u64 n_tensor | u64 n_value
 *     n_value times:  string key | u32 type | value          string: u64 bytes, text; array: u32 item type, u64 n, items
 *     n_tensor times: string name | u32 n_dim | u64 dim[n_dim] | u32 type | u64 offset
 *     padding to a multiple of general.alignment (32), then the tensors at their offsets, each a multiple of the alignment
 */
#ifndef STK_GGUF_PARSE_H
#define STK_GGUF_PARSE_H

#include "gguf.h"

enum { STK_GGUF_DEFAULT_ALIGNMENT = 32, STK_GGUF_MAX_KEY_BYTES = 65535, STK_GGUF_MAX_NAME_BYTES = 64 };

/* Memory that lives as long as the object: many small pieces out of few blocks. */
typedef struct stk_gguf_block {
    struct stk_gguf_block *next;
    uint64_t used, size;
    _Alignas(16) unsigned char data[];
} stk_gguf_block;

typedef struct stk_gguf_file {
    const char *path;
    uint64_t bytes;
    uint64_t head_bytes; /* where the directory ends */
} stk_gguf_file;

struct stk_gguf {
    stk_gguf_block *arena;
    stk_gguf_file *files; /* [n_file] */
    uint32_t n_file;
    stk_gguf_value *values;               /* [n_value] */
    const uint64_t *value_offsets;        /* [n_value] where each key starts in the first file */
    const stk_gguf_value **values_by_key; /* [n_value] sorted */
    uint64_t n_value;
    stk_gguf_tensor *tensors; /* [n_tensor] */
    uint64_t n_tensor;
    const stk_gguf_tensor **tensors_by_name; /* [n_tensor] sorted; NULL until all parts are there */
};

/* An array of n items, 16-byte aligned, not zeroed; NULL without a detail text when memory is out. */
void *stk_gguf_alloc(stk_gguf *g, uint64_t n, uint64_t item_bytes);

/*
 * Parses the one file at `path` into the empty object `g`: metadata with its sorted index, and tensors of file 0. Nothing is
 * allocated on the word of a count or length before the rest of the file has been seen to have room for it.
 */
int stk_gguf_parse(stk_gguf *g, const char *path) STK_CHECKED;

/* Bytes of a number; 0 for what is none. */
uint64_t stk_gguf_item_bytes(uint32_t type);

/* Order of bytes, then of length: what the sorted indices are sorted by. */
int stk_gguf_string_compare(const stk_gguf_string *a, const stk_gguf_string *b);

#endif
