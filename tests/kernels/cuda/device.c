/* device: memory and comparison for the checks of the GPU's kernels. */
#include "tests/kernels/cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/numeric.h"

enum { CANARY = 0xa5 };

static void must(int rc, const char *what) {
    if (rc >= 0) return;
    fprintf(stderr, "checkcuda: %s: %s\n", what, stk_error_detail());
    exit(2);
}

void device_open(device *d, const stk_cuda_ops *ops) {
    memset(d, 0, sizeof *d);
    d->ops = ops;
    must(ops->bind(0), "device 0");
    must(ops->stream_open(&d->stream, false), "a stream");
}

void device_close(device *d) {
    device_clear(d);
    d->ops->stream_close(d->stream);
}

void *device_take(device *d, size_t bytes) {
    if (d->n_block == STK_ARRAY_LEN(d->blocks)) must(-1, "more blocks than a check may have");
    must(d->ops->malloc(&d->blocks[d->n_block], bytes, "a check"), "device memory");
    return d->blocks[d->n_block++];
}

void *device_copy(device *d, const void *host, size_t bytes) {
    void *dev = device_take(d, bytes);
    must(d->ops->to_device(dev, host, bytes, d->stream), "a copy");
    return dev;
}

bool device_call(int rc) { return rc >= 0 || check_fail("%s", stk_error_detail()); }

bool device_read(device *d, void *host, const void *dev, size_t bytes) {
    return device_call(d->ops->to_host(host, dev, bytes, d->stream)) && device_call(d->ops->stream_sync(d->stream));
}

void device_clear(device *d) {
    for (uint32_t i = 0; i < d->n_block; i++) d->ops->free(d->blocks[i]);
    d->n_block = 0;
}

float *device_canary(device *d, size_t count) {
    float *dev = device_take(d, count * sizeof *dev);
    must(d->ops->fill(dev, CANARY, count * sizeof *dev, d->stream), "canaries");
    return dev;
}

static bool is_canary(float x) { return stk_f32_bits(x) == CANARY * UINT32_C(0x01010101); }

bool device_rows_equal(device *d, const char *what, const float *want, const float *dev, uint32_t n_row, uint32_t n,
                       uint32_t stride) {
    float *got = calloc((size_t)n_row * stride, sizeof *got);
    bool ok = got && device_read(d, got, dev, (size_t)n_row * stride * sizeof *got);
    for (uint32_t row = 0; row < n_row && ok; row++) {
        const float *line = got + (size_t)row * stride;
        for (uint32_t i = n; i < stride && ok; i++)
            if (!is_canary(line[i])) ok = check_fail("%s: wrote beyond row %u, at %u of %u", what, row, i, n);
        char name[64];
        snprintf(name, sizeof name, "%s, row %u", what, row);
        ok = ok && check_floats(name, want + (size_t)row * n, line, n);
    }
    free(got);
    return ok;
}

bool device_acts_equal(device *d, const uint8_t *want, const uint8_t *dev, uint32_t n_row, uint32_t n_in, uint32_t stride) {
    const stk_act_layout at = stk_act_layout_of(n_in);
    uint8_t *got = calloc(n_row, stride);
    bool ok = got && device_read(d, got, dev, (size_t)n_row * stride);
    for (uint32_t row = 0; row < n_row && ok; row++) {
        const uint8_t *w = want + (size_t)row * at.bytes, *g = got + (size_t)row * stride;
        for (uint32_t i = 0; i < n_in && ok; i++)
            if (w[i] != g[i])
                ok = check_fail("code %u of row %u is %d, the reference has %d", i, row, (int8_t)g[i], (int8_t)w[i]);
        ok = ok &&
             check_floats("scale", (const float *)(w + at.scale_offset), (const float *)(g + at.scale_offset), n_in / STK_GROUP);
        ok = ok && check_floats("sum", (const float *)(w + at.sum_offset), (const float *)(g + at.sum_offset), n_in / STK_GROUP);
        if (ok && memcmp(w + at.neg16_offset, g + at.neg16_offset, n_in / 16 * sizeof(int32_t)))
            ok = check_fail("the sums of 16 of row %u differ", row);
    }
    free(got);
    return ok;
}
