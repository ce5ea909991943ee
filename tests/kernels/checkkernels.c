/*
 * checkkernels: compares every table of kernels that this CPU runs with the reference, bit for bit, in the manner of dav1d's
 * checkasm.
 *
 *     checkkernels [--seed N] [--table NAME] [--op NAME]     check; exit 1 at the first mismatch, 3 at a fault, 77 if the CPU
 * lacks NAME checkkernels --list                                    tables of this CPU, operations checkkernels --bench [--table
 * NAME]                    times of the same operations as CSV checkkernels --self-test                               broken
 * kernels must be caught
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

#define MATMUL_CHECK(name, type)                                                                                                 \
    static bool check_matmul_##name(const stk_cpu_ops *ops) {                                                                    \
        check_begin(ops, "matmul_" #name);                                                                                       \
        return check_matmul(ops, type);                                                                                          \
    }
MATMUL_CHECK(f32, STK_TYPE_F32)
MATMUL_CHECK(f16, STK_TYPE_F16)
MATMUL_CHECK(bf16, STK_TYPE_BF16)
MATMUL_CHECK(q8_0, STK_TYPE_Q8_0)
MATMUL_CHECK(q4_0, STK_TYPE_Q4_0)
MATMUL_CHECK(q4_k, STK_TYPE_Q4_K)
MATMUL_CHECK(q5_k, STK_TYPE_Q5_K)
MATMUL_CHECK(q6_k, STK_TYPE_Q6_K)

const check_op check_ops[] = {
    {"quantize", check_quantize},
    {"quantize_groups", check_quantize_groups},
    {"matmul_f32", check_matmul_f32},
    {"matmul_f16", check_matmul_f16},
    {"matmul_bf16", check_matmul_bf16},
    {"matmul_q8_0", check_matmul_q8_0},
    {"matmul_q4_0", check_matmul_q4_0},
    {"matmul_q4_k", check_matmul_q4_k},
    {"matmul_q5_k", check_matmul_q5_k},
    {"matmul_q6_k", check_matmul_q6_k},
    {"rmsnorm", check_rmsnorm},
    {"silu_mul", check_silu_mul},
    {"add", check_add},
    {"axpy", check_axpy},
    {"rope", check_rope},
    {"softmax", check_softmax},
    {"f32_to_f16", check_f32_to_f16},
    {"attend", check_attend},
};
const uint32_t check_n_op = STK_ARRAY_LEN(check_ops);

bool check_table(const stk_cpu_ops *ops) {
    static const enum stk_type types[] = {STK_TYPE_F32,  STK_TYPE_F16,  STK_TYPE_BF16, STK_TYPE_Q8_0,
                                          STK_TYPE_Q4_0, STK_TYPE_Q4_K, STK_TYPE_Q5_K, STK_TYPE_Q6_K};
    check_begin(ops, "table");
    check_case("entries");
    if (!ops->quantize || !ops->quantize_groups || !ops->rmsnorm || !ops->silu_mul || !ops->add || !ops->axpy || !ops->rope ||
        !ops->softmax || !ops->f32_to_f16 || !ops->attend)
        return check_fail("an operation is missing");
    bool is_ref = strcmp(ops->name, "ref") == 0;
    for (uint32_t i = 0; i < STK_ARRAY_LEN(types); i++) {
        stk_matmul_fn fn = stk_cpu_matmul(ops, types[i]);
        if (!fn) return check_fail("the product of %s is missing", stk_type_info_get(types[i])->name);
        if (!is_ref && fn == stk_cpu_matmul(&stk_cpu_ops_ref, types[i]))
            return check_fail("the product of %s is the reference's", stk_type_info_get(types[i])->name);
    }
    return true;
}

#define EMULATED "amx-emu"

static bool run_table(const stk_cpu_ops *ops, const char *only_op) {
    if (!check_table(ops)) return false;
    for (uint32_t i = 0; i < check_n_op; i++) {
        if (only_op && strcmp(only_op, check_ops[i].name)) continue;
        uint64_t begin = stk_now_ns();
        if (!check_ops[i].check(ops)) return false;
        printf("%-8s %-16s ok  %6llu cases  %5.2f s\n", ops->name, check_ops[i].name, (unsigned long long)check_n_case(),
               (double)(stk_now_ns() - begin) * 1e-9);
    }
    return true;
}

static const char *const names[] = {"ref", "avx2", "avxvnni", "avx512", "amx", EMULATED};

#ifdef STK_AVXVNNI_EVEX
extern const stk_cpu_ops stk_cpu_ops_avxvnni_evex;
#endif

void stk_cpu_ops_amx_emu(stk_cpu_ops *ops);
extern uint64_t stk_amx_emu_n_dot;

/* The AMX kernels on emulated tiles; what is not emulated of them wants AVX-512. */
static const stk_cpu_ops *emulated_tiles(void) {
    static stk_cpu_ops ops;
    if (!stk_cpu_ops_get("avx512")) return NULL;
    stk_cpu_ops_amx_emu(&ops);
    ops.name = EMULATED;
    return &ops;
}

