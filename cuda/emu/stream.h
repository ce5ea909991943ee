/* stream: the queues of the emulated runtime, and its state. Private to cuda/emu. */
#ifndef STK_EMU_STREAM_H
#define STK_EMU_STREAM_H

#include <pthread.h>

#include "cuda/emu/emu.h"

typedef struct stk_emu_failure {
    uint32_t after, count;
    int error;
} stk_emu_failure;

/* All of it is guarded by `lock`, which is recursive because host functions run under it. */
typedef struct stk_emu_state {
    pthread_mutex_t lock;
    stk_emu_config config;
    bool started, in_host_func;
    uint64_t random;
    int last_error;
    int lost; /* the error that lost the device */
    char detail[512];
    stk_emu_failure fail[STK_EMU_N_FAIL];
    stk_emu_stats stats;
} stk_emu_state;
extern stk_emu_state stk_emu;

/* Every call: takes the lock and returns why it must fail, or 0; leave gives the lock back and returns rc. */
int stk_emu_enter(void);
int stk_emu_leave(int rc);
/* The error that a test wants of this call, or 0. */
int stk_emu_injected(enum stk_emu_fail kind);

/* Runs everything that is queued. */
int stk_emu_run_all(void);
void stk_emu_streams_reset(void);

#endif
