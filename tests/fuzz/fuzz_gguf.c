/* Fuzz target: any bytes as a GGUF file, opened as a directory and as a model. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/model/gguf.h"
#include "src/stoker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const stk_gguf *g) {
    char text[256];
    for (uint64_t i = 0; i < stk_gguf_n_value(g); i++) {
        const stk_gguf_value *v = stk_gguf_value_at(g, i);
        stk_gguf_format(v, text, sizeof text);
        if (stk_gguf_find(g, v->key.text) != v) abort();
    }
    for (uint64_t i = 0; i < stk_gguf_n_tensor(g); i++) {
        const stk_gguf_tensor *t = stk_gguf_tensor_at(g, i);
        if (t->offset + t->bytes > stk_gguf_file_bytes(g, t->file)) abort();
    }
}

static void use(const stk_model *m) {
    stk_model_info info = {.struct_bytes = sizeof info};
    if (stk_model_get_info(m, &info) < 0) abort();
    int32_t ids[64];
    int64_t n = stk_tokenize(m, "a b\xff\xc3\xa9 1234\n", 12, STK_TOKENIZE_BOS | STK_TOKENIZE_SPECIAL, ids, STK_ARRAY_LEN(ids));
    const char *bytes;
    for (int64_t i = 0; i < STK_MIN(n, (int64_t)STK_ARRAY_LEN(ids)); i++) {
        if (stk_token_bytes(m, ids[i], 1, &bytes) < 0) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[32];
    int fd = memfd_create("gguf", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    stk_gguf *g = NULL;
    stk_model *m = NULL;
    if (stk_gguf_open(&g, path) == 0) walk(g);
    if (stk_model_open(&m, path) == 0) use(m);
    stk_model_close(&m);
    stk_gguf_close(&g);
    close(fd);
    return 0;
}
