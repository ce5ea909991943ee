/*
 * device: what the checks of the GPU's kernels share: memory of the device that is gone after each case, and comparison with what
 * cpu/ref computes. Every check takes a table of stk_cuda_ops and returns false at the first difference, as in
 * tests/kernels/check.h.
 */
#ifndef STK_CHECK_DEVICE_H
#define STK_CHECK_DEVICE_H

#include "cuda/cuda.h"
#include "tests/kernels/check.h"

typedef struct device {
    const stk_cuda_ops *ops;
    stk_cuda_stream *stream;
    void *blocks[64];
    uint32_t n_block;
} device;

/* Ends the program where the device cannot be opened. */
void device_open(device *d, const stk_cuda_ops *ops);
void device_close(device *d);
/* Memory until device_clear: as it comes, or a copy of host memory. Ends the program when there is none. */
void *device_take(device *d, size_t bytes);
void *device_copy(device *d, const void *host, size_t bytes);
/* Waits and reads back; false, with a failure, where something went wrong on the way. */
bool device_read(device *d, void *host, const void *dev, size_t bytes);
void device_clear(device *d);
/* A call of the table; false, with a failure, when it refuses. */
bool device_call(int rc);

/* Rows with a canary between them: [n_row, stride], of which `n` floats of each row are results. */
bool device_rows_equal(device *d, const char *what, const float *want, const float *dev, uint32_t n_row, uint32_t n,
                       uint32_t stride);
/* Quantized rows of n_in. */
bool device_acts_equal(device *d, const uint8_t *want, const uint8_t *dev, uint32_t n_row, uint32_t n_in, uint32_t stride);
/* f32 [n_row, stride] of canaries on the device. */
float *device_canary(device *d, size_t count);

bool check_cuda_rmsnorm(device *d);
bool check_cuda_silu_mul(device *d);
bool check_cuda_quantize(device *d);
bool check_cuda_embed(device *d);
bool check_cuda_combine(device *d);
bool check_cuda_route(device *d);
bool check_cuda_product(device *d, enum stk_type type);
bool check_cuda_experts(device *d, enum stk_type type);
bool check_cuda_gate_up(device *d, enum stk_type type);
bool check_cuda_rotate(device *d);
bool check_cuda_attend(device *d);

#endif
