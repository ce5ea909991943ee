/*
 * synth: writes a model that was never trained. Small tensors are drawn weight by weight, each from a seed of its own; of large
 * ones every expert, or every piece of 8 MiB, is cut at a random place out of a pool of random blocks made once for each format
 * and size of weights, so that the drive and not the generator sets the pace.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/model/gguf_write.h"
#include "src/numeric.h"
#include "src/out_file.h"
#include "synth_blocks.h"
#include "synth_model.h"
#include "synth_route.h"
#include "synth_vocab.h"

enum { MAX_LAYER = 1024, MAX_VOCAB = 1 << 24, GGUF_VERSION = 3, MAX_POOL = 32 };
enum { SCRATCH_BYTES = 1 << 20, POOL_BYTES = 16 << 20, PIECE_BYTES = 8 << 20 };

/* Logits of what follows, where all others are 0. */
static const float HEAD_LOGIT = 32.0f;

typedef struct pool {
    uint32_t type;
    float std;
    uint64_t n_block;
    uint8_t *blocks;
} pool;

typedef struct synth {
    stk_synth_options o;
    stk_synth_shape shape;
    const stk_synth_mix *mix;
    stk_synth_list list;
    stk_gguf_writer head;
    stk_out_file *file;
    uint64_t total_bytes;
    uint8_t *scratch; /* [SCRATCH_BYTES] */
    pool pools[MAX_POOL];
    uint32_t n_pool;
    stk_synth_rng cuts; /* where pools are cut */
    stk_synth_route *route;
    stk_synth_signs signs;
    int8_t *rows; /* [n_token, n_embd] of the route */
} synth;

void stk_synth_options_default(stk_synth_options *o, size_t struct_bytes) {
    stk_struct_give(o, struct_bytes, &(stk_synth_options){0}, sizeof *o);
}

/* ---- Bytes -------------------------------------------------------------------------------------------------------------- */

static int put(synth *s, const void *data, size_t bytes) {
    STK_TRY(stk_out_file_put(s->file, data, bytes));
    if (s->o.progress && s->o.progress(s->o.progress_user, "writing", stk_out_file_bytes(s->file), s->total_bytes))
        return stk_fail(STK_ECANCELED, "writing the model was canceled");
    return STK_OK;
}

/* n weights of the tensor, drawn one by one. */
static int put_drawn(synth *s, const stk_synth_tensor *t, stk_synth_rng *rng, float std, uint64_t n) {
    const stk_type_info *info = stk_type_info_get(t->type);
    uint64_t most = SCRATCH_BYTES / info->block_bytes * info->block;
    while (n) {
        uint64_t now = STK_MIN(n, most);
        stk_synth_fill(rng, t->type, std, now, s->scratch);
        for (uint64_t i = 0; t->mean != 0.0f && i < now; i++) { /* norms are F32 */
            float x;
            memcpy(&x, s->scratch + 4 * i, 4);
            x += t->mean;
            memcpy(s->scratch + 4 * i, &x, 4);
        }
        STK_TRY(put(s, s->scratch, now / info->block * info->block_bytes));
        n -= now;
    }
    return STK_OK;
}

static int find_pool(synth *s, uint32_t type, float std, const pool **out) {
    const stk_type_info *info = stk_type_info_get(type);
    for (uint32_t i = 0; i < s->n_pool; i++) {
        *out = &s->pools[i];
        if ((*out)->type == type && (*out)->std == std) return STK_OK;
    }
    if (s->n_pool == MAX_POOL) return stk_fail(STK_EINVAL, "more than %d kinds of large tensors", MAX_POOL);
    pool *p = &s->pools[s->n_pool];
    *p = (pool){type, std, POOL_BYTES / info->block_bytes, malloc(POOL_BYTES)};
    if (!p->blocks) return stk_fail(STK_ENOMEM, "out of memory for random weights");
    s->n_pool++;
    stk_synth_rng rng;
    stk_synth_seed(&rng, stk_synth_seed_of(s->o.seed + type, "pool") ^ stk_f32_bits(std));
    stk_synth_fill(&rng, type, std, p->n_block * info->block, p->blocks);
    *out = p;
    return STK_OK;
}

/* n weights cut out of a pool. */
static int put_cut(synth *s, const pool *p, uint64_t n) {
    const stk_type_info *info = stk_type_info_get(p->type);
    uint64_t n_block = n / info->block, most = PIECE_BYTES / info->block_bytes;
    while (n_block) {
        uint64_t now = STK_MIN(n_block, most), from = stk_synth_below(&s->cuts, (uint32_t)(p->n_block - now + 1));
        STK_TRY(put(s, p->blocks + from * info->block_bytes, now * info->block_bytes));
        n_block -= now;
    }
    return STK_OK;
}

