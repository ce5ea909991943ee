/* packed: what a packed file must be like, and its seal. */
#include "packed.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 96, CHUNK_BYTES = 256 << 10 };

int stk_packed_version(const stk_gguf *g, uint32_t *version) {
    stk_gguf_string arch;
    *version = 0;
    int found = stk_gguf_str(g, "general.architecture", &arch);
    if (found != 1 || strcmp(arch.text, STK_PACKED_ARCH) != 0) return STK_OK; /* what else it may be, others say */
    found = stk_gguf_u32(g, STK_PACKED_VERSION, version);
    if (found < 0) return found;
    if (found == 0 || *version == 0)
        return stk_fail(STK_EFORMAT, "%s: a packed model without %s; pack it anew", stk_gguf_path(g, 0), STK_PACKED_VERSION);
    if (*version != STK_PACKED_FORMAT)
        return stk_fail(STK_EUNSUPPORTED,
                        "%s: packed in form %" PRIu32 " (%s); this build reads form %d: pack the model anew with it",
                        stk_gguf_path(g, 0), *version, STK_PACKED_VERSION, STK_PACKED_FORMAT);
    if (stk_gguf_n_file(g) != 1)
        return stk_fail(STK_EFORMAT, "%s: a packed model in %" PRIu32 " parts; it is always one file", stk_gguf_path(g, 0),
                        stk_gguf_n_file(g));
    return STK_OK;
}

bool stk_packed_in_stripes(const stk_weight *w) {
    return w->n_rows > 1 && stk_matrix_bytes(w->type, w->n_rows, w->n_in) == w->bytes;
}

/* The types of a layer's matrices. */
static int find_types(const stk_gguf *g, uint32_t l, stk_layer_experts *layer) {
    for (uint32_t p = 0; p < STK_N_PART; p++) {
        uint32_t type = 0;
        int found = stk_gguf_u32_at(g, STK_PACKED_TYPES, (uint64_t)l * STK_N_PART + p, &type);
        if (found < 0) return found;
        const stk_type_info *info = found ? stk_type_info_get(type) : NULL;
        if (!info || !info->has_kernel)
            return stk_fail(STK_EFORMAT, "%s: %s says nothing, or no type that has a kernel, of layer %" PRIu32,
                            stk_gguf_path(g, 0), STK_PACKED_TYPES, l);
        layer->type[p] = (enum stk_type)type;
    }
    return STK_OK;
}

int stk_packed_find_experts(const stk_model *model, uint32_t l, stk_layer_experts *layer, stk_extent *extents) {
    const stk_gguf *g = model->gguf;
    char name[NAME_BYTES];
    stk_class cls;
    snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", l, STK_PACKED_EXPERTS);
    const stk_gguf_tensor *t = stk_gguf_find_tensor(g, name);
    if (!t) return stk_fail(STK_EFORMAT, "%s: tensor %s is missing", stk_gguf_path(g, 0), name);
    STK_TRY(find_types(g, l, layer));
    int rc = stk_class_packed(layer, &cls);
    if (rc < 0) return stk_fail_in(rc, "%s: %s", stk_gguf_path(g, 0), name);
    if (t->type != STK_PACKED_TYPE_I8 || t->dim[0] != cls.slot_bytes || t->dim[1] != model->hp.n_expert || t->dim[2] != 1 ||
        t->dim[3] != 1)
        return stk_fail(STK_EFORMAT,
                        "%s: tensor %s is of type %" PRIu32 ", [%" PRIu64 ", %" PRIu64 ", %" PRIu64 "]; expected I8 [%" PRIu64
                        ", %" PRIu32 "], bytes of an expert by experts",
                        stk_gguf_path(g, 0), name, t->type, t->dim[0], t->dim[1], t->dim[2], cls.slot_bytes, model->hp.n_expert);
    if (t->offset % STK_PACKED_ALIGN)
        return stk_fail(STK_EFORMAT, "%s: tensor %s starts at byte %" PRIu64 ", expected a multiple of %d", stk_gguf_path(g, 0),
                        name, t->offset, STK_PACKED_ALIGN);
    for (uint32_t e = 0; e < model->hp.n_expert; e++) extents[e] = (stk_extent){t->file, t->offset + e * cls.slot_bytes};
    layer->packed = extents;
    return STK_OK;
}

