/* budget: bytes, slots and fractions over size classes and layers. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "src/replay/budget.h"

enum { N_LAYER = 4, N_EXPERT = 10, K = 2 };

/* Layers 0, 1, 3 have experts of 1,000 bytes, layer 2 of 2,000: 50,000 in all. Recorded: 12 and 4 slots. */
static const stk_trace_class recorded[2] = {{1000, 900, 12, 0}, {2000, 1900, 4, 0}};
static const uint32_t layer_class[N_LAYER] = {0, 0, 1, 0};
static const stk_trace_header header = {.n_layer = N_LAYER,
                                        .n_expert = N_EXPERT,
                                        .k = K,
                                        .n_class = 2,
                                        .classes = recorded,
                                        .layer_class = layer_class,
                                        .policy = "lru",
                                        .params = ""};

/* "n+transit n+transit ..." of the classes. */
static const char *slots(stk_replay_options o, bool refuses, const stk_trace_header *h) {
    static char text[256];
    stk_budget b;
    text[0] = 0;
    if (stk_budget_open(&b, h, &o, refuses) < 0) return stk_error_detail();
    uint64_t n = 0, bytes = 0;
    for (uint32_t c = 0; c < b.n_class; c++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%u+%u", c ? " " : "", b.classes[c].n_slot,
                 b.classes[c].n_transit);
        n += b.classes[c].n_slot;
        bytes += (b.classes[c].n_slot + b.classes[c].n_transit) * b.slot_bytes[c];
    }
    cr_assert(b.n_slot == n && b.ram_bytes == bytes);
    stk_budget_close(&b);
    return text;
}

Test(budget, as_recorded) {
    cr_expect_str_eq(slots((stk_replay_options){0}, false, &header), "12+0 4+0");
    cr_expect_str_eq(slots((stk_replay_options){.scope = STK_SCOPE_LAYER}, false, &header), "4+0 4+0 4+0 4+0");
}

Test(budget, every_class_and_layer_gets_the_same_part) {
    cr_expect_str_eq(slots((stk_replay_options){.fraction = 0.5}, false, &header), "15+0 5+0");
    cr_expect_str_eq(slots((stk_replay_options){.fraction = 0.5, .scope = STK_SCOPE_LAYER}, false, &header), "5+0 5+0 5+0 5+0");
    cr_expect_str_eq(slots((stk_replay_options){.fraction = 1}, false, &header), "30+0 10+0");
    cr_expect_str_eq(slots((stk_replay_options){.n_slot = 20}, false, &header), "15+0 5+0");
    cr_expect_str_eq(slots((stk_replay_options){.ram_bytes = 25000}, false, &header), "15+0 5+0");
    cr_expect_str_eq(slots((stk_replay_options){.ram_bytes = UINT64_MAX}, false, &header), "30+0 10+0");
}

Test(budget, transit_slots_are_within_bytes_and_beside_slots) {
    cr_expect_str_eq(slots((stk_replay_options){.ram_bytes = 25000}, true, &header), "13+2 3+2");
    cr_expect_str_eq(slots((stk_replay_options){.fraction = 0.5}, true, &header), "15+2 5+2");
    cr_expect_str_eq(slots((stk_replay_options){.n_slot = 20, .scope = STK_SCOPE_LAYER}, true, &header), "5+2 5+2 5+2 5+2");
}

Test(budget, too_little_names_the_least) {
    cr_expect(strstr(slots((stk_replay_options){.ram_bytes = 5999}, false, &header), "the least is 6000 bytes"));
    cr_expect_str_eq(slots((stk_replay_options){.ram_bytes = 6000}, false, &header), "2+0 2+0");
    cr_expect(strstr(slots((stk_replay_options){.ram_bytes = 11999}, true, &header), "the least is 12000 bytes"));
    cr_expect_str_eq(slots((stk_replay_options){.n_slot = 4}, false, &header), "2+0 2+0");
    cr_expect(strstr(slots((stk_replay_options){.n_slot = 3}, false, &header), "the least is 6000 bytes"));
    cr_expect(strstr(slots((stk_replay_options){.fraction = 1e-9}, false, &header), "the least is 6000 bytes"));
}

Test(budget, what_has_none_is_asked_for_one) {
    static const stk_trace_class none[2] = {{1000, 900, 0, 0}, {2000, 1900, 0, 0}},
                                 huge[2] = {{UINT64_MAX / 2, 1, 0, 0}, {1, 1, 0, 0}};
    stk_trace_header h = header;
    h.classes = none;
    h.policy = "";
    cr_expect(strstr(slots((stk_replay_options){0}, false, &h), "names no budget"));
    h.classes = huge;
    cr_expect(strstr(slots((stk_replay_options){.fraction = 0.5}, false, &h), "exceed 2^63 bytes"));
}

static int n_warning;
static void take_line(void *user, int level, const char *line) {
    (void)user;
    if (level == STK_LOG_WARN && strstr(line, "experts that one token uses")) n_warning++;
}

Test(budget, less_than_a_token_is_warned_of) {
    stk_budget b;
    stk_log_set(take_line, NULL);
    static const struct {
        uint64_t n_slot;
        uint32_t scope;
        int warnings;
    } cases[] = {{4, STK_SCOPE_GLOBAL, 1}, {10, STK_SCOPE_GLOBAL, 0}, {8, STK_SCOPE_LAYER, 0}};
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        n_warning = 0;
        cr_assert_eq(
            stk_budget_open(&b, &header, &(stk_replay_options){.n_slot = cases[i].n_slot, .scope = cases[i].scope}, false), 0);
        stk_budget_warn(&b, &header);
        cr_expect_eq(n_warning, cases[i].warnings, "case %zu", i);
        stk_budget_close(&b);
    }
    stk_log_set(NULL, NULL);
}