/* Under its own name or not at all; a CPU with AVX-512 VNNI but without AVX-VNNI runs the kernels of the latter in the former's
 * encoding. */
static const stk_cpu_ops *table_of(const char *name) {
    if (strcmp(name, EMULATED) == 0) return emulated_tiles();
    const stk_cpu_ops *ops = stk_cpu_ops_get(name);
#ifdef STK_AVXVNNI_EVEX
    if (!ops && strcmp(name, "avxvnni") == 0 && stk_cpu_ops_get("avx512")) ops = &stk_cpu_ops_avxvnni_evex;
#endif
    if (ops && strcmp(ops->name, name)) {
        fprintf(stderr, "FAIL the table %s calls itself %s\n", name, ops->name);
        exit(CHECK_MISMATCH);
    }
    return ops;
}

/* The reference goes against itself, too: that shows that what it is asked for stays inside the contract of memory. */
static int run_all(const char *table, const char *only_op) {
    uint32_t n_run = 0;
    printf("seed %llu\n", (unsigned long long)check_seed_get());
    for (uint32_t i = 0; i < STK_ARRAY_LEN(names); i++) {
        if (table && strcmp(table, names[i])) continue;
        const stk_cpu_ops *ops = table_of(names[i]);
        if (!ops) {
            printf("%-8s skipped: this CPU does not run it\n", names[i]);
            continue;
        }
        if (!run_table(ops, only_op)) return CHECK_MISMATCH;
        if (strcmp(names[i], EMULATED) == 0 && !only_op && stk_amx_emu_n_dot == 0)
            return check_fail("no product went through the tiles"), CHECK_MISMATCH;
        n_run++;
    }
    return n_run ? 0 : CHECK_SKIPPED;
}

static int list(void) {
    for (uint32_t i = 0; i < STK_ARRAY_LEN(names); i++)
        if (table_of(names[i])) printf("table %s\n", names[i]);
    for (uint32_t i = 0; i < check_n_op; i++) printf("op %s\n", check_ops[i].name);
    return 0;
}

static bool known_table(const char *name) {
    for (uint32_t i = 0; i < STK_ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static bool known_op(const char *name) {
    for (uint32_t i = 0; i < check_n_op; i++)
        if (strcmp(name, check_ops[i].name) == 0) return true;
    return false;
}

int main(int argc, char **argv) {
    const char *table = NULL, *op = NULL, *mode = "";
    check_seed((uint64_t)time(NULL));
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--seed") == 0 && has_value)
            check_seed(strtoull(argv[++i], NULL, 10));
        else if (strcmp(argv[i], "--table") == 0 && has_value && known_table(argv[i + 1]))
            table = argv[++i];
        else if (strcmp(argv[i], "--op") == 0 && has_value && known_op(argv[i + 1]))
            op = argv[++i];
        else if (strcmp(argv[i], "--list") == 0 || strcmp(argv[i], "--bench") == 0 || strcmp(argv[i], "--self-test") == 0)
            mode = argv[i];
        else {
            fprintf(stderr, "usage: checkkernels [--seed N] [--table NAME] [--op NAME] | --list | --bench | --self-test\n");
            return 2;
        }
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    check_catch_faults();
    if (strcmp(mode, "--list") == 0) return list();
    if (strcmp(mode, "--bench") == 0) return check_bench(table);
    if (strcmp(mode, "--self-test") == 0) return check_self_test();
    return run_all(table, op);
}
