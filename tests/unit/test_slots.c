/* slots: dividing a budget, and the arena. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experts/slots.h"

enum { MAX_LAYER = 12, N_EXPERT = 8 };

/* A catalogue whose class c has n_layer[c] layers of experts with n_ff[c]. */
static stk_catalogue *make(const uint32_t *n_layer, const uint32_t *n_ff, uint32_t n_class) {
    static stk_extent extents[N_EXPERT];
    stk_layer_experts layers[MAX_LAYER];
    uint32_t n = 0;
    for (uint32_t c = 0; c < n_class; c++) {
        for (uint32_t l = 0; l < n_layer[c]; l++) {
            layers[n++] = (stk_layer_experts){.type = {STK_TYPE_Q8_0, STK_TYPE_Q8_0, STK_TYPE_Q8_0},
                                              .n_rows = {n_ff[c], n_ff[c], 64},
                                              .n_in = {64, 64, n_ff[c]},
                                              .extent = {extents, extents, extents}};
        }
    }
    stk_catalogue *cat = NULL;
    cr_assert_eq(stk_catalogue_open(&cat, n, N_EXPERT, layers), 0, "%s", stk_error_detail());
    return cat;
}

static stk_catalogue *three_classes(void) { return make((const uint32_t[]){6, 4, 1}, (const uint32_t[]){256, 512, 2048}, 3); }

static uint64_t all_bytes(const stk_catalogue *cat) {
    uint64_t all = 0;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++)
        all += stk_catalogue_class(cat, c)->n_expert * stk_catalogue_class(cat, c)->slot_bytes;
    return all;
}

/* What every division must keep. */
static void check(const stk_catalogue *cat, uint64_t bytes, uint32_t least, const uint32_t *n_slot) {
    uint64_t used = 0;
    bool all_in = true;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++) {
        const stk_class *cls = stk_catalogue_class(cat, c);
        cr_assert_geq(n_slot[c], STK_MIN(least, cls->n_expert));
        cr_assert_leq(n_slot[c], cls->n_expert);
        used += n_slot[c] * cls->slot_bytes;
        all_in = all_in && n_slot[c] == cls->n_expert;
    }
    cr_assert_leq(used, bytes);
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++) { /* nothing that fits is left over */
        const stk_class *cls = stk_catalogue_class(cat, c);
        cr_assert(n_slot[c] == cls->n_expert || used + cls->slot_bytes > bytes);
    }
    cr_assert_eq(all_in, bytes >= all_bytes(cat));
}

Test(slots, budgets_at_every_boundary) {
    stk_catalogue *cat = three_classes();
    uint32_t n_slot[3];
    for (uint32_t least = 0; least <= 20; least++) { /* class 2 has 8 experts alone */
        uint64_t least_bytes = stk_slots_least_bytes(cat, least), all = all_bytes(cat);
        if (least_bytes > 0) {
            cr_assert_eq(stk_slots_divide(cat, least_bytes - 1, least, n_slot), STK_EBUDGET);
            char number[32];
            snprintf(number, sizeof number, "%" PRIu64 " bytes", least_bytes);
            cr_assert(strstr(stk_error_detail(), number), "%s", stk_error_detail());
        }
        cr_assert_eq(stk_slots_divide(cat, least_bytes, least, n_slot), 0);
        for (uint32_t c = 0; c < 3; c++) cr_assert_eq(n_slot[c], STK_MIN(least, stk_catalogue_class(cat, c)->n_expert));
        for (uint64_t bytes = least_bytes; bytes < all + 8192; bytes += 4096) {
            for (int d = -1; d <= 1; d++) {
                uint64_t budget = bytes + (uint64_t)d;
                if (budget < least_bytes || budget > all + 8192) continue;
                cr_assert_eq(stk_slots_divide(cat, budget, least, n_slot), 0);
                check(cat, budget, least, n_slot);
            }
        }
        cr_assert_eq(stk_slots_divide(cat, UINT64_MAX, least, n_slot), 0);
        check(cat, UINT64_MAX, least, n_slot);
    }
    stk_catalogue_close(&cat);
}

Test(slots, classes_get_the_same_part_of_their_experts) {
    stk_catalogue *cat = three_classes();
    uint32_t n_slot[3];
    cr_assert_eq(stk_slots_divide(cat, all_bytes(cat) / 2, 1, n_slot), 0);
    cr_assert_eq(n_slot[0], 24);
    cr_assert_eq(n_slot[1], 16);
    cr_assert_eq(n_slot[2], 4);
    /* A floor above its share: class 2 gets all 8 of it, the others the same part of what is left. */
    cr_assert_eq(stk_slots_divide(cat, all_bytes(cat) / 2, 8, n_slot), 0);
    cr_assert_eq(n_slot[2], 8);
    cr_assert_float_eq(n_slot[0] / 48.0, n_slot[1] / 32.0, 1.0 / 32 + 1.0 / 48);
    stk_catalogue_close(&cat);
}

