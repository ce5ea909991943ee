/* catalogue: classes, extents, aligned reads, and packing in place for every place that an expert can have. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "experts/catalogue.h"

enum { N_LAYER = 5, N_EXPERT = 3, N_EMBD = 256 };

typedef struct kind {
    enum stk_type gate, down;
    uint32_t n_ff;
} kind;

static const kind q4 = {STK_TYPE_Q4_K, STK_TYPE_Q6_K, 256}, q8 = {STK_TYPE_Q8_0, STK_TYPE_Q8_0, 96},
                  f16 = {STK_TYPE_F16, STK_TYPE_F32, 37};

static uint64_t part_bytes(enum stk_type type, uint32_t n_rows, uint32_t n_in) {
    uint64_t row = 0;
    cr_assert_eq(stk_type_row_bytes(type, n_in, &row), 0);
    return row * n_rows;
}

/* Describes a layer whose experts lie one behind the other from `offset` on. Returns the end. */
static uint64_t describe(stk_layer_experts *layer, const kind *k, uint64_t offset, stk_extent *extents) {
    *layer = (stk_layer_experts){
        .type = {k->gate, k->gate, k->down}, .n_rows = {k->n_ff, k->n_ff, N_EMBD}, .n_in = {N_EMBD, N_EMBD, k->n_ff}};
    for (int p = 0; p < STK_N_PART; p++) {
        layer->extent[p] = extents + p * N_EXPERT;
        for (int e = 0; e < N_EXPERT; e++) {
            extents[p * N_EXPERT + e] = (stk_extent){.file = (uint32_t)e % 2, .offset = offset};
            offset += part_bytes(layer->type[p], layer->n_rows[p], layer->n_in[p]);
        }
    }
    return offset;
}

static stk_catalogue *sample(uint64_t offset, stk_extent extents[N_LAYER][STK_N_PART * N_EXPERT]) {
    const kind *kinds[N_LAYER] = {&q4, &q8, NULL, &q4, &f16};
    stk_layer_experts layers[N_LAYER] = {0};
    for (int l = 0; l < N_LAYER; l++) {
        if (kinds[l]) offset = describe(&layers[l], kinds[l], offset, extents[l]);
    }
    stk_catalogue *cat = NULL;
    cr_assert_eq(stk_catalogue_open(&cat, N_LAYER, N_EXPERT, layers), 0, "%s", stk_error_detail());
    return cat;
}

Test(catalogue, classes_and_extents) {
    stk_extent extents[N_LAYER][STK_N_PART * N_EXPERT];
    stk_catalogue *cat = sample(1000, extents);
    cr_assert_eq(stk_catalogue_n_layer(cat), N_LAYER);
    cr_assert_eq(stk_catalogue_n_expert(cat), N_EXPERT);
    cr_assert_eq(stk_catalogue_n_class(cat), 3);
    const uint32_t wanted[N_LAYER] = {0, 1, STK_NO_CLASS, 0, 2};
    for (uint32_t l = 0; l < N_LAYER; l++) {
        cr_assert_eq(stk_catalogue_layer_class(cat, l), wanted[l]);
        if (wanted[l] == STK_NO_CLASS) continue;
        for (uint32_t e = 0; e < N_EXPERT; e++) {
            for (int p = 0; p < STK_N_PART; p++) {
                stk_extent x = stk_catalogue_extent(cat, l, e, (enum stk_part)p);
                cr_assert_eq(x.file, extents[l][p * N_EXPERT + (int)e].file);
                cr_assert_eq(x.offset, extents[l][p * N_EXPERT + (int)e].offset);
            }
        }
    }
    const stk_class *cls = stk_catalogue_class(cat, 0);
    cr_assert_eq(cls->n_expert, 2 * N_EXPERT);
    cr_assert_eq(cls->payload_bytes, 2 * 256 * 144 + 256 * 210);
    cr_assert_eq(stk_catalogue_class(cat, 1)->n_expert, N_EXPERT);
    stk_catalogue_close(&cat);
    cr_assert_null(cat);
    stk_catalogue_close(&cat);
}

Test(catalogue, regions_do_not_meet) {
    stk_extent extents[N_LAYER][STK_N_PART * N_EXPERT];
    stk_catalogue *cat = sample(0, extents);
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++) {
        const stk_class *cls = stk_catalogue_class(cat, c);
        uint64_t end = 0;
        for (int p = 0; p < STK_N_PART; p++) {
            const stk_part_shape *part = &cls->part[p];
            cr_assert_eq(part->slot_offset, end);
            cr_assert_eq(part->slot_offset % STK_DIRECT_ALIGN, 0);
            cr_assert_eq(part->land_offset % STK_DIRECT_ALIGN, 0);
            cr_assert_geq(part->land_offset - part->slot_offset, stk_layout_lead(part->type, part->n_rows, part->n_in));
            end = p + 1 < STK_N_PART ? cls->part[p + 1].slot_offset : cls->slot_bytes;
            cr_assert_leq(part->slot_offset + part->packed_bytes, end);
        }
        cr_assert_eq(cls->slot_bytes % STK_DIRECT_ALIGN, 0);
        /* No more than a lead and two pages of slack for a part. */
        cr_assert_leq(cls->slot_bytes, cls->payload_bytes + 3 * 4 * STK_DIRECT_ALIGN + cls->payload_bytes);
    }
    stk_catalogue_close(&cat);
}

