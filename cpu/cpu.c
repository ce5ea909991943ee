/*
 * cpu: which tables this CPU runs. A table counts when the CPU has its instructions and the system saves its registers (XCR0).
 * Tiles want a permission besides, which Linux gives to the process as a whole; it is asked for once, where the CPU has them.
 */
#include "cpu/cpu.h"

#include <cpuid.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/tables.h"

enum {
    LEAF1_ECX_FMA = 1 << 12,
    LEAF1_ECX_OSXSAVE = 1 << 27,
    LEAF1_ECX_F16C = 1 << 29,
    LEAF7_EBX_AVX2 = 1 << 5,
    LEAF7_EBX_BMI2 = 1 << 8,
    LEAF7_EBX_AVX512F = 1 << 16,
    LEAF7_EBX_AVX512DQ = 1 << 17,
    LEAF7_EBX_AVX512BW = 1 << 30,
    LEAF7_ECX_AVX512VNNI = 1 << 11,
    LEAF7_EDX_AMX_TILE = 1 << 24,
    LEAF7_EDX_AMX_INT8 = 1 << 25,
    LEAF7_1_EAX_AVXVNNI = 1 << 4,
    XCR0_YMM = 0x06, /* xmm and upper halves of ymm */
    XCR0_ZMM = 0xe0, /* masks, upper halves of zmm0..15, zmm16..31 */
    XCR0_TILES = 0x60000,
    XFEATURE_TILE_DATA = 18,
    ARCH_ASK_PERMISSION = 0x1023, /* ARCH_REQ_XCOMP_PERM of asm/prctl.h, since Linux 5.16 */
};
#define LEAF7_EBX_AVX512VL (1u << 31)

typedef struct cpu_flags {
    bool avx2, avxvnni, avx512, amx;
} cpu_flags;

static bool has_all(uint32_t reg, uint32_t bits) { return (reg & bits) == bits; }

static uint32_t read_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Refused by a kernel before 5.16, by a filter, and where a thread has a signal stack that is too small for tiles. */
static bool may_use_tiles(void) { return syscall(SYS_arch_prctl, ARCH_ASK_PERMISSION, XFEATURE_TILE_DATA) == 0; }

static cpu_flags detect(void) {
    cpu_flags f = {0};
    uint32_t a, b, c, d, b7, c7, d7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_all(c, LEAF1_ECX_OSXSAVE | LEAF1_ECX_FMA | LEAF1_ECX_F16C)) return f;
    uint32_t xcr0 = read_xcr0(), max_subleaf;
    if (!has_all(xcr0, XCR0_YMM) || !__get_cpuid_count(7, 0, &max_subleaf, &b7, &c7, &d7)) return f;
    f.avx2 = has_all(b7, LEAF7_EBX_AVX2 | LEAF7_EBX_BMI2);
    f.avx512 = f.avx2 && has_all(xcr0, XCR0_ZMM) && has_all(c7, LEAF7_ECX_AVX512VNNI) &&
               has_all(b7, LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW | LEAF7_EBX_AVX512VL);
    f.amx = f.avx512 && has_all(xcr0, XCR0_TILES) && has_all(d7, LEAF7_EDX_AMX_TILE | LEAF7_EDX_AMX_INT8) && may_use_tiles();
    f.avxvnni = f.avx2 && max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && has_all(a, LEAF7_1_EAX_AVXVNNI);
    return f;
}

static cpu_flags flags;
static stk_cpu_ops ops_amx; /* where flags.amx */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void look(void) {
    flags = detect();
    if (flags.amx) stk_cpu_ops_amx(&ops_amx);
}

/* The tables of this CPU, plainest first; returns their number. */
static uint32_t tables_of_cpu(const stk_cpu_ops *tables[8]) {
    pthread_once(&once, look);
    const cpu_flags f = flags;
    uint32_t n = 0;
    tables[n++] = &stk_cpu_ops_ref;
    if (f.avx2) tables[n++] = &stk_cpu_ops_avx2;
    if (f.avxvnni) tables[n++] = &stk_cpu_ops_avxvnni;
    if (f.avx512) tables[n++] = &stk_cpu_ops_avx512;
    if (f.amx) tables[n++] = &ops_amx;
    return n;
}

const stk_cpu_ops *stk_cpu_ops_get(const char *name) {
    const stk_cpu_ops *tables[8];
    uint32_t n = tables_of_cpu(tables);
    if (!name || !*name) return tables[n - 1];
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(tables[i]->name, name) == 0) return tables[i];
    return NULL;
}

const stk_cpu_ops *stk_cpu_ops_at_most(const char *name) {
    static const char *const order[] = {"ref", "avx2", "avxvnni", "avx512", "amx"};
    const stk_cpu_ops *best = NULL;
    if (!name || !*name) return stk_cpu_ops_get(NULL);
    for (size_t i = 0; i < STK_ARRAY_LEN(order); i++) {
        const stk_cpu_ops *ops = stk_cpu_ops_get(order[i]);
        if (ops) best = ops;
        if (strcmp(order[i], name) == 0) return best;
    }
    return NULL;
}

uint32_t stk_cpu_ops_list(const char *names[8]) {
    const stk_cpu_ops *tables[8];
    uint32_t n = tables_of_cpu(tables);
    for (uint32_t i = 0; i < n; i++) names[i] = tables[i]->name;
    return n;
}

stk_matmul_fn stk_cpu_matmul(const stk_cpu_ops *ops, enum stk_type type) {
    switch (type) {
    case STK_TYPE_F32: return ops->matmul_f32;
    case STK_TYPE_F16: return ops->matmul_f16;
    case STK_TYPE_BF16: return ops->matmul_bf16;
    case STK_TYPE_Q8_0: return ops->matmul_q8_0;
    case STK_TYPE_Q4_0: return ops->matmul_q4_0;
    case STK_TYPE_Q4_K: return ops->matmul_q4_k;
    case STK_TYPE_Q5_K: return ops->matmul_q5_k;
    case STK_TYPE_Q6_K: return ops->matmul_q6_k;
    }
    return NULL;
}
