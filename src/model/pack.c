/*
 * pack: writes a packed model (packed.h) of a plain one. Dense weights go through in chunks of whole stripes, experts one by one,
 * at the drive's speed: the next ones are being read and the last ones written while one is brought into its layout.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_write.h"
#include "packed.h"
#include "pieces.h"
#include "src/out_file.h"

enum { GGUF_VERSION = 3, CHUNK_BYTES = 4 << 20, NAME_BYTES = 96 };

/* What is read at once: rows or bytes of a dense weight, or an expert. */
typedef struct piece {
    const stk_weight *weight; /* NULL: an expert */
    uint64_t from, bytes;     /* of the weight, as it is stored in both files */
    bool last;                /* of the weight */
    uint32_t layer, expert;
} piece;

typedef struct packer {
    const stk_model *model;
    stk_pack_options o;
    stk_gguf_writer head;
    stk_out_file *file;
    uint64_t total_bytes;
    piece *pieces; /* [n] */
    uint64_t n, cap, buffer_bytes;
    stk_packed_seal *seal;
    uint64_t n_sum; /* so far */
    void *scratch;  /* for packing */
    uint64_t scratch_bytes;
    uint64_t out_at; /* of a chunk's stripes in its buffer */
} packer;

void stk_pack_options_default(stk_pack_options *o, size_t struct_bytes) {
    stk_struct_give(o, struct_bytes, &(stk_pack_options){0}, sizeof *o);
}

/* ---- The head ----------------------------------------------------------------------------------------------------------- */

/* Keys that describe the file and not the model. */
static bool is_of_file(const char *key) {
    return strcmp(key, "general.architecture") == 0 || strcmp(key, "general.alignment") == 0 || strncmp(key, "split.", 6) == 0;
}

static const stk_class *class_of(const stk_model *m, uint32_t layer) {
    return stk_catalogue_class(m->experts, stk_catalogue_layer_class(m->experts, layer));
}

static void put_keys(packer *k) {
    const stk_model *m = k->model;
    stk_gguf_writer *w = &k->head;
    w->align = STK_PACKED_ALIGN;
    stk_gguf_put_str(w, "general.architecture", STK_PACKED_ARCH);
    stk_gguf_put_u32(w, "general.alignment", STK_PACKED_ALIGN);
    stk_gguf_put_u32(w, STK_PACKED_VERSION, STK_PACKED_FORMAT);
    stk_gguf_put_str(w, STK_PACKED_ARCH_KEY, m->family->arch);
    stk_gguf_put_array(w, STK_PACKED_TYPES, STK_GGUF_I32, (uint64_t)m->hp.n_layer * STK_N_PART);
    for (uint32_t l = 0; l < m->hp.n_layer; l++)
        for (int p = 0; p < STK_N_PART; p++) stk_gguf_put_item_i32(w, (int32_t)class_of(m, l)->part[p].type);
    for (uint64_t i = 0; i < stk_gguf_n_value(m->gguf); i++) {
        const stk_gguf_value *v = stk_gguf_value_at(m->gguf, i);
        if (!is_of_file(v->key.text)) stk_gguf_put_copy(w, v);
    }
}

static int put_dense_tensor(void *user, const char *name, const stk_weight *w) {
    packer *k = user;
    const uint64_t dim[2] = {w->n_in, w->n_rows};
    stk_gguf_put_tensor(&k->head, name, w->type, w->n_rows > 1 ? 2 : 1, dim, w->bytes);
    return STK_OK;
}

/* How an expert of a layer will lie. */
static int packed_class(const stk_model *m, uint32_t layer, stk_class *out) {
    const stk_class *cls = class_of(m, layer);
    stk_layer_experts like = {.packed = NULL};
    for (int p = 0; p < STK_N_PART; p++) {
        like.type[p] = cls->part[p].type;
        like.n_rows[p] = cls->part[p].n_rows;
        like.n_in[p] = cls->part[p].n_in;
    }
    return stk_class_packed(&like, out);
}

static int put_tensors(packer *k) {
    const stk_model *m = k->model;
    STK_TRY(stk_packed_each_dense(m, put_dense_tensor, k));
    for (uint32_t l = 0; l < m->hp.n_layer; l++) {
        char name[NAME_BYTES];
        stk_class cls;
        STK_TRY(packed_class(m, l, &cls));
        const uint64_t dim[2] = {cls.slot_bytes, m->hp.n_expert};
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", l, STK_PACKED_EXPERTS);
        stk_gguf_put_tensor(&k->head, name, STK_PACKED_TYPE_I8, 2, dim, dim[0] * dim[1]);
    }
    uint64_t seal = sizeof *k->seal + k->seal->n * sizeof *k->seal->sum;
    stk_gguf_put_tensor(&k->head, STK_PACKED_SEAL, STK_PACKED_TYPE_I8, 1, &seal, seal);
    return STK_OK;
}

