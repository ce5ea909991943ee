/* tables: the tables of kernels that cpu.c chooses from; each is defined in the file that its name ends in. Private to cpu/. */
#ifndef STK_CPU_TABLES_H
#define STK_CPU_TABLES_H

#include "cpu/cpu.h"

extern const stk_cpu_ops stk_cpu_ops_ref;
extern const stk_cpu_ops stk_cpu_ops_avx2;
extern const stk_cpu_ops stk_cpu_ops_avxvnni;
extern const stk_cpu_ops stk_cpu_ops_avx512;
/* Makes the table "amx": that of AVX-512 with other products. The caller has been allowed to use tiles (cpu.c). */
void stk_cpu_ops_amx(stk_cpu_ops *ops);

#endif
