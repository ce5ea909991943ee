/*
 * gguf_build: makes GGUF files for tests: whole or split, valid or, by the raw calls and by patching the image, not.
 *
 * For tests alone: failures abort. Keys, names and data are copied.
 */
#ifndef STK_TEST_GGUF_BUILD_H
#define STK_TEST_GGUF_BUILD_H

#include "src/model/gguf.h"

typedef struct gguf_build gguf_build;

gguf_build *gguf_build_open(void);
void gguf_build_close(gguf_build *b);
/* 3 and 32 unless set; a set alignment also becomes the key general.alignment. */
void gguf_build_version(gguf_build *b, uint32_t version);
void gguf_build_alignment(gguf_build *b, uint32_t alignment);

void gguf_build_u32(gguf_build *b, const char *key, uint32_t value);
void gguf_build_f32(gguf_build *b, const char *key, float value);
void gguf_build_bool(gguf_build *b, const char *key, bool value);
void gguf_build_str(gguf_build *b, const char *key, const char *value);
/* An array of plain items, or of n strings when data is `const char *[n]`. */
void gguf_build_array(gguf_build *b, const char *key, enum stk_gguf_type item, uint64_t n, const void *data);
/* Any type number and any bytes behind it. */
void gguf_build_raw(gguf_build *b, const char *key, uint32_t type, const void *bytes, uint64_t n_byte);

/* data NULL: bytes that depend on the name. dim ends at the first 0. */
void gguf_build_tensor(gguf_build *b, const char *name, uint32_t type, const uint64_t dim[4], const void *data);

/* The file, malloced. header_bytes, if not NULL: where its directory ends. */
unsigned char *gguf_build_image(const gguf_build *b, uint64_t *bytes, uint64_t *header_bytes);
void gguf_build_write(const gguf_build *b, const char *path);
/* As n_part files STEM-0000i-of-0000n.gguf: the tensors in equal runs, the metadata in the first. */
void gguf_build_write_split(const gguf_build *b, const char *stem, uint32_t n_part);

/* A path in a directory of this process, which is removed when it exits. The last four results stay valid. */
const char *test_path(const char *name);
void test_write_file(const char *path, const void *bytes, uint64_t n);

#endif
