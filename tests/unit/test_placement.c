/* Which experts lie on the device for good: two classes of slots, the layers in turns. */
#include <criterion/criterion.h>
#include <string.h>

#include "src/device/placement.h"

enum { L = 4, E = 3, N = L * E };

static const uint32_t layer_class[L] = {0, 1, 0, 1};

static uint32_t make(enum stk_placement how, uint32_t a, uint32_t b, const uint64_t *uses, uint8_t *here) {
    const uint32_t n_slot[2] = {a, b};
    stk_placement_config config = {L, E, 2, n_slot, layer_class, uses};
    uint32_t n = 0, of_class[2] = {0, 0};
    memset(here, 0, N);
    cr_assert_eq(stk_placement_make(how, &config, here), 0);
    for (uint32_t key = 0; key < N; key++) {
        n += here[key];
        of_class[layer_class[key / E]] += here[key];
    }
    cr_assert(of_class[0] <= a && of_class[1] <= b, "more of a class than it has slots");
    return n;
}

Test(placement, whole_layers_from_the_last_down) {
    uint8_t here[N];
    cr_assert_eq(make(STK_PLACE_LAYERS, 5, 6, NULL, here), 9); /* of class 0 one layer, two places stay empty */
    for (uint32_t key = 0; key < N; key++) cr_assert_eq(here[key], key / E != 0, "expert %u", key);
    cr_assert_eq(make(STK_PLACE_LAYERS, 2, 2, NULL, here), 0);
}

Test(placement, as_many_of_each_layer) {
    uint8_t here[N];
    cr_assert_eq(make(STK_PLACE_UNIFORM, 4, 3, NULL, here), 7);
    for (uint32_t l = 0; l < L; l++) {
        uint32_t n = 0;
        for (uint32_t e = 0; e < E; e++) n += here[l * E + e];
        cr_assert_eq(n, l == 3 ? 1 : 2, "layer %u has %u", l, n);
    }
    cr_assert_eq(make(STK_PLACE_UNIFORM, 100, 100, NULL, here), N);
}

Test(placement, those_used_most) {
    const uint64_t uses[N] = {1, 9, 9, 0, 5, 7, 8, 2, 3, 6, 6, 6};
    uint8_t here[N];
    cr_assert_eq(make(STK_PLACE_PROFILE, 3, 2, uses, here), 5);
    for (uint32_t key = 0; key < N; key++)
        cr_assert_eq(here[key], key == 1 || key == 2 || key == 6 || key == 5 || key == 9, "expert %u", key);
}

Test(placement, a_cache_places_nothing) {
    uint8_t here[N];
    cr_assert_eq(make(STK_PLACE_CACHE, 9, 9, NULL, here), 0);
}
