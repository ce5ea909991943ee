/*
 * checkcuda: compares the GPU's kernels with the reference, bit for bit, on a device or on its emulation.
 *
 *     checkcuda emu|cuda [--seed N] [--op NAME]     exit 1 at the first mismatch, 3 at a fault, 77 where there is no device
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/kernels/cuda/device.h"

typedef struct cuda_check {
    const char *name;
    bool (*plain)(device *d);
    bool (*typed)(device *d, enum stk_type type);
} cuda_check;

static const cuda_check checks[] = {
    {"rmsnorm", check_cuda_rmsnorm, NULL}, {"silu_mul", check_cuda_silu_mul, NULL}, {"quantize", check_cuda_quantize, NULL},
    {"embed", check_cuda_embed, NULL},     {"combine", check_cuda_combine, NULL},   {"route", check_cuda_route, NULL},
    {"rotate", check_cuda_rotate, NULL},   {"attend", check_cuda_attend, NULL},     {"product", NULL, check_cuda_product},
    {"experts", NULL, check_cuda_experts}, {"gate_up", NULL, check_cuda_gate_up}};

static const enum stk_type types[] = {STK_TYPE_F32,  STK_TYPE_F16,  STK_TYPE_BF16, STK_TYPE_Q8_0,
                                      STK_TYPE_Q4_0, STK_TYPE_Q4_K, STK_TYPE_Q5_K, STK_TYPE_Q6_K};

static bool run_check(device *d, const cuda_check *c) {
    uint64_t begin = stk_now_ns(), n_case = 0;
    const stk_cpu_ops names = {.name = d->ops->name};
    char name[64];
    for (uint32_t i = 0; i < (c->typed ? STK_ARRAY_LEN(types) : 1); i++) {
        snprintf(name, sizeof name, "%s%s%s", c->name, c->typed ? " " : "", c->typed ? stk_type_info_get(types[i])->name : "");
        check_begin(&names, name);
        if (!(c->typed ? c->typed(d, types[i]) : c->plain(d))) return false;
        n_case += check_n_case();
    }
    printf("%-5s %-9s ok  %5llu cases  %5.2f s\n", d->ops->name, c->name, (unsigned long long)n_case,
           (double)(stk_now_ns() - begin) * 1e-9);
    return true;
}

int main(int argc, char **argv) {
    const char *table = NULL, *op = NULL;
    check_seed((uint64_t)time(NULL));
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            check_seed(strtoull(argv[++i], NULL, 10));
        else if (strcmp(argv[i], "--op") == 0 && i + 1 < argc)
            op = argv[++i];
        else
            table = argv[i];
    }
    if (!table) {
        fprintf(stderr, "usage: checkcuda emu|cuda [--seed N] [--op NAME]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    check_catch_faults();
    const stk_cuda_ops *ops = stk_cuda_ops_get(table);
    uint32_t n_device = 0, n_run = 0;
    if (ops && ops->count(&n_device) < 0) fprintf(stderr, "%s\n", stk_error_detail());
    if (!n_device) {
        printf("%s: skipped: %s\n", table, ops ? "no device" : "not in this build");
        return CHECK_SKIPPED;
    }
    printf("seed %llu\n", (unsigned long long)check_seed_get());
    device d;
    device_open(&d, ops);
    for (uint32_t i = 0; i < STK_ARRAY_LEN(checks); i++) {
        if (op && strcmp(op, checks[i].name)) continue;
        if (!run_check(&d, &checks[i])) return CHECK_MISMATCH;
        n_run++;
    }
    device_close(&d);
    return n_run ? 0 : 2;
}
