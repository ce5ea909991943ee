/*
 * catalogue: extents and classes.
 *
 * A region of a slot, one for each matrix, is laid out for the worst place that an expert can have in its file: direct reads
 * start at a multiple of the drive's alignment before the rows and end at one behind them.
 *
 *     slot_offset          land_offset            rows_offset
 *     | lead (layout.h)    | up to 4,095 bytes     | file_bytes of rows      | up to the next multiple |
 *     | packed_bytes, in place, over the rows as they are used up ...  |
 *
 * A class is worth one slot size, so it holds for every expert of its layers wherever that lies. Packed experts need none of this
 * room: their slots are what is in the file.
 */
#include "catalogue.h"

#include <stdlib.h>
#include <string.h>

/* No machine has this much memory; keeps all sums far from overflow. */
static const uint64_t MAX_MATRIX_BYTES = 1ull << 48, MAX_ALL_BYTES = 1ull << 60;

/* A packed expert up to this size is one read; above, gate and up are computed while down is on its way. An estimate: where it
 * pays was not measured. */
static const uint64_t WHOLE_READ_BYTES = 256 << 10;

struct stk_catalogue {
    bool packed;
    uint32_t n_layer, n_expert, n_class;
    stk_class *classes;    /* [n_class], room for n_layer */
    uint32_t *layer_class; /* [n_layer] */
    stk_extent *extents;   /* [n_layer, n_expert, STK_N_PART] */
    uint64_t scratch_bytes;
    uint64_t held_bytes; /* the rows that a share of a pack can have to copy away */
};

static uint64_t align_down(uint64_t x, uint64_t align) { return x & ~(align - 1); }

/* Bytes of the rows of a stripe. */
static uint64_t stripe_rows_bytes(const stk_part_shape *p) { return p->file_bytes / p->n_rows * STK_STRIPE; }

static int size_part(stk_part_shape *part) {
    uint64_t row_bytes;
    STK_TRY(stk_type_row_bytes(part->type, part->n_in, &row_bytes));
    if (stk_mul_overflow(row_bytes, part->n_rows, &part->file_bytes) || part->file_bytes > MAX_MATRIX_BYTES) {
        return stk_fail(STK_EFORMAT, "an expert matrix of %u x %u is larger than memory can be", part->n_rows, part->n_in);
    }
    part->packed_bytes = stk_matrix_bytes(part->type, part->n_rows, part->n_in);
    return 0;
}

/* Lays out one part behind `*slot_bytes` and adds it to them. */
static void lay_part(stk_part_shape *part, uint64_t *slot_bytes) {
    uint64_t most, end;
    part->slot_offset = *slot_bytes;
    part->land_offset = part->slot_offset + stk_align_up(stk_layout_lead(part->type, part->n_rows, part->n_in), STK_DIRECT_ALIGN);
    most = align_down(part->file_bytes + 2 * (STK_DIRECT_ALIGN - 1), STK_DIRECT_ALIGN);
    end = STK_MAX(part->land_offset + most, part->slot_offset + part->packed_bytes);
    *slot_bytes = stk_align_up(end, STK_DIRECT_ALIGN);
}

static void lay_packed(stk_part_shape *part, uint64_t *slot_bytes) {
    part->slot_offset = part->land_offset = *slot_bytes;
    *slot_bytes = stk_align_up(*slot_bytes + part->packed_bytes, STK_SLOT_ALIGN);
}

static int lay_class(stk_class *cls, const stk_layer_experts *layer, bool packed) {
    *cls = (stk_class){0};
    for (int p = 0; p < STK_N_PART; p++) {
        stk_part_shape *part = &cls->part[p];
        part->type = layer->type[p];
        part->n_rows = layer->n_rows[p];
        part->n_in = layer->n_in[p];
        STK_TRY(size_part(part));
        if (packed)
            lay_packed(part, &cls->slot_bytes);
        else
            lay_part(part, &cls->slot_bytes);
        cls->payload_bytes += part->file_bytes;
    }
    cls->slot_bytes = stk_align_up(cls->slot_bytes, STK_DIRECT_ALIGN);
    return 0;
}

int stk_class_packed(const stk_layer_experts *layer, stk_class *out) { return lay_class(out, layer, true); }

static bool fits_class(const stk_class *cls, const stk_layer_experts *layer) {
    for (int p = 0; p < STK_N_PART; p++) {
        const stk_part_shape *part = &cls->part[p];
        if (part->type != layer->type[p] || part->n_rows != layer->n_rows[p] || part->n_in != layer->n_in[p]) return false;
    }
    return true;
}

