/*
 * gguf_write: the head of a GGUF file (metadata and tensor directory, drawn in gguf_parse.h), put together in memory. The tensors
 * follow it in the order of the directory, each filled up with zeros to a multiple of the alignment.
 *
 * Who may call it: src/ and the tools of tests/. Threads: one owner. Ownership: the writer owns its bytes; zero it to start, free
 * it with stk_gguf_write_fini. Errors: puts keep going after memory ran out, which stk_gguf_write_head then reports.
 */
#ifndef STK_GGUF_WRITE_H
#define STK_GGUF_WRITE_H

#include "gguf.h"

enum { STK_GGUF_WRITE_ALIGN = 32 };

typedef struct stk_gguf_bytes {
    uint8_t *data;
    size_t bytes, cap;
} stk_gguf_bytes;

typedef struct stk_gguf_writer {
    stk_gguf_bytes values, tensors, head;
    uint64_t n_value, n_tensor;
    uint64_t data_bytes; /* of the tensors so far, padding included */
    uint64_t head_bytes; /* of the finished head without its padding */
    uint32_t align;      /* a power of two, set before the first tensor and put as general.alignment; 0: 32 */
    bool no_memory;
} stk_gguf_writer;

void stk_gguf_put_u16(stk_gguf_writer *w, const char *key, uint16_t value);
void stk_gguf_put_u32(stk_gguf_writer *w, const char *key, uint32_t value);
void stk_gguf_put_i32(stk_gguf_writer *w, const char *key, int32_t value);
void stk_gguf_put_f32(stk_gguf_writer *w, const char *key, float value);
void stk_gguf_put_bool(stk_gguf_writer *w, const char *key, bool value);
void stk_gguf_put_str(stk_gguf_writer *w, const char *key, const char *text);

/* A value as it was read, under its own key. */
void stk_gguf_put_copy(stk_gguf_writer *w, const stk_gguf_value *value);

/* Begins an array; n items follow, each put by one of the two calls below. */
void stk_gguf_put_array(stk_gguf_writer *w, const char *key, enum stk_gguf_type item, uint64_t n);
void stk_gguf_put_item_str(stk_gguf_writer *w, const char *text);
void stk_gguf_put_item_i32(stk_gguf_writer *w, int32_t value);

/* Adds a tensor to the directory; dim[0] is contiguous. */
void stk_gguf_put_tensor(stk_gguf_writer *w, const char *name, uint32_t type, uint32_t n_dim, const uint64_t *dim,
                         uint64_t bytes);

/* The finished head, padded to where the first tensor starts; it belongs to the writer. STK_ENOMEM. */
int stk_gguf_write_head(stk_gguf_writer *w, uint32_t version, const uint8_t **data, size_t *bytes) STK_CHECKED;
void stk_gguf_write_fini(stk_gguf_writer *w);

#endif
