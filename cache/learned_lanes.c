/* learned_lanes: the table of every x86-64, and which ones this CPU can run. */
#define LANES_TABLE stk_lanes_base
#define LANES_NAME  "base"
#include "cache/learned_lanes_loops.h"

const stk_lanes *stk_lanes_table(uint32_t i) {
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512vnni");
    const stk_lanes *const tables[] = {&stk_lanes_base, avx2 ? &stk_lanes_avx2 : NULL, avx512 ? &stk_lanes_avx512 : NULL};
    return i < STK_ARRAY_LEN(tables) ? tables[i] : NULL;
}

const stk_lanes *stk_lanes_best(void) {
    const stk_lanes *best = &stk_lanes_base, *next;
    for (uint32_t i = 0; (next = stk_lanes_table(i)); i++) best = next;
    return best;
}
