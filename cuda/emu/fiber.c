/*
 * fiber: what a call must preserve is kept on the stack that is left: six registers and the return address. Everything else is
 * dead across a call by the ABI; the floating-point modes are the same for all fibers.
 */
#include "cuda/emu/fiber.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define STK_FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define STK_FIBER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define STK_FIBER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define STK_FIBER_TSAN 1
#endif
#endif
#ifdef STK_FIBER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef STK_FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

enum { STACK_BYTES = 128 << 10, GUARD_BYTES = 4096, FRAME_WORDS = 8 };

/* Saves the running stack's registers, stores its pointer in *from, and goes on with `to`. */
void stk_fiber_swap(void **from, void *to);
__asm__(".text\n"
        ".globl stk_fiber_swap\n"
        ".hidden stk_fiber_swap\n"
        ".type stk_fiber_swap, @function\n"
        "stk_fiber_swap:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size stk_fiber_swap, . - stk_fiber_swap\n");

/* The thread sanitizer must not count calls that never return. */
#if defined(STK_FIBER_TSAN)
#define STK_FIBER_UNCOUNTED __attribute__((no_sanitize("thread")))
#else
#define STK_FIBER_UNCOUNTED
#endif

/* The fiber that a switch goes to: what runs first on its stack has no other way to know. */
static _Thread_local stk_fiber *arriving;

int stk_fiber_open(stk_fiber *f) {
    memset(f, 0, sizeof *f);
    uint8_t *base =
        mmap(NULL, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return stk_fail(STK_ENOMEM, "emulated GPU: no memory for the stack of a thread");
    if (mprotect(base, GUARD_BYTES, PROT_NONE) < 0) {
        munmap(base, STACK_BYTES + GUARD_BYTES);
        return stk_fail(STK_ENOMEM, "emulated GPU: the stack of a thread cannot be guarded");
    }
    f->stack = base + GUARD_BYTES;
    f->stack_bytes = STACK_BYTES;
#ifdef STK_FIBER_TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
    return STK_OK;
}

void stk_fiber_close(stk_fiber *f) {
    if (!f->stack) return;
#ifdef STK_FIBER_TSAN
    __tsan_destroy_fiber(f->tsan);
#endif
    munmap(f->stack - GUARD_BYTES, f->stack_bytes + GUARD_BYTES);
    memset(f, 0, sizeof *f);
}

/* Where a started fiber begins. */
STK_FIBER_UNCOUNTED static void begin(void) {
    stk_fiber *f = arriving;
#ifdef STK_FIBER_ASAN
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    f->entry(f->ctx);
    __builtin_trap();
}

void stk_fiber_start(stk_fiber *f, void (*entry)(void *ctx), void *ctx) {
#ifdef STK_FIBER_ASAN
    __asan_unpoison_memory_region(f->stack, f->stack_bytes);
    f->fake_stack = NULL;
#endif
    f->entry = entry;
    f->ctx = ctx;
    /* Six registers, then begin's address where `ret` finds it; begin sees the alignment that a call would have left. */
    void **top = (void **)(f->stack + f->stack_bytes) - FRAME_WORDS;
    memset(top, 0, FRAME_WORDS * sizeof *top);
    void (*first)(void) = begin;
    memcpy(&top[6], &first, sizeof first);
    f->sp = top;
}

void stk_fiber_home(stk_fiber *home) {
    memset(home, 0, sizeof *home);
#ifdef STK_FIBER_TSAN
    home->tsan = __tsan_get_current_fiber();
#endif
#ifdef STK_FIBER_ASAN
    pthread_attr_t attr;
    void *stack = NULL;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &stack, &bytes);
        pthread_attr_destroy(&attr);
    }
    home->stack = stack;
    home->stack_bytes = bytes;
#endif
}

STK_FIBER_UNCOUNTED void stk_fiber_switch(stk_fiber *from, stk_fiber *to) {
    arriving = to;
#ifdef STK_FIBER_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
#ifdef STK_FIBER_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
    stk_fiber_swap(&from->sp, to->sp);
#ifdef STK_FIBER_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
#endif
}