/* ---- The pieces --------------------------------------------------------------------------------------------------------- */

static int add_piece(packer *k, const piece *p) {
    if (k->n == k->cap) {
        uint64_t cap = STK_MAX(2 * k->cap, (uint64_t)1024);
        piece *grown = realloc(k->pieces, cap * sizeof *grown);
        if (!grown) return stk_fail(STK_ENOMEM, "out of memory for the list of weights");
        k->pieces = grown;
        k->cap = cap;
    }
    k->pieces[k->n++] = *p;
    return STK_OK;
}

static int add_dense(void *user, const char *name, const stk_weight *w) {
    packer *k = user;
    uint64_t unit = 8; /* bytes that a chunk is a multiple of */
    (void)name;
    if (stk_packed_in_stripes(w)) {
        unit = w->bytes / w->n_rows * STK_STRIPE;
        k->scratch_bytes = STK_MAX(k->scratch_bytes, stk_layout_scratch_bytes(w->type, w->n_in));
    }
    uint64_t chunk = STK_MAX(CHUNK_BYTES / unit, (uint64_t)1) * unit;
    for (uint64_t from = 0; from < w->bytes; from += chunk) {
        uint64_t bytes = STK_MIN(chunk, w->bytes - from);
        STK_TRY(add_piece(k, &(piece){.weight = w, .from = from, .bytes = bytes, .last = from + bytes == w->bytes}));
        k->out_at = STK_MAX(k->out_at, stk_align_up(bytes, STK_DIRECT_ALIGN) + STK_DIRECT_ALIGN);
    }
    return STK_OK;
}

static int list_pieces(packer *k) {
    const stk_model *m = k->model;
    k->scratch_bytes = stk_catalogue_scratch_bytes(m->experts);
    STK_TRY(stk_packed_each_dense(m, add_dense, k));
    k->buffer_bytes = 2 * k->out_at;
    for (uint32_t l = 0; l < m->hp.n_layer; l++) {
        k->buffer_bytes = STK_MAX(k->buffer_bytes, class_of(m, l)->slot_bytes);
        for (uint32_t e = 0; e < m->hp.n_expert; e++) STK_TRY(add_piece(k, &(piece){.layer = l, .expert = e}));
    }
    k->scratch = aligned_alloc(64, stk_align_up(k->scratch_bytes, 64));
    return k->scratch ? STK_OK : stk_fail(STK_ENOMEM, "out of memory for packing");
}

static void read_part(const stk_io *io, const stk_catalogue *cat, const piece *p, enum stk_part part, stk_part_read *r) {
    uint32_t file = stk_catalogue_extent(cat, p->layer, p->expert, part).file;
    stk_catalogue_read(cat, p->layer, p->expert, part, stk_io_align(io, file), r);
}

static uint32_t reads_of(void *user, uint64_t i, const stk_io *io, stk_piece_read *reads) {
    const packer *k = user;
    const piece *p = &k->pieces[i];
    if (p->weight) {
        (void)stk_piece_cut(io, p->weight->file, p->weight->offset + p->from, p->bytes, &reads[0]);
        return 1;
    }
    for (uint32_t part = 0; part < STK_N_PART; part++) {
        stk_part_read r;
        read_part(io, k->model->experts, p, part, &r);
        reads[part] = (stk_piece_read){r.file, r.file_offset, r.bytes, r.slot_offset};
    }
    return STK_N_PART;
}

/* ---- Writing ------------------------------------------------------------------------------------------------------------ */

static int put(packer *k, const void *data, uint64_t bytes) { return stk_out_file_put(k->file, data, (size_t)bytes); }

/* Zeros up to a multiple of the alignment, behind `bytes` that start at one. */
static int put_padding(packer *k, uint64_t bytes) {
    static const uint8_t zeros[STK_PACKED_ALIGN];
    return put(k, zeros, stk_align_up(bytes, STK_PACKED_ALIGN) - bytes);
}

static int put_chunk(packer *k, const piece *p, const stk_io *io, uint8_t *buffer) {
    const stk_weight *w = p->weight;
    stk_piece_read read;
    const uint8_t *out = buffer + stk_piece_cut(io, w->file, w->offset + p->from, p->bytes, &read);
    uint64_t *sum = &k->seal->sum[k->n_sum];
    if (stk_packed_in_stripes(w)) {
        stk_layout_pack(w->type, p->bytes / (w->bytes / w->n_rows), w->n_in, out, buffer + k->out_at, k->scratch);
        out = buffer + k->out_at;
    }
    if (p->from == 0) *sum = w->bytes;
    *sum = stk_hash(*sum, out, p->bytes);
    STK_TRY(put(k, out, p->bytes));
    if (!p->last) return STK_OK;
    k->n_sum++;
    return put_padding(k, w->bytes);
}

