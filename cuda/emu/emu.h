/*
 * emu: the part of the CUDA runtime that Stoker uses, on the CPU: for bits, not for speed. It runs the same kernels on machines
 * without a GPU, and finds mistakes that a GPU would hide.
 *
 * Device memory is host memory between guard pages, filled with NaN bytes. A stream is a queue; what lies in it runs at the next
 * call that waits or asks, in the calling thread, in a seeded random order of the streams that keeps to events: a missing
 * dependency gives wrong results instead of lucky ones. The blocks of a launch run one after another in random order, the threads
 * of a block as fibers in random order between two rendezvous (block.h). A fault of a kernel is reported with its place
 * (stk_emu_detail) and loses the device, as on a GPU.
 *
 * The functions named after those of the runtime do what those do and return their error codes; cuda/emu/runtime.h gives them the
 * runtime's names in `.cu` files. Beyond the runtime's rules: the legacy default stream is refused, waiting for what nothing will
 * do is an error instead of a hang, and dynamic and static shared memory together are at most 48 KiB.
 *
 * Who may call it: the `.cu` files of cuda/, and tests. Threads: any; one lock. Ownership: as in the runtime; stk_emu_reset frees
 * everything.
 */
#ifndef STK_EMU_H
#define STK_EMU_H

#include "src/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Codes and names are those of the CUDA runtime. */
enum {
    STK_EMU_SUCCESS = 0,
    STK_EMU_INVALID_VALUE = 1,
    STK_EMU_MEMORY_ALLOCATION = 2,
    STK_EMU_INVALID_DEVICE = 101,
    STK_EMU_INVALID_CONFIGURATION = 9,
    STK_EMU_INVALID_HANDLE = 400,
    STK_EMU_NOT_READY = 600,
    STK_EMU_ILLEGAL_ADDRESS = 700,
    STK_EMU_LAUNCH_TIMEOUT = 702,
    STK_EMU_HOST_ALREADY_REGISTERED = 712,
    STK_EMU_HOST_NOT_REGISTERED = 713,
    STK_EMU_LAUNCH_FAILURE = 719,
    STK_EMU_NOT_PERMITTED = 800,
};

enum {
    STK_EMU_MAX_THREADS = 1024, /* of a block */
    STK_EMU_WARP = 32,
    STK_EMU_SHARED_BYTES = 48 << 10,
};

typedef struct stk_emu_dim {
    uint32_t x, y, z;
} stk_emu_dim;

typedef struct stk_emu_stream stk_emu_stream;
typedef struct stk_emu_event stk_emu_event;

/* ---- For tests ---- */

typedef struct stk_emu_config {
    uint64_t vram_bytes; /* of the device */
    uint64_t pin_bytes;  /* that may be pinned */
    uint64_t seed;       /* of every random order */
    uint32_t n_device;   /* 0: "no device"; 1 */
} stk_emu_config;

/* 24 GiB, no limit on pinning, seed 1, one device. */
stk_emu_config stk_emu_config_default(void);
/* Forgets errors, frees all memory, streams and events, and starts anew. */
void stk_emu_reset(const stk_emu_config *config);

/* What is made to fail. Calls fail at once and do nothing; STK_EMU_FAIL_LOST loses the device when the work runs. */
enum stk_emu_fail {
    STK_EMU_FAIL_MALLOC,
    STK_EMU_FAIL_HOST_ALLOC,
    STK_EMU_FAIL_COPY,
    STK_EMU_FAIL_LAUNCH,
    STK_EMU_FAIL_STREAM,
    STK_EMU_FAIL_EVENT,
    STK_EMU_FAIL_LOST,
    STK_EMU_N_FAIL
};
/* The next `after` calls of the kind succeed and `count` ones after them fail with `error`. */
void stk_emu_fail_next(enum stk_emu_fail kind, uint32_t after, uint32_t count, int error);

/* What went wrong in the last kernel or wait that failed: kernel, block, thread, file and line; "" if nothing has. */
const char *stk_emu_detail(void);
/* Whether something has lost the device since the last reset. */
bool stk_emu_lost(void);
typedef struct stk_emu_stats {
    uint64_t vram_bytes, vram_peak_bytes, pin_bytes, pin_peak_bytes;
    uint64_t n_launch, n_copy, copy_bytes;
    uint32_t n_alloc, n_host_alloc, n_stream, n_event; /* alive */
} stk_emu_stats;
void stk_emu_stats_get(stk_emu_stats *stats);

/* ---- The runtime (cudaX is stk_emu_x) ---- */

int stk_emu_get_device_count(int *n);
int stk_emu_set_device(int device);
int stk_emu_mem_get_info(size_t *free_bytes, size_t *total_bytes);
int stk_emu_malloc(void **out, size_t bytes);
int stk_emu_free(void *p);
int stk_emu_host_alloc(void **out, size_t bytes, unsigned flags);
int stk_emu_free_host(void *p);
int stk_emu_host_register(void *p, size_t bytes, unsigned flags);
int stk_emu_host_unregister(void *p);
int stk_emu_memcpy_async(void *dst, const void *src, size_t bytes, int kind, stk_emu_stream *stream);
int stk_emu_memset_async(void *dst, int value, size_t bytes, stk_emu_stream *stream);
int stk_emu_launch_host_func(stk_emu_stream *stream, void (*fn)(void *), void *ctx);
int stk_emu_stream_create_with_priority(stk_emu_stream **out, unsigned flags, int priority);
int stk_emu_stream_destroy(stk_emu_stream *stream);
int stk_emu_stream_synchronize(stk_emu_stream *stream);
int stk_emu_stream_query(stk_emu_stream *stream);
int stk_emu_stream_wait_event(stk_emu_stream *stream, stk_emu_event *event, unsigned flags);
int stk_emu_event_create_with_flags(stk_emu_event **out, unsigned flags);
int stk_emu_event_destroy(stk_emu_event *event);
int stk_emu_event_record(stk_emu_event *event, stk_emu_stream *stream);
int stk_emu_event_query(stk_emu_event *event);
int stk_emu_event_synchronize(stk_emu_event *event);
int stk_emu_device_synchronize(void);
int stk_emu_get_last_error(void);
const char *stk_emu_get_error_string(int error);

/* Queues a launch: run(args) in every thread of the grid; args_bytes are copied. */
int stk_emu_launch(const char *kernel, stk_emu_dim grid, stk_emu_dim block, size_t dynamic_bytes, stk_emu_stream *stream,
                   void (*run)(const void *args), const void *args, size_t args_bytes);

#ifdef __cplusplus
}
#endif
#endif