static int put_random(synth *s, const stk_synth_tensor *t) {
    const pool *p = NULL;
    if (t->bytes > POOL_BYTES / 2) {
        STK_TRY(find_pool(s, t->type, t->std, &p));
        for (uint64_t m = 0; m < t->dim[2]; m++) STK_TRY(put_cut(s, p, t->dim[0] * t->dim[1]));
        return STK_OK;
    }
    stk_synth_rng rng;
    stk_synth_seed(&rng, stk_synth_seed_of(s->o.seed, t->name));
    return put_drawn(s, t, &rng, t->std, t->dim[0] * t->dim[1] * t->dim[2]);
}

/* ---- A model that follows a trace --------------------------------------------------------------------------------------- */

static int put_signs(synth *s, const stk_synth_tensor *t, float c, uint32_t token) {
    const stk_type_info *info = stk_type_info_get(t->type);
    stk_synth_fill_signs((enum stk_type)t->type, c, s->rows + (size_t)token * t->dim[0], t->dim[0], s->scratch);
    return put(s, s->scratch, t->dim[0] / info->block * info->block_bytes);
}

/* Entries beyond the trace's tokens take theirs in turn, so that any text is routed as real text was. */
static int put_embedding(synth *s, const stk_synth_tensor *t) {
    uint32_t n = stk_synth_route_n_token(s->route);
    for (uint64_t v = 0; v < t->dim[1]; v++) STK_TRY(put_signs(s, t, 1.0f, (uint32_t)(v % n)));
    return STK_OK;
}

static int put_head(synth *s, const stk_synth_tensor *t) {
    uint32_t n = stk_synth_route_n_token(s->route);
    float c = HEAD_LOGIT / (float)t->dim[0];
    for (uint32_t v = 0; v < n; v++) STK_TRY(put_signs(s, t, c, (v + n - 1) % n));
    stk_synth_rng rng;
    stk_synth_seed(&rng, stk_synth_seed_of(s->o.seed, t->name));
    return put_drawn(s, t, &rng, 0.0f, t->dim[0] * (t->dim[1] - n));
}

static int put_router(synth *s, const stk_synth_tensor *t) {
    float *w = malloc(t->bytes);
    if (!w) return stk_fail(STK_ENOMEM, "out of memory for %s", t->name);
    stk_synth_route_router(s->route, t->moe_layer, s->rows, s->shape.n_embd, w);
    int rc = put(s, w, t->bytes);
    free(w);
    return rc;
}

/* Takes the routing, and what of the shape is the trace's. */
static int open_route(synth *s) {
    stk_synth_shape *shape = &s->shape;
    if (s->o.n_layer) return stk_fail(STK_EINVAL, "the number of layers is the trace's: give none beside it");
    STK_TRY(stk_synth_signs_open(&s->signs, shape->n_embd));
    uint32_t n_max = STK_MIN(shape->n_embd, shape->n_vocab - 1); /* the last entry ends a text */
    STK_TRY(stk_synth_route_open(&s->route, s->o.route_from, n_max, s->o.seed));
    if (stk_synth_route_n_layer(s->route) > MAX_LAYER)
        return stk_fail(STK_EUNSUPPORTED, "%s: a trace of %" PRIu32 " layers; at most %d are possible", s->o.route_from,
                        stk_synth_route_n_layer(s->route), MAX_LAYER);
    shape->n_layer = shape->n_dense_layer + stk_synth_route_n_layer(s->route);
    shape->n_expert = stk_synth_route_n_expert(s->route);
    shape->n_used = stk_synth_route_k(s->route);
    uint32_t n = stk_synth_route_n_token(s->route);
    s->rows = malloc((size_t)n * shape->n_embd);
    if (!s->rows) return stk_fail(STK_ENOMEM, "out of memory for %" PRIu32 " embeddings", n);
    for (uint32_t t = 0; t < n; t++) stk_synth_signs_row(&s->signs, t, s->rows + (size_t)t * shape->n_embd);
    return STK_OK;
}

/* ---- The model ---------------------------------------------------------------------------------------------------------- */