/* Packs the three parts in place and moves them together: none lies further behind than it did. */
static int put_expert(packer *k, const piece *p, const stk_io *io, uint8_t *slot) {
    const stk_catalogue *cat = k->model->experts;
    uint32_t c = stk_catalogue_layer_class(cat, p->layer);
    const stk_class *cls = stk_catalogue_class(cat, c);
    stk_class packed;
    STK_TRY(packed_class(k->model, p->layer, &packed));
    for (uint32_t part = 0; part < STK_N_PART; part++) {
        stk_part_read r;
        stk_part_share all;
        uint64_t at = packed.part[part].slot_offset, end = at + packed.part[part].packed_bytes,
                 next = part + 1 < STK_N_PART ? packed.part[part + 1].slot_offset : packed.slot_bytes;
        read_part(io, cat, p, part, &r);
        (void)stk_catalogue_share(cat, c, part, slot, r.rows_offset, 0, 1, NULL, &all);
        stk_catalogue_pack(cat, c, part, slot, r.rows_offset, &all, k->scratch);
        memmove(slot + at, slot + cls->part[part].slot_offset, end - at);
        memset(slot + end, 0, next - end);
    }
    k->seal->sum[k->n_sum++] = stk_hash(packed.slot_bytes, slot, packed.slot_bytes);
    return put(k, slot, packed.slot_bytes);
}

static int take_piece(void *user, uint64_t i, const stk_io *io, uint8_t *buffer) {
    packer *k = user;
    const piece *p = &k->pieces[i];
    STK_TRY(p->weight ? put_chunk(k, p, io, buffer) : put_expert(k, p, io, buffer));
    if (k->o.progress && k->o.progress(k->o.progress_user, "packing", stk_out_file_bytes(k->file), k->total_bytes))
        return stk_fail(STK_ECANCELED, "packing was cancelled");
    return STK_OK;
}

static int write_packed(packer *k, const char *path) {
    const uint8_t *head;
    size_t head_bytes;
    uint64_t n_sum = stk_packed_n_sum(k->model), seal_bytes = sizeof *k->seal + n_sum * sizeof *k->seal->sum;
    k->seal = calloc(1, seal_bytes);
    if (!k->seal) return stk_fail(STK_ENOMEM, "out of memory for the seal");
    k->seal->word = STK_PACKED_SEAL_WORD;
    k->seal->n = n_sum;
    put_keys(k);
    STK_TRY(put_tensors(k));
    STK_TRY(stk_gguf_write_head(&k->head, GGUF_VERSION, &head, &head_bytes));
    k->seal->head = stk_hash(k->head.head_bytes, head, k->head.head_bytes);
    k->total_bytes = head_bytes + k->head.data_bytes;
    STK_TRY(list_pieces(k));
    STK_TRY(stk_out_file_open(&k->file, path, k->total_bytes));
    STK_TRY(put(k, head, head_bytes));
    STK_TRY(stk_pieces_run(&(stk_pieces){k->n, k->buffer_bytes, k, reads_of, take_piece}, k->model->gguf, k->o.io));
    STK_TRY(put(k, k->seal, seal_bytes));
    STK_TRY(put_padding(k, seal_bytes));
    return stk_out_file_commit(k->file);
}

int stk_pack_options_take(stk_pack_options *o, const stk_pack_options *given) {
    stk_pack_options_default(o, sizeof *o);
    return given ? stk_struct_take(o, sizeof *o, given, "pack options") : STK_OK;
}

int stk_pack(const stk_model *model, const char *path, const stk_pack_options *options) {
    if (!model || !path) return stk_fail(STK_EINVAL, "packing needs a model and a path");
    packer *k = calloc(1, sizeof *k);
    if (!k) return stk_fail(STK_ENOMEM, "out of memory for packing");
    k->model = model;
    int rc = stk_pack_options_take(&k->o, options);
    if (rc == STK_OK && model->packed) rc = stk_fail(STK_EINVAL, "%s: is packed already", stk_gguf_path(model->gguf, 0));
    if (rc == STK_OK && stk_model_owns_file(model, path))
        rc = stk_fail(STK_EINVAL, "%s: that is a file of the model; name another", path);
    if (rc == STK_OK) rc = write_packed(k, path);
    stk_out_file_close(&k->file);
    stk_gguf_write_fini(&k->head);
    free(k->seal);
    free(k->pieces);
    free(k->scratch);
    free(k);
    return rc;
}
