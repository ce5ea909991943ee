/* profile_file: written and read again, whole or not at all; what is malformed is named; layers for other budgets. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/tune/profile_file.h"
#include "tests/temp.h"

enum { N_LAYER = 3 };

static char path[TEMP_PATH];

static void open_path(void) { temp_file(path, "stoker-profile"); }
static void remove_path(void) { unlink(path); }
TestSuite(profile_file, .init = open_path, .fini = remove_path);

static uint32_t slots[N_LAYER] = {5, 9, 4};

static stk_profile_file example(void) {
    return (stk_profile_file){.model = "a \"model\"",
                              .n_layer = N_LAYER,
                              .n_expert = 16,
                              .k = 2,
                              .ram_bytes = 18000,
                              .fraction = 0.375,
                              .policy = "lrfu:decay=0.9",
                              .scope = STK_SCOPE_LAYER,
                              .layer_slots = slots,
                              .predictor = "gate",
                              .depth = 2,
                              .tok_s = 12.5,
                              .margin = 0.25};
}

static void save(const stk_profile_file *p) {
    const char *traces[] = {"one.trace", "two & <three>"};
    stk_profile_from from = {.traces = traces, .n_trace = 2, .io = "emu:1G,50us", .cost = ""};
    cr_assert_eq(stk_profile_file_save(path, p, &from), 0, "%s", stk_error_detail());
}

Test(profile_file, comes_back) {
    stk_profile_file p = example(), q;
    save(&p);
    cr_assert_eq(stk_profile_file_load(path, &q), 0, "%s", stk_error_detail());
    cr_assert_str_eq(q.model, p.model);
    cr_assert_str_eq(q.policy, p.policy);
    cr_assert_str_eq(q.predictor, p.predictor);
    cr_assert(q.n_layer == p.n_layer && q.n_expert == p.n_expert && q.k == p.k && q.scope == p.scope && q.depth == p.depth);
    cr_assert(q.ram_bytes == p.ram_bytes && q.fraction == p.fraction && q.tok_s == p.tok_s && q.margin == p.margin);
    cr_assert_not_null(q.layer_slots);
    cr_assert(memcmp(q.layer_slots, slots, sizeof slots) == 0);
    stk_profile_file_fini(&q);
}

Test(profile_file, without_layers) {
    stk_profile_file p = example(), q;
    p.layer_slots = NULL;
    p.scope = STK_SCOPE_GLOBAL;
    save(&p);
    cr_assert_eq(stk_profile_file_load(path, &q), 0, "%s", stk_error_detail());
    cr_assert_null(q.layer_slots);
    stk_profile_file_fini(&q);
}

/* The example's text with one piece replaced. */
static int load_with(const char *piece, const char *by) {
    stk_profile_file p = example(), q;
    char *text, *at;
    size_t bytes;
    save(&p);
    cr_assert_eq(stk_text_file_load(path, "profile", 1 << 16, &text, &bytes), 0);
    at = strstr(text, piece);
    cr_assert_not_null(at, "%s", piece);
    FILE *out = fopen(path, "w");
    fprintf(out, "%.*s%s%s", (int)(at - text), text, by, at + strlen(piece));
    fclose(out);
    free(text);
    int rc = stk_profile_file_load(path, &q);
    stk_profile_file_fini(&q);
    return rc;
}