/* Packs in up to n shares, the last one first: no order may matter. */
static void pack(const stk_catalogue *cat, uint32_t cls, enum stk_part part, void *slot, uint64_t rows_offset, uint32_t n,
                 void *scratch) {
    stk_part_share shares[8];
    char *held = malloc(n * stk_catalogue_held_bytes(cat));
    uint32_t i = 0;
    while (i < n &&
           stk_catalogue_share(cat, cls, part, slot, rows_offset, i, n, held + i * stk_catalogue_held_bytes(cat), &shares[i]))
        i++;
    if (i < n) {
        n = 1;
        cr_assert(stk_catalogue_share(cat, cls, part, slot, rows_offset, 0, 1, held, &shares[0]));
    }
    for (i = n; i-- > 0;) stk_catalogue_pack(cat, cls, part, slot, rows_offset, &shares[i], scratch);
    free(held);
}

/* Reads every expert out of a made-up file as the engine does, and packs it: the slot must hold what packing the plain rows
 * gives. */
static void check_reads(uint64_t first_offset, uint32_t align) {
    stk_extent extents[N_LAYER][STK_N_PART * N_EXPERT];
    stk_catalogue *cat = sample(first_offset, extents);
    enum { FILE_BYTES = 4 << 20 };
    unsigned char *file = malloc(FILE_BYTES);
    for (uint32_t i = 0, x = 1; i < FILE_BYTES; i++) file[i] = (unsigned char)((x = x * 1664525 + 1013904223) >> 24);
    void *scratch = malloc(stk_catalogue_scratch_bytes(cat));
    for (uint32_t l = 0; l < N_LAYER; l++) {
        uint32_t c = stk_catalogue_layer_class(cat, l);
        if (c == STK_NO_CLASS) continue;
        const stk_class *cls = stk_catalogue_class(cat, c);
        unsigned char *slot = aligned_alloc(STK_DIRECT_ALIGN, cls->slot_bytes), *wanted = aligned_alloc(64, cls->slot_bytes);
        for (uint32_t e = 0; e < N_EXPERT; e++) {
            memset(slot, 0xa5, cls->slot_bytes);
            stk_part_read reads[STK_N_PART];
            for (int p = 0; p < STK_N_PART; p++) {
                stk_part_read *r = &reads[p];
                stk_catalogue_read(cat, l, e, (enum stk_part)p, align, r);
                cr_assert_eq(r->file, e % 2);
                cr_assert_eq(r->file_offset % align, 0);
                cr_assert_eq(r->bytes % align, 0);
                cr_assert_eq(r->slot_offset % align, 0);
                cr_assert_geq(r->slot_offset, cls->part[p].land_offset);
                uint64_t end = p + 1 < STK_N_PART ? cls->part[p + 1].slot_offset : cls->slot_bytes;
                cr_assert_leq(r->slot_offset + r->bytes, end);
                cr_assert_leq(r->file_offset + r->bytes, FILE_BYTES);
                cr_assert_leq(r->bytes, cls->part[p].file_bytes + 2 * (align - 1));
                memcpy(slot + r->slot_offset, file + r->file_offset, r->bytes);
            }
            for (int p = 0; p < STK_N_PART; p++) {
                const stk_part_shape *part = &cls->part[p];
                pack(cat, c, (enum stk_part)p, slot, reads[p].rows_offset, 1 + e % 3, scratch);
                const void *rows = file + stk_catalogue_extent(cat, l, e, (enum stk_part)p).offset;
                stk_layout_pack(part->type, part->n_rows, part->n_in, rows, wanted, scratch);
                cr_assert_arr_eq(slot + part->slot_offset, wanted, part->packed_bytes);
            }
        }
        free(slot);
        free(wanted);
    }
    free(scratch);
    free(file);
    stk_catalogue_close(&cat);
}

Test(catalogue, reads_land_and_pack_at_every_alignment) {
    const uint32_t aligns[] = {1, 512, 4096};
    const uint64_t offsets[] = {0, 1, 32, 511, 512, 513, 4095, 4096, 4097};
    for (size_t a = 0; a < STK_ARRAY_LEN(aligns); a++) {
        for (size_t o = 0; o < STK_ARRAY_LEN(offsets); o++) check_reads(offsets[o], aligns[a]);
    }
}