/* The class of a layer, made when it is the first of its kind. */
static int class_of(stk_catalogue *cat, const stk_layer_experts *layer, uint32_t *out) {
    uint32_t c = 0;
    while (c < cat->n_class && !fits_class(&cat->classes[c], layer)) c++;
    if (c == cat->n_class) {
        STK_TRY(lay_class(&cat->classes[c], layer, cat->packed));
        for (int p = 0; p < STK_N_PART; p++) {
            uint64_t scratch = stk_layout_scratch_bytes(layer->type[p], layer->n_in[p]);
            cat->scratch_bytes = STK_MAX(cat->scratch_bytes, scratch);
            uint64_t rows = stripe_rows_bytes(&cat->classes[c].part[p]),
                     lead = stk_layout_lead(layer->type[p], layer->n_rows[p], layer->n_in[p]);
            cat->held_bytes = STK_MAX(cat->held_bytes, rows * stk_div_up(lead + 2 * STK_DIRECT_ALIGN, rows));
        }
        cat->n_class++;
    }
    stk_class *cls = &cat->classes[c];
    uint64_t bytes;
    cls->n_expert += cat->n_expert;
    if (stk_mul_overflow(cls->slot_bytes, cls->n_expert, &bytes) || bytes > MAX_ALL_BYTES / cat->n_layer) {
        return stk_fail(STK_EFORMAT, "the experts are larger than memory can be");
    }
    *out = c;
    return 0;
}

static int fill(stk_catalogue *cat, const stk_layer_experts *layers) {
    for (uint32_t l = 0; l < cat->n_layer; l++) {
        cat->layer_class[l] = STK_NO_CLASS;
        if (layers[l].n_rows[STK_GATE] == 0) continue;
        cat->packed = layers[l].packed != NULL;
        int rc = class_of(cat, &layers[l], &cat->layer_class[l]);
        if (rc < 0) return stk_fail_in(rc, "layer %u", l);
        const stk_class *cls = &cat->classes[cat->layer_class[l]];
        stk_extent *to = cat->extents + (size_t)l * cat->n_expert * STK_N_PART;
        for (uint32_t e = 0; e < cat->n_expert; e++) {
            for (int p = 0; p < STK_N_PART; p++, to++) {
                *to = cat->packed ? layers[l].packed[e] : layers[l].extent[p][e];
                if (cat->packed) to->offset += cls->part[p].slot_offset;
            }
        }
    }
    return 0;
}

/* Without content. */
static stk_catalogue *alloc(uint32_t n_layer, uint32_t n_expert) {
    stk_catalogue *cat = calloc(1, sizeof *cat);
    if (!cat) return NULL;
    cat->n_layer = n_layer;
    cat->n_expert = n_expert;
    cat->classes = calloc(n_layer, sizeof *cat->classes);
    cat->layer_class = calloc(n_layer, sizeof *cat->layer_class);
    cat->extents = calloc((size_t)n_layer * n_expert * STK_N_PART, sizeof *cat->extents);
    if (!cat->classes || !cat->layer_class || !cat->extents) stk_catalogue_close(&cat);
    return cat;
}

int stk_catalogue_open(stk_catalogue **out, uint32_t n_layer, uint32_t n_expert, const stk_layer_experts *layers) {
    uint64_t n_all;
    if (stk_mul_overflow((uint64_t)n_layer * n_expert, STK_N_PART, &n_all) || (uint64_t)n_layer * n_expert > UINT32_MAX) {
        return stk_fail(STK_EFORMAT, "%u layers of %u experts are more than this build counts", n_layer, n_expert);
    }
    stk_catalogue *cat = alloc(n_layer, n_expert);
    int rc = 0;
    if (!cat) {
        rc = stk_fail(STK_ENOMEM, "the system refused memory for the catalogue of %u x %u experts", n_layer, n_expert);
    } else {
        rc = fill(cat, layers);
    }
    if (rc < 0) {
        stk_catalogue_close(&cat);
        return rc;
    }
    *out = cat;
    return 0;
}

int stk_catalogue_by_layer(stk_catalogue **out, const stk_catalogue *cat) {
    stk_catalogue *own = alloc(cat->n_layer, cat->n_expert);
    if (!own)
        return stk_fail(STK_ENOMEM, "the system refused memory for the catalogue of %u x %u experts", cat->n_layer,
                        cat->n_expert);
    own->scratch_bytes = cat->scratch_bytes;
    own->held_bytes = cat->held_bytes;
    memcpy(own->extents, cat->extents, (size_t)cat->n_layer * cat->n_expert * STK_N_PART * sizeof *own->extents);
    for (uint32_t l = 0; l < cat->n_layer; l++) {
        own->layer_class[l] = STK_NO_CLASS;
        if (cat->layer_class[l] == STK_NO_CLASS) continue;
        own->classes[own->n_class] = cat->classes[cat->layer_class[l]];
        own->classes[own->n_class].n_expert = cat->n_expert;
        own->layer_class[l] = own->n_class++;
    }
    *out = own;
    return 0;
}

void stk_catalogue_close(stk_catalogue **cat) {
    if (!*cat) return;
    free((*cat)->classes);
    free((*cat)->layer_class);
    free((*cat)->extents);
    free(*cat);
    *cat = NULL;
}

