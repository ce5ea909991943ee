/*
 * device: a GPU, real or emulated, as the engine holds it: its table of operations, its streams, and a list of the memory that
 * was reserved on it. Everything is taken while the engine opens; what does not fit under the cap is refused before it is asked
 * for.
 *
 * Who may call it: src/. Threads: one owner; whichever thread it is calls stk_device_bind first. Ownership: memory, pinned ranges
 * and streams end with the device.
 */
#ifndef STK_DEVICE_H
#define STK_DEVICE_H

#include "cuda/cuda.h"
#include "src/base.h"

enum { STK_DEVICE_N_BLOCK = 16 };

typedef struct stk_device {
    const stk_cuda_ops *ops;
    stk_cuda_info info;
    uint64_t cap_bytes;       /* that may be taken in all */
    uint64_t used_bytes;      /* that were */
    stk_cuda_stream *compute; /* kernels, and the copies between them */
    stk_cuda_stream *up;      /* experts to the device */
    stk_cuda_stream *down;    /* experts from it */
    void *blocks[STK_DEVICE_N_BLOCK];
    struct {
        void *base;
        uint64_t bytes;
    } pinned[STK_DEVICE_N_BLOCK];          /* registered ranges */
    void *host_blocks[STK_DEVICE_N_BLOCK]; /* pinned memory that was allocated */
    uint32_t n_block, n_pinned, n_host_block;
    uint64_t pinned_bytes; /* of both kinds */
} stk_device;

/*
 * name: NULL or "auto": "cuda" where there is a device, else none; "cuda", "emu"; "none". No device is *out NULL, and no error
 * unless it was asked for. cap_bytes: 0 for all of its free memory. Errors: STK_EINVAL (no such name), STK_EUNSUPPORTED (this
 * build or this machine has none), STK_EIO, STK_ENOMEM.
 */
int stk_device_open(stk_device **out, const char *name, uint64_t cap_bytes) STK_CHECKED;
void stk_device_close(stk_device **device);

/* Makes it the calling thread's. */
int stk_device_bind(const stk_device *device) STK_CHECKED;
/* Whether an error has made it unusable until the process ends. */
bool stk_device_lost(const stk_device *device);
/* Bytes that may still be taken. */
int stk_device_room(const stk_device *device, uint64_t *bytes) STK_CHECKED;

/* Memory on the device; bytes == 0 gives NULL. Errors: STK_ENOMEM names `what`. */
int stk_device_take(stk_device *device, void **out, uint64_t bytes, const char *what) STK_CHECKED;
/* Pins memory that is there, so that copies of it overlap with other work. False where the driver refuses, which is said in one
 * line: copies then go through memory of the driver's own. */
bool stk_device_pin(stk_device *device, void *base, uint64_t bytes, const char *what);
/* Ends that; nothing may be on its way from or to that memory. */
void stk_device_unpin(stk_device *device, const void *base);
/* Pinned memory, or NULL, said in one line. */
void *stk_device_take_pinned(stk_device *device, uint64_t bytes, const char *what);

/* Copies, queued on a stream; tried twice unless the device is lost. */
int stk_device_up(const stk_device *device, void *dst, const void *src, uint64_t bytes, stk_cuda_stream *stream) STK_CHECKED;
int stk_device_down(const stk_device *device, void *dst, const void *src, uint64_t bytes, stk_cuda_stream *stream) STK_CHECKED;

#endif
