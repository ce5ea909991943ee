/* pack_check: all of a packed model against the sums of its seal. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "packed.h"
#include "pieces.h"

enum { CHUNK_BYTES = 4 << 20, NAME_BYTES = 96 };

/* A part of what one sum is over. */
typedef struct chunk {
    uint64_t offset, bytes;
    uint64_t sum;     /* its number */
    uint64_t of;      /* bytes of the whole */
    const char *name; /* of a dense tensor, or NULL: an expert */
} chunk;

typedef struct check {
    const stk_model *model;
    stk_pack_options o;
    stk_packed_seal *seal;
    chunk *chunks; /* [n] */
    uint64_t n, cap, n_sum, most, total_bytes, done_bytes;
    uint64_t sum; /* of what is being read */
} check;

static int add(check *c, const char *name, uint64_t offset, uint64_t bytes) {
    for (uint64_t from = 0; from < bytes; from += CHUNK_BYTES) {
        if (c->n == c->cap) {
            uint64_t cap = STK_MAX(2 * c->cap, (uint64_t)1024);
            chunk *grown = realloc(c->chunks, cap * sizeof *grown);
            if (!grown) return stk_fail(STK_ENOMEM, "out of memory for the list of weights");
            c->chunks = grown;
            c->cap = cap;
        }
        uint64_t n = STK_MIN(bytes - from, (uint64_t)CHUNK_BYTES);
        c->chunks[c->n++] = (chunk){offset + from, n, c->n_sum, bytes, name};
        c->most = STK_MAX(c->most, n);
    }
    c->n_sum++;
    c->total_bytes += bytes;
    return STK_OK;
}

static int add_dense(void *user, const char *name, const stk_weight *w) {
    (void)name;
    return add(user, w->name, w->offset, w->bytes);
}

static int add_all(check *c) {
    const stk_model *m = c->model;
    STK_TRY(stk_packed_each_dense(m, add_dense, c));
    for (uint32_t l = 0; l < m->hp.n_layer; l++) {
        uint64_t bytes = stk_catalogue_class(m->experts, stk_catalogue_layer_class(m->experts, l))->slot_bytes;
        for (uint32_t e = 0; e < m->hp.n_expert; e++)
            STK_TRY(add(c, NULL, stk_catalogue_extent(m->experts, l, e, STK_GATE).offset, bytes));
    }
    return STK_OK;
}

static uint32_t reads_of(void *user, uint64_t i, const stk_io *io, stk_piece_read *reads) {
    const check *c = user;
    (void)stk_piece_cut(io, 0, c->chunks[i].offset, c->chunks[i].bytes, reads);
    return 1;
}

static int damaged(const check *c, const chunk *k) {
    char name[NAME_BYTES];
    uint64_t n_expert = c->model->hp.n_expert, expert = k->sum - (c->n_sum - n_expert * c->model->hp.n_layer);
    if (k->name)
        snprintf(name, sizeof name, "tensor %s", k->name);
    else
        snprintf(name, sizeof name, "expert %" PRIu64 " of layer %" PRIu64, expert % n_expert, expert / n_expert);
    return stk_fail(STK_EFORMAT, "%s: %s, before byte %" PRIu64 ", is damaged; pack the model anew",
                    stk_gguf_path(c->model->gguf, 0), name, k->offset + k->bytes);
}

static int take_chunk(void *user, uint64_t i, const stk_io *io, uint8_t *buffer) {
    check *c = user;
    const chunk *k = &c->chunks[i];
    stk_piece_read read;
    uint64_t skip = stk_piece_cut(io, 0, k->offset, k->bytes, &read);
    if (i == 0 || c->chunks[i - 1].sum != k->sum) c->sum = k->of;
    c->sum = stk_hash(c->sum, buffer + skip, k->bytes);
    bool last = i + 1 == c->n || c->chunks[i + 1].sum != k->sum;
    if (last && c->sum != c->seal->sum[k->sum]) return damaged(c, k);
    c->done_bytes += k->bytes;
    if (c->o.progress && c->o.progress(c->o.progress_user, "checking", c->done_bytes, c->total_bytes))
        return stk_fail(STK_ECANCELED, "checking was cancelled");
    return STK_OK;
}

int stk_pack_check(const stk_model *model, const stk_pack_options *options) {
    if (!model) return stk_fail(STK_EINVAL, "stk_pack_check: an argument is NULL");
    if (!model->packed)
        return stk_fail(STK_EINVAL, "%s: not a packed model; there is nothing to compare with", stk_gguf_path(model->gguf, 0));
    check c = {.model = model};
    int rc = stk_pack_options_take(&c.o, options);
    if (rc == STK_OK) rc = stk_packed_read_seal(model, &c.seal);
    if (rc == STK_OK) rc = add_all(&c);
    if (rc == STK_OK)
        rc = stk_pieces_run(&(stk_pieces){c.n, c.most + 2 * STK_DIRECT_ALIGN, &c, reads_of, take_chunk}, model->gguf, c.o.io);
    free(c.chunks);
    free(c.seal);
    return rc;
}