uint32_t stk_catalogue_n_layer(const stk_catalogue *cat) { return cat->n_layer; }
uint32_t stk_catalogue_n_expert(const stk_catalogue *cat) { return cat->n_expert; }
uint32_t stk_catalogue_n_class(const stk_catalogue *cat) { return cat->n_class; }
const stk_class *stk_catalogue_class(const stk_catalogue *cat, uint32_t cls) { return &cat->classes[cls]; }
uint32_t stk_catalogue_layer_class(const stk_catalogue *cat, uint32_t layer) { return cat->layer_class[layer]; }

stk_extent stk_catalogue_extent(const stk_catalogue *cat, uint32_t layer, uint32_t expert, enum stk_part part) {
    return cat->extents[((size_t)layer * cat->n_expert + expert) * STK_N_PART + part];
}

bool stk_catalogue_packed(const stk_catalogue *cat) { return cat->packed; }

/* Gate and up, up to the page that down begins in; the rest behind it. All of a small one at once. */
static void read_packed(const stk_catalogue *cat, uint32_t layer, uint32_t expert, enum stk_part part, stk_part_read *out) {
    enum { UP_PARTS = 1 << STK_GATE | 1 << STK_UP, ALL_PARTS = UP_PARTS | 1 << STK_DOWN };
    const stk_class *cls = &cat->classes[cat->layer_class[layer]];
    stk_extent whole = stk_catalogue_extent(cat, layer, expert, STK_GATE);
    uint64_t down_at = stk_align_up(cls->part[STK_DOWN].slot_offset, STK_DIRECT_ALIGN);
    bool at_once = cls->slot_bytes <= WHOLE_READ_BYTES || down_at >= cls->slot_bytes;
    *out = (stk_part_read){.file = whole.file, .rows_offset = cls->part[part].slot_offset};
    if (part == STK_GATE) {
        out->file_offset = whole.offset;
        out->bytes = at_once ? cls->slot_bytes : down_at;
        out->parts = at_once ? ALL_PARTS : UP_PARTS;
    } else if (part == STK_DOWN && !at_once) {
        out->file_offset = whole.offset + down_at;
        out->slot_offset = down_at;
        out->bytes = cls->slot_bytes - down_at;
        out->parts = 1 << STK_DOWN;
    }
}

void stk_catalogue_read(const stk_catalogue *cat, uint32_t layer, uint32_t expert, enum stk_part part, uint32_t align,
                        stk_part_read *out) {
    if (cat->packed) {
        read_packed(cat, layer, expert, part, out);
        return;
    }
    const stk_part_shape *shape = &cat->classes[cat->layer_class[layer]].part[part];
    stk_extent extent = stk_catalogue_extent(cat, layer, expert, part);
    uint64_t start = align_down(extent.offset, align);
    out->file = extent.file;
    out->file_offset = start;
    out->bytes = stk_align_up(extent.offset + shape->file_bytes, align) - start;
    out->slot_offset = shape->land_offset;
    out->rows_offset = shape->land_offset + (extent.offset - start);
    out->parts = (uint8_t)(1u << part);
}

bool stk_catalogue_share(const stk_catalogue *cat, uint32_t cls, enum stk_part part, const void *slot, uint64_t rows_offset,
                         uint32_t i, uint32_t n, void *held, stk_part_share *out) {
    const stk_part_shape *p = &cat->classes[cls].part[part];
    uint64_t n_stripe = stk_n_stripe(p->n_rows), stripe = stripe_rows_bytes(p);
    *out = (stk_part_share){.begin = n_stripe * i / n, .end = n_stripe * (i + 1) / n, .held = held};
    if (i + 1 == n) return true;
    out->n_held = stk_layout_behind(p->type, p->n_in, out->end, rows_offset - p->slot_offset);
    if (out->n_held > out->end - out->begin || out->n_held * stripe > cat->held_bytes) return false;
    memcpy(held, (const char *)slot + rows_offset + (out->end - out->n_held) * stripe, out->n_held * stripe);
    return true;
}

void stk_catalogue_pack(const stk_catalogue *cat, uint32_t cls, enum stk_part part, void *slot, uint64_t rows_offset,
                        const stk_part_share *share, void *scratch) {
    const stk_part_shape *p = &cat->classes[cls].part[part];
    char *base = slot, *to = base + p->slot_offset;
    uint64_t own = share->end - share->n_held;
    stk_layout_pack_stripes(p->type, p->n_rows, p->n_in, share->begin, own,
                            base + rows_offset + share->begin * stripe_rows_bytes(p), to, scratch);
    stk_layout_pack_stripes(p->type, p->n_rows, p->n_in, own, share->end, share->held, to, scratch);
}

uint64_t stk_catalogue_scratch_bytes(const stk_catalogue *cat) { return cat->scratch_bytes; }
uint64_t stk_catalogue_held_bytes(const stk_catalogue *cat) { return cat->held_bytes; }