Test(catalogue, sizes_that_no_memory_has) {
    stk_extent extents[N_EXPERT] = {{0}};
    stk_layer_experts layer = {.type = {STK_TYPE_F32, STK_TYPE_F32, STK_TYPE_F32},
                               .n_rows = {UINT32_MAX, UINT32_MAX, UINT32_MAX},
                               .n_in = {UINT32_MAX, UINT32_MAX, UINT32_MAX},
                               .extent = {extents, extents, extents}};
    stk_catalogue *cat = NULL;
    cr_assert_eq(stk_catalogue_open(&cat, 1, N_EXPERT, &layer), STK_EFORMAT);
    cr_assert(strstr(stk_error_detail(), "layer 0: "), "%s", stk_error_detail());
    cr_assert_null(cat);
    cr_assert_eq(stk_catalogue_open(&cat, UINT32_MAX, UINT32_MAX, &layer), STK_EFORMAT);
    layer.type[STK_DOWN] = STK_TYPE_Q4_K; /* 255 is no multiple of its block */
    layer.n_in[STK_DOWN] = 255;
    layer.n_in[STK_GATE] = layer.n_in[STK_UP] = layer.n_rows[STK_GATE] = layer.n_rows[STK_UP] = 256;
    cr_assert_eq(stk_catalogue_open(&cat, 1, N_EXPERT, &layer), STK_EFORMAT);
}

/* ---- Packed -------------------------------------------------------------------------------------------------------------- */

/* Three layers, of experts that are two reads, one for their size, and one for their down part's. */
static const kind large = {STK_TYPE_Q4_K, STK_TYPE_Q6_K, 768};

static stk_catalogue *packed_sample(stk_extent extents[3][N_EXPERT]) {
    const kind *kinds[3] = {&large, &f16, &q8};
    stk_layer_experts layers[3];
    uint64_t offset = STK_DIRECT_ALIGN;
    for (int l = 0; l < 3; l++) {
        const kind *k = kinds[l];
        layers[l] = (stk_layer_experts){.type = {k->gate, k->gate, k->down},
                                        .n_rows = {k->n_ff, k->n_ff, N_EMBD},
                                        .n_in = {N_EMBD, N_EMBD, k->n_ff},
                                        .packed = extents[l]};
        stk_class cls;
        cr_assert_eq(stk_class_packed(&layers[l], &cls), 0);
        for (int e = 0; e < N_EXPERT; e++, offset += cls.slot_bytes) extents[l][e] = (stk_extent){0, offset};
    }
    stk_catalogue *cat = NULL;
    cr_assert_eq(stk_catalogue_open(&cat, 3, N_EXPERT, layers), 0, "%s", stk_error_detail());
    cr_assert(stk_catalogue_packed(cat));
    return cat;
}

Test(catalogue, packed_parts_lie_side_by_side) {
    stk_extent extents[3][N_EXPERT];
    stk_catalogue *cat = packed_sample(extents);
    for (uint32_t l = 0; l < 3; l++) {
        const stk_class *cls = stk_catalogue_class(cat, stk_catalogue_layer_class(cat, l));
        uint64_t end = 0;
        for (int p = 0; p < STK_N_PART; p++) {
            cr_assert_eq(cls->part[p].slot_offset, stk_align_up(end, STK_SLOT_ALIGN));
            end = cls->part[p].slot_offset + cls->part[p].packed_bytes;
            for (uint32_t e = 0; e < N_EXPERT; e++)
                cr_assert_eq(stk_catalogue_extent(cat, l, e, (enum stk_part)p).offset,
                             extents[l][e].offset + cls->part[p].slot_offset);
        }
        cr_assert_eq(cls->slot_bytes, stk_align_up(end, STK_DIRECT_ALIGN));
    }
    stk_catalogue_close(&cat);
}

/* The reads of an expert are its range, in order, and say what they bring: whole matrices, gate and up before down. */
Test(catalogue, packed_experts_are_one_range) {
    stk_extent extents[3][N_EXPERT];
    stk_catalogue *cat = packed_sample(extents);
    const uint32_t n_read[3] = {2, 1, 1};
    for (uint32_t l = 0; l < 3; l++)
        for (uint32_t e = 0; e < N_EXPERT; e++) {
            const stk_class *cls = stk_catalogue_class(cat, stk_catalogue_layer_class(cat, l));
            uint64_t at = 0;
            uint32_t n = 0, parts = 0;
            for (int p = 0; p < STK_N_PART; p++) {
                stk_part_read r;
                stk_catalogue_read(cat, l, e, (enum stk_part)p, 512, &r);
                cr_assert_eq(r.rows_offset, cls->part[p].slot_offset);
                if (r.bytes == 0) continue;
                cr_assert(r.file == 0 && r.slot_offset == at && r.file_offset == extents[l][e].offset + at);
                cr_assert(r.bytes % STK_DIRECT_ALIGN == 0 && (r.parts & 1u << p) && !(r.parts & parts));
                at += r.bytes;
                parts |= r.parts;
                n++;
                for (int q = 0; q < STK_N_PART; q++) /* all of these have been read by now */
                    if (parts & 1u << q) cr_assert_leq(cls->part[q].slot_offset + cls->part[q].packed_bytes, at);
            }
            cr_assert(at == cls->slot_bytes && parts == 7 && n == n_read[l], "layer %u: %u reads", l, n);
        }
    stk_catalogue_close(&cat);
}