Test(profile_file, malformed_is_named) {
    static const struct {
        const char *piece, *by, *word;
        int rc;
    } cases[] = {
        {"\"stoker_profile\":\t1", "\"stoker_profile\":\t2", "tune again", STK_EUNSUPPORTED},
        {"\"stoker_profile\":\t1", "\"other\":\t1", "stoker_profile", STK_EFORMAT},
        {"\"layers\":\t3", "\"layers\":\t3.5", "layers", STK_EFORMAT},
        {"\"layers\":\t3", "\"layers\":\t4", "layer_slots", STK_EFORMAT},
        {"\"experts_used\":\t2", "\"experts_used\":\t17", "experts_used", STK_EFORMAT},
        {"[5, 9, 4]", "[5, 9, 17]", "entry 2", STK_EFORMAT},
        {"[5, 9, 4]", "[5, 9, \"x\"]", "entry 2", STK_EFORMAT},
        {"\"scope\":\t\"layer\"", "\"scope\":\t\"token\"", "token", STK_EFORMAT},
        {"\"lookahead\":\t2", "\"lookahead\":\t4", "lookahead", STK_EFORMAT},
        {"\"policy\":\t\"lrfu:decay=0.9\"", "\"policy\":\t7", "policy", STK_EFORMAT},
        {"\"fraction\":\t0.375", "\"fraction\":\t1.5", "fraction", STK_EFORMAT},
        {"{", "[", "JSON", STK_EFORMAT},
    };
    for (size_t i = 0; i < STK_ARRAY_LEN(cases); i++) {
        int rc = load_with(cases[i].piece, cases[i].by);
        cr_assert_eq(rc, cases[i].rc, "case %zu: %d", i, rc);
        cr_assert_not_null(strstr(stk_error_detail(), cases[i].word), "case %zu: %s", i, stk_error_detail());
        cr_assert_not_null(strstr(stk_error_detail(), path), "case %zu: %s", i, stk_error_detail());
    }
}

Test(profile_file, missing_file) {
    stk_profile_file q;
    cr_assert_eq(stk_profile_file_load("/nonexistent/profile", &q), STK_EIO);
    cr_assert_not_null(strstr(stk_error_detail(), "/nonexistent/profile"));
}

Test(profile_file, a_failed_save_leaves_what_was_there) {
    stk_profile_file p = example();
    stk_profile_from from = {.io = "", .cost = ""};
    cr_assert_lt(stk_profile_file_save("/nonexistent/profile", &p, &from), 0);
    cr_assert_eq(stk_profile_file_save("/dev/null", &p, &from), STK_EINVAL, "not over a device");
}

Test(profile_file, another_model) {
    stk_profile_file p = example();
    cr_assert_eq(stk_profile_file_check(&p, "x", p.model, 3, 16, 2), 0);
    cr_assert_eq(stk_profile_file_check(&p, "x", "", 3, 16, 2), 0, "a name that is not known fits");
    cr_assert_eq(stk_profile_file_check(&p, "x", "another", 3, 16, 2), STK_EINVAL);
    cr_assert_not_null(strstr(stk_error_detail(), "another"));
    cr_assert_eq(stk_profile_file_check(&p, "x", p.model, 4, 16, 2), STK_EINVAL);
    cr_assert_eq(stk_profile_file_check(&p, "x", p.model, 3, 8, 2), STK_EINVAL);
    cr_assert_eq(stk_profile_file_check(&p, "x", p.model, 3, 16, 1), STK_EINVAL);
}

Test(profile_file, layers_for_a_budget) {
    const uint64_t bytes[N_LAYER] = {1000, 1000, 1000};
    stk_profile_file p = example();
    uint32_t n[N_LAYER];
    cr_assert_eq(stk_profile_file_layers(&p, bytes, 18000, 2, n), 0);
    cr_assert(memcmp(n, slots, sizeof n) == 0, "its own budget: its own slots");
    cr_assert_eq(stk_profile_file_layers(&p, bytes, 0, 2, n), 0);
    cr_assert(memcmp(n, slots, sizeof n) == 0);
    for (uint64_t budget = 6000; budget <= 60000; budget += 500) {
        cr_assert_eq(stk_profile_file_layers(&p, bytes, budget, 2, n), 0, "%s", stk_error_detail());
        uint64_t used = 0;
        for (int l = 0; l < N_LAYER; l++) {
            used += n[l] * bytes[l];
            cr_assert(n[l] >= 2 && n[l] <= 16, "%u slots", n[l]);
        }
        cr_assert_leq(used, budget);
    }
    cr_assert(n[0] == 16 && n[1] == 16 && n[2] == 13, "%u %u %u", n[0], n[1], n[2]);
    cr_assert_eq(stk_profile_file_layers(&p, bytes, 5999, 2, n), STK_EBUDGET);
}