Test(slots, bytes_left_over_go_to_the_greatest_remainder) {
    /* Shares of 1/3: 16 of 48, and 2.67 of 8, whose third slot is the one that fits. */
    stk_catalogue *cat = make((const uint32_t[]){6, 1}, (const uint32_t[]){256, 256 + 32}, 2);
    uint64_t slot0 = stk_catalogue_class(cat, 0)->slot_bytes, slot1 = stk_catalogue_class(cat, 1)->slot_bytes;
    uint32_t n_slot[2];
    cr_assert_lt(slot0, slot1);
    cr_assert_eq(stk_slots_divide(cat, 16 * slot0 + 3 * slot1, 1, n_slot), 0);
    cr_assert_eq(n_slot[0], 16);
    cr_assert_eq(n_slot[1], 3);
    stk_catalogue_close(&cat);
}

Test(slots, each_class_holds_its_slots_apart) {
    stk_catalogue *cat = three_classes();
    const uint32_t n_slot[3] = {3, 2, 1};
    stk_slots *slots = NULL;
    cr_assert_eq(stk_slots_open(&slots, cat, n_slot, false), 0, "%s", stk_error_detail());
    uint64_t wanted = 0;
    for (uint32_t c = 0; c < 3; c++) {
        void *base;
        uint64_t bytes, at_bytes = 0;
        stk_slots_region(slots, c, &base, &bytes);
        cr_assert_eq(stk_slots_n(slots, c), n_slot[c]);
        for (uint32_t s = 0; s < n_slot[c]; s++) {
            char *at = stk_slots_at(slots, c, s);
            cr_assert_eq((uintptr_t)at % 4096, 0);
            cr_assert_eq(at, (char *)base + at_bytes);
            memset(at, (int)(c * 10 + s), stk_catalogue_class(cat, c)->slot_bytes);
            at_bytes += stk_catalogue_class(cat, c)->slot_bytes;
        }
        cr_assert_eq(bytes, at_bytes);
        wanted += bytes;
    }
    cr_assert_eq(stk_slots_bytes(slots), wanted);
    cr_assert_eq(*(char *)stk_slots_at(slots, 1, 0), 10);
    cr_assert_eq(stk_slots_huge_bytes(slots), 0); /* below 64 MiB */
    stk_slots_close(&slots);
    cr_assert_null(slots);
    stk_slots_close(&slots);
    stk_catalogue_close(&cat);
}

Test(slots, refuses_counts_without_meaning) {
    stk_catalogue *cat = three_classes();
    stk_slots *slots = NULL;
    cr_assert_eq(stk_slots_open(&slots, cat, (const uint32_t[]){3, 0, 1}, false), STK_EINVAL);
    cr_assert_eq(stk_slots_open(&slots, cat, (const uint32_t[]){3, 1, 9}, false), STK_EINVAL);
    cr_assert(strstr(stk_error_detail(), "expected 1 to 8"), "%s", stk_error_detail());
    cr_assert_null(slots);
    stk_catalogue_close(&cat);
}

Test(slots, a_class_grows_and_shrinks_where_it_is) {
    stk_catalogue *cat = three_classes();
    const uint32_t n_slot[3] = {3, 2, 1};
    stk_slots *slots = NULL;
    cr_assert_eq(stk_slots_open(&slots, cat, n_slot, false), 0, "%s", stk_error_detail());
    uint64_t slot_bytes = stk_catalogue_class(cat, 0)->slot_bytes;
    uint32_t n_expert = stk_catalogue_class(cat, 0)->n_expert;
    char *first = stk_slots_at(slots, 0, 0);
    memset(first, 7, 3 * slot_bytes);
    cr_assert_eq(stk_slots_resize(slots, 0, n_expert), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_slots_n(slots, 0), n_expert);
    cr_assert_eq(stk_slots_at(slots, 0, 0), first);
    for (uint64_t i = 0; i < n_expert * slot_bytes; i += 512) cr_assert_eq(first[i], i < 3 * slot_bytes ? 7 : 0);
    memset(first, 9, n_expert * slot_bytes);
    cr_assert_eq(stk_slots_resize(slots, 0, 1), 0);
    for (uint64_t i = 0; i < slot_bytes; i += 512) cr_assert_eq(first[i], 9);
    cr_assert_eq(stk_slots_resize(slots, 0, 2), 0);
    cr_assert_eq(first[slot_bytes], 0, "memory that was given back came back with its contents");
    cr_assert_eq(stk_slots_resize(slots, 0, n_expert + 1), STK_EINVAL);
    cr_assert_eq(stk_slots_resize(slots, 0, 0), STK_EINVAL);
    cr_assert_eq(stk_slots_n(slots, 0), 2);
    stk_slots_close(&slots);
    stk_catalogue_close(&cat);
}
