/* warm: the bytes of the file. */
#include "warm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/out_file.h"

enum { VERSION = 1, ROUTER_BYTES = 4096 };
static const char magic[8] = "stkwarm";
#define MAX_BYTES ((uint64_t)1 << 32) /* far above what any model keeps */

typedef struct head {
    char magic[8];
    uint32_t version, reserved;
    uint64_t model_id, cache_bytes, predictor_bytes;
    char model[STK_WARM_NAME_BYTES], predictor[STK_WARM_NAME_BYTES];
} head;

/* ---- Which model -------------------------------------------------------------------------------------------------------- */

/* Other weights in the same places are another model: its routers tell. */
static int hash_router(const stk_model *model, const stk_weight *w, uint64_t *h) {
    uint8_t bytes[ROUTER_BYTES];
    const char *path = stk_gguf_path(model->gguf, w->file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return stk_fail_errno(errno, "%s", path);
    size_t want = (size_t)STK_MIN(w->bytes, (uint64_t)sizeof bytes);
    ssize_t n = pread(fd, bytes, want, (off_t)w->offset);
    int errnum = n < 0 ? errno : EIO;
    close(fd);
    if (n != (ssize_t)want) return stk_fail_errno(errnum, "%s: router at byte %llu", path, (unsigned long long)w->offset);
    *h = stk_hash(*h, bytes, want);
    return STK_OK;
}

int stk_warm_model_id(const stk_model *model, uint64_t *id) {
    uint64_t h = stk_model_n_tensor(model);
    for (uint64_t i = 0; i < stk_model_n_tensor(model); i++) {
        stk_tensor_info t = {.struct_bytes = sizeof t};
        STK_TRY(stk_model_get_tensor(model, i, &t));
        const uint64_t numbers[] = {t.dim[0], t.dim[1], t.dim[2], t.dim[3], t.offset, t.bytes, t.file, t.type};
        h = stk_hash(stk_hash(h, t.name, strlen(t.name)), numbers, sizeof numbers);
    }
    for (uint32_t l = 0; l < model->hp.n_layer; l++)
        if (model->layers[l].router.n_rows) STK_TRY(hash_router(model, &model->layers[l].router, &h));
    *id = h;
    return STK_OK;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------------ */

static int damaged(const char *path, const char *how) {
    stk_log(STK_LOG_WARN, "%s: %s; the cache starts cold and the file is written anew", path, how);
    return 0;
}

/* 1: the file is in *data; 0: there is none or it is empty. */
static int read_all(const char *path, uint8_t **data, size_t *bytes) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? 0 : stk_fail_errno(errno, "%s", path);
    int rc = fstat(fd, &st) < 0 ? stk_fail_errno(errno, "%s", path) : STK_OK;
    if (rc >= 0 && (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > MAX_BYTES))
        rc = stk_fail(STK_EFORMAT, "%s: no file that a run has left to warm the next one", path);
    *bytes = rc >= 0 ? (size_t)st.st_size : 0;
    *data = *bytes ? malloc(*bytes) : NULL;
    if (*bytes && !*data) rc = stk_fail(STK_ENOMEM, "%s: out of memory for %zu bytes", path, *bytes);
    for (size_t at = 0; rc >= 0 && at < *bytes;) {
        ssize_t n = pread(fd, *data + at, *bytes - at, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) rc = n < 0 ? stk_fail_errno(errno, "%s", path) : stk_fail(STK_EIO, "%s: it became shorter", path);
        at += n > 0 ? (size_t)n : 0;
    }
    close(fd);
    return rc < 0 ? rc : *bytes > 0;
}

static int parse(stk_warm *warm, const char *path, size_t bytes, uint64_t model_id) {
    const uint8_t *data = warm->data;
    head h;
    uint64_t sum;
    if (memcmp(data, magic, STK_MIN(bytes, sizeof magic)) != 0)
        return stk_fail(STK_EFORMAT, "%s: no file that a run has left to warm the next one; name another", path);
    if (bytes < sizeof h + sizeof sum) return damaged(path, "it is cut off");
    memcpy(&h, data, sizeof h);
    memcpy(&sum, data + bytes - sizeof sum, sizeof sum);
    if (h.version != VERSION) return damaged(path, "it is of another version");
    if (sum != stk_hash(bytes, data, bytes - sizeof sum)) return damaged(path, "it is damaged or cut off");
    uint64_t left = bytes - sizeof h - sizeof sum;
    if (h.cache_bytes > left || h.predictor_bytes != left - h.cache_bytes || h.model[sizeof h.model - 1] ||
        h.predictor[sizeof h.predictor - 1])
        return damaged(path, "its sizes contradict one another");
    if (h.model_id != model_id)
        return stk_fail(STK_EINVAL, "%s belongs to another model%s%s; name another file, or remove it", path,
                        h.model[0] ? ": " : "", h.model);
    memcpy(warm->predictor, h.predictor, sizeof h.predictor);
    warm->cache = data + sizeof h;
    warm->cache_bytes = h.cache_bytes;
    warm->predictor_state = data + sizeof h + h.cache_bytes;
    warm->predictor_bytes = h.predictor_bytes;
    return 1;
}

int stk_warm_read(stk_warm *warm, const char *path, uint64_t model_id) {
    size_t bytes = 0;
    uint8_t *data = NULL;
    *warm = (stk_warm){.data = NULL};
    int rc = read_all(path, &data, &bytes);
    warm->data = data;
    return rc > 0 ? parse(warm, path, bytes, model_id) : rc;
}

void stk_warm_close(stk_warm *warm) {
    free(warm->data);
    *warm = (stk_warm){.data = NULL};
}

/* ---- Writing ------------------------------------------------------------------------------------------------------------ */

/* The whole file in memory: its checksum stands at its end. */
static uint8_t *encode(const stk_warm *warm, uint64_t model_id, const char *model_name, size_t *bytes) {
    head h = {
        .version = VERSION, .model_id = model_id, .cache_bytes = warm->cache_bytes, .predictor_bytes = warm->predictor_bytes};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.model, model_name, STK_MIN(strlen(model_name), sizeof h.model - 1));
    memcpy(h.predictor, warm->predictor, sizeof h.predictor);
    uint64_t sum;
    *bytes = sizeof h + (size_t)(warm->cache_bytes + warm->predictor_bytes) + sizeof sum;
    uint8_t *data = malloc(*bytes);
    if (!data) return NULL;
    memcpy(data, &h, sizeof h);
    memcpy(data + sizeof h, warm->cache, (size_t)warm->cache_bytes);
    if (warm->predictor_bytes) memcpy(data + sizeof h + warm->cache_bytes, warm->predictor_state, (size_t)warm->predictor_bytes);
    sum = stk_hash(*bytes, data, *bytes - sizeof sum);
    memcpy(data + *bytes - sizeof sum, &sum, sizeof sum);
    return data;
}

int stk_warm_write(const stk_warm *warm, const char *path, uint64_t model_id, const char *model_name) {
    size_t bytes;
    stk_out_file *file = NULL;
    uint8_t *data = encode(warm, model_id, model_name, &bytes);
    int rc = data ? stk_out_file_open(&file, path, bytes) : stk_fail(STK_ENOMEM, "%s: out of memory", path);
    if (rc >= 0) rc = stk_out_file_put(file, data, bytes);
    if (rc >= 0) rc = stk_out_file_commit(file);
    stk_out_file_close(&file);
    free(data);
    return rc;
}
