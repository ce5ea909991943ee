/*
 * catalogue: where every expert lies in the files, and what it looks like in a slot. Built once from the tensor directory,
 * read-only after.
 *
 * An expert of a layer is three matrices, gate [n_ff, n_embd], up [n_ff, n_embd], down [n_embd, n_ff]; each is one extent of a
 * file (fused gate_up tensors, and old files with one tensor per expert, come out the same). Layers whose experts have the same
 * types and shapes share a class.
 *
 * In a slot each matrix has a region: [lead and alignment slack | rows as read], packed in place to the region's start
 * (layout.h). Layers are those of the model; one without experts has no class and no extents.
 *
 * The experts of a packed model lie in the file as in a slot, the three matrices side by side in their layout, each at a multiple
 * of 256 bytes, and all filled up to a multiple of 4,096. Such an expert is one contiguous range, is read to the start of its
 * slot, and needs no packing.
 *
 * Who may call it: src/. Threads: immutable. Ownership: what the calls return belongs to the catalogue.
 */
#ifndef STK_CATALOGUE_H
#define STK_CATALOGUE_H

#include "experts/layout.h"

enum stk_part { STK_GATE, STK_UP, STK_DOWN, STK_N_PART };

/* One matrix of a class, in a slot. */
typedef struct stk_part_shape {
    enum stk_type type;
    uint32_t n_rows, n_in;
    uint64_t file_bytes; /* rows as stored */
    uint64_t packed_bytes;
    uint64_t slot_offset; /* of the packed matrix, and of its region; a multiple of 4,096, of 256 in a packed model */
    uint64_t land_offset; /* aligned reads start here or later, so that packing in place is safe */
} stk_part_shape;

typedef struct stk_class {
    stk_part_shape part[STK_N_PART];
    uint64_t slot_bytes;    /* a multiple of 4,096 */
    uint64_t payload_bytes; /* file_bytes of the three parts */
    uint32_t n_expert;      /* experts of all its layers */
} stk_class;

typedef struct stk_extent {
    uint32_t file;
    uint64_t offset;
} stk_extent;

typedef struct stk_catalogue stk_catalogue;

/* The class of a layer without experts. */
#define STK_NO_CLASS UINT32_MAX

/* What the model loader says of one layer; n_rows is 0 for one without experts. */
typedef struct stk_layer_experts {
    enum stk_type type[STK_N_PART];
    uint32_t n_rows[STK_N_PART], n_in[STK_N_PART];
    const stk_extent *extent[STK_N_PART]; /* [n_expert] each, borrowed during the call */
    const stk_extent *packed;             /* [n_expert] in place of these: a packed model's, at multiples of 4,096 */
} stk_layer_experts;

/* How an expert of such a layer lies in a packed file; slot_bytes is the distance of two. Errors: STK_EFORMAT. */
int stk_class_packed(const stk_layer_experts *layer, stk_class *out) STK_CHECKED;

/* All layers are packed, or none. Errors: STK_ENOMEM, STK_EFORMAT (shapes that no slot can hold). */
int stk_catalogue_open(stk_catalogue **out, uint32_t n_layer, uint32_t n_expert, const stk_layer_experts *layers) STK_CHECKED;
void stk_catalogue_close(stk_catalogue **cat);
/* The same experts with a class for each layer, in the order of layers: for caches of single layers. Errors: STK_ENOMEM. */
int stk_catalogue_by_layer(stk_catalogue **out, const stk_catalogue *cat) STK_CHECKED;

uint32_t stk_catalogue_n_layer(const stk_catalogue *cat);
uint32_t stk_catalogue_n_expert(const stk_catalogue *cat);
uint32_t stk_catalogue_n_class(const stk_catalogue *cat);
const stk_class *stk_catalogue_class(const stk_catalogue *cat, uint32_t cls);
uint32_t stk_catalogue_layer_class(const stk_catalogue *cat, uint32_t layer);
stk_extent stk_catalogue_extent(const stk_catalogue *cat, uint32_t layer, uint32_t expert, enum stk_part part);

/* Whether experts lie packed: what has been read is in its layout. */
bool stk_catalogue_packed(const stk_catalogue *cat);

/*
 * The aligned read that brings one part into a slot: from `file_offset` (a multiple of align) `bytes` bytes, to slot +
 * slot_offset; the rows then start at slot + rows_offset. align is a power of two <= STK_DIRECT_ALIGN. The read of a packed
 * expert brings several parts: up comes with gate, and down with both where all are small; a part that comes with another has no
 * bytes to read.
 */
typedef struct stk_part_read {
    uint64_t file_offset, bytes, slot_offset, rows_offset;
    uint32_t file;
    uint8_t parts; /* bits 1 << enum stk_part of what it brings */
} stk_part_read;
void stk_catalogue_read(const stk_catalogue *cat, uint32_t layer, uint32_t expert, enum stk_part part, uint32_t align,
                        stk_part_read *out);

/*
 * A share of the work of packing a part in place after its read has landed: stripes [begin, end), the last n_held of which have
 * their rows in `held`, because the next share overwrites them. scratch: stk_catalogue_scratch_bytes().
 */
typedef struct stk_part_share {
    uint64_t begin, end, n_held;
    void *held; /* stk_catalogue_held_bytes() */
} stk_part_share;
/* Share i of n, with its rows copied to `held`. All shares are made before any is packed. False where the part is too small for
 * n shares. */
bool stk_catalogue_share(const stk_catalogue *cat, uint32_t cls, enum stk_part part, const void *slot, uint64_t rows_offset,
                         uint32_t i, uint32_t n, void *held, stk_part_share *out);
void stk_catalogue_pack(const stk_catalogue *cat, uint32_t cls, enum stk_part part, void *slot, uint64_t rows_offset,
                        const stk_part_share *share, void *scratch);
uint64_t stk_catalogue_scratch_bytes(const stk_catalogue *cat);
uint64_t stk_catalogue_held_bytes(const stk_catalogue *cat);

#endif