static int take_options(synth *s, const stk_synth_options *given) {
    stk_synth_options_default(&s->o, sizeof s->o);
    STK_TRY(stk_struct_take(&s->o, sizeof s->o, given, "synth options"));
    if (!s->o.shape || !s->o.type) return stk_fail(STK_EINVAL, "a synthetic model needs a shape and a type");
    STK_TRY(stk_synth_shape_find(&s->shape, s->o.shape));
    STK_TRY(stk_synth_mix_find(&s->mix, s->o.type));
    if (s->o.n_layer > MAX_LAYER || (s->o.n_layer && s->o.n_layer <= s->shape.n_dense_layer))
        return stk_fail(STK_EINVAL, "%" PRIu32 " layers; %s takes %" PRIu32 " to %d", s->o.n_layer, s->o.shape,
                        s->shape.n_dense_layer + 1, MAX_LAYER);
    if (s->o.n_vocab && (s->o.n_vocab < STK_SYNTH_MIN_VOCAB || s->o.n_vocab > MAX_VOCAB))
        return stk_fail(STK_EINVAL, "a vocabulary of %" PRIu32 "; %d to %d are possible", s->o.n_vocab, STK_SYNTH_MIN_VOCAB,
                        MAX_VOCAB);
    if (s->o.n_layer) s->shape.n_layer = s->o.n_layer;
    if (s->o.n_vocab) s->shape.n_vocab = s->o.n_vocab;
    return STK_OK;
}

static int put_tensor(synth *s, const stk_synth_tensor *t) {
    static const uint8_t zeros[STK_GGUF_WRITE_ALIGN];
    switch (t->kind) {
    case STK_SYNTH_RANDOM: STK_TRY(put_random(s, t)); break;
    case STK_SYNTH_EMBEDDING: STK_TRY(put_embedding(s, t)); break;
    case STK_SYNTH_ROUTER: STK_TRY(put_router(s, t)); break;
    case STK_SYNTH_HEAD: STK_TRY(put_head(s, t)); break;
    }
    return put(s, zeros, (size_t)(stk_align_up(t->bytes, STK_GGUF_WRITE_ALIGN) - t->bytes));
}

/* The file must not take the place of the trace that it is made from. */
static int check_target(const synth *s, const char *path) {
    struct stat a, b;
    if (!s->o.route_from || stat(path, &a) != 0 || stat(s->o.route_from, &b) != 0) return STK_OK;
    if (a.st_dev != b.st_dev || a.st_ino != b.st_ino) return STK_OK;
    return stk_fail(STK_EINVAL, "%s: that is the trace; name another file", path);
}

static int write_model(synth *s, const char *path) {
    const uint8_t *head;
    size_t head_bytes;
    char name[128];
    STK_TRY(check_target(s, path));
    if (s->o.route_from) STK_TRY(open_route(s));
    STK_TRY(stk_synth_list_open(&s->list, &s->shape, s->mix, s->route != NULL));
    snprintf(name, sizeof name, "synthetic %s %s", s->o.shape, s->o.type);
    stk_synth_put_keys(&s->head, &s->shape, s->mix, name);
    for (uint64_t i = 0; i < s->list.n; i++) {
        const stk_synth_tensor *t = &s->list.tensors[i];
        stk_gguf_put_tensor(&s->head, t->name, t->type, t->n_dim, t->dim, t->bytes);
    }
    STK_TRY(stk_gguf_write_head(&s->head, GGUF_VERSION, &head, &head_bytes));
    s->total_bytes = head_bytes + s->head.data_bytes;
    s->scratch = malloc(SCRATCH_BYTES);
    if (!s->scratch) return stk_fail(STK_ENOMEM, "out of memory for random weights");
    STK_TRY(stk_out_file_open(&s->file, path, s->total_bytes));
    STK_TRY(put(s, head, head_bytes));
    stk_synth_seed(&s->cuts, stk_synth_seed_of(s->o.seed, "cuts"));
    for (uint64_t i = 0; i < s->list.n; i++) STK_TRY(put_tensor(s, &s->list.tensors[i]));
    return stk_out_file_commit(s->file);
}

int stk_synth(const char *path, const stk_synth_options *options) {
    if (!path || !options) return stk_fail(STK_EINVAL, "a synthetic model needs a path and options");
    synth *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "out of memory for a model");
    int rc = take_options(s, options);
    if (rc == STK_OK) rc = write_model(s, path);
    stk_out_file_close(&s->file);
    stk_gguf_write_fini(&s->head);
    stk_synth_list_close(&s->list);
    stk_synth_route_close(&s->route);
    stk_synth_signs_close(&s->signs);
    for (uint32_t i = 0; i < s->n_pool; i++) free(s->pools[i].blocks);
    free(s->rows);
    free(s->scratch);
    free(s);
    return rc;
}