static int each_of(const stk_model *model, int64_t l, const stk_tensor_rule *rules, uint32_t n, const void *object,
                   stk_packed_visit visit, void *user) {
    for (uint32_t r = 0; r < n; r++) {
        const stk_weight *w = (const stk_weight *)((const char *)object + rules[r].field);
        char name[NAME_BYTES];
        if (w->n_rows == 0 || (model->tied && w == &model->output)) continue;
        if (l < 0)
            snprintf(name, sizeof name, "%s", rules[r].name);
        else
            snprintf(name, sizeof name, "blk.%" PRId64 ".%s", l, rules[r].name);
        STK_TRY(visit(user, name, w));
    }
    return STK_OK;
}

int stk_packed_each_dense(const stk_model *model, stk_packed_visit visit, void *user) {
    const stk_family *f = model->family;
    STK_TRY(each_of(model, -1, f->model_rules, f->n_model_rule, model, visit, user));
    for (uint32_t l = 0; l < model->hp.n_layer; l++)
        STK_TRY(each_of(model, l, f->layer_rules, f->n_layer_rule, &model->layers[l], visit, user));
    return STK_OK;
}

/* ---- The seal ----------------------------------------------------------------------------------------------------------- */

static int count_one(void *user, const char *name, const stk_weight *weight) {
    (void)name;
    (void)weight;
    ++*(uint64_t *)user;
    return STK_OK;
}

uint64_t stk_packed_n_sum(const stk_model *model) {
    uint64_t n = 0;
    int rc = stk_packed_each_dense(model, count_one, &n);
    (void)rc; /* counting does not fail */
    return n + (uint64_t)model->hp.n_layer * model->hp.n_expert;
}

static int read_at(int fd, const char *path, void *dst, uint64_t bytes, uint64_t offset) {
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)dst + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return stk_fail_errno(n < 0 ? errno : EIO, "%s: byte %" PRIu64, path, offset + done);
        done += (uint64_t)n;
    }
    return STK_OK;
}

/* The sum over the head, a chunk after another as stk_hash goes on: each but the last is a multiple of 8 bytes. */
static int hash_head(int fd, const stk_gguf *g, uint64_t *sum) {
    uint64_t left = stk_gguf_head_bytes(g, 0), offset = 0;
    uint8_t *chunk = malloc(CHUNK_BYTES);
    if (!chunk) return stk_fail(STK_ENOMEM, "%s: the system refused memory", stk_gguf_path(g, 0));
    int rc = STK_OK;
    for (*sum = left; left > 0 && rc == STK_OK;) {
        uint64_t n = STK_MIN(left, (uint64_t)CHUNK_BYTES);
        rc = read_at(fd, stk_gguf_path(g, 0), chunk, n, offset);
        if (rc == STK_OK) *sum = stk_hash(*sum, chunk, n);
        offset += n;
        left -= n;
    }
    free(chunk);
    return rc;
}

static int check_seal(const stk_model *model, int fd, const stk_packed_seal *seal) {
    const char *path = stk_gguf_path(model->gguf, 0);
    uint64_t head = 0;
    if (seal->word != STK_PACKED_SEAL_WORD || seal->n != stk_packed_n_sum(model))
        return stk_fail(STK_EFORMAT, "%s: tensor %s is no seal of this model; pack it anew", path, STK_PACKED_SEAL);
    STK_TRY(hash_head(fd, model->gguf, &head));
    if (head == seal->head) return STK_OK;
    return stk_fail(STK_EFORMAT, "%s: metadata or directory are damaged (their sum is not that of %s); pack the model anew", path,
                    STK_PACKED_SEAL);
}

int stk_packed_read_seal(const stk_model *model, stk_packed_seal **out) {
    const stk_gguf *g = model->gguf;
    const char *path = stk_gguf_path(g, 0);
    const stk_gguf_tensor *t = stk_gguf_find_tensor(g, STK_PACKED_SEAL);
    uint64_t bytes = sizeof(stk_packed_seal) + stk_packed_n_sum(model) * sizeof(uint64_t);
    *out = NULL;
    if (!t || t->type != STK_PACKED_TYPE_I8 || t->bytes != bytes)
        return stk_fail(STK_EFORMAT, "%s: tensor %s is missing or not I8 [%" PRIu64 "]; pack the model anew", path,
                        STK_PACKED_SEAL, bytes);
    stk_packed_seal *seal = malloc(bytes);
    if (!seal) return stk_fail(STK_ENOMEM, "%s: the system refused memory for its seal", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd < 0 ? stk_fail_errno(errno, "%s", path) : read_at(fd, path, seal, bytes, t->offset);
    if (rc == STK_OK) rc = check_seal(model, fd, seal);
    if (fd >= 0) close(fd);
    if (rc < 0)
        free(seal);
    else
        *out = seal;
    return rc;
}
