/* fiber: a stack of its own and switching to it, on x86-64, known to the sanitizers. Private to cuda/emu. */
#ifndef STK_EMU_FIBER_H
#define STK_EMU_FIBER_H

#include "src/base.h"

typedef struct stk_fiber {
    void *sp;
    uint8_t *stack; /* NULL for the thread that switches to the others */
    size_t stack_bytes;
    void *fake_stack; /* of the address sanitizer */
    void *tsan;
    void (*entry)(void *ctx);
    void *ctx;
} stk_fiber;

/* Maps a stack below a guard page; STK_ENOMEM. A zeroed fiber may be closed. */
int stk_fiber_open(stk_fiber *f) STK_CHECKED;
void stk_fiber_close(stk_fiber *f);
/* The next switch to f calls entry(ctx), which never returns; whatever f was doing is abandoned. */
void stk_fiber_start(stk_fiber *f, void (*entry)(void *ctx), void *ctx);
/* Makes `home` the fiber of the running thread; done: ends that. */
void stk_fiber_home(stk_fiber *home);
/* Suspends `from`, which is running, and resumes `to`. */
void stk_fiber_switch(stk_fiber *from, stk_fiber *to);

#endif
